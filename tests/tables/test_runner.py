"""Running, resuming, stale and failed jobs, with real but tiny commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairseq_kerbs.tables.runner import Runner, environment
from fairseq_kerbs.tables.runs import Job, Step
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.steps import read_object
from tests.helpers import HANGS

ROOT = Path(__file__).resolve().parents[2]


def step(folder: Path, name: str, script: str, **parts: str) -> Step:
    """A shell script that shall make ``NAME.out``; what it does is also noted in ``calls``."""
    output = folder / f"{name}.out"
    full = f"echo {name} >> '{folder}/calls'; {script}"
    return Step(name, ("sh", "-c", full, "sh", str(output)), parts or {"p": "1"}, output)


def run(*jobs: Job, slots: int = 1, redo: bool = False, say: Any = print) -> dict[str, str]:
    return Runner(slots, redo, {"revision": "abc"}, say).run(jobs)


def calls(folder: Path) -> list[str]:
    path = folder / "calls"
    return path.read_text().split() if path.exists() else []


@pytest.fixture
def cell(tmp_path: Path) -> Path:
    folder = tmp_path / "cell"
    folder.mkdir()
    return folder


OK = 'echo made > "$1"'


def test_steps_run_in_order_once(cell: Path) -> None:
    job = Job("cell", cell, [step(cell, "train", OK), step(cell, "score", OK)])
    said: list[str] = []
    assert run(job, say=said.append) == {"cell": ""}
    assert calls(cell) == ["train", "score"]
    record = read_object(cell / "train.json")
    expected = {"status": "done", "attempts": 1, "revision": "abc", "returncode": 0}
    assert {key: record[key] for key in expected} == expected
    assert record["command"].startswith("sh -c 'echo train")
    assert record["seconds"] >= 0
    assert any("train" in line for line in said)
    run(job)
    assert calls(cell) == ["train", "score"]


def test_processor_time_of_all_attempts_is_kept(cell: Path) -> None:
    busy = f"{sys.executable} -c 'import time\nwhile time.process_time() < 0.4: pass'"
    run(Job("cell", cell, [step(cell, "train", f"{busy}; sleep 0.5; exit 1")]))
    first = read_object(cell / "train.json")
    assert 0.4 <= first["cpu_seconds"] < first["seconds"]
    job = Job("cell", cell, [step(cell, "train", f"{busy}; {OK}")])
    run(job)
    second = read_object(cell / "train.json")
    assert second["cpu_seconds"] >= first["cpu_seconds"] + 0.4
    # What an attempt took that was killed together with its runner, nobody knows.
    unknown = {"status": "running", "seconds": None, "cpu_seconds": None}
    (cell / "train.json").write_text(json.dumps({**second, **unknown}))
    run(job)
    third = read_object(cell / "train.json")
    assert (third["status"], third["seconds"], third["cpu_seconds"]) == ("done", None, None)


def test_done_cell_needs_no_checkpoint(cell: Path) -> None:
    job = Job("cell", cell, [step(cell, "train", OK), step(cell, "score", OK)])
    run(job)
    (cell / "train.out").unlink()
    assert [status.state for status in job.statuses()] == ["done", "done"]
    (cell / "score.out").unlink()
    assert [status.state for status in job.statuses()] == ["to do", "to do"]
    run(job)
    assert calls(cell) == ["train", "score"] * 2


def test_failed_cell_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    bad = [step(first, "train", "echo out of luck; exit 3"), step(first, "score", OK)]
    lazy = Job("second", second, [step(second, "train", OK)])
    said: list[str] = []
    failures = run(Job("first", first, bad), lazy, say=said.append)
    assert failures == {"first": "failed: train ended with status 3", "second": ""}
    assert any(line.strip() == "out of luck" for line in said)
    assert calls(first) == ["train"]
    # It is tried again by the next run.
    good = Job("first", first, [step(first, "train", OK), step(first, "score", OK)])
    assert good.statuses()[0].reason == "train had failed"
    assert run(good) == {"first": ""}
    assert read_object(first / "train.json")["attempts"] == 2


def test_output_that_is_not_made_is_a_failure(cell: Path) -> None:
    assert "without making" in run(Job("cell", cell, [step(cell, "train", "true")]))["cell"]
    missing = Step("train", ("no-such-program",), {"p": "1"}, cell / "out")
    with pytest.raises(UserError, match="no-such-program is neither beside"):
        run(Job("cell", cell, [missing]))


def test_stale_steps_wait_for_redo(cell: Path) -> None:
    def job(lr: str, beam: str) -> Job:
        train = replace(step(cell, "train", OK, configuration=lr), folder=cell / "checkpoints")
        return Job(
            "cell", cell, [train, step(cell, "score", OK, configuration=lr, generation=beam)]
        )

    run(job("1", "5"))
    (cell / "checkpoints").mkdir()
    failure = run(job("1", "4"))["cell"]
    assert failure.startswith("stale: generation changed since score; run again with --redo")
    run(job("1", "4"), redo=True)
    assert calls(cell) == ["train", "score", "score"]
    assert (cell / "checkpoints").exists()
    assert "configuration changed since train" in run(job("2", "4"))["cell"]
    assert calls(cell) == ["train", "score", "score"]
    run(job("2", "4"), redo=True)
    assert calls(cell) == ["train", "score", "score", "train", "score"]
    assert not (cell / "checkpoints").exists()


def test_interrupted_training_of_another_configuration_is_stale(cell: Path) -> None:
    """Else fairseq would go on from its checkpoint under new flags."""
    record = {"parts": {"configuration": "1"}, "status": "running"}
    (cell / "train.json").write_text(json.dumps(record))
    states = [
        Job("cell", cell, [step(cell, "train", OK, configuration=lr)]).statuses()[0].state
        for lr in ("1", "2")
    ]
    assert states == ["to resume", "stale"]


def test_jobs_run_side_by_side(tmp_path: Path) -> None:
    """Each of two waits until the other has begun: alone, neither would end."""
    meet = "touch {me}; for i in $(seq 200); do [ -e {other} ] && break; sleep 0.05; done; "
    meet += '[ -e {other} ] && echo made > "$1"'
    folders = [tmp_path / name for name in ("a", "b")]
    jobs = []
    for me, other in (folders, folders[::-1]):
        me.mkdir()
        script = meet.format(me=me / "here", other=other / "here")
        jobs.append(Job(me.name, me, [step(me, "train", script)]))
    assert run(*jobs, slots=2) == {"a": "", "b": ""}


DRIVER = """
import sys
from pathlib import Path
from fairseq_kerbs.tables.runner import Runner
from fairseq_kerbs.tables.runs import Job, Step
from fairseq_kerbs.utils.processes import stop_on_signals
folder = Path(sys.argv[1])
script = '''echo $$ > pid; echo begun >> calls
[ -e checkpoint ] && { echo made > out; exit 0; }
touch checkpoint; sleep 60 & echo $! > child; wait'''
script = f"cd '{folder}'; {script}"
steps = [Step("train", ("sh", "-c", script), {"p": "1"}, folder / "out")]
stop_on_signals()
print(Runner(1, False, {}, print).run([Job("cell", folder, steps)]))
"""


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return state != "Z"


def wait_for(condition: object, seconds: float = HANGS) -> None:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize(
    ("number", "status"),
    [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 143)],
    ids=["ctrl-c", "terminated"],
)
def test_stopped_in_the_middle_it_continues(cell: Path, number: int, status: int) -> None:
    command = [sys.executable, "-c", DRIVER, str(cell)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL) as first:
        wait_for((cell / "child").exists)
        wait_for(lambda: (cell / "child").read_text().strip())
        first.send_signal(number)
        assert first.wait(HANGS) == status
    for name in ("pid", "child"):  # the command, and what it has started
        wait_for(lambda name=name: not alive(int((cell / name).read_text())))
    record = read_object(cell / "train.json")
    assert (record["status"], record["returncode"]) == ("running", -signal.SIGTERM)
    again = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert again.stdout.endswith("{'cell': ''}\n")
    assert calls(cell) == ["begun", "begun"]
    record = read_object(cell / "train.json")
    assert (record["status"], record["attempts"]) == ("done", 2)


def test_commands_end_with_a_killed_runner(cell: Path) -> None:
    command = [sys.executable, "-c", DRIVER, str(cell)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL) as runner:
        wait_for((cell / "child").exists)
        wait_for(lambda: (cell / "child").read_text().strip())
        runner.kill()
    try:
        wait_for(lambda: not alive(int((cell / "pid").read_text())))
    finally:  # only the command itself is told
        os.kill(int((cell / "child").read_text()), signal.SIGKILL)


def test_environment_of_the_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairseq_kerbs.utils.processes.usable_cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert environment(3)["OMP_NUM_THREADS"] == "2"
    assert environment(20)["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert environment(2)["OMP_NUM_THREADS"] == "5"
    assert environment(1)["PYTHONPATH"].split(os.pathsep)[0] == str(ROOT)
