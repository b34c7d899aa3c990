"""``fairseq-kerbs senses``, ``report`` and ``print-senses``: what the senses of a trained model
stand for, at a terminal, in a browser, and beside generated text; ``convert`` gives a model senses.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

from fairseq_kerbs.commands import arg, command, reading, say_written, write_output
from fairseq_kerbs.utils.errors import UserError

_EXAMPLES = arg.number("--examples", 1, "number of example contexts per sense")


@command(
    "senses",
    reading.CHECKPOINT,
    reading.DATA_OR_DICT,
    reading.TRUST,
    arg.value("--split", "split for names and contexts [train], with --gold labelled split [test]"),
    reading.words("words to show [the clearest ones]", default=[]),
    arg.file(
        "--gold",
        "gold senses: line, occurrence, word and sense per line, separated by tabs",
        "GOLD.tsv",
    ),
    arg.file(
        "--train-data",
        "for --gold: training data of the model, for k-means and names of senses [--data]",
        "BIN",
    ),
    arg.number(
        "--top",
        20,
        "number of words if --word is not given: the clearest words, with "
        "--gold those with most labels, without --data those with most senses. 0 shows all",
    ),
    _EXAMPLES,
    arg.number("--nearest", 0, "number of nearest senses by kernel"),
    *reading.FILES,
    arg.group(
        "words by number of senses (Table 6 of the paper)",
        arg.switch(
            "--by-number-of-senses",
            "also print random words for every number of senses, as Markdown",
        ),
        arg.number("--words-each", 5, "number of words for each number of senses", 1),
        arg.number("--seed", 1, "random seed"),
        arg.switch("--with-pieces", "include subwords"),
        arg.file(
            "--table",
            "write this table to a file, as CSV if its name ends in .csv, else as Markdown",
        ),
    ),
)
def senses(args: argparse.Namespace) -> None:
    """senses of words: translations, neighbours and example contexts

    Print the senses of each word by usage. With --data: their share of the word's occurrences, the
    source words that they translate, typical neighbours, and the contexts in which each is most
    probable. Without --data: usage and theta only. Then print statistics of the number of senses
    per word. With --gold: compare senses with gold senses by V-measure, adjusted Rand index and
    adjusted mutual information, together with permuted senses, k-means and a linear classifier.
    """
    from fairseq_kerbs.analysis import report as reports
    from fairseq_kerbs.analysis.gold_senses import comparison_as_text
    from fairseq_kerbs.analysis.words import csv_of, word_numbers

    if args.data is None and args.gold is not None:
        raise UserError("--gold names senses of words in a split: give --data BIN as well")
    if args.gold is None and args.train_data is not None:
        raise UserError("--train-data is for use with --gold GOLD.tsv")
    if args.train_data is not None and not args.train_data.is_dir():
        raise UserError(f"--train-data: there is no folder {args.train_data}")
    trained = reading.read_model(args)
    word_numbers(trained.dictionary, args.word)  # which refuses those that are no entries
    names, words, met, comparison = None, args.word, None, {}
    if args.gold is not None:
        names, words, met, comparison["gold"] = _compare_with_gold(args, trained)
    elif trained.task is not None:
        split = args.split or "train"
        names = reading.read_names(trained, split)
        if words and not any(names.names(trained.dictionary.indices[word]) for word in words):
            raise UserError(
                f"--word: split {split} has no occurrence of {', '.join(words)} as a whole word; "
                "name other words or another split"
            )
    report = reports.build_report(
        names,
        trained.layer,
        trained.dictionary,
        words,
        gold=met,
        top=args.top,
        examples=args.examples,
        nearest=args.nearest,
    )
    reading.write_files(args, report | comparison, csv_of(reports.report_table(report), 6))
    reading.show(reports.report_as_text(report))
    if comparison:
        reading.show(f"\n{comparison_as_text(comparison['gold'])}")
    if args.by_number_of_senses or args.table is not None:
        _draw_words(args, trained)


def _compare_with_gold(args: argparse.Namespace, trained: reading.Trained) -> tuple[Any, ...]:
    """Names of senses, words to report, true senses by row, and the comparison, by one pass over
    the split and one over the training data."""
    from fairseq_kerbs.analysis import gold_senses
    from fairseq_kerbs.analysis.names import SenseNames
    from fairseq_kerbs.analysis.occurrences import TOKENS_FOR_NAMES, read_text
    from fairseq_kerbs.checkpoints.contexts import sample_of

    gold = gold_senses.read_gold_senses(args.gold)
    labels = Counter(word for _, _, word in gold)
    layer, dictionary, model, task = trained
    numbers = {word: dictionary.indices[word] for word in labels if word in dictionary.indices}
    entries, split = numbers.values(), args.split or "test"
    dim = layer.weight.shape[1]
    sample = sample_of(entries, layer.vocab_size, dim, gold_senses.CONTEXTS)
    gold_senses.lines_as_samples(task)
    text = read_text(model, task, split, words=entries)
    labelled, met = gold_senses.label_occurrences(text, gold, layer, numbers)
    if args.train_data is not None:
        _, _, model, task = reading.read_model(args, data=args.train_data)
        gold_senses.lines_as_samples(task)
    train = read_text(model, task, "train", TOKENS_FOR_NAMES, sample=sample, flag="--train-data")
    names = text if split == "train" else train
    contexts = {word: sample.contexts(numbers[word]).numpy() for word in labelled}
    most = [word for word, _ in labels.most_common() if word in numbers]
    words = args.word or most[: args.top or None]
    comparison = gold_senses.compare_with_gold(labelled, contexts)
    return SenseNames(names, dictionary.symbols), words, met, comparison


def _draw_words(args: argparse.Namespace, trained: reading.Trained) -> None:
    """Table 6; where there are data, of words that stand alone in the training data."""
    from fairseq_kerbs.analysis.occurrences import real_words
    from fairseq_kerbs.analysis.words import drawn_words, words_by_number_of_senses
    from fairseq_kerbs.checkpoints.contexts import batches

    layer, dictionary, _, task = trained
    known = None
    if task is not None:
        if not any(args.data.glob("train*.idx")):
            raise UserError(
                f"--by-number-of-senses and --table: {args.data} has no training data, "
                "which tell words from pieces"
            )
        read = batches(task, "train", "--by-number-of-senses")
        rows = (row for batch in read for row in batch["target"].tolist())
        lines = (real_words(row, dictionary) for row in rows)
        known = {words[place] for words, single in lines for _, place in single}
    groups = words_by_number_of_senses(
        layer.senses_per_word().tolist(),
        dictionary.symbols,
        dictionary.nspecial,
        known,
        with_pieces=args.with_pieces,
    )
    draw = groups, args.words_each, args.seed
    if args.by_number_of_senses:
        reading.show(f"\n{drawn_words(*draw)}".removesuffix("\n"))
    if args.table is not None:
        write_output(args.table, drawn_words(*draw, csv=args.table.suffix == ".csv"))


@command(
    "report",
    reading.CHECKPOINT,
    reading.DATA_OR_DICT,
    reading.split("train"),
    reading.TRUST,
    arg.output("output file, .html", required=True),
    arg.value("--title", "title of the page [name of the checkpoint]"),
    arg.file(
        "--log", "output of fairseq-train or its --tensorboard-logdir, to show the training", "LOG"
    ),
    _EXAMPLES,
    arg.number(
        "--nearest", 0, "number of nearest senses by kernel. This takes minutes for 60,000 senses"
    ),
)
def report(args: argparse.Namespace) -> None:
    """all senses of a model as one HTML file

    Write a single HTML file that works offline. It starts with the clearest words, and has a search
    for all words: translations, neighbours, contexts, theta and usage of their senses.
    """
    from fairseq_kerbs.analysis.plots import read_history
    from fairseq_kerbs.analysis.report import build_report, html_page, training_counts
    from fairseq_kerbs.analysis.words import is_word

    if args.output.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--output: {args.output} must end in .html")
    history = None if args.log is None else read_history(args.log)
    layer, dictionary, _, task = trained = reading.read_model(args)
    facts: dict[str, str | int] = {"checkpoint": str(args.checkpoint), "kernel": layer.kernel_name}
    facts |= {"entries of the dictionary": layer.vocab_size, "senses": layer.total_senses}
    names = None
    if task is not None:
        names = reading.read_names(trained, args.split)
        facts |= {"data": f"{args.data}, split {args.split}"}
        facts |= {"sentences read": names.lines, "in all": len(task.dataset(args.split))}
    symbols, special = dictionary.symbols, dictionary.nspecial
    clearest = names.clearest(0, special) if names else []
    words = [word for number, word in enumerate(symbols) if is_word(word, number, special)]
    report = build_report(
        names,
        layer,
        dictionary,
        [*clearest, *words],
        examples=args.examples,
        nearest=args.nearest,
    )
    page = html_page(
        args.title or f"Senses of {args.checkpoint.name}",
        facts,
        report,
        layer,
        counts=training_counts(dictionary),
        clearest=clearest,
        history=history,
    )
    total = sum(len(word["senses"]) for word in report["words"])
    write_output(args.output, page, f"{len(report['words'])} words, {total} senses")


@command(
    "print-senses",
    reading.CHECKPOINT,
    reading.DATA,
    reading.TRUST,
    arg.file("generated", "output of fairseq-generate with this model", "GENERATED"),
    arg.output(),
    arg.switch("--names", "also append names of the senses of content words, after a tab"),
)
def print_senses(args: argparse.Namespace) -> None:
    """the sense of every token of fairseq-generate's output

    Add K-ID lines to the output of fairseq-generate without --remove-bpe. They have
    word#sense:posterior for each token of a hypothesis.
    """
    write_output(args.output, text_with_senses(args, args.generated, args.names))


def text_with_senses(args: argparse.Namespace, generated: Path, named: bool = True) -> str:
    """A file of fairseq-generate's with its lines of senses, ``named`` or not, by a checkpoint that
    the arguments name."""
    from fairseq_kerbs.analysis.printed_senses import with_senses
    from fairseq_kerbs.utils.files import read_lines

    lines, trained = read_lines(generated), reading.read_model(args)
    names = None
    if named and any(args.data.glob("train*.idx")):
        names = reading.read_names(trained, "train")
    lines = with_senses(lines, trained.model, trained.task, str(generated), names)
    return "".join(f"{line}\n" for line in lines)


@command(
    "convert",
    reading.CHECKPOINT,
    arg.output("output checkpoint", "OUT", required=True),
    arg.file(
        "--data",
        "folder of binarized data, whose contexts are clustered [none: one sense per word]",
        "BIN",
    ),
    arg.number("--max-senses", 4, "maximum number of senses of a word", 1),
    arg.group(
        "with --data",
        arg.value(
            "--extra-senses",
            "placement of senses beyond one per word: on the clusters of "
            "each word's contexts [clusters]",
            choices=["clusters"],
        ),
        arg.value(
            "--total-senses",
            "maximum number of senses, in units of the vocabulary size [1.5]",
            "F",
            type=arg.at_least(float, 1),
        ),
        arg.value("--split", "split of --data for contexts [%(default)s]", default="train"),
        arg.number("--contexts", 600, "maximum number of sampled contexts of a word", 40),
        arg.number(
            "--gap",
            1.0,
            "maximum preference of a sense for its cluster. A larger value "
            "separates senses more and changes predictions more",
            0.001,
            "NATS",
        ),
        arg.number("--memory", 2.0, "maximum memory for contexts", 1e-9, "GB"),
        arg.value(
            "--valid-split",
            "split of --data for the loss before and after [%(default)s]",
            "SPLIT",
            default="valid",
        ),
    ),
    reading.TRUST,
)
def convert(args: argparse.Namespace) -> None:
    """give a trained softmax model senses

    Convert a transformer, transformer_lm, lstm or lstm_lm of fairseq, or a model of fairseq_kerbs
    with --output-layer softmax, into a KerBS model. Its predictions are the same, or nearly the
    same with several senses per word. For further training use fairseq-train --finetune-from-model.
    """
    from fairseq_kerbs.checkpoints.conversion import (
        ConversionSettings,
        PlacementOnData,
        convert_checkpoint,
    )
    from fairseq_kerbs.configurations import flag_arguments
    from fairseq_kerbs.utils.processes import PLUGIN_FOLDER, quoted

    if args.output.resolve() == args.checkpoint.resolve():
        raise UserError(f"-o {args.output} is the checkpoint itself; name another file")
    for name in ("total_senses", "extra_senses") if args.data is None else ():
        if getattr(args, name) is not None:
            text = f"--{name.replace('_', '-')} is about senses on clusters of contexts"
            raise UserError(f"{text}: give --data BIN")
    args.total_senses = args.total_senses or min(1.5, args.max_senses)
    if args.total_senses > args.max_senses:
        raise UserError(
            f"--total-senses is {args.total_senses}, more than --max-senses {args.max_senses}; "
            "change one of them"
        )
    placement = None
    if args.data is not None:
        placement = PlacementOnData(
            total_senses=args.total_senses,
            split=args.split,
            valid_split=args.valid_split,
            contexts=args.contexts,
            gap=args.gap,
            memory=args.memory,
        )
    settings = ConversionSettings(args.max_senses, args.data, placement, args.trust_checkpoint)
    done = convert_checkpoint(args.checkpoint, args.output, settings)
    say_written(args.output, f"{done.arch}, {done.words} words, {done.senses} senses")
    command = ["fairseq-train", "DATA", "--user-dir", str(PLUGIN_FOLDER)]
    command += flag_arguments(done.finetuning)
    print(*done.summary, sep="\n")
    print(f"train on with: {quoted(command)} --max-update N --save-dir SAVE_DIR")
