"""Entries of a dictionary: which are words, how pieces are joined, how many senses each has.

A dictionary of subwords does not say which of its entries are words: ``ing`` may be a word or the
end of many. So entries that end in ``@@`` are never whole words, and with a list of the words that
stand alone somewhere in a text (`whole_words`), the last pieces of split words are no words either.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from itertools import zip_longest
from random import Random
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairseq_kerbs.analysis.tables import as_markdown
from fairseq_kerbs.evaluation.texts import table_as_csv
from fairseq_kerbs.utils.errors import UserError

BPE_MARK = "@@"
_FILLER = re.compile(r"madeupword\d{4}")  # fairseq pads dictionaries with these


def is_word(word: str, number: int, special: int) -> bool:
    """Whether an entry is neither one of fairseq's special symbols nor one of its fillers."""
    return number >= special and not _FILLER.fullmatch(word)


def word_numbers(dictionary: Any, words: Sequence[str]) -> list[int]:
    """Numbers of words in fairseq's dictionary.

    Raises:
        UserError: some are no entry; they are named.
    """
    if missing := [word for word in words if word not in dictionary.indices]:
        raise UserError(
            f"--word: {', '.join(missing)}: no entry of the dictionary; a word that BPE splits has "
            "none of its own"
        )
    return [dictionary.indices[word] for word in words]


def frequent_words(dictionary: Any, number: int) -> list[int]:
    """Numbers of the words that are most frequent in the training data."""
    counts, special = dictionary.count, dictionary.nspecial
    words = [i for i, word in enumerate(dictionary.symbols) if is_word(word, i, special)]
    return sorted(words, key=lambda word: (-counts[word], word))[:number]


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


def frequency_groups(counts: Sequence[int], groups: int = 10) -> list[NDArray[np.int64]]:
    """Indices of words in groups of equal size (give or take one), from frequent to rare.

    Words with a count of 0, such as fairseq's special symbols, belong to none; words of equal
    counts are in dictionary order; empty groups are left out.
    """
    numbers = np.asarray(counts)
    order = np.argsort(-numbers, kind="stable")[: np.count_nonzero(numbers)]
    bounds = [number * len(order) // groups for number in range(1, groups)]
    return [part for part in np.split(order, bounds) if len(part)]


def senses_by_frequency(
    senses: Sequence[int], counts: Sequence[int], groups: int = 10
) -> list[dict[str, Any]]:
    """By `frequency_groups` how many ``words``, occurrences of the ``most`` and ``fewest``
    frequent one, and the mean of ``senses`` [V] a word."""
    return [
        {
            "words": len(part),
            "most": counts[part[0]],
            "fewest": counts[part[-1]],
            "senses": float(np.asarray(senses)[part].mean()),
        }
        for part in frequency_groups(counts, groups)
    ]


class SenseGroup(NamedTuple):
    """The words with one number of senses: how many there are, and those drawn."""

    senses: int
    total: int
    words: tuple[str, ...]


def whole_words(targets: Iterable[Tensor], symbols: Sequence[str]) -> set[str]:
    """Entries of a dictionary [V] that stand alone in a text: somewhere in its sentences of token
    numbers [len] they are neither marked with ``@@`` nor behind a marked one."""
    marked = torch.tensor([symbol.endswith(BPE_MARK) for symbol in symbols])  # [V]
    alone: set[int] = set()
    for target in targets:
        piece = marked[target]  # [len]
        piece[1:] |= marked[target[:-1]]
        alone.update(target[~piece].tolist())
    return {symbols[number] for number in alone}


def words_by_number_of_senses(
    word_of_sense: Tensor,
    symbols: Sequence[str],
    number: int,
    seed: int,
    whole_words_only: bool = True,
    *,
    known: Collection[str] | None = None,
    special: int = 4,
) -> list[SenseGroup]:
    """Draw words for every number of senses from 1 to the largest: the paper's Table 6.

    Entries without a letter (digits, punctuation) and fairseq's own are always left out.

    Args:
        word_of_sense: [M] word of each sense.
        symbols: [V] entries of the dictionary.
        number: most words to draw for each number of senses.
        seed: same seed, same words; the draw of one group does not depend on the others.
        whole_words_only: leave out pieces: entries that end in ``@@``, and with `known` those that
            it lacks. Else they stay, marked: ``ban@@``, and ``@@ank`` for one that `known` lacks.
        known: words that stand alone in a text, see `whole_words`.
        special: entries at the beginning of the dictionary that are no words (by default <s>,
            <pad>, </s> and <unk>).

    Returns:
        one group a number of senses, groups without a word included.
    """
    counts = torch.bincount(word_of_sense.cpu(), minlength=len(symbols)).tolist()  # [V]
    words: dict[int, list[str]] = {senses: [] for senses in range(1, max(counts, default=0) + 1)}
    for index, (symbol, senses) in enumerate(zip(symbols, counts, strict=True)):
        if not (senses and is_word(symbol, index, special) and any(map(str.isalpha, symbol))):
            continue
        first = symbol.endswith(BPE_MARK)
        last = not first and known is not None and symbol not in known
        if not ((first or last) and whole_words_only):
            words[senses].append(f"{BPE_MARK}{symbol}" if last else symbol)
    return [
        SenseGroup(senses, len(own), tuple(Random(seed).sample(own, min(number, len(own)))))
        for senses, own in words.items()
    ]


def groups_as_markdown(groups: Sequence[SenseGroup]) -> str:
    """The table of the paper: a column for each number of senses."""
    head = ["", *(f"{group.senses} sense{'s' if group.senses > 1 else ''}" for group in groups)]
    rows = [["words in all", *(str(group.total) for group in groups)]]
    for number, words in enumerate(zip_longest(*(g.words for g in groups), fillvalue="")):
        rows.append(["drawn at random" if number == 0 else "", *words])
    return as_markdown(head, rows)


def groups_as_csv(groups: Sequence[SenseGroup]) -> str:
    """One row a word: number of senses, how many words have it, word."""
    rows = [(group.senses, group.total, word) for group in groups for word in group.words]
    return table_as_csv(["senses", "words_in_all", "word"], rows)
