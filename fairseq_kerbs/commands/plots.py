"""``fairseq-kerbs plot``: figures, one subcommand each."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_kerbs.commands import reading

if TYPE_CHECKING:
    from fairseq_kerbs.commands import Subparsers


def add_plot(commands: Subparsers) -> None:
    """Draw figures."""
    parser = commands.add_parser(
        "plot", help="figures as PNG, PDF or SVG", description="Draw a figure."
    )
    figures = parser.add_subparsers(required=True, metavar="FIGURE")

    def add(
        name: str, draw: Callable[[argparse.Namespace], Any], text: str, description: str
    ) -> argparse.ArgumentParser:
        figure = figures.add_parser(name, help=text, description=description, allow_abbrev=False)
        file = "a .png, .pdf or .svg file"
        figure.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help=file)
        figure.set_defaults(run=_run, draw=draw)
        return figure

    contexts = add(
        *("contexts", _contexts, "context vectors of a word, by sense (Figure 1 of the paper)"),
        "The context vectors of a word in a split of the data, projected on their two principal "
        "components, marked by their most probable sense; sense vectors on top, scaled to the "
        "contexts' mean length.",
    )
    reading.add_model_flags(contexts, needs_data=True)
    contexts.add_argument("--word", required=True, metavar="WORD", help="entry of the dictionary")
    reading.add_numbers(contexts, ("--most", 500, "contexts, at most"))
    theta = add(
        *("theta", _theta, "theta of the senses of words (Figure 3 of the paper)"),
        "The kernel parameter of each sense of some words, with the mean by usage.",
    )
    theta.add_argument("--word", nargs="+", required=True, metavar="WORD", help="words to draw")
    frequency = add(
        *("frequency", _frequency, "number of senses against frequency"),
        "The number of senses of each word over its frequency in the training data.",
    )
    usage = add(
        *("usage", _usage, "how usage is spread over senses"),
        "Histograms of usage U over all senses, and of its shares within words.",
    )
    for figure in (theta, frequency, usage):
        reading.add_model_flags(figure, split=False)
    history = add(
        *("history", _history, "reallocation and theta over training"),
        "Words by number of senses, senses moved and quantiles of theta, by updates.",
    )
    text = "output of fairseq-train, or its --tensorboard-logdir"
    history.add_argument("log", type=Path, metavar="LOG", help=text)
    add(
        *("kernels", _kernels, "shapes of kernels"),
        "The kernels pow, log, rbf and wav and their gradients over the squared distance, and the "
        "KerBS kernel over the cosine for several theta.",
    )


def _run(args: argparse.Namespace) -> int:
    from fairseq_kerbs.analysis.plots import check_figure_path, save_figure

    check_figure_path(args.output)
    save_figure(args.draw(args), args.output)
    return 0


def _contexts(args: argparse.Namespace) -> Any:
    from fairseq_kerbs.analysis import context_vectors as vectors
    from fairseq_kerbs.analysis.plots import plot_contexts
    from fairseq_kerbs.analysis.words import word_numbers
    from fairseq_kerbs.utils.errors import UserError

    reading.check_numbers(args, most=2)
    layer, dictionary, model, task = reading.read_model(args)
    (word,) = word_numbers(dictionary, [args.word])
    found = vectors.context_vectors(model, task, args.split, [word], args.most).get(word)
    times = 0 if found is None else len(found)
    if found is None or times < 2:
        raise UserError(
            f"--word: {args.word} occurs {times} times in split {args.split}, but at least 2 "
            "contexts are needed; name a more frequent word or another --split"
        )
    senses = vectors.sense_numbers(layer, word)
    plane = vectors.project(found, layer.as_contexts(layer.weight[senses].detach().float()))
    return plot_contexts(args.word, plane, vectors.sense_of(layer, word, found).tolist(), senses)


def _theta(args: argparse.Namespace) -> Any:
    from fairseq_kerbs.analysis.context_vectors import sense_numbers, usage_shares
    from fairseq_kerbs.analysis.plots import plot_theta
    from fairseq_kerbs.analysis.words import word_numbers
    from fairseq_kerbs.utils.errors import UserError

    reading.check_numbers(args)
    layer, dictionary, *_ = reading.read_model(args)
    if not layer.has_theta:
        raise UserError(f"the kernel {layer.kernel_name} of {args.checkpoint} has no theta")
    senses = [sense_numbers(layer, word) for word in word_numbers(dictionary, args.word)]
    theta = [layer.theta[own].tolist() for own in senses]
    return plot_theta(args.word, theta, [usage_shares(layer, own).tolist() for own in senses])


def _frequency(args: argparse.Namespace) -> Any:
    from fairseq_kerbs.analysis.plots import plot_frequency
    from fairseq_kerbs.utils.errors import UserError

    reading.check_numbers(args)
    layer, dictionary, *_ = reading.read_model(args)
    special = dictionary.nspecial
    if not any(dictionary.count[special:]):
        raise UserError("the dictionary has no counts of words; give the one of fairseq-preprocess")
    numbers = layer.senses_per_word()[special:].tolist()
    return plot_frequency(numbers, dictionary.count[special:])


def _usage(args: argparse.Namespace) -> Any:
    from fairseq_kerbs.analysis.plots import plot_usage

    reading.check_numbers(args)
    layer = reading.read_model(args).layer
    return plot_usage(layer.usage, layer.word_of_sense)


def _history(args: argparse.Namespace) -> Any:
    from fairseq_kerbs.analysis.history import read_history
    from fairseq_kerbs.analysis.plots import plot_history

    return plot_history(read_history(args.log))


def _kernels(_: argparse.Namespace) -> Any:
    from fairseq_kerbs.analysis.plots import plot_kernels

    return plot_kernels()
