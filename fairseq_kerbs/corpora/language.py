"""Tokenized text to a folder that fairseq trains language models on.

    DEST/text      the text without blank lines, one space between words
    DEST/dict.txt  the words that are kept, with their counts
    DEST/bin       what fairseq-preprocess makes of them

Every step is recorded (`manifest`), so that a second run does only what has changed.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fairseq_kerbs.corpora.binarize import LONGEST, Report, binarize, check_flags, working_folder
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import (
    LONGEST_WORD,
    atomic_write,
    has_endless_word,
    iter_lines,
    without_endless_words,
)
from fairseq_kerbs.utils.processes import usable_cores

SPLITS = {"train": ("train",), "valid": ("valid", "validation", "dev"), "test": ("test",)}
"""fairseq's name of each split, and what file names call it."""

UNKNOWN = "<unk>"  # in the text as in fairseq's dictionary: both mean any word that was left out
RESERVED = frozenset({"<s>", "<pad>", "</s>"})  # fairseq's own symbols, which no text may use


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


@dataclass(frozen=True)
class LanguageText:
    """Text for language models, and what `prepare` shall do with it.

    Attributes:
        raw: the text of each split, one sentence or paragraph a line, words between spaces.
        dest: folder to work in.
        words: number of most frequent training words that are kept; None keeps all.
        workers: processes that fairseq-preprocess uses.
    """

    raw: dict[str, Path]
    dest: Path
    words: int | None = None
    workers: int = field(default_factory=usable_cores)

    def check(self) -> None:
        """Raise a UserError that names the first flag with an impossible value."""
        check_flags(self.dest, words=self.words, workers=self.workers)

    def prepare(self, report: Report = print) -> Path:
        """Run every step that is not yet done; return the folder for fairseq (``DEST/bin``).

        Raises:
            UserError: wrong flags, text that is missing, empty, not UTF-8 or uses a symbol of
                fairseq's, or fairseq-preprocess failing.
        """
        self.check()
        for path in self.raw.values():
            next(iter_lines(path), None)  # a missing file is named before anything is written
        texts = {split: self.dest / "text" / split for split in self.raw}
        dictionary, target = self.dest / "dict.txt", self.dest / "bin"
        lines = {}
        with working_folder(self.dest, report) as manifest:
            for split, raw in self.raw.items():
                figures = manifest.step(
                    f"clean {split}",
                    inputs={"raw": raw},
                    settings={"longest_word": LONGEST_WORD},
                    outputs=[texts[split]],
                    action=partial(write_clean, raw, texts[split], training=split == "train"),
                )
                lines[split] = figures["lines"]
                _report_clean(split, figures, report)
            figures = manifest.step(
                "choose words",
                inputs={"text": texts["train"]},
                settings={"words": self.words},
                outputs=[dictionary],
                action=lambda: write_dictionary(texts["train"], dictionary, self.words),
            )
            report(f"  {figures['kept']} of {figures['types']} words kept")

            def preprocess() -> dict[str, Any]:
                flags: dict[str, object] = {f"{split}pref": texts[split] for split in texts}
                flags |= {"only-source": True, "srcdict": dictionary, "workers": self.workers}
                binarize(flags, lines, target)
                known = {line.rpartition(" ")[0] for line in iter_lines(dictionary)}
                return {split: count_unknown(path, known) for split, path in texts.items()}

            figures = manifest.step(
                "fairseq-preprocess",
                inputs={**texts, "dictionary": dictionary},
                settings={"fairseq": version("fairseq")},
                outputs=[target],
                action=preprocess,
            )
            for split, (unknown, words) in figures.items():
                report(f"  {split}: {100 * unknown / words:.2f} % of the words are {UNKNOWN}")
            report(f"data for fairseq-train --task language_modeling: {target}")
        return target


def _report_clean(split: str, figures: dict[str, int], report: Report) -> None:
    report(
        f"  {split}: {figures['lines']} lines, {figures['words']} words; "
        f"{figures['blank']} blank lines dropped, {figures['endless']} with a word of more "
        f"than {LONGEST_WORD} characters"
    )
    if figures["long"]:
        report(
            f"  note: {figures['long']} lines of {split} have more than {LONGEST} words; a "
            "Transformer cannot read them with --sample-break-mode eos"
        )


def write_clean(raw: Path, target: Path, training: bool = True) -> dict[str, int]:
    """Write the lines that have a word, words apart by one space; count lines, words and others.

    Training lines with an endless word are left out; lines of over `LONGEST` words are kept,
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
            if not words or has_endless_word(line):
                figures["endless" if words else "blank"] += 1
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
    counts = Counter(word for line in iter_lines(text) for word in line.split(" "))
    del counts[UNKNOWN]
    if not counts:
        raise UserError(f"{text} has no word but {UNKNOWN}; give a training text with words")
    ranked = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))[:most]
    with atomic_write(target) as stream:
        stream.writelines(f"{word} {count}\n" for word, count in ranked)
    return {"types": len(counts), "kept": len(ranked)}


def count_unknown(text: Path, known: set[str]) -> tuple[int, int]:
    """Words of a clean text that are not known, and all of its words."""
    words = Counter(word in known for line in iter_lines(text) for word in line.split(" "))
    return words[False], words.total()
