"""Reading a released corpus, from its archive or a folder, to text for the usual preparation."""

from __future__ import annotations

import io
import tarfile
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, ClassVar

from fairseq_kerbs.corpora import registry
from fairseq_kerbs.corpora.binarize import Report, working_folder
from fairseq_kerbs.corpora.language import LanguageText
from fairseq_kerbs.corpora.parallel import ParallelText
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import atomic_write

Reading = tuple[Mapping[str, Iterable[str]], Mapping[str, Any]]
"""Lines of each file of ``DEST/raw``, and counts."""

_BROKEN = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError)


class ReleasedCorpus(ABC):
    """What is read into ``DEST/raw`` and then prepared; subclasses hold the command's flags."""

    key: ClassVar[str]  # in `registry.CORPORA`
    step: ClassVar[str]  # recorded name of the reading
    source: Path | None  # the archive or a folder; None downloads the archive
    dest: Path  # folder to work in

    @property
    def release(self) -> registry.Corpus:
        """What the registry knows of the corpus."""
        return registry.CORPORA[self.key]

    @abstractmethod
    def text(self) -> ParallelText | LanguageText:
        """The preparation of what is read."""

    @abstractmethod
    def find(self, folder: Path) -> dict[str, Path]:
        """The files of a folder to read, by their role; a UserError where one is missing."""

    @abstractmethod
    def recorded(self, files: Mapping[str, Path]) -> dict[str, Any]:
        """Settings that decide what is read."""

    @abstractmethod
    def read(self, source: Path, files: Mapping[str, Path]) -> Reading:
        """What `files` hold, or without them the archive."""

    @abstractmethod
    def summary(self, source: Path, figures: Mapping[str, Any]) -> Iterator[str]:
        """Lines that tell the counts."""

    def check(self) -> None:
        """Raise a UserError that names the first flag with an impossible value."""
        self.text().check()

    def prepare(self, report: Report = print) -> Path:
        """Run every step that is not yet done; return the folder for fairseq (``DEST/bin``).

        Raises:
            UserError: wrong flags, no archive, or one that is not the release (see `registry`);
                text that is missing, not UTF-8 or not in the release's form.
        """
        self.check()
        with working_folder(self.dest, report) as manifest:
            source = registry.locate(self.release, self.source, self.dest / "download", report)
            files = self.find(source) if source.is_dir() else {}

            def read() -> dict[str, Any]:
                if not files:
                    registry.check_archive(self.release, source)
                texts, figures = self.read(source, files)
                for name, lines in texts.items():
                    with atomic_write(self.dest / "raw" / name) as stream:
                        stream.writelines(line + "\n" for line in lines)
                return dict(figures)

            figures = manifest.step(
                self.step,
                inputs=files or {"archive": source},
                settings=self.recorded(files),
                outputs=list(self.text().raw.values()),
                action=read,
            )
            for line in self.summary(source, figures):
                report(f"  {line}")
        return self.text().prepare(report)


def read_files(
    source: Path, files: Mapping[str, Path], names: Mapping[str, str], nested: tuple[str, ...]
) -> dict[str, tuple[str, bytes]]:
    """Name (with its folder or archive) and content of each text, by its role.

    Args:
        source: archive that is read if there are no `files`.
        files: the file of each role in a folder.
        names: file name of each role in the archive.
        nested: how the paths of archives in the archive end that have them.

    Raises:
        UserError: the archive is broken or lacks one of them.
    """
    if files:
        return {role: (str(path), path.read_bytes()) for role, path in files.items()}
    endings = (*nested, *(f"/{name}" for name in names.values()))
    found = {}
    for path, content in archive_files(source, lambda path: f"/{path}".endswith(endings)):
        found[path.rpartition("/")[2]] = (f"{source}/{path}", content)
        if len(found) == len(names):
            break
    for name in names.values():
        if name not in found:
            raise UserError(f"{source} has no {name}")
    return {role: found[name] for role, name in names.items()}


def archive_files(archive: Path, wanted: Callable[[str], object]) -> Iterator[tuple[str, bytes]]:
    """Path and content of each wanted file of a zip or tgz archive, also of wanted archives in it.

    Nothing is unpacked to disk.

    Raises:
        UserError: the archive is broken.
    """
    try:
        with archive.open("rb") as stream:
            yield from _members(stream, wanted)
    except _BROKEN as error:
        raise UserError(
            f"{archive} is not a readable archive ({error}); fetch it again, or name a folder"
        ) from None


def _members(stream: IO[bytes], wanted: Callable[[str], object]) -> Iterator[tuple[str, bytes]]:
    if zipfile.is_zipfile(stream):
        with zipfile.ZipFile(stream) as zipped:
            for name in filter(wanted, zipped.namelist()):
                yield from _opened(name, zipped.read(name), wanted)
        return
    stream.seek(0)
    # Not r|gz, which takes an archive that is cut off for a short one.
    with tarfile.open(fileobj=stream, mode="r:gz") as tarred:
        for member in tarred:
            if member.isfile() and wanted(member.name):
                content = tarred.extractfile(member)
                assert content is not None
                yield from _opened(member.name, content.read(), wanted)


def _opened(
    path: str, content: bytes, wanted: Callable[[str], object]
) -> Iterator[tuple[str, bytes]]:
    if path.endswith((".zip", ".tgz")):
        for inner, text in _members(io.BytesIO(content), wanted):
            yield f"{path}/{inner}", text
    else:
        yield path, content


def decode_lines(content: bytes, where: str) -> Iterator[str]:
    r"""Lines of UTF-8 text, without ``\n`` or ``\r\n``, as `files.iter_lines` reads files.

    Raises:
        UserError: a line is not UTF-8 (file and line named).
    """
    for number, raw in enumerate(io.BytesIO(content), start=1):
        try:
            line = raw.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(
                f"{where}, line {number}: not valid UTF-8 (byte {error.start + 1})"
            ) from None
        yield line.removeprefix("\ufeff") if number == 1 else line
