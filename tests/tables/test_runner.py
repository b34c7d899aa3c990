"""Running, resuming, stale and failed jobs, with real but tiny commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fairseq_kerbs.tables.runner import Runner, environment, resolve
from fairseq_kerbs.tables.runs import Job, Step, statuses
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.steps import read_record
from tests.helpers import HANGS

ROOT = Path(__file__).resolve().parents[2]


def step(folder: Path, name: str, script: str, **parts: str) -> Step:
    """A shell script that shall make ``NAME.out``; what it does is also noted in ``calls``."""
    output = folder / f"{name}.out"
    full = f"echo {name} >> '{folder}/calls'; {script}"
    return Step(name, ("sh", "-c", full, "sh", str(output)), parts or {"p": "1"}, (output,))


def job(folder: Path, steps: Sequence[Step], name: str = "", after: str = "") -> Job:
    return Job(name or folder.name, folder, lambda: list(steps), after)


def calls(folder: Path) -> list[str]:
    path = folder / "calls"
    return path.read_text().split() if path.exists() else []


@pytest.fixture
def cell(tmp_path: Path) -> Path:
    folder = tmp_path / "cell"
    folder.mkdir()
    return folder


def quiet(text: str) -> None:
    pass


OK = 'echo made > "$1"'


def test_steps_run_in_order_once(cell: Path) -> None:
    steps = [step(cell, "train", OK), step(cell, "score", OK)]
    said: list[str] = []
    about = {"revision": "abc"}
    assert Runner(say=said.append, about=about).run([job(cell, steps)])["cell"].state == "done"
    assert calls(cell) == ["train", "score"]
    record = read_record(cell / "train.json")
    assert record is not None
    expected = {"status": "done", "attempts": 1, "revision": "abc", "returncode": 0}
    assert {key: record[key] for key in expected} == expected
    assert record["command"].startswith("sh -c 'echo train")
    assert record["seconds"] >= 0
    assert any("train" in line for line in said)
    Runner(say=quiet).run([job(cell, steps)])
    assert calls(cell) == ["train", "score"]


def test_processor_time_of_all_attempts_is_kept(cell: Path) -> None:
    busy = f"{sys.executable} -c 'import time\nwhile time.process_time() < 0.4: pass'"
    Runner(say=quiet).run([job(cell, [step(cell, "train", f"{busy}; sleep 0.5; exit 1")])])
    first = read_record(cell / "train.json")
    assert first is not None
    assert 0.4 <= first["cpu_seconds"] < first["seconds"]
    Runner(say=quiet).run([job(cell, [step(cell, "train", f"{busy}; {OK}")])])
    second = read_record(cell / "train.json")
    assert second is not None
    assert second["cpu_seconds"] >= first["cpu_seconds"] + 0.4
    # What an attempt took that was killed together with its runner, nobody knows.
    unknown = {key: value for key, value in second.items() if key != "returncode"}
    (cell / "train.json").write_text(json.dumps({**unknown, "status": "running"}))
    Runner(say=quiet).run([job(cell, [step(cell, "train", OK)])])
    third = read_record(cell / "train.json")
    assert third is not None
    assert third["cpu_seconds"] is None


def test_done_cell_needs_no_checkpoint(cell: Path) -> None:
    steps = [step(cell, "train", OK), step(cell, "score", OK)]
    Runner(say=quiet).run([job(cell, steps)])
    (cell / "train.out").unlink()
    assert [status.state for status in statuses(cell, steps)] == ["done", "done"]
    (cell / "score.out").unlink()
    assert [status.state for status in statuses(cell, steps)] == ["to do", "to do"]
    Runner(say=quiet).run([job(cell, steps)])
    assert calls(cell) == ["train", "score"] * 2


def test_failed_cell_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    bad = [step(first, "train", "echo out of luck; exit 3"), step(first, "score", OK)]
    lazy = [step(second, "train", OK)]
    said: list[str] = []
    runner = Runner(say=said.append)
    outcomes = runner.run([job(first, bad), job(second, lazy), job(first, lazy, "x", "first")])
    assert outcomes["first"].state == "failed"
    assert outcomes["first"].reason == "train ended with status 3"
    assert outcomes["first"].tail[-1] == "out of luck"
    assert outcomes["second"].state == "done"
    assert any(line.strip() == "out of luck" for line in said)
    assert calls(first) == ["train"]
    # It is tried again by the next run, and its time adds up.
    runner = Runner(say=quiet)
    good = [step(first, "train", OK), step(first, "score", OK)]
    assert statuses(first, good)[0].reason == "train had failed"
    assert runner.run([job(first, good)])["first"].state == "done"
    record = read_record(first / "train.json")
    assert record is not None
    assert record["attempts"] == 2


def test_output_that_is_not_made_is_a_failure(cell: Path) -> None:
    outcome = Runner(say=quiet).run([job(cell, [step(cell, "train", "true")])])["cell"]
    assert outcome.state == "failed"
    assert "without making" in outcome.reason
    missing = Step("train", ("no-such-program",), {"p": "2"})
    outcome = Runner(say=quiet, redo=True).run([job(cell, [missing])])["cell"]
    assert outcome.reason == "no-such-program cannot be started: No such file or directory"


def test_what_needs_a_failed_job_is_blocked(tmp_path: Path) -> None:
    data, cell = tmp_path / "data", tmp_path / "cell"
    for folder in (data, cell):
        folder.mkdir()
    jobs = [job(data, [step(data, "prepare", "exit 1")]), job(cell, [step(cell, "train", OK)])]
    jobs[1] = job(cell, [step(cell, "train", OK)], after="data")
    outcomes = Runner(say=quiet, jobs=2).run(jobs)
    assert outcomes["cell"].state == "blocked"
    assert outcomes["cell"].reason == "data: prepare ended with status 1"
    assert calls(cell) == []


def test_stale_steps_wait_for_redo(cell: Path) -> None:
    def steps(lr: str, beam: str) -> list[Step]:
        train = step(cell, "train", OK, configuration=lr)
        train = Step(**{**vars(train), "clear": (cell / "checkpoints",)})
        return [train, step(cell, "score", OK, configuration=lr, generation=beam)]

    Runner(say=quiet).run([job(cell, steps("1", "5"))])
    (cell / "checkpoints").mkdir()
    outcome = Runner(say=quiet).run([job(cell, steps("1", "4"))])["cell"]
    assert outcome.state == "stale"
    assert outcome.reason.startswith("generation changed since score; run again with --redo")
    Runner(say=quiet, redo=True).run([job(cell, steps("1", "4"))])
    assert calls(cell) == ["train", "score", "score"]
    assert (cell / "checkpoints").exists()
    outcome = Runner(say=quiet).run([job(cell, steps("2", "4"))])["cell"]
    assert outcome.reason.startswith("configuration changed since train")
    assert calls(cell) == ["train", "score", "score"]
    Runner(say=quiet, redo=True).run([job(cell, steps("2", "4"))])
    assert calls(cell) == ["train", "score", "score", "train", "score"]
    assert not (cell / "checkpoints").exists()


def test_interrupted_training_of_another_configuration_is_stale(cell: Path) -> None:
    """Else fairseq would go on from its checkpoint under new flags."""
    record = {"parts": {"configuration": "1"}, "status": "running"}
    (cell / "train.json").write_text(json.dumps(record))
    assert statuses(cell, [step(cell, "train", OK, configuration="1")])[0].state == "to resume"
    assert statuses(cell, [step(cell, "train", OK, configuration="2")])[0].state == "stale"


def test_jobs_run_side_by_side_after_their_data(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("data", "a", "b", "c")]
    for folder in folders:
        folder.mkdir()
    data, *cells = folders
    # a and b each wait until the other has begun: alone, neither would end.
    meet = "touch {me}; for i in $(seq 200); do [ -e {other} ] && break; sleep 0.05; done; "
    meet += '[ -e {other} ] && [ -e {data}/prepare.out ] && echo made > "$1"'
    a, b = (
        step(me, "train", meet.format(me=me / "here", other=other / "here", data=data))
        for me, other in (cells[:2], cells[1::-1])
    )
    jobs = [job(data, [step(data, "prepare", f"sleep 0.2; {OK}")])]
    for folder, one in zip(cells, (a, b, step(cells[2], "train", OK)), strict=True):
        jobs.append(job(folder, [one], after="data"))
    outcomes = Runner(say=quiet, jobs=2).run(jobs)
    assert {name: outcome.state for name, outcome in outcomes.items()} == dict.fromkeys(
        ("data", "a", "b", "c"), "done"
    )
    with pytest.raises(UserError, match="--jobs must be at least 1"):
        Runner(jobs=0)


DRIVER = """
import sys
from pathlib import Path
from fairseq_kerbs.tables.runner import Runner, stopping_signals
from fairseq_kerbs.tables.runs import Job, Step
from fairseq_kerbs.utils.steps import locked
folder = Path(sys.argv[1])
script = '''echo $$ > pid; echo begun >> calls
[ -e checkpoint ] && { echo made > out; exit 0; }
touch checkpoint; sleep 60 & echo $! > child; wait'''
script = f"cd '{folder}'; {script}"
steps = [Step("train", ("sh", "-c", script), {"p": "1"}, (folder / "out",))]
with locked(folder, 'in use'), stopping_signals():
    outcomes = Runner().run([Job("cell", folder, lambda: steps)])
