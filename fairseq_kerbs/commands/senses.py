"""``fairseq-kerbs senses``: what the senses of a trained model stand for."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from fairseq_kerbs.commands import OutputPath, Subparsers, reading, write_output
from fairseq_kerbs.utils.errors import UserError


def add_senses(commands: Subparsers) -> None:
    """Report on senses."""
    parser = commands.add_parser(
        "senses",
        help="senses of words: what they translate, what they stand beside, example contexts",
        description="For each word its senses, the most used first. With --data: their shares of "
        "the word's occurrences in a split, the source words that they translate and how often, "
        "neighbours that set them apart, and the contexts in which each is most probable. Of a "
        "long split every second, third … batch is read. Without data usage and kernel parameter "
        "alone. Then words by number of senses, "
        "and senses a word by deciles of frequency in the training data. With --gold also "
        "how the senses agree with gold senses: V-measure, adjusted Rand index and adjusted mutual "
        "information, beside permuted senses, k-means and a linear classifier of contexts.",
    )
    reading.add_model_flags(parser, split="")
    text = "split of the data: where names and contexts are from [train]; with --gold where the "
    text += "labelled words are [test], and names are from the training data"
    parser.add_argument("--split", help=text)
    parser.add_argument("--word", nargs="+", default=[], metavar="WORD", help="words to report")
    text = "gold senses: number of the line, occurrence, word and sense between tabs"
    parser.add_argument("--gold", type=Path, metavar="GOLD.tsv", help=text)
    text = "with --gold: data whose training split k-means is fitted on [--data]"
    parser.add_argument("--train-data", type=Path, metavar="BIN", help=text)
    reading.add_numbers(
        parser,
        (
            "--top",
            20,
            "if no word is named: how many whose senses are clearest, or that have most "
            "labels, or without data most senses; 0 for all",
        ),
        ("--examples", 1, "contexts a sense"),
        ("--nearest", 0, "nearest senses of each by kernel"),
    )
    reading.add_files(parser)
    table = parser.add_argument_group("words by number of senses (Table 6 of the paper)")
    text = "also print words drawn at random for every number of senses, as Markdown"
    table.add_argument("--by-number-of-senses", action="store_true", help=text)
    reading.add_numbers(table, ("--words-each", 5, "words of each"), ("--seed", 1, "of the draw"))
    table.add_argument("--with-pieces", action="store_true", help="subwords too, with marks")
    text = "write this table to a file: as CSV if its name ends in .csv, else as Markdown"
    table.add_argument("--table", type=OutputPath, metavar="FILE", help=text)
    parser.set_defaults(run=_run_senses)


def _run_senses(args: argparse.Namespace) -> int:
    from fairseq_kerbs.analysis import gold_senses, sense_report
    from fairseq_kerbs.analysis.occurrences import occurrences
    from fairseq_kerbs.analysis.words import word_numbers

    if args.data is None and args.gold is not None:
        raise UserError("--gold names senses of words in a split: give --data BIN as well")
    if args.gold is None and args.train_data is not None:
        raise UserError("--train-data is for use with --gold GOLD.tsv")
    reading.check_numbers(args, top=0, examples=0, nearest=0, words_each=1)
    gold = None if args.gold is None else gold_senses.read_gold_senses(args.gold)
    layer, dictionary, model, task = trained = reading.read_model(args)
    symbols, special = dictionary.symbols, dictionary.nspecial
    word_numbers(dictionary, args.word)  # which refuses those that are no entries
    if gold is not None:
        gold_senses.lines_as_samples(task)
    names, found, words = None, [], args.word
    if gold is not None:
        args.split = args.split or "test"
        labels = Counter(word for _, _, word in gold)
        found = list(occurrences(model, task, args.split, labels))
        words = words or [word for word, _ in labels.most_common(args.top or None)]
        names = reading.read_names(model, task, "train", args.split)
    elif task is not None:
        names = reading.read_names(model, task, args.split or "train")
    report = sense_report.build_report(
        *(names, layer, symbols),
        words=words,
        gold=gold_senses.labels_of_senses(found, gold or {}),
        top=args.top,
        examples=args.examples,
        counts=[0] * special + dictionary.count[special:],
        special=special,
        nearest=args.nearest,
    )
    if gold is not None:
        report["gold"] = _compare_with_gold(args, found, gold)
    reading.write_files(args, report, sense_report.report_as_csv(report))
    reading.show(sense_report.report_as_text(report))
    if gold is not None:
        reading.show(f"\n{gold_senses.comparison_as_text(report['gold'])}")
    if args.by_number_of_senses or args.table is not None:
        drawn = _words_by_senses(args, trained)
        if args.by_number_of_senses:
            reading.show(f"\n{drawn()}".removesuffix("\n"))
        if args.table is not None:
            write_output(args.table, drawn(csv=args.table.suffix == ".csv"))
    return 0


def _compare_with_gold(args: argparse.Namespace, found: Iterable[Any], gold: Any) -> dict[str, Any]:
    from fairseq_kerbs.analysis import gold_senses
    from fairseq_kerbs.analysis.occurrences import occurrences

    labelled = gold_senses.by_word(found, gold)
    if args.split != "train" or args.train_data is not None:
        args.data = args.train_data or args.data
        _, _, model, task = reading.read_model(args)
        gold_senses.lines_as_samples(task)
        found = occurrences(model, task, "train", words=labelled, flag="--train-data")
    training = gold_senses.sample_contexts(found, list(labelled))
    return gold_senses.compare_with_gold(labelled, training)


def _words_by_senses(args: argparse.Namespace, trained: reading.Trained) -> Callable[..., str]:
    """A function that writes Table 6; where there are data, of words that stand alone in the
    training data."""
    from fairseq_kerbs.analysis import words

    layer, dictionary, _, task = trained
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
        targets = (train[at]["target"] for at in range(len(train)))
        known = words.whole_words(targets, dictionary.symbols)
    senses = layer.senses_per_word().tolist()
    groups = words.words_by_number_of_senses(
        senses, dictionary.symbols, dictionary.nspecial, known, args.with_pieces
    )
    return partial(words.drawn_words, groups, args.words_each, args.seed)
