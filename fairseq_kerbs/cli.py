"""The command ``fairseq-kerbs``; its subcommands are in `fairseq_kerbs.commands`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fairseq_kerbs.commands.corpora import (
    add_prepare,
    add_prepare_dailydialog,
    add_prepare_iwslt16,
    add_prepare_lm,
    add_prepare_lm1b,
    add_toy,
)
from fairseq_kerbs.commands.evaluation import add_detokenize, add_score
from fairseq_kerbs.commands.examples import add_examples
from fairseq_kerbs.commands.experiments import add_generate, add_train
from fairseq_kerbs.commands.geometry import add_geometry
from fairseq_kerbs.commands.human_eval import add_human_eval
from fairseq_kerbs.commands.plots import add_plot
from fairseq_kerbs.commands.report import add_report
from fairseq_kerbs.commands.senses import add_senses
from fairseq_kerbs.commands.tables import add_tables
from fairseq_kerbs.errors import UserError

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
    parser = build_parser()
    args, extra = parser.parse_known_args(argv)
    if extra and not getattr(args, "passes_on", False):
        parser.error(f"unrecognized arguments: {' '.join(extra)}")
    args.extra = extra
    try:
        status: int = args.run(args)
    except UserError as error:
        print(f"fairseq-kerbs: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return status


if __name__ == "__main__":
    sys.exit(main())
