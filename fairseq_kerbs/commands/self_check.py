"""``fairseq-kerbs self-check``: whether a machine computes, trains and resumes as it should."""

from __future__ import annotations

import argparse
import math
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_kerbs.commands import arg, command
from fairseq_kerbs.utils.processes import find_program, run_program


class Found(NamedTuple):
    """What a line of the table says; ``right`` is None where there is nothing to judge."""

    value: str
    allowed: str = ""
    right: bool | None = None


SIZES: dict[str, dict[str, Any]] = {
    "small": {"dim": 7, "vocab": 61, "senses_per_word": 1.5, "tokens": 37},
    "larger": {"dim": 64, "vocab": 5000, "senses_per_word": 1.5, "tokens": 400},
    "on a card": {"dim": 512, "vocab": 32_000, "senses_per_word": 1.5, "tokens": 1024},
}
LIMITS = {"float32": 1e-5, "bfloat16": 8 * 2.0**-8, "float16": 8 * 2.0**-11}
"""Of ‖error‖ ÷ ‖right value‖ with inputs of a dtype; their own rounding is no error."""

MODEL = {"dim": 32, "vocab": 1000, "senses_per_word": 2.0, "ffn": 64, "layers": 2, "heads": 2}
TIMED = {
    "likelihood": ("lean", {}),
    "step": ("softmax", {**MODEL, "tokens": 500}),
    "decode": ("softmax", {**MODEL, "batch": 8, "beam": 5, "steps": 20}),
}
"""Benchmarks: over which contestant, and sizes."""

EVERY, UPDATES, CARD_LIMIT = 10, 20, 0.05  # updates; ‖difference‖ ÷ ‖all‖
TRAINING: dict[str, Any] = {
    "max-tokens": "400", "warmup-updates": "4", "reallocation-at": ["4", "12"],
    "reallocation-interval": "4", "save-interval-updates": str(EVERY), "log-interval": "5",
    "disable-validation": True, "num-workers": "0",
}  # fmt: skip
"""What the training has otherwise than ``configs/toy.yaml``."""

PRECISIONS = ("--fp16", "--bf16", "--amp", "--memory-efficient-fp16")


@command("self-check", arg.switch("--quick", "skip the time measurements"))
def self_check(args: argparse.Namespace) -> int:
    """test computation, training and resuming on this machine

    Compares losses and gradients with float64, measures times, and trains 20 updates with and
    without an interruption, on the first GPU if there is one. Prints a table for bug reports. The
    exit status is 1 if a line says OFF.
    """
    import torch

    from fairseq_kerbs.benchmarks.comparison import quiet

    quiet()
    # all is tiny: on a busy machine threads would wait for each other most of the time
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="fairseq-kerbs-") as folder:
        device = "cuda" if torch.cuda.is_available() else "cpu"
        for what, check in _checks(device, args.quick, Path(folder)):
            try:
                found = check()
            except Exception as error:  # the next line may say more of a card
                text = " ".join(f"{type(error).__name__}: {error}".split())
                missing = "not implemented for 'Half'" in text  # older torch on a CPU
                found = Found(text, "" if missing else "no error", None if missing else False)
            verdict = {None: "", True: "ok", False: "OFF"}[found.right]
            wrong += found.right is False
            print(
                f"{what:<40} {found.value:<42} {found.allowed:<13} {verdict}".rstrip(), flush=True
            )
    print(f"OFF: {wrong}" if wrong else "all is as it should be")
    return 1 if wrong else 0


