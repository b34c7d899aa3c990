"""The command line of ``scripts/benchmark.py``: flags, and the run of a benchmark."""

from __future__ import annotations

import argparse
import datetime
import os
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch

from fairseq_kerbs.benchmarks import likelihood
from fairseq_kerbs.benchmarks.comparison import Entries, compare, quiet, tables
from fairseq_kerbs.utils.files import write_json
from fairseq_kerbs.utils.machine import describe_machine, describe_versions, load_average

_LSTM = ("kerbs-lstm", "softmax-lstm")
BENCHMARKS: dict[str, tuple[str, tuple[str, ...]]] = {
    "likelihood": (
        "loss and gradients of the output layer, next to the bare matrix products, naive autograd "
        "and fairseq's softmax",
        (likelihood.PRODUCTS, *likelihood.CONTESTANTS),
    ),
    "step": (
        "a whole training step of the Transformer, next to fairseq's, and of the LSTM",
        ("kerbs", "softmax", "stock", "kerbs-smoothed", "stock-smoothed", *_LSTM),
    ),
    "decode": (
        "beam search with the Transformer, next to fairseq's, and with the LSTM",
        ("kerbs", "kerbs-prior", "softmax", "stock", *_LSTM),
    ),
    "scaling": (
        "time and memory of the likelihood against senses (1/3, 2/3 and all of --senses-per-word) "
        "and against tokens (1/4 to 4 times --tokens)",
        (),
    ),
}
"""What a benchmark measures, and its contestants."""

RATIOS = [
    *product(("kerbs", "kerbs-trained", "kerbs-smoothed"), [likelihood.PRODUCTS]),
    *product(["kerbs"], ("naive", "lean", "softmax", "stock")),
    *product(["kerbs-prior"], ("softmax", "stock")),
    _LSTM,
    *(("lean", "stock"), ("softmax", "stock"), ("kerbs-smoothed", "stock-smoothed")),
]
"""Like for like are those over "lean" and "softmax", our own code with one sense a word; "stock" is
fairseq's code, so that ratios over it also count what our code saves."""
OVER = {
    likelihood.PRODUCTS: "the three matrix products that any exact training needs",
    "naive": "the equations of KerBS written down in torch",
    "lean": "a softmax over words in our own code: what the senses cost",
    "softmax": "a softmax over words in our own code: what the senses cost",
    "softmax-lstm": "the same LSTM with a softmax over words: what the senses cost",
    "stock": "fairseq's own softmax",
    "stock-smoothed": "fairseq's own softmax with label smoothing",
}
"""What the time of a ratio is divided by."""

_ALL, _MODEL = tuple(BENCHMARKS), ("step", "decode")
COMPILE = "FAIRSEQ_KERBS_COMPILE"  # 0: the likelihood is not compiled
_SIZES: dict[str, tuple[str, Any, Any, tuple[str, ...]]] = {
    "dim": ("size d of context vectors and embeddings", 288, 64, _ALL),
    "vocab": ("words V of the vocabulary (source and target)", 10_000, 2000, _ALL),
    "senses_per_word": ("senses M as a multiple of V", 3.0, 3.0, _ALL),
    "ffn": ("inner width of the feed-forward layers", 507, 48, _MODEL),
    "layers": ("layers of encoder and decoder", 5, 2, _MODEL),
    "heads": ("attention heads", 2, 2, _MODEL),
    "tokens": ("target tokens in a batch", 4096, 512, ("likelihood", "step", "scaling")),
    "batch": ("sentences in a batch", 16, 4, ("decode",)),
    "beam": ("size of the beam", 5, 5, ("decode",)),
    "steps": ("decoding steps: all hypotheses are this long", 25, 5, ("decode",)),
    "repetitions": ("how often everything is timed", 5, 3, _ALL),
}
"""What each is, its default, its default with --quick, and the benchmarks that have it."""


