"""Steps that are done once: what the record of a step says about it, digests, locks, JSON files.

A record tells what the step depended on (``parts``: digests, settings), how it ended (``status``)
and, optionally, the digests of its outputs.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import atomic_write, sha256_of

RUNNING, DONE, FAILED = "running", "done", "failed"
"""Status in a record; one that says running belongs to a run that was stopped."""


class StepStatus(NamedTuple):
    """Where a step stands: ``done``, ``to do``, ``to resume`` or ``stale``, and why."""

    state: str
    reason: str = ""


def step_status(
    name: str,
    record: Mapping[str, Any],
    parts: Mapping[str, Any],
    outputs: Mapping[str, str | None],
) -> StepStatus:
    """Compare the record of a step with what is there now.

    A step whose `parts` are no longer those of its record is stale. `outputs` are digests of its
    outputs as they are now, None for one that is not there; those in the record, if any, count.
    """
    known = record.get("parts")
    if not isinstance(known, dict):
        return StepStatus("to do")
    changed = [part for part in {**parts, **known} if parts.get(part) != known.get(part)]
    if changed:
        return StepStatus("stale", f"{', '.join(changed)} changed since {name}")
    if record.get("status") != DONE:
        ended = "failed" if record.get("status") == FAILED else "been interrupted"
        return StepStatus("to resume", f"{name} had {ended}")
    made = record.get("outputs", outputs)
    for output in {**made, **outputs}:
        if outputs.get(output) is None or outputs[output] != made.get(output):
            return StepStatus("to do", f"{output} is gone or has changed")
    return StepStatus("done")


def digest(value: Any) -> str:
    """SHA-256 of a value's JSON text; keys of objects in any order are the same value."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def fingerprint(path: Path) -> str | None:
    """SHA-256 of a file, or of a folder's file names and contents; None where there is nothing."""
    if path.is_dir():
        files = [file for file in sorted(path.rglob("*")) if file.is_file()]
        listing = "\n".join(f"{file.relative_to(path)} {sha256_of(file)}" for file in files)
        return hashlib.sha256(listing.encode()).hexdigest()
    return sha256_of(path) if path.is_file() else None


def data_digest(folder: Path) -> str:
    """SHA-256 over the files of a ``bin`` folder but for logs, which hold times and paths."""
    files = [file for file in sorted(folder.rglob("*")) if file.is_file() and file.suffix != ".log"]
    return digest([[str(file.relative_to(folder)), sha256_of(file)] for file in files])


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file; an empty one if there is none that can be read."""
    return content if isinstance(content := read_json(path), dict) else {}


def read_json(path: Path) -> Any:
    """What is in a JSON file; None if there is none that can be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def write_json(path: Path, content: Any) -> None:
    """Replace a JSON file at once."""
    with atomic_write(path) as stream:
        json.dump(content, stream, indent=1, ensure_ascii=False)
        stream.write("\n")


@contextmanager
def locked(folder: Path, refusal: str) -> Iterator[None]:
    """Create a folder and keep other runs out of it; if one is using it, `refusal` is raised."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("a") as lock:
        try:  # a record lock: gone when this process is, and not inherited by its workers
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(refusal) from None
        yield
