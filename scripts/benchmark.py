#!/usr/bin/env python
"""Speed and memory of fairseq_kerbs next to its peers: likelihood, step, decode.

python scripts/benchmark.py likelihood --quick
python scripts/benchmark.py step --tokens 4096 --threads 2 --output step.json
"""

from __future__ import annotations

import argparse
import datetime
import math
import os
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

# the checkout that this script belongs to, installed or not
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

from fairseq_kerbs.evaluation.numerics import DTYPES
from fairseq_kerbs.utils.files import write_json
from fairseq_kerbs.utils.machine import describe_machine, describe_versions
from scripts.benchmarks import likelihood
from scripts.benchmarks.comparison import compare, quiet, tables
from scripts.benchmarks.contestants import entries

_LSTM = ("kerbs-lstm", "softmax-lstm")
_LUONG = ("kerbs-lstm-luong", "softmax-lstm-luong")
BENCHMARKS: dict[str, tuple[str, tuple[str, ...]]] = {
    "likelihood": (
        "loss and gradients of the output layer, next to the bare matrix products, naive autograd "
        "and fairseq's softmax",
        tuple(likelihood.CONTESTANTS),
    ),
    "step": (
        "a whole training step of the Transformer, next to fairseq's, and of the LSTM",
        ("kerbs", "softmax", "stock", "kerbs-smoothed", "stock-smoothed", *_LSTM, *_LUONG),
    ),
    "decode": (
        "beam search with the Transformer, next to fairseq's, and with the LSTM",
        ("kerbs", "kerbs-prior", "mos", "softmax", "stock", *_LSTM, *_LUONG),
    ),
}
"""What a benchmark measures, and its systems."""

RATIOS = [
    *product(("kerbs", "kerbs-trained", "kerbs-smoothed"), [likelihood.PRODUCTS]),
    *product(["kerbs"], ("naive", "lean", "softmax", "stock")),
    *product(["kerbs-prior", "mos"], ("softmax", "stock")),
    _LSTM,
    _LUONG,
    *zip(_LSTM, _LUONG),  # attention of Bahdanau et al. over that of Luong et al.
    ("lean", "stock"),
    ("softmax", "stock"),
    ("kerbs-smoothed", "stock-smoothed"),
]
"""Like for like are those over "lean" and "softmax", our own code with one sense a word; "stock" is
fairseq's code, so that ratios over it also count what our code saves. "mos", a mixture of three
softmaxes, is in the decoding benchmark because Gao et al. (2019) report twice the time there."""

_ALL = tuple(BENCHMARKS)
_MODEL = ("step", "decode")
_SIZES: dict[str, tuple[str, Any, Any, tuple[str, ...]]] = {
    "dim": ("size d of context vectors and embeddings", 288, 64, _ALL),
    "vocab": ("words V of the vocabulary (source and target)", 10_000, 2000, _ALL),
    "senses-per-word": ("senses M as a multiple of V", 3.0, 3.0, _ALL),
    "ffn": ("inner width of the feed-forward layers", 507, 48, _MODEL),
    "layers": ("layers of encoder and decoder", 5, 2, _MODEL),
    "hidden": ("hidden size of the LSTM, which has one layer", 512, 48, _MODEL),
    "heads": ("attention heads", 2, 2, _MODEL),
    "tokens": ("target tokens in a batch", 4096, 512, ("likelihood", "step")),
    "length": ("mean number of tokens of a sentence", 23, 23, _MODEL),
    "batch": ("sentences in a batch", 16, 4, ("decode",)),
    "beam": ("size of the beam", 5, 5, ("decode",)),
    "steps": ("decoding steps: all hypotheses are this long", 25, 5, ("decode",)),
    "repetitions": ("how often everything is timed", 5, 3, _ALL),
}
"""What each is, its default, its default with --quick, and the benchmarks that have it."""

