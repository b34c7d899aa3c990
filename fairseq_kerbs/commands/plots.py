"""``fairseq-kerbs plot``: figures, one subcommand each."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from fairseq_kerbs.commands import OutputPath, Subparsers, reading, say_written
from fairseq_kerbs.utils.errors import UserError

FIGURES = {
    "contexts": "context vectors of a word in a split of the data, in the plane that parts its "
    "senses most or on two principal components, with the names of senses (Figure 1 of the paper)",
    "theta": "theta of the senses of words, with the mean by usage (Figure 3 of the paper)",
    "frequency": "the number of senses of each word over its frequency in the training data",
    "usage": "histograms of usage over all senses, and of its shares within words",
    "history": "words by number of senses, senses moved and quantiles of theta, by updates",
    "kernels": "the kernels pow, log, rbf and wav and their gradients over the squared distance, "
    "and the KerBS kernel over the cosine for several theta",
}


def add_plot(commands: Subparsers) -> None:
    """Draw figures."""
    parser = commands.add_parser(
        "plot", help="figures as PNG, PDF or SVG", description="Draw a figure."
    )
    figures = parser.add_subparsers(required=True, metavar="FIGURE", dest="figure")
    for name, text in FIGURES.items():
        figure = figures.add_parser(name, help=text, description=text, allow_abbrev=False)
        file = "a .png, .pdf or .svg file"
        figure.add_argument(
            "-o", "--output", type=OutputPath, required=True, metavar="FILE", help=file
        )
        figure.set_defaults(run=_run)
        contexts = name == "contexts"
        if name == "history":
            text = "output of fairseq-train, or its --tensorboard-logdir"
            figure.add_argument("log", type=Path, metavar="LOG", help=text)
        elif name != "kernels":
            reading.add_model_flags(figure, needs_data=contexts, split="train" if contexts else "")
        if name in ("contexts", "theta"):
            nargs, text = (1 if contexts else "+"), "entry of the dictionary"
            figure.add_argument("--word", nargs=nargs, required=True, metavar="WORD", help=text)
        if contexts:
            reading.add_numbers(figure, ("--most", 300, "contexts, at most, drawn at random"))
            text = "plane: linear discriminants of the senses, marks at their means; or principal "
            text += "components, marks at the sense vectors [%(default)s]"
            ways = ("discriminants", "pca")
            figure.add_argument("--projection", choices=ways, default=ways[0], help=text)


def _run(args: argparse.Namespace) -> int:
    from fairseq_kerbs.analysis import plots
    from fairseq_kerbs.analysis.history import read_history

    plots.check_figure_path(args.output)
    if args.figure == "kernels":
        figure = plots.plot_kernels()
    elif args.figure == "history":
        figure = plots.plot_history(read_history(args.log))
    else:
        reading.check_numbers(args, **({"most": 2} if args.figure == "contexts" else {}))
        figure = _of_model(args, *reading.read_model(args))
    plots.save_figure(figure, args.output)
    say_written(args.output, args.figure)
    return 0


def _of_model(args: argparse.Namespace, layer: Any, dictionary: Any, model: Any, task: Any) -> Any:
    from fairseq_kerbs.analysis import context_vectors as vectors
    from fairseq_kerbs.analysis import plots
    from fairseq_kerbs.analysis.words import word_numbers

    if args.figure == "usage":
        return plots.plot_usage(layer.usage, layer.word_of_sense)
    if args.figure == "frequency":
        counts = dictionary.count[dictionary.nspecial :]
        if not any(counts):
            raise UserError(
                "the dictionary has no counts of words; give the one of fairseq-preprocess"
            )
        senses = layer.senses_per_word()[dictionary.nspecial :].tolist()
        return plots.plot_frequency(senses, counts)
    if args.figure == "theta" and not layer.has_theta:
        raise UserError(f"the kernel {layer.kernel_name} of {args.checkpoint} has no theta")
    words = word_numbers(dictionary, args.word)
    senses = [vectors.sense_numbers(layer, word) for word in words]
    if args.figure == "theta":
        shares = [vectors.usage_shares(layer, own).tolist() for own in senses]
        return plots.plot_theta(args.word, [layer.theta[own].tolist() for own in senses], shares)
    return _contexts(args, layer, model, task, words[0], senses[0])


def _contexts(
    args: argparse.Namespace, layer: Any, model: Any, task: Any, word: int, senses: list[int]
) -> Any:
    import torch

    from fairseq_kerbs.analysis import context_vectors as vectors
    from fairseq_kerbs.analysis import plots
    from fairseq_kerbs.analysis.names import NO_NAME

    found = vectors.context_vectors(model, task, args.split, [word], sys.maxsize)
    if (times := len(found.get(word, ()))) < 2:
        raise UserError(
            f"--word: {args.word[0]} occurs {times} times in split {args.split}, but at least 2 "
            "contexts are needed; name a more frequent word or another --split"
        )
    drawn = torch.randperm(times, generator=torch.Generator().manual_seed(1))[: args.most]
    contexts = found[word][drawn]
    sense_of = vectors.sense_of(layer, word, contexts)
    if args.projection == "pca" or len(sense_of.unique()) < 2:
        weight = layer.weight[senses].detach().float()
        plane = vectors.project(contexts, layer.as_contexts(weight))
    else:
        plane = vectors.discriminate(contexts, sense_of, len(senses))
    by_row = reading.read_names(model, task, "train", args.split).names(word)
    named = [by_row.get(row, NO_NAME) for row in senses]
    text = ["\n".join(filter(None, (name.translates, name.beside))) for name in named]
    return plots.plot_contexts(args.word[0], plane, sense_of, text)
