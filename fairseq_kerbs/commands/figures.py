"""``fairseq-kerbs plot`` and ``neighbours``: figures, and clusters of output vectors."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from fairseq_kerbs.commands import arg, command, nested, reading, say_written
from fairseq_kerbs.utils.errors import UserError

_LAYER = (reading.CHECKPOINT, reading.DATA_OR_DICT, reading.TRUST)


def figure(name: str, *parts: arg.Part) -> Callable[..., arg.Part]:
    """Make a function that draws a figure a command of ``plot``; its docstring is the help."""

    def decorate(draw: Callable[[argparse.Namespace], Any]) -> arg.Part:
        def run(args: argparse.Namespace) -> None:
            from fairseq_kerbs.analysis import plots

            plots.check_figure_path(args.output)
            plots.save_figure(draw(args), args.output)
            say_written(args.output, name)

        run.__doc__ = draw.__doc__
        file = arg.output("output file, .png, .pdf or .svg", required=True)
        return command(name, file, *parts)(run)

    return decorate


_CHECKPOINT_FLAGS = ("--data", "--split", "--trust-checkpoint")
_FOLDER_FLAGS = ("--text", "--seed")


@figure(
    "contexts",
    arg.file(
        "checkpoint",
        "file of a trained model, or folder of a masked or causal language model in the Hugging "
        "Face format",
        "MODEL",
    ),
    reading.words(
        "entry of the dictionary. With a folder, one or more words of the text. Each repetition of "
        "the flag draws a panel",
        action="append",
        required=True,
    ),
    arg.number("--most", 300, "maximum number of contexts of a word, drawn at random", 2),
    arg.flag(
        "--projection",
        choices=("discriminants", "pca"),
        help="plane of the figure: linear discriminants of the senses with marks at their means, "
        "or principal components with marks at the sense embeddings [discriminants; with a folder "
        "pca]",
    ),
    *reading.FILES,
    arg.group(
        "with a file of a trained model",
        arg.file("--data", "folder of binarized data", "BIN"),
        arg.value("--split", "split of the data [train]"),
        reading.TRUST,
    ),
    arg.group(
        "with a folder in the Hugging Face format",
        arg.file("--text", "text with one sentence per line"),
        arg.flag(
            "--seed", type=arg.at_least(int, 0), metavar="N", help="seed of the random choice [1]"
        ),
        description="It needs the extra hf. Weights are read from model.safetensors, and no code "
        "from the folder runs.",
    ),
)
def contexts(args: argparse.Namespace) -> Any:
    """context vectors of words (Figure 1 of the paper)

    Draw the context vectors of a word by sense, with the names of senses, for a trained model. For
    a language model of Hugging Face, such as BERT, draw the context vectors of words of a text,
    with a color for each word.
    """
    if not args.checkpoint.exists():
        raise UserError(
            f"{args.checkpoint}: no such file or folder; models are not downloaded, so name a file "
            "of a trained model, or a folder in the Hugging Face format"
        )
    folder = args.checkpoint.is_dir()
    kind = "a file of a trained model" if folder else "a folder in the Hugging Face format"
    needed, wrong = ("--text", _CHECKPOINT_FLAGS) if folder else ("--data", _FOLDER_FLAGS)
    values = vars(args)
    given = [name for name in wrong if values[name[2:].replace("-", "_")] not in (None, False)]
    if given:
        raise UserError(
            f"{', '.join(given)} goes with {kind}, but {args.checkpoint} is not one; leave it out, "
            "or name another MODEL"
        )
    if values[needed[2:]] is None:
        raise UserError(f"{needed} is missing, which {args.checkpoint} needs")
    from fairseq_kerbs.commands.contexts import contexts_by_sense, contexts_of_words

    return contexts_of_words(args) if folder else contexts_by_sense(args)


@figure(
    "theta",
    *_LAYER,
    reading.words(
        "entries of the dictionary. Each repetition of the flag draws a panel with a set of words",
        action="append",
        required=True,
    ),
    arg.value("--label", "title of each panel", "TITLE", nargs="+", default=[]),
    *reading.FILES,
)
def theta(args: argparse.Namespace) -> Any:
    """theta of the senses of words, with their mean weighted by usage (Figure 3 of the paper)

    Draw theta of each sense. The paper shows sets of nouns, each from narrow to broad concepts.
    """
    from pandas import DataFrame

    from fairseq_kerbs.analysis import plots
    from fairseq_kerbs.analysis.words import csv_of, sense_numbers, usage_shares, word_numbers

    if args.label and len(args.label) != len(args.word):
        raise UserError(
            f"--label has {len(args.label)} titles for {len(args.word)} sets of words; give one "
            "for each --word"
        )
    layer, dictionary, *_ = reading.read_model(args)
    if not layer.has_theta:
        raise UserError(f"the kernel {layer.kernel_name} of {args.checkpoint} has no theta")
    theta_of_senses = layer.kernel.theta_of(layer.theta.detach())
    thetas, shares, rows = [], [], []
    sets = [list(dict.fromkeys(words)) for words in args.word]
    for number, words in enumerate(sets, start=1):
        senses = [sense_numbers(layer, word) for word in word_numbers(dictionary, words)]
        thetas.append([theta_of_senses[numbers].tolist() for numbers in senses])
        shares.append([usage_shares(layer, numbers).tolist() for numbers in senses])
        for word, values, parts in zip(words, thetas[-1], shares[-1]):
            rows += [
                {"set": number, "word": word, "sense": sense, "theta": value, "share": share}
                for sense, (value, share) in enumerate(zip(values, parts), start=1)
            ]
    reading.write_files(args, rows, csv_of(DataFrame(rows)))
    return plots.plot_theta(sets, thetas, shares, args.label)


@figure("frequency", *_LAYER)
def frequency(args: argparse.Namespace) -> Any:
    """number of senses of each word over its frequency in the training data"""
    from fairseq_kerbs.analysis.plots import plot_frequency
    from fairseq_kerbs.analysis.report import training_counts

    layer, dictionary, *_ = reading.read_model(args)
    counts = training_counts(dictionary)
    if not any(counts):
        raise UserError("the dictionary has no counts of words; give the one of fairseq-preprocess")
    return plot_frequency(layer.senses_per_word().tolist(), counts)


@figure("usage", *_LAYER)
def usage(args: argparse.Namespace) -> Any:
    """histograms of usage over all senses, and of usage within words"""
    from fairseq_kerbs.analysis.plots import plot_usage

    layer = reading.read_model(args).layer
    return plot_usage(layer.usage, layer.word_of_sense)


@figure("history", arg.file("log", "output of fairseq-train, or its --tensorboard-logdir", "LOG"))
def history(args: argparse.Namespace) -> Any:
    """words by number of senses, moved senses and quantiles of theta over training"""
    from fairseq_kerbs.analysis.plots import plot_history, read_history

    return plot_history(read_history(args.log))


@figure("kernels")
def kernels(_: argparse.Namespace) -> Any:
    """kernels and gradients of Gao et al. over the squared distance, and KerBS over the cosine"""
    from fairseq_kerbs.analysis.plots import plot_kernels

    return plot_kernels()


plot = nested(
    "plot",
    "figures as PNG, PDF or SVG",
    "Draw a figure.",
    "FIGURE",
    contexts,
    theta,
    frequency,
    usage,
    history,
    kernels,
)


@command(
    "neighbours",
    reading.CHECKPOINT,
    reading.DATA_OR_DICT,
    reading.split("test"),
    reading.TRUST,
    arg.file("--compare", "a second model of the same data, counted in the same clusters", "OTHER"),
    arg.choice(
        "--similarity",
        "between output vectors: cosine after subtraction of their mean, or the inner product as "
        "in Gao et al.",
        "cosine",
        "inner-product",
    ),
    reading.words("show the clusters of these words", default=[]),
    arg.number("--top", 8, "number of clusters to show without --word. 0 shows all"),
    arg.number("--examples", 1, "number of sentences per cluster"),
    arg.number("--least", 20, "minimum number of occurrences of a word in the training data"),
    arg.switch("--joined", "use whole words only, with BPE pieces joined"),
    *reading.FILES,
)
def neighbours(args: argparse.Namespace) -> None:
    """clusters of words with similar output embeddings

    Cluster words by the similarity of their output embeddings, or of their senses'. With --data:
    count how often a word of a cluster is predicted instead of another. With --compare: count where
    a second model predicts the right word instead, and the reverse (Table 4 of Gao et al.). Models
    of fairseq work too.
    """
    import torch

    from fairseq_kerbs.analysis import neighbours as analysis
    from fairseq_kerbs.analysis.words import BPE_MARK, csv_of, is_word, word_numbers
    from fairseq_kerbs.checkpoints import model_layer

    if args.compare is not None and args.data is None:
        raise UserError("--compare needs --data, the text in which predictions are compared")
    trained = reading.read_model(args, any_model=True)
    dictionary = trained.dictionary
    layer = trained.layer or model_layer(trained.model, args.checkpoint)
    wanted = word_numbers(dictionary, args.word)
    compared = [
        is_word(word, number, dictionary.nspecial)
        and dictionary.count[number] >= args.least
        and not (args.joined and word.endswith(BPE_MARK))
        for number, word in enumerate(dictionary.symbols)
    ]
    if sum(compared) < 2:
        raise UserError(
            f"--least {args.least}: fewer than two words occur as often in the training data; give "
            "a smaller number"
        )
    text = other = None
    if trained.task is not None:
        text = _predictions(trained, args)
    if args.compare is not None:
        settings = argparse.Namespace(**{**vars(args), "checkpoint": args.compare})
        other = _predictions(reading.read_model(settings, any_model=True), args)
    clusters = analysis.find_clusters(
        layer, torch.tensor(compared), dictionary.count, args.similarity
    )
    result = analysis.find_neighbours(
        clusters,
        dictionary.symbols,
        text,
        other,
        wanted=wanted,
        top=args.top,
        examples=args.examples,
    )
    reading.write_files(args, result.as_json(), csv_of(result.table(), 6))
    reading.show(analysis.neighbours_as_text(result))


def _predictions(trained: reading.Trained, args: argparse.Namespace) -> Any:
    """The words of a split, without special symbols, and what a model predicts in their place."""
    from fairseq_kerbs.analysis.occurrences import read_text

    text = read_text(trained.model, trained.task, args.split, joined=args.joined, guesses=True)
    return text._replace(tokens=text.tokens[text.tokens["entry"] >= trained.dictionary.nspecial])
