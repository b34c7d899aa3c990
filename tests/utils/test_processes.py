"""Programs are found beside Python and end with us."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fairseq_kerbs.utils import processes
from fairseq_kerbs.utils.errors import UserError
from tests.helpers import HANGS
from tests.helpers.cli import Patch
from tests.helpers.commands import ROOT


def test_programs_beside_python_come_first(monkeypatch: Patch, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "fairseq-train"
    other = tmp_path / "path" / "fairseq-train"
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
