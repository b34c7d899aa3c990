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
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import torch
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

_PLACE = re.compile(r"__(TITLE|STYLE|DATA|SCRIPT)__")
VECTORS, METADATA, CONFIG = "vectors.tsv", "metadata.tsv", "projector_config.pbtxt"
_BREAKS = str.maketrans("\t\n\r", "   ")  # what would end a cell


class PageWords(NamedTuple):
    """Words in the order of the dictionary, their senses in the order of usage."""

    numbers: list[int]  # [W] number of each word in the dictionary
    symbols: list[str]  # [W] the words
    senses: list[list[int]]  # [W] numbers of each word's senses, the most used first
    shares: list[list[float]]  # [W] their shares of the word's usage
    flat: list[int]  # numbers of all these senses, word by word


def page_words(layer: OutputLayer, symbols: Sequence[str], special: int) -> PageWords:
    """Choose and order what is shown.

    Args:
        layer: output layer.
        symbols: [V] entries of the dictionary.
        special: entries at its beginning that are no words.
    """
    numbers = [number for number, word in enumerate(symbols) if is_word(word, number, special)]
    table, masks = (part.tolist() for part in layer.table)
    usage = layer.usage.tolist()
    senses, shares = [], []
    for number in numbers:
        own = [sense for sense, real in zip(table[number], masks[number], strict=True) if real]
        own.sort(key=lambda sense: (-usage[sense], sense))
        total = sum(usage[sense] for sense in own) or 1.0
        senses.append(own)
        shares.append([usage[sense] / total for sense in own])
    flat = [sense for own in senses for sense in own]
    return PageWords(numbers, [symbols[number] for number in numbers], senses, shares, flat)


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
    place = {sense: position for position, sense in enumerate(words.flat)}
    log_prob, theta = layer.log_prob.tolist(), layer.theta.tolist()
    data: dict[str, Any] = {
        "format": 1,
        "facts": [[name, str(value)] for name, value in facts.items()],
        "kernel": layer.kernel_name,
        "words": words.symbols,
        "count": [counts[number] for number in words.numbers],
        "logp": [_short(log_prob[number]) for number in words.numbers],
        "first": list(accumulate((len(own) for own in words.senses), initial=0)),
        "sense": words.flat,
        "usage": [round(1000 * share) for own in words.shares for share in own],
        "theta": [round(theta[sense], 3) for sense in words.flat] if layer.has_theta else None,
        "near": _nearest(layer, words, place, nearest),
        "history": None,
    }
    if history is not None:
        thinned = thin(history).items()
        data["history"] = {n: [at, [_short(value) for value in own]] for n, (at, own) in thinned}
    data |= _examples(place, found, examples)
    return data | {"points": _points(layer, words, contexts or {})}


def _short(value: float) -> float | int:
    """A number of four digits; whole ones without a point."""
    rounded = float(f"{value:.4g}")
    return int(rounded) if rounded.is_integer() else rounded


def _nearest(
    layer: OutputLayer, words: PageWords, place: dict[int, int], number: int
) -> dict[str, Any]:
    """Places of the nearest senses and their logits, ``each`` of every sense, one after the other;
    −1 where there are no more."""
    ignored = sorted(set(range(layer.vocab_size)) - set(words.numbers))
    places: list[int] = []
    scores: list[float | int] = []
    for row in nearest_senses(layer, words.flat, number, ignored):
        lacking = number - len(row)
        places += [place[sense] for sense, _ in row] + [-1] * lacking
        scores += [round(score, 2) for _, score in row] + [0] * lacking
    return {"each": number, "place": places, "score": scores}


def _examples(
    place: dict[int, int], found: Iterable[Occurrence] | None, number: int
) -> dict[str, Any]:
    """How often senses were used, and the surest contexts: sentence, position, posterior in ‰."""
    if found is None:
        return {"times": None, "examples": {}, "sentences": []}
    times = [0] * len(place)
    best: dict[int, list[tuple[float, int, int, tuple[str, ...]]]] = defaultdict(list)
    for one in found:
        at = place.get(one.sense)
        if at is None:  # of an entry that is not shown, such as <unk>
            continue
        times[at] += 1
        kept = best[at]
        kept.append((-max(one.posterior), one.line, one.position, one.tokens))
        kept.sort(key=lambda entry: entry[:3])
        del kept[number:]
    sentences: dict[int, int] = {}
    texts: list[str] = []
    examples: dict[str, list[int]] = {}
    for at in sorted(best):
        for negative, line, position, tokens in best[at]:
            if line not in sentences:
                sentences[line] = len(texts)
                texts.append(" ".join(tokens))
            examples.setdefault(str(at), []).extend(
                (sentences[line], position, round(-1000 * negative))
            )
    return {"times": times, "examples": examples, "sentences": texts}


def _points(
    layer: OutputLayer, words: PageWords, contexts: Mapping[int, Tensor]
) -> dict[str, list[list[int]]]:
    """Projected contexts of each word (x, y, sense, …) and its projected senses (x, y, …)."""
    points: dict[str, list[list[int]]] = {}
    for index, (number, own) in enumerate(zip(words.numbers, words.senses, strict=True)):
        vectors = contexts.get(number)
        if vectors is None or len(vectors) < LEAST_POINTS:
            continue
        vectors = vectors[:MOST_POINTS]
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
    """
    folder = files(__package__) / "page"

    def read(name: str) -> str:
        return (folder / name).read_text(encoding="utf-8").rstrip()

    parts = {
        "TITLE": html.escape(title),
        "STYLE": read("style.css"),
        "DATA": script_json(data),
        "SCRIPT": "\n".join(map(read, ("charts.js", "page.js"))),
    }
    # one pass, so that a text that looks like a place is left as it is
    return _PLACE.sub(lambda match: parts[match[1]], read("page.html")) + "\n"


def script_json(data: Mapping[str, Any]) -> str:
    """JSON that can stand inside a ``<script>`` element.

    Characters that HTML might take for markup, ``<``, ``>`` and ``&``, and two line ends that older
    JavaScript refuses, are written as escapes, which stand for the same text.

    Raises:
        ValueError: a number is not finite.
    """
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text


def write_projector(folder: Path, layer: OutputLayer, symbols: Sequence[str], special: int) -> None:
    """Write all senses of all words, the most used sense of a word first.

    The three files open with ``tensorboard --logdir FOLDER``; `VECTORS` and `METADATA` load in any
    other projector, too.

    Args:
        folder: where to; it is made where it is missing.
        layer: output layer.
        symbols: [V] entries of the dictionary.
        special: entries at its beginning that are no words; they are left out.

    Raises:
        UserError: the folder is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--projector: {folder} is no folder")
    words = page_words(layer, symbols, special)
    theta = layer.theta.tolist()
    with atomic_write(folder / VECTORS) as stream:
        for row in layer.weight[words.flat].tolist():
            stream.write("\t".join(f"{value:.6g}" for value in row) + "\n")
    with atomic_write(folder / METADATA) as stream:
        stream.write("word\tsense\ttheta\tusage\tsenses\n")
        for word, own, shares in zip(words.symbols, words.senses, words.shares, strict=True):
            name = word.translate(_BREAKS)
            for sense, share in zip(own, shares, strict=True):
                stream.write(f"{name}\t{sense}\t{theta[sense]:.6g}\t{share:.6g}\t{len(own)}\n")
    with atomic_write(folder / CONFIG) as stream:
        stream.write(
            f'embeddings {{\n  tensor_name: "senses"\n  tensor_path: "{VECTORS}"\n'
            f'  metadata_path: "{METADATA}"\n}}\n'
        )
