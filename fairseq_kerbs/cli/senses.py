"""``fairseq-kerbs senses``, ``report`` and ``print-senses``: what a model's senses stand for.

At a terminal, in a browser, and beside generated text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from fairseq_kerbs.cli.models import (
    Trained,
    check_senses,
    has_training_text,
    read_model,
    read_names,
    target_language,
)
from fairseq_kerbs.cli.output import show, write_files, write_output
from fairseq_kerbs.cli.parameters import (
    FILE,
    OUTPUT,
    ModelCommand,
    Several,
    Whole,
    checkpoint_argument,
    csv_option,
    data_option,
    data_or_none_option,
    dictionary_option,
    examples,
    json_option,
    output_option,
    seed_option,
    trust_option,
)
from fairseq_kerbs.utils.errors import UserError

if TYPE_CHECKING:  # pandas is slow to import
    import numpy as np
    from numpy.typing import NDArray

    from fairseq_kerbs.analysis.names import SenseNames
    from fairseq_kerbs.analysis.occurrences import Text
    from fairseq_kerbs.reallocation.context_sample import ContextSample


def examples_option(default: int) -> Callable[[Any], Any]:
    """The option for the number of example contexts."""
    return click.option(
        "--examples",
        "contexts",
        type=Whole(min=0),
        metavar="N",
        default=default,
        help="number of example contexts per sense",
    )


@click.command(
    "senses",
    cls=ModelCommand,
    epilog=examples("senses runs/toy/checkpoint_best.pt --data data/bin --word bank"),
    needs={
        "--split": ("--data",),
        "--examples": ("--data",),
        "--words-each": ("--by-number-of-senses", "--table"),
        "--seed": ("--by-number-of-senses", "--table"),
        "--with-pieces": ("--by-number-of-senses", "--table"),
    },
)
@checkpoint_argument
@data_or_none_option
@dictionary_option
@trust_option
@click.option(
    "--split",
    metavar="SPLIT",
    help="split for names and contexts [train], with --gold labelled split [test]",
)
@click.option(
    "--word",
    "words",
    type=Several(),
    metavar="WORD...",
    default=(),
    help="words to show [the clearest ones]",
)
@click.option(
    "--gold",
    type=FILE,
    metavar="GOLD.tsv",
    help="gold senses: line, occurrence, word and sense per line, separated by tabs",
)
@click.option(
    "--train-data",
    type=FILE,
    metavar="BIN",
    help="for --gold: training data of the model, for k-means and names of senses [--data]",
)
@click.option(
    "--top",
    type=Whole(min=0),
    metavar="N",
    default=20,
    help="number of words, and of pieces of words, if --word is not given: the clearest ones, with "
    "--gold the words with most labels, without --data those with most senses. 0 shows all",
)
@examples_option(default=1)
@click.option(
    "--nearest",
    type=Whole(min=0),
    metavar="N",
    default=0,
    help="number of nearest senses by kernel",
)
@json_option
@csv_option
@click.option(
    "--by-number-of-senses",
    is_flag=True,
    help="also print random words for every number of senses, as Markdown (Table 6 of the paper)",
)
@click.option(
    "--words-each",
    type=Whole(min=1),
    metavar="N",
    default=5,
    help="for this table: number of words for each number of senses",
)
@seed_option("for this table: random seed")
@click.option("--with-pieces", is_flag=True, help="for this table: include subwords")
@click.option(
    "--table",
    type=OUTPUT,
    metavar="FILE",
    help="write this table to a file, as CSV if its name ends in .csv, else as Markdown",
)
def senses(
    checkpoint: Path,
    data: Path | None,
    dictionary: Path | None,
    trust_checkpoint: bool,
    split: str | None,
    words: tuple[str, ...],
    gold: Path | None,
    train_data: Path | None,
    top: int,
    contexts: int,
    nearest: int,
    json_file: Path | None,
    csv_file: Path | None,
    by_number_of_senses: bool,
    words_each: int,
    seed: int,
    with_pieces: bool,
    table: Path | None,
) -> None:
    """Senses of words: translations, neighbours and example contexts.

    Print the senses of each word by usage. With --data: their share of the word's occurrences, the
    source words that they translate, typical neighbours, and the contexts in which each is most
    probable. Words that are split by meaning come first, then those whose senses are forms of one
    word. Pieces of words are a list of their own, with the words that they end or begin. Without
    --data: usage and theta only. Then print statistics of the number of senses per word. With
    --gold: compare senses with gold senses by V-measure, adjusted Rand index and adjusted mutual
    information, together with permuted senses, k-means and a linear classifier. Also compare the
    numbers of senses of all words with gold senses, ambiguous or not, by B-cubed F and paired F,
    with one sense per word and the best number by the labels beside them.
    """
    from fairseq_kerbs.analysis import report as reports
    from fairseq_kerbs.analysis.words import csv_of, word_numbers

    _check_gold(data, gold, train_data)
    trained = read_model(checkpoint, data, dictionary, trust=trust_checkpoint)
    check_senses(trained, checkpoint)
    numbers = word_numbers(trained.dictionary, words)
    words = tuple(trained.dictionary[number] for number in numbers)
    found = SenseFindings(None, words)
    if gold is not None:
        train = trained
        if train_data is not None:
            train = read_model(checkpoint, train_data, trust=trust_checkpoint)
        found = _compare_with_gold(
            trained, train, gold, "test" if split is None else split, words, top
        )
    elif trained.task is not None:
        found = SenseFindings(_names_of(trained, "train" if split is None else split, words), words)
    report = reports.build_report(
        found.names,
        trained.layer,
        trained.dictionary,
        found.words,
        gold=found.gold_by_row,
        size=reports.ReportSize(top, contexts, nearest),
    )
    result = dict(report)
    if found.comparison is not None:
        result["gold"] = found.comparison
    write_files(json_file, csv_file, result, csv_of(reports.report_table(report), 6))
    show(reports.report_as_text(report))
    if found.comparison is not None:
        _show_comparison(found.comparison)
    if by_number_of_senses or table is not None:
        from fairseq_kerbs.analysis.words import drawn_words

        groups = _words_by_number(trained, data, with_pieces)
        if by_number_of_senses:
            show(f"\n{drawn_words(groups, words_each, seed)}".removesuffix("\n"))
        if table is not None:
            as_csv = table.suffix.lower() == ".csv"
            write_output(table, drawn_words(groups, words_each, seed, csv=as_csv))


def _check_gold(data: Path | None, gold: Path | None, train_data: Path | None) -> None:
    """Raise a UserError if a flag for gold senses lacks another one, or its folder."""
    if data is None and gold is not None:
        raise UserError("--gold names senses of words in a split: give --data BIN as well")
    if gold is None and train_data is not None:
        raise UserError("--train-data is for use with --gold GOLD.tsv")
    if train_data is not None and not train_data.is_dir():
        raise UserError(f"--train-data: there is no folder {train_data}")


def _show_comparison(comparison: dict[str, Any]) -> None:
    """Print the comparison of senses and of their numbers with gold senses."""
    from fairseq_kerbs.analysis.gold_senses import comparison_as_text
    from fairseq_kerbs.analysis.sense_counts import counts_as_text

    show(f"\n{comparison_as_text(comparison)}")
    show(f"\n{counts_as_text(comparison['counts'])}")


class SenseFindings(NamedTuple):
    """What is known of a model's senses by its data."""

    names: SenseNames | None  # None without data
    words: Sequence[str]  # words to report
    gold_by_row: dict[int, Counter[str]] | None = None  # counts of gold senses
    comparison: dict[str, Any] | None = None  # of senses with gold senses