def build_parser(quick: bool = False) -> argparse.ArgumentParser:
    """The parser with its four subcommands; ``quick`` chooses the defaults of the sizes."""
    parser = argparse.ArgumentParser(
        prog="benchmark.py",
        description="Speed and memory of fairseq_kerbs next to its peers, as ratios of times taken "
        "in one run. Prints tables and writes everything to a JSON file.",
    )
    commands = parser.add_subparsers(required=True, metavar="BENCHMARK", dest="benchmark")
    for benchmark, (text, names) in BENCHMARKS.items():
        command = commands.add_parser(benchmark, help=text, description=text, allow_abbrev=False)
        add = command.add_argument
        for name, (what, full, small, benchmarks) in _SIZES.items():
            if benchmark in benchmarks:
                add(f"--{name.replace('_', '-')}", type=type(full), metavar="N",
                    default=small if quick else full, help=f"{what} [%(default)s]")  # fmt: skip
        add("--device", choices=("cpu", "cuda"), default="cpu", help="[%(default)s]")
        add("--dtype", choices=tuple(likelihood.DTYPES), default="float32",
            help="of inputs and weights; in a training step float16 and bfloat16 are fairseq's "
            "--fp16 and --bf16 [%(default)s]")  # fmt: skip
        add("--threads", type=int, metavar="N", default=torch.get_num_threads(),
            help="threads of torch [%(default)s]")  # fmt: skip
        add("--seed", type=int, default=1, help="of all random numbers [%(default)s]")
        if names:
            add("--contestants", nargs="+", choices=names, default=names, metavar="NAME",
                help=f"only these take part, of {', '.join(names)} [all]")  # fmt: skip
        text = "measure peak memory, each in a process of its own [yes; with --quick no]"
        add("--memory", action=argparse.BooleanOptionalAction, default=not quick, help=text)
        output = Path(f"benchmark-{benchmark}.json")
        add("-o", "--output", type=Path, metavar="FILE", default=output, help="JSON [%(default)s]")
        text = "small sizes: takes seconds, and shows what is measured; ratios mean more without"
        add("--quick", action="store_true", help=text)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Run a benchmark, print its tables and write its figures."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    args = build_parser("--quick" in arguments).parse_args(arguments)
    quiet()
    torch.set_num_threads(args.threads)
    names = [name for name in (*_SIZES, "dtype", "device", "seed") if hasattr(args, name)]
    inputs = {name: getattr(args, name) for name in names if name != "repetitions"}
    numbers = ", ".join(f"{name.replace('_', ' ')} {getattr(args, name)}" for name in names)
    how = {name: getattr(args, name) for name in ("device", "threads", "memory", "repetitions")}
    document: dict[str, Any] = {
        "benchmark": args.benchmark,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "machine": describe_machine(args.device),
        "versions": describe_versions(),
        "settings": {**inputs, **how, COMPILE: os.environ.get(COMPILE)},
    }
    document |= compare(_entries(args, inputs), RATIOS, **how)
    document["machine"]["load_average_at_end"] = load_average()
    print(f"{args.benchmark}: {numbers}; {args.threads} threads\n")
    print(tables(document, OVER))
    start, end = (document["machine"][f"load_average{when}"][0] for when in ("", "_at_end"))
    print(f"\nload average {start} at the start, {end} at the end")
    write_json(args.output, document)
    print(f"wrote {args.output}")


def _entries(args: argparse.Namespace, inputs: dict[str, Any]) -> Entries:
    """The contestants that take part."""
    if args.benchmark == "scaling":
        return likelihood.scaling_entries(inputs)
    names = [name for name in BENCHMARKS[args.benchmark][1] if name in args.contestants]
    if args.benchmark == "likelihood":
        return likelihood.entries(names, inputs)
    from fairseq_kerbs.benchmarks import translation  # fairseq takes seconds to import

    return translation.entries(args.benchmark, names, inputs)
