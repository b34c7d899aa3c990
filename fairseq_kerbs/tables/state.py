"""What is done: a small JSON file for each finished, running or failed step.

A record holds the command, the digests that the step depends on (``parts``), seconds, attempts,
git revision and machine. A step whose parts differ from those of its record is *stale*: its
configuration or its data have changed since.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_kerbs.utils.files import atomic_write, sha256_of

RUNNING, DONE, FAILED = "running", "done", "failed"
"""Status of a record; one that says running belongs to a run that was stopped."""


@dataclass(frozen=True)
class Step:
    """A command of a cell or of a preparation.

    Attributes:
        name: of the step in its folder; its record is ``name.json``, its log ``name.log``.
        command: program and arguments; see `fairseq_kerbs.tables.runner.resolve`.
        parts: what it depends on, by name, as digests or short texts.
        outputs: files or folders that are there when it is done.
        clear: what is removed before it is run anew after a change.
    """

    name: str
    command: tuple[str, ...]
    parts: Mapping[str, str]
    outputs: tuple[Path, ...] = ()
    clear: tuple[Path, ...] = ()


@dataclass(frozen=True)
class Job:
    """Steps that run one after the other, in a folder of their own.

    Attributes:
        id: unique in a run.
        folder: where records and logs are kept.
        steps: builds the steps, once the job in `after` is done: digests of data are known then.
        after: id of the job that must be done before, or "".
        minutes: planned, None if unknown.
    """

    id: str
    folder: Path
    steps: Callable[[], list[Step]]
    after: str = ""
    minutes: float | None = None


@dataclass(frozen=True)
class Verdict:
    """Where a step stands: ``done``, ``to do``, ``to resume`` or ``stale``, and why."""

    state: str
    reason: str = ""


def digest(value: Any) -> str:
    """SHA-256 of a value's JSON text; keys of objects in any order are the same value."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def data_digest(folder: Path) -> str:
    """SHA-256 over the files of a ``bin`` folder; logs, which hold times and paths, are left out.

    A folder that is not there has the digest "unprepared".
    """
    if not folder.is_dir():
        return "unprepared"
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and file.suffix != ".log"]
    return digest([[str(file.relative_to(folder)), sha256_of(file)] for file in files])


def record_path(folder: Path, step: str) -> Path:
    """Where the record of a step is."""
    return folder / f"{step}.json"


def log_path(folder: Path, step: str) -> Path:
    """Where a step's output goes."""
    return folder / f"{step}.log"


def read_record(folder: Path, step: str) -> dict[str, Any] | None:
    """The record of a step; None if there is none, or none that can be read."""
    try:
        record = json.loads(record_path(folder, step).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) and isinstance(record.get("parts"), dict) else None


def write_record(folder: Path, step: str, record: Mapping[str, Any]) -> None:
    """Replace the record of a step at once."""
    with atomic_write(record_path(folder, step)) as stream:
        json.dump(record, stream, indent=1, ensure_ascii=False)
        stream.write("\n")


def judge(folder: Path, step: Step) -> Verdict:
    """Where one step stands, by its record and its outputs."""
    record = read_record(folder, step.name)
    if record is None:
        return Verdict("to do")
    known = record["parts"]
    changed = [name for name in {**step.parts, **known} if step.parts.get(name) != known.get(name)]
    if changed:
        return Verdict("stale", f"{', '.join(changed)} changed since {step.name}")
    if record.get("status") != DONE:
        return Verdict("to resume", f"{step.name} had {_ended(record)}")
    for output in step.outputs:
        if not output.exists():
            return Verdict("to do", f"{output} is gone")
    return Verdict("done")


def _ended(record: Mapping[str, Any]) -> str:
    return "failed" if record.get("status") == FAILED else "been interrupted"


def judge_all(folder: Path, steps: Sequence[Step]) -> list[Verdict]:
    """Where the steps of a job stand.

    The parts of a later step include those of the earlier ones. So when the last step is done all
    are, even if a checkpoint has been removed since.
    """
    if steps and judge(folder, steps[-1]).state == "done":
        return [Verdict("done")] * len(steps)
    return [judge(folder, step) for step in steps]