_NOT_INPUTS = {"benchmark", "contestants", "threads", "memory", "repetitions", "output", "quick"}


def build_parser(quick: bool = False) -> argparse.ArgumentParser:
    """The parser with its three subcommands; ``quick`` chooses the defaults of the sizes."""
    parser = argparse.ArgumentParser(
        prog="benchmark.py",
        description="Speed and memory of fairseq_kerbs next to its peers, as ratios of times taken "
        "in one run. Prints tables and writes everything to a JSON file.",
    )
    commands = parser.add_subparsers(required=True, metavar="BENCHMARK", dest="benchmark")
    for benchmark, (text, names) in BENCHMARKS.items():
        command = commands.add_parser(benchmark, help=text, description=text, allow_abbrev=False)
        for name, (what, full, small, having) in _SIZES.items():
            if benchmark in having:
                _add_size(command, f"--{name}", small if quick else full, what)
        command.add_argument(
            "--device", choices=("cpu", "cuda"), default="cpu", help="[%(default)s]"
        )
        command.add_argument(
            "--dtype",
            choices=tuple(DTYPES),
            default=next(iter(DTYPES)),
            help="of inputs and weights; in a training step fairseq's --fp16 and --bf16 "
            "[%(default)s]",
        )
        _add_size(command, "--threads", torch.get_num_threads(), "threads of torch")
        command.add_argument(
            "--seed", type=int, default=1, metavar="N", help="of all random numbers [%(default)s]"
        )
        command.add_argument(
            "--contestants",
            nargs="+",
            choices=names,
            default=names,
            metavar="NAME",
            help=f"measure only these systems, of {', '.join(names)} [all]",
        )
        command.add_argument(
            "--memory",
            action=argparse.BooleanOptionalAction,
            default=not quick,
            help="measure peak memory [yes; with --quick no]",
        )
        command.add_argument(
            "-o",
            "--output",
            type=Path,
            default=Path(f"benchmark-{benchmark}.json"),
            metavar="FILE",
            help="JSON [%(default)s]",
        )
        command.add_argument(
            "--quick",
            action="store_true",
            help="small sizes, which take seconds and show what is measured",
        )
    return parser


def _add_size(parser: argparse.ArgumentParser, flag: str, default: int | float, text: str) -> None:
    """Add a flag with a number of the default's kind, at least 1."""
    kind = type(default)

    def size(text: str) -> int | float:
        if not 1 <= kind(text) < math.inf:
            raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
        return kind(text)

    size.__name__ = kind.__name__  # argparse says "invalid int value"
    parser.add_argument(flag, type=size, default=default, metavar="N", help=f"{text} [%(default)s]")


def main(argv: Sequence[str] | None = None) -> None:
    """Run a benchmark, print its tables and write its figures."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    args = build_parser("--quick" in arguments).parse_args(arguments)
    quiet()
    torch.set_num_threads(args.threads)
    inputs = {name: value for name, value in vars(args).items() if name not in _NOT_INPUTS}
    how = {name: getattr(args, name) for name in ("device", "memory", "repetitions")}
    settings = {**inputs, **how, "threads": args.threads}
    names = [name for name in BENCHMARKS[args.benchmark][1] if name in args.contestants]
    result = compare(entries(args.benchmark, names, inputs), RATIOS, **how)
    machine = describe_machine(args.device)
    print(", ".join(f"{name} {value}" for name, value in settings.items()), end="\n\n")
    print(f"{tables(result)}\n\nload average {machine['load_average'][0]}")
    compiled = os.environ.get("FAIRSEQ_KERBS_COMPILE")  # 0: the likelihood is not compiled
    document = {
        "benchmark": args.benchmark,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": machine,
        "versions": describe_versions(),
        "settings": {**settings, "FAIRSEQ_KERBS_COMPILE": compiled},
    }
    write_json(args.output, document | result)
    print(f"wrote {args.output}")


if __name__ == "__main__":
    main()
