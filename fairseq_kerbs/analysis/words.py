"""Entries of a dictionary: which are words, how pieces are joined, and which senses they have."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fairseq_kerbs.evaluation.texts import escape_markdown, table_as_csv
from fairseq_kerbs.output_layers import OutputLayer
from fairseq_kerbs.senses import number_senses
from fairseq_kerbs.utils.errors import UserError

if TYPE_CHECKING:  # print-senses does without pandas
    from pandas import DataFrame

BPE_MARK = "@@"
_FILLER = re.compile(r"madeupword\d{4}")  # fairseq pads dictionaries with these


def is_word(word: str, number: int, special: int) -> bool:
    """Whether an entry is neither one of fairseq's special symbols nor one of its fillers."""
    return number >= special and not _FILLER.fullmatch(word)


def has_letter(word: str) -> bool:
    """Whether it is more than digits and punctuation."""
    return any(map(str.isalpha, word))


def word_numbers(dictionary: Any, words: Sequence[str]) -> list[int]:
    """Numbers of words in fairseq's dictionary; a UserError that names those that are no entry."""
    if missing := [word for word in words if word not in dictionary.indices]:
        raise UserError(
            f"--word: {', '.join(missing)}: no entry of the dictionary; a word that BPE splits has "
            "none of its own"
        )
    return [dictionary.indices[word] for word in words]


def frequent_words(dictionary: Any, most: int) -> list[int]:
    """Numbers of the words that are most frequent in the training data."""
    counts, special = dictionary.count, dictionary.nspecial
    words = [i for i, word in enumerate(dictionary.symbols) if is_word(word, i, special)]
    return sorted(words, key=lambda word: (-counts[word], word))[:most]


def joined_words(pieces: Sequence[str]) -> tuple[list[str], list[int | None]]:
    """Join BPE pieces; for every word also the position of its token, None where it has several.

    >>> joined_words(["a", "ban@@", "k"])
    (['a', 'bank'], [0, None])
    """
    words: list[str] = []
    positions: list[int | None] = []
    begun = ""
    for position, piece in enumerate(pieces):
        marked = piece.endswith(BPE_MARK)
        if not marked or position == len(pieces) - 1:
            words.append(begun + piece.removesuffix(BPE_MARK))
            positions.append(None if begun or marked else position)
        begun = begun + piece.removesuffix(BPE_MARK) if marked else ""
    return words, positions


def in_context(tokens: Sequence[str], place: int, most: int) -> str:
    """A token in brackets, with at most so many others on either side."""
    before, after = tokens[max(0, place - most) : place], tokens[place + 1 : place + 1 + most]
    return " ".join([*before, f"[{tokens[place]}]", *after])


def printable(text: str) -> str:
    """A text without control characters but ends of lines: others would steer a terminal."""
    return "".join(char if char.isprintable() or char == "\n" else "\ufffd" for char in text)


def records(frame: DataFrame) -> list[dict[str, Any]]:
    """The rows of a table, None for what is missing."""
    cells: list[dict[str, Any]] = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return cells


def csv_of(frame: DataFrame, digits: int | None = None) -> str:
    """A table as CSV, what is missing as empty cells; see `table_as_csv`."""
    return table_as_csv(frame.columns, (row.values() for row in records(frame)), digits)


# --- senses of a word -----------------------------------------------------------------------------


def sense_numbers(layer: OutputLayer, word: int) -> list[int]:
    """Rows of a word's senses in the order of their numbers (`number_senses`)."""
    table, mask = layer.table[:2]
    rows = table[word][mask[word]]
    order = number_senses(torch.zeros_like(rows), layer.usage[rows]).argsort()
    return rows[order].tolist()


def usage_shares(layer: OutputLayer, senses: list[int]) -> Tensor:
    """[n] usage U (Eq. 13) of a word's senses as shares of their sum; 0 where none was used."""
    usage = layer.usage[senses].detach()
    return usage / usage.sum().clamp_min(1e-38)


@torch.no_grad()
def sense_of(layer: OutputLayer, word: int, contexts: Tensor) -> Tensor:
    """The most probable (Eq. 7) of a word's senses in contexts [n, d]: [n], its index in them."""
    return layer.sense_logits(contexts, torch.tensor(sense_numbers(layer, word))).argmax(1)


# --- words by frequency and number of senses ------------------------------------------------------


def senses_by_frequency(
    senses: Sequence[int], counts: Sequence[int], groups: int = 10
) -> list[dict[str, Any]]:
    """By groups of words of equal size (give or take one), from frequent to rare: how many
    ``words``, occurrences of the ``most`` and ``fewest`` frequent one, and the mean of ``senses``
    [V] a word. Words with a count of 0, such as fairseq's special symbols, belong to none."""
    times = np.asarray(counts)
    order = np.argsort(-times, kind="stable")[: np.count_nonzero(times)]
    return [
        {
            "words": len(part),
            "most": int(times[part[0]]),
            "fewest": int(times[part[-1]]),
            "senses": float(np.asarray(senses)[part].mean()),
        }
        for part in np.array_split(order, groups)
        if len(part)
    ]


def words_by_number_of_senses(
    senses: Sequence[int], symbols: Sequence[str], special: int, known: set[str] | None = None,
    with_pieces: bool = False,
) -> dict[int, list[str]]:  # fmt: skip
    """Words for every number of senses [V] from 1 to the largest.

    Entries [V] without a letter and the ``special`` first ones are left out, and pieces unless
    ``with_pieces``: then as ``ban@@`` and ``@@ing``. A dictionary does not say whether ``ing`` is a
    word or the end of many: ``known`` are the words that stand alone in a text, by default all but
    pieces that end in ``@@``.
    """
    words: dict[int, list[str]] = {number: [] for number in range(1, max(senses) + 1)}
    for index, (symbol, number) in enumerate(zip(symbols, senses)):
        begins = symbol.endswith(BPE_MARK)
        ends = not begins and known is not None and symbol not in known
        wanted = with_pieces or not (begins or ends)
        if wanted and is_word(symbol, index, special) and has_letter(symbol):
            words[number].append(f"{BPE_MARK}{symbol}" if ends else symbol)
    return words


def drawn_words(
    groups: Mapping[int, Sequence[str]], most: int, seed: int, csv: bool = False
) -> str:
    """The paper's Table 6 as Markdown: at most so many words of every group, drawn at random. As
    CSV each has a row: number of senses, how many words have it, word."""
    from pandas import DataFrame, Series

    draws = {n: Random(seed).sample(words, min(most, len(words))) for n, words in groups.items()}
    if csv:
        rows = [(n, len(groups[n]), word) for n, words in draws.items() for word in words]
        return csv_of(DataFrame(rows, columns=["senses", "words_in_all", "word"]))
    columns = {"": Series(["words in all", "drawn at random"])} | {
        f"{n} sense{'s' if n > 1 else ''}": Series(
            [str(len(groups[n])), *map(escape_markdown, words)]
        )
        for n, words in draws.items()
    }
    return f"{DataFrame(columns).fillna('').to_markdown(index=False, disable_numparse=True)}\n"
