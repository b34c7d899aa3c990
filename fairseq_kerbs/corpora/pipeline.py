"""What every preparation shares: flags, a folder of its own, steps done once, binarization.

``manifest.json`` keeps, for each step, the SHA-256 of its inputs and outputs, its settings and the
figures that it returned. A step whose inputs, settings and outputs still hold is skipped.
"""

from __future__ import annotations

import shutil
import subprocess
from abc import ABC, abstractmethod
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import PARTIAL, partial_name, put_in_place
from fairseq_kerbs.utils.processes import find_program, quoted, run_program, usable_cores
from fairseq_kerbs.utils.steps import fingerprint, locked, read_object, write_json

NAME = "manifest.json"
LONGEST = 1023  # units of a sentence: fairseq's models have 1024 positions, one is for its end

Report = Callable[[str], None]


def flag(what: str, default: Any = MISSING, **options: Any) -> Any:
    """A dataclass field that is a flag of the command line; `options` are argparse's."""
    if default is False:
        options["action"] = "store_true"
    return field(default=default, metadata={"help": what, **options})


def number(what: str, default: int, least: int = 1) -> Any:
    """A flag with a whole number."""
    return flag(f"{what} [%(default)s]", default, type=whole_number(least), metavar="N")


def whole_number(least: int) -> Callable[[str], int]:
    """argparse's type of whole numbers that are at least `least`."""

    def integer(text: str) -> int:
        if int(text) < least:
            raise ArgumentTypeError(f"must be at least {least}, not {text}")
        return int(text)

    return integer


def several(text: str) -> tuple[str, ...]:
    """argparse's type of names between commas."""
    return tuple(text.split(","))


@dataclass(frozen=True, kw_only=True)
class Preparation(ABC):
    """Text to a folder for fairseq; the fields of a subclass are the flags of its command."""

    dest: Path = flag("folder to work in", type=Path, metavar="DIR")
    workers: int = number("processes", usable_cores())

    def prepare(self, report: Report = print) -> Path:
        """Run every step that is not yet done; return the folder for fairseq (``DEST/bin``). Raises
        a UserError for wrong flags or text, a folder of other things, or a failed program."""
        self.check()
        with working_folder(self.dest, report) as manifest:
            self.run(manifest)
        return self.dest / "bin"

    def check(self) -> None:  # noqa: B027  (most have nothing to check)
        """Raise a UserError if flags or text are wrong, before anything is written."""

    @abstractmethod
    def run(self, manifest: Manifest) -> None:
        """Run the steps."""


class Manifest:
    """The steps already done in one folder."""

    def __init__(self, folder: Path, report: Report) -> None:
        """Open the folder's manifest, or start one."""
        self.folder, self.report = folder, report
        self._steps = _read_steps(folder)
        if not (folder / NAME).exists():
            self._save()

    def _save(self) -> None:
        write_json(self.folder / NAME, {"version": 1, "steps": self._steps})

    def step(
        self, name: str, action: Callable[[], Mapping[str, Any]],
        inputs: Mapping[str, Path], outputs: Sequence[Path], **settings: Any,
    ) -> Mapping[str, Any]:  # fmt: skip
        """Run `action`, unless the manifest shows that it was done with these inputs and settings.

        `inputs` has files by their roles, which are recorded: a folder may be moved. `action` must
        create the `outputs` whole, and returns figures to keep; they are returned, of now or of the
        recorded run. ``DEST/bin`` goes first: an interrupted run leaves no data of other settings.
        """
        digests = {role: fingerprint(path) for role, path in inputs.items()}
        due = {"inputs": digests, "settings": settings, "outputs": self._digests(outputs)}
        known = self._steps.pop(name, {})
        if due.items() <= known.items():
            self.report(f"{name}: already done")
            self._steps[name] = known
            return known["result"]
        self._save()
        shutil.rmtree(self.folder / "bin", ignore_errors=True)
        self.report(f"{name} ...")
        try:
            result = action()
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"'{name}'") from None
        self._steps[name] = {**due, "result": result, "outputs": self._digests(outputs)}
        self._save()
        return result

    def _digests(self, paths: Sequence[Path]) -> dict[str, str | None]:
        return {str(path.relative_to(self.folder)): fingerprint(path) for path in paths}

    def binarize(
        self, flags: Sequence[str], inputs: Mapping[str, Path], lines: Mapping[str, int],
        **settings: Any,
    ) -> None:  # fmt: skip
        """The last step: fairseq-preprocess with `flags`, from `inputs` to ``DEST/bin``. `lines` by
        the names of binarized files: a worker of the program that dies leaves some out."""
        target, settings = self.folder / "bin", {**settings, "fairseq": version("fairseq")}
        action = partial(_binarize, flags, lines, target)
        self.step("fairseq-preprocess", action, inputs, [target], **settings)
        self.report(f"data for fairseq-train: {target}")


def _read_steps(folder: Path) -> dict[str, dict[str, Any]]:
    """The steps of a folder's manifest; none where there is none."""
    path = folder / NAME
    stored: dict[str, Any] = read_object(path) if path.exists() else {"version": 1, "steps": {}}
    if stored.keys() != {"version", "steps"} or stored["version"] != 1:
        raise UserError(
            f"{path} is not a manifest of this version of fairseq-kerbs; name another folder with "
            "--dest, or move it away if it is one that was damaged"
        )
    return dict(stored["steps"])


@contextmanager
def working_folder(folder: Path, report: Report) -> Iterator[Manifest]:
    """The record of the steps in a folder, which is cleared of what an interrupted run left; a
    UserError if it holds other things than a preparation, or another run is using it."""
    ours = (folder / NAME).exists()
    _read_steps(folder)
    if not ours and folder.is_dir() and any(entry.name[0] != "." for entry in folder.iterdir()):
        raise UserError(
            f"{folder} exists and was not made by 'fairseq-kerbs prepare'; "
            "name another folder with --dest"
        )
    with locked(folder, f"another run is preparing {folder}; wait for its end"):
        for leftover in list(folder.rglob(f"{PARTIAL}*-*")) if ours else []:
            if leftover.is_dir():
                shutil.rmtree(leftover, ignore_errors=True)
            else:
                leftover.unlink(missing_ok=True)
        yield Manifest(folder, report)


def _binarize(flags: Sequence[str], lines: Mapping[str, int], target: Path) -> dict[str, Any]:
    """Run fairseq-preprocess in a temporary folder, which gets its name when lines were counted."""
    temporary, log = partial_name(target), target.with_name("preprocess.log")
    command = [find_program("fairseq-preprocess"), *flags, "--destdir", str(temporary)]
    try:
        with log.open("w", encoding="utf-8") as stream:
            print(quoted(command), file=stream, flush=True)
            status = run_program(command, stdout=stream, stderr=subprocess.STDOUT)
        if status != 0:
            raise UserError(f"fairseq-preprocess failed with status {status}; see {log}")
        for name, expected in lines.items():
            found = binarized_lines(temporary / f"{name}.idx")
            if found != expected:
                raise UserError(
                    f"fairseq-preprocess wrote {found} of {expected} lines of {name}; "
                    "run again with --workers 1"
                )
        (temporary / "preprocess.log").unlink(missing_ok=True)  # the same text as `log`
        put_in_place(temporary, target)  # whose place `Manifest.step` has cleared
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return {}


def binarized_lines(index: Path) -> int:
    """Number of sentences in a binarized file, from the header of fairseq's mmap index."""
    return int.from_bytes(index.read_bytes()[18:26], "little")
