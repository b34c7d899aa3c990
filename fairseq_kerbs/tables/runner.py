"""Runs the steps of jobs, several jobs side by side, from where an earlier run stopped.

Each command is the leader of a session of its own, so that Ctrl-C reaches only this process, which
then stops all of them.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

from fairseq_kerbs.tables.runs import Job, Step
from fairseq_kerbs.utils import processes
from fairseq_kerbs.utils.steps import DONE, FAILED, RUNNING, read_object, write_json

_PATIENCE = 20.0  # seconds that a stopped command has to end by itself
_TAIL = 12  # lines of a failed step's log that are shown


def environment(jobs: int) -> dict[str, str]:
    """Environment of the commands: an equal share of the cores, unless OMP_NUM_THREADS is set."""
    path = [str(processes.PLUGIN_FOLDER.parent), os.environ.get("PYTHONPATH", "")]
    return {
        "OMP_NUM_THREADS": str(max(1, processes.usable_cores() // jobs)),
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "PYTHONUNBUFFERED": "1",
    }


class Runner:
    """Runs jobs in threads, each with one command at a time."""

    def __init__(
        self, slots: int, redo: bool, about: Mapping[str, Any], say: Callable[[str], None]
    ) -> None:
        """Run `slots` jobs side by side, stale steps anew if `redo`.

        `about` is kept in every record; `say` receives a line for every step that begins or ends.
        """
        self._slots, self._redo, self._about, self._say = slots, redo, dict(about), say
        self._environ = environment(slots)
        self._active: set[subprocess.Popen[bytes]] = set()
        self._stopping = False
        self._lock = Lock()  # no command starts once all have been told to stop

    def run(self, jobs: Sequence[Job]) -> dict[str, str]:
        """Run what is due of the jobs; why each is not done, by id, is empty for one that is.

        A failed job does not stop the others; an interruption stops all and is raised again.
        """
        with ThreadPoolExecutor(self._slots) as pool:
            futures: dict[str, Future[str]] = {}
            try:
                for job in jobs:
                    futures[job.id] = pool.submit(self._job, job)
                return {name: future.result() for name, future in futures.items()}
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                self._stop(signal.SIGTERM)
                wait(futures.values(), timeout=_PATIENCE)
                self._stop(signal.SIGKILL)
                raise

    def _job(self, job: Job) -> str:
        """Run the steps of a job that are due, in a thread; return why it is not done."""
        found = job.statuses()
        due = [index for index, status in enumerate(found) if status.state != "done"]
        stale = [index for index in due if found[index].state == "stale"]
        if stale and not self._redo:
            return f"stale: {found[stale[0]].reason}; run again with --redo to replace it"
        for step in job.steps[stale[0] :] if stale else ():
            _clear(job.folder, step)
        for step in job.steps[due[0] :] if due else ():
            failure = self._step(job, step)
            if failure:
                return failure
        return ""

    def _step(self, job: Job, step: Step) -> str:
        """Run a step's command to its end and keep a record of it; return why it failed."""
        file = job.folder / f"{step.name}.json"
        log, before = file.with_suffix(".log"), read_object(file)
        job.folder.mkdir(parents=True, exist_ok=True)
        record: dict[str, Any] = {
            "command": processes.quoted(step.command),
            "status": RUNNING,
            "parts": dict(step.parts),
            "attempts": before.get("attempts", 0) + 1,
            # they stay unknown where an attempt was killed together with its runner
            "seconds": None,
            "cpu_seconds": None,
            "began": _now(),
            **self._about,
        }
        program, *arguments = step.command
        own = [sys.executable, "-P", "-m", "fairseq_kerbs.cli"]  # of this checkout
        start = own if program == "fairseq-kerbs" else [processes.find_program(program)]
        self._say(f"{job.id}: {step.name}, log in {log}")
        began = time.monotonic()
        with log.open("a", encoding="utf-8") as stream:
            stream.write(f"# attempt {record['attempts']}: {record['command']}\n")
            stream.flush()
            with self._lock:
                if self._stopping:
                    return "stopped"
                write_json(file, record)
                process = subprocess.Popen(
                    [*start, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=subprocess.STDOUT,
                    env=self._environ,
                    start_new_session=True,
                    preexec_fn=processes.end_with_parent,  # this thread, which waits for it
                )
                self._active.add(process)
            _, ended, usage = os.wait4(process.pid, 0)
            self._active.discard(process)
        status = process.returncode = os.waitstatus_to_exitcode(ended)
        cpu = usage.ru_utime + usage.ru_stime
        for key, spent in (("seconds", time.monotonic() - began), ("cpu_seconds", cpu)):
            earlier = before.get(key) if before else 0.0
            record[key] = None if earlier is None else round(earlier + spent, 1)
        made = status == 0 and step.output.exists()
        record["status"] = DONE if made else RUNNING if self._stopping else FAILED
        write_json(file, {**record, "returncode": status, "ended": _now()})
        if made:
            self._say(f"{job.id}: {step.name} done")
            return ""
        if self._stopping:
            return "stopped"
        for line in log.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL:]:
            self._say(f"    {line}")
        what = f"status {status}" if status else f"without making {step.output}"
        self._say(f"{job.id}: {step.name} ended with {what}")
        return f"failed: {step.name} ended with {what}"

    def _stop(self, number: signal.Signals) -> None:
        """Send a signal to every command and whatever it has started, by way of its session."""
        with self._lock:
            self._stopping = True
        for process in list(self._active):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)


def _clear(folder: Path, step: Step) -> None:
    """Remove what a step has left."""
    record = folder / f"{step.name}.json"
    for path in (step.folder or step.output, step.output, record, record.with_suffix(".log")):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
