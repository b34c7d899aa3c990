"""The folder in which text is made ready for fairseq, step by step.

A step whose output is there is skipped; outputs get their names when they are whole. What the
folder was made with is in DEST/preparation.json: with other text or flags all is made anew.

DEST/raw   text of a release        DEST/tok    tokenized by Moses
DEST/clean training pairs, filtered DEST/bpe    codes and subwords
DEST/text  clean text for language models       DEST/bin    what fairseq-preprocess makes of them
"""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import (
    LONGEST_WORD,
    PARTIAL,
    atomic_write,
    has_endless_word,
    iter_lines,
    lock_folder,
    read_object,
    write_json,
)
from fairseq_kerbs.utils.processes import find_program, quoted, run_program

NAME = "preparation.json"
SPLITS = {"train": ("train",), "valid": ("valid", "validation", "dev"), "test": ("test",)}
"""fairseq's name of each split, and what file names call it."""

_FOLDERS = ("raw", "tok", "clean", "bpe", "text", "bin")


def report(line: str) -> None:
    """Print a line at once: a log shows each step as it starts."""
    print(line, flush=True)


def is_due(what: str, target: Path) -> bool:
    """Whether a step has yet to be done, because its output is not there."""
    report(f"{what}: already done" if target.exists() else f"{what} ...")
    return not target.exists()


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a text of these lines."""
    with atomic_write(path) as stream:
        stream.writelines(f"{line}\n" for line in lines)


def count_lines(path: Path) -> int:
    """Number of lines of a text."""
    return sum(1 for _ in iter_lines(path))


def checked_lines(path: Path, *, training: bool) -> Iterator[str]:
    """The lines of a text; a UserError if one that is not for training has an endless word."""
    for number, line in enumerate(iter_lines(path), start=1):
        if not training and has_endless_word(line):
            raise UserError(
                f"{path}, line {number}: a word has more than {LONGEST_WORD} characters; "
                "validation and test text must be whole, so divide the word or remove the line"
            )
        yield line


@contextmanager
def working_folder(dest: Path, settings: Mapping[str, Any]) -> Iterator[None]:
    """Hold the lock of a folder that is prepared with ``settings``, cleared of what an interrupted
    run, or one with other settings, left there. A UserError if it holds other things than a
    preparation, or another run is using it."""
    record, settings = dest / NAME, json.loads(json.dumps(settings))
    earlier = read_object(record)
    foreign = dest.is_dir() and any(entry.name[0] != "." for entry in dest.iterdir())
    if foreign and "command" not in earlier:
        raise UserError(
            f"{dest} exists and was not made by 'fairseq-kerbs prepare'; name another folder with "
            "--dest"
        )
    with lock_folder(dest, f"another run is preparing {dest}; wait for its end"):
        for leftover in list(dest.rglob(f"{PARTIAL}*")) if earlier else ():
            if leftover.is_dir():
                shutil.rmtree(leftover)
            else:
                leftover.unlink(missing_ok=True)
        if earlier and earlier != settings:
            changed = [key for key in settings if settings[key] != earlier.get(key)]
            report(f"other {', '.join(changed)} than before: everything is made anew")
            for name in _FOLDERS:
                shutil.rmtree(dest / name, ignore_errors=True)
        if earlier != settings:
            write_json(record, settings)
        yield


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """An empty folder, which becomes ``target`` when the block has filled it."""
    temporary = target.with_name(f"{PARTIAL}{target.name}")
    temporary.mkdir(parents=True)
    yield temporary
    temporary.replace(target)


def binarize(dest: Path, flags: Sequence[str]) -> None:
    """The last step: fairseq-preprocess with `flags`, which name files from DEST, to ``DEST/bin``.
    A UserError if it fails."""
    target, log = dest / "bin", dest / "preprocess.log"
    if is_due("fairseq-preprocess", target):
        with new_folder(target) as temporary, log.open("w", encoding="utf-8") as stream:
            # names from DEST, because fairseq-preprocess divides some at commas
            command = [find_program("fairseq-preprocess"), *flags, "--destdir", temporary.name]
            print(quoted(command), file=stream, flush=True)
            status = run_program(command, stdout=stream, stderr=subprocess.STDOUT, folder=dest)
            if status != 0:
                raise UserError(f"fairseq-preprocess failed with status {status}; see {log}")
            (temporary / log.name).unlink()  # the same text
    report(f"data for fairseq-train: {target}")
