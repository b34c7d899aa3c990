"""``fairseq-kerbs self-check``: whether a machine computes, trains and resumes as it should."""

from __future__ import annotations

import argparse
import logging
import math
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fairseq_kerbs.commands import arg, command
from fairseq_kerbs.utils.processes import find_program, run_program

if TYPE_CHECKING:
    import torch

    from fairseq_kerbs.benchmarks.likelihood import Inputs


class Found(NamedTuple):
    """What a line of the table says; ``right`` is None where there is nothing to judge."""

    value: str
    allowed: str = ""
    right: bool | None = None


SIZES: dict[str, dict[str, Any]] = {
    "small": {"dim": 7, "vocab": 61, "senses_per_word": 1.5, "tokens": 37},
    "larger": {"dim": 64, "vocab": 5000, "senses_per_word": 1.5, "tokens": 400},
    "of a card": {"dim": 512, "vocab": 32_000, "senses_per_word": 1.5, "tokens": 2048},
}
LIMITS = {"float32": 1e-5, "bfloat16": 8 * 2.0**-8, "float16": 8 * 2.0**-11}
"""Of ‖error‖ ÷ ‖right value‖: roundings of inputs of less than float32 are not errors."""

MODEL = {"dim": 32, "vocab": 1000, "senses_per_word": 2.0, "ffn": 64, "layers": 2, "heads": 2}
STEP, DECODE = {"tokens": 500}, {"batch": 8, "beam": 5, "steps": 20}

EVERY, UPDATES, CARD_LIMIT = 10, 20, 0.05
TRAINING: dict[str, Any] = {
    "max-tokens": "400", "warmup-updates": "4", "reallocation-at": ["4", "12"],
    "reallocation-interval": "4", "save-interval-updates": str(EVERY), "log-interval": "5",
    "disable-validation": True, "no-epoch-checkpoints": False, "num-workers": "0",
}  # fmt: skip
"""What the training has otherwise than ``configs/toy.yaml``."""

PRECISIONS = ("--fp16", "--bf16", "--amp", "--memory-efficient-fp16")


@command("self-check", arg.switch("--quick", "leave out times"))
def self_check(args: argparse.Namespace) -> int:
    """whether this machine computes, trains and resumes as it should: a table for an issue

    Compares losses and gradients with float64, measures times, and trains 20 updates with and
    without an interruption, on the first GPU if there is one. Prints a table to paste into an
    issue. The status is 1 if a line says OFF.
    """
    import torch

    from fairseq_kerbs.benchmarks.comparison import quiet

    quiet()
    logging.getLogger("fairseq_kerbs").setLevel(logging.ERROR)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    # all is tiny: on a busy machine threads would wait for each other most of the time
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="fairseq-kerbs-") as folder:
        for what, check in _checks(device, args.quick, Path(folder)):
            try:
                found = check()
            except Exception as error:  # the next line may say more of a card
                text = f"{type(error).__name__}: {error}".splitlines()[0]
                none = "not implemented for 'Half'" in text  # older torch, on a CPU
                found = Found(f"left out: {text}") if none else Found(text, "no error", False)
            verdict = {None: "", True: "ok", False: "OFF"}[found.right]
            wrong += found.right is False
            line = f"{what:<40} {found.value:<42} {found.allowed:<13} {verdict}"
            print(line.rstrip(), flush=True)
    print(f"{wrong} lines are OFF" if wrong else "all is as it should be")
    return 1 if wrong else 0


def _checks(device: str, quick: bool, folder: Path) -> Iterator[tuple[str, Callable[[], Found]]]:
    """The lines of the table: what each is about, and how it is found."""
    for what, value in _versions(device):
        yield what, partial(Found, value)
    sizes = [name for name in SIZES if device == "cuda" or name != "of a card"]
    for name in sizes:
        for dtype in LIMITS:
            for compiled in (False, True):
                how = "compiled" if compiled else "eager"
                check = partial(_check_likelihood, SIZES[name], dtype, device, compiled)
                yield f"likelihood, {name}, {dtype}, {how}", check
    if not quick:
        size = {**SIZES[sizes[-1]], "dtype": "float32"}
        yield "time of the likelihood", partial(_time, "likelihood", "lean", device, size)
        for benchmark, more in (("step", STEP), ("decode", DECODE)):
            size = {**MODEL, **more, "dtype": "float32"}
            title = "time of a training step" if benchmark == "step" else "time of beam-5 decoding"
            yield title, partial(_time, benchmark, "softmax", device, size)
    train = partial(_train, folder, device)
    yield f"training, {UPDATES} updates", partial(train, "straight")
    yield f"training, {EVERY} + {UPDATES - EVERY} updates", partial(_resume, folder, device)
    for flag in PRECISIONS if device == "cuda" else ():
        yield f"training, {flag}", partial(train, flag[2:], extra=(flag,))


