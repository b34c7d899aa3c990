"""The command ``fairseq-kerbs``; its subcommands are in `fairseq_kerbs.commands`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fairseq_kerbs.commands.convert import add_convert
from fairseq_kerbs.commands.corpora import (
    add_prepare,
    add_prepare_dailydialog,
    add_prepare_iwslt16,
    add_prepare_lm,
    add_prepare_lm1b,
    add_toy,
)
from fairseq_kerbs.commands.evaluation import add_detokenize, add_score
from fairseq_kerbs.commands.experiments import add_generate, add_train
from fairseq_kerbs.commands.geometry import add_geometry
from fairseq_kerbs.commands.human_eval import add_examples, add_human_eval
from fairseq_kerbs.commands.neighbours import add_neighbours
from fairseq_kerbs.commands.plots import add_plot
from fairseq_kerbs.commands.report import add_report
from fairseq_kerbs.commands.senses import add_senses
from fairseq_kerbs.commands.tables import add_tables
from fairseq_kerbs.utils.errors import UserError, refused_by_system, system_refusal

if TYPE_CHECKING:
    from fairseq_kerbs.commands import Subparsers

COMMANDS: tuple[Callable[[Subparsers], None], ...] = (
    add_toy,
    add_prepare,
    add_prepare_lm,
    add_prepare_iwslt16,
    add_prepare_dailydialog,
    add_prepare_lm1b,
    add_train,
    add_generate,
    add_detokenize,
    add_score,
    add_examples,
    add_human_eval,
    add_senses,
    add_report,
    add_plot,
    add_geometry,
    add_neighbours,
    add_convert,
    add_tables,
)


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
    try:
        status = _run(argv)
        sys.stdout.flush()
    except UserError as error:
        return _refuse(error)
    except BrokenPipeError:  # the reader of our output has had enough, such as head
        _drop_output()
        return 128 + signal.SIGPIPE
    except OSError as error:
        if not refused_by_system(error):
            raise
        _drop_output()
        return _refuse(system_refusal(error))
    except KeyboardInterrupt:
        return 130
    return status


def _run(argv: Sequence[str] | None) -> int:
    parser = build_parser()
    args, extra = parser.parse_known_args(argv)
    if extra and not getattr(args, "passes_on", False):
        parser.error(f"unrecognized arguments: {' '.join(extra)}")
    args.extra = extra
    status: int = args.run(args)
    return status


def _refuse(error: UserError) -> int:
    print(f"fairseq-kerbs: error: {error}", file=sys.stderr)
    return 2


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