print(outcomes["cell"].state)
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
    [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)],
    ids=["ctrl-c", "terminated", "killed"],
)
def test_killed_in_the_middle_it_continues(cell: Path, number: int, status: int) -> None:
    command = [sys.executable, "-c", DRIVER, str(cell)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL) as first:
        wait_for((cell / "child").exists)
        wait_for(lambda: (cell / "child").read_text().strip())
        first.send_signal(number)
        assert first.wait(30) == status
    child = int((cell / "pid").read_text())
    wait_for(lambda: not alive(child))
    if number != signal.SIGKILL:  # then nobody could stop what the command itself has started
        wait_for(lambda: not alive(int((cell / "child").read_text())))
    else:
        os.kill(int((cell / "child").read_text()), signal.SIGTERM)
    record = read_record(cell / "train.json")
    assert record is not None
    assert record["status"] == "running"
    again = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    assert again.stdout.endswith("done\n")
    assert calls(cell) == ["begun", "begun"]
    record = read_record(cell / "train.json")
    assert record is not None
    assert (record["status"], record["attempts"]) == ("done", 2)


def test_commands_and_their_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert resolve(["fairseq-kerbs", "train", "x"]) == [
        sys.executable, "-P", "-m", "fairseq_kerbs.cli", "train", "x",
    ]  # fmt: skip
    assert Path(resolve(["fairseq-eval-lm", "x"])[0]).name == "fairseq-eval-lm"
    assert resolve(["sh", "-c", "true"]) == ["sh", "-c", "true"]
    monkeypatch.setattr("fairseq_kerbs.tables.runner.usable_cores", lambda: 8)
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert environment(3)["OMP_NUM_THREADS"] == "2"
    assert environment(20)["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert environment(2)["OMP_NUM_THREADS"] == "5"
    assert environment(1)["PYTHONPATH"].split(os.pathsep)[0] == str(ROOT)


def test_an_interruption_while_a_command_starts_is_not_lost(
    cell: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It arrives inside fork, where Python drops exceptions."""
    before = signal.getsignal(signal.SIGINT)
    start = subprocess.Popen

    def interrupted(*arguments: Any, **options: Any) -> Any:
        with suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)
        return start(*arguments, **options)

    monkeypatch.setattr("fairseq_kerbs.tables.runner.subprocess.Popen", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Runner(say=quiet).run([job(cell, [step(cell, "train", "sleep 60")])])
    record = read_record(cell / "train.json")
    assert record is not None
    assert record["status"] == "running"
    assert record["returncode"] == -signal.SIGTERM
    assert signal.getsignal(signal.SIGINT) is before