def _versions(device: str) -> Iterator[tuple[str, str]]:
    import numpy
    import torch

    from fairseq_kerbs.utils.machine import describe_machine, describe_versions

    found, machine = describe_versions(), describe_machine(device)
    yield "Python", found["python"]
    yield "torch", f"{found['torch']}, CUDA {found['cuda']}"
    yield (
        "fairseq",
        f"{found['fairseq']}, {'our wheel' if 'kerbs' in str(found['fairseq']) else 'stock'}",
    )
    yield "fairseq_kerbs", f"{found['fairseq_kerbs']}, {found['revision']}"
    yield "numpy", numpy.__version__
    yield "CPU", f"{machine['cpu']}, {machine['instructions']}, {machine['threads']} threads"
    yield "C++ compiler", _compiler() or "none"
    for number in range(torch.cuda.device_count()):
        card = torch.cuda.get_device_properties(number)
        memory = f"{card.total_memory / 2**30:.0f} GiB"
        yield f"card {number}", f"{card.name}, {memory}, capability {card.major}.{card.minor}"
    if not torch.cuda.device_count():
        yield "cards", "none: everything runs on the CPU"
    nccl = torch.distributed.is_available() and torch.distributed.is_nccl_available()
    yield "NCCL", ".".join(map(str, torch.cuda.nccl.version())) if nccl else "none"


def _compiler() -> str | None:
    """The first line that the compiler which torch.compile calls says of itself."""
    program = shutil.which(os.environ.get("CXX", "g++"))
    if program is None:
        return None
    told = subprocess.run([program, "--version"], capture_output=True, text=True)
    return told.stdout.partition("\n")[0]


# ------------------------------------------------------------------ numbers


def _inputs(size: dict[str, Any], dtype: str, device: str) -> tuple[Inputs, Inputs]:
    """Inputs, θ as after a training, and the same numbers in float64."""
    from dataclasses import replace

    from fairseq_kerbs.benchmarks.likelihood import make_inputs

    low = make_inputs(**size, dtype=dtype, device=device, seed=1)
    low = replace(low, theta=low.trained_theta)
    names = ("h", "w", "words", "theta")
    wide = {name: getattr(low, name).detach().double().requires_grad_() for name in names}
    return low, replace(low, **wide)


def _check_likelihood(size: dict[str, Any], dtype: str, device: str, compiled: bool) -> Found:
    """Losses of all tokens, their sum and its gradients, with label smoothing and without."""
    import torch

    from fairseq_kerbs.benchmarks.likelihood import naive_losses
    from fairseq_kerbs.likelihood import compilation, kerbs_nll

    count = round(size["senses_per_word"] * size["vocab"])
    asked = os.environ.get(compilation.SWITCH)
    if compiled and (asked == "0" or not _compiler()):
        return Found(
            "left out: no compiler" if asked != "0" else f"left out: {compilation.SWITCH}=0"
        )
    low, wide = _inputs(size, dtype, device)
    given: Any = (low.h, low.w, low.theta, low.word_of_sense, low.target)
    errors: dict[str, float] = {}
    os.environ[compilation.SWITCH] = "1" if compiled else "0"
    try:
        if compiled and not compilation.worthwhile(count):
            return Found("left out: this torch, or a failure above")
        for smoothing in (0.0, 0.1):
            right = naive_losses(wide, smoothing)
            loss = kerbs_nll(*given, table=low.table, label_smoothing=smoothing)
            with torch.no_grad():
                options: Any = {"label_smoothing": smoothing, "reduction": "none"}
                each = kerbs_nll(*given, table=low.table, **options)
            ours = [loss, each, *torch.autograd.grad(loss, given[:3])]
            truth = [
                right.sum(),
                right,
                *torch.autograd.grad(right.sum(), (wide.h, wide.w, wide.theta)),
            ]
            for name, one, other in zip(("loss", "losses", "dh", "dW", "dθ"), ours, truth):
                errors[name] = max(errors.get(name, 0.0), _apart(one, other))
        broken = compiled and not compilation.worthwhile(count)
    finally:
        os.environ.pop(compilation.SWITCH)
        if asked is not None:
            os.environ[compilation.SWITCH] = asked
    if broken:
        return Found("torch.compile failed", "no error", False)
    worst, limit = max(errors, key=lambda name: errors[name]), LIMITS[dtype]
    return Found(f"{errors[worst]:.1e} of {worst}", f"<= {limit:.1e}", errors[worst] <= limit)


