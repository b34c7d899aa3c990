"""Real trainings, one process each, some of which kill themselves or record their senses."""

import hashlib
import os
import shutil
import signal
from itertools import count, groupby
from typing import Any

from tests.helpers.commands import Command, run_together

Run = dict[str, Any]
"""``arguments``, ``log``, `kill`, `record`, and ``rank`` and ``port`` of one of two processes."""


def trainings(runs: list[Run]) -> list[int]:
    """Exit statuses of trainings, one after the other, both processes of one side by side."""
    statuses: list[int] = []
    for _, group in groupby(runs, key=lambda run: run.get("port", id(run))):
        together = [*group]
        ended = run_together(*map(_command, together))
        for run, (status, output) in zip(together, ended, strict=True):
            statuses.append(status)
            with open(run.get("log", os.devnull), "a") as log:
                log.write(output)
    return statuses


def _command(run: Run) -> Command:
    environment: dict[str, str] = {}
    if "rank" in run:  # what torchrun tells its processes
        environment |= {"RANK": str(run["rank"]), "LOCAL_RANK": "0", "WORLD_SIZE": "2"}
        environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(run["port"])}
    prepare = {f"{__name__}:{name}": run[name] for name in ("kill", "record") if name in run}
    return Command("fairseq-train", run["arguments"], environment=environment, prepare=prepare)


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill(when: str) -> None:
    """Die at a moment: ``save N`` (inside the N-th), ``copy NAME``, ``before save N``."""
    import torch
    from fairseq import checkpoint_utils

    what, _, which = when.rpartition(" ")
    moments = count(1)

    def due() -> bool:
        return str(next(moments)) == which

    stock_save, stock_copy = torch.save, shutil.copyfile
    stock_checkpoint = checkpoint_utils.save_checkpoint

    def save(state: Any, stream: Any, *args: Any, **kwargs: Any) -> None:
        stock_save(state, stream, *args, **kwargs)
        if due():
            stream.flush()
            os.truncate(stream.name, os.path.getsize(stream.name) // 2)
            _die()

    def copyfile(source: str, target: str) -> None:
        stock_copy(source, target)
        if which in target:
            os.truncate(target, os.path.getsize(target) // 2)
            _die()

    def save_checkpoint(*args: Any, **kwargs: Any) -> None:
        if due():
            _die()
        stock_checkpoint(*args, **kwargs)

    if what == "save":
        torch.save = save  # type: ignore[assignment]
    elif what == "copy":
        shutil.copyfile = copyfile  # type: ignore[assignment]
    else:
        checkpoint_utils.save_checkpoint = save_checkpoint


def record(path: str) -> None:
    """After every update, write digests of the allocation and of all that the training changes."""
    import torch

    from fairseq_kerbs.training.sense_updates import SenseUpdates, kerbs_layers

    stock, stock_before = SenseUpdates.after_update, SenseUpdates.before_update
    optimizers: list[Any] = []

    def before_update(self: Any, optimizer: Any, model: Any, update_num: int) -> None:
        stock_before(self, optimizer, model, update_num)
        optimizers[:] = [optimizer]

    def after_update(self: Any, model: Any, update_num: int) -> None:
        stock(self, model, update_num)
        # the first process alone samples contexts
        state = {name: value for name, value in model.state_dict().items() if "sample_" not in name}
        for number, moments in enumerate(optimizers[0].optimizer.state.values()):
            state |= {f"{number} {name}": value for name, value in moments.items()}
        whole = hashlib.sha256()
        for name, value in sorted(state.items()):
            if not name.endswith("._float_tensor"):  # fairseq leaves it uninitialized
                whole.update(name.encode() + torch.as_tensor(value).numpy().tobytes())
        for layer in kerbs_layers(model):
            owners = layer.inventory.word_of_sense.cpu().numpy().tobytes()
        with open(path, "a") as stream:
            allocation = hashlib.sha256(owners).hexdigest()
            stream.write(f"{update_num + 1} {allocation} {whole.hexdigest()}\n")

    SenseUpdates.before_update = before_update  # type: ignore[method-assign]
    SenseUpdates.after_update = after_update  # type: ignore[method-assign]
