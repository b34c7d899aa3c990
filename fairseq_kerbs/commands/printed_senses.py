"""``fairseq-kerbs print-senses``: the senses of generated text, beside it."""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_kerbs.commands import OutputPath, Subparsers, write_output
from fairseq_kerbs.commands.reading import add_model_flags, read_model, read_names


def add_print_senses(commands: Subparsers) -> None:
    """Senses of fairseq-generate's output."""
    parser = commands.add_parser(
        "print-senses",
        help="the sense of every token of fairseq-generate's output",
        description="Write fairseq-generate's output, made without --remove-bpe, with a line K-ID "
        "under the scores of each hypothesis: word#sense:posterior for each of its tokens.",
    )
    add_model_flags(parser, needs_data=True, split="")
    text = "what fairseq-generate wrote with this model"
    parser.add_argument("generated", type=Path, metavar="GENERATED", help=text)
    text = "file [standard output]"
    parser.add_argument("-o", "--output", type=OutputPath, metavar="FILE", help=text)
    text = "after a tab also what the senses of its content words translate in the training data"
    parser.add_argument("--names", action="store_true", help=text)
    parser.set_defaults(run=_run_print_senses)


def _run_print_senses(args: argparse.Namespace) -> int:
    write_output(args.output, text_with_senses(args, args.generated, args.names))
    return 0


def text_with_senses(args: argparse.Namespace, generated: Path, named: bool = True) -> str:
    """A file of fairseq-generate's with its lines of senses, ``named`` or not, by a checkpoint that
    the arguments name. Raises what `read_model` and `with_senses` do."""
    from fairseq_kerbs.analysis.printed_senses import with_senses
    from fairseq_kerbs.utils.files import read_lines

    lines, trained = read_lines(generated), read_model(args)
    names = read_names(trained.model, trained.task, "train", None) if named else None
    found = with_senses(lines, trained.model, trained.task, str(generated), names)
    return "".join(f"{line}\n" for line in found)
