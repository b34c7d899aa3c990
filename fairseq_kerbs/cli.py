"""The command ``fairseq-kerbs``; its subcommands are in `fairseq_kerbs.commands`."""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from fairseq_kerbs import __version__
from fairseq_kerbs.commands import arg, corpora, experiments, figures, self_check, senses, texts
from fairseq_kerbs.utils.errors import UserError, sentence_of
from fairseq_kerbs.utils.processes import stop_on_signals

EXAMPLES = """
toy text --train 3000
prepare --train train --valid valid --test test --source-lang de --target-lang en --dest data
prepare-lm wikitext-2 --words 10000 --dest data/wt2
prepare-lm sentences --words 20000 --max-words 80 --dest data/lm
prepare-iwslt16 2016-01.tgz --dest data/iwslt16
prepare-dailydialog ijcnlp_dailydialog.zip --dest data/dd
prepare-lm1b --dest data/lm1b --train 300000
prepare-multi30k --dest data/m30k
prepare-wikitext2 --dest data/wt2
train toy data/bin runs/toy --max-update 500
train multi30k/lstm_kerbs data/bin runs/lstm --reallocation clusters --dry-run
generate toy data/bin runs/toy --reference test.en
generate toy data/bin runs/toy --gen-subset valid --beam 1 --print-senses
translate toy data/bin runs/toy < test.de > translated.en
translate toy data/bin runs/toy --beam 1 --print-senses < test.de
architectures
self-check --quick
user-dir
detokenize --lang en runs/toy/generate-test.txt --output translated.en
score --hypotheses runs/toy/generate-test.txt --reference test.en
score --hypotheses softmax.txt kerbs.txt --reference test.en
examples --source test.de --system softmax=a.txt --system kerbs=b.txt
human-eval export --source test.de --system a=a.txt --system b=b.txt --sheets DIR --key key.json
human-eval score --key key.json --baseline a rater1.csv rater2.csv
senses runs/toy/checkpoint_best.pt --data data/bin --word bank
print-senses runs/toy/checkpoint_best.pt runs/toy/generate-test.txt --data data/bin
gold-mlt mlt.txt --text clean/train.en --source clean/train.de -o gold.tsv
gold-translations --text clean/train.en --other train.cs --stemmer czech -o gold.tsv
gold-coarsewsd CoarseWSD-20 --text text -o gold.tsv
gold-noad noad.tsv --text text -o gold.tsv
report runs/toy/checkpoint_best.pt --data data/bin -o senses.html
plot theta runs/toy/checkpoint_best.pt -o theta.svg --word bank
plot theta runs/toy/checkpoint_best.pt -o theta.svg --word car vehicle --word dog animal
plot contexts runs/toy/checkpoint_best.pt --data data/bin --word bank -o bank.png
plot contexts models/bert-base-uncased --text train.en --word monitor --word car vehicle -o bert.png
plot history train.log -o history.pdf
plot kernels -o kernels.pdf
neighbours runs/toy/checkpoint_best.pt
neighbours lin.pt --compare mixture.pt --data data/bin --similarity inner-product
convert softmax.pt -o kerbs.pt --total-senses 1.5 --data data/bin
"""
"""Uses of every subcommand, for its ``--help``."""

COMMANDS = [
    corpora.toy,
    *corpora.PREPARATIONS,
    experiments.train,
    experiments.generate,
    experiments.translate,
    experiments.architectures,
    experiments.user_dir,
    self_check.self_check,
    texts.detokenize,
    texts.score,
    texts.examples,
    texts.human_eval,
    senses.senses,
    senses.print_senses,
    *corpora.GOLD,
    senses.report,
    figures.plot,
    figures.neighbours,
    senses.convert,
]
"""Each adds a subcommand or several to the parser that it is given."""


class _Formatter(argparse.HelpFormatter):
    """Leaves the lines of examples as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith("examples:") else super()._fill_text(text, width, indent)


class _Parser(argparse.ArgumentParser):
    """A parser, and its subparsers, with examples."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=_Formatter, **options)
        known = [f"fairseq-kerbs {line}" for line in EXAMPLES.split("\n")]
        lines = [line for line in known if f"{line} ".startswith(f"{self.prog} ")]
        self.epilog = "\n  ".join(["examples:", *lines]) if lines else None


def build_parser() -> argparse.ArgumentParser:
    """The parser with every subcommand of `COMMANDS`."""
    parser = _Parser(prog="fairseq-kerbs", description="Kernelized Bayesian Softmax for fairseq.")
    parser.epilog = "fairseq-kerbs COMMAND --help has all flags of a command, and examples"
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    arg.add(parser.add_subparsers(required=True, metavar="COMMAND"), *COMMANDS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand; return its exit status (2 for wrong input, with one sentence on stderr)."""
    stop_on_signals()
    for stream, errors in ((sys.stdout, "surrogateescape"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):  # in UTF-8, as the texts that we read
            stream.reconfigure(encoding="utf-8", errors=errors)
    try:
        parser = build_parser()
        args, extra = parser.parse_known_args(argv)
        if extra and not args.passes_on:
            args.error(f"unrecognized arguments: {' '.join(extra)}")
        args.extra = extra
        status: int = args.run(args) or 0
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output has had enough, such as head
        _drop_output()
        return 128 + signal.SIGPIPE
    except (UserError, OSError, ModuleNotFoundError) as error:
        sentence = sentence_of(error)
        if sentence is None:
            raise
        _drop_output()
        print(f"fairseq-kerbs: error: {sentence}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("fairseq-kerbs: interrupted; run the same command again", file=sys.stderr)
        return 130
    return status


def _drop_output() -> None:
    """Discard output that cannot be written, which Python would try to write again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
