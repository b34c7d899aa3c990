"""The commands of ``fairseq-kerbs``, by what people do with them."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from fairseq_kerbs import __version__
from fairseq_kerbs.cli import (
    convert,
    corpora,
    generate,
    gold,
    human_eval,
    neighbours,
    plot,
    plugin,
    self_check,
    senses,
    texts,
    train,
)
from fairseq_kerbs.cli.parameters import Group

SECTIONS: dict[str, list[click.Command]] = {
    "Use a trained model": [
        convert.convert,
        generate.translate,
        generate.generate,
        senses.senses,
        senses.report,
        senses.print_senses,
        plot.plot,
        neighbours.neighbours,
    ],
    "Train": [
        train.train,
        plugin.architectures,
        plugin.user_dir,
    ],
    "Prepare data": [
        corpora.toy,
        corpora.prepare,
        corpora.prepare_lm,
        corpora.prepare_iwslt16,
        corpora.prepare_dailydialog,
        corpora.prepare_lm1b,
        corpora.prepare_multi30k,
        corpora.prepare_wikitext2,
    ],
    "Evaluate": [
        texts.score,
        texts.detokenize,
        texts.show_examples,
        human_eval.human_eval,
        gold.gold_translations,
    ],
    "This machine": [
        self_check.self_check,
    ],
}
"""Titles of the help, and the commands below each."""


class Commands(Group):
    """The group of all commands, whose help has a title for each of `SECTIONS`."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands of each section, with their first sentences in one column."""
        width = max(map(len, self.commands))
        for title, commands in SECTIONS.items():
            rows = [
                (str(command.name).ljust(width), command.get_short_help_str(limit=120))
                for command in commands
            ]
            with formatter.section(title):
                formatter.write_dl(rows)


@click.group(
    "fairseq-kerbs",
    cls=Commands,
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
    epilog="fairseq-kerbs COMMAND --help has all flags of a command, and examples",
)
@click.version_option(__version__, message="%(prog)s %(version)s")
def root() -> None:
    """Kernelized Bayesian Softmax for fairseq."""


for _commands in SECTIONS.values():
    for _command in _commands:
        root.add_command(_command)


def run(argv: Sequence[str], group: click.Group, name: str) -> int:
    """Run a command; return its exit status, 2 with one sentence for what click refuses."""
    try:
        with group.make_context(name, list(argv)) as context:
            return group.invoke(context) or 0
    except click.exceptions.Exit as ended:  # after --help and --version
        return ended.exit_code
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else name
        sentence = " ".join(error.format_message().split()).removesuffix(".")
        print(f"{command}: error: {sentence[0].lower()}{sentence[1:]}", file=sys.stderr)
        return error.exit_code
