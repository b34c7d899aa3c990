"""``fairseq-kerbs senses``: what the senses of a trained model stand for."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairseq_kerbs.commands import Subparsers


def add_senses(commands: Subparsers) -> None:
    """Report on senses."""
    parser = commands.add_parser(
        "senses",
        help="senses of words, with usage, theta and example contexts",
        description="For each word its senses in a split of the data: how often each is used, its "
        "kernel parameter and contexts in which it is used most surely; then senses a word by "
        "deciles of frequency in the training data. With --gold also how purely the learned senses "
        "separate the true ones.",
    )
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT")
    parser.add_argument("--data", type=Path, required=True, metavar="BIN", help="binarized data")
    parser.add_argument("--split", default="test", help="split to look at [%(default)s]")
    parser.add_argument("--word", nargs="+", default=[], metavar="WORD", help="words to report")
    parser.add_argument("--gold", type=Path, metavar="FILE", help="true senses (.senses.tsv)")
    parser.add_argument("--top", type=int, default=20, metavar="N", help="words, if none is named")
    parser.add_argument("--examples", type=int, default=2, metavar="N", help="contexts a sense")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report here as JSON")
    parser.set_defaults(run=_run_senses)


def _run_senses(args: argparse.Namespace) -> int:
    from fairseq_kerbs.analysis.occurrences import load_model, occurrences
    from fairseq_kerbs.analysis.purity import read_gold
    from fairseq_kerbs.analysis.sense_report import build_report
    from fairseq_kerbs.corpora.files import atomic_write

    gold = None if args.gold is None else read_gold(args.gold)
    model, task = load_model(args.checkpoint, args.data)
    dictionary = task.target_dictionary
    special = dictionary.nspecial
    report = build_report(
        occurrences(model, task, args.split),
        model.decoder.output,
        dictionary.indices,
        words=args.word,
        gold=gold,
        top=args.top,
        examples=args.examples,
        counts=[0] * special + dictionary.count[special:],
    )
    print(report.as_text())
    if args.json is not None:
        with atomic_write(args.json) as stream:
            stream.write(report.as_json() + "\n")
    return 0
