"""``fairseq-kerbs geometry``: clusters and variance of context vectors, of any model."""

from __future__ import annotations

import argparse

from fairseq_kerbs.commands import Subparsers, reading


def add_geometry(commands: Subparsers) -> None:
    """Measure context vectors."""
    parser = commands.add_parser(
        "geometry",
        help="clusters and variance of words' context vectors, of any fairseq model",
        description="For each word the number of clusters of its context vectors in a split of the "
        "data, chosen by silhouette and held against one Gaussian of the same covariance, and "
        "their variance. Works for fairseq's own models too.",
    )
    reading.add_model_flags(parser, needs_data=True)
    parser.add_argument("--word", nargs="+", default=[], metavar="WORD", help="words to measure")
    reading.add_numbers(
        parser,
        ("--top", 20, "if no word is named: how many of the most frequent ones"),
        ("--most", 300, "contexts of a word, at most"),
        ("--least", 10, "contexts that a word must have"),
        ("--max-clusters", 6, "clusters of a word, at most"),
        ("--seed", 1, "of k-means and of the comparison"),
    )
    reading.add_files(parser)
    parser.set_defaults(run=_run_geometry)


def _run_geometry(args: argparse.Namespace) -> int:
    from fairseq_kerbs.analysis.context_vectors import context_vectors
    from fairseq_kerbs.analysis.geometry import geometry_as_csv, geometry_as_text, measure_word
    from fairseq_kerbs.analysis.words import frequent_words, word_numbers
    from fairseq_kerbs.utils.processes import progress

    reading.check_numbers(args, top=1, least=3, most=args.least, max_clusters=2)
    layer, dictionary, model, task = reading.read_model(args, any_model=True)
    words = word_numbers(dictionary, args.word) or frequent_words(dictionary, args.top)
    found = context_vectors(model, task, args.split, words, args.most)
    times = {word: len(found.get(word, ())) for word in words}
    measured = [
        {"word": dictionary[word]}
        | measure_word(found[word], args.max_clusters, args.seed, layer, word)
        for word in progress(words, "clusters", " words")
        if times[word] >= args.least
    ]
    few = {dictionary[word]: times[word] for word in words if times[word] < args.least}
    result = {"words": measured, "few": few, "least": args.least}
    reading.write_files(args, result, geometry_as_csv(measured))
    if measured:
        reading.show(geometry_as_text(measured))
    if few:
        counts = ", ".join(f"{word} ({count})" for word, count in few.items())
        reading.show(f"fewer than {args.least} contexts: {counts}")
    return 0
