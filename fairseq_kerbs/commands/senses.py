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
        help="senses of words, with usage, theta, nearest senses and example contexts",
        description="For each word its senses: usage, kernel parameter and nearest senses by "
        "kernel; with --data also how often each is used in a split and the contexts in which it "
        "is used most surely, with the posterior. Then words by number of senses, and senses a "
        "word by deciles of frequency in the training data. With --gold also how purely the "
        "learned senses separate the true ones.",
    )
    add_checkpoint_flags(parser)
    parser.add_argument("--word", nargs="+", default=[], metavar="WORD", help="words to report")
    parser.add_argument("--gold", type=Path, metavar="FILE", help="true senses (.senses.tsv)")
    parser.add_argument(
        "--top",
        type=int,
        default=20,
        metavar="N",
        help="if no word is named: how many of those with most senses, 0 for all [%(default)s]",
    )
    parser.add_argument(
        "--examples", type=int, default=2, metavar="N", help="contexts a sense [%(default)s]"
    )
    parser.add_argument(
        "--nearest", type=int, default=3, metavar="N", help="nearest senses of each [%(default)s]"
    )
    parser.add_argument(
        "--joined",
        action="store_true",
        help="whole words only, and contexts with BPE pieces joined",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the report here as JSON")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the report here as CSV")
    parser.add_argument(
        "--projector",
        type=Path,
        metavar="DIR",
        help="write all senses for TensorBoard's embedding projector (tensorboard --logdir DIR)",
    )
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


def add_checkpoint_flags(parser: argparse.ArgumentParser, split: bool = True) -> None:
    """The checkpoint, and where its dictionary or data are; with ``split`` which part of them."""
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT")
    parser.add_argument(
        "--data",
        type=Path,
        metavar="BIN",
        help="binarized data [none: what the checkpoint says alone]",
    )
    parser.add_argument(
        "--dict",
        type=Path,
        metavar="FILE",
        help="without --data: the target language's dict.*.txt [where the model was trained from]",
    )
    if split:
        parser.add_argument("--split", default="test", help="split of the data [%(default)s]")
    add_trust_flag(parser)


def check_checkpoint_flags(args: argparse.Namespace) -> None:
    """Refuse two dictionaries."""
    from fairseq_kerbs.errors import UserError

    if args.data is not None and args.dict is not None:
        raise UserError("--dict is for use without data: leave it out, --data has a dictionary")


def _run_senses(args: argparse.Namespace) -> int:
    from fairseq_kerbs.analysis import sense_tables
    from fairseq_kerbs.analysis.occurrences import load_model, occurrences
    from fairseq_kerbs.analysis.purity import read_gold_senses
    from fairseq_kerbs.analysis.saved_layer import load_layer
    from fairseq_kerbs.analysis.sense_report import build_report
    from fairseq_kerbs.corpora.files import atomic_write

    wants_table = args.by_number_of_senses or args.table is not None
    _check_flags(args)
    gold = None if args.gold is None else read_gold_senses(args.gold)
    task = None
    if args.data is None:
        layer, dictionary = load_layer(args.checkpoint, args.dict, args.trust_checkpoint)
    else:
        model, task = load_model(args.checkpoint, args.data, args.trust_checkpoint)
        layer, dictionary = model.decoder.output, task.target_dictionary
    special = dictionary.nspecial
    report = build_report(
        None if task is None else occurrences(model, task, args.split, pieces=not args.joined),
        layer,
        dictionary.indices,
        words=args.word,
        gold=gold,
        top=args.top,
        examples=args.examples,
        counts=[0] * special + dictionary.count[special:],
        special=special,
        nearest=args.nearest,
    )
    outputs = ((args.json, sense_tables.as_json), (args.csv, sense_tables.as_csv))
    for path, write in outputs:
        if path is not None:
            with atomic_write(path) as stream:
                stream.write(write(report).removesuffix("\n") + "\n")
    if args.projector is not None:
        from fairseq_kerbs.analysis.projector import write_projector

        write_projector(args.projector, layer, dictionary.symbols, special)
    print(sense_tables.as_text(report))
    if wants_table:
        _write_words_by_senses(args, layer, dictionary, task)
    return 0


def _check_flags(args: argparse.Namespace) -> None:
    from fairseq_kerbs.errors import UserError

    if args.data is None and args.gold is not None:
        raise UserError("--gold names senses of words in a split: give --data BIN as well")
    check_checkpoint_flags(args)
    for flag in ("top", "examples", "nearest"):
        if getattr(args, flag) < 0:
            raise UserError(f"--{flag} is {getattr(args, flag)}, but must be 0 or more")
    if args.words_each < 1:
        raise UserError(f"--words-each is {args.words_each}, but must be at least 1")
    if args.table is not None and args.table.suffix not in (".md", ".csv"):
        raise UserError(f"--table: {args.table} must end in .md or .csv")


def _write_words_by_senses(
    args: argparse.Namespace, layer: Any, dictionary: Any, task: Any
) -> None:
    """Table 6; where there are data, of words that stand alone in the training data."""
    from fairseq_kerbs.analysis import words_by_senses
    from fairseq_kerbs.corpora.files import atomic_write
    from fairseq_kerbs.errors import UserError

    known = None
    if task is not None:
        try:
            task.load_dataset("train")
        except FileNotFoundError:
            raise UserError(
                f"--by-number-of-senses: {args.data} has no training data, which tell words from "
                "pieces"
            ) from None
        train = task.dataset("train")
        targets = (train[index]["target"] for index in range(len(train)))
        known = words_by_senses.whole_words(targets, dictionary.symbols)
    groups = words_by_senses.words_by_number_of_senses(
        *(layer.inventory.word_of_sense, dictionary.symbols, args.words_each, args.seed),
        whole_words_only=not args.with_pieces,
        known=known,
        special=dictionary.nspecial,
    )
    if args.by_number_of_senses:
        print(f"\n{words_by_senses.as_markdown(groups)}", end="")
    if args.table is not None:
        markdown = args.table.suffix == ".md"
        write = words_by_senses.as_markdown if markdown else words_by_senses.as_csv
        with atomic_write(args.table) as stream:
            stream.write(write(groups))