def _names_of(trained: Trained, split: str, words: tuple[str, ...]) -> SenseNames:
    """Names of senses by a split. A UserError is raised if none of these words is in it."""
    numbers = [trained.dictionary.indices[word] for word in words]
    special = [word for word, number in zip(words, numbers) if number < trained.dictionary.nspecial]
    if special:
        raise UserError(
            f"--word: {', '.join(special)} is a special symbol, whose senses have no names; name "
            "words"
        )
    names = read_names(trained, split)
    if words and not any(names.is_whole(number) or names.is_piece(number) for number in numbers):
        raise UserError(
            f"--word: split {split} has no occurrence of {', '.join(words)}; name other words or "
            "another split"
        )
    return names


def _compare_with_gold(
    trained: Trained, training: Trained, path: Path, split: str, words: tuple[str, ...], top: int
) -> SenseFindings:
    """Compare with gold senses, by one pass over the split and one over the training data."""
    from fairseq_kerbs.analysis import gold_senses, sense_counts
    from fairseq_kerbs.analysis.names import SenseNames
    from fairseq_kerbs.analysis.occurrences import without_pieces
    from fairseq_kerbs.analysis.words import entry_of, first_items
    from fairseq_kerbs.checkpoints.contexts import sample_of

    gold = gold_senses.read_gold_senses(path)
    labels = Counter(word for _, _, word in gold)
    layer = trained.layer
    symbols = trained.dictionary.symbols
    indices = trained.dictionary.indices
    named = {word: entry_of(word, trained.dictionary) for word in labels}
    numbers = {word: indices[entry] for word, entry in named.items() if entry in indices}
    entries = numbers.values()
    gold_senses.lines_as_samples(trained.task)
    with_pieces, requested = _read_labelled(trained, split, entries)
    with_contexts = with_pieces.tokens[requested].reset_index(drop=True)
    counted = sense_counts.counted_words(
        with_pieces._replace(tokens=with_contexts), gold, layer, symbols
    )
    text = without_pieces(with_pieces, requested)
    sampled = {*entries, *(word.entry for word in counted)}
    if not sampled:
        raise gold_senses.no_labels()
    sample = sample_of(sampled, layer.vocab_size, layer.weight.shape[1], gold_senses.CONTEXTS)
    labelled, gold_by_row = gold_senses.label_occurrences(text, gold, layer, numbers)
    if training is not trained:
        gold_senses.lines_as_samples(training.task)
    train = _read_training(training, sample)
    named_by = with_pieces if split == "train" else train
    names = SenseNames(named_by, symbols, target_language(trained))
    contexts = {word: sample.contexts(numbers[word]).numpy() for word in labelled}
    comparison = gold_senses.compare_with_gold(labelled, contexts)
    clustered = sense_counts.cluster_training(counted, sample)
    comparison["counts"] = sense_counts.judge_counts(clustered)
    if not words:
        most = [named[word] for word, _ in labels.most_common() if word in numbers]
        words = tuple(first_items(most, top))
    return SenseFindings(names, words, gold_by_row, comparison)


