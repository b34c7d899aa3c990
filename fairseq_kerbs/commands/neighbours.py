"""``fairseq-kerbs neighbours``: words that an output layer, or two, can hardly tell apart."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_kerbs.commands import reading

if TYPE_CHECKING:
    from fairseq_kerbs.commands import Subparsers


def add_neighbours(commands: Subparsers) -> None:
    """Compare words of a model's output layer, and two models on them."""
    parser = commands.add_parser(
        "neighbours",
        help="clusters of words that the output layer can hardly tell apart, of one model or two",
        description="Clusters of words that the output layer can hardly tell apart: by its vectors "
        "(cosine, or its kernel's similarity over senses), or with --data by the probability that "
        "each word gets in place of the others. With --data and two checkpoints also the sentences "
        "in which one model is right and the other is not, and how many there are of each kind. "
        "Works for fairseq's own models too.",
    )
    reading.add_model_flags(parser)
    text = "checkpoint to compare it with"
    parser.add_argument("other", type=Path, nargs="?", metavar="OTHER", help=text)
    text = "of the models [from their paths]"
    parser.add_argument("--names", nargs="+", default=[], metavar="NAME", help=text)
    text = "what makes words similar [confusions where there are data, else vectors]"
    parser.add_argument("--by", choices=("vectors", "confusions"), help=text)
    reading.add_numbers(
        parser,
        ("--top", 8, "clusters to show, 0 for all"),
        ("--examples", 1, "sentences of a cluster, for each model that is right"),
        ("--least", 20, "occurrences in the training data that a word must have"),
    )
    text = "whole words only, and sentences with BPE pieces joined"
    parser.add_argument("--joined", action="store_true", help=text)
    reading.add_files(parser)
    parser.set_defaults(run=_run_neighbours)


def _run_neighbours(args: argparse.Namespace) -> int:
    import torch

    from fairseq_kerbs.analysis import neighbours, similarity
    from fairseq_kerbs.analysis.words import BPE_MARK, is_word
    from fairseq_kerbs.utils.errors import UserError

    reading.check_numbers(args, top=0, examples=0, least=0)
    paths = [path for path in (args.checkpoint, args.other) if path is not None]
    if args.names and len(args.names) != len(paths):
        raise UserError(f"--names: give as many names as checkpoints, {len(paths)}")
    if len(set(args.names)) < len(args.names) or not all(args.names):
        raise UserError("--names: names must not be empty and must differ")
    if args.by == "confusions" and args.data is None:
        raise UserError("--by confusions looks at a split of the data: give --data BIN as well")
    by = args.by or ("vectors" if args.data is None else "confusions")
    names = args.names or model_names(paths)
    layers, predictions, dictionary = _read(args, paths, names, by)
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
    words = torch.tensor(compared)
    alike: dict[str, similarity.Similarity] = {
        name: similarity.VectorSimilarity(layers[name], words)
        if by == "vectors"
        else similarity.ConfusionSimilarity([predictions[name]], words)
        for name in names
    }
    result = neighbours.find_neighbours(
        *(alike, dictionary.symbols, dictionary.count),
        by=by,
        words=words,
        predictions=predictions,
        top=args.top,
        examples=args.examples,
    )
    reading.write_files(args, result, neighbours.neighbours_as_csv(result))
    print(neighbours.neighbours_as_text(result))
    return 0


def model_names(paths: list[Path]) -> list[str]:
    """Names of one or two checkpoints: what tells their paths apart.

    >>> model_names([Path("runs/tiny_softmax/a.pt"), Path("runs/tiny_kerbs/a.pt")])
    ['softmax', 'kerbs']
    """
    parts = [path.resolve().with_suffix("").parts[::-1] for path in paths]
    if len(paths) == 1:
        return [next((part for part in parts[0] if not part.startswith("checkpoint")), "")]
    differing = next((pair for pair in zip(*parts, strict=False) if len({*pair}) > 1), ("", ""))
    pieces = [re.split(r"[-_.]", part) for part in differing]
    for _ in range(2):  # from the front, then from the back
        while all(len(piece) > 1 for piece in pieces) and pieces[0][0] == pieces[1][0]:
            pieces = [piece[1:] for piece in pieces]
        pieces = [piece[::-1] for piece in pieces]
    names = ["-".join(piece) for piece in pieces]
    return names if all(names) and names[0] != names[1] else ["first", "second"]


def _read(
    args: argparse.Namespace, paths: list[Path], names: list[str], by: str
) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """Output layers, predictions (where there are data) and the dictionary of all models."""
    from fairseq_kerbs.analysis.predictions import collect_predictions
    from fairseq_kerbs.analysis.saved_layer import model_layer
    from fairseq_kerbs.utils.errors import UserError

    layers, predictions, dictionaries = {}, {}, []
    for name, path in zip(names, paths, strict=True):
        layers[name], dictionary, model, task = reading.read_model(args, path, any_model=True)
        if task is not None:
            if by == "vectors":
                layers[name] = model_layer(model, path)
            predictions[name] = collect_predictions(model, task, args.split, args.joined)
        dictionaries.append(dictionary)
    pair = " and ".join(map(str, paths))
    if dictionaries[-1].symbols != dictionaries[0].symbols:
        raise UserError(
            f"{pair} have different target dictionaries; compare models that were trained on the "
            "same data"
        )
    found = list(predictions.values())
    if found and not found[-1].same_words(found[0]):
        raise UserError(
            f"{pair} do not predict the same words of --split {args.split}; compare models of the "
            "same task"
        )
    return layers, predictions, dictionaries[0]
