"""Tokenized text to a folder that fairseq trains language models on.

    DEST/text      the text without blank lines, one space between words
    DEST/dict.txt  the words that are kept, with their counts
    DEST/bin       what fairseq-preprocess makes of them

Every step is recorded (`manifest`), so that a second run does only what has changed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fairseq_kerbs.corpora.binarize import binarize_text
from fairseq_kerbs.corpora.manifest import Manifest, locked_folder
from fairseq_kerbs.corpora.parallel import LONGEST
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import (
    LONGEST_WORD,
    atomic_write,
    has_endless_word,
    iter_lines,
    without_endless_words,
)
from fairseq_kerbs.utils.processes import find_program, usable_cores

SPLITS = {"train": ("train",), "valid": ("valid", "validation", "dev"), "test": ("test",)}
"""fairseq's name of each split, and what file names call it."""

UNKNOWN = "<unk>"  # in the text as in fairseq's dictionary: both mean any word that was left out
RESERVED = frozenset({"<s>", "<pad>", "</s>"})  # fairseq's own symbols, which no text may use


@dataclass(frozen=True)
class LanguageSettings:
    """What `prepare_language` shall do.

    Attributes:
        files: the text of each split, one sentence or paragraph a line, words between spaces.
        dest: folder to work in.
        words: number of most frequent training words that are kept; None keeps all.
        workers: processes that fairseq-preprocess uses.
    """

    files: dict[str, Path]
    dest: Path
    words: int | None = None
    workers: int = field(default_factory=usable_cores)

    def check(self) -> None:
        """Raise a UserError that names the first flag with an impossible value."""
        for flag, value in (("--words", self.words), ("--workers", self.workers)):
            if value is not None and value < 1:
                raise UserError(f"{flag} must be at least 1, not {value}")
        if "," in str(self.dest):
            raise UserError(f"--dest {self.dest}: fairseq-preprocess cannot work below a comma")


