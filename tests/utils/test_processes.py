"""Programs are found, printed and ended properly."""

from __future__ import annotations

import io
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.processes import find_program, progress, quoted, run_program
from tests.helpers import HANGS

ROOT = Path(__file__).resolve().parents[2]


def test_programs_beside_python_come_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "fairseq-train"
    other = tmp_path / "path" / "fairseq-train"
    for file in (program, other):
        file.parent.mkdir()
        file.touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setenv("PATH", str(other.parent))
    assert find_program("fairseq-train") == str(program)
    program.unlink()
    assert find_program("fairseq-train") == str(other)
    other.unlink()
    with pytest.raises(UserError, match=r"fairseq-train is neither .* run scripts/install\.sh"):
        find_program("fairseq-train")


def test_quoted_command_can_be_pasted() -> None:
    command = ["fairseq-train", "a b", "(0.9, 0.98)", "it's", '{"beam": 5}']
    assert shlex.split(quoted(command)) == command


def test_exit_status_and_output(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as stream:
        status = run_program(["/bin/sh", "-c", "echo hello; exit 3"], stdout=stream)
    assert status == 3
    assert (tmp_path / "out").read_text() == "hello\n"


def test_what_a_child_writes_is_utf8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    code = "import sys; print('ü', sys.flags.utf8_mode)"
    with (tmp_path / "out").open("w") as stream:
        assert run_program([sys.executable, "-c", code], stdout=stream) == 0
    assert (tmp_path / "out").read_bytes() == "ü 1\n".encode()


def _alive(pid: int) -> bool:
    """Whether a process runs (a zombie, whose new parent has not yet noticed, does not)."""
    stat = Path(f"/proc/{pid}/stat")
    try:
        return stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc, and the kernel's death signal")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL, signal.SIGINT])
def test_child_ends_with_its_parent(how: signal.Signals) -> None:
    code = (
        "import signal\n"
        # a shell's background jobs inherit that SIGINT is ignored
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from fairseq_kerbs.utils.processes import run_program\n"
        "run_program(['/bin/sh', '-c', 'echo $$; exec sleep 300'])"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert _alive(child)
        parent.send_signal(how)
        try:
            parent.wait(timeout=HANGS)
        finally:
            parent.kill()
    deadline = time.monotonic() + HANGS
    while _alive(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _alive(child)


PROGRAM = """
import signal, sys, multiprocessing
def child(): print("child", "fairseq_kerbs" in sys.modules, flush=True)
if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=child)
    process.start()
    process.join()
    print(sys.argv[1:], "fairseq_kerbs" in sys.modules, signal.getsignal(signal.SIGTERM).name)
    signal.raise_signal(signal.SIGINT)
"""


def test_a_program_that_we_become_is_interrupted_in_one_line(tmp_path: Path) -> None:
    """Also before it can hear of Ctrl-C itself; its own processes begin as if it stood alone."""
    program = tmp_path / "fairseq-train"
    program.write_text(PROGRAM)
    code = (
        "import argparse, signal, sys\n"
        "from fairseq_kerbs import cli\n"
        "from fairseq_kerbs.utils.processes import replace_process\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "parser = argparse.ArgumentParser()\n"
        f"parser.set_defaults(run=lambda _: replace_process([{str(program)!r}, 'x']))\n"
        "cli.build_parser = lambda: parser\n"
        f"home, sys.executable = sys.executable, {str(tmp_path / 'python')!r}\n"
        "import multiprocessing.spawn as spawn\n"
        "spawn.set_executable(home)\n"
        "sys.exit(cli.main([]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=HANGS,
    )
    assert done.stdout == "child False\n['x'] False SIG_DFL\n"
    assert done.stderr == "fairseq-kerbs: interrupted; run the same command again\n"
    assert done.returncode == 130


WHILE_IT_STARTS = """
import signal, subprocess, time
start = subprocess.Popen.__init__
def interrupted(*args, **kwargs):
    start(*args, **kwargs)
    time.sleep(1)
    signal.raise_signal(signal.SIGINT)
subprocess.Popen.__init__ = interrupted
"""


@pytest.mark.parametrize("first", ["", WHILE_IT_STARTS])
def test_a_program_that_we_start_is_stopped_with_its_group(first: str) -> None:
    """It does not hear of Ctrl-C itself."""
    code = (
        "import signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"{first}"
        "from fairseq_kerbs.utils.processes import run_program\n"
        "run_program(['/bin/sh', '-c', 'trap \"echo heard\" INT; sleep 300 & echo $!; wait; wait'])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        text=True,
        start_new_session=True,
    ) as parent:
        assert parent.stdout is not None
        grandchild = int(parent.stdout.readline())
        if not first:
            os.killpg(parent.pid, signal.SIGINT)
        assert parent.stdout.read() == ""
    deadline = time.monotonic() + HANGS
    while _alive(grandchild) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _alive(grandchild)


@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_is_shown_to_a_terminal_alone(
    terminal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(stderr, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stderr", stderr)
    assert list(progress(iter("abc"), "reading", " letters", 3)) == ["a", "b", "c"]
    assert ("reading" in stderr.getvalue()) == terminal
    assert "\n" not in stderr.getvalue()
