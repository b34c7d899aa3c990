"""``fairseq-kerbs senses``: what the senses of a trained model stand for."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_kerbs.commands import add_trust_flag

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
    add_trust_flag(parser)
    table = parser.add_argument_group("words by number of senses (Table 6 of the paper)")
    table.add_argument(
        "--by-number-of-senses",
        action="store_true",
        help="also print words drawn at random for every number of senses, as Markdown",
    )
    table.add_argument("--words-each", type=int, default=5, metavar="N", help="[%(default)s]")
    table.add_argument("--seed", type=int, default=1, metavar="S", help="[%(default)s]")
    table.add_argument("--with-pieces", action="store_true", help="subwords too, with marks")
    table.add_argument(
        "--table", type=Path, metavar="FILE", help="write this table to a .md or .csv file"
    )
    parser.set_defaults(run=_run_senses)


def _run_senses(args: argparse.Namespace) -> int:
    from fairseq_kerbs.analysis.occurrences import load_model, occurrences
    from fairseq_kerbs.analysis.purity import read_gold
    from fairseq_kerbs.analysis.sense_report import build_report
    from fairseq_kerbs.corpora.files import atomic_write

    wants_table = args.by_number_of_senses or args.table is not None
    _check_table_flags(args)
    gold = None if args.gold is None else read_gold(args.gold)
    model, task = load_model(args.checkpoint, args.data, args.trust_checkpoint)
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
    if wants_table:
        _write_words_by_senses(args, model.decoder.output, task)
    return 0


def _check_table_flags(args: argparse.Namespace) -> None:
    from fairseq_kerbs.errors import UserError

    if args.words_each < 1:
        raise UserError(f"--words-each is {args.words_each}, but must be at least 1")
    if args.top < 1:
        raise UserError(f"--top is {args.top}, but must be at least 1")
    if args.examples < 0:
        raise UserError(f"--examples is {args.examples}, but must be at least 0")
    if args.table is not None and args.table.suffix not in (".md", ".csv"):
        raise UserError(f"--table: {args.table} must end in .md or .csv")


def _write_words_by_senses(args: argparse.Namespace, layer: Any, task: Any) -> None:
    """Table 6, of words that stand alone in the training data."""
    from fairseq_kerbs.analysis import words_by_senses
    from fairseq_kerbs.corpora.files import atomic_write
    from fairseq_kerbs.errors import UserError

    try:
        task.load_dataset("train")
    except FileNotFoundError:
        raise UserError(
            f"--by-number-of-senses: {args.data} has no training data, which tell words from pieces"
        ) from None
    dictionary, train = task.target_dictionary, task.dataset("train")
    targets = (train[index]["target"] for index in range(len(train)))
    groups = words_by_senses.words_by_number_of_senses(
        *(layer.inventory.word_of_sense, dictionary.symbols, args.words_each, args.seed),
        whole_words_only=not args.with_pieces,
        known=words_by_senses.whole_words(targets, dictionary.symbols),
        special=dictionary.nspecial,
    )
    if args.by_number_of_senses:
        print(f"\n{words_by_senses.as_markdown(groups)}", end="")
    if args.table is not None:
        markdown = args.table.suffix == ".md"
        write = words_by_senses.as_markdown if markdown else words_by_senses.as_csv
        with atomic_write(args.table) as stream:
            stream.write(write(groups))
