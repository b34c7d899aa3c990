"""Read UTF-8 text strictly, write files atomically, and lock folders."""

from __future__ import annotations

import fcntl
import gzip
import hashlib
import json
import logging
import os
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from fairseq_kerbs.utils.checkpoint_files import is_checkpoint
from fairseq_kerbs.utils.errors import UserError

logger = logging.getLogger(__name__)

PARTIAL = ".partial-"
"""Prefix of the temporary name of a file or folder during writing."""


STDIN = "/dev/stdin"
"""Name of standard input for :func:`iter_lines`."""

STDOUT = "/dev/stdout"
"""Name of standard output for :func:`atomic_write`."""

_COMPRESSED = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"PK\x03\x04", b"\x28\xb5\x2f\xfd")
"""First bytes of files of gzip, bzip2, xz, zip and zstd."""


def iter_lines(path: Path | str) -> Iterator[str]:
    r"""Iterate over the lines of UTF-8 text (also .gz), without line ends and byte order mark.

    Lines end at ``\n`` or ``\r\n`` only, and not at characters such as U+2028, so that parallel
    files have the same number of lines. A UserError names an unreadable file, or a line that is not
    UTF-8.
    """
    number = 0
    first = b""
    try:
        # opened by name, standard input would start at its beginning again
        source: Any = os.dup(0) if str(path) == STDIN else path
        opened: Callable[..., Any] = open
        if str(path).endswith(".gz"):
            opened = gzip.open
        with opened(source, "rb") as stream:
            for number, raw in enumerate(stream, start=1):
                first = first or raw
                line = raw.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
                yield line.removeprefix("\ufeff") if number == 1 else line
    except UnicodeDecodeError as error:
        if is_checkpoint(Path(path)):
            raise UserError(f"{path} is a checkpoint; name a text file") from None
        if first.startswith(_COMPRESSED):
            raise UserError(
                f"{path} is compressed; decompress it first (gzip is read if the name ends in .gz)"
            ) from None
        raise UserError(
            f"{path}, line {number}: not valid UTF-8 (byte {error.start + 1}); convert the file to "
            "UTF-8 first"
        ) from None
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (OSError, EOFError, zlib.error) as error:  # the last two are of a damaged .gz
        cause = getattr(error, "strerror", None) or error
        raise UserError(f"{path} cannot be read ({cause}); name a text file") from None


def read_lines(path: Path | str) -> list[str]:
    """Lines of a text file as a list, see :func:`iter_lines`."""
    return list(iter_lines(path))


def check_parallel(texts: Mapping[str, Sequence[str]]) -> None:
    """Raise a UserError unless texts, by file or flag, have equally many lines, at least one."""
    empty = [name for name, text in texts.items() if not text]
    if len(empty) == len(texts):
        verb = "is" if len(empty) == 1 else "are"
        raise UserError(f"{' and '.join(empty)} {verb} empty; give text with one sentence per line")
    (first, lines), *others = texts.items()
    for name, other in others:
        if len(other) != len(lines):
            raise UserError(
                f"{first} has {len(lines)} lines but {name} has {len(other)}; parallel texts need "
                "the same number, with one sentence per line"
            )


@contextmanager
def atomic_write(path: Path | str, mode: str = "w") -> Iterator[Any]:
    r"""Open a file that appears under its name only when it is complete.

    After an exception, an existing file of that name is unchanged. A symbolic link is followed. A
    device or a named pipe, such as /dev/stdout, is written to directly. A file named .gz is
    compressed, as :func:`iter_lines` reads it.

    Args:
        path: path of the file. Its folder is created.
        mode: "w" for UTF-8 text with line ends ``\n``, or "wb".
    """
    path = Path(path)
    text: dict[str, Any] = {} if "b" in mode else {"encoding": "utf-8", "newline": "\n"}
    if str(path) == STDOUT:
        # opened by name, a file that it is redirected to would lose what is there already
        sys.stdout.flush()
        with os.fdopen(os.dup(1), mode, **text) as stream:
            yield stream
        return
    places = (path.absolute(), path.readlink() if path.is_symlink() else path)
    special = any(str(place).startswith(("/dev/", "/proc/")) for place in places)
    if path.exists() and (special or not path.is_file()):
        with path.open(mode, **text) as stream:
            yield stream
        return
    compressed = path.suffix == ".gz"
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=PARTIAL, dir=path.parent) as folder:
        partial_file = Path(folder, path.name)
        if compressed:
            with gzip.open(partial_file, mode if "b" in mode else "wt", **text) as stream:
                yield stream
        else:
            with partial_file.open(mode, **text) as stream:
                yield stream
        os.replace(partial_file, path)


def sha256_of(path: Path | str) -> str:
    """SHA-256 of a file, or of the names and contents of a folder's files, in hexadecimal."""
    path = Path(path)
    digest = hashlib.sha256()
    if path.is_dir():
        for file in sorted(file for file in path.rglob("*") if file.is_file()):
            digest.update(f"{file.relative_to(path)} {sha256_of(file)}\n".encode())
        return digest.hexdigest()
    with path.open("rb") as stream:
        for part in iter(partial(stream.read, 1 << 20), b""):
            digest.update(part)
    return digest.hexdigest()


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file, or {} if the file is missing or invalid."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file atomically."""
    with atomic_write(path) as stream:
        json.dump(content, stream, indent=1, ensure_ascii=False)
        stream.write("\n")


def lock_folder(folder: Path, refusal: str) -> TextIO:
    """Lock a folder, which is created if it does not exist.

    A POSIX record lock ends with the process, and child processes do not inherit it. It works
    between machines if their file system supports locks. If not, a warning is logged.

    Returns the open lock file. If another process has the lock, a UserError with the sentence
    ``refusal`` is raised.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileNotFoundError as error:  # of /proc, or in a folder that was removed
        reason = error.strerror
        raise UserError(f"{folder} cannot be made ({reason}); name another folder") from None
    try:
        lock = (folder / ".lock").open("a")
    except PermissionError:
        raise UserError(f"{folder}/.lock cannot be written to; name another folder") from None
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        raise UserError(refusal) from None
    except OSError as error:
        logger.warning(
            f"{folder} cannot be locked ({error.strerror}), so another process can write there at "
            "the same time"
        )
    return lock


def check_can_write(path: Path, flag: str, *, folder: bool = False) -> None:
    """Raise a UserError unless a file, or files in a folder, can be created. Nothing stays.

    Args:
        path: path of the file or folder, whose parents may be missing.
        flag: flag or argument that names it, for messages.
        folder: whether it is a folder.
    """
    if not folder:
        if path.is_dir():
            raise UserError(f"{flag}: {path} is a folder; name a file in it")
        if path.exists() and not path.is_file():
            return  # a device or a named pipe
    place = path if folder else path.resolve().parent
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        with tempfile.TemporaryDirectory(prefix=PARTIAL, dir=place):
            pass
    except OSError as error:
        raise UserError(
            f"{flag}: {place} cannot be used ({error.strerror}); name another place"
        ) from None
