"""DailyDialog: adjacent utterances become pairs of what was said and what was answered.

Section 5 of the KerBS paper takes what training and test share out of the training set. Here a
training pair is removed if the validation or the test set has it too, in whatever case; repeated
pairs inside a set stay. The two sides are called ``context`` (source) and ``en`` (target), because
the target's name tells the commands its language.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

from fairseq_kerbs.corpora import moses, registry
from fairseq_kerbs.corpora.archives import decode_lines, open_zip, reading, zip_member
from fairseq_kerbs.corpora.manifest import Manifest, locked_folder
from fairseq_kerbs.corpora.parallel import PrepareSettings, prepare
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import (
    atomic_write,
    has_endless_word,
    iter_lines,
    without_endless_words,
)
from fairseq_kerbs.utils.processes import find_program, parallel_map, usable_cores

LANGUAGES = ("context", "en")
PARTS = {"train": "train", "valid": "validation", "test": "test"}
"""fairseq's name of each split and the release's."""

Pair = tuple[str, str]

_SEPARATOR = "__eou__"
_ASCII = str.maketrans({"’": "'", "‘": "'", "′": "'", "“": '"', "”": '"'})
# What follows the apostrophe of a contraction or genitive. The text has ’Ve for ’ve throughout.
_CLITIC = re.compile(r"(?<=\w) ?' ?(s|t|m|re|ve|ll|d)\b", re.IGNORECASE)
_INSIDE = (
    (re.compile(r"\b([o0]) ' clock\b", re.IGNORECASE), r"\1'clock"),
    (re.compile(r"\b(ma) ' am\b", re.IGNORECASE), r"\1'am"),
    (re.compile(r"\b(O) ' (?=[A-Z][a-z])"), r"\1'"),
)


@dataclass(frozen=True)
class DailyDialogSettings:
    """What `prepare_dailydialog` shall do.

    Attributes:
        source: the archive or a folder; None downloads the archive.
        dest: folder to work in.
        lowercase: lower-case all text.
        merges: BPE merges, learned on both sides together.
        max_words: training pairs with a longer side are dropped.
        workers: processes to use.
    """

    source: Path | None
    dest: Path
    lowercase: bool = False
    merges: int = 5000
    max_words: int = 80
    workers: int = field(default_factory=usable_cores)

    def parallel(self) -> PrepareSettings:
        """The settings of the preparation that follows: one vocabulary for both sides."""
        raw = self.dest / "raw"
        return PrepareSettings(
            train=str(raw / "train"),
            valid=str(raw / "valid"),
            tests=(str(raw / "test"),),
            source_lang=LANGUAGES[0],
            target_lang=LANGUAGES[1],
            source_moses="en",
            dest=self.dest,
            lowercase=self.lowercase,
            max_words=self.max_words,
            merges=self.merges,
            joined_dictionary=True,
            workers=self.workers,
        )


def prepare_dailydialog(
    settings: DailyDialogSettings, report: Callable[[str], None] = print
) -> Path:
    """Run every step that is not yet done; return the folder for fairseq (``DEST/bin``).

    The pairs lie in ``DEST/raw`` as natural text: ``test.en`` is the reference for BLEU.

    Raises:
        UserError: wrong flags, no archive, or one that is not the release (see `registry`); text
            that is missing, not UTF-8 or not in the release's form.
    """
    settings.parallel().check()
    find_program("fairseq-preprocess")
    corpus = registry.CORPORA["dailydialog"]
    with locked_folder(settings.dest):
        manifest = Manifest(settings.dest, product=settings.dest / "bin", report=report)
        source = registry.locate(corpus, settings.source, settings.dest / "download", report)
        files = _folder_files(source) if source.is_dir() else {}
        raw = settings.dest / "raw"
        figures = manifest.step(
            "read DailyDialog",
            inputs=files or {"archive": source},
            settings={
                "pairs": "adjacent utterances",
                "apostrophes": 1,
                "sacremoses": version("sacremoses"),
            },
            outputs=[raw / f"{split}.{language}" for split in PARTS for language in LANGUAGES],
            action=lambda: _read(corpus, source, files, raw, settings.workers),
        )
        for part in PARTS.values():
            report(f"  {part}: {figures[part]} pairs of {figures[f'{part} dialogues']} dialogues")
        report(
            f"  {figures['removed']} training pairs removed that also occur in validation "
            f"({figures['in validation']}) or test ({figures['in test']}); "
            f"{figures['train'] - figures['removed']} left"
        )
        report(
            f"  {figures['in both']} test pairs also occur in validation; "
            f"{figures['repeated']} of the training pairs left repeat another"
        )
    return prepare(settings.parallel(), report)


def _folder_files(folder: Path) -> dict[str, Path]:
    """The text of each split in a folder, by ``dialogues_test.txt``, say, also a level deeper."""
    files = {}
    for part in PARTS.values():
        name = f"dialogues_{part}.txt"
        found = [path for path in (folder / name, folder / part / name) if path.is_file()]
        if not found:
            raise UserError(f"{folder} has no {name} (nor {part}/{name}); name the right folder")
        files[part] = found[0]
    return files


def _read(
    corpus: registry.Corpus, source: Path, files: dict[str, Path], raw: Path, workers: int
) -> dict[str, Any]:
    """Write the pairs of every split to `raw`; return the counts."""
    if files:
        texts = {
            part: read_dialogues(_whole(part, iter_lines(path), path), path)
            for part, path in files.items()
        }
    else:
        registry.check_archive(corpus, source)
        texts = _archive_dialogues(source)
    figures: dict[str, int] = {}
    utterances: dict[str, str] = {}
    for part, dialogues in texts.items():
        figures[f"{part} dialogues"] = len(dialogues)
        figures[part] = sum(len(dialogue) - 1 for dialogue in dialogues)
        corpus.check_count(source, f"{part} dialogues", len(dialogues), "dialogues")
        corpus.check_count(source, part, figures[part], "pairs of adjacent utterances")
        utterances.update((text, "") for dialogue in dialogues for text in dialogue)
    natural = parallel_map(
        make_normalizer,
        utterances,
        total=len(utterances),
        workers=workers,
        description="raw",
    )
    utterances = dict(zip(utterances, natural, strict=True))
    pairs = {
        part: [
            (utterances[said], utterances[answer])
            for dialogue in dialogues
            for said, answer in pairwise(dialogue)
        ]
        for part, dialogues in texts.items()
    }
    pairs["train"], overlap = remove_overlap(pairs["train"], pairs["validation"], pairs["test"])
    for split, part in PARTS.items():
        for side, language in enumerate(LANGUAGES):
            with atomic_write(raw / f"{split}.{language}") as stream:
                stream.writelines(pair[side] + "\n" for pair in pairs[part])
    return figures | overlap


def _archive_dialogues(source: Path) -> dict[str, list[list[str]]]:
    """The dialogues of each part of the release: a zip file with a zip file a part."""
    texts = {}
    with reading(source), zipfile.ZipFile(source) as outer:
        for part in PARTS.values():
            name = f"dialogues_{part}.txt"
            where = f"{source}/{part}.zip"
            with open_zip(zip_member(outer, f"{part}.zip", source)) as inner:
                content = zip_member(inner, name, where)
            lines = decode_lines(content.removesuffix(b"\n").split(b"\n"), f"{where}/{name}")
            texts[part] = read_dialogues(_whole(part, lines, f"{where}/{name}"), f"{where}/{name}")
    return texts


def _whole(part: str, lines: Iterable[str], where: Path | str) -> Iterable[str]:
    """The lines of a part; `prepare` drops training pairs with an endless word."""
    return lines if part == "train" else without_endless_words(lines, where)


def read_dialogues(lines: Iterable[str], where: Path | str) -> list[list[str]]:
    """The utterances of each dialogue: one dialogue a line, ``__eou__`` after each utterance.

    Raises:
        UserError: a line does not end with ``__eou__`` (text cut off, or not this corpus), or an
            utterance is empty.
    """
    dialogues = []
    for number, line in enumerate(lines, start=1):
        *utterances, rest = (" ".join(part.split()) for part in line.split(_SEPARATOR))
        if rest or not utterances:
            raise UserError(f"{where}, line {number}: a dialogue must end with {_SEPARATOR}")
        if not all(utterances):
            raise UserError(f"{where}, line {number}: an utterance is empty")
        dialogues.append(utterances)
    return dialogues


def normalize_apostrophes(text: str) -> str:
    """Typographic quotation marks as ASCII, and contractions without spaces: I ’ Ve → I've."""
    text = text.translate(_ASCII)
    text = _CLITIC.sub(lambda match: "'" + _clitic(match[1]), text)
    for pattern, replacement in _INSIDE:
        text = pattern.sub(replacement, text)
    return text


