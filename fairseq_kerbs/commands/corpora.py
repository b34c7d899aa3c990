"""``fairseq-kerbs toy``, ``prepare`` and ``prepare-lm``, and the released corpora: making data."""

from __future__ import annotations

import argparse
import inspect
from dataclasses import MISSING, fields
from functools import partial
from pathlib import Path

from fairseq_kerbs.commands import Subparsers, say_written
from fairseq_kerbs.corpora.dialog import DailyDialog
from fairseq_kerbs.corpora.iwslt16 import Iwslt16
from fairseq_kerbs.corpora.language import LanguageText
from fairseq_kerbs.corpora.lm1b import Lm1b
from fairseq_kerbs.corpora.parallel import ParallelText
from fairseq_kerbs.corpora.pipeline import Preparation, whole_number
from fairseq_kerbs.corpora.unchanged import Multi30k, WikiText2


def add_toy(commands: Subparsers) -> None:
    """The synthetic corpus."""
    parser = commands.add_parser(
        "toy",
        help="write the synthetic corpus with gold senses",
        description="Write the synthetic German-like to English-like corpus: "
        "{train,valid,test}.{de,en} and the gold senses of ambiguous English words "
        "in {train,valid,test}.senses.tsv (line, occurrence, word, German lemma).",
    )
    parser.add_argument("folder", type=Path, help="folder to write to")
    for name, default in {"train": 20000, "valid": 500, "test": 500, "seed": 1}.items():
        what, least = ("[%(default)s]", 0) if name == "seed" else ("pairs [%(default)s]", 1)
        kind = whole_number(least)
        parser.add_argument(f"--{name}", type=kind, default=default, metavar="N", help=what)
    parser.set_defaults(run=_run_toy)


def _run_toy(args: argparse.Namespace) -> int:
    from fairseq_kerbs.corpora.synthetic import write_synthetic_corpus

    write_synthetic_corpus(args.folder, args.train, args.valid, args.test, args.seed)
    say_written(args.folder, f"train {args.train}, valid {args.valid}, test {args.test} pairs")
    return 0


PREPARATIONS: dict[str, type[Preparation]] = {
    "prepare": ParallelText,
    "prepare-lm": LanguageText,
    "prepare-iwslt16": Iwslt16,
    "prepare-dailydialog": DailyDialog,
    "prepare-lm1b": Lm1b,
    "prepare-multi30k": Multi30k,
    "prepare-wikitext2": WikiText2,
}


def add_preparations(commands: Subparsers) -> None:
    """Text to data for fairseq: the help is the docstring of a class, the flags are its fields."""
    for name, kind in PREPARATIONS.items():
        what, _, description = (inspect.getdoc(kind) or "").partition("\n\n")
        description += " Finished steps are not repeated."
        aliases = ["prepare-parallel"] if name == "prepare" else []  # the name of its script
        parser = commands.add_parser(name, aliases=aliases, help=what, description=description)
        for field in fields(kind):
            required = field.default is MISSING
            flag = {"default": None if required else field.default, **field.metadata}
            if flag.pop("positional", False):
                parser.add_argument(field.name, nargs="?", **flag)
            else:
                parser.add_argument(f"--{field.name.replace('_', '-')}", required=required, **flag)
        parser.set_defaults(run=partial(_run_preparation, kind))


def _run_preparation(kind: type[Preparation], args: argparse.Namespace) -> int:
    flags = {field.name: getattr(args, field.name) for field in fields(kind)}
    kind(**flags).prepare(partial(print, flush=True))  # a log shows each step as it starts
    return 0
