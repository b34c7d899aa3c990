"""Tiny archives in the layouts of the released corpora, and releases that expect them."""

import io
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from fairseq.data.indexed_dataset import MMapIndexedDataset

from fairseq_kerbs.data import corpora


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


def expect(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    files: Mapping[str, bytes],
    counts: Mapping[str, int],
    *urls: str,
) -> None:
    """Let a corpus expect files, at addresses that end in their names."""
    archives: dict[str, list[str]] = {}
    for file, content in files.items():
        places = (f"{url}/{file}" for url in urls or ["http://127.0.0.1:1"])
        archives[file] = [f"sha256:{sha256(content).hexdigest()}", *places]
    release = replace(corpora.release_of(name), archives=archives, counts=counts)
    monkeypatch.setattr(corpora, "release_of", lambda _: release)


def written(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def size_of(prefix: Path) -> int:
    """Number of lines of a binarized text."""
    return len(MMapIndexedDataset(str(prefix)))


def write_tree(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def raw_of(run: Callable[..., None], dest: Path, source: Path, **flags: Any) -> dict[str, bytes]:
    """What a preparation without further steps reads into DEST/raw."""
    run(dest, source, **flags)
    return written(dest / "raw")
