"""The command line of ``scripts/benchmark.py``: flags, their defaults, and what makes sense."""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fairseq_kerbs.benchmarks import likelihood
from fairseq_kerbs.benchmarks.comparison import Settings
from fairseq_kerbs.benchmarks.contestants import (
    DECODE_NAMES,
    DTYPES,
    LIKELIHOOD_NAMES,
    STEP_NAMES,
)
from fairseq_kerbs.benchmarks.memory import quiet
from fairseq_kerbs.benchmarks.report import heading
from fairseq_kerbs.utils.errors import UserError, system_refusal
from fairseq_kerbs.utils.files import atomic_write
from fairseq_kerbs.utils.machine import describe_machine, describe_versions, load_average

BENCHMARKS: dict[str, tuple[str, tuple[str, ...]]] = {
    "likelihood": (
        "loss and gradients of the output layer, next to the bare matrix products, naive autograd "
        "and fairseq's softmax",
        LIKELIHOOD_NAMES,
    ),
    "step": ("a whole training step of the Transformer, next to fairseq's", STEP_NAMES),
    "decode": ("beam search with the Transformer, next to fairseq's", DECODE_NAMES),
    "scaling": ("time and memory of the likelihood against senses and against tokens", ()),
}
"""What a benchmark measures, and names of its contestants."""

_MODEL = ("step", "decode")
_LAYER = ("likelihood", "scaling")


class _Size(NamedTuple):
    kind: type
    least: float
    text: str
    default: Any  # a list takes several values
    quick: Any  # default with --quick
    benchmarks: tuple[str, ...] = tuple(BENCHMARKS)  # those that have it
    own: dict[str, tuple[Any, Any]] = {}  # noqa: RUF012  other defaults by benchmark


_SIZES = {  # but for the repetitions, in the order of the report
    "dim": _Size(int, 1, "size d of context vectors and embeddings", [288], [32]),
    "vocab": _Size(int, 20, "words V of the vocabulary (source and target)", [10_000], [400]),
    "senses_per_word": _Size(float, 1, "senses M as a multiple of V", [3.0], [3.0],
                             own={"scaling": ([1.0, 2.0, 3.0], [1.0, 3.0])}),
    "ffn": _Size(int, 1, "inner width of the feed-forward layers", 507, 48, _MODEL),
    "layers": _Size(int, 1, "layers of encoder and decoder", 5, 2, _MODEL),
    "heads": _Size(int, 1, "attention heads", 2, 2, _MODEL),
    "tokens": _Size(int, 16, "target tokens in a batch", [4096], [256], (*_LAYER, "step"),
                    {"scaling": ([1024, 2048, 4096, 8192, 16384], [256, 512, 1024])}),
    "batch": _Size(int, 1, "sentences in a batch", [16, 64], [4], ("decode",)),
    "beam": _Size(int, 1, "size of the beam", 5, 5, ("decode",)),
    "steps": _Size(int, 2, "decoding steps: all hypotheses are this long", 25, 5, ("decode",)),
    "repetitions": _Size(int, 1, "how often everything is timed", 5, 3,
                         own={"likelihood": (7, 3), "decode": (3, 3)}),
}  # fmt: skip


def _defaults(benchmark: str, quick: bool = False) -> dict[str, Any]:
    """The sizes of a benchmark that are not given."""
    return {
        name: size.own.get(benchmark, (size.default, size.quick))[quick]
        for name, size in _SIZES.items()
        if benchmark in size.benchmarks
    }


def build_parser() -> argparse.ArgumentParser:
    """The parser with its four subcommands; sizes that are not given stay None."""
    parser = argparse.ArgumentParser(
        prog="benchmark.py",
        description="Speed and memory of fairseq_kerbs next to its peers, as ratios of times taken "
        "in one run. Prints tables and writes everything to a JSON file.",
    )
    commands = parser.add_subparsers(required=True, metavar="BENCHMARK", dest="benchmark")
    for benchmark, (text, names) in BENCHMARKS.items():
        command = commands.add_parser(benchmark, help=text, description=text, allow_abbrev=False)
        add = command.add_argument
        for name, default in _defaults(benchmark).items():
            several = isinstance(default, list)
            shown = " ".join(map(str, default)) if several else default
            size = _SIZES[name]
            nargs = "+" if several else None
            add(_flag(name), type=size.kind, nargs=nargs, help=f"{size.text} [{shown}]")
        add("--device", choices=("cpu", "cuda"), default="cpu", help="[%(default)s]")
        add("--dtype", choices=tuple(DTYPES), default="float32",
            help="of inputs and weights; in a training step float16 and bfloat16 are fairseq's "
            "--fp16 and --bf16 [%(default)s]")  # fmt: skip
        add("--threads", type=int, metavar="N", help="threads of torch [its default]")
        add("--seed", type=int, default=1, help="of all random numbers [%(default)s]")
        if names:
            add("--contestants", nargs="+", choices=names, metavar="NAME",
                help=f"only these take part, of {', '.join(names)} [all]")  # fmt: skip
        add("--no-memory", dest="memory", action="store_false", help="do not measure peak memory")
        add("--output", type=Path, metavar="FILE", help=f"JSON [benchmark-{benchmark}.json]")
        add("--quick", action="store_true", help="tiny sizes, for a smoke test")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a benchmark; return its exit status (2 for wrong input, with one sentence)."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    args = build_parser().parse_args(arguments)
    try:
        _run(args, arguments)
    except UserError as error:
        print(f"benchmark.py: error: {error}", file=sys.stderr)
        return 2
    return 0


