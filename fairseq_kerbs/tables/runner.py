"""Runs the steps of jobs, several jobs side by side, from where an earlier run stopped.

A thread for each job starts its commands one after the other. Each command is the leader of a
session of its own, so that Ctrl-C reaches only this process, which then stops all of them; should
this process be killed outright, Linux sends them SIGTERM.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from fairseq_kerbs.tables.runs import Job, Step, statuses
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.processes import (
    PLUGIN_FOLDER,
    end_with_parent,
    find_program,
    quoted,
    usable_cores,
)
from fairseq_kerbs.utils.steps import DONE, FAILED, RUNNING, read_record, write_json

_PATIENCE = 20.0  # seconds that a stopped command has to end by itself
_TAIL = 12  # lines of a failed step's log that are shown


@dataclass(frozen=True)
class Outcome:
    """How a job ended: ``done``, ``failed``, ``stale`` or ``blocked`` (what it needs failed)."""

    state: str
    reason: str = ""
    tail: tuple[str, ...] = ()


def resolve(command: Sequence[str]) -> list[str]:
    """A command as it is started: our own programs run by this Python, from this checkout.

    Raises:
        UserError: a program of fairseq's is not installed.
    """
    program, *arguments = command
    if program == "fairseq-kerbs":
        return [sys.executable, "-P", "-m", "fairseq_kerbs.cli", *arguments]
    if program == "python":
        return [sys.executable, "-P", *arguments]
    if program.startswith("fairseq-"):
        return [find_program(program), *arguments]
    return list(command)


def environment(jobs: int) -> dict[str, str]:
    """Environment of the commands: an equal share of the cores, unless OMP_NUM_THREADS is set."""
    checkout, path = str(PLUGIN_FOLDER.parent), os.environ.get("PYTHONPATH")
    return {
        "OMP_NUM_THREADS": str(max(1, usable_cores() // jobs)),
        **os.environ,
        "PYTHONPATH": checkout if not path else f"{checkout}{os.pathsep}{path}",
        "PYTHONUNBUFFERED": "1",
    }


@contextmanager
def stopping_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end this process by an exception, so that commands are stopped first."""

    def stop(signum: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + signum)

    previous = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class Runner:
    """See the head of the module; `run` may be called once."""

    def __init__(
        self,
        *,
        jobs: int = 1,
        redo: bool = False,
        about: Mapping[str, Any] | None = None,
        say: Callable[[str], None] = print,
    ) -> None:
        """Settings of a run.

        Args:
            jobs: how many run side by side.
            redo: run stale steps anew, and all that follow them.
            about: kept in every record (git revision, machine).
            say: receives a line for every step that begins or ends.

        Raises:
            UserError: `jobs` is less than 1.
        """
        if jobs < 1:
            raise UserError(f"--jobs must be at least 1, not {jobs}")
        self._slots, self._redo, self._say = jobs, redo, say
        self._about = dict(about or {})
        self._environ = environment(jobs)
        self._active: set[subprocess.Popen[bytes]] = set()
        self._stopping = False
        self.outcomes: dict[str, Outcome] = {}

    def run(self, jobs: Sequence[Job]) -> dict[str, Outcome]:
        """Run what is not done of the jobs, in their order; a failed one does not stop the others.

        An interruption stops all commands, keeps how long they ran, and is raised again.
        """
        waiting, running = list(jobs), dict[Future[Outcome], Job]()
        with ThreadPoolExecutor(self._slots) as pool:
            try:
                while waiting or running:
                    unfinished = {job.id for job in (*waiting, *running.values())}
                    ready = [job for job in waiting if job.after not in unfinished]
                    for job in ready[: self._slots - len(running)]:
                        waiting.remove(job)
                        running[pool.submit(self._do, job)] = job
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        self._close(running.pop(future), future.result())
            except BaseException:
                self._stop(running)
                raise
        return self.outcomes

    def _do(self, job: Job) -> Outcome:
        """The steps of a job that are due, in a thread."""
        try:
            steps = job.steps()
            found = statuses(job.folder, steps)
            needed = self.outcomes.get(job.after)
            due = [index for index, status in enumerate(found) if status.state != "done"]
            stale = [index for index in due if found[index].state == "stale"]
            if not due:
                return Outcome("done")
            if needed is not None and needed.state != "done":
                return Outcome("blocked", f"{job.after}: {needed.reason}")
            if stale and not self._redo:
                reason = f"{found[stale[0]].reason}; run again with --redo to replace it"
                return Outcome("stale", reason)
            if stale:
                self._say(f"{job.id}: {found[stale[0]].reason}; doing it anew")
                for step in steps[stale[0] :]:
                    _clear(job.folder, step)
            for index in range(due[0], len(steps)):
                planned = job.minutes is not None and index == 0
                note = f" (planned: {job.minutes:g} min in all)" if planned else ""
                failure = None if self._stopping else self._execute(job, steps[index], note)
                if failure is not None:
                    return failure
        except UserError as error:
            return Outcome("failed", str(error))
        return Outcome("done")

    def _execute(self, job: Job, step: Step, note: str) -> Outcome | None:
        """Run a step's command to its end and keep a record of it; None if it ended well."""
        command, file = resolve(step.command), _file(job.folder, step)
        log = file.with_suffix(".log")
        before = read_record(file) or {}
        # Processor time of an attempt that was killed together with its runner is not known.
        lost = bool(before) and "returncode" not in before
        record: dict[str, Any] = {
            "step": step.name,
            "command": quoted(step.command),
            "status": RUNNING,
            "parts": dict(step.parts),
            "attempts": before.get("attempts", 0) + 1,
            "seconds": before.get("seconds", 0.0),
            "cpu_seconds": None if lost else before.get("cpu_seconds", None if before else 0.0),
            "began": _now(),
            **self._about,
        }
        write_json(file, record)
        self._say(f"{job.id}: {step.name}{note}, log in {log}")
        began = time.monotonic()
        with log.open("a", encoding="utf-8") as stream:
            stream.write(f"# attempt {record['attempts']}: {record['command']}\n")
            stream.flush()
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    env=self._environ,
                    start_new_session=True,
                    preexec_fn=end_with_parent,
                )
            except OSError as error:
                write_json(file, {**record, "status": FAILED})
                why = f"{step.command[0]} cannot be started: {error.strerror}"
                return Outcome("failed", why)
            self._active.add(process)
            _, status, usage = os.wait4(process.pid, 0)
            self._active.discard(process)
        status = process.returncode = os.waitstatus_to_exitcode(status)
        cpu = usage.ru_utime + usage.ru_stime
        for key, spent in (("seconds", time.monotonic() - began), ("cpu_seconds", cpu)):
            record[key] = None if record[key] is None else round(record[key] + spent, 1)
        gone = [str(output) for output in step.outputs if not output.exists()]
        ended = RUNNING if self._stopping else FAILED if status or gone else DONE
        write_json(file, {**record, "status": ended, "returncode": status, "ended": _now()})
        if ended == DONE:
            self._say(f"{job.id}: {step.name} done in {record['seconds'] / 60:.1f} min")
            return None
        what = f"status {status}" if status else f"without making {', '.join(gone)}"
        return Outcome("failed", f"{step.name} ended with {what}", _tail(log))

    def _close(self, job: Job, outcome: Outcome) -> None:
        self.outcomes[job.id] = outcome
        if outcome.state != "done":
            self._say(f"{job.id}: {outcome.state}: {outcome.reason}")
            for line in outcome.tail:
                self._say(f"    {line}")

    def _stop(self, running: Mapping[Future[Outcome], Job]) -> None:
        """Stop every command and whatever it has started, by way of its session."""
        self._stopping = True
        told: set[subprocess.Popen[bytes]] = set()
        deadline = time.monotonic() + _PATIENCE
        while wait(running, timeout=0.05).not_done:
            late = time.monotonic() > deadline
            for process in set(self._active) if late else set(self._active) - told:
                told.add(process)
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL if late else signal.SIGTERM)


def _file(folder: Path, step: Step) -> Path:
    """The record of a step; its log is beside it."""
    return folder / f"{step.name}.json"


def _clear(folder: Path, step: Step) -> None:
    """Remove what a step has left."""
    record = _file(folder, step)
    for path in (*step.clear, *step.outputs, record, record.with_suffix(".log")):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _tail(log: Path) -> tuple[str, ...]:
    text = log.read_text(encoding="utf-8", errors="replace")
    lines = [line.rstrip()[:300] for line in text.replace("\r", "\n").splitlines()]
    return tuple([line for line in lines if line][-_TAIL:])


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
