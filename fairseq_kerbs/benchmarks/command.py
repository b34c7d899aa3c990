"""The command line of ``scripts/benchmark.py``."""

from __future__ import annotations

import argparse
import datetime
import logging
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch

from fairseq_kerbs.benchmarks.comparison import Settings
from fairseq_kerbs.benchmarks.flags import DESCRIPTIONS, add_flags, fill_in
from fairseq_kerbs.benchmarks.machine import describe_machine, describe_versions
from fairseq_kerbs.benchmarks.measuring import progress
from fairseq_kerbs.benchmarks.report import comparison_tables, heading, write_json
from fairseq_kerbs.errors import UserError

Measured = tuple[dict[str, Any], dict[str, Any], str]  # sizes, result, its tables


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one sentence, without the usage before it."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; {self.prog} --help lists all flags")


def build_parser() -> argparse.ArgumentParser:
    """The parser with its four subcommands."""
    parser = _Parser(
        prog="benchmark.py",
        description="Speed and memory of fairseq_kerbs next to its peers, as ratios of times taken "
        "in one run. Prints tables and writes everything to a JSON file.",
    )
    commands = parser.add_subparsers(required=True, metavar="BENCHMARK", dest="benchmark")
    for name, description in DESCRIPTIONS.items():
        add_flags(name, commands.add_parser(name, help=description, description=description))
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a benchmark; return its exit status (2 for wrong input, with one sentence)."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    try:
        args = build_parser().parse_args(arguments)
        fill_in(args)
        _run(args, arguments)
    except UserError as error:
        print(f"benchmark.py: error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # who read the tables has gone; Python must not write to them again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        progress("")
        return 130
    return 0


def _run(args: argparse.Namespace, arguments: list[str]) -> None:
    settings = _settings(args)
    output = args.output or Path(f"benchmark-{args.benchmark}.json")
    _check_output(output)
    # what torch and fairseq say about their own futures does not belong between the tables
    warnings.filterwarnings("ignore")
    logging.getLogger("fairseq").setLevel(logging.ERROR)
    document: dict[str, Any] = {
        "benchmark": args.benchmark,
        "arguments": arguments,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "complete": False,
        "machine": describe_machine(settings.device),
        "versions": describe_versions(),
        "settings": dict(vars(settings)),
        "results": [],
    }
    for sizes, result, text in _MEASURE[args.benchmark](args, settings):
        document["results"].append({"sizes": sizes, **result})
        # hours may lie between two sizes: what there is, is kept
        write_json(output, document)
        progress("")
        print(heading(args.benchmark, sizes, document["settings"]), end="\n\n")
        print(text, end="\n\n", flush=True)
    document["complete"] = True
    write_json(output, document)
    print(f"written to {output}", flush=True)


def _settings(args: argparse.Namespace) -> Settings:
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    return Settings(
        device=args.device,
        dtype=args.dtype,
        threads=torch.get_num_threads(),
        repetitions=args.repetitions,
        seed=args.seed,
        memory=args.memory,
        contestants=None if args.contestants is None else tuple(args.contestants),
    )


def _check_output(path: Path) -> None:
    """Find out now, not after hours, that the result cannot be written.

    Raises:
        UserError: it cannot; the message names the flag.
    """
    if path.is_dir():
        raise UserError(f"--output {path} is a folder; name a file in it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        probe = path.with_name(f".{path.name}.probe")
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(
            f"--output {path} cannot be written ({error.strerror}); name another file"
        ) from None


# ------------------------------------------------------------------ the four benchmarks


def _likelihood(args: argparse.Namespace, settings: Settings) -> Iterator[Measured]:
    from fairseq_kerbs.benchmarks import likelihood
    from fairseq_kerbs.benchmarks.inputs import Sizes

    for dim in args.dim:
        for vocab in args.vocab:
            for factor in args.senses_per_word:
                for tokens in args.tokens:
                    sizes = Sizes(dim, vocab, factor, tokens)
                    result = likelihood.run(sizes, settings)
                    text = "\n".join([comparison_tables(result), *likelihood.notes(result)])
                    yield {**vars(sizes), "senses": sizes.senses}, result, text


def _scaling(args: argparse.Namespace, settings: Settings) -> Iterator[Measured]:
    from fairseq_kerbs.benchmarks import scaling

    for dim in args.dim:
        for vocab in args.vocab:
            axes = scaling.points(dim, vocab, args.senses_per_word, args.tokens)
            result = scaling.run(axes, settings)
            yield {"dim": dim, "vocab": vocab}, result, scaling.tables(result)


def _model_sizes(args: argparse.Namespace) -> Iterator[Any]:
    from fairseq_kerbs.benchmarks.translation import ModelSizes

    for dim in args.dim:
        for vocab in args.vocab:
            for factor in args.senses_per_word:
                yield ModelSizes(dim, vocab, factor, args.ffn, args.layers, args.heads)


def _step(args: argparse.Namespace, settings: Settings) -> Iterator[Measured]:
    from fairseq_kerbs.benchmarks import step

    for sizes in _model_sizes(args):
        for tokens in args.tokens:
            result = step.run(sizes, tokens, settings)
            yield {**vars(sizes), "tokens": tokens}, result, comparison_tables(result)


def _decode(args: argparse.Namespace, settings: Settings) -> Iterator[Measured]:
    from fairseq_kerbs.benchmarks import decode

    for sizes in _model_sizes(args):
        for batch in args.batch:
            result = decode.run(sizes, batch, args.beam, args.steps, settings)
            numbers = {**vars(sizes), "batch": batch, "beam": args.beam, "steps": args.steps}
            yield numbers, result, comparison_tables(result)


_MEASURE = {
    "likelihood": _likelihood,
    "step": _step,
    "decode": _decode,
    "scaling": _scaling,
}