def _clitic(letters: str) -> str:
    return letters.lower() if letters == "Ve" else letters


def make_normalizer() -> Callable[[str], str]:
    """A function from an utterance of the release, tokens between spaces, to natural text.

    It is tokenized and detokenized by Moses: so hypotheses, which are detokenized too, compare
    with references of the same form.
    """

    def normalize(text: str) -> str:
        if has_endless_word(text):
            return text  # hours for Moses, and its pair is dropped
        tokens = moses.tokenize(normalize_apostrophes(text), language="en")
        return moses.detokenize(tokens, language="en")

    return normalize


def remove_overlap(
    train: Sequence[Pair], valid: Sequence[Pair], test: Sequence[Pair]
) -> tuple[list[Pair], dict[str, int]]:
    """The training pairs that are neither in validation nor in test, whatever their case.

    Returns:
        The pairs left, and counts: training pairs ``in validation``, ``in test`` and ``removed``
        (in either), test pairs that are also in validation (``in both``), and pairs left that
        occurred before (``repeated``).
    """
    in_valid, in_test = set(map(_key, valid)), set(map(_key, test))
    counts = {"in validation": 0, "in test": 0, "removed": 0}
    left = []
    for pair in train:
        key = _key(pair)
        counts["in validation"] += key in in_valid
        counts["in test"] += key in in_test
        if key in in_valid or key in in_test:
            counts["removed"] += 1
        else:
            left.append(pair)
    counts["in both"] = sum(_key(pair) in in_valid for pair in test)
    counts["repeated"] = len(left) - len(set(map(_key, left)))
    return left, counts


def _key(pair: Pair) -> Pair:
    return pair[0].casefold(), pair[1].casefold()
