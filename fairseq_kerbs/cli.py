"""The command ``fairseq-kerbs``; its subcommands are in `fairseq_kerbs.commands`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence

from fairseq_kerbs.commands import (
    convert,
    corpora,
    evaluation,
    experiments,
    geometry,
    gold,
    human_eval,
    neighbours,
    plots,
    report,
    senses,
    tables,
)
from fairseq_kerbs.utils.errors import UserError, interruption, refused_by_system, system_refusal
from fairseq_kerbs.utils.processes import stop_on_signals

COMMANDS = (
    corpora.add_toy,
    corpora.add_preparations,
    experiments.add_train,
    experiments.add_generate,
    evaluation.add_detokenize,
    evaluation.add_score,
    human_eval.add_examples,
    human_eval.add_human_eval,
    senses.add_senses,
    gold.add_gold_mlt,
    gold.add_gold_coarsewsd,
    report.add_report,
    plots.add_plot,
    geometry.add_geometry,
    neighbours.add_neighbours,
    convert.add_convert,
    tables.add_tables,
)
"""Each adds a subcommand or several to the parser that it is given."""


def build_parser() -> argparse.ArgumentParser:
    """The parser with every subcommand of `COMMANDS`."""
    parser = argparse.ArgumentParser(
        prog="fairseq-kerbs", description="Kernelized Bayesian Softmax for fairseq."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in COMMANDS:
        add(commands)
    for subparser in commands.choices.values():
        # A flag passed on to fairseq must not be taken for the beginning of one of ours.
        subparser.allow_abbrev = False
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand; return its exit status (2 for wrong input, with one sentence on stderr)."""
    stop_on_signals()
    try:
        parser = build_parser()
        args, extra = parser.parse_known_args(argv)
        if extra and not getattr(args, "passes_on", False):
            parser.error(f"unrecognized arguments: {' '.join(extra)}")
        args.extra = extra
        status: int = args.run(args)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output has had enough, such as head
        _drop_output()
        return 128 + signal.SIGPIPE
    except (UserError, OSError) as error:
        said = error
        if isinstance(error, OSError):
            if not refused_by_system(error):
                raise
            _drop_output()
            said = system_refusal(error)
        print(f"fairseq-kerbs: error: {said}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stopped:
        print(f"fairseq-kerbs: {interruption(stopped)}", file=sys.stderr)
        return 130
    return status


def _drop_output() -> None:
    """Give up what could not be printed; Python would try, and complain, again at its end."""
    try:
        sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


if __name__ == "__main__":
    sys.exit(main())
