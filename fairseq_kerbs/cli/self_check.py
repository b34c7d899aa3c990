"""``fairseq-kerbs self-check``: test computation, training and resuming on a machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import click

from fairseq_kerbs.cli.parameters import Command, examples
from fairseq_kerbs.utils.processes import find_program, run_program


class Outcome(NamedTuple):
    """What a line of the table says; ``right`` is None where there is nothing to judge."""

    value: str
    allowed: str = ""
    right: bool | None = None


SIZES: dict[str, dict[str, Any]] = {
    "small": {"dim": 7, "vocab": 61, "senses_per_word": 1.5, "tokens": 37},
    "larger": {"dim": 64, "vocab": 5000, "senses_per_word": 1.5, "tokens": 400},
    "on a GPU": {"dim": 512, "vocab": 32_000, "senses_per_word": 1.5, "tokens": 1024},
}

REPETITIONS = 5
"""Of the time measurement."""

HALF = 10  # updates after which a training is stopped
UPDATES = 20  # of a whole training
GPU_LIMIT = 0.05  # ‖difference‖ ÷ ‖all‖ on a GPU
TRAINING: dict[str, Any] = {  # what is otherwise than in configs/toy.yaml
    "max-tokens": "400",
    "warmup-updates": "4",
    "reallocation-at": ["4", "12"],
    "reallocation-interval": "4",
    "save-interval-updates": str(HALF),
    "log-interval": "5",
    "disable-validation": True,
    "num-workers": "0",
}
PRECISIONS = ("--fp16", "--bf16", "--amp", "--memory-efficient-fp16")


@click.command("self-check", cls=Command, epilog=examples("self-check --quick"))
@click.option("--quick", is_flag=True, help="skip the time measurements")
def self_check(quick: bool) -> int:
    """Test computation, training and resuming on this machine.

    Compares losses and gradients with float64, measures times, and trains 20 updates with and
    without an interruption, on the first GPU if there is one. Prints a table for bug reports. The
    exit status is 1 if a line says WRONG.
    """
    import torch

    warnings.filterwarnings("ignore")  # what torch says of its own future, between the lines
    # all is tiny: on a busy machine threads would wait for each other most of the time
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    wrong = 0
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with tempfile.TemporaryDirectory(prefix="fairseq-kerbs-") as folder:
        for what, find in _lines(device, quick, Path(folder)):
            try:
                outcome = find()
            except Exception as error:  # the next line may say more of a GPU
                text = " ".join(f"{type(error).__name__}: {error}".split())
                missing = "not implemented for 'Half'" in text  # older torch on a CPU
                outcome = Outcome(text) if missing else Outcome(text, "no error", False)
            if outcome.right is None:
                verdict = ""
            elif outcome.right:
                verdict = "ok"
            else:
                verdict = "WRONG"
                wrong += 1
            line = f"{what:<40} {outcome.value:<42} {outcome.allowed:<13} {verdict}"
            print(line.rstrip(), flush=True)
    print(f"WRONG: {wrong}" if wrong else "all is as it should be")
    return 1 if wrong else 0


def _lines(device: str, quick: bool, folder: Path) -> Iterator[tuple[str, Callable[[], Outcome]]]:
    """What each line of the table is about, and what finds its outcome."""
    yield from ((what, partial(Outcome, value)) for what, value in _versions(device))
    sizes = [name for name in SIZES if device == "cuda" or name != "on a GPU"]
    for name in sizes:
        for dtype in ("float32", "bfloat16", "float16"):
            inputs = {**SIZES[name], "dtype": dtype, "device": device, "seed": 1}
            for compiled in (False, True):
                what = f"likelihood, {name}, {dtype}, {'compiled' if compiled else 'eager'}"
                yield what, partial(_likelihood, inputs, compiled)
    if not quick:
        inputs = {**SIZES[sizes[-1]], "dtype": "float32", "device": device, "seed": 1}
        yield "time: likelihood", partial(_time, inputs)
    yield f"training, {UPDATES} updates", partial(_train, folder, device, "straight")
    yield f"training, {HALF} + {UPDATES - HALF} updates", partial(_resume, folder, device)
    if device == "cuda":
        for flag in PRECISIONS:
            yield f"training, {flag}", partial(_train, folder, device, flag[2:], extra=(flag,))


def _versions(device: str) -> Iterator[tuple[str, str]]:
    import numpy
    import torch

    from fairseq_kerbs.utils.machine import describe_machine, describe_versions

    versions = describe_versions()
    machine = describe_machine(device)
    kind = "our wheel" if "kerbs" in str(versions["fairseq"]) else "stock"
    yield "Python", versions["python"]
    yield "torch, CUDA", f"{versions['torch']}, {versions['cuda']}"
    yield "fairseq", f"{versions['fairseq']}, {kind}"
    yield "fairseq_kerbs", f"{versions['fairseq_kerbs']}, {versions['revision']}"
    yield "numpy", numpy.__version__
    yield "C++ compiler", _compiler() or "none"
    yield "CPU", f"{machine['cpu']}, {machine['instructions']}, {machine['usable_cores']} cores"
    for gpu in map(torch.cuda.get_device_properties, range(torch.cuda.device_count())):
        memory = f"{gpu.total_memory / 2**30:.0f} GiB"
        yield "GPU", f"{gpu.name}, {memory}, capability {gpu.major}.{gpu.minor}"
    if not torch.cuda.device_count():
        yield "GPU", "none: everything runs on the CPU"
    nccl = torch.distributed.is_available() and torch.distributed.is_nccl_available()
    yield "NCCL", str(torch.cuda.nccl.version()) if nccl else "none"


def _compiler() -> str | None:
    """What the compiler that torch.compile calls says of itself."""
    program = shutil.which(os.environ.get("CXX", "g++"))
    if not program:
        return None
    told = subprocess.run([program, "--version"], capture_output=True, text=True)
    return told.stdout.partition("\n")[0]


def _likelihood(size: dict[str, Any], compiled: bool) -> Outcome:
    """Compare losses and gradients with the equations, written down in float64.

    Both are compared without and with label smoothing.
    """
    import torch

    from fairseq_kerbs.evaluation import numerics
    from fairseq_kerbs.likelihood import compilation

    if compiled and (os.environ.get(compilation.SWITCH) == "0" or not _compiler()):
        return Outcome(f"left out: {compilation.SWITCH} is 0, or no compiler")
    inputs = numerics.make_inputs(**size)
    with _environment(compilation.SWITCH, str(int(compiled))):
        senses = len(inputs.w)
        words = len(inputs.table.senses)
        if compiled and not compilation.worthwhile(senses, words):
            return Outcome("left out: old torch, or it failed above")
        if compiled:  # otherwise torch stops compiling after eight shapes and dtypes
            torch._dynamo.reset()
        error, name = max(numerics.errors(inputs))
        if compiled and not compilation.worthwhile(senses, words):
            return Outcome("torch.compile failed", "no error", False)
    limit = numerics.LIMITS[size["dtype"]]
    return Outcome(f"{error:.1e} of {name}", f"<= {limit:.1e}", error <= limit)


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """Set an environment variable within the context."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


