"""IWSLT'16 German-English: of the WIT3 release 2016-01, or of a folder of text, to fairseq data.

Section 5.1 of the KerBS paper: Moses tokenization, BPE, sentences of up to 80 words. The paper does
not say which sets it validates and tests on.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, ClassVar

from fairseq_kerbs.corpora.parallel import ParallelText
from fairseq_kerbs.corpora.released import Reading, ReleasedCorpus, decode_lines, read_files
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.processes import usable_cores

LANGUAGES = ("de", "en")
SETS = ("dev2010", "tst2010", "tst2011", "tst2012", "tst2013", "tst2014")

# Lines of the training files that are about a talk; all others are its sentences.
_TAG = re.compile(
    r"\s*</?(?:url|keywords|speaker|talkid|title|description|reviewer|translator|doc)\b"
)
_SEGMENT = re.compile(r'<seg\s+id="(\d+)"\s*>(.*?)</seg>', re.DOTALL)
_ENTITY = re.compile(r"&(?:[A-Za-z]+|#[0-9]+|#x[0-9A-Fa-f]+);")


@dataclass(frozen=True)
class Iwslt16(ReleasedCorpus):
    """IWSLT'16 De-En.

    Attributes:
        valid: one of :data:`SETS`.
        tests: one or several of :data:`SETS`.
        merges: BPE merges, learned on both languages together.
        joined_dictionary: one dictionary for both languages.
        max_words: longer training pairs are dropped.
        workers: processes to use.
    """

    key: ClassVar[str] = "iwslt16"
    step: ClassVar[str] = "read IWSLT'16"
    source: Path | None
    dest: Path
    valid: str = "tst2013"
    tests: tuple[str, ...] = ("tst2014",)
    merges: int = 10000
    joined_dictionary: bool = False
    max_words: int = 80
    workers: int = field(default_factory=usable_cores)

    @property
    def sets(self) -> dict[str, str]:
        """Set of each split but training: valid, test, test1, …"""
        tests = {f"test{i or ''}": name for i, name in enumerate(self.tests)}
        return {"valid": self.valid, **tests}

    @property
    def _names(self) -> dict[str, str]:
        """Names of the files in the release, by ``SPLIT.LANGUAGE``."""
        forms = {split: f"IWSLT16.TED.{part}.de-en.{{}}.xml" for split, part in self.sets.items()}
        forms = {"train": "train.tags.de-en.{}", **forms}
        return {
            f"{split}.{language}": form.format(language)
            for split, form in forms.items()
            for language in LANGUAGES
        }

    def check(self) -> None:
        """As `ReleasedCorpus.check`; the sets must be known and differ."""
        for flag, names in (("--valid", (self.valid,)), ("--test", self.tests)):
            for name in names:
                if name not in SETS:
                    raise UserError(f"{flag} must be of {', '.join(SETS)}, not {name}")
        if len(set(self.sets.values())) < len(self.sets):
            raise UserError("--valid and --test must name different sets")
        super().check()

    def text(self) -> ParallelText:
        """Pairs of German and English."""
        raw = self.dest / "raw"
        return ParallelText(
            train=str(raw / "train"),
            valid=str(raw / "valid"),
            tests=tuple(str(raw / split) for split in self.sets if split != "valid"),
            source_lang=LANGUAGES[0],
            target_lang=LANGUAGES[1],
            dest=self.dest,
            max_words=self.max_words,
            merges=self.merges,
            joined_dictionary=self.joined_dictionary,
            workers=self.workers,
        )

    def find(self, folder: Path) -> dict[str, Path]:
        """The release's files, or plain text: ``train*.de``, ``IWSLT16.TED.tst2013.de-en.de``."""
        if (folder / "de-en").is_dir():
            folder = folder / "de-en"
        files = {}
        for role, name in self._names.items():
            train, language = role.startswith("train"), role[-2:]
            plain = f"train*.{language}" if train else name.removesuffix(".xml")
            released = folder / name
            found = [released] if released.is_file() else sorted(folder.glob(plain))
            listing = ", ".join(path.name for path in found) or "none"
            if train and len(found) != 1:
                raise UserError(
                    f"{folder}: one training file {plain} was expected, found {listing}"
                )
            if not found:
                form = f"IWSLT16.TED.{{}}.de-en.{language}*"
                there = [part for part in SETS if list(folder.glob(form.format(part)))]
                raise UserError(
                    f"{folder} has no {plain}[.xml]; choose other sets with --valid and --test: "
                    f"it has {', '.join(there) or 'none'}"
                )
            files[role] = found[0]
        return files

    def recorded(self, files: Mapping[str, Path]) -> dict[str, Any]:
        """The sets, and how text is cleaned."""
        return {"sets": self.sets, "entities": "decoded"}

    def read(self, source: Path, files: Mapping[str, Path]) -> Reading:
        """The text of every split, and the number of pairs of each."""
        contents = read_files(source, files, self._names, ("/texts/de/en/de-en.tgz",))
        texts: dict[str, Iterable[str]] = {}
        figures = {}
        for split, part in {"train": "train", **self.sets}.items():
            sides = [contents[f"{split}.{language}"] for language in LANGUAGES]
            for where, content in sides:
                self.release.check_member(source, PurePath(where).name, content)
            numbers, pairs = zip(*(_sentences(*side) for side in sides), strict=True)
            _check_sides([where for where, _ in sides], numbers)
            if part != "train" or PurePath(sides[0][0]).name == self._names["train.de"]:
                self.release.check_count(source, part, len(pairs[0]), "pairs")
            figures[split] = len(pairs[0])
            texts |= {f"{split}.{lang}": side for lang, side in zip(LANGUAGES, pairs, strict=True)}
        return texts, figures

    def summary(self, source: Path, figures: Mapping[str, Any]) -> Iterator[str]:
        """The pairs of each split, and a note if training text is missing."""
        for split, name in {"train": "train", **self.sets}.items():
            yield f"{split}: {figures[split]} pairs" + (f" of {name}" if split != name else "")
        pairs, whole = figures["train"], self.release.counts["train"]
        if pairs < whole:
            yield (
                f"note: {source} has {pairs} training pairs, {100 * pairs / whole:.1f} % of the "
                f"release's {whole}; scores will not compare with published ones"
            )


