"""What ``fairseq-kerbs plot contexts`` draws, for a checkpoint or a model of Hugging Face.

This module is imported when the command runs, as it needs pandas and matplotlib.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from pandas import DataFrame, concat
from torch import Tensor

from fairseq_kerbs.analysis import hugging_face, plots, projection
from fairseq_kerbs.analysis.names import FORMS_OF_ONE_WORD, NO_NAME
from fairseq_kerbs.analysis.projection import Projection
from fairseq_kerbs.analysis.words import (
    csv_of,
    is_always_piece,
    of_sentencepiece,
    part_of_a_word,
    sense_numbers,
    sense_of,
    word_numbers,
)
from fairseq_kerbs.checkpoints.contexts import contexts_of
from fairseq_kerbs.cli.models import Trained, has_training_text, read_names
from fairseq_kerbs.utils.errors import UserError


class Drawn(NamedTuple):
    """A figure, and its points as ``--json`` and ``--csv`` write them."""

    figure: Any
    result: dict[str, Any]
    csv: str
    text: str = ""  # for the terminal


def contexts_by_sense(
    trained: Trained, data: Path, split: str, word: str, most: int, wanted: str | None
) -> Drawn:
    """Draw the contexts of a word in a checkpoint.

    Args:
        trained: the checkpoint with its data.
        data: folder of the data.
        split: split with the contexts.
        word: entry of the dictionary.
        most: maximum number of contexts.
        wanted: projection: ``pca``, else linear discriminants.
    """
    layer = trained.layer
    (number,) = word_numbers(trained.dictionary, [word])
    names_split = "train" if has_training_text(data) else split
    found_names = read_names(trained, names_split)
    symbols = trained.dictionary.symbols
    always_piece = is_always_piece(symbols[number], of_sentencepiece(symbols))
    piece = always_piece or (found_names.is_piece(number) and not found_names.is_whole(number))
    # a word that was not read for names can be either
    known = always_piece or found_names.is_piece(number) or found_names.is_whole(number)

    def select(target: Tensor) -> Tensor:
        # as in the names, the whole word and the piece of longer words are apart
        part = part_of_a_word(target, symbols)
        return part == piece if known else torch.ones_like(part)

    found = contexts_of(trained.model, trained.task, split, [number], most, select)
    vectors = found.get(number, torch.empty(0))
    if len(vectors) < 2:
        raise UserError(
            f"--word: {word} occurs {len(vectors)} times in split {split}, but at least 2 contexts "
            "are needed; name a more frequent word or another --split"
        )
    senses = sense_numbers(layer, number)
    of_context = sense_of(layer, number, vectors).numpy()
    points = vectors.double().numpy()
    projected = None
    if wanted != "pca" and len({*of_context}) > 1:
        projected = projection.discriminate(points, of_context, len(senses))
    if projected is None:  # labels of the axes say so
        weight = layer.as_contexts(layer.weight[senses].detach().double())
        projected = projection.project(points, weight.numpy())
    table = DataFrame(projected.contexts, columns=["x", "y"])
    table.insert(0, "sense", of_context + 1)
    table.insert(0, "word", word)
    result = {"axes": projected.axes, "points": table.to_dict("records")}
    by_row = found_names.names(number, piece=piece)
    names = [by_row.get(row, NO_NAME) for row in senses]
    parts = [(name.in_words, name.translates, name.beside) for name in names]
    legend = ["\n".join(filter(None, texts)) for texts in parts]
    note = FORMS_OF_ONE_WORD if found_names.forms_of_one_word(number) else ""
    figure = plots.plot_contexts(word, projected, of_context, legend, note)
    return Drawn(figure, result, csv_of(table))


def contexts_of_words(
    folder: Path,
    text: Path,
    sets: Sequence[Sequence[str]],
    most: int,
    wanted: str | None,
    seed: int,
) -> Drawn:
    """Draw the contexts of words in a model of Hugging Face, and measure their variance.

    Args:
        folder: folder of the model.
        text: text with one sentence per line.
        sets: words of each panel.
        most: maximum number of contexts of a word.
        wanted: projection that ``--projection`` names, ``pca`` if any.
        seed: of the random choice of contexts.
    """
    panels = [list(dict.fromkeys(words)) for words in sets]
    words = list(dict.fromkeys(word for panel in panels for word in panel))
    if wanted == "discriminants":
        raise UserError(f"--projection discriminants needs senses, and {folder} has none; use pca")
    most_words = len(plots.WORD_COLORS)
    if len(words) > most_words:
        raise UserError(
            f"--word: {len(words)} words, but the figure has colors for {most_words}; give fewer"
        )
    if not text.exists():
        raise UserError(f"--text: {text}: no such file")
    model = hugging_face.load_language_model(folder)
    found = hugging_face.find_occurrences(model, text, words, most, seed)
    _check_words(text, found)
    vectors = {
        word: hugging_face.context_vectors(model, found[word].kept).double().numpy()
        for word in words
    }
    planes = [
        projection.project(np.concatenate([vectors[word] for word in panel])) for panel in panels
    ]
    measured = [_measured(word, found[word], vectors[word]) for word in words]
    lines = {word: [occurrence.line for occurrence in found[word].kept] for word in words}
    points = _table_of_points(panels, planes, lines)
    axes = [plane.axes for plane in planes]
    result = {"words": measured, "axes": axes, "points": points.to_dict("records")}
    labels = {word: f"{word} ({len(lines[word])})" for word in words}
    word_of = [list(table["word"]) for _, table in points.groupby("panel")]
    figure = plots.plot_word_contexts(labels, planes, word_of)
    return Drawn(figure, result, csv_of(points), _measured_as_text(measured, model.longest))


def _check_words(text: Path, found: Mapping[str, hugging_face.Occurrences]) -> None:
    """Raise a UserError if a word has too few contexts in a text."""
    few = {word: of_word.readable for word, of_word in found.items() if of_word.readable < 2}
    if few:
        counts = ", ".join(f"{word} ({times})" for word, times in few.items())
        raise UserError(
            f"--word: too few contexts in {text}: {counts}, but at least 2 are needed; name more "
            "frequent words or another --text"
        )


def _measured(
    word: str, found: hugging_face.Occurrences, vectors: projection.Points
) -> dict[str, Any]:
    """Numbers of a word's contexts, and how much their vectors [n, d] vary."""
    return {
        "word": word,
        "contexts": len(found.kept),
        "readable": found.readable,
        "left_out": found.left_out,
        "variance": projection.relative_variance(vectors),
    }


