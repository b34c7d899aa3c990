"""Released corpora: fetched, checked, unpacked, and read into ``DEST/raw`` for the usual steps.

Nothing is taken on trust: an archive with another checksum, or text with another number of lines
than the release has, is refused.
"""

from __future__ import annotations

import hashlib
import shutil
import zipfile
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from http.client import HTTPException
from pathlib import Path
from typing import Any, ClassVar
from urllib.request import Request, urlopen

from fairseq_kerbs.corpora.language import LanguageText
from fairseq_kerbs.corpora.parallel import ParallelText
from fairseq_kerbs.corpora.pipeline import Manifest, Preparation, Report, flag
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import atomic_write, partial_name, put_in_place


@dataclass(frozen=True)
class Archive:
    """One released file: its name, the addresses to try, and its checksum (md5 or sha256)."""

    name: str
    urls: tuple[str, ...]
    checksum: str

    def is_at(self, path: Path) -> bool:
        """Whether a file of whatever name is this one."""
        algorithm = "md5" if len(self.checksum) == 32 else "sha256"
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, algorithm).hexdigest() == self.checksum


@dataclass(frozen=True, kw_only=True)
class ReleasedCorpus(Preparation):
    """A corpus that is read into ``DEST/raw`` and then prepared like any other text."""

    title: ClassVar[str]  # how messages call it
    archives: ClassVar[tuple[Archive, ...]]  # files that hold it: each all of it, or, if
    divided: ClassVar[bool] = False  # it is divided, one text each, in a folder
    nested: ClassVar[tuple[str, ...]] = ()  # names of archives inside, which are unpacked, too
    counts: ClassVar[Mapping[str, int]]  # lines that the release has, by the name of the part

    source: Path | None = flag(
        "archive of the release, or a folder of text [download]",
        None, type=Path, metavar="SOURCE", positional=True,
    )  # fmt: skip

    @abstractmethod
    def find(self, folder: Path) -> dict[str, Path]:
        """The files of a folder to read, by their role; a UserError where one is missing."""

    @abstractmethod
    def read(self, files: Mapping[str, Path]) -> tuple[dict[str, list[str]], list[str]]:
        """The lines of each file of ``DEST/raw``, and what to report."""

    def settings(self) -> dict[str, Any]:
        """What decides, beside the files, what is read."""
        return {}

    def run(self, manifest: Manifest) -> None:
        """Fetch and read the corpus, then run the usual steps; a UserError if the archive or its
        text is missing, or is not the release's."""
        source = self.source or self._locate(manifest.report)
        if not (source.is_dir() if self.divided else source.exists()):
            what = "folder" if self.divided else "file or folder"
            raise UserError(f"{source}: no such {what}; name one with the released text")

        def read() -> dict[str, Any]:
            with self._unpacked(source) as folder:
                texts, report = self.read(self.find(folder))
            for name, lines in texts.items():
                with atomic_write(self.dest / "raw" / name) as stream:
                    stream.writelines(line + "\n" for line in lines)
            return {"report": report}

        inputs = self.find(source) if source.is_dir() else {"archive": source}
        outputs = list(self.text().raw.values())
        figures = manifest.step(f"read {self.title}", read, inputs, outputs, **self.settings())
        for line in figures["report"]:
            manifest.report(f"  {line}")
        self.text().check()
        self.text().run(manifest)

    def text(self) -> ParallelText | LanguageText:
        """The preparation of ``DEST/raw``, with our attributes for its flags."""
        ours = [flag.name for flag in fields(ParallelText) if hasattr(self, flag.name)]
        flags = {name: getattr(self, name) for name in ours}
        tests = tuple(f"{self.dest}/raw/test{i or ''}" for i in range(len(flags["test"])))
        flags |= {split: f"{self.dest}/raw/{split}" for split in ("train", "valid")}
        return ParallelText(**flags | {"test": tests})

    def check_count(self, part: str, found: int) -> None:
        """Raise a UserError, unless the part has as many lines as in the release."""
        if found != self.counts[part]:
            raise UserError(
                f"{part} has {found:,} lines, expected {self.counts[part]:,}; "
                f"this is not the release of {self.title}"
            )

    def _locate(self, report: Report) -> Path:
        """An archive in ``DEST/download``, fetched if need be, or that folder with all of them."""
        if not self.divided:
            return self._fetch(self.archives, report)
        for archive in self.archives:
            self._fetch((archive,), report)
        return self.dest / "download"

    def _fetch(self, archives: Sequence[Archive], report: Report) -> Path:
        """One of the archives in ``DEST/download``, under its name when it is right."""
        folder, failures = self.dest / "download", []
        for archive in archives:
            if (folder / archive.name).exists():
                return folder / archive.name
        folder.mkdir(exist_ok=True)
        for archive, url in [(known, url) for known in archives for url in known.urls]:
            temporary = partial_name(folder / archive.name)
            report(f"download {url} ...")
            try:
                _download(url, temporary)
                if archive.is_at(temporary):
                    put_in_place(temporary, folder / archive.name)
                    return folder / archive.name
                failures.append(f"{url}: another file")
            except (OSError, HTTPException) as error:
                failures.append(f"{url}: {error or type(error).__name__}")
            finally:
                temporary.unlink(missing_ok=True)
        first = archives[0]
        others = [known.name for known in self.archives if self.divided and known != first]
        beside = f" (and {', '.join(others)} beside it)" if others else ""
        raise UserError(
            f"{self.title} could not be downloaded ({'; '.join(failures)}); fetch {first.name} "
            f"(checksum {first.checksum}) elsewhere, put it at {folder / first.name}{beside}, and "
            "run again"
        )

    def check_archive(self, path: Path) -> None:
        """Raise a UserError, unless a file is an archive of the release; divided, by its name."""
        known = [one for one in self.archives if not self.divided or one.name == path.name]
        if not any(archive.is_at(path) for archive in known):
            raise UserError(
                f"{path} is not the released {known[0].name} of {self.title}, whose checksum is "
                f"{known[0].checksum}; fetch it again from {known[0].urls[0]}"
            )

    @contextmanager
    def _unpacked(self, source: Path) -> Iterator[Path]:
        """The folder itself, or the checked archive's content in a temporary folder."""
        if source.is_dir():
            yield source
            return
        self.check_archive(source)
        folder = partial_name(self.dest / "unpacked")
        try:
            _unpack(source, folder)
            for inner in [path for name in self.nested for path in folder.rglob(name)]:
                _unpack(inner, inner.with_name(inner.stem))
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _download(url: str, target: Path) -> None:
    from tqdm import tqdm

    tqdm.monitor_interval = 0  # no monitor thread: later steps fork processes
    request = Request(url, headers={"User-Agent": "fairseq-kerbs"})
    with urlopen(request, timeout=30) as answer, target.open("wb") as stream:
        total = int(answer.headers.get("Content-Length", 0))
        bar = {"total": total, "unit": "B", "unit_scale": True, "leave": False, "disable": None}
        with tqdm.wrapattr(stream, "write", desc=target.name, **bar) as sink:
            shutil.copyfileobj(answer, sink)


def _unpack(archive: Path, folder: Path) -> None:
    shutil.unpack_archive(archive, folder, "zip" if zipfile.is_zipfile(archive) else "gztar")


def one_file(folder: Path, pattern: str) -> Path:
    """The one file in a folder, at any depth, whose name has the pattern; else a UserError."""
    found = sorted(path for path in folder.rglob(pattern) if path.is_file())
    if len(found) != 1:
        listing = ", ".join(path.name for path in found) or "none"
        raise UserError(f"{folder}: one file {pattern} was expected, found {listing}")
    return found[0]
