"""``fairseq-kerbs plot``: figures, one subcommand each."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_kerbs.commands import add_trust_flag
from fairseq_kerbs.commands.senses import add_checkpoint_flags, check_checkpoint_flags

if TYPE_CHECKING:
    from fairseq_kerbs.commands import Subparsers


def add_plot(commands: Subparsers) -> None:
    """Draw figures."""
    parser = commands.add_parser(
        "plot", help="figures as PNG, PDF or SVG", description="Draw a figure."
    )
    figures = parser.add_subparsers(required=True, metavar="FIGURE")
    _add_contexts(figures)
    _add_theta(figures)
    _add_frequency(figures)
    _add_usage(figures)
    _add_history(figures)
    _add_kernels(figures)
    for subparser in figures.choices.values():
        subparser.allow_abbrev = False


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FILE", help="a .png, .pdf or .svg file"
    )


def _add_kernels(figures: Subparsers) -> None:
    parser = figures.add_parser(
        "kernels",
        help="shapes of kernels",
        description="The kernels pow, log, rbf and wav and their gradients over the squared "
        "distance, and the KerBS kernel over the cosine for several theta.",
    )
    _add_output(parser)
    parser.set_defaults(run=_run_kernels)


def _run_kernels(args: argparse.Namespace) -> int:
    from fairseq_kerbs.analysis.figures import check_figure_path, save_figure
    from fairseq_kerbs.analysis.kernel_plots import plot_kernels

    check_figure_path(args.output)
    save_figure(plot_kernels(), args.output)
    return 0


def _add_contexts(figures: Subparsers) -> None:
    parser = figures.add_parser(
        "contexts",
        help="context vectors of a word, by sense (Figure 1 of the paper)",
        description="The context vectors of a word in a split of the data, projected on their two "
        "principal components, marked by their most probable sense; sense vectors on top, scaled "
        "to the contexts' mean length.",
    )
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT")
    parser.add_argument("--data", type=Path, required=True, metavar="BIN", help="binarized data")
    parser.add_argument("--split", default="test", help="split of the data [%(default)s]")
    parser.add_argument("--word", required=True, metavar="WORD", help="entry of the dictionary")
    parser.add_argument(
        "--most", type=int, default=500, metavar="N", help="contexts, at most [%(default)s]"
    )
    add_trust_flag(parser)
    _add_output(parser)
    parser.set_defaults(run=_run_contexts)


def _run_contexts(args: argparse.Namespace) -> int:
    from fairseq_kerbs.analysis import context_vectors as vectors
    from fairseq_kerbs.analysis.figures import check_figure_path, save_figure
    from fairseq_kerbs.analysis.occurrences import load_model
    from fairseq_kerbs.analysis.sense_plots import plot_contexts
    from fairseq_kerbs.analysis.sense_report import word_numbers
    from fairseq_kerbs.errors import UserError

    check_figure_path(args.output)
    if args.most < 2:
        raise UserError(f"--most is {args.most}, but must be at least 2")
    model, task = load_model(args.checkpoint, args.data, args.trust_checkpoint)
    (word,) = word_numbers(task.target_dictionary, [args.word])
    found = vectors.context_vectors(model, task, args.split, [word], args.most).get(word)
    if found is None or len(found) < 2:
        times = 0 if found is None else len(found)
        raise UserError(
            f"--word: {args.word} occurs {times} times in split {args.split}, but at least 2 "
            "contexts are needed; name a more frequent word or another --split"
        )
    layer = model.decoder.output
    senses = vectors.sense_numbers(layer, word)
    plane = vectors.project(found, layer.as_contexts(layer.weight[senses].detach().float()))
    sense_of = vectors.sense_of(layer, word, found).tolist()
    save_figure(plot_contexts(args.word, plane, sense_of, senses), args.output)
    return 0


def _add_theta(figures: Subparsers) -> None:
    parser = figures.add_parser(
        "theta",
        help="theta of the senses of words (Figure 3 of the paper)",
        description="The kernel parameter of each sense of some words, with the mean by usage.",
    )
    add_checkpoint_flags(parser, split=False)
    parser.add_argument("--word", nargs="+", required=True, metavar="WORD", help="words to draw")
    _add_output(parser)
    parser.set_defaults(run=_run_theta)


def _run_theta(args: argparse.Namespace) -> int:
    from fairseq_kerbs.analysis.context_vectors import sense_numbers
    from fairseq_kerbs.analysis.figures import check_figure_path, save_figure
    from fairseq_kerbs.analysis.sense_plots import plot_theta
    from fairseq_kerbs.analysis.sense_report import word_numbers
    from fairseq_kerbs.errors import UserError

    check_figure_path(args.output)
    layer, dictionary = _load_layer(args)
    if not layer.kernel.has_theta:
        raise UserError(f"the kernel {layer.kernel.name} of {args.checkpoint} has no theta")
    senses = [sense_numbers(layer, word) for word in word_numbers(dictionary, args.word)]
    usage = [layer.usage[own] / layer.usage[own].sum().clamp_min(1e-38) for own in senses]
    theta = [layer.theta[own].tolist() for own in senses]
    save_figure(plot_theta(args.word, theta, [share.tolist() for share in usage]), args.output)
    return 0


def _load_layer(args: argparse.Namespace) -> tuple[Any, Any]:
    from fairseq_kerbs.analysis.occurrences import load_model
    from fairseq_kerbs.analysis.saved_layer import load_layer

    check_checkpoint_flags(args)
    if args.data is None:
        return load_layer(args.checkpoint, args.dict, args.trust_checkpoint)
    model, task = load_model(args.checkpoint, args.data, args.trust_checkpoint)
    return model.decoder.output, task.target_dictionary


def _add_frequency(figures: Subparsers) -> None:
    parser = figures.add_parser(
        "frequency",
        help="number of senses against frequency",
        description="The number of senses of each word over its frequency in the training data.",
    )
    add_checkpoint_flags(parser, split=False)
    _add_output(parser)
    parser.set_defaults(run=_run_frequency)


def _run_frequency(args: argparse.Namespace) -> int:
    from fairseq_kerbs.analysis.figures import check_figure_path, save_figure
    from fairseq_kerbs.analysis.sense_plots import plot_frequency
    from fairseq_kerbs.errors import UserError

    check_figure_path(args.output)
    layer, dictionary = _load_layer(args)
    numbers = layer.inventory.senses_per_word()[dictionary.nspecial :].tolist()
    counts = dictionary.count[dictionary.nspecial :]
    if not any(counts):
        raise UserError("the dictionary has no counts of words; give the one of fairseq-preprocess")
    save_figure(plot_frequency(numbers, counts), args.output)
    return 0


def _add_usage(figures: Subparsers) -> None:
    parser = figures.add_parser(
        "usage",
        help="how usage is spread over senses",
        description="Histograms of usage U over all senses, and of its shares within words.",
    )
    add_checkpoint_flags(parser, split=False)
    _add_output(parser)
    parser.set_defaults(run=_run_usage)


def _run_usage(args: argparse.Namespace) -> int:
    from fairseq_kerbs.analysis.figures import check_figure_path, save_figure
    from fairseq_kerbs.analysis.sense_plots import plot_usage

    check_figure_path(args.output)
    layer, _ = _load_layer(args)
    save_figure(plot_usage(layer.usage, layer.inventory.word_of_sense), args.output)
    return 0


def _add_history(figures: Subparsers) -> None:
    parser = figures.add_parser(
        "history",
        help="reallocation and theta over training",
        description="Words by number of senses, senses moved and quantiles of theta, by updates.",
    )
    parser.add_argument(
        "log", type=Path, metavar="LOG", help="output of fairseq-train, or its --tensorboard-logdir"
    )
    _add_output(parser)
    parser.set_defaults(run=_run_history)


def _run_history(args: argparse.Namespace) -> int:
    from fairseq_kerbs.analysis.figures import check_figure_path, save_figure
    from fairseq_kerbs.analysis.history import read_history
    from fairseq_kerbs.analysis.sense_plots import plot_history

    check_figure_path(args.output)
    save_figure(plot_history(read_history(args.log)), args.output)
    return 0
