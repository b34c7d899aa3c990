"""Tokenized text to data of language models: cleaned, and binarized with the frequent words."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from fairseq_kerbs.data.prepare import (
    SPLITS,
    binarize,
    checked_lines,
    is_due,
    report,
    working_folder,
    write_lines,
)
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import LONGEST_WORD, has_endless_word, iter_lines, sha256_of

_SPECIAL = 4  # symbols that fairseq's dictionaries begin with


def prepare_language(
    dest: Path, workers: int = 1, *, folder: Path | None = None, words: int = 0,
    **files: Path | None,
) -> None:  # fmt: skip
    """Tokenized text to fairseq data for language models.

    Checks tokenized text (one sentence or paragraph a line, words between spaces), drops blank
    lines, keeps the most frequent words, and binarizes into DEST/bin. The text is a folder with one
    file each with train, valid (or dev) and test in its name, or three files.

    Raises a UserError if the text is missing, not UTF-8 or without words, and what `working_folder`
    and `binarize` do.
    """
    texts = {split: path for split, path in files.items() if path}
    if len(texts) != (0 if folder else 3):
        raise UserError("name either a folder, or all of --train, --valid and --test")
    texts = find_splits(folder) if folder else texts
    for path in texts.values():
        next(iter_lines(path), None)  # which says what is wrong with the file
    inputs = {split: sha256_of(path) for split, path in texts.items()}
    with working_folder(dest, {"command": "prepare-lm", "words": words, "inputs": inputs}):
        language_steps(texts, dest, words, workers)


def language_steps(texts: Mapping[str, Path], dest: Path, words: int, workers: int) -> None:
    """Clean every text and binarize with the most frequent ``words`` (0: all)."""
    flags = ["--only-source", "--nwordssrc", str(words + _SPECIAL if words else -1)]
    flags += ["--padding-factor", "1", "--workers", str(workers)]
    for split, raw in texts.items():
        target = dest / "text" / split
        if is_due(f"clean {split}", target):
            write_clean(raw, target, training=split == "train")
        flags.append(f"--{split}pref=text/{split}")
    binarize(dest, flags)


def find_splits(folder: Path) -> dict[str, Path]:
    """The text of each split in a folder, by file names such as wiki.train.tokens or valid.txt; a
    UserError unless there is one file for each."""
    files = [path for path in sorted(folder.glob("*")) if path.is_file()]
    texts = {}
    for split, names in SPLITS.items():
        matching = [path for path in files if set(re.split(r"[._-]", path.name)) & set(names)]
        if len(matching) != 1:
            listing = ", ".join(path.name for path in matching) or "none"
            raise UserError(
                f"{folder}: one file for {split} was expected ({' or '.join(names)} in its name), "
                f"found {listing}; name the files with --train, --valid and --test"
            )
        texts[split] = matching[0]
    return texts


def write_clean(raw: Path, target: Path, *, training: bool) -> None:
    """Write the lines that have a word, words apart by one space, and report how many there are.

    Training lines with an endless word are left out. Raises a UserError if no line has a word, or
    one of other text is endless.
    """
    lines = [" ".join(line.split()) for line in checked_lines(raw, training=training)]
    whole = [line for line in lines if line and not has_endless_word(line)]
    if not whole:
        raise UserError(f"{raw} has no text; it must hold one sentence or paragraph a line")
    write_lines(target, whole)
    words, blank = sum(line.count(" ") + 1 for line in whole), lines.count("")
    report(
        f"  {len(whole)} lines, {words} words; {blank} blank lines dropped, "
        f"{len(lines) - len(whole) - blank} with a word of more than {LONGEST_WORD} characters"
    )