def _sentences(where: str, content: bytes) -> tuple[list[str], list[str]]:
    """Identities ("" where there is none) and sentences of training text, XML, or plain text."""
    lines = decode_lines(content, where)
    if where.endswith(".xml"):
        document = "\n".join(lines)
        segments = _SEGMENT.findall(document)
        if document.count("<seg") != len(segments):
            raise UserError(f"{where}: a <seg id=…> has no end; fetch the file again")
        return [number for number, _ in segments], [_clean(text) for _, text in segments]
    tagged = PurePath(where).name.startswith("train.tags.")
    sentences = training_sentences(lines) if tagged else list(map(_clean, lines))
    return [""] * len(sentences), sentences


def training_sentences(lines: Iterable[str]) -> list[str]:
    """The sentences of a training file: what is not a line of tags, entities decoded."""
    return [_clean(line) for line in lines if not _TAG.match(line)]


def _clean(text: str) -> str:
    """Entities decoded (those that end in a semicolon), on one line, single spaces."""
    return " ".join(_ENTITY.sub(lambda match: html.unescape(match[0]), text).split())


def _check_sides(names: list[str], sides: tuple[list[str], ...]) -> None:
    """Raise a UserError if two files are not parallel by the identities of their sentences."""
    sizes = [len(side) for side in sides]
    if sizes[0] != sizes[1]:
        raise UserError(
            f"{names[0]} has {sizes[0]} sentences and {names[1]} has {sizes[1]}; "
            "parallel files need the same number"
        )
    for number, (source, target) in enumerate(zip(*sides, strict=True), start=1):
        if source != target:
            raise UserError(
                f"{names[0]} and {names[1]} differ in sentence {number}: "
                f'<seg id="{source}"> and <seg id="{target}">'
            )
