"""Strict lines, and files that are whole or not there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import PARTIAL, atomic_write, locked, read_lines, sha256_of

ROOT = Path(__file__).resolve().parents[2]


def test_only_newline_ends_a_line(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes("a\u2028b\x0bc\x85d\re\nf\r\n\ng".encode())
    assert read_lines(path) == ["a\u2028b\x0bc\x85d\re", "f", "", "g"]


def test_byte_order_mark_is_dropped_at_the_start_alone(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n")
    assert read_lines(path) == ["a", "\ufeffb"]


LINE = st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]))


@given(st.lists(LINE.filter(lambda line: not line.endswith("\r") and line[:1] != "\ufeff")))
def test_written_lines_come_back(
    tmp_path_factory: pytest.TempPathFactory, lines: list[str]
) -> None:
    path = tmp_path_factory.mktemp("lines") / "text"
    with atomic_write(path) as stream:
        stream.writelines(line + "\n" for line in lines)
    assert read_lines(path) == lines


def test_invalid_utf8_names_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(b"fine\nbad \xff here\n")
    with pytest.raises(UserError, match=r"text, line 2: not valid UTF-8 \(byte 5\)"):
        read_lines(path)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere: no such file"):
        read_lines(tmp_path / "nowhere")
    with pytest.raises(UserError, match="is a folder"):
        read_lines(tmp_path)


def test_failed_write_keeps_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("old\n")

    def write_half() -> None:
        with atomic_write(path) as stream:
            stream.write("new\n")
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        write_half()
    assert path.read_text() == "old\n"
    assert [file.name for file in tmp_path.iterdir()] == ["text"]


@pytest.mark.parametrize("name", [".", "/"])
def test_a_folder_is_no_file_to_write(name: str) -> None:
    with (
        pytest.raises(UserError, match=rf"^\{name} cannot be written .*; name another place$"),
        atomic_write(name),
    ):
        pass


def test_killed_write_keeps_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("old\n")
    code = (
        "import os, signal, sys; from fairseq_kerbs.utils.files import atomic_write\n"
        "with atomic_write(sys.argv[1]) as stream:\n"
        "    stream.write('new\\n' * 100000); stream.flush(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == -signal.SIGKILL
    assert path.read_text() == "old\n"
    assert [f.name for f in tmp_path.iterdir() if not f.name.startswith(PARTIAL)] == ["text"]


def test_two_processes_of_one_number_write_apart(tmp_path: Path) -> None:
    """As in two containers; and a link that lies there already is not followed."""
    path, other = tmp_path / "text", tmp_path / "other"
    other.write_text("other\n")
    (tmp_path / f"{PARTIAL}{os.getpid()}-text").symlink_to(other)
    with atomic_write(path) as first, atomic_write(path) as second:
        first.write("first\n")
        second.write("second\n")
    assert path.read_text() == "first\n"  # which was finished last
    assert other.read_text() == "other\n"
    os.umask(mask := os.umask(0))
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask


def test_sha256(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"abc")
    assert sha256_of(tmp_path / "text") == (
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    )


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    code = "import sys; from pathlib import Path; from fairseq_kerbs.utils.files import locked\n"
    code += "with locked(Path(sys.argv[1]), 'another run works in it'): pass"
    command = [sys.executable, "-c", code, str(tmp_path)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    with locked(tmp_path, ""):
        done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert "another run works in" in done.stderr
    assert subprocess.run(command, env=environ).returncode == 0
