"""What is released where: releases.yaml; archives are fetched, checked and unpacked here."""

from __future__ import annotations

import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from fairseq_kerbs.data.prepare import report
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import PARTIAL


@dataclass(frozen=True)
class Release:
    """What is known of a released corpus; see releases.yaml."""

    title: str
    archives: Mapping[str, Sequence[str]]
    counts: Mapping[str, int]
    nested: Sequence[str] = ()
    divided: bool = False

    def check_count(self, part: str, lines: int) -> None:
        """Raise a UserError, unless the part has as many lines as in the release."""
        if lines != self.counts[part]:
            raise UserError(
                f"{part} has {lines:,} lines, expected {self.counts[part]:,}; this is not the "
                f"release of {self.title}"
            )

    def check_archive(self, path: Path) -> None:
        """Raise a UserError, unless a file is an archive of the release; divided, by its name."""
        import pooch

        names = [path.name] if self.divided else list(self.archives)
        sums = [self.archives[name][0].split(":") for name in names]
        if all(pooch.file_hash(str(path), alg=kind) != checksum for kind, checksum in sums):
            raise UserError(
                f"{path} is not the released {names[0]} of {self.title}, whose checksum is "
                f"{sums[0][1]}; fetch it again from {self.archives[names[0]][1]}"
            )


@cache
def release_of(name: str) -> Release:
    """An entry of releases.yaml."""
    import yaml

    entries = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
    return Release(**entries[name])


def find_files(folder: Path, names: Mapping[str, str]) -> dict[str, Path]:
    """The one file in a folder, at any depth, whose name has the pattern of a role, or is that and
    .gz; a UserError where there is none, or several."""
    files = {}
    for role, name in names.items():
        matching = sorted(folder.rglob(name)) or sorted(folder.rglob(f"{name}.gz"))
        if len(matching) != 1:
            listing = ", ".join(path.name for path in matching) or "none"
            raise UserError(f"{folder}: one file {name} was expected, found {listing}")
        files[role] = matching[0]
    return files


def fetch(release: Release, dest: Path) -> Path:
    """An archive in ``DEST/download``, fetched if need be, or that folder with all of them. A
    UserError says what to fetch by other means where no address has it with its checksum."""
    folder = dest / "download"
    if release.divided:
        for name in release.archives:
            _fetch_one(release, [name], folder)
        return folder
    names = sorted(release.archives, key=lambda name: not (folder / name).exists())
    return _fetch_one(release, names, folder)


def _fetch_one(release: Release, names: Sequence[str], folder: Path) -> Path:
    """The first of several archives that an address has."""
    import pooch

    pooch.get_logger().setLevel("WARNING")
    headers = {"User-Agent": "fairseq-kerbs"}
    load = pooch.HTTPDownloader(headers=headers, timeout=30, progressbar=sys.stderr.isatty())
    failures = []
    for name, url in ((key, url) for key in names for url in release.archives[key][1:]):
        if not (folder / name).exists():
            report(f"download {url} ...")
        try:  # pooch leaves a file that is there and right
            checksum = release.archives[name][0]
            return Path(pooch.retrieve(url, checksum, name, folder, downloader=load))
        except (OSError, ValueError) as error:  # no answer, or another checksum
            failures.append(f"{url}: {error}")
    raise UserError(
        f"{release.title} could not be downloaded ({'; '.join(failures)}); fetch {names[0]} "
        f"(checksum {release.archives[names[0]][0]}) elsewhere, put it at {folder / names[0]}, "
        "and run again"
    )


@contextmanager
def unpacked(release: Release, source: Path, dest: Path) -> Iterator[Path]:
    """The folder itself, or an archive's content in a temporary folder below ``dest``."""
    if source.is_dir():
        yield source
        return
    with tempfile.TemporaryDirectory(prefix=PARTIAL, dir=dest) as name:
        folder = Path(name)
        _unpack(source, folder)
        for inner in [path for name in release.nested for path in folder.rglob(name)]:
            _unpack(inner, inner.with_name(inner.stem))
        yield folder


def _unpack(archive: Path, folder: Path) -> None:
    shutil.unpack_archive(archive, folder, "zip" if zipfile.is_zipfile(archive) else "gztar")
