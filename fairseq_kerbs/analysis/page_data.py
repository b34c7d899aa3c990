"""What the HTML report shows, as compact data: one list a column, numbers rounded.

Words are numbered as in the page (fairseq's own entries left out), senses word by word, so that
sense s of word w is at ``first[w] + s`` in every list of senses. Nearest senses refer to these
places. The script in ``page/`` reads this and nothing else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from torch import Tensor

from fairseq_kerbs.analysis.context_vectors import project, sense_of
from fairseq_kerbs.analysis.history import Series, thin
from fairseq_kerbs.analysis.nearest_senses import nearest_senses
from fairseq_kerbs.analysis.occurrences import Occurrence
from fairseq_kerbs.analysis.sense_report import is_word
from fairseq_kerbs.output_layers import OutputLayer

_GRID = 999  # largest coordinate of a projected context
LEAST_POINTS, MOST_POINTS = 4, 60
"""Contexts that a word must have to be drawn, and most that are drawn."""


@dataclass(frozen=True)
class PageWords:
    """Words and senses in the order of the page.

    Attributes:
        numbers: [W] number of each word in the dictionary.
        symbols: [W] the words.
        senses: [W] numbers of each word's senses.
        place: place of each sense in the lists of the page, by its number.
    """

    numbers: list[int]
    symbols: list[str]
    senses: list[list[int]]
    place: dict[int, int]


def page_words(layer: OutputLayer, symbols: Sequence[str], special: int) -> PageWords:
    """Choose and order what is shown.

    Args:
        layer: output layer.
        symbols: [V] entries of the dictionary.
        special: entries at its beginning that are no words.
    """
    numbers = [number for number, word in enumerate(symbols) if is_word(word, number, special)]
    table, mask = layer.table
    rows, masks = table.tolist(), mask.tolist()
    usage = layer.usage.tolist()
    senses = []
    for number in numbers:
        own = [sense for sense, real in zip(rows[number], masks[number], strict=True) if real]
        senses.append(sorted(own, key=lambda sense: (-usage[sense], sense)))
    flat = [sense for own in senses for sense in own]
    place = {sense: position for position, sense in enumerate(flat)}
    return PageWords(numbers, [symbols[number] for number in numbers], senses, place)


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
    log_prob, usage = layer.inventory.log_prob.tolist(), layer.usage.tolist()
    theta = layer.theta.tolist()
    sums = [sum(usage[sense] for sense in own) or 1.0 for own in words.senses]
    data: dict[str, Any] = {
        "format": 1,
        "facts": [[name, str(value)] for name, value in facts.items()],
        "kernel": layer.kernel.name,
        "words": words.symbols,
        "count": [counts[number] for number in words.numbers],
        "logp": [_short(log_prob[number]) for number in words.numbers],
        "first": list(accumulate((len(own) for own in words.senses), initial=0)),
        "sense": [sense for own in words.senses for sense in own],
        "usage": [
            round(1000 * usage[sense] / total)
            for own, total in zip(words.senses, sums, strict=True)
            for sense in own
        ],
        "theta": [round(theta[sense], 3) for own in words.senses for sense in own]
        if layer.kernel.has_theta
        else None,
        "near": _nearest(layer, words, len(symbols), nearest),
        "history": None
        if history is None
        else {
            name: [updates, [_short(value) for value in values]]
            for name, (updates, values) in thin(history).items()
        },
    }
    return data | _examples(words, found, examples) | _points(layer, words, contexts or {})


def _short(value: float) -> float | int:
    """A number of four digits; whole ones without a point."""
    rounded = float(f"{value:.4g}")
    return int(rounded) if rounded.is_integer() else rounded


def _nearest(layer: OutputLayer, words: PageWords, entries: int, number: int) -> dict[str, Any]:
    """Places of the nearest senses and their logits, ``each`` of every sense, one after the other;
    −1 where there are no more."""
    shown = set(words.numbers)
    ignored = [number for number in range(entries) if number not in shown]
    places: list[int] = []
    scores: list[float | int] = []
    for row in nearest_senses(layer, list(words.place), number, ignored):
        places += [words.place[sense] for sense, _ in row] + [-1] * (number - len(row))
        scores += [round(score, 2) for _, score in row] + [0] * (number - len(row))
    return {"each": number, "place": places, "score": scores}


def _examples(words: PageWords, found: Iterable[Occurrence] | None, number: int) -> dict[str, Any]:
    """How often senses were used, and the surest contexts: sentence, position, posterior in ‰."""
    if found is None:
        return {"times": None, "examples": {}, "sentences": []}
    times = [0] * len(words.place)
    best: dict[int, list[tuple[float, int, int, tuple[str, ...]]]] = defaultdict(list)
    for one in found:
        place = words.place.get(one.sense)
        if place is None:  # of an entry that is not shown, such as <unk>
            continue
        times[place] += 1
        kept = best[place]
        kept.append((-max(one.posterior), one.line, one.position, one.tokens))
        kept.sort(key=lambda entry: entry[:3])
        del kept[number:]
    sentences: dict[int, int] = {}
    texts: list[str] = []
    examples: dict[str, list[int]] = {}
    for place in sorted(best):
        flat: list[int] = []
        for negative, line, position, tokens in best[place]:
            if line not in sentences:
                sentences[line] = len(texts)
                texts.append(" ".join(tokens))
            flat += [sentences[line], position, round(-1000 * negative)]
        if flat:
            examples[str(place)] = flat
    return {"times": times, "examples": examples, "sentences": texts}


def _points(layer: OutputLayer, words: PageWords, contexts: Mapping[int, Tensor]) -> dict[str, Any]:
    """Projected contexts of each word (x, y, sense, …) and its projected senses (x, y, …)."""
    points: dict[str, list[list[int]]] = {}
    for index, (number, own) in enumerate(zip(words.numbers, words.senses, strict=True)):
        vectors = contexts.get(number)
        if vectors is None or len(vectors) < LEAST_POINTS:
            continue
        vectors = vectors[:MOST_POINTS]
        plane = project(vectors, layer.as_contexts(layer.weight[own].detach().float()))
        table = layer.table.senses[number].tolist()
        order = [own.index(table[slot]) for slot in sense_of(layer, number, vectors).tolist()]
        both = [*plane.contexts.tolist(), *plane.senses.tolist()]
        low = [min(point[axis] for point in both) for axis in (0, 1)]
        # one scale for both axes
        span = max(max(point[axis] for point in both) - low[axis] for axis in (0, 1)) or 1.0
        grid = [[round(_GRID * (p[axis] - low[axis]) / span) for axis in (0, 1)] for p in both]
        dots = [
            value for point, sense in zip(grid, order, strict=False) for value in (*point, sense)
        ]
        marks = [value for point in grid[len(order) :] for value in point]
        points[str(index)] = [dots, marks]
    return {"points": points}