def _checks(device: str, quick: bool, folder: Path) -> Iterator[tuple[str, Callable[[], Found]]]:
    """The lines of the table: what each is about, and how it is found."""
    yield from ((what, partial(Found, value)) for what, value in _versions(device))
    sizes = [name for name in SIZES if device == "cuda" or name != "on a card"]
    for name in sizes:
        for dtype in LIMITS:
            inputs = {**SIZES[name], "dtype": dtype, "device": device, "seed": 1}
            for compiled in (False, True):
                what = f"likelihood, {name}, {dtype}, {'compiled' if compiled else 'eager'}"
                yield what, partial(_check_likelihood, inputs, compiled)
    for benchmark, (over, size) in () if quick else TIMED.items():
        inputs = {"dtype": "float32", "device": device, "seed": 1, **(size or SIZES[sizes[-1]])}
        yield f"time: {benchmark}", partial(_time, benchmark, over, inputs)
    yield f"training, {UPDATES} updates", partial(_train, folder, device, "straight")
    yield f"training, {EVERY} + {UPDATES - EVERY} updates", partial(_resume, folder, device)
    for flag in PRECISIONS if device == "cuda" else ():
        yield f"training, {flag}", partial(_train, folder, device, flag[2:], extra=(flag,))


def _versions(device: str) -> Iterator[tuple[str, str]]:
    import numpy
    import torch

    from fairseq_kerbs.utils.machine import describe_machine, describe_versions

    found, machine = describe_versions(), describe_machine(device)
    yield "Python", found["python"]
    yield "torch, CUDA", f"{found['torch']}, {found['cuda']}"
    kind = "our wheel" if "kerbs" in str(found["fairseq"]) else "stock"
    yield "fairseq", f"{found['fairseq']}, {kind}"
    yield "fairseq_kerbs", f"{found['fairseq_kerbs']}, {found['revision']}"
    yield "numpy", numpy.__version__
    yield "C++ compiler", _compiler() or "none"
    yield "CPU", f"{machine['cpu']}, {machine['instructions']}, {machine['usable_cores']} cores"
    cards = range(torch.cuda.device_count())
    for card in map(torch.cuda.get_device_properties, cards):
        memory = f"{card.total_memory / 2**30:.0f} GiB"
        yield "card", f"{card.name}, {memory}, capability {card.major}.{card.minor}"
    if not cards:
        yield "card", "none: everything runs on the CPU"
    nccl = torch.distributed.is_available() and torch.distributed.is_nccl_available()
    yield "NCCL", str(torch.cuda.nccl.version()) if nccl else "none"


def _compiler() -> str | None:
    """What the compiler that torch.compile calls says of itself."""
    program = shutil.which(os.environ.get("CXX", "g++"))
    if program is None:
        return None
    told = subprocess.run([program, "--version"], capture_output=True, text=True)
    return told.stdout.partition("\n")[0]


# ------------------------------------------------------------------ numbers


