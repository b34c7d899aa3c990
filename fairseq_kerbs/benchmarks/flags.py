"""Flags of the benchmarks, their defaults, and what values make sense."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from fairseq_kerbs.errors import UserError

DESCRIPTIONS = {
    "likelihood": "loss and gradients of the output layer, next to the bare matrix products, "
    "naive autograd and fairseq's softmax",
    "step": "a whole training step of the Transformer, next to fairseq's",
    "decode": "beam search with the Transformer, next to fairseq's",
    "scaling": "time and memory of the likelihood against senses and against tokens",
}

_PAPER = {"dim": [288], "vocab": [10_000], "senses_per_word": [3.0]}
_TRANSFORMER = {"ffn": 507, "layers": 5, "heads": 2}
DEFAULTS: dict[str, dict[str, Any]] = {
    "likelihood": {**_PAPER, "tokens": [4096], "repetitions": 7},
    "step": {**_PAPER, **_TRANSFORMER, "tokens": [4096], "repetitions": 5},
    "decode": {
        **_PAPER,
        **_TRANSFORMER,
        "batch": [16, 64],
        "steps": 25,
        "beam": 5,
        "repetitions": 3,
    },
    "scaling": {
        **_PAPER,
        "senses_per_word": [1.0, 2.0, 3.0],
        "tokens": [1024, 2048, 4096, 8192, 16384],
        "repetitions": 5,
    },
}

_SMALL = {"dim": [32], "vocab": [400], "senses_per_word": [3.0], "repetitions": 3}
_SMALL_TRANSFORMER = {"ffn": 48, "layers": 2, "heads": 2}
QUICK: dict[str, dict[str, Any]] = {
    "likelihood": {**_SMALL, "tokens": [256]},
    "step": {**_SMALL, **_SMALL_TRANSFORMER, "tokens": [256]},
    "decode": {**_SMALL, **_SMALL_TRANSFORMER, "batch": [4], "steps": 5, "beam": 5},
    "scaling": {**_SMALL, "senses_per_word": [1.0, 3.0], "tokens": [256, 512, 1024]},
}

GRID: dict[str, Any] = {
    "dim": [288, 512],
    "vocab": [10_000, 32_000],
    "senses_per_word": [1.0, 2.0, 3.0],
    "tokens": [2048, 8192],
}

# flag, type, least value, more than one value?, help
_SIZES: dict[str, tuple[type, float, bool, str]] = {
    "dim": (int, 1, True, "size d of context vectors and embeddings"),
    "vocab": (int, 20, True, "words V of the vocabulary (source and target)"),
    "senses_per_word": (float, 1, True, "senses M as a multiple of V"),
    "tokens": (int, 16, True, "target tokens in a batch"),
    "batch": (int, 1, True, "sentences in a batch"),
    "steps": (int, 2, False, "decoding steps: all hypotheses are forced to this length"),
    "beam": (int, 1, False, "size of the beam"),
    "ffn": (int, 1, False, "inner width of the feed-forward layers"),
    "layers": (int, 1, False, "layers of encoder and decoder"),
    "heads": (int, 1, False, "attention heads"),
    "repetitions": (int, 1, False, "how often everything is timed"),
}


def add_flags(benchmark: str, parser: argparse.ArgumentParser) -> None:
    """The flags of one benchmark; sizes that are not given stay None until :func:`fill_in`."""
    parser.allow_abbrev = False
    for name, default in DEFAULTS[benchmark].items():
        kind, _, several, text = _SIZES[name]
        shown = " ".join(map(str, default)) if several else default
        parser.add_argument(
            _flag(name),
            type=kind,
            nargs="+" if several else None,
            metavar="N" if kind is int else "X",
            help=f"{text} [{shown}]",
        )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="[%(default)s]")
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "float16"),
        default="float32",
        help="of inputs and weights; in a training step float16 and bfloat16 are fairseq's --fp16 "
        "and --bf16 [%(default)s]",
    )
    parser.add_argument("--threads", type=int, metavar="N", help="threads of torch [its default]")
    parser.add_argument("--seed", type=int, default=1, help="of all random numbers [%(default)s]")
    parser.add_argument(
        "--contestants",
        nargs="+",
        metavar="NAME",
        help="only these take part; a wrong name lists all [all]",
    )
    parser.add_argument(
        "--no-memory", dest="memory", action="store_false", help="do not measure peak memory"
    )
    preset = parser.add_mutually_exclusive_group()
    preset.add_argument("--quick", action="store_true", help="tiny sizes: a smoke test of seconds")
    if benchmark in ("likelihood", "step"):
        preset.add_argument(
            "--grid",
            action="store_true",
            help="d 288 and 512, V 10,000 and 32,000, M 1, 2 and 3 V, 2,048 and 8,192 tokens",
        )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help=f"JSON file with everything [benchmark-{benchmark}.json]",
    )


def fill_in(args: argparse.Namespace) -> None:
    """Give the sizes that are not set their defaults, and check everything.

    Raises:
        UserError: a value makes no sense; the message names the flag.
    """
    preset = dict(DEFAULTS[args.benchmark])
    if args.quick:
        preset |= QUICK[args.benchmark]
    if getattr(args, "grid", False):
        for name in GRID:
            if getattr(args, name) is not None:
                raise UserError(f"--grid sets {_flag(name)} itself; leave one of the two out")
        preset |= GRID
    for name, value in preset.items():
        if getattr(args, name) is None:
            setattr(args, name, value)
        _check_size(name, getattr(args, name))
    _check_device(args)
    _check_model(args)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _check_size(name: str, value: Any) -> None:
    least = _SIZES[name][1]
    for number in value if isinstance(value, list) else [value]:
        if not least <= number < float("inf"):
            raise UserError(f"{_flag(name)} is {number}; use {least} or more")


def _check_device(args: argparse.Namespace) -> None:
    if args.threads is not None and args.threads < 1:
        raise UserError(f"--threads is {args.threads}; use 1 or more")
    if args.device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch finds no CUDA device here; use --device cpu")
    if args.benchmark in ("step", "decode") and args.device == "cpu" and args.dtype != "float32":
        raise UserError(
            f"--dtype {args.dtype}: on the CPU fairseq's models run in float32 only; leave it out "
            "or use --device cuda"
        )
    if args.benchmark == "scaling" and args.contestants is not None:
        raise UserError("--contestants: scaling has only one, KerBS; leave the flag out")


def _check_model(args: argparse.Namespace) -> None:
    if "heads" in DEFAULTS[args.benchmark]:
        for dim in args.dim:
            if dim % args.heads or dim % 2:
                raise UserError(
                    f"--dim {dim} must be even and a multiple of --heads ({args.heads})"
                )
        for factor in args.senses_per_word:
            if factor > 4:
                raise UserError(
                    f"--senses-per-word is {factor}; the models allow 4 senses a word at most"
                )
    if "beam" in DEFAULTS[args.benchmark] and 2 * args.beam >= min(args.vocab):
        raise UserError(f"--beam {args.beam} needs a --vocab of more than {2 * args.beam} words")
    if getattr(args, "steps", 0) > 1000:
        raise UserError(f"--steps is {args.steps}; the models take 1000 positions at most")
