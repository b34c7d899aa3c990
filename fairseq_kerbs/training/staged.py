"""Training in three steps: a softmax, the placement of senses, KerBS.

A configuration with ``placement: {at: 0.4, total: 3.0}`` trains a softmax for two fifths of
``--max-update`` in ``SAVE_DIR/softmax``. ``fairseq-kerbs convert`` then places senses on the
clusters of its contexts, at most three per word on average. The rest of the updates trains the
KerBS model in ``SAVE_DIR``. :func:`train_and_place` takes the first two steps, unless they were
taken before, and returns the flags of the third.
"""

from __future__ import annotations

import importlib.util
import sys
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_kerbs import torch_compat
from fairseq_kerbs.configurations import (
    Flags,
    StagedPlacement,
    flag_arguments,
    flag_of,
    language_pair,
)
from fairseq_kerbs.program_checks import check_flags, check_languages
from fairseq_kerbs.programs import TRAIN, Call, check_form, flags_of_part, read_call
from fairseq_kerbs.reallocation.context_sample import LEAST_CONTEXTS
from fairseq_kerbs.training.curve import Continued
from fairseq_kerbs.utils.checkpoint_files import LAST, check_whole
from fairseq_kerbs.utils.dictionaries import read_dictionary
from fairseq_kerbs.utils.errors import UserError, as_user_error
from fairseq_kerbs.utils.processes import SAFE, find_program

Run = Callable[[Sequence[str]], None]

_FLAGS_OF_THE_STEPS = {
    "total_senses",
    "output_layer",
    "restore_file",
    "finetune_from_model",
    "continue_once",
    "max_epoch",
    "stop_time_hours",
    "patience",
    "stop_min_lr",
    "no_save",
    "no_last_checkpoints",
    "checkpoint_suffix",
}
"""Flags that the three steps give themselves, or that would end or lose one of them, as names of
parsed arguments. All that begin with ``reset_`` belong to them, too."""

_SAME_IN_ALL_STEPS = {
    "arch",
    "criterion",
    "lr-scheduler",
    "max-update",
    "save-dir",
    "source-lang",
    "target-lang",
    "task",
    "total-num-update",
    "user-dir",
}
"""Flags that ``placement: train`` cannot change. Neither can it change those of the architecture,
but for :data:`_NOT_OF_PARAMETERS`."""

_NOT_OF_PARAMETERS = (
    "cluster-gap",
    "composition",
    "dropout",
    "log-prob-threshold",
    "max-moves",
    "reallocation",
    "sense-decay",
)
"""Parts of the names of flags of an architecture that change none of its parameters."""

_SCHEDULES_BY_MAX_UPDATE = ("cosine", "tri_stage")
"""Schedules whose length is ``--max-update``, and so not that of the whole training."""


@dataclass(frozen=True)
class Training:
    """A call of fairseq-train: ``extra`` arguments override ``flags``."""

    data: str
    save_dir: str
    flags: Flags
    extra: tuple[str, ...] = ()

    def call(self) -> Call:
        """The call of fairseq-train, as fairseq reads it."""
        return read_call(TRAIN, self.data, self.flags, self.extra)

    def arguments(self) -> list[str]:
        """Arguments of fairseq-train."""
        return self.call().arguments


def train_and_place(
    training: Training, placement: StagedPlacement, run: Run, *, dry_run: bool = False
) -> Training:
    """Train a softmax in SAVE_DIR/softmax and place its senses, unless that has been done.

    Args:
        training: the whole training.
        placement: when senses are placed, and how many.
        run: shows and runs a command. It raises SystemExit if the command fails.
        dry_run: ``run`` only shows commands.

    Returns:
        the training that follows, of the KerBS model.

    Raises:
        UserError: as :func:`check_training`, or the softmax has another number of updates.
    """
    call = check_training(training, placement)
    steps = _Steps(training, placement, call)
    steps.check_folder()
    if dry_run or not steps.placed.exists():
        run(steps.train_softmax())
        if not dry_run:
            steps.check_updates(True, "see above why fairseq-train ended")
        run(steps.place_senses())
    return steps.train_kerbs()


def updates_of_softmax(call: Call, placement: StagedPlacement) -> int:
    """Number of updates of the first step of the training that ``call`` describes."""
    whole: int = call.values.max_update
    return min(whole - 1, max(1, round(placement.at * whole)))  # 0 of the third would be no limit


def continued_events(
    training: Training, call: Call, placement: StagedPlacement
) -> Continued | None:
    """The copy of TensorBoard's events of the third step behind those of the first.

    None without ``--tensorboard-logdir``, or without TensorBoard.

    Args:
        training: the whole training.
        call: its call.
        placement: when senses are placed.
    """
    if not _joins_events(call):
        return None
    target = Path(call.values.tensorboard_logdir)
    return Continued(_own_events(training), target, updates_of_softmax(call, placement))


def _joins_events(call: Call) -> bool:
    """Tell whether events are written, by the package that can also read them."""
    written = bool(call.values.tensorboard_logdir)
    return written and importlib.util.find_spec("tensorboard") is not None


