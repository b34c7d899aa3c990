"""Lines are read strictly, files appear whole or not at all, and programs are ended properly."""

import gzip
import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_kerbs.utils import processes
from fairseq_kerbs.utils.errors import UserError, sentence_of
from fairseq_kerbs.utils.files import PARTIAL, STDIN, atomic_write, read_lines, sha256_of
from tests.helpers import HANGS
from tests.helpers.cli import Patch
from tests.helpers.commands import ROOT, run_program


def test_lines_end_at_newlines_alone(tmp_path: Path, monkeypatch: Patch) -> None:
    (path := tmp_path / "text").write_bytes("\ufeffa\u2028b\x0bc\r\n\r\nd\re\n\ufefflast".encode())
    assert read_lines(path) == ["a\u2028b\x0bc", "", "d\re", "\ufefflast"]
    os.read(place := os.open(path, os.O_RDONLY), len("\ufeffa\u2028b\x0bc\r\n".encode()))
    monkeypatch.setattr(os, "dup", lambda _: place)  # standard input, of which a line is read
    assert read_lines(STDIN) == ["", "d\re", "\ufefflast"]


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
    run_program(sys.executable, "-c", code, path, status=-signal.SIGKILL)
    assert path.read_text() == "old\n"
    assert [f.name for f in tmp_path.iterdir() if not f.name.startswith(PARTIAL)] == ["text"]


def test_a_device_or_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with atomic_write(pipe) as stream:
        stream.write("text\n")
    assert os.read(reader, 99) == b"text\n"
    assert pipe.is_fifo()
    (link := tmp_path / "stdout").symlink_to("/proc/self/fd/1")  # as /dev/stdout is
    code = "import fairseq_kerbs.utils.files as f\nwith f.atomic_write('stdout') as s: s.write('a')"
    with (tmp_path / "redirected").open("w") as output:
        subprocess.run([sys.executable, "-c", code], stdout=output, check=True, cwd=tmp_path)
        assert os.path.samestat(os.fstat(output.fileno()), (tmp_path / "redirected").stat())
    assert (link.is_symlink(), (tmp_path / "redirected").read_text()) == (True, "a")
    (link := tmp_path / "link").symlink_to("later")  # to a file of another folder, say
    with atomic_write(link) as stream:
        stream.write("text")
    assert (link.is_symlink(), (tmp_path / "later").read_text()) == (True, "text")


def test_an_error_of_the_system_names_the_file(tmp_path: Path) -> None:
    for named, below in ((tmp_path, ""), (Path(__file__), "below")):
        with pytest.raises(OSError, match=str(named)) as error, atomic_write(named / below):
            pass
        assert str(sentence_of(error.value)).startswith(f"{named} cannot be used")
    with pytest.raises(OSError, match="other"), atomic_write(tmp_path / "text"):
        raise PermissionError(13, "refused", "other")  # which the caller reads
    assert not any(map(sentence_of, (FileNotFoundError(2, "nothing", "there"), OSError("other"))))


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


def test_programs_beside_python_come_first(monkeypatch: Patch, tmp_path: Path) -> None:
    program, other = tmp_path / "bin" / "fairseq-train", tmp_path / "path" / "fairseq-train"
    for file in (program, other):
        file.parent.mkdir()
        file.touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setenv("PATH", str(other.parent))
    assert processes.find_program("fairseq-train") == str(program)
    program.unlink()
    assert processes.find_program("fairseq-train") == str(other)
    other.unlink()
    with pytest.raises(UserError, match="fairseq-train"):
        processes.find_program("fairseq-train")


def test_status_folder_and_output_in_utf8(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    code = "import os, sys; print('ü', sys.flags.utf8_mode, os.getcwd()); sys.exit(3)"
    with (tmp_path / "out").open("w") as stream:
        status = processes.run_program([sys.executable, "-c", code], stdout=stream, folder=tmp_path)
    assert status == 3
    assert (tmp_path / "out").read_bytes() == f"ü 1 {tmp_path.resolve()}\n".encode()


def _alive(pid: int) -> bool:
    """Whether a process runs (a zombie, whose new parent has not yet noticed, does not)."""
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc, and the kernel's death signal")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_a_program_ends_with_us(how: signal.Signals) -> None:
    """With what it has started, if we can still tell them; it does not hear of Ctrl-C itself."""
    child = "echo $$" if how == signal.SIGKILL else 'trap "echo heard" INT; sleep 300 & echo $!'
    code = (
        "import signal\n"
        # a shell's background jobs inherit that SIGINT is ignored
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from fairseq_kerbs.utils.processes import run_program, stop_on_signals\n"
        "stop_on_signals()\n"
        f"run_program(['/bin/sh', '-c', {child + '; sleep 300; wait'!r}])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        text=True,
        start_new_session=True,
    ) as parent:
        assert parent.stdout is not None
        started = int(parent.stdout.readline())
        assert _alive(started)
        os.killpg(parent.pid, how)
        if how != signal.SIGKILL:
            assert parent.stdout.read() == ""
        parent.wait(timeout=HANGS)
    deadline = time.monotonic() + HANGS
    while _alive(started) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _alive(started)


@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_is_shown_to_a_terminal_alone(terminal: bool, monkeypatch: Patch) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(stderr, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stderr", stderr)
    assert list(processes.progress(iter("abc"), "reading", " letters", 3)) == ["a", "b", "c"]
    assert ("reading" in stderr.getvalue()) == terminal
    assert "\n" not in stderr.getvalue()