def find_splits(folder: Path) -> dict[str, Path]:
    """The text of each split in a folder, by file names such as wiki.train.tokens or valid.txt.

    Raises:
        UserError: there is no such folder, or a split has no file in it, or several.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; name one, or use --train, --valid and --test")
    files = [path for path in sorted(folder.iterdir()) if path.is_file()]
    found = {}
    for split, names in SPLITS.items():
        matching = [path for path in files if set(re.split(r"[._-]", path.name)) & set(names)]
        if len(matching) != 1:
            listing = ", ".join(path.name for path in matching) or "none"
            raise UserError(
                f"{folder}: one file for {split} was expected ({' or '.join(names)} in its name), "
                f"found {listing}; name the files with --train, --valid and --test"
            )
        found[split] = matching[0]
    return found


def prepare_language(settings: LanguageSettings, report: Callable[[str], None] = print) -> Path:
    """Run every step that is not yet done; return the folder for fairseq (``DEST/bin``).

    Raises:
        UserError: wrong flags, text that is missing, empty, not UTF-8 or uses a symbol of
            fairseq's, or fairseq-preprocess failing.
    """
    settings.check()
    find_program("fairseq-preprocess")
    for path in settings.files.values():
        next(iter_lines(path), None)  # a missing file is named before anything is written
    with locked_folder(settings.dest):
        return _Preparation(settings, report).run()


class _Preparation:
    """The steps in one folder; each is skipped if the manifest shows it done."""

    def __init__(self, settings: LanguageSettings, report: Callable[[str], None]) -> None:
        self._settings = settings
        self._report = report
        self._dest, self._bin = settings.dest, settings.dest / "bin"
        self._dictionary = settings.dest / "dict.txt"
        self._texts = {split: settings.dest / "text" / split for split in settings.files}
        self._lines: dict[str, int] = {}
        self._manifest = Manifest(settings.dest, product=self._bin, report=report)

    def run(self) -> Path:
        for split, raw in self._settings.files.items():
            self._clean(split, raw)
        self._choose_words()
        self._binarize()
        self._report(f"data for fairseq-train --task language_modeling: {self._bin}")
        return self._bin

    def _clean(self, split: str, raw: Path) -> None:
        figures = self._manifest.step(
            f"clean {split}",
            inputs={"raw": raw},
            settings={"longest_word": LONGEST_WORD},
            outputs=[self._texts[split]],
            action=lambda: write_clean(raw, self._texts[split], training=split == "train"),
        )
        self._lines[split] = figures["lines"]
        self._report(
            f"  {split}: {figures['lines']} lines, {figures['words']} words; "
            f"{figures['blank']} blank lines dropped, {figures['endless']} with a word of more "
            f"than {LONGEST_WORD} characters"
        )
        if figures["long"]:
            self._report(
                f"  note: {figures['long']} lines of {split} have more than {LONGEST} words; a "
                "Transformer cannot read them with --sample-break-mode eos"
            )

    def _choose_words(self) -> None:
        text = self._texts["train"]
        figures = self._manifest.step(
            "choose words",
            inputs={"text": text},
            settings={"words": self._settings.words},
            outputs=[self._dictionary],
            action=lambda: write_dictionary(text, self._dictionary, self._settings.words),
        )
        self._report(f"  {figures['kept']} of {figures['types']} words kept")

    def _binarize(self) -> None:
        def action() -> dict[str, Any]:
            workers = self._settings.workers
            binarize_text(self._texts, self._lines, self._dictionary, self._bin, workers=workers)
            known = {line.rpartition(" ")[0] for line in iter_lines(self._dictionary)}
            return {split: count_unknown(path, known) for split, path in self._texts.items()}

        figures = self._manifest.step(
            "fairseq-preprocess",
            inputs={**self._texts, "dictionary": self._dictionary},
            settings={"fairseq": version("fairseq")},
            outputs=[self._bin],
            action=action,
        )
        for split, (unknown, words) in figures.items():
            self._report(f"  {split}: {100 * unknown / words:.2f} % of the words are {UNKNOWN}")


def write_clean(raw: Path, target: Path, training: bool = True) -> dict[str, int]:
    """Write the lines that have a word, words apart by one space; count lines, words and others.

    Training lines with an endless word are left out; lines of over :data:`LONGEST` words are kept,
    because most ways to train do not take a line as a whole.

    Raises:
        UserError: no line has a word, a word is one of :data:`RESERVED`, or one of text that is not
            for training is endless (see `without_endless_words`).
    """
    figures = {"lines": 0, "words": 0, "blank": 0, "endless": 0, "long": 0}
    lines = iter_lines(raw) if training else without_endless_words(iter_lines(raw), raw)
    with atomic_write(target) as stream:
        for number, line in enumerate(lines, start=1):
            words = line.split()
            if not words:
                figures["blank"] += 1
                continue
            if has_endless_word(line):
                figures["endless"] += 1
                continue
            for word in RESERVED.intersection(words):
                raise UserError(
                    f"{raw}, line {number}: '{word}' is a symbol of fairseq's own; remove it "
                    "(the end of a line needs no mark)"
                )
            figures["lines"] += 1
            figures["words"] += len(words)
            figures["long"] += len(words) > LONGEST
            stream.write(" ".join(words) + "\n")
        if figures["lines"] == 0:
            raise UserError(f"{raw} has no text; it must hold one sentence or paragraph a line")
    return figures


def write_dictionary(text: Path, target: Path, most: int | None) -> dict[str, int]:
    """Write the most frequent words as fairseq's dict.txt; equal counts go by the alphabet.

    Raises:
        UserError: the text has no word but :data:`UNKNOWN`.
    """
    counts: Counter[str] = Counter()
    for line in iter_lines(text):
        counts.update(line.split(" "))
    del counts[UNKNOWN]
    if not counts:
        raise UserError(f"{text} has no word but {UNKNOWN}; give a training text with words")
    ranked = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))[:most]
    with atomic_write(target) as stream:
        for word, count in ranked:
            stream.write(f"{word} {count}\n")
    return {"types": len(counts), "kept": len(ranked)}


def count_unknown(text: Path, known: set[str]) -> tuple[int, int]:
    """Words of a clean text that are not known, and all of its words."""
    unknown = total = 0
    for line in iter_lines(text):
        words = line.split(" ")
        total += len(words)
        unknown += sum(word not in known for word in words)
    return unknown, total
