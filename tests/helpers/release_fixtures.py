"""Tiny archives in the layouts of the released corpora, and releases that expect them."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import replace

import pytest

from fairseq_kerbs.data import released, releases


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


def checksum_of(content: bytes) -> str:
    """As releases.yaml writes it."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def expect(
    monkeypatch: pytest.MonkeyPatch, name: str, files: Mapping[str, bytes],
    counts: Mapping[str, int], *urls: str,
) -> None:  # fmt: skip
    """Let a corpus expect files, at addresses that end in their names."""
    archives = {
        file: [checksum_of(content), *(f"{url}/{file}" for url in urls or ["http://127.0.0.1:1"])]
        for file, content in files.items()
    }
    release = replace(releases.release_of(name), archives=archives, counts=counts)
    monkeypatch.setattr(released, "release_of", lambda _: release)
