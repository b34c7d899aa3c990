"""Words drawn at random by their number of senses: the paper's Table 6.

A dictionary of subwords does not say which of its entries are words: ``ing`` may be a word or the
end of many. So entries that end in ``@@`` are never words, and with a list of the words that stand
alone somewhere in a text (`whole_words`), the last pieces of split words are left out as well.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from random import Random

import torch
from torch import Tensor

from fairseq_kerbs.analysis.occurrences import BPE_MARK
from fairseq_kerbs.evaluation.texts import escape_markdown, harmless_cell

_FILLER = re.compile(r"madeupword\d{4}")  # fairseq pads dictionaries with these
DEFAULT_SPECIAL = 4  # fairseq's <s>, <pad>, </s> and <unk>


@dataclass(frozen=True)
class SenseGroup:
    """The words with one number of senses.

    Attributes:
        senses: that number.
        total: how many such words there are.
        words: those drawn, in the order in which they were.
    """

    senses: int
    total: int
    words: tuple[str, ...]


def whole_words(targets: Iterable[Tensor], symbols: Sequence[str]) -> set[str]:
    """Entries of the dictionary that stand alone in a text: words, not pieces of words.

    Args:
        targets: [len] token numbers of each sentence.
        symbols: [V] entries of the dictionary.

    Returns:
        those that somewhere are neither marked with ``@@`` nor behind a marked one.
    """
    marked = torch.tensor([symbol.endswith(BPE_MARK) for symbol in symbols])  # [V]
    alone = torch.zeros(len(symbols), dtype=torch.bool)
    for target in targets:
        begun = marked[target]  # [len]
        inside = torch.cat([begun.new_zeros(1), begun[:-1]])
        alone[target[~begun & ~inside]] = True
    return {symbol for symbol, is_alone in zip(symbols, alone.tolist(), strict=True) if is_alone}


def words_by_number_of_senses(
    word_of_sense: Tensor,
    symbols: Sequence[str],
    number: int,
    seed: int,
    whole_words_only: bool = True,
    *,
    known: Collection[str] | None = None,
    special: int = DEFAULT_SPECIAL,
) -> list[SenseGroup]:
    """Draw words for every number of senses from 1 to the largest.

    Entries without a letter (digits, punctuation) and fairseq's own are always left out.

    Args:
        word_of_sense: [M] word of each sense.
        symbols: [V] entries of the dictionary.
        number: most words to draw for each number of senses.
        seed: same seed, same words; the draw of one group does not depend on the others.
        whole_words_only: leave out pieces: entries that end in ``@@``, and with `known` those that
            it lacks. Else they stay, marked: ``ban@@``, and ``@@ank`` for one that `known` lacks.
        known: words that stand alone in a text, see `whole_words`.
        special: entries at the beginning of the dictionary that are no words.

    Returns:
        one group a number of senses, groups without a word included.

    Raises:
        ValueError: a sense belongs to no entry, or `number` is below 1.
    """
    if number < 1:
        raise ValueError(f"{number} words of each kind were asked for; at least 1 is needed.")
    if word_of_sense.numel() and not 0 <= int(word_of_sense.min()) <= int(
        word_of_sense.max()
    ) < len(symbols):
        raise ValueError(
            f"word_of_sense names a word outside the {len(symbols)} of the dictionary."
        )
    counts = torch.bincount(word_of_sense.cpu(), minlength=len(symbols)).tolist()  # [V]
    words: dict[int, list[str]] = {senses: [] for senses in range(1, max(counts, default=0) + 1)}
    for index, (symbol, senses) in enumerate(zip(symbols, counts, strict=True)):
        if index < special or senses == 0 or _FILLER.fullmatch(symbol):
            continue
        if not any(character.isalpha() for character in symbol):
            continue
        first = symbol.endswith(BPE_MARK)
        last = not first and known is not None and symbol not in known
        if not ((first or last) and whole_words_only):
            words[senses].append(f"{BPE_MARK}{symbol}" if last else symbol)
    return [
        SenseGroup(senses, len(own), tuple(Random(seed).sample(own, min(number, len(own)))))
        for senses, own in words.items()
    ]


def as_markdown(groups: Sequence[SenseGroup]) -> str:
    """The table of the paper: a column for each number of senses."""
    columns = [f"{group.senses} sense{'s' if group.senses > 1 else ''}" for group in groups]
    lines = [_row(["", *columns]), _row(["---"] * (len(groups) + 1))]
    lines.append(_row(["words in all", *(str(group.total) for group in groups)]))
    for number, words in enumerate(zip_longest(*(g.words for g in groups), fillvalue="")):
        cells = [escape_markdown(word) for word in words]
        lines.append(_row(["drawn at random" if number == 0 else "", *cells]))
    return "\n".join(lines) + "\n"


def as_csv(groups: Sequence[SenseGroup]) -> str:
    """One row a word: number of senses, how many words have it, word."""
    stream = io.StringIO(newline="")
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["senses", "words_in_all", "word"])
    for group in groups:
        for word in group.words:
            writer.writerow([group.senses, group.total, harmless_cell(word)])
    return stream.getvalue()


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
