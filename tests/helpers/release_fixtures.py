"""Tiny archives in the layouts of the released corpora, and a registry that expects them."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from fairseq_kerbs.corpora.registry import CORPORA, Archive, Corpus


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
    """The registry's entry of a file."""
    digest = hashlib.sha256(content).hexdigest()
    return Archive(name, urls, "sha256", digest, len(content))


def expect(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    path: Path,
    counts: Mapping[str, int],
    members: Mapping[str, str] | None = None,
) -> None:
    """Let the registry expect the file at `path`, which is also its only address."""
    entry = archive_of(path.read_bytes(), path.name, (path.as_uri(),))
    corpus = Corpus(CORPORA[name].title, (entry,), counts, members or {})
    monkeypatch.setitem(CORPORA, name, corpus)