def _read_labelled(
    trained: Trained, split: str, entries: Collection[int]
) -> tuple[Text, NDArray[np.bool_]]:
    """Read a labelled split with its pieces, and contexts of some entries and of all pieces.

    Returns:
        the text, and the mask of its tokens that have contexts, [N].
    """
    from fairseq_kerbs.analysis.occurrences import Extras, read_text

    extras = Extras(words=entries, pieces=True, piece_contexts=True)
    text = read_text(trained.model, trained.task, split, extras=extras)
    requested = text.tokens["entry"].isin([*entries]) | text.tokens["piece"]
    return text, requested.to_numpy()


def _read_training(training: Trained, sample: ContextSample) -> Text:
    """Read the training text that names senses, and collect contexts of all of it."""
    from fairseq_kerbs.analysis.occurrences import TOKENS_FOR_NAMES, Extras, read_text

    return read_text(
        training.model,
        training.task,
        "train",
        TOKENS_FOR_NAMES,
        extras=Extras(sample=sample, pieces=True),
        flag="--train-data",
    )


def _words_by_number(trained: Trained, data: Path | None, with_pieces: bool) -> Any:
    """Words of Table 6; where there are data, those that stand alone in the training data."""
    from fairseq_kerbs.analysis.occurrences import real_words
    from fairseq_kerbs.analysis.words import of_sentencepiece, words_by_number_of_senses
    from fairseq_kerbs.checkpoints.contexts import batches

    layer, dictionary, _, task = trained
    known = None
    if data is not None:
        if not has_training_text(data):
            raise UserError(
                f"--by-number-of-senses and --table: {data} has no training data, which tell words "
                "from pieces"
            )
        read = batches(task, "train", "--by-number-of-senses")
        rows = (row for batch in read for row in batch["target"].tolist())
        pieces = of_sentencepiece(dictionary.symbols)
        known = {
            row[column]
            for row in rows
            for column, _ in real_words(row, dictionary, sentencepiece=pieces)[1]
        }
    return words_by_number_of_senses(
        layer.senses_per_word().tolist(),
        dictionary.symbols,
        dictionary.nspecial,
        known,
        with_pieces=with_pieces,
    )


