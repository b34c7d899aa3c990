"""Programs are found, printed and ended properly."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.processes import find_program, progress, run_program
from tests.helpers import HANGS
from tests.helpers.cli import Patch
from tests.helpers.commands import ROOT

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def test_programs_beside_python_come_first(monkeypatch: Patch, tmp_path: Path) -> None:
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
    with pytest.raises(UserError, match="fairseq-train"):
        find_program("fairseq-train")


def test_status_folder_and_output_in_utf8(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    code = "import os, sys; print('ü', sys.flags.utf8_mode, os.getcwd()); sys.exit(3)"
    with (tmp_path / "out").open("w") as stream:
        status = run_program([sys.executable, "-c", code], stdout=stream, folder=tmp_path)
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
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env=ENVIRONMENT, text=True, start_new_session=True,
    ) as parent:  # fmt: skip
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


def test_we_become_a_program(tmp_path: Path) -> None:
    program = tmp_path / "fairseq-train"
    program.write_text('#!/bin/sh\necho "$@" $PYTHONUTF8 $$; kill -TERM $$\n')
    program.chmod(0o755)
    code = (
        "import os, sys; from fairseq_kerbs.utils.processes import replace_process\n"
        "print(os.getpid()); replace_process([sys.argv[1], 'a', 'b'])"
    )
    command = [sys.executable, "-c", code, str(program)]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    number, said = done.stdout.splitlines()
    assert said == f"a b 1 {number}"
    assert done.returncode == -signal.SIGTERM


@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_is_shown_to_a_terminal_alone(terminal: bool, monkeypatch: Patch) -> None:
    stderr = io.StringIO()
    monkeypatch.setattr(stderr, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stderr", stderr)
    assert list(progress(iter("abc"), "reading", " letters", 3)) == ["a", "b", "c"]
    assert ("reading" in stderr.getvalue()) == terminal
    assert "\n" not in stderr.getvalue()
