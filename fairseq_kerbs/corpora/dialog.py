"""DailyDialog: adjacent utterances become pairs of what was said and what was answered.

Section 5 of the KerBS paper takes what training and test share out of the training set. Here a
training pair is removed if the validation or the test set has it too, in whatever case; repeated
pairs inside a set stay. The two sides are called ``context`` (source) and ``en`` (target), because
the target's name tells the commands its language.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import compress, pairwise
from pathlib import Path
from typing import Any, ClassVar

from fairseq_kerbs.corpora import moses
from fairseq_kerbs.corpora.parallel import ParallelText
from fairseq_kerbs.corpora.released import Reading, ReleasedCorpus, decode_lines, read_files
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import has_endless_word, without_endless_words
from fairseq_kerbs.utils.processes import parallel_map, usable_cores

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
class DailyDialog(ReleasedCorpus):
    """DailyDialog.

    Attributes:
        lowercase: lower-case all text.
        merges: BPE merges, learned on both sides together.
        max_words: training pairs with a longer side are dropped.
        workers: processes to use.
    """

    key: ClassVar[str] = "dailydialog"
    step: ClassVar[str] = "read DailyDialog"
    source: Path | None
    dest: Path
    lowercase: bool = False
    merges: int = 5000
    max_words: int = 80
    workers: int = field(default_factory=usable_cores)

    def text(self) -> ParallelText:
        """Pairs of utterances, with one vocabulary for both sides."""
        raw = self.dest / "raw"
        return ParallelText(
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

    def find(self, folder: Path) -> dict[str, Path]:
        """The text of each part, by ``dialogues_test.txt``, say, also a level deeper."""
        files = {}
        for part in PARTS.values():
            name = f"dialogues_{part}.txt"
            found = [path for path in (folder / name, folder / part / name) if path.is_file()]
            if not found:
                raise UserError(
                    f"{folder} has no {name} (nor {part}/{name}); name the right folder"
                )
            files[part] = found[0]
        return files

    def recorded(self, files: Mapping[str, Path]) -> dict[str, Any]:
        """How utterances are paired and cleaned."""
        sacremoses = version("sacremoses")
        return {"pairs": "adjacent utterances", "apostrophes": 1, "sacremoses": sacremoses}

    def read(self, source: Path, files: Mapping[str, Path]) -> Reading:
        """The pairs of every split, and counts."""
        names = {part: f"dialogues_{part}.txt" for part in PARTS.values()}
        nested = tuple(f"/{part}.zip" for part in names)
        texts, figures = {}, {}
        for part, (where, content) in read_files(source, files, names, nested).items():
            lines = decode_lines(content, where)
            if part != "train":  # the preparation drops training pairs with an endless word
                lines = without_endless_words(lines, where)
            texts[part] = read_dialogues(lines, where)
        for part, dialogues in texts.items():
            figures[f"{part} dialogues"] = len(dialogues)
            figures[part] = sum(len(dialogue) - 1 for dialogue in dialogues)
            self.release.check_count(source, f"{part} dialogues", len(dialogues), "dialogues")
            self.release.check_count(source, part, figures[part], "pairs of adjacent utterances")
        said = {text: "" for part in texts.values() for dialogue in part for text in dialogue}
        natural = parallel_map(
            make_normalizer, said, total=len(said), workers=self.workers, description="raw"
        )
        said = dict(zip(said, natural, strict=True))
        pairs = {
            part: [(said[a], said[b]) for dialogue in dialogues for a, b in pairwise(dialogue)]
            for part, dialogues in texts.items()
        }
        train, overlap = remove_overlap(pairs["train"], pairs["validation"], pairs["test"])
        pairs["train"] = train
        sides = {
            f"{split}.{language}": [pair[side] for pair in pairs[part]]
            for split, part in PARTS.items()
            for side, language in enumerate(LANGUAGES)
        }
        return sides, figures | overlap

    def summary(self, source: Path, figures: Mapping[str, Any]) -> Iterator[str]:
        """Pairs and dialogues of each part, and the overlap."""
        for part in PARTS.values():
            yield f"{part}: {figures[part]} pairs of {figures[f'{part} dialogues']} dialogues"
        yield (
            f"{figures['removed']} training pairs removed that also occur in validation "
            f"({figures['in validation']}) or test ({figures['in test']}); "
            f"{figures['train'] - figures['removed']} left"
        )
        yield (
            f"{figures['in both']} test pairs also occur in validation; "
            f"{figures['repeated']} of the training pairs left repeat another"
        )


def read_dialogues(lines: Iterable[str], where: str) -> list[list[str]]:
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
    text = _CLITIC.sub(lambda match: "'" + match[1].replace("Ve", "ve"), text.translate(_ASCII))
    for pattern, replacement in _INSIDE:
        text = pattern.sub(replacement, text)
    return text


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
    keys, valid_keys, test_keys = (
        [(said.casefold(), answer.casefold()) for said, answer in pairs]
        for pairs in (train, valid, test)
    )
    in_valid, in_test = set(valid_keys), set(test_keys)
    kept = [key not in in_valid and key not in in_test for key in keys]
    left = list(compress(train, kept))
    return left, {
        "in validation": sum(key in in_valid for key in keys),
        "in test": sum(key in in_test for key in keys),
        "removed": len(train) - len(left),
        "in both": sum(key in in_valid for key in test_keys),
        "repeated": len(left) - len(set(compress(keys, kept))),
    }
