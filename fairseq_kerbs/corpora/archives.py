"""Reading members of tgz and zip archives, nested ones too, without unpacking them to disk."""

from __future__ import annotations

import io
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from fairseq_kerbs.utils.errors import UserError

_BROKEN = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError)


@contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """Turn the errors of broken archives into a UserError that names the file."""
    try:
        yield
    except _BROKEN as error:
        raise UserError(
            f"{path} is not a readable archive ({error}); fetch it again, or name a folder"
        ) from None


def tar_streams(
    archive: Path | IO[bytes], wanted: Callable[[PurePosixPath], bool]
) -> Iterator[tuple[PurePosixPath, IO[bytes]]]:
    """Path and content of each wanted file of a tgz archive, in the order of the archive.

    The archive is read once from its beginning to its end, so each content must be read before the
    next one is asked for.
    """
    # Not r|gz, which takes an archive that is cut off for a short one.
    with (
        tarfile.open(archive, "r:gz")
        if isinstance(archive, Path)
        else tarfile.open(fileobj=archive, mode="r:gz")
    ) as tar:
        for member in tar:
            name = PurePosixPath(member.name)
            if member.isfile() and not _is_metadata(name) and wanted(name):
                stream = tar.extractfile(member)
                assert stream is not None
                yield name, stream


def zip_member(archive: zipfile.ZipFile, name: str, where: Path | str) -> bytes:
    """Content of the one file of this name, in whichever folder of the archive it is.

    Raises:
        UserError: there is none, or there are several.
    """
    found = [
        entry
        for entry in archive.infolist()
        if PurePosixPath(entry.filename).name == name
        and not entry.is_dir()
        and not _is_metadata(PurePosixPath(entry.filename))
    ]
    if len(found) != 1:
        raise UserError(f"{where} has {len(found) or 'no'} {name}; expected one")
    return archive.read(found[0])


def open_zip(content: bytes) -> zipfile.ZipFile:
    """A zip archive that is itself a member of another."""
    return zipfile.ZipFile(io.BytesIO(content))


def decode_lines(raw_lines: Iterable[bytes], where: Path | str) -> Iterator[str]:
    r"""Lines of UTF-8 text, without ``\n`` or ``\r\n``, as `files.iter_lines` reads files.

    Raises:
        UserError: a line is not UTF-8 (file and line named).
    """
    for number, raw in enumerate(raw_lines, start=1):
        raw = raw.removesuffix(b"\n").removesuffix(b"\r")
        try:
            line = raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(
                f"{where}, line {number}: not valid UTF-8 (byte {error.start + 1})"
            ) from None
        yield line.removeprefix("\ufeff") if number == 1 else line


def _is_metadata(name: PurePosixPath) -> bool:
    """Whether macOS put the file beside another when it packed the archive."""
    return name.name.startswith("._") or "__MACOSX" in name.parts