@click.command(
    "report",
    cls=ModelCommand,
    epilog=examples("report runs/toy/checkpoint_best.pt --data data/bin -o senses.html"),
    needs={"--split": ("--data",), "--examples": ("--data",)},
)
@checkpoint_argument
@data_or_none_option
@dictionary_option
@click.option("--split", metavar="SPLIT", default="train", help="split of the data")
@trust_option
@click.option(
    "-o", "--output", type=OUTPUT, metavar="FILE", required=True, help="output file, .html"
)
@click.option("--title", metavar="TITLE", help="title of the page [name of the checkpoint]")
@click.option(
    "--log",
    type=FILE,
    metavar="LOG",
    help="output of fairseq-train or its --tensorboard-logdir, to show the training",
)
@examples_option(default=3)
@click.option(
    "--nearest",
    type=Whole(min=0),
    metavar="N",
    default=0,
    help="number of nearest senses by kernel. This takes minutes for 60,000 senses",
)
def report(
    checkpoint: Path,
    data: Path | None,
    dictionary: Path | None,
    split: str,
    trust_checkpoint: bool,
    output: Path,
    title: str | None,
    log: Path | None,
    contexts: int,
    nearest: int,
) -> None:
    """All senses of a model as one HTML file.

    Write a single HTML file that works offline. It starts with the clearest words, then has the
    clearest pieces of words, and a search for all: translations, neighbours, contexts with their
    source sentences, theta and usage of their senses. The address senses.html#word opens a word. A
    print has the words that are shown.
    """
    from fairseq_kerbs.analysis.plots import read_history
    from fairseq_kerbs.analysis.report import (
        PAGE_CONTEXT,
        ReportSize,
        build_report,
        html_page,
        training_counts,
    )
    from fairseq_kerbs.analysis.words import is_proper_entry, written_piece

    if output.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--output: {output} must end in .html")
    training = None if log is None else read_history(log)
    trained = read_model(checkpoint, data, dictionary, trust=trust_checkpoint)
    check_senses(trained, checkpoint)
    layer, entries, _, task = trained
    facts: dict[str, str | int] = {
        "checkpoint": str(checkpoint),
        "kernel": layer.kernel_name,
        "entries of the dictionary": layer.vocab_size,
        "senses": layer.total_senses,
    }
    names = None
    if task is not None:
        names = read_names(trained, split)
        facts["data"] = f"{data}, split {split}"
        facts["sentences read"] = names.lines
        facts["in all"] = len(task.dataset(split))
    clearest = names.clearest(0, entries.nspecial) if names else []
    pieces = names.clearest_pieces(0, entries.nspecial) if names else []
    words = [
        word
        for number, word in enumerate(entries.symbols)
        if is_proper_entry(word, number, entries.nspecial)
    ]
    built = build_report(
        names,
        layer,
        entries,
        [*clearest, *pieces, *words],
        size=ReportSize(examples=contexts, nearest=nearest, context=PAGE_CONTEXT),
    )
    page = html_page(
        title or f"Senses of {checkpoint.name}",
        facts,
        built,
        layer,
        counts=training_counts(entries),
        clearest=[*clearest, *map(written_piece, pieces)],
        history=training,
    )
    shown = [*built["words"], *built["pieces"]]
    total = len({sense["row"] for word in shown for sense in word["senses"]})
    number = f"{len(built['words'])} words, {len(built['pieces'])} pieces of words"
    write_output(output, page, f"{number}, {total} senses")


@click.command(
    "print-senses",
    cls=ModelCommand,
    epilog=examples(
        "print-senses runs/toy/checkpoint_best.pt runs/toy/generate-test.txt --data data/bin"
    ),
)
@checkpoint_argument
@data_option
@trust_option
@click.argument("generated", type=FILE)
@output_option
@click.option(
    "--names",
    is_flag=True,
    help="also append names of the senses of content words, after a tab",
)
def print_senses(
    checkpoint: Path,
    data: Path,
    trust_checkpoint: bool,
    generated: Path,
    output: Path | None,
    names: bool,
) -> None:
    """The sense of every token of fairseq-generate's output.

    Add K-ID lines to GENERATED, the output of fairseq-generate with this model and without
    --remove-bpe. They have word#sense:posterior for each token of a hypothesis.
    """
    text = text_with_senses(checkpoint, data, generated, names=names, trust=trust_checkpoint)
    write_output(output, text)


def text_with_senses(
    checkpoint: Path, data: Path, generated: Path, *, names: bool, trust: bool
) -> str:
    """Add lines of senses to a file of fairseq-generate's.

    With ``names`` the lines have names of senses, too, for which ``data`` must have training text.
    """
    from fairseq_kerbs.analysis.printed_senses import with_senses
    from fairseq_kerbs.utils.files import read_lines

    lines = read_lines(generated)
    trained = read_model(checkpoint, data, trust=trust)
    found_names = None
    if names:
        if not has_training_text(data):
            raise UserError(
                f"--names: {data} has no binarized training text, by which senses are named; leave "
                "--names out, or name the folder of the training"
            )
        found_names = read_names(trained, "train")
    added = with_senses(lines, trained.model, trained.task, str(generated), found_names)
    return "".join(f"{line}\n" for line in added)
