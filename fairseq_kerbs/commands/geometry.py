"""``fairseq-kerbs geometry``: clusters and variance of context vectors, of any model."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_kerbs.commands import add_trust_flag

if TYPE_CHECKING:
    from fairseq_kerbs.commands import Subparsers


def add_geometry(commands: Subparsers) -> None:
    """Measure context vectors."""
    parser = commands.add_parser(
        "geometry",
        help="clusters and variance of words' context vectors, of any fairseq model",
        description="For each word the number of clusters of its context vectors in a split of the "
        "data, chosen by silhouette and held against one Gaussian of the same covariance, and "
        "their variance. Works for fairseq's own models too.",
    )
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT")
    parser.add_argument("--data", type=Path, required=True, metavar="BIN", help="binarized data")
    parser.add_argument("--split", default="test", help="split of the data [%(default)s]")
    parser.add_argument("--word", nargs="+", default=[], metavar="WORD", help="words to measure")
    for flag, default, text in (
        ("--top", 20, "if no word is named: how many of the most frequent ones"),
        ("--most", 300, "contexts of a word, at most"),
        ("--least", 10, "contexts that a word must have"),
        ("--max-clusters", 6, "clusters of a word, at most"),
        ("--seed", 1, "of k-means and of the comparison"),
    ):
        parser.add_argument(
            flag, type=int, default=default, metavar="N", help=f"{text} [%(default)s]"
        )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as JSON")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write the table as CSV")
    add_trust_flag(parser)
    parser.set_defaults(run=_run_geometry)


def _run_geometry(args: argparse.Namespace) -> int:
    from fairseq_kerbs.analysis.context_vectors import context_vectors
    from fairseq_kerbs.analysis.geometry import measure
    from fairseq_kerbs.analysis.sense_report import frequent_words, word_numbers
    from fairseq_kerbs.checkpoints import load_model_and_task
    from fairseq_kerbs.corpora.files import atomic_write
    from fairseq_kerbs.output_layers import OutputLayer

    _check_flags(args)
    model, task = load_model_and_task(
        args.checkpoint, args.data, trust=args.trust_checkpoint, any_model=True
    )
    dictionary = task.target_dictionary
    words = word_numbers(dictionary, args.word) or frequent_words(dictionary, args.top)
    vectors = context_vectors(model, task, args.split, words, args.most)
    layer = getattr(model.decoder, "output", None)
    result = measure(
        *(vectors, words, dictionary.symbols),
        most=args.max_clusters,
        least=args.least,
        seed=args.seed,
        layer=layer if isinstance(layer, OutputLayer) else None,
    )
    outputs = ((args.json, result.as_json() + "\n"), (args.csv, result.as_csv()))
    for path, content in outputs:
        if path is not None:
            with atomic_write(path) as stream:
                stream.write(content)
    print(result.as_text())
    return 0


def _check_flags(args: argparse.Namespace) -> None:
    from fairseq_kerbs.errors import UserError

    for flag, least in (("top", 1), ("least", 3), ("max_clusters", 2)):
        value = getattr(args, flag)
        if value < least:
            name = flag.replace("_", "-")
            raise UserError(f"--{name} is {value}, but must be at least {least}")
    if args.most < args.least:
        raise UserError(f"--most is {args.most}, but --least asks for {args.least} contexts")
