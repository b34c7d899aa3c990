"""What every preparation shares: limits, its folder, and binarization by fairseq-preprocess."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from fairseq_kerbs.corpora.manifest import Manifest, locked_folder
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import partial_name, put_in_place
from fairseq_kerbs.utils.processes import find_program, quoted, run_program

LONGEST = 1023  # units of a sentence: fairseq's models have 1024 positions, one is for its end

Report = Callable[[str], None]


def check_flags(dest: Path, **numbers: int | None) -> None:
    """Raise a UserError that names the first flag with a number below 1, or an unusable folder."""
    check_numbers(**numbers)
    if "," in str(dest):
        raise UserError(f"--dest {dest}: fairseq-preprocess cannot work below a comma")


def check_numbers(**numbers: int | None) -> None:
    """Raise a UserError that names the first flag with a number below 1."""
    for name, value in numbers.items():
        if value is not None and value < 1:
            raise UserError(f"--{name.replace('_', '-')} must be at least 1, not {value}")


@contextmanager
def working_folder(dest: Path, report: Report) -> Iterator[Manifest]:
    """The record of the steps in a folder, whose product is ``DEST/bin``; other runs wait outside.

    Raises:
        UserError: there is no fairseq-preprocess, or the folder cannot be used (`locked_folder`).
    """
    find_program("fairseq-preprocess")
    with locked_folder(dest):
        yield Manifest(dest, product=dest / "bin", report=report)


def binarize(flags: Mapping[str, object], lines: Mapping[str, int], target: Path) -> None:
    """Run fairseq-preprocess and give its result the name `target`, which is replaced.

    The program writes to a temporary folder, which gets its name when the lines were counted. Its
    output goes to ``preprocess.log`` beside `target`.

    Args:
        flags: name without dashes and value; True for a flag without a value, None for no flag.
        lines: expected lines of each binarized file, by its name without ending.

    Raises:
        UserError: the program failed, or left out lines.
    """
    temporary, log = partial_name(target), target.with_name("preprocess.log")
    command = [find_program("fairseq-preprocess")]
    for name, value in {**flags, "destdir": temporary}.items():
        if value is not None:
            command += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    try:
        with log.open("w", encoding="utf-8") as stream:
            stream.write(quoted(command) + "\n")
            stream.flush()
            status = run_program(command, stdout=stream, stderr=subprocess.STDOUT)
        if status != 0:
            raise UserError(
                f"fairseq-preprocess failed with status {status}; its output is in {log}"
            )
        for name, expected in lines.items():
            found = binarized_lines(temporary / f"{name}.idx")
            if found != expected:
                raise UserError(
                    f"fairseq-preprocess wrote {found} of {expected} lines of {name}; "
                    "run again with --workers 1"
                )
        (temporary / "preprocess.log").unlink(missing_ok=True)  # the same text as `log`
        shutil.rmtree(target, ignore_errors=True)
        put_in_place(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def binarized_lines(index: Path) -> int:
    """Number of sentences in a binarized file, from the header of fairseq's mmap index."""
    with index.open("rb") as stream:
        magic, _, _, count = struct.unpack("<9sQBQ", stream.read(26))
    if magic != b"MMIDIDX\x00\x00":
        raise ValueError(f"{index} is not an index of fairseq's mmap format")
    return int(count)
