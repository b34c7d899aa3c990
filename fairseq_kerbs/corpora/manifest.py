"""A record of finished steps, so that an interrupted or repeated preparation does only what is due.

``manifest.json`` keeps, for each step, the SHA-256 of its inputs, its settings and the SHA-256 of
its outputs. A step is skipped when all three still hold.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fairseq_kerbs.utils.errors import UserError, system_refusal
from fairseq_kerbs.utils.files import PARTIAL
from fairseq_kerbs.utils.steps import DONE, fingerprint, locked, step_status, write_json

NAME = "manifest.json"
_VERSION = 1
_STEP = {"inputs": dict, "settings": dict, "result": dict, "outputs": dict}
_LEFTOVER = re.compile(re.escape(PARTIAL) + r"\d+-.+", re.DOTALL)


def _read_steps(folder: Path) -> dict[str, dict[str, Any]] | None:
    """The steps of a folder's manifest; None if it has none.

    Raises:
        UserError: the manifest is not readable as one of this version.
    """
    path = folder / NAME
    if not path.exists():
        return None
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        steps: dict[str, dict[str, Any]] = dict(stored["steps"])
        ours = set(stored) == {"version", "steps"} and stored["version"] == _VERSION
        ours = ours and all(
            isinstance(step[key], kind) for step in steps.values() for key, kind in _STEP.items()
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        ours = False
    except OSError as error:
        raise system_refusal(error, path, "read") from None
    if not ours:
        raise UserError(
            f"{path} is not a manifest of this version of fairseq-kerbs; name another folder with "
            "--dest, or move it away if it is one that was damaged"
        )
    return steps


class Manifest:
    """The steps already done in one folder; see `step`.

    `product` is the last output: it is removed as soon as any step is due, so that a run that is
    interrupted after a change never leaves the product of other settings behind.
    """

    def __init__(self, folder: Path, product: Path, report: Callable[[str], None] = print) -> None:
        """Open the folder's manifest, or start one.

        Raises:
            UserError: the manifest is not readable as one of this version.
        """
        self._folder = folder
        self._product = product
        self._path = folder / NAME
        self._report = report
        steps = _read_steps(folder)
        self._steps = steps or {}
        if steps is None:
            self._save()

    def _save(self) -> None:
        write_json(self._path, {"version": _VERSION, "steps": dict(sorted(self._steps.items()))})

    def step(
        self,
        name: str,
        *,
        inputs: Mapping[str, Path],
        settings: Mapping[str, Any],
        outputs: Sequence[Path],
        action: Callable[[], dict[str, Any]],
    ) -> dict[str, Any]:
        """Run `action`, unless the manifest shows that it was done with these inputs and settings.

        `inputs` maps a role to a file (roles, not paths, are recorded: a folder may be moved).
        `action` must create every one of `outputs` under its final name at once, and returns
        figures to keep. Returns those figures, of now or of the recorded run.
        """
        parts = {
            "inputs": {role: fingerprint(path) for role, path in inputs.items()},
            "settings": json.loads(json.dumps(dict(settings))),
        }
        known = self._steps.get(name)
        if known is not None:
            then = {"parts": {key: known[key] for key in parts}, "status": DONE}
            then["outputs"] = known["outputs"]
            if step_status(name, then, parts, self._fingerprints(outputs)).state == "done":
                self._report(f"{name}: already done")
                return dict(known["result"])
            del self._steps[name]
            self._save()
        shutil.rmtree(self._product, ignore_errors=True)
        self._report(f"{name} ...")
        result = action()
        self._steps[name] = {**parts, "result": result, "outputs": self._fingerprints(outputs)}
        self._save()
        return dict(result)

    def _fingerprints(self, paths: Sequence[Path]) -> dict[str, str | None]:
        return {str(path.relative_to(self._folder)): fingerprint(path) for path in paths}


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Create a working folder, keep other runs out of it, and clear what an interrupted one left.

    Files are cleared only where a manifest of ours lies, and only those with a temporary name.

    Raises:
        UserError: the folder holds other things than a preparation, or another run is using it.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; --dest needs a folder")
    ours = folder.is_dir() and _read_steps(folder) is not None
    if not ours and folder.is_dir() and any(entry.name[:1] != "." for entry in folder.iterdir()):
        raise UserError(
            f"{folder} exists and was not made by 'fairseq-kerbs prepare'; "
            "name another folder with --dest"
        )
    with locked(folder, f"another run is preparing {folder}; wait for its end"):
        for leftover in list(folder.rglob(PARTIAL + "*")) if ours else []:
            if not _LEFTOVER.fullmatch(leftover.name):
                continue
            if leftover.is_dir() and not leftover.is_symlink():
                shutil.rmtree(leftover, ignore_errors=True)
            else:
                leftover.unlink(missing_ok=True)
        yield
