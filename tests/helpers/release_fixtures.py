"""Tiny archives in the layouts of the released corpora, and releases that expect them."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from fairseq_kerbs.corpora.released import Archive, ReleasedCorpus


def tgz(files: Mapping[str, bytes]) -> bytes:
    """A gzipped tar archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


def zipped(files: Mapping[str, bytes]) -> bytes:
    """A zip archive."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def archive_of(content: bytes, name: str = "release.tgz", urls: tuple[str, ...] = ()) -> Archive:
    """The description of a file."""
    return Archive(name, urls, hashlib.sha256(content).hexdigest())


def expect(
    monkeypatch: pytest.MonkeyPatch,
    kind: type[ReleasedCorpus],
    path: Path,
    counts: Mapping[str, int],
) -> None:
    """Let a corpus expect the file at `path`, which is also its only address."""
    archive = archive_of(path.read_bytes(), path.name, (path.as_uri(),))
    monkeypatch.setattr(kind, "archives", (archive,))
    monkeypatch.setattr(kind, "counts", counts)
