"""IWSLT'16 German-English: of the WIT3 release 2016-01, or of a folder of text, to fairseq data.

Section 5.1 of the KerBS paper: Moses tokenization, BPE, sentences of up to 80 words. The paper does
not say which sets it validates and tests on.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fairseq_kerbs.corpora import registry
from fairseq_kerbs.corpora.archives import decode_lines, reading, tar_streams
from fairseq_kerbs.corpora.manifest import Manifest, locked_folder
from fairseq_kerbs.corpora.parallel import PrepareSettings, prepare
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import atomic_write
from fairseq_kerbs.utils.processes import find_program, usable_cores

LANGUAGES = ("de", "en")
SETS = ("dev2010", "tst2010", "tst2011", "tst2012", "tst2013", "tst2014")

# Lines of the training files that are about a talk; all others are its sentences.
_TAG = re.compile(
    r"\s*</?(?:url|keywords|speaker|talkid|title|description|reviewer|translator|doc)\b"
)
_SEGMENT = re.compile(r'<seg\s+id="(\d+)"\s*>(.*?)</seg>', re.DOTALL)
_ENTITY = re.compile(r"&(?:[A-Za-z]+|#[0-9]+|#x[0-9A-Fa-f]+);")


@dataclass(frozen=True)
class Iwslt16Settings:
    """What `prepare_iwslt16` shall do.

    Attributes:
        source: the archive or a folder; None downloads the archive.
        dest: folder to work in.
        valid: one of :data:`SETS`.
        tests: one or several of :data:`SETS`.
        merges: BPE merges, learned on both languages together.
        joined_dictionary: one dictionary for both languages.
        max_words: longer training pairs are dropped.
        workers: processes to use.
    """

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

    def parallel(self) -> PrepareSettings:
        """The settings of the preparation that follows reading."""
        raw = self.dest / "raw"
        return PrepareSettings(
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

    def check(self) -> None:
        """Raise a UserError that names the first flag with an impossible value."""
        for flag, names in (("--valid", (self.valid,)), ("--test", self.tests)):
            for name in names:
                if name not in SETS:
                    raise UserError(f"{flag} must be of {', '.join(SETS)}, not {name}")
        if len(set(self.sets.values())) < len(self.sets):
            raise UserError("--valid and --test must name different sets")
        self.parallel().check()


def prepare_iwslt16(settings: Iwslt16Settings, report: Callable[[str], None] = print) -> Path:
    """Run every step that is not yet done; return the folder for fairseq (``DEST/bin``).

    The text that was read lies in ``DEST/raw``: ``test.en`` is the reference for BLEU.

    Raises:
        UserError: wrong flags, no archive, or one that is not the release (see `registry`); text
            that is missing, not UTF-8 or differs in length between the languages.
    """
    settings.check()
    find_program("fairseq-preprocess")
    corpus = registry.CORPORA["iwslt16"]
    with locked_folder(settings.dest):
        manifest = Manifest(settings.dest, product=settings.dest / "bin", report=report)
        source = registry.locate(corpus, settings.source, settings.dest / "download", report)
        names = _files(source, settings.sets)
        raw = settings.dest / "raw"
        figures = manifest.step(
            "read IWSLT'16",
            inputs={"archive": source} if source.is_file() else names,
            settings={"sets": settings.sets, "entities": "decoded"},
            outputs=[
                raw / f"{split}.{language}"
                for split in ("train", *settings.sets)
                for language in LANGUAGES
            ],
            action=lambda: _read(corpus, source, names, settings.sets, raw),
        )
        for split, name in {"train": "train", **settings.sets}.items():
            report(f"  {split}: {figures[split]} pairs" + (f" of {name}" if split != name else ""))
        if figures["train"] < corpus.counts["train"]:
            share = 100 * figures["train"] / corpus.counts["train"]
            report(
                f"  note: {source} has {figures['train']} training pairs, {share:.1f} % of the "
                f"release's {corpus.counts['train']}; scores will not compare with published ones"
            )
    return prepare(settings.parallel(), report)


def _file_name(part: str, language: str) -> str:
    """Name of a file of the release: of ``train`` or of a set."""
    if part == "train":
        return f"train.tags.de-en.{language}"
    return f"IWSLT16.TED.{part}.de-en.{language}.xml"


def _files(source: Path, sets: dict[str, str]) -> dict[str, Path]:
    """The files of a folder to read, by ``SPLIT.LANGUAGE``; of an archive, their names in it.

    Raises:
        UserError: the folder lacks one of them.
    """
    folder = source
    if source.is_dir() and (source / "de-en").is_dir():
        folder = source / "de-en"
    files = {}
    for split, part in {"train": "train", **sets}.items():
        for language in LANGUAGES:
            path = folder / _file_name(part, language)
            if source.is_dir() and not path.is_file():
                path = _plain_file(folder, part, language)
            files[f"{split}.{language}"] = path
    return files


def _plain_file(folder: Path, part: str, language: str) -> Path:
    """A file of plain text in a folder: ``train*.de`` or ``IWSLT16.TED.tst2013.de-en.de``, say."""
    if part == "train":
        found = sorted(folder.glob(f"train*.{language}"))
        if len(found) != 1:
            listing = ", ".join(path.name for path in found) or "none"
            raise UserError(
                f"{folder}: one training file train*.{language} was expected, found {listing}"
            )
        return found[0]
    path = folder / _file_name(part, language).removesuffix(".xml")
    if not path.is_file():
        there = [
            name for name in SETS if list(folder.glob(f"IWSLT16.TED.{name}.de-en.{language}*"))
        ]
        raise UserError(
            f"{folder} has no {path.name}[.xml]; choose other sets with --valid and --test: "
            f"it has {', '.join(there) or 'none'}"
        )
    return path


def _read(
    corpus: registry.Corpus, source: Path, names: dict[str, Path], sets: dict[str, str], raw: Path
) -> dict[str, Any]:
    """Write the text of every split to `raw`; return the number of pairs of each."""
    if source.is_file():
        registry.check_archive(corpus, source)
        contents = _archive_contents(source, {path.name for path in names.values()})
    else:
        contents = {path.name: path.read_bytes() for path in names.values()}
    figures = {}
    for split, part in {"train": "train", **sets}.items():
        files = [names[f"{split}.{language}"] for language in LANGUAGES]
        sides = []
        for path in files:
            content = contents[path.name]
            corpus.check_member(source, path.name, content)
            sides.append(_texts(content, path))
        _check_sides(files, sides)
        if part != "train" or files[0].name == _file_name("train", LANGUAGES[0]):
            corpus.check_count(source, part, len(sides[0]), "pairs")
        for language, side in zip(LANGUAGES, sides, strict=True):
            with atomic_write(raw / f"{split}.{language}") as stream:
                stream.writelines(text + "\n" for _, text in side)
        figures[split] = len(sides[0])
    return figures


def _archive_contents(source: Path, wanted: set[str]) -> dict[str, bytes]:
    """The wanted files of ``2016-01.tgz`` (in its ``texts/de/en/de-en.tgz``), or of ``de-en.tgz``.

    Raises:
        UserError: the archive is broken or lacks one of them.
    """
    contents: dict[str, bytes] = {}
    with reading(source):
        for name, stream in tar_streams(source, lambda name: True):
            if name.parts[-4:] == ("texts", "de", "en", "de-en.tgz"):
                inner = io.BytesIO(stream.read())
                contents = {
                    path.name: content.read()
                    for path, content in tar_streams(inner, lambda path: path.name in wanted)
                }
                break
            if name.name in wanted and name.parent.name == "de-en":
                contents[name.name] = stream.read()
    missing = sorted(wanted - set(contents))
    if missing:
        raise UserError(f"{source} has no {missing[0]} for German to English (texts/de/en)")
    return contents


def _texts(content: bytes, path: Path) -> list[tuple[str, str]]:
    """Identity and text of each sentence of a file: training text, XML, or plain text."""
    lines = decode_lines(io.BytesIO(content), path)
    if path.suffix == ".xml":
        document = "\n".join(lines)
        segments = _SEGMENT.findall(document)
        if document.count("<seg") != len(segments):
            raise UserError(f"{path}: a <seg id=…> has no end; fetch the file again")
        return [(number, _clean(text)) for number, text in segments]
    if path.name.startswith("train.tags."):
        return [("", text) for text in training_sentences(lines)]
    return [("", _clean(line)) for line in lines]


def training_sentences(lines: Iterable[str]) -> list[str]:
    """The sentences of a training file: what is not a line of tags, entities decoded."""
    return [_clean(line) for line in lines if not _TAG.match(line)]


def _clean(text: str) -> str:
    """Entities decoded (those that end in a semicolon), on one line, single spaces."""
    return " ".join(_ENTITY.sub(lambda match: html.unescape(match[0]), text).split())


def _check_sides(files: list[Path], sides: list[list[tuple[str, str]]]) -> None:
    """Raise a UserError if two files are not parallel."""
    if len(sides[0]) != len(sides[1]):
        raise UserError(
            f"{files[0]} has {len(sides[0])} sentences and {files[1]} has {len(sides[1])}; "
            "parallel files need the same number"
        )
    for number, (source, target) in enumerate(zip(*sides, strict=True), start=1):
        if source[0] != target[0]:
            raise UserError(
                f"{files[0]} and {files[1]} differ in sentence {number}: "
                f'<seg id="{source[0]}"> and <seg id="{target[0]}">'
            )