def _table_of_points(
    panels: Sequence[Sequence[str]], planes: Sequence[Projection], lines: dict[str, list[int]]
) -> DataFrame:
    """Table with a row per context: panel (from 1), word, line of the text, and coordinates."""
    tables = []
    for number, (panel, plane) in enumerate(zip(panels, planes), start=1):
        places = [(number, word, line) for word in panel for line in lines[word]]
        table = DataFrame(places, columns=["panel", "word", "line"])
        tables.append(table.assign(x=plane.contexts[:, 0], y=plane.contexts[:, 1]))
    return concat(tables, ignore_index=True)


def _measured_as_text(measured: Sequence[dict[str, Any]], longest: int) -> str:
    """Contexts and variance of each word, for a terminal."""
    table = DataFrame(measured)
    left_out = int(table["left_out"].sum())
    table["contexts"] = [f"{row['contexts']} of {row['readable']}" for row in measured]
    table["variance"] = [f"{row['variance']:.1%}" for row in measured]
    table = table[["word", "contexts", "variance"]]
    text = table.to_markdown(index=False, tablefmt="plain", disable_numparse=True)
    text += "\nvariance: mean squared distance from the word's mean, of the mean squared norm"
    if left_out:
        text += (
            f"\n{left_out} occurrences have no context: they are beyond the {longest} tokens that "
            "are read of a line, are part of a token, or begin a text without a token before them"
        )
    return text
