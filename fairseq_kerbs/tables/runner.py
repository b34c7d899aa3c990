"""Runs the steps of jobs, several jobs side by side, from where an earlier run stopped.

One thread starts the commands and looks after them. Each command is the leader of a session of its
own, so that Ctrl-C reaches only this process, which then stops all of them; should this process be
killed outright, Linux sends them SIGTERM.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, Any

from fairseq_kerbs.tables.state import (
    DONE,
    FAILED,
    RUNNING,
    Job,
    Step,
    judge_all,
    log_path,
    read_record,
    record_path,
    write_record,
)
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.processes import (
    PLUGIN_FOLDER,
    end_with_parent,
    find_program,
    quoted,
    usable_cores,
)

_POLL = 0.05  # seconds between looks at the running commands
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
def locked(work: Path) -> Iterator[None]:
    """Keep other runs out of a work folder.

    Raises:
        UserError: another run is using it.
    """
    work.mkdir(parents=True, exist_ok=True)
    with (work / ".lock").open("a") as lock:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(
                f"another run works in {work}; wait for its end, or name another with --work"
            ) from None
        yield


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


@contextmanager
def _signals_deferred() -> Iterator[None]:
    """Keep signals until the end of the block.

    While a process forks, Python runs callbacks whose exceptions it drops: a Ctrl-C that is raised
    there would be lost.
    """
    kept: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    previous = {
        number: signal.signal(number, lambda signum, frame: kept.append(signum))
        for number in numbers
        if signal.getsignal(number) is not signal.SIG_IGN
    }
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    for late in kept:
        signal.raise_signal(late)


@dataclass
class _Active:
    """A job that has a command running."""

    job: Job
    steps: list[Step]
    index: int
    process: subprocess.Popen[bytes]
    log: IO[str]
    began: float
    record: dict[str, Any] = field(default_factory=dict)
    cpu: float = 0.0

    @property
    def step(self) -> Step:
        return self.steps[self.index]

    def ended(self) -> bool:
        """Whether the command has ended; then its status and its processor time are known."""
        if self.process.returncode is None:
            pid, status, usage = os.wait4(self.process.pid, os.WNOHANG)
            if pid:
                self.process.returncode = os.waitstatus_to_exitcode(status)
                self.cpu = usage.ru_utime + usage.ru_stime
        return self.process.returncode is not None

    def save(self, status: str) -> None:
        """Keep how the command ended, and its times on top of those of earlier attempts."""
        self.log.close()
        returncode = self.process.returncode
        self.record["seconds"] = round(self.record["seconds"] + time.monotonic() - self.began, 1)
        if self.record["cpu_seconds"] is not None:
            self.record["cpu_seconds"] = round(self.record["cpu_seconds"] + self.cpu, 1)
        self.record |= {"status": status, "returncode": returncode, "ended": _now()}
        write_record(self.job.folder, self.step.name, self.record)


class Runner:
    """See the head of the module; `run` may be called once."""

    def __init__(
        self,
        *,
        jobs: int = 1,
        redo: bool = False,
        about: Mapping[str, Any] | None = None,
        say: Callable[[str], None] = print,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """Settings of a run.

        Args:
            jobs: how many run side by side.
            redo: run stale steps anew, and all that follow them.
            about: kept in every record (git revision, machine).
            say: told of every step that begins or ends.
            environ: of the commands; that of `environment` by default.

        Raises:
            UserError: `jobs` is less than 1.
        """
        if jobs < 1:
            raise UserError(f"--jobs must be at least 1, not {jobs}")
        self._slots, self._redo, self._say = jobs, redo, say
        self._about = dict(about or {})
        self._environ = environment(jobs) if environ is None else dict(environ)
        self._active: list[_Active] = []
        self.outcomes: dict[str, Outcome] = {}

    def run(self, jobs: Sequence[Job]) -> dict[str, Outcome]:
        """Run what is not done of the jobs, in their order; a failed one does not stop the others.

        An interruption stops all commands, keeps how long they ran, and is raised again.
        """
        waiting = list(jobs)
        try:
            while waiting or self._active:
                self._start(waiting)
                time.sleep(_POLL if self._active else 0)
                for active in list(self._active):
                    if active.ended():
                        self._ended(active)
        except BaseException:
            self._stop()
            raise
        return self.outcomes

    def _start(self, waiting: list[Job]) -> None:
        """Give free slots to the first jobs that need not wait for another."""
        for job in list(waiting):
            if len(self._active) >= self._slots:
                return
            unfinished = [*waiting, *(active.job for active in self._active)]
            if job.after in {other.id for other in unfinished}:
                continue
            waiting.remove(job)
            try:
                self._begin(job)
            except UserError as error:
                self._close(job, Outcome("failed", str(error)))

    def _begin(self, job: Job) -> None:
        steps = job.steps()
        verdicts = judge_all(job.folder, steps)
        needed = self.outcomes.get(job.after)
        if all(verdict.state == "done" for verdict in verdicts):
            self._close(job, Outcome("done"), quiet=True)
            return
        if needed is not None and needed.state != "done":
            self._close(job, Outcome("blocked", f"{job.after}: {needed.reason}"))
            return
        stale = [index for index, verdict in enumerate(verdicts) if verdict.state == "stale"]
        if stale and not self._redo:
            reason = f"{verdicts[stale[0]].reason}; run again with --redo to replace it"
            self._close(job, Outcome("stale", reason))
            return
        if stale:
            self._say(f"{job.id}: {verdicts[stale[0]].reason}; doing it anew")
            for step in steps[stale[0] :]:
                _clear(job.folder, step)
        first = next(i for i, verdict in enumerate(verdicts) if verdict.state != "done")
        self._launch(job, steps, min([first, *stale]))

    def _launch(self, job: Job, steps: list[Step], index: int) -> None:
        """Start a step's command."""
        step = steps[index]
        command = resolve(step.command)
        job.folder.mkdir(parents=True, exist_ok=True)
        before = read_record(job.folder, step.name) or {}
        record = {
            "step": step.name,
            "command": quoted(step.command),
            "status": RUNNING,
            "parts": dict(step.parts),
            "attempts": before.get("attempts", 0) + 1,
            "seconds": before.get("seconds", 0.0),
            "cpu_seconds": _cpu_before(before),
            "began": _now(),
            **self._about,
        }
        write_record(job.folder, step.name, record)
        path = log_path(job.folder, step.name)
        planned = "" if job.minutes is None or index else f" (planned: {job.minutes:g} min in all)"
        self._say(f"{job.id}: {step.name}{planned}, log in {path}")
        log = path.open("a", encoding="utf-8")
        log.write(f"# attempt {record['attempts']}: {record['command']}\n")
        log.flush()
        with _signals_deferred():
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env=self._environ,
                    start_new_session=True,
                    preexec_fn=end_with_parent,
                )
            except OSError as error:
                log.close()
                write_record(job.folder, step.name, {**record, "status": FAILED})
                raise UserError(f"{command[0]} cannot be started: {error.strerror}") from None
            self._active.append(_Active(job, steps, index, process, log, time.monotonic(), record))

    def _ended(self, active: _Active) -> None:
        """After the end of a command: the next step, or the end of the job."""
        self._active.remove(active)
        job, step, status = active.job, active.step, active.process.returncode
        gone = [str(output) for output in step.outputs if not output.exists()]
        well = status == 0 and not gone
        active.save(DONE if well else FAILED)
        if not well:
            what = f"status {status}" if status else f"without making {', '.join(gone)}"
            tail = _tail(log_path(job.folder, step.name))
            self._close(job, Outcome("failed", f"{step.name} ended with {what}", tail))
            return
        self._say(f"{job.id}: {step.name} done in {active.record['seconds'] / 60:.1f} min")
        if active.index + 1 == len(active.steps):
            self._close(job, Outcome("done"), quiet=True)
            return
        try:
            self._launch(job, active.steps, active.index + 1)
        except UserError as error:
            self._close(job, Outcome("failed", str(error)))

    def _close(self, job: Job, outcome: Outcome, quiet: bool = False) -> None:
        self.outcomes[job.id] = outcome
        if not quiet:
            self._say(f"{job.id}: {outcome.state}: {outcome.reason}")
            for line in outcome.tail:
                self._say(f"    {line}")

    def _stop(self) -> None:
        """Stop every command and whatever it has started."""
        for active in self._active:
            _signal(active.process, signal.SIGTERM)
        deadline = time.monotonic() + _PATIENCE
        for active in self._active:
            while not active.ended():
                if time.monotonic() > deadline:
                    _signal(active.process, signal.SIGKILL)
                time.sleep(_POLL)
            active.save(RUNNING)
        self._active.clear()


def _cpu_before(record: Mapping[str, Any]) -> float | None:
    """Processor time of earlier attempts; None if one of them could not be measured to its end."""
    lost = bool(record) and "returncode" not in record
    return None if lost else record.get("cpu_seconds", None if record else 0.0)


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """Send a signal to the command's session, which has its process number."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _clear(folder: Path, step: Step) -> None:
    """Remove what a step has left."""
    paths = [*step.clear, *step.outputs, record_path(folder, step.name)]
    for path in [*paths, log_path(folder, step.name)]:
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