def _apart(one: torch.Tensor, other: torch.Tensor) -> float:
    """‖a − b‖ ÷ ‖b‖, infinite where that is no number."""
    one, other = one.detach().double(), other.detach().double()
    found = float((one - other).norm() / other.norm().clamp_min(1e-300))
    return found if math.isfinite(found) else math.inf


def _time(benchmark: str, over: str, device: str, size: dict[str, Any]) -> Found:
    """Median time of KerBS, and its ratio to a softmax of our own."""
    from fairseq_kerbs.benchmarks import comparison, likelihood

    inputs = {**size, "device": device, "seed": 1}
    if benchmark == "likelihood":
        entries = likelihood.entries(("kerbs", over), inputs)
    else:
        from fairseq_kerbs.benchmarks import translation  # fairseq takes seconds to import

        entries = translation.entries(benchmark, ("kerbs", over), inputs)
    result = comparison.compare(
        entries, [("kerbs", over)], repetitions=5, device=device, memory=False
    )
    seconds, ratio = result["contestants"]["kerbs"]["median"], result["ratios"][0]["median"]
    return Found(f"{seconds:.4f} s, {ratio:.2f} times a softmax's")


# ------------------------------------------------------------------ trainings


def _program(name: str, arguments: list[str], log: Path) -> None:
    with log.open("a") as stream:
        status = run_program([find_program(name), *arguments], stream, stream.fileno())
    if status:
        last = [line for line in log.read_text().splitlines() if line.strip()][-1:]
        raise RuntimeError(f"{name} ended with status {status}: {''.join(last)}")


def _train(
    folder: Path, device: str, name: str, updates: int = UPDATES, extra: tuple[str, ...] = ()
) -> Found:
    """A training on the toy corpus, in which senses move."""
    from fairseq_kerbs.configurations import CONFIGS, load_experiment, program_arguments
    from fairseq_kerbs.data.toy import write_toy_corpus

    text, data, log = folder / "text", folder / "bin", folder / f"{name}.log"
    if not data.exists():
        write_toy_corpus(text, train=1000, valid=4, test=1)
        arguments = ["-s", "de", "-t", "en", "--destdir", str(data)]
        arguments += [f"--{split}pref={text}/{split}" for split in ("train", "valid")]
        _program("fairseq-preprocess", arguments, folder / "preprocess.log")
    flags = {**load_experiment(CONFIGS / "toy.yaml").train, **TRAINING}
    flags |= {"save-dir": str(folder / name), "max-update": str(updates), "cpu": device == "cpu"}
    _program("fairseq-train", program_arguments(str(data), flags, extra), log)
    moved = [int(n) for n in re.findall(r"reallocation after .*?: (\d+) senses", log.read_text())]
    losses = [float(loss) for loss in re.findall(r"\bloss=([^,]+),", log.read_text())]
    value = f"loss {losses[0]:.2f} to {losses[-1]:.2f}, {sum(moved)} senses moved"
    return Found(value, "moves, falls", losses[-1] < losses[0] and sum(moved) > 0)


def _resume(folder: Path, device: str) -> Found:
    """The same training, stopped and resumed: the same bits on a CPU."""
    from fairseq_kerbs import torch_compat

    for updates in (EVERY, UPDATES):
        _train(folder, device, "resumed", updates)
    first, second = (
        dict(_tensors(torch_compat.load(folder / name / "checkpoint_last.pt", weights_only=False)))
        for name in ("resumed", "straight")
    )
    if first.keys() != second.keys():
        return Found("other tensors", "the same", False)
    differing = [name for name in first if not first[name].equal(second[name])]
    worst = max((_apart(first[name], second[name]) for name in differing), default=0.0)
    value = f"{len(differing)} of {len(first)} tensors differ, by {worst:.1e}"
    if device == "cpu":
        return Found(value, "the same bits", not differing)
    return Found(value, f"<= {CARD_LIMIT}", worst <= CARD_LIMIT)


def _tensors(state: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """What a training goes on from, by name."""
    if hasattr(state, "equal"):
        yield name, state
    elif isinstance(state, (dict, list)):
        parts: Any = state
        if not name:
            parts = {key: parts[key] for key in ("model", "last_optimizer_state")}
        for key, value in parts.items() if isinstance(parts, dict) else enumerate(parts):
            if not str(key).endswith("._float_tensor"):  # fairseq leaves it uninitialized
                yield from _tensors(value, f"{name}/{key}")
