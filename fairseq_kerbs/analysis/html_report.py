"""All senses as one HTML file, and as files for TensorBoard's embedding projector.

The HTML file has data, style and script in it and asks the network nothing. Its data are compact:
one list a column, numbers rounded. Words are numbered as in the page (fairseq's own entries left
out), senses word by word, so that sense s of word w is at ``first[w] + s`` in every list of senses.
Nearest senses refer to these places. The script in ``page/`` reads this and nothing else.
"""

from __future__ import annotations

import html
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairseq_kerbs.analysis.context_vectors import project, sense_numbers, sense_of
from fairseq_kerbs.analysis.history import Series, thin
from fairseq_kerbs.analysis.occurrences import Occurrence
from fairseq_kerbs.analysis.similarity import nearest_senses
from fairseq_kerbs.analysis.words import is_word
from fairseq_kerbs.output_layers import OutputLayer
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import atomic_write

_GRID = 999  # largest coordinate of a projected context
LEAST_POINTS, MOST_POINTS = 4, 60
"""Contexts that a word must have to be drawn, and most that are drawn."""

VECTORS, METADATA, CONFIG = "vectors.tsv", "metadata.tsv", "projector_config.pbtxt"


class PageWords(NamedTuple):
    """Words in the order of the dictionary, their senses in the order of usage."""

    numbers: list[int]  # [W] number of each word in the dictionary
    senses: list[int]  # numbers of their senses, word by word, the most used first
    shares: NDArray[np.float64]  # of these, of the word's usage
    first: list[int]  # [W + 1] where the senses of each word begin


def page_words(layer: OutputLayer, symbols: Sequence[str], special: int) -> PageWords:
    """Choose and order what is shown.

    Args:
        layer: output layer.
        symbols: [V] entries of the dictionary.
        special: entries at its beginning that are no words.
    """
    numbers = [number for number, word in enumerate(symbols) if is_word(word, number, special)]
    owners = layer.word_of_sense.cpu().numpy()  # [M]
    usage = layer.usage.detach().double().cpu().numpy()
    senses = np.lexsort((-usage, owners))  # of equal usage: by number
    senses = senses[np.isin(owners[senses], numbers)]
    totals = np.bincount(owners, weights=usage)[owners[senses]]
    first = np.searchsorted(owners[senses], [*numbers, len(symbols)])
    shares = usage[senses] / np.maximum(totals, 1e-38)
    return PageWords(numbers, senses.tolist(), shares, first.tolist())


def page_data(
    layer: OutputLayer,
    symbols: Sequence[str],
    counts: Sequence[int],
    special: int,
    *,
    facts: Mapping[str, str | int],
    found: Iterable[Occurrence] | None = None,
    contexts: Mapping[int, Tensor] | None = None,
    examples: int = 3,
    nearest: int = 5,
    history: Series | None = None,
) -> dict[str, Any]:
    """Gather the data of a page.

    Args:
        layer: output layer.
        symbols: [V] entries of the dictionary.
        counts: [V] occurrences in the training data.
        special: entries at the beginning of the dictionary that are no words.
        facts: names and values for the head of the page.
        found: occurrences of every token, where there are data.
        contexts: context vectors [n, d] of words, by number in the dictionary.
        examples: contexts of each sense.
        nearest: nearest senses of each.
        history: of the training.
    """
    words = page_words(layer, symbols, special)
    place = {sense: position for position, sense in enumerate(words.senses)}
    ignored = sorted(set(range(layer.vocab_size)) - set(words.numbers))
    rows = [
        [(place[sense], round(score, 2)) for sense, score in row] + [(-1, 0)] * (nearest - len(row))
        for row in nearest_senses(layer, words.senses, nearest, ignored)
    ]
    near = [pair for row in rows for pair in row]
    theta, log_prob = layer.theta[words.senses].tolist(), layer.log_prob.tolist()
    thinned = thin(history).items() if history is not None else ()
    return {
        "format": 1,
        "facts": [[name, str(value)] for name, value in facts.items()],
        "kernel": layer.kernel_name,
        "words": [symbols[number] for number in words.numbers],
        "count": [counts[number] for number in words.numbers],
        "logp": [_short(log_prob[number]) for number in words.numbers],
        "first": words.first,
        "sense": words.senses,
        "usage": (1000 * words.shares).round().astype(int).tolist(),
        "theta": [round(value, 3) for value in theta] if layer.has_theta else None,
        # places of the nearest senses, ``each`` of every sense; −1 where there are no more
        "near": {"each": nearest, "place": [p for p, _ in near], "score": [s for _, s in near]},
        "history": {n: [at, list(map(_short, own))] for n, (at, own) in thinned} or None,
        "points": _points(layer, words, contexts or {}),
        **_examples(place, found, examples),
    }


