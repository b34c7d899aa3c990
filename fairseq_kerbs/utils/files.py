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
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from fairseq_kerbs.utils.errors import UserError, refused_by_system, system_cause, system_refusal

logger = logging.getLogger(__name__)

PARTIAL = ".partial-"
"""Prefix of the temporary name that a file or folder has while it is being written."""


def iter_lines(path: Path | str) -> Iterator[str]:
    r"""The lines of a UTF-8 text file, split at ``\n`` alone (and not at U+2028, say, so that two
    files stay parallel) and without it. A carriage return before it and a byte order mark go, too.

    Raises a UserError that names the file, and the line if it is not UTF-8.
    """
    path = Path(path)
    try:
        with path.open("rb") as stream:
            for number, raw in enumerate(stream, start=1):
                raw = raw.removesuffix(b"\n").removesuffix(b"\r")
                try:
                    line = raw.decode("utf-8")
                except UnicodeDecodeError as error:
                    raise UserError(
                        f"{path}, line {number}: not valid UTF-8 (byte {error.start + 1}); "
                        "convert the file to UTF-8 first"
                    ) from None
                yield line.removeprefix("\ufeff") if number == 1 else line
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder; a text file was expected") from None
    except OSError as error:
        raise system_refusal(error, path, "read") from None


def read_lines(path: Path | str) -> list[str]:
    """`iter_lines` as a list."""
    return list(iter_lines(path))


LONGEST_WORD = 1000
"""Characters of a word: tokenization and BPE take a time that grows with the square of them."""


def has_endless_word(line: str) -> bool:
    """Whether a word of a line has more than :data:`LONGEST_WORD` characters."""
    return len(line) > LONGEST_WORD and any(len(word) > LONGEST_WORD for word in line.split())


def atomic_write(path: Path | str) -> AbstractContextManager[TextIO]:
    r"""Open a UTF-8 text file (newline ``\n``) that appears under its name only when complete.

    After an exception an earlier file of that name is kept. A link of that name gives way. Raises a
    UserError if the disk is full, or the name or folder cannot be written to.
    """
    return _atomic(Path(path), mode="w", encoding="utf-8", newline="\n")


def atomic_write_bytes(path: Path | str) -> AbstractContextManager[BinaryIO]:
    """As :func:`atomic_write`, for bytes."""
    return _atomic(Path(path), mode="wb")


@contextmanager
def _atomic(path: Path, **how: Any) -> Iterator[Any]:
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        path.parent.mkdir(parents=True, exist_ok=True)
        # a name that nobody else has, not even a process of the same number in another container,
        # and no link
        prefix, suffix = f"{PARTIAL}{os.getpid()}-", f"-{path.name}"
        handle, name = tempfile.mkstemp(prefix=prefix, suffix=suffix, dir=path.parent)
    except OSError as error:
        raise system_refusal(error, path) from None
    temporary = Path(name)
    try:
        os.umask(mask := os.umask(0))
        os.fchmod(handle, 0o666 & ~mask)
        with open(handle, **how) as stream:
            yield stream
        put_in_place(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        # torch's archive writer ends in an error of its own where the disk has refused
        refusal = system_cause(error) if isinstance(error, (OSError, RuntimeError)) else None
        # an error that names another file is about what the writer reads
        if refusal is not None and refusal.filename in (None, name):
            raise system_refusal(refusal, path) from None
        raise


def put_in_place(temporary: Path, path: Path) -> None:
    """Give a complete file or folder its final name, safe from a loss of power: its content is on
    the disk before it has the name, and so is the name when this returns."""
    for file in [temporary, *temporary.rglob("*")]:
        _sync(file)
    os.replace(temporary, path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    try:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        # some file systems cannot flush a folder, and one may be writable, but not readable
        if not (path.is_dir() and error.errno in (errno.EINVAL, errno.ENOTSUP, errno.EACCES)):
            raise


def sha256_of(path: Path | str) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    with Path(path).open("rb") as stream:
        digest = hashlib.sha256()
        for part in iter(partial(stream.read, 1 << 20), b""):
            digest.update(part)
        return digest.hexdigest()


def fingerprint(path: Path) -> str | None:
    """SHA-256 of a file, or of a folder's file names and contents; None where there is nothing."""
    if path.is_dir():
        files = [file for file in sorted(path.rglob("*")) if file.is_file()]
        listing = "\n".join(f"{file.relative_to(path)} {sha256_of(file)}" for file in files)
        return hashlib.sha256(listing.encode()).hexdigest()
    return sha256_of(path) if path.is_file() else None


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
    """The open lock of a folder; a UserError with a ``refusal`` if another process holds it.

    A record lock (POSIX) ends with the process, is not inherited by its workers, and holds between
    machines whose common file system has locks; without these there is a warning.
    """
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


@contextmanager
def locked(folder: Path, refusal: str) -> Iterator[None]:
    """Create a folder and keep other runs out of it, as :func:`lock_folder` does."""
    folder.mkdir(parents=True, exist_ok=True)
    with lock_folder(folder, refusal):
        yield


def check_whole(path: Path) -> None:
    """Raise a UserError, without loading it, if a checkpoint was cut off or a checksum is wrong:
    torch was built without looking at these."""
    try:
        with path.open("rb") as stream:
            if stream.read(1) == b"\x80":  # pickle of a torch before 1.6: has no checksums
                return
        with zipfile.ZipFile(path) as archive:
            # torch reads nothing of an entry that is marked as a folder (0x10), and compresses none
            odd = any(
                entry.external_attr & 0x10 or entry.compress_type != zipfile.ZIP_STORED
                for entry in archive.infolist()
            )
            sound = not odd and archive.testzip() is None
    except Exception as error:  # of every kind, where the archive's list of contents is damaged
        if refused_by_system(error):
            raise system_refusal(error, path, "read") from None
        sound = False
    if not sound:
        raise damaged(path)


def damaged(path: Path | str) -> UserError:
    """What is said of a checkpoint that cannot be read."""
    return UserError(
        f"{path} is no whole checkpoint of fairseq-train (cut off, damaged, or another kind of "
        "file); take another copy or another checkpoint"
    )
