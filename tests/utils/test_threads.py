"""The number of threads follows the cores that are free."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fairseq_kerbs.utils import threads
from fairseq_kerbs.utils.processes import usable_cores

_TICKS = os.sysconf("SC_CLK_TCK")


def _write_statistics(path: Path, idle_seconds: dict[int, float]) -> None:
    """A file like /proc/stat: user, nice, system, idle, waiting for a disk, and so on."""
    lines = ["cpu  9 9 9 9 9 9 0 0 0 0"]
    for core, seconds in idle_seconds.items():
        lines.append(f"cpu{core} 500 0 300 {round(seconds * _TICKS)} 0 0 4 0 0 0")
    path.write_text("\n".join([*lines, "intr 12 0", "ctxt 99"]))


@pytest.fixture
def four_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A process that may use cores 0 to 3 of six. Returns the file of their statistics."""
    statistics = tmp_path / "stat"
    monkeypatch.setattr(threads, "_STATISTICS", statistics)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3})
    for variable in (threads.NUMBER, threads.WAITING):
        # set first, so that it is restored to its absence
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)
    return statistics


def _observe(
    statistics: Path, monkeypatch: pytest.MonkeyPatch, idle_while_looking: dict[int, float]
) -> None:
    """Let cores have been idle for so many seconds while the function sleeps."""
    _write_statistics(statistics, dict.fromkeys(idle_while_looking, 1000.0))

    def sleep(seconds: float) -> None:
        later = {core: 1000.0 + idle for core, idle in idle_while_looking.items()}
        _write_statistics(statistics, later)

    monkeypatch.setattr(time, "sleep", sleep)


@pytest.mark.parametrize(
    ("idle", "free"),
    [
        ({0: 0.2, 1: 0.2, 2: 0.2, 3: 0.2, 4: 0.2, 5: 0.2}, 4),  # others' cores do not count
        ({0: 0.2, 1: 0.0, 2: 0.19, 3: 0.01, 4: 0.0, 5: 0.0}, 2),
        ({0: 0.0, 1: 0.0, 2: 0.0, 3: 0.0, 4: 0.2, 5: 0.2}, 0),
    ],
)
def test_a_core_is_free_if_it_is_idle_while_we_look(
    four_cores: Path, monkeypatch: pytest.MonkeyPatch, idle: dict[int, float], free: int
) -> None:
    _observe(four_cores, monkeypatch, idle)
    assert threads.free_cores() == free


def test_a_disk_that_is_waited_for_leaves_a_core_free(
    four_cores: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    four_cores.write_text("cpu0 5 0 5 100 7 0 0 0 0 0\ncpu1 5 0 5 100 7 0 0 0 0 0")

    def sleep(seconds: float) -> None:
        waited = 7 + _TICKS
        four_cores.write_text(f"cpu0 5 0 5 100 {waited} 0 0 0 0 0\ncpu1 5 0 5 100 7 0 0 0 0 0")

    monkeypatch.setattr(time, "sleep", sleep)
    assert threads.free_cores() == 1


def test_the_load_tells_on_systems_without_statistics(
    four_cores: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (2.6, 0.0, 0.0))
    assert threads.free_cores() == 1
    monkeypatch.setattr(os, "getloadavg", lambda: (26.0, 0.0, 0.0))
    assert threads.free_cores() == 0


def test_threads_are_limited_and_said(
    four_cores: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _observe(four_cores, monkeypatch, {0: 0.2, 1: 0.0, 2: 0.2, 3: 0.0})
    threads.limit_threads()
    assert os.environ["OMP_NUM_THREADS"] == "2"
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
    said = capsys.readouterr().err
    assert said == (
        "fairseq-kerbs: threads: 2, as 2 of 4 cores are free "
        "(OMP_NUM_THREADS sets another number)\n"
    )
    threads.limit_threads()
    assert not capsys.readouterr().err


def test_at_least_one_thread_on_a_busy_machine(
    four_cores: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _observe(four_cores, monkeypatch, dict.fromkeys(range(4), 0.0))
    threads.limit_threads()
    assert os.environ["OMP_NUM_THREADS"] == "1"


def test_what_the_user_has_set_stays(
    four_cores: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    threads.limit_threads()
    threads.one_thread("the model is small")
    assert os.environ["OMP_NUM_THREADS"] == "7"
    assert os.environ["OMP_WAIT_POLICY"] == "ACTIVE"
    assert not capsys.readouterr().err


def test_one_thread_for_small_models(four_cores: Path, capsys: pytest.CaptureFixture[str]) -> None:
    threads.one_thread("the model is small")
    assert os.environ["OMP_NUM_THREADS"] == "1"
    assert "threads: 1, as the model is small" in capsys.readouterr().err


def test_torch_has_the_number_of_threads_that_was_chosen() -> None:
    """torch is loaded after the variables are set, which alone has an effect."""
    environment = {name: text for name, text in os.environ.items() if not name.startswith("OMP")}
    program = (
        "from fairseq_kerbs.utils import threads\n"
        "threads.free_cores = lambda: 1\n"
        "threads.limit_threads()\n"
        "import torch\n"
        "print(torch.get_num_threads())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "1"
    assert f"1 of {usable_cores()} cores" in done.stderr