def _own_events(training: Training) -> Path:
    """Folder of the events of the third step, whose steps begin with 1."""
    return Path(training.save_dir) / "tensorboard"


class _Steps:
    """The commands of the three steps, and the files between them.

    ``call`` is what :func:`check_training` returned.
    """

    def __init__(self, training: Training, placement: StagedPlacement, call: Call) -> None:
        self.training = training
        self.placement = placement
        self.call = call
        self.updates = updates_of_softmax(call, placement)
        self.max_senses = _most_senses(call)
        self.folder = Path(training.save_dir) / "softmax"
        self.last = self.folder / LAST
        self.placed = self.folder / f"senses_{placement.total}_{self.max_senses}.pt"

    def check_folder(self) -> None:
        """Raise a UserError if the folder has the softmax of another training."""
        others = [path.name for path in self.folder.glob("senses_*.pt") if path != self.placed]
        if others:
            raise UserError(
                f"{self.folder} has {others[0]}, with another total or --max-senses; name another "
                "SAVE_DIR, or the former limits"
            )
        if self.last.exists():
            advice = "name another SAVE_DIR, or the former length"
            former = self._former_length()
            if former != self.call.values.max_update:
                advice += f", --max-update {former}"
            self.check_updates(self.placed.exists(), advice)
        last = Path(self.training.save_dir) / LAST
        if last.exists() and not self.placed.exists():
            raise UserError(
                f"{last} is of a training without this placement, and would be gone on with; name "
                "another SAVE_DIR"
            )

    def check_updates(self, ended: bool, advice: str) -> None:
        """Raise a UserError if the softmax has too many updates, or too few although it ended."""
        done = _read_trusted(self.last, "optimizer_history", -1, "num_updates")
        if done > self.updates or (done < self.updates and ended):
            raise UserError(
                f"{self.folder} has {done} updates, but senses are to be placed after "
                f"{self.updates}; {advice}"
            )

    def _former_length(self) -> int:
        """``--max-update`` of the training that the folder is of, with the present fraction."""
        updates = int(_read_trusted(self.last, "cfg", "optimization", "max_update"))
        last = Path(self.training.save_dir) / LAST
        if last.exists():
            return updates + int(_read_trusted(last, "cfg", "optimization", "max_update"))
        return round(updates / self.placement.at)

    def train_softmax(self) -> list[str]:
        """The command of the first step."""
        flags = {
            **self.training.flags,
            "output-layer": "softmax",
            "save-dir": str(self.folder),
        }
        extra = [*self.training.extra, "--max-update", str(self.updates)]
        if self._polynomial() and "total_num_update" not in self.call.given:
            whole = str(self.call.values.max_update)  # of the whole training
            extra += ["--total-num-update", whole]
        training = replace(self.training, flags=flags, extra=tuple(extra))
        return [find_program("fairseq-train"), *training.arguments()]

    def place_senses(self) -> list[str]:
        """The command of the second step."""
        given = self.call.values
        command = [sys.executable, *SAFE, "-m", "fairseq_kerbs.cli", "convert"]
        command += [str(self.last), "-o", str(self.placed), "--data", self.training.data]
        # rows that lower the loss of the training that follows, not senses to read
        command += ["--total-senses", str(self.placement.total), "--number-of-senses", "distortion"]
        command += ["--max-senses", str(self.max_senses), "--trust-checkpoint"]
        for flag, subsets in (
            ("--split", given.train_subset),
            ("--valid-split", given.valid_subset),
        ):
            command += [flag, subsets.split(",")[0]]
        return command

    def train_kerbs(self) -> Training:
        """The third step."""
        total = str(self.placement.total)
        if self.placed.exists():
            total = str(_read_trusted(self.placed, "cfg", "model").total_senses)
        updates = str(self.call.values.max_update - self.updates)
        own = flag_arguments(self.placement.train)
        extra = [*own, *self.training.extra, "--max-update", updates]
        extra += ["--finetune-from-model", str(self.placed)]
        if self._polynomial():
            extra += ["--total-num-update", updates]
        if _joins_events(self.call):
            extra += ["--tensorboard-logdir", str(_own_events(self.training))]
        flags = {
            **self.training.flags,
            "output-layer": "kerbs",
            "total-senses": total,
            "sense-bias": True,
            "reallocation": "none",
        }
        # as arguments, they replace flags of another optimizer, too
        kept = {name: value for name, value in flags.items() if name not in self.placement.train}
        return replace(self.training, flags=kept, extra=tuple(extra))

    def _polynomial(self) -> bool:
        return bool(self.call.values.lr_scheduler == "polynomial_decay")


def _read_trusted(path: Path, *keys: str | int) -> Any:
    """An entry of a checkpoint of this training, which fairseq itself reads without safety.

    A UserError is raised if the checkpoint is damaged, or has no such entry as it is of another
    program.
    """
    check_whole(path)
    with as_user_error(path, "is of no training with this configuration", "name another SAVE_DIR"):
        entry: Any = torch_compat.load(path, weights_only=False, mmap=zipfile.is_zipfile(path))
        for key in keys:
            entry = entry[key]
    return entry