def _short(value: float) -> float | int:
    """A number of four digits; whole ones without a point."""
    rounded = float(f"{value:.4g}")
    return int(rounded) if rounded.is_integer() else rounded


def _examples(
    place: dict[int, int], found: Iterable[Occurrence] | None, number: int
) -> dict[str, Any]:
    """How often senses were used, and the surest contexts: sentence, position, posterior in ‰."""
    used: dict[int, list[Occurrence]] = defaultdict(list)
    for one in found or ():
        if one.sense in place:  # not of an entry that is not shown, such as <unk>
            used[place[one.sense]].append(one)
    lines: dict[int, int] = {}
    texts: list[str] = []
    examples: dict[str, list[int]] = defaultdict(list)
    for at in sorted(used):
        own = sorted(used[at], key=lambda one: (-max(one.posterior), one.line, one.position))
        for one in own[:number]:
            if one.line not in lines:
                lines[one.line] = len(texts)
                texts.append(" ".join(one.tokens))
            numbers = lines[one.line], one.position, round(1000 * max(one.posterior))
            examples[str(at)].extend(numbers)
    times = None if found is None else [len(used.get(at, ())) for at in range(len(place))]
    return {"times": times, "examples": examples, "sentences": texts}


def _points(
    layer: OutputLayer, words: PageWords, contexts: Mapping[int, Tensor]
) -> dict[str, list[list[int]]]:
    """Projected contexts of each word (x, y, sense, …) and its projected senses (x, y, …)."""
    points: dict[str, list[list[int]]] = {}
    for index, number in enumerate(words.numbers):
        vectors = contexts.get(number)
        if vectors is None or len(vectors) < LEAST_POINTS:
            continue
        own, vectors = words.senses[slice(*words.first[index : index + 2])], vectors[:MOST_POINTS]
        plane = project(vectors, layer.as_contexts(layer.weight[own].detach().float()))
        both = torch.cat([plane.contexts, plane.senses])
        both -= both.amin(0)
        # one scale for both axes
        grid = (both * (_GRID / (float(both.max()) or 1.0))).round().long().tolist()
        table = sense_numbers(layer, number)
        order = [own.index(table[slot]) for slot in sense_of(layer, number, vectors).tolist()]
        dots = [x for dot, sense in zip(grid, order, strict=False) for x in (*dot, sense)]
        points[str(index)] = [dots, [x for mark in grid[len(order) :] for x in mark]]
    return points


def html_page(title: str, data: Mapping[str, Any]) -> str:
    """The page, from the files in ``page/``.

    Args:
        title: its title, plain text.
        data: what `page_data` gathers.

    Raises:
        ValueError: a number is not finite.
    """
    folder = files(__package__) / "page"
    names = ("page.html", "style.css", "charts.js", "page.js")
    page, style, *scripts = [(folder / name).read_text(encoding="utf-8").rstrip() for name in names]
    parts = {"TITLE": html.escape(title), "STYLE": style, "SCRIPT": "\n".join(scripts)}
    parts["DATA"] = script_json(data)
    # one pass, so that a text that looks like a place is left as it is
    return re.sub("__(TITLE|STYLE|DATA|SCRIPT)__", lambda match: parts[match[1]], page) + "\n"


def script_json(data: Mapping[str, Any]) -> str:
    """JSON that can stand inside a ``<script>`` element: characters that HTML might take for
    markup, ``<``, ``>`` and ``&``, and two line ends that older JavaScript refuses are escaped."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.translate({ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"})


def write_projector(folder: Path, layer: OutputLayer, symbols: Sequence[str], special: int) -> None:
    """Write the senses of `page_words`, which see, into a folder, made where it is missing.

    The three files open with ``tensorboard --logdir FOLDER``; `VECTORS` and `METADATA` load in any
    other projector, too.

    Raises:
        UserError: the folder is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--projector: {folder} is no folder")
    words = page_words(layer, symbols, special)
    theta, owners = layer.theta.tolist(), layer.word_of_sense.tolist()
    times = np.repeat(np.diff(words.first), np.diff(words.first)).tolist()
    with atomic_write(folder / VECTORS) as stream:
        weight = layer.weight[words.senses].detach().cpu().numpy()
        np.savetxt(stream, weight, fmt="%.6g", delimiter="\t")
    with atomic_write(folder / METADATA) as stream:
        stream.write("word\tsense\ttheta\tusage\tsenses\n")
        for sense, share, number in zip(words.senses, words.shares, times, strict=True):
            name = re.sub(r"[\t\n\r]", " ", symbols[owners[sense]])  # what would end a cell
            stream.write(f"{name}\t{sense}\t{theta[sense]:.6g}\t{share:.6g}\t{number}\n")
    with atomic_write(folder / CONFIG) as stream:
        stream.write(
            f'embeddings {{\n  tensor_name: "senses"\n  tensor_path: "{VECTORS}"\n'
            f'  metadata_path: "{METADATA}"\n}}\n'
        )
