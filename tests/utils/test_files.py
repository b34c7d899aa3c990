"""Lines are read strictly, files appear whole or not at all; locks."""

import bz2
import fcntl
import gzip
import lzma
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import (
    PARTIAL,
    STDIN,
    atomic_write,
    lock_folder,
    read_lines,
    sha256_of,
)
from tests.helpers.cli import Log, Patch
from tests.helpers.commands import run_program


def test_a_file_system_without_locks_is_said(tmp_path: Path, caplog: Log) -> None:
    with mock.patch.object(fcntl, "lockf", side_effect=OSError(37, "No locks available")):
        lock_folder(tmp_path, "").close()
    assert "cannot be locked (No locks available)" in caplog.text


def test_lines_end_at_newlines_alone(tmp_path: Path, monkeypatch: Patch) -> None:
    path = tmp_path / "text"
    path.write_bytes("\ufeffa\u2028b\x0bc\r\n\r\nd\re\n\ufefflast".encode())
    assert read_lines(path) == ["a\u2028b\x0bc", "", "d\re", "\ufefflast"]
    place = os.open(path, os.O_RDONLY)
    os.read(place, len("\ufeffa\u2028b\x0bc\r\n".encode()))
    monkeypatch.setattr(os, "dup", lambda _: place)  # standard input, of which a line is read
    assert read_lines(STDIN) == ["", "d\re", "\ufefflast"]


LINE = st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]))


@given(st.lists(LINE.filter(lambda line: not line.endswith("\r") and line[:1] != "\ufeff")))
def test_written_lines_are_read(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    path = tmp_path_factory.mktemp("lines") / "text"
    with atomic_write(path) as stream:
        stream.writelines(line + "\n" for line in lines)
    assert read_lines(path) == lines


def test_text_named_gz_is_compressed_and_read_again(tmp_path: Path) -> None:
    path = tmp_path / "text.gz"
    for written in ("ü\n" * 9, "new\n"):
        with atomic_write(path) as stream:
            stream.write(written)
        assert gzip.decompress(path.read_bytes()).decode() == written
        assert read_lines(path) == written.splitlines()
    with pytest.raises(ZeroDivisionError), atomic_write(path) as stream:
        stream.write(f"{1 / 0}")
    assert read_lines(path) == ["new"]
    assert [file.name for file in tmp_path.iterdir()] == ["text.gz"]
    link = tmp_path / "link.gz"
    link.symlink_to("plain")  # by whose name nobody reads it here
    with atomic_write(link) as stream:
        stream.write("text\n")
    assert read_lines(link) == ["text"]


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"fine\nbad \xff here\n")
    packed = gzip.compress("\n".join(str(i**3) for i in range(999)).encode())
    damage = {"cut.gz": packed[:500], "bad.gz": packed[:99] + b"x" * 99, "no.gz": b"text"}
    for name, content in damage.items():
        (tmp_path / name).write_bytes(content)
    causes = {"text": r"line 2.*byte 5", "nowhere": "no such", ".": r"cannot be read \(Is a"}
    for name, cause in {**causes, **dict.fromkeys(damage, r"cannot be read \(\w")}.items():
        with pytest.raises(UserError, match=rf"{(tmp_path / name).name}.*{cause}"):
            read_lines(tmp_path / name)


def test_a_failed_or_killed_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("old\n")
    with pytest.raises(TypeError), atomic_write(path) as stream:
        stream.writelines(["new\n", None])
    assert [file.name for file in tmp_path.iterdir()] == ["text"]
    code = (
        "import os, signal, sys; from fairseq_kerbs.utils.files import atomic_write\n"
        "with atomic_write(sys.argv[1]) as stream:\n"
        "    stream.write('new\\n' * 100000); stream.flush(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    run_program(sys.executable, "-c", code, path, status=-signal.SIGKILL)
    assert path.read_text() == "old\n"
    assert [f.name for f in tmp_path.iterdir() if not f.name.startswith(PARTIAL)] == ["text"]


def test_a_device_or_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with atomic_write(pipe) as stream:
        stream.write("text\n")
    assert os.read(reader, 99) == b"text\n"
    assert pipe.is_fifo()
    link = tmp_path / "stdout"
    link.symlink_to("/proc/self/fd/1")  # as /dev/stdout is
    code = "import fairseq_kerbs.utils.files as f\nwith f.atomic_write('stdout') as s: s.write('a')"
    with (tmp_path / "redirected").open("w") as output:
        subprocess.run([sys.executable, "-c", code], stdout=output, check=True, cwd=tmp_path)
        assert os.path.samestat(os.fstat(output.fileno()), (tmp_path / "redirected").stat())
    assert (link.is_symlink(), (tmp_path / "redirected").read_text()) == (True, "a")
    link = tmp_path / "link"
    link.symlink_to("later")  # to a file of another folder, say
    with atomic_write(link) as stream:
        stream.write("text")
    assert (link.is_symlink(), (tmp_path / "later").read_text()) == (True, "text")


def test_two_processes_of_one_number_write_apart(tmp_path: Path) -> None:
    """As in two containers."""
    path = tmp_path / "text"
    with atomic_write(path) as first, atomic_write(path, "wb") as second:
        first.write("first\n")
        second.write(b"second\n")
    assert path.read_text() == "first\n"  # which was finished last
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask


def test_sha256(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"abc")
    known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert sha256_of(tmp_path / "text") == known
    whole = sha256_of(tmp_path)
    (tmp_path / "text").rename(tmp_path / "other")
    assert sha256_of(tmp_path) != whole


@pytest.mark.parametrize("suffix", ["gz", "bz2", "xz", "zip"])
def test_compressed_text_without_its_suffix_is_said(suffix: str, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("one line\n")
    packed = tmp_path / "packed"
    if suffix == "zip":
        with zipfile.ZipFile(packed, "w") as archive:
            archive.write(text)
    else:
        opener: Any = {"gz": gzip.open, "bz2": bz2.open, "xz": lzma.open}[suffix]
        with opener(packed, "wb") as stream:
            stream.write(text.read_bytes())
    with pytest.raises(UserError, match=r"packed is compressed; decompress it first"):
        read_lines(packed)


def test_compressed_text_may_have_a_line_that_is_text(tmp_path: Path) -> None:
    """The head of a zip file has a time, and so any bytes."""
    (tmp_path / "packed").write_bytes(b"PK\x03\x04\n\x80")
    with pytest.raises(UserError, match=r"packed is compressed; decompress it first"):
        read_lines(tmp_path / "packed")


def test_a_checkpoint_is_no_compressed_text(tmp_path: Path) -> None:
    torch.save({"model": {}}, tmp_path / "model.pt")
    with pytest.raises(UserError, match=r"model.pt is a checkpoint; name a text file"):
        read_lines(tmp_path / "model.pt")


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: Patch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    for folder in (Path("/proc/nothing"), Path("below")):
        with pytest.raises(UserError, match=f"{folder} cannot be made .*; name another folder"):
            lock_folder(folder, "in use")