def check_training(training: Training, placement: StagedPlacement) -> Call:
    """Read the flags of a training as fairseq does, and check those that its steps depend on.

    A UserError is raised if the training cannot go in three steps with these flags. Nothing has
    been trained then.
    """
    # the output layer of a configuration is replaced
    kept = {name: value for name, value in training.flags.items() if name != "output-layer"}
    call = read_call(TRAIN, training.data, kept, training.extra)
    given = call.values
    names = call.given | {name.replace("-", "_") for name in placement.train}
    clash = sorted(
        flag_of(name) for name in names if name in _FLAGS_OF_THE_STEPS or name.startswith("reset_")
    )
    if "arch" in call.given and not hasattr(given, "output_layer"):
        raise UserError(
            f"--arch {given.arch} has no senses, which the placement of this configuration gives; "
            "take an architecture of 'fairseq-kerbs architectures'"
        )
    if given.save_dir != training.save_dir:
        clash.append("--save-dir")
    if getattr(given, "kernel", "kerbs") != "kerbs":
        clash.append(f"--kernel {given.kernel}")
    clash += [f"--{name} (placement: train)" for name in _fixed_flags(given, placement)]
    if clash:
        raise UserError(
            f"{', '.join(clash)} does not go with a configuration that has a placement of senses"
        )
    if given.max_update < 2:
        raise UserError("a configuration with placement needs --max-update, 2 or more")
    if given.lr_scheduler in _SCHEDULES_BY_MAX_UPDATE:
        raise UserError(
            f"--lr-scheduler {given.lr_scheduler} goes by --max-update, which a training with "
            "placement reaches in two parts; take polynomial_decay, inverse_sqrt or fixed"
        )
    if given.tensorboard_logdir:
        own = _own_events(training).resolve()
        if Path(given.tensorboard_logdir).resolve().is_relative_to(own):
            raise UserError(
                f"--tensorboard-logdir {given.tensorboard_logdir}: {own} is for the events of the "
                "third step, which are copied to those of the first; name another folder"
            )
    max_senses = _most_senses(call)
    if placement.total > max_senses:
        raise UserError(
            f"placement: total is {placement.total}, more than --max-senses {max_senses}"
        )
    if ":" in training.data:
        raise UserError(f"{training.data}: a training with placement takes one folder of data")
    return call


def _fixed_flags(given: Any, placement: StagedPlacement) -> list[str]:
    """Flags of ``placement: train`` that the softmax has settled, by the flags of its training."""
    of_arch = {flag.removeprefix("--") for flag in flags_of_part("arch", given.arch)}
    return sorted(
        name
        for name in placement.train
        if name in _SAME_IN_ALL_STEPS
        or (name in of_arch and not any(part in name for part in _NOT_OF_PARAMETERS))
    )


def call_after_placement(training: Training, placement: StagedPlacement, call: Call) -> Call:
    """The call of the third step, whose flags of ``placement: train`` are checked.

    ``call`` is what :func:`check_training` returned. A UserError is raised if fairseq-train refuses
    these flags, or cannot use their values.
    """
    actions = {flag: one for one in call.actions.values() for flag in one.option_strings}
    try:
        for name, value in placement.train.items():
            check_form(name, value, actions.get(f"--{name}"))
        last = _Steps(training, placement, call).train_kerbs().call()
        check_flags(last)
    except UserError as error:
        if not placement.train:
            raise
        raise UserError(f"placement: train: {error}") from None
    return last


def check_text(call: Call, data: str) -> None:
    """Raise a UserError if no word of the training text can receive several senses.

    The placement would find this as well, but only after the softmax has been trained.
    """
    from fairseq.data.data_utils import load_indexed_dataset

    folder = Path(data)
    split = call.values.train_subset
    end = "idx"
    file = folder / "dict.txt"  # of a language model
    if not file.exists():
        _, target = check_languages(call, data) or language_pair(data)
        file = folder / f"dict.{target}.txt"
        end = f"*-*.{target}.idx"
    dictionary = read_dictionary(file)
    counts = np.zeros(len(dictionary), dtype=np.int64)
    # fairseq joins train, train1 and so on
    patterns = (f"{split}.{end}", f"{split}[0-9]*.{end}")
    found = [path for pattern in patterns for path in folder.glob(pattern)]
    for path in found:
        for line in load_indexed_dataset(str(path.with_suffix("")), dictionary) or ():
            counts += np.bincount(line.numpy(), minlength=len(counts))[: len(counts)]
            if counts[dictionary.nspecial :].max(initial=0) >= LEAST_CONTEXTS:
                return
    if found:  # else fairseq says what is missing
        raise UserError(
            f"{data}: no word of the training text occurs {LEAST_CONTEXTS} times, so that none can "
            "receive several senses; take more text, or a configuration without placement"
        )


def _most_senses(call: Call) -> int:
    """Maximum number of senses of a word."""
    return int(getattr(call.values, "max_senses", None) or 4)
