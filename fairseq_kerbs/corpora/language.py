"""Tokenized text to a folder that fairseq trains language models on.

DEST/text    the text without blank lines, one space between words
DEST/bin     what fairseq-preprocess makes of it
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fairseq_kerbs.corpora.pipeline import Manifest, Preparation, flag, number
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import (
    LONGEST_WORD,
    atomic_write,
    has_endless_word,
    iter_lines,
    without_endless_words,
)

SPLITS = {"train": ("train",), "valid": ("valid", "validation", "dev"), "test": ("test",)}
"""fairseq's name of each split, and what file names call it."""

RESERVED = frozenset({"<s>", "<pad>", "</s>"})  # fairseq's own symbols, which no text may use
SPECIAL = 4  # symbols that fairseq's dictionaries begin with


@dataclass(frozen=True, kw_only=True)
class LanguageText(Preparation):
    """Tokenized text to fairseq data for language models.

    Checks tokenized text (one sentence or paragraph a line, words between spaces), drops blank
    lines, keeps the most frequent words, and binarizes into DEST/bin. The text is a folder with one
    file each with train, valid (or dev) and test in its name, or three files.
    """

    folder: Path | None = flag("folder of the text", None, type=Path, positional=True)
    train: Path | None = flag("training text", None, type=Path, metavar="FILE")
    valid: Path | None = flag("validation text", None, type=Path, metavar="FILE")
    test: Path | None = flag("test text", None, type=Path, metavar="FILE")
    words: int = number("most frequent training words to keep; 0 keeps all", 0, least=0)

    @property
    def raw(self) -> dict[str, Path]:
        """The text of each split."""
        named = {"train": self.train, "valid": self.valid, "test": self.test}
        files = {split: path for split, path in named.items() if path is not None}
        if len(files) != (0 if self.folder else 3):
            raise UserError("name either a folder, or all of --train, --valid and --test")
        return find_splits(self.folder) if self.folder else files

    def check(self) -> None:
        """Raise a UserError if a text is missing."""
        for path in self.raw.values():
            next(iter_lines(path), None)

    def run(self, manifest: Manifest) -> None:
        """Clean every text and binarize; raises what `write_clean` raises."""
        texts = {split: self.dest / "text" / split for split in self.raw}
        lines = {}
        for split, raw in self.raw.items():
            clean = partial(write_clean, raw, texts[split], training=split == "train")
            limit = {"longest_word": LONGEST_WORD}
            found = manifest.step(f"clean {split}", clean, {"raw": raw}, [texts[split]], **limit)
            lines[split] = found["lines"]
            manifest.report(
                f"  {split}: {found['lines']} lines, {found['words']} words; "
                f"{found['blank']} blank lines dropped, {found['endless']} with a word of more "
                f"than {LONGEST_WORD} characters"
            )
        kept = self.words + SPECIAL if self.words else -1
        flags = ["--only-source", "--nwordssrc", str(kept), "--padding-factor", "1"]
        flags += [f"--{split}pref={text}" for split, text in texts.items()]
        flags += ["--workers", str(self.workers)]
        manifest.binarize(flags, texts, lines, words=self.words)


def find_splits(folder: Path) -> dict[str, Path]:
    """The text of each split in a folder, by file names such as wiki.train.tokens or valid.txt; a
    UserError unless there is one file for each."""
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


def write_clean(raw: Path, target: Path, training: bool = True) -> dict[str, int]:
    """Write the lines that have a word, words apart by one space; count lines, words and others.

    Training lines with an endless word are left out. Raises a UserError if no line has a word, a
    word is one of :data:`RESERVED`, or one of other text is endless.
    """
    found = {"lines": 0, "words": 0, "blank": 0, "endless": 0}
    lines = iter_lines(raw) if training else without_endless_words(iter_lines(raw), raw)
    with atomic_write(target) as stream:
        for line_number, line in enumerate(lines, start=1):
            words = line.split()
            if not words or has_endless_word(line):
                found["endless" if words else "blank"] += 1
                continue
            for word in RESERVED.intersection(words):
                raise UserError(
                    f"{raw}, line {line_number}: '{word}' is a symbol of fairseq's own; remove it "
                    "(the end of a line needs no mark)"
                )
            found["lines"] += 1
            found["words"] += len(words)
            stream.write(" ".join(words) + "\n")
        if found["lines"] == 0:
            raise UserError(f"{raw} has no text; it must hold one sentence or paragraph a line")
    return found