def _time(size: dict[str, Any]) -> Outcome:
    """Median time of the loss and its gradients, beside the bare matrix products that it needs."""
    from statistics import median

    import torch
    from torch.utils.benchmark import timer  # waits for the device

    from fairseq_kerbs.evaluation import numerics

    inputs = numerics.make_inputs(**size)
    seconds: list[float] = []
    ratios: list[float] = []
    for _ in range(1 + REPETITIONS):
        inputs.drop_gradients()
        started = timer()
        numerics.kerbs(inputs).backward()
        ended = timer()
        with torch.no_grad():
            numerics.products(inputs)
        seconds.append(ended - started)
        ratios.append(seconds[-1] / (timer() - ended))
    # the first repetition compiles
    value = f"{median(seconds[1:]):.4f} s, {median(ratios[1:]):.2f} times three products"
    return Outcome(value)


def _program(name: str, arguments: list[str], log: Path) -> None:
    """Run a program of fairseq's, and raise a RuntimeError with its last line if it fails."""
    with log.open("a") as stream:
        status = run_program([find_program(name), *arguments], stream, stream.fileno())
    if status:
        last = log.read_text(encoding="utf-8").strip().rpartition("\n")[2]
        raise RuntimeError(f"{name}, status {status}: {last}")


def _train(
    folder: Path, device: str, name: str, updates: int = UPDATES, extra: tuple[str, ...] = ()
) -> Outcome:
    """A training on the toy corpus, in which senses move."""
    from fairseq_kerbs.configurations import CONFIGS, load_experiment, program_arguments
    from fairseq_kerbs.data.toy import write_toy_corpus

    text = folder / "text"
    data = folder / "bin"
    log = folder / f"{name}.log"
    if not data.exists():
        write_toy_corpus(text, train=1000, valid=4, test=1)
        sides = ["-s", "de", "-t", "en", "--destdir", str(data)]
        splits = [f"--{split}pref={text}/{split}" for split in ("train", "valid")]
        _program("fairseq-preprocess", [*sides, *splits], folder / "preprocess.log")
    flags = {**load_experiment(CONFIGS / "toy.yaml").train, **TRAINING}
    flags |= {"save-dir": str(folder / name), "max-update": str(updates), "cpu": device == "cpu"}
    _program("fairseq-train", program_arguments(str(data), flags, extra), log)
    told = log.read_text(encoding="utf-8")
    moved = sum(map(int, re.findall(r"reallocation after .*?: (\d+) senses", told)))
    losses = [float(loss) for loss in re.findall(r"\bloss=([^,]+),", told)]
    value = f"loss {losses[0]:.2f} to {losses[-1]:.2f}, {moved} senses moved"
    return Outcome(value, "falls, moves", losses[-1] < losses[0] and moved > 0)


