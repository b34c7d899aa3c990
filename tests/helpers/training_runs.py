"""Real trainings, one process each, without importing fairseq anew for each of them.

    python -m tests.helpers.training_runs < runs.json

reads a list of runs and writes their exit statuses as a list in JSON to the file that ``STATUSES``
names. A run is ``{"arguments": [...]}`` (those of fairseq-train) and may also have ``"kill"``, the
moment at which the process kills itself, ``"log"``, a file for what it prints, ``"rank"`` and
``"port"``, and ``"record"``, a file for a digest of the senses after every update. Runs of the same
``"port"`` are the two processes of one training. Runs with ``"beside"``, a file, start when it is
there, while the run before them goes on, which is killed when they have ended.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.helpers import HANGS

ROOT = Path(__file__).resolve().parents[2]
Run = dict[str, Any]


def trainings(runs: list[Run], folder: Path, timeout: float = HANGS) -> list[int]:
    """Run trainings one after the other, both processes of one side by side; exit statuses.

    Args:
        runs: see the head of the module.
        folder: where the statuses are written.
        timeout: seconds for all of them.
    """
    statuses = folder / "statuses.json"
    environment = os.environ | {
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": str(ROOT),
        "STATUSES": str(statuses),
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.helpers.training_runs"],
        input=json.dumps(runs),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    found: list[int] = json.loads(statuses.read_text())
    return found


def binarize(folder: Path, pairs: int = 60, valid: int = 8) -> Path:
    """The synthetic corpus in words, binarized; the folder for fairseq-train."""
    from fairseq import options
    from fairseq_cli import preprocess

    from fairseq_kerbs.corpora.synthetic import write_synthetic_corpus

    write_synthetic_corpus(folder / "text", train=pairs, valid=valid, test=1)
    flags = ["-s", "de", "-t", "en", "--destdir", str(folder / "bin"), "--workers", "1"]
    flags += [f"--{split}pref={folder / 'text' / split}" for split in ("train", "valid")]
    preprocess.main(options.get_preprocessing_parser().parse_args(flags))
    return folder / "bin"


# ------------------------------------------------------------------ inside the started process


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _arm(kill: str) -> None:
    """Die at a moment: ``save N`` (inside the N-th), ``copy NAME``, ``before save N``."""
    import torch
    from fairseq import checkpoint_utils

    what, _, which = kill.rpartition(" ")
    count = 0

    def due() -> bool:
        nonlocal count
        count += 1
        return str(count) == which

    stock_save, stock_copy = torch.save, shutil.copyfileobj
    stock_checkpoint = checkpoint_utils.save_checkpoint

    def save(state: Any, stream: Any, *args: Any, **kwargs: Any) -> None:
        stock_save(state, stream, *args, **kwargs)
        if due():
            stream.flush()
            os.truncate(stream.name, os.path.getsize(stream.name) // 2)
            _die()

    def copyfileobj(source: Any, target: Any) -> None:
        if which not in target.name:
            stock_copy(source, target)
            return
        whole = source.read()
        target.write(whole[: len(whole) // 2])
        target.flush()
        _die()

    def save_checkpoint(*args: Any, **kwargs: Any) -> None:
        if due():
            _die()
        stock_checkpoint(*args, **kwargs)

    if what == "save":
        torch.save = save  # type: ignore[assignment]
    elif what == "copy":
        shutil.copyfileobj = copyfileobj  # type: ignore[assignment]
    else:
        checkpoint_utils.save_checkpoint = save_checkpoint


def _record(path: str) -> None:
    """Write a digest of every inventory after every update."""
    import hashlib

    from fairseq_kerbs.training.sense_updates import SenseUpdates, kerbs_layers

    stock = SenseUpdates.after_update

    def after_update(self: Any, optimizer: Any, model: Any, update_num: int) -> None:
        stock(self, optimizer, model, update_num)
        digest = hashlib.sha256()
        for layer in kerbs_layers(model):
            for name, value in sorted(layer.inventory.state_dict().items()):
                digest.update(name.encode() + value.cpu().numpy().tobytes())
            owners = layer.inventory.word_of_sense.cpu().numpy().tobytes()
        with open(path, "a") as stream:
            allocation = hashlib.sha256(owners).hexdigest()
            stream.write(f"{update_num + 1} {allocation} {digest.hexdigest()}\n")

    SenseUpdates.after_update = after_update  # type: ignore[method-assign]


def _train(run: Run) -> None:
    """Be the training: does not return."""
    from fairseq_kerbs.utils.processes import (
        end_with_parent,  # not above: fairseq is to be imported first
    )

    end_with_parent()
    output = os.open(run.get("log", os.devnull), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    status = 1
    try:
        import fairseq_cli.train as program

        if "kill" in run:
            _arm(run["kill"])
        if "record" in run:
            _record(run["record"])
        if "rank" in run:  # what torchrun tells its processes
            os.environ |= {"RANK": str(run["rank"]), "LOCAL_RANK": "0", "WORLD_SIZE": "2"}
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(run["port"])}
        sys.argv = ["fairseq-train", *run["arguments"]]
        program.cli_main()
        status = 0
    except SystemExit as ending:
        status = ending.code if isinstance(ending.code, int) else int(ending.code is not None)
        if isinstance(ending.code, str):
            print(ending.code, file=sys.stderr)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def _start(run: Run) -> int:
    process = os.fork()
    if process == 0:
        _train(run)
    return process


def _status(process: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def main() -> None:
    """Read runs, make them, write their statuses."""
    runs: list[Run] = json.load(sys.stdin)
    # once, for all processes; the first optimizer would import torch._dynamo
    for module in ("fairseq_cli.train", "torch._dynamo", "fairseq_kerbs"):
        importlib.import_module(module)
    statuses: list[int] = []
    while runs:
        port = runs[0].get("port")
        together = [runs.pop(0)]
        while runs and port is not None and runs[0].get("port") == port:
            together.append(runs.pop(0))
        processes = [_start(run) for run in together]
        ended = []
        while runs and "beside" in runs[0]:
            while not Path(runs[0]["beside"]).exists():
                time.sleep(0.02)
            ended.append(_status(_start(runs.pop(0))))
        if ended:
            os.kill(processes[0], signal.SIGKILL)
        statuses += [*map(_status, processes), *ended]
    Path(os.environ["STATUSES"]).write_text(json.dumps(statuses))


if __name__ == "__main__":
    main()
