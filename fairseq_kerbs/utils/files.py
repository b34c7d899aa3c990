"""Reading lines strictly and writing files so that no half-written one bears its final name."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import logging
import os
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from fairseq_kerbs.utils.errors import UserError, sentence_of

logger = logging.getLogger(__name__)

PARTIAL = ".partial-"
"""Prefix of the temporary name that a file or folder has while it is being written."""


def iter_lines(path: Path | str) -> Iterator[str]:
    r"""The lines of a UTF-8 text file, split at ``\n`` alone (and not at U+2028, say, so that two
    files stay parallel) and without it. A carriage return before it and a byte order mark go, too.

    Raises a UserError that names the file, and the line if it is not UTF-8.
    """
    number = 0
    try:
        with open(path, "rb") as stream:
            for number, raw in enumerate(stream, start=1):
                line = raw.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
                yield line.removeprefix("\ufeff") if number == 1 else line
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}, line {number}: not valid UTF-8 (byte {error.start + 1}); convert the file to "
            "UTF-8 first"
        ) from None
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}); name a text file") from None


def read_lines(path: Path | str) -> list[str]:
    """`iter_lines` as a list."""
    return list(iter_lines(path))


@contextmanager
def atomic_write(path: Path | str, mode: str = "w") -> Iterator[Any]:
    r"""Open a file (of text: UTF-8, newline ``\n``) that appears under its name only when complete.

    After an exception an earlier file of that name is kept. A link of that name gives way. Raises a
    UserError if the disk is full, or the name or folder cannot be written to.
    """
    path, name = Path(path), None
    text: dict[str, Any] = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        path.parent.mkdir(parents=True, exist_ok=True)
        # a name that no process has, not even one of the same number in another container
        handle, name = tempfile.mkstemp(prefix=PARTIAL, suffix=f"-{path.name}", dir=path.parent)
        os.umask(mask := os.umask(0))
        os.fchmod(handle, 0o666 & ~mask)
        with open(handle, mode, **text) as stream:
            yield stream
        os.replace(name, path)
    except BaseException as error:
        if name is not None:
            Path(name).unlink(missing_ok=True)
        # an error with the name of another file is about what the writer reads
        if isinstance(error, OSError) and (name is None or error.filename in (None, name)):
            error.filename = str(path)
            if sentence := sentence_of(error):
                raise UserError(sentence) from None
        raise


atomic_write_bytes = partial(atomic_write, mode="wb")
"""As :func:`atomic_write`, for bytes."""


def sha256_of(path: Path | str) -> str:
    """Hexadecimal SHA-256 of a file's bytes, or of a folder's file names and contents."""
    path, digest = Path(path), hashlib.sha256()
    if path.is_dir():
        for file in sorted(file for file in path.rglob("*") if file.is_file()):
            digest.update(f"{file.relative_to(path)} {sha256_of(file)}\n".encode())
        return digest.hexdigest()
    with path.open("rb") as stream:
        for part in iter(partial(stream.read, 1 << 20), b""):
            digest.update(part)
    return digest.hexdigest()


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file; an empty one if there is none that can be read."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def write_json(path: Path, content: Any) -> None:
    """Replace a JSON file at once."""
    with atomic_write(path) as stream:
        json.dump(content, stream, indent=1, ensure_ascii=False)
        stream.write("\n")


def lock_folder(folder: Path, refusal: str) -> TextIO:
    """The open lock of a folder, made if need be; a UserError with a ``refusal`` if another process
    holds it.

    A record lock (POSIX) ends with the process, is not inherited by its workers, and holds between
    machines whose common file system has locks; without these there is a warning.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = (folder / ".lock").open("a")
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        raise UserError(refusal) from None
    except OSError as error:
        logger.warning(
            f"{folder} cannot be locked ({error.strerror}): nothing keeps another process from "
            "writing there at the same time"
        )
    return lock


def check_whole(path: Path) -> None:
    """Raise a UserError, without loading it, if a checkpoint was cut off or a checksum is wrong:
    torch was built without looking at these."""
    try:
        with path.open("rb") as stream:
            if stream.read(1) == b"\x80":  # pickle of a torch before 1.6: has no checksums
                return
        with zipfile.ZipFile(path) as archive:
            # torch reads nothing of an entry that is marked as a folder (0x10); it compresses none,
            # but reads them, and a small file could hold gigabytes
            odd = any(
                entry.external_attr & 0x10 or entry.compress_type != zipfile.ZIP_STORED
                for entry in archive.infolist()
            )
            whole = not odd and archive.testzip() is None
    except PermissionError:
        raise UserError(f"{path} cannot be read (Permission denied)") from None
    except Exception:  # of every kind, where the archive's list of contents is damaged
        whole = False
    if not whole:
        raise damaged(path)


def damaged(path: Path | str) -> UserError:
    """What is said of a checkpoint that cannot be read."""
    return UserError(
        f"{path} is no whole checkpoint of fairseq-train (cut off, damaged, or another kind of "
        "file); take another copy or another checkpoint"
    )