def _resume(folder: Path, device: str) -> Outcome:
    """The same training, stopped and resumed: the same bits on a CPU."""
    from fairseq_kerbs.evaluation.numerics import distance

    for updates in (HALF, UPDATES):
        _train(folder, device, "resumed", updates)
    resumed = _tensors_of(folder / "resumed" / "checkpoint_last.pt")
    straight = _tensors_of(folder / "straight" / "checkpoint_last.pt")
    differing = sum(not resumed[name].equal(straight[name]) for name in {**resumed, **straight})
    worst = distance(_as_one(resumed), _as_one(straight))
    value = f"{differing} of {len(resumed)} tensors differ, by {worst:.1e}"
    if device == "cuda":
        return Outcome(value, f"<= {GPU_LIMIT}", worst <= GPU_LIMIT)
    return Outcome(value, "the same bits", differing == 0)


def _tensors_of(file: Path) -> dict[str, Any]:
    """Tensors of a checkpoint of this machine, see :func:`_tensors`."""
    from fairseq_kerbs import torch_compat

    return _tensors(torch_compat.load(file, weights_only=False))


def _as_one(tensors: dict[str, Any]) -> Any:
    """All values of some tensors, [N], in float64."""
    import torch

    return torch.cat([tensor.double().flatten() for tensor in tensors.values()])


def _tensors(state: dict[str, Any]) -> dict[str, Any]:
    """Parameters, buffers and the optimizer's moments of a checkpoint, by name."""
    moments = state["last_optimizer_state"]["state"].items()
    named = {f"{n} {name}": value for n, entry in moments for name, value in entry.items()}
    return {
        name: value
        for name, value in {**state["model"], **named}.items()
        # fairseq leaves the latter uninitialized
        if hasattr(value, "equal") and not name.endswith("._float_tensor")
    }
