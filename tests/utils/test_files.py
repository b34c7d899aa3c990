"""Lines are read strictly, and files appear whole or not at all."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_kerbs.utils.errors import UserError, sentence_of
from fairseq_kerbs.utils.files import PARTIAL, atomic_write, read_lines, sha256_of
from tests.helpers.commands import run_program


def test_lines_end_at_newlines_alone(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes("\ufeffa\u2028b\x0bc\r\n\r\nd\re\n\ufefflast".encode())
    assert read_lines(path) == ["a\u2028b\x0bc", "", "d\re", "\ufefflast"]


LINE = st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]))


@given(st.lists(LINE.filter(lambda line: not line.endswith("\r") and line[:1] != "\ufeff")))
def test_written_lines_are_read(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    path = tmp_path_factory.mktemp("lines") / "text"
    with atomic_write(path) as stream:
        stream.writelines(line + "\n" for line in lines)
    assert read_lines(path) == lines


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
    run_program(sys.executable, "-c", code, path, succeeds=False)
    assert path.read_text() == "old\n"
    assert [f.name for f in tmp_path.iterdir() if not f.name.startswith(PARTIAL)] == ["text"]


def test_a_device_or_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with atomic_write(pipe) as stream:
        stream.write("text\n")
    assert os.read(reader, 99) == b"text\n"
    assert pipe.is_fifo()
    os.close(reader)
    (link := tmp_path / "stdout").symlink_to("/proc/self/fd/1")  # as /dev/stdout is
    code = "import sys; from fairseq_kerbs.utils.files import atomic_write\n"
    code += "with atomic_write(sys.argv[1]) as stream: stream.write('text')"
    with (tmp_path / "redirected").open("w") as output:
        subprocess.run([sys.executable, "-c", code, link], stdout=output, check=True)
    assert link.is_symlink()
    assert (tmp_path / "redirected").read_text() == "text"


def test_an_error_of_the_system_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for path in (tmp_path, tmp_path / "file" / "below"):
        with pytest.raises(UserError, match=f"^{path} cannot be written"), atomic_write(path):
            pass
    # of another file, it is about that; and what the program should have known is a defect
    with pytest.raises(OSError, match="other"), atomic_write(tmp_path / "text"):
        raise PermissionError(13, "refused", "other")
    assert sentence_of(FileNotFoundError(2, "nothing", "there")) is None


def test_two_processes_of_one_number_write_apart(tmp_path: Path) -> None:
    """As in two containers."""
    path = tmp_path / "text"
    with atomic_write(path) as first, atomic_write(path, "wb") as second:
        first.write("first\n")
        second.write(b"second\n")
    assert path.read_text() == "first\n"  # which was finished last
    os.umask(mask := os.umask(0))
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask


def test_sha256(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"abc")
    known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert sha256_of(tmp_path / "text") == known
    whole = sha256_of(tmp_path)
    (tmp_path / "text").rename(tmp_path / "other")
    assert sha256_of(tmp_path) != whole
