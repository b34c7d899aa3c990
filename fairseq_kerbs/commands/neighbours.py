"""``fairseq-kerbs neighbours``: words that an output layer, or two, can hardly tell apart."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from fairseq_kerbs.commands import Subparsers, reading
from fairseq_kerbs.utils.errors import UserError


def add_neighbours(commands: Subparsers) -> None:
    """Compare words of a model's output layer, and two models on them."""
    parser = commands.add_parser(
        "neighbours",
        help="clusters of words that the output layer can hardly tell apart, of one model or two",
        description="Clusters of words that the output layer can hardly tell apart: by its vectors "
        "(cosine, or its kernel's similarity over senses). With --data also how often a word of a "
        "cluster is predicted in place of another, and of two checkpoints where one is right and "
        "the other is not. Works for fairseq's own models too.",
    )
    reading.add_model_flags(parser)
    add = parser.add_argument
    add("other", type=Path, nargs="?", metavar="OTHER", help="checkpoint to compare it with")
    add("--names", nargs="+", metavar="NAME", help="of the models [from their paths]")
    reading.add_numbers(
        parser,
        ("--top", 8, "clusters to show, 0 for all"),
        ("--examples", 1, "sentences of a cluster, for each model that is right"),
        ("--least", 20, "occurrences in the training data that a word must have"),
    )
    add("--joined", action="store_true", help="whole words only, and BPE pieces joined")
    reading.add_files(parser)
    parser.set_defaults(run=_run_neighbours)


def _run_neighbours(args: argparse.Namespace) -> int:
    import torch

    from fairseq_kerbs.analysis import neighbours
    from fairseq_kerbs.analysis.words import BPE_MARK, is_word

    reading.check_numbers(args, top=0, examples=0, least=0)
    paths = [path for path in (args.checkpoint, args.other) if path is not None]
    names = args.names or model_names(paths)
    if len(set(names)) != len(paths) or len(names) != len(paths):
        raise UserError(f"--names: give as many names as checkpoints, {len(paths)}, that differ")
    layers, predictions, dictionary = _read(args, dict(zip(names, paths)))
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
    result = neighbours.find_neighbours(
        *(layers, predictions, torch.tensor(compared), dictionary.symbols, dictionary.count),
        top=args.top,
        examples=args.examples,
    )
    reading.write_files(args, result, neighbours.neighbours_as_csv(result))
    print(neighbours.neighbours_as_text(result))
    return 0


def model_names(paths: list[Path]) -> list[str]:
    """Names of checkpoints: the last part of their paths in which they differ."""
    parts = (path.resolve().with_suffix("").parts[::-1] for path in paths)
    differing = (list(names) for names in zip(*parts) if len({*names}) == len(paths))
    return next(differing, ["first", "second"])


def _read(
    args: argparse.Namespace, paths: dict[str, Path]
) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """By name, output layers, and with data predictions; the dictionary of all."""
    from fairseq_kerbs.analysis.predictions import collect_predictions
    from fairseq_kerbs.checkpoints import model_layer

    layers, predictions, dictionaries = {}, {}, []
    for name, path in paths.items():
        layer, dictionary, model, task = reading.read_model(args, path, any_model=True)
        dictionaries.append(dictionary)
        if task is not None:
            predictions[name] = collect_predictions(model, task, args.split, args.joined)
        layers[name] = layer or model_layer(model, path)
    found, differ = list(predictions.values()), ""
    if dictionaries[-1].symbols != dictionaries[0].symbols:
        differ = "have different target dictionaries"
    elif found and not found[-1].same_words(found[0]):
        differ = f"do not predict the same words of --split {args.split}"
    if differ:
        raise UserError(
            f"{' and '.join(map(str, paths.values()))} {differ}; compare models of the same task "
            "that were trained on the same data"
        )
    return layers, predictions, dictionaries[0]
