"""Binarization of text by fairseq-preprocess, checked and put in place at once."""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path

from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import iter_lines, partial_name, put_in_place
from fairseq_kerbs.utils.processes import find_program, quoted, run_program


def binarize(
    texts: Mapping[str, str],
    counts: Mapping[str, int],
    languages: tuple[str, str],
    target: Path,
    *,
    joined_dictionary: bool,
    workers: int,
) -> dict[str, int]:
    """Run fairseq-preprocess and give its result the name `target`, which is replaced.

    The program writes to a temporary folder, whose line counts are compared with `counts` before it
    is renamed. Its output goes to ``preprocess.log`` beside `target`.

    Args:
        texts: prefix of the text of each split: train, valid, test, test1, …
        counts: sentence pairs of each split.
        languages: source and target suffix.

    Returns:
        The number of types in each language's dictionary (without fairseq's special symbols).

    Raises:
        UserError: the program failed, or left out lines.
    """
    tests = [text for split, text in texts.items() if split.startswith("test")]
    flags = ["--source-lang", languages[0], "--target-lang", languages[1]]
    flags += ["--trainpref", texts["train"], "--validpref", texts["valid"]]
    flags += ["--testpref", ",".join(tests), "--workers", str(workers)]
    flags += ["--joined-dictionary"] if joined_dictionary else []
    pair = "-".join(languages)
    expected = {
        f"{split}.{pair}.{language}": count
        for language in languages
        for split, count in counts.items()
    }
    _preprocess(flags, expected, target)
    return {
        language: sum(1 for _ in iter_lines(target / f"dict.{language}.txt"))
        for language in languages
    }


def binarize_text(
    texts: Mapping[str, Path],
    counts: Mapping[str, int],
    dictionary: Path,
    target: Path,
    *,
    workers: int,
) -> None:
    """As `binarize`, for language models: text without a counterpart, and a given dictionary.

    Args:
        texts: text of each split: train, valid, test.
        counts: lines of each split.
        dictionary: words and counts, as fairseq writes them.

    Raises:
        UserError: the program failed, or left out lines.
    """
    flags = ["--only-source", "--srcdict", str(dictionary), "--workers", str(workers)]
    for split, text in texts.items():
        flags += [f"--{split}pref", str(text)]
    _preprocess(flags, counts, target)


def _preprocess(flags: list[str], expected: Mapping[str, int], target: Path) -> None:
    """Run fairseq-preprocess; `expected` gives the lines of each file, by name without ending."""
    temporary = partial_name(target)
    command = [find_program("fairseq-preprocess"), *flags, "--destdir", str(temporary)]
    log = target.with_name("preprocess.log")
    try:
        _run_logged(command, log)
        _check_counts(temporary, expected)
        (temporary / "preprocess.log").unlink(missing_ok=True)  # the same text as `log`
        shutil.rmtree(target, ignore_errors=True)
        put_in_place(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _run_logged(command: list[str], log: Path) -> None:
    with log.open("w", encoding="utf-8") as stream:
        stream.write(quoted(command) + "\n")
        stream.flush()
        status = run_program(command, stdout=stream, stderr=subprocess.STDOUT)
    if status != 0:
        raise UserError(f"fairseq-preprocess failed with status {status}; its output is in {log}")


def _check_counts(folder: Path, expected: Mapping[str, int]) -> None:
    for name, lines in expected.items():
        found = binarized_lines(folder / f"{name}.idx")
        if found != lines:
            raise UserError(
                f"fairseq-preprocess wrote {found} of {lines} lines of {name}; "
                "run again with --workers 1"
            )


def binarized_lines(index: Path) -> int:
    """Number of sentences in a binarized file, from the header of fairseq's mmap index."""
    with index.open("rb") as stream:
        magic, _, _, count = struct.unpack("<9sQBQ", stream.read(26))
    if magic != b"MMIDIDX\x00\x00":
        raise ValueError(f"{index} is not an index of fairseq's mmap format")
    return int(count)
