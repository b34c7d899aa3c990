"""``fairseq-kerbs plot``: figures, one subcommand each."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_kerbs.commands import reading

if TYPE_CHECKING:
    from fairseq_kerbs.commands import Subparsers

FIGURES = {
    "contexts": (
        "context vectors of a word, by sense (Figure 1 of the paper)",
        "The context vectors of a word in a split of the data, projected on their two principal "
        "components, marked by their most probable sense; sense vectors on top, scaled to the "
        "contexts' mean length.",
    ),
    "theta": (
        "theta of the senses of words (Figure 3 of the paper)",
        "The kernel parameter of each sense of some words, with the mean by usage.",
    ),
    "frequency": (
        "number of senses against frequency",
        "The number of senses of each word over its frequency in the training data.",
    ),
    "usage": (
        "how usage is spread over senses",
        "Histograms of usage U over all senses, and of its shares within words.",
    ),
    "history": (
        "reallocation and theta over training",
        "Words by number of senses, senses moved and quantiles of theta, by updates.",
    ),
    "kernels": (
        "shapes of kernels",
        "The kernels pow, log, rbf and wav and their gradients over the squared distance, and the "
        "KerBS kernel over the cosine for several theta.",
    ),
}
"""By name: help and description."""


def add_plot(commands: Subparsers) -> None:
    """Draw figures."""
    parser = commands.add_parser(
        "plot", help="figures as PNG, PDF or SVG", description="Draw a figure."
    )
    figures = parser.add_subparsers(required=True, metavar="FIGURE", dest="figure")
    for name, (text, description) in FIGURES.items():
        figure = figures.add_parser(name, help=text, description=description, allow_abbrev=False)
        file = "a .png, .pdf or .svg file"
        figure.add_argument("-o", "--output", type=Path, required=True, metavar="FILE", help=file)
        figure.set_defaults(run=_run)
        if name == "history":
            text = "output of fairseq-train, or its --tensorboard-logdir"
            figure.add_argument("log", type=Path, metavar="LOG", help=text)
        elif name != "kernels":
            contexts = name == "contexts"
            reading.add_model_flags(figure, needs_data=contexts, split=contexts)
        if name == "theta":
            text = "words to draw"
            figure.add_argument("--word", nargs="+", required=True, metavar="WORD", help=text)
        if name == "contexts":
            text = "entry of the dictionary"
            figure.add_argument("--word", required=True, metavar="WORD", help=text)
            reading.add_numbers(figure, ("--most", 500, "contexts, at most"))


def _run(args: argparse.Namespace) -> int:
    from fairseq_kerbs.analysis import plots
    from fairseq_kerbs.analysis.history import read_history

    plots.check_figure_path(args.output)
    if args.figure == "kernels":
        figure = plots.plot_kernels()
    elif args.figure == "history":
        figure = plots.plot_history(read_history(args.log))
    else:
        least = {"most": 2} if args.figure == "contexts" else {}
        reading.check_numbers(args, **least)
        figure = _of_model(args, *reading.read_model(args))
    plots.save_figure(figure, args.output)
    return 0


def _of_model(args: argparse.Namespace, layer: Any, dictionary: Any, model: Any, task: Any) -> Any:
    from fairseq_kerbs.analysis import context_vectors as vectors
    from fairseq_kerbs.analysis import plots
    from fairseq_kerbs.analysis.words import word_numbers
    from fairseq_kerbs.utils.errors import UserError

    if args.figure == "usage":
        return plots.plot_usage(layer.usage, layer.word_of_sense)
    if args.figure == "frequency":
        counts = dictionary.count[dictionary.nspecial :]
        if not any(counts):
            raise UserError(
                "the dictionary has no counts of words; give the one of fairseq-preprocess"
            )
        numbers = layer.senses_per_word()[dictionary.nspecial :].tolist()
        return plots.plot_frequency(numbers, counts)
    if args.figure == "theta":
        if not layer.has_theta:
            raise UserError(f"the kernel {layer.kernel_name} of {args.checkpoint} has no theta")
        own = [vectors.sense_numbers(layer, word) for word in word_numbers(dictionary, args.word)]
        shares = [vectors.usage_shares(layer, senses).tolist() for senses in own]
        return plots.plot_theta(args.word, [layer.theta[s].tolist() for s in own], shares)
    (word,) = word_numbers(dictionary, [args.word])
    found = vectors.context_vectors(model, task, args.split, [word], args.most)
    if (times := len(found.get(word, ()))) < 2:
        raise UserError(
            f"--word: {args.word} occurs {times} times in split {args.split}, but at least 2 "
            "contexts are needed; name a more frequent word or another --split"
        )
    senses = vectors.sense_numbers(layer, word)
    plane = vectors.project(found[word], layer.as_contexts(layer.weight[senses].detach().float()))
    sense_of = vectors.sense_of(layer, word, found[word]).tolist()
    return plots.plot_contexts(args.word, plane, sense_of, senses)