@contextmanager
def _switched(name: str, value: str) -> Iterator[None]:
    """An environment variable with a value for a while."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        os.environ.pop(name)
        os.environ.update({} if before is None else {name: before})


def _check_likelihood(size: dict[str, Any], compiled: bool) -> Found:
    """Losses and gradients, without and with label smoothing, next to the written-down equations in
    float64."""
    from fairseq_kerbs.benchmarks.likelihood import make_inputs
    from fairseq_kerbs.likelihood import compilation

    if compiled and (os.environ.get(compilation.SWITCH) == "0" or not _compiler()):
        return Found(f"left out: {compilation.SWITCH} is 0, or no compiler")
    low = make_inputs(**size)
    low = replace(low, theta=low.trained_theta)
    names = ("h", "w", "words", "theta")
    leaves = {name: getattr(low, name).detach().double().requires_grad_() for name in names}
    with _switched(compilation.SWITCH, str(int(compiled))):
        if compiled and not compilation.worthwhile(len(low.w)):
            return Found("left out: old torch, or it failed above")
        errors = _errors(low, replace(low, **leaves))
        if compiled and not compilation.worthwhile(len(low.w)):
            return Found("torch.compile failed", "no error", False)
    error, name = max(errors)
    limit = LIMITS[size["dtype"]]
    return Found(f"{error:.1e} of {name}", f"<= {limit:.1e}", error <= limit)


def _errors(low: Any, wide: Any) -> list[tuple[float, str]]:
    """Relative errors of what the likelihood makes of inputs, which ``wide`` has in float64."""
    import torch

    from fairseq_kerbs.benchmarks.likelihood import naive_losses
    from fairseq_kerbs.likelihood import kerbs_nll

    given, found = (low.h, low.w, low.theta, low.word_of_sense, low.target), []
    for smoothing in (0.0, 0.1):
        nll = partial(kerbs_nll, *given, label_smoothing=smoothing)
        loss, right = nll(), naive_losses(wide, smoothing)
        with torch.no_grad():
            each = nll(reduction="none")
        ours = [loss, each, *torch.autograd.grad(loss, given[:3])]
        truth = torch.autograd.grad(right.sum(), (wide.h, wide.w, wide.theta))
        for name, *pair in zip(
            ("loss", "losses", "dh", "dW", "dθ"), ours, [right.sum(), right, *truth]
        ):
            found.append((_apart(*pair), name))
    return found


def _apart(one: Any, other: Any) -> float:
    """‖a − b‖ ÷ ‖b‖ of two tensors, infinite where that is no number."""
    one, other = one.detach().double(), other.detach().double()
    found = float((one - other).norm() / other.norm().clamp_min(1e-300))
    return found if math.isfinite(found) else math.inf


def _time(benchmark: str, over: str, inputs: dict[str, Any]) -> Found:
    """Median time of KerBS, and its ratio to that of our own softmax."""
    from fairseq_kerbs.benchmarks import comparison, likelihood, translation

    names = ("kerbs", over)
    if benchmark == "likelihood":
        entries = likelihood.entries(names, inputs)
    else:
        entries = translation.entries(benchmark, names, inputs)
    how = {"device": inputs["device"], "memory": False}
    result = comparison.compare(entries, [names], repetitions=5, **how)
    seconds, ratio = result["contestants"]["kerbs"]["median"], result["ratios"][0]["median"]
    return Found(f"{seconds:.4f} s, {ratio:.2f} times a softmax's")


# ------------------------------------------------------------------ trainings


def _program(name: str, arguments: list[str], log: Path) -> None:
    """Run a program of fairseq's, and raise a RuntimeError with its last line if it fails."""
    with log.open("a") as stream:
        status = run_program([find_program(name), *arguments], stream, stream.fileno())
    if status:
        lines = log.read_text(encoding="utf-8").split("\n")
        raise RuntimeError(f"{name}, status {status}: {[*filter(str.strip, lines), ''][-2]}")


def _train(
    folder: Path, device: str, name: str, updates: int = UPDATES, extra: tuple[str, ...] = ()
) -> Found:
    """A training on the toy corpus, in which senses move."""
    from fairseq_kerbs.configurations import CONFIGS, load_experiment, program_arguments
    from fairseq_kerbs.data.toy import write_toy_corpus

    text, data, log = folder / "text", folder / "bin", folder / f"{name}.log"
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
    return Found(value, "falls, moves", losses[-1] < losses[0] and moved > 0)


def _resume(folder: Path, device: str) -> Found:
    """The same training, stopped and resumed: the same bits on a CPU."""
    import torch

    from fairseq_kerbs import torch_compat

    for updates in (EVERY, UPDATES):
        _train(folder, device, "resumed", updates)
    files = [folder / name / "checkpoint_last.pt" for name in ("resumed", "straight")]
    states = [torch_compat.load(file, weights_only=False) for file in files]
    first, second = (dict(_tensors(s["model"], s["last_optimizer_state"])) for s in states)
    differing = [n for n in {**first, **second} if not first[n].equal(second[n])]
    flat = (
        torch.cat([v.double().flatten() for v in values.values()]) for values in (first, second)
    )
    worst = _apart(*flat)
    right = worst <= CARD_LIMIT if device == "cuda" else not differing
    value = f"{len(differing)} of {len(first)} tensors differ, by {worst:.1e}"
    return Found(value, f"<= {CARD_LIMIT}" if device == "cuda" else "the same bits", right)


def _tensors(*states: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """All tensors of nested dictionaries and lists, by name."""
    for number, state in enumerate(states):
        if hasattr(state, "equal"):
            yield f"{name}/{number}", state
        elif isinstance(state, dict):
            for key, value in state.items():
                if not str(key).endswith("._float_tensor"):  # fairseq leaves it uninitialized
                    yield from _tensors(value, name=f"{name}/{number}/{key}")
