"""The command line of ``scripts/benchmark.py``: flags, their defaults, and what makes sense."""

from __future__ import annotations

import argparse
import datetime
import math
import os
import sys
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fairseq_kerbs.benchmarks import likelihood
from fairseq_kerbs.benchmarks.comparison import Entries, compare, tables
from fairseq_kerbs.benchmarks.memory import quiet
from fairseq_kerbs.utils.errors import UserError
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

_MODEL = ("step", "decode")
COMPILE = "FAIRSEQ_KERBS_COMPILE"  # 0: the likelihood is not compiled


class _Size(NamedTuple):
    kind: type
    least: float
    text: str
    default: Any
    quick: Any  # default with --quick
    benchmarks: tuple[str, ...] = tuple(BENCHMARKS)  # those that have it


_SIZES = {
    "dim": _Size(int, 2, "size d of context vectors and embeddings", 288, 64),
    "vocab": _Size(int, 20, "words V of the vocabulary (source and target)", 10_000, 2000),
    "senses_per_word": _Size(float, 1, "senses M as a multiple of V", 3.0, 3.0),
    "ffn": _Size(int, 1, "inner width of the feed-forward layers", 507, 48, _MODEL),
    "layers": _Size(int, 1, "layers of encoder and decoder", 5, 2, _MODEL),
    "heads": _Size(int, 1, "attention heads", 2, 2, _MODEL),
    "tokens": _Size(int, 16, "target tokens in a batch", 4096, 512,
                    ("likelihood", "step", "scaling")),
    "batch": _Size(int, 1, "sentences in a batch", 16, 4, ("decode",)),
    "beam": _Size(int, 1, "size of the beam", 5, 5, ("decode",)),
    "steps": _Size(int, 2, "decoding steps: all hypotheses are this long", 25, 5, ("decode",)),
    "repetitions": _Size(int, 1, "how often everything is timed", 5, 3),
}  # fmt: skip


def _number(kind: type, least: float) -> Callable[[str], Any]:
    """A type of argparse: numbers from ``least`` up."""

    def parse(text: str) -> Any:
        value = kind(text)
        if not least <= value < math.inf:
            raise argparse.ArgumentTypeError(f"{text} is not {least} or more")
        return value

    parse.__name__ = kind.__name__  # for argparse's own message
    return parse


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
        for name, size in _SIZES.items():
            if benchmark not in size.benchmarks:
                continue
            add(f"--{name.replace('_', '-')}", type=_number(size.kind, size.least), metavar="N",
                default=size.quick if quick else size.default,
                help=f"{size.text} [%(default)s]")  # fmt: skip
        add("--device", choices=("cpu", "cuda"), default="cpu", help="[%(default)s]")
        add("--dtype", choices=tuple(likelihood.DTYPES), default="float32",
            help="of inputs and weights; in a training step float16 and bfloat16 are fairseq's "
            "--fp16 and --bf16 [%(default)s]")  # fmt: skip
        add("--threads", type=_number(int, 1), metavar="N", default=torch.get_num_threads(),
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


def main(argv: Sequence[str] | None = None) -> int:
    """Run a benchmark; return its exit status (2 for wrong input, with one sentence)."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    args = build_parser("--quick" in arguments).parse_args(arguments)
    try:
        _run(args)
    except UserError as error:
        print(f"benchmark.py: error: {error}", file=sys.stderr)
        return 2
    return 0


def _run(args: argparse.Namespace) -> None:
    if args.device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch finds no CUDA device here; use --device cpu")
    if args.benchmark in _MODEL and args.device == "cpu" and args.dtype != "float32":
        raise UserError(f"--dtype {args.dtype}: on the CPU fairseq's models run in float32 only")
    quiet()
    torch.set_num_threads(args.threads)
    names = [name for name in (*_SIZES, "dtype", "device", "seed") if hasattr(args, name)]
    inputs = {name: getattr(args, name) for name in names}
    numbers = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in inputs.items())
    how = {name: getattr(args, name) for name in ("device", "threads", "memory")}
    how["repetitions"] = inputs.pop("repetitions")
    document: dict[str, Any] = {
        "benchmark": args.benchmark,
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "complete": False,
        "machine": describe_machine(args.device),
        "versions": describe_versions(),
        "settings": {**inputs, **how, COMPILE: os.environ.get(COMPILE)},
    }
    write_json(args.output, document)  # what stands in its way is told now, not after hours
    document |= compare(_entries(args, inputs), RATIOS, **how)
    document["machine"]["load_average_at_end"] = load_average()
    document["complete"] = True
    write_json(args.output, document)
    print(f"{args.benchmark}: {numbers}; {args.threads} threads\n")
    print(tables(document, OVER))
    start, end = (document["machine"][f"load_average{when}"][0] for when in ("", "_at_end"))
    print(f"\nload average {start} at the start, {end} at the end\nwrote {args.output}")


def _entries(args: argparse.Namespace, inputs: dict[str, Any]) -> Entries:
    """The contestants that take part."""
    if args.benchmark == "scaling":
        return likelihood.scaling_entries(inputs)
    names = [name for name in BENCHMARKS[args.benchmark][1] if name in args.contestants]
    if args.benchmark == "likelihood":
        return likelihood.entries(names, inputs)
    from fairseq_kerbs.benchmarks import translation  # fairseq takes seconds to import

    return translation.entries(args.benchmark, names, inputs)
