"""``fairseq-kerbs plot``: figures, one subcommand each."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairseq_kerbs.commands import Subparsers


def add_plot(commands: Subparsers) -> None:
    """Draw figures."""
    parser = commands.add_parser(
        "plot", help="figures as PNG, PDF or SVG", description="Draw a figure."
    )
    figures = parser.add_subparsers(required=True, metavar="FIGURE")
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