def _run(args: argparse.Namespace, arguments: list[str]) -> None:
    sizes = chosen_sizes(args)
    settings = _settings(args, sizes.pop("repetitions"))
    output = args.output or Path(f"benchmark-{args.benchmark}.json")
    _check_output(output)  # now, not after hours
    quiet()
    machine = describe_machine(settings.device)
    document: dict[str, Any] = {
        "benchmark": args.benchmark,
        "arguments": arguments,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "complete": False,
        "machine": machine,
        "versions": describe_versions(),
        "settings": dict(vars(settings)),
        "results": [],
    }

    def write() -> None:
        with atomic_write(output) as stream:
            json.dump(document, stream, indent=1, ensure_ascii=False, allow_nan=False)
            stream.write("\n")

    lists = [value if isinstance(value, list) else [value] for value in sizes.values()]
    if args.benchmark == "scaling":  # takes whole lists of senses and tokens
        lists = [sizes["dim"], sizes["vocab"], [sizes["senses_per_word"]], [sizes["tokens"]]]
    for values in itertools.product(*lists):
        one = dict(zip(sizes, values, strict=True))
        result, text, shown = _measure(args.benchmark, one, settings)
        document["results"].append({"sizes": shown, **result})
        machine["load_average_at_end"] = load_average()
        write()  # hours may lie between two sizes: what there is, is kept
        title = heading(args.benchmark, shown, document["settings"])
        print(title, text, sep="\n\n", end="\n\n", flush=True)
    document["complete"] = True
    write()
    start, end = machine["load_average"][0], machine["load_average_at_end"][0]
    print(
        f"load average {start} at the start, {end} at the end, of {settings.threads} threads used"
    )
    print(f"written to {output}", flush=True)


def _measure(
    benchmark: str, sizes: dict[str, Any], settings: Settings
) -> tuple[dict[str, Any], str, dict[str, Any]]:
    """One result, its tables, and the sizes as they are reported."""
    if benchmark == "likelihood":
        senses = round(sizes["senses_per_word"] * sizes["vocab"])
        return *likelihood.run(sizes, settings), {**sizes, "senses": senses}
    if benchmark == "scaling":
        shown = {"dim": sizes["dim"], "vocab": sizes["vocab"]}
        return *likelihood.run_scaling(likelihood.scaling_points(**sizes), settings), shown
    from fairseq_kerbs.benchmarks import translation  # fairseq takes seconds to import

    make = translation.step_workload if benchmark == "step" else translation.decode_workload
    return *translation.run(make, BENCHMARKS[benchmark][1], sizes, settings), sizes


# ------------------------------------------------------------------ what makes sense


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def chosen_sizes(args: argparse.Namespace) -> dict[str, Any]:
    """The sizes given, and the defaults for all others.

    Raises:
        UserError: a value makes no sense; the message names the flag.
    """
    sizes = _defaults(args.benchmark, args.quick)
    given = {name: value for name in sizes if (value := getattr(args, name)) is not None}
    sizes |= given
    for name, value in sizes.items():
        least = _SIZES[name].least
        for number in value if isinstance(value, list) else [value]:
            if not least <= number < float("inf"):
                raise UserError(f"{_flag(name)} is {number}; use {least} or more")
    if args.benchmark in _MODEL:
        heads, beam, steps = sizes["heads"], sizes.get("beam", 1), sizes.get("steps", 2)
        for dim in sizes["dim"]:
            if dim % heads or dim % 2:
                raise UserError(f"--dim {dim} must be even and a multiple of --heads ({heads})")
        if (most := max(sizes["senses_per_word"])) > 4:
            raise UserError(f"--senses-per-word is {most}; the models allow 4 a word at most")
        if 2 * beam >= min(sizes["vocab"]):
            raise UserError(f"--beam {beam} needs a --vocab of more than {2 * beam} words")
        if steps > 1000:
            raise UserError(f"--steps is {steps}; the models take 1000 positions at most")
    return sizes


def _settings(args: argparse.Namespace, repetitions: int) -> Settings:
    contestants = getattr(args, "contestants", None)
    if args.threads is not None and args.threads < 1:
        raise UserError(f"--threads is {args.threads}; use 1 or more")
    if args.device == "cuda" and not torch.cuda.is_available():
        raise UserError("--device cuda: torch finds no CUDA device here; use --device cpu")
    if args.benchmark in _MODEL and args.device == "cpu" and args.dtype != "float32":
        raise UserError(
            f"--dtype {args.dtype}: on the CPU fairseq's models run in float32 only; leave it out "
            "or use --device cuda"
        )
    torch.set_num_threads(args.threads or torch.get_num_threads())
    return Settings(
        device=args.device,
        dtype=args.dtype,
        threads=torch.get_num_threads(),
        repetitions=repetitions,
        seed=args.seed,
        memory=args.memory,
        contestants=None if contestants is None else tuple(contestants),
    )


def _check_output(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise system_refusal(error, f"--output {path}") from None
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise UserError(f"--output {path} cannot be written; name another file")
