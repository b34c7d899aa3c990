"""Entries of a dictionary: words, BPE pieces, and their senses."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from itertools import accumulate, groupby
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from fairseq_kerbs.data.tokens import SENTENCEPIECE_MARK, composed
from fairseq_kerbs.evaluation.texts import escape_markdown
from fairseq_kerbs.output_layers import OutputLayer
from fairseq_kerbs.utils.errors import UserError

if TYPE_CHECKING:  # print-senses does not need pandas
    from pandas import DataFrame

Item = TypeVar("Item")

BPE_MARK = "@@"
LEAST_MARKED = 0.05
"""Minimum share of SentencePiece's entries that begin a word. Usually it is a third or more."""
_OF_SENSE = re.compile(r"#\d+$")  # the number in the name of a sense, such as bank#1
_FILLER = re.compile(r"madeupword\d{4}")  # fairseq pads dictionaries with these


def is_proper_entry(word: str, number: int, special: int) -> bool:
    """Whether an entry is neither a special symbol nor a filler of fairseq's dictionaries.

    It may be a piece of words, such as ``ban@@``.
    """
    return number >= special and not _FILLER.fullmatch(word)


def has_letter(word: str) -> bool:
    """Whether a word has a letter."""
    return any(map(str.isalpha, word))


def entry_of(word: str, dictionary: Any) -> str:
    """Entry of a word in fairseq's dictionary: with one of SentencePiece *light* is ``▁light``.

    A letter and its accent may be two characters in the word, as some keyboards and file names have
    them, where the dictionary has one, and the reverse.
    """
    for spelling in (word, composed(word), unicodedata.normalize("NFD", word)):
        for entry in (f"{SENTENCEPIECE_MARK}{spelling}", spelling):
            if entry in dictionary.indices:
                return entry
    return word


def word_numbers(dictionary: Any, words: Sequence[str]) -> list[int]:
    """Indices of words in fairseq's dictionary (:func:`entry_of`).

    Missing words raise a UserError.
    """
    if not all(words):
        raise UserError("--word: an empty text is no word; name an entry of the dictionary")
    words = [entry_of(word, dictionary) for word in words]
    missing = [word for word in words if word not in dictionary.indices]
    if missing:
        known = []
        for word in missing:
            plain = _OF_SENSE.sub("", word.strip().removeprefix(BPE_MARK))  # as we print names
            cases = (plain, word.lower(), word.capitalize(), word.upper())
            known += [case for case in cases if case in dictionary.indices][:1]
        where = f"--word: {', '.join(missing)}: not in the dictionary"
        if known:
            raise UserError(f"{where}; did you mean {', '.join(known)}?")
        raise UserError(
            f"{where}, which has no entry for a word that BPE splits, or that was not in the "
            "training data; name another word"
        )
    return [dictionary.indices[word] for word in words]


def of_sentencepiece(symbols: Sequence[str]) -> bool:
    """Whether entries are pieces of SentencePiece, of which those that begin a word have a mark.

    Another text may have this character as well, say for a word to be filled in, but then less than
    :data:`LEAST_MARKED` of the entries begin with it. Pieces of BPE are none.
    """
    marked = sum(symbol.startswith(SENTENCEPIECE_MARK) for symbol in symbols)
    enough = marked > 0 and marked >= LEAST_MARKED * len(symbols)
    return enough and not any(symbol.endswith(BPE_MARK) for symbol in symbols)


def is_always_piece(symbol: str, sentencepiece: bool) -> bool:
    """Whether an entry can only be a part of a longer word, by its mark.

    Args:
        symbol: the entry.
        sentencepiece: whether it is :func:`of_sentencepiece`.
    """
    if sentencepiece:
        return not symbol.startswith(SENTENCEPIECE_MARK)
    return symbol.endswith(BPE_MARK)


def word_of_piece(pieces: Sequence[str], sentencepiece: bool | None = None) -> list[int]:
    """Number of the word that each piece of a sentence belongs to.

    A word goes on after a piece of BPE that ends with ``@@``. A word of SentencePiece begins with
    ``▁``.

    Args:
        pieces: pieces of the sentence.
        sentencepiece: whether their dictionary is :func:`of_sentencepiece`. By default the pieces
            themselves are asked.

    >>> word_of_piece(["a", "ban@@", "k"]), word_of_piece(["▁a", "▁ban", "k"])
    ([0, 1, 1], [0, 1, 1])
    """
    if sentencepiece is None:
        sentencepiece = of_sentencepiece(pieces)
    if sentencepiece:
        begins = [piece.startswith(SENTENCEPIECE_MARK) for piece in pieces]
    else:
        begins = [not piece.endswith(BPE_MARK) for piece in ("", *pieces[:-1])]
    return [number - 1 for number in accumulate([True, *begins[1:]])][: len(pieces)]


def joined_words(
    pieces: Sequence[str], sentencepiece: bool | None = None
) -> tuple[list[str], list[int | None]]:
    """Join pieces to words, with the position of each word, or None for several pieces.

    For ``sentencepiece`` see :func:`word_of_piece`.

    >>> joined_words(["a", "ban@@", "k"])
    (['a', 'bank'], [0, None])
    """
    words: list[str] = []
    positions: list[int | None] = []
    if sentencepiece is None:
        sentencepiece = of_sentencepiece(pieces)
    numbers = word_of_piece(pieces, sentencepiece)
    for _, group in groupby(range(len(pieces)), numbers.__getitem__):
        own = [*group]
        text = "".join(pieces[at].removesuffix(BPE_MARK) for at in own)
        if sentencepiece:
            text = text.removeprefix(SENTENCEPIECE_MARK) or text
        words.append(text)
        alone = len(own) == 1 and not is_always_piece(pieces[own[0]], sentencepiece)
        positions.append(own[0] if alone else None)
    return words, positions


def part_of_a_word(target: Tensor, symbols: Sequence[str]) -> Tensor:
    """Mask of the tokens that are pieces of longer words, [B, L].

    Args:
        target: tokens of sentences, [B, L].
        symbols: entries of the dictionary, [V].
    """
    device = target.device
    if of_sentencepiece(symbols):
        inside = torch.tensor([_is_inside(symbol) for symbol in symbols], device=device)
        piece = inside[target]
        piece[:, :-1] |= inside[target][:, 1:]
        return piece
    marked = torch.tensor([symbol.endswith(BPE_MARK) for symbol in symbols], device=device)
    goes_on = marked[target]
    piece = goes_on.clone()
    piece[:, 1:] |= goes_on[:, :-1]
    return piece


def _is_inside(symbol: str) -> bool:
    """Whether an entry of SentencePiece begins no word, and is no special symbol."""
    special = symbol.startswith("<") and symbol.endswith(">")
    return is_always_piece(symbol, sentencepiece=True) and not special


def in_context(tokens: Sequence[str], place: int, most: int) -> str:
    """A token in brackets, with at most ``most`` other tokens on either side."""
    before = tokens[max(0, place - most) : place]
    after = tokens[place + 1 : place + 1 + most]
    return " ".join([*before, f"[{tokens[place]}]", *after])


def written_piece(symbol: str) -> str:
    """An entry as a piece of a word, with the mark at the side where the word goes on.

    >>> written_piece("ier"), written_piece("ban@@"), written_piece("▁ban")
    ('@@ier', 'ban@@', '▁ban@@')
    """
    if symbol.startswith(SENTENCEPIECE_MARK):
        return f"{symbol}{BPE_MARK}"
    return symbol if symbol.endswith(BPE_MARK) else f"{BPE_MARK}{symbol}"


def records(frame: DataFrame) -> list[dict[str, Any]]:
    """Rows of a table as dictionaries, with None for missing values."""
    cells: list[dict[str, Any]] = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return cells


def csv_of(frame: DataFrame, digits: int | None = None) -> str:
    """A table as CSV, with empty cells for missing values, and floats with ``digits`` [all]."""
    form = None
    if digits is not None:
        form = f"%.{digits}g"
    return frame.infer_objects().to_csv(index=False, float_format=form, lineterminator="\n")


def first_items(items: list[Item], most: int) -> list[Item]:
    """The first ``most`` items, or all for 0."""
    if most == 0:
        return items
    return items[:most]


def sense_numbers(layer: OutputLayer, word: int) -> list[int]:
    """Rows of a word's senses in the order of their numbers (:func:`.number_senses`)."""
    rows = layer.table.senses[word][layer.table.mask[word]]  # ascending
    return rows[layer.usage[rows].sort(descending=True, stable=True).indices].tolist()


def usage_shares(layer: OutputLayer, senses: list[int]) -> Tensor:
    """Shares of senses in the usage U (Eq. 13) of their word, [n], or 0 if none was used."""
    usage = layer.usage[senses].detach()
    return usage / usage.sum().clamp_min(1e-38)


@torch.no_grad()
def sense_of(layer: OutputLayer, word: int, contexts: Tensor) -> Tensor:
    """Index of the most probable sense (Eq. 7) of a word in each of its contexts, [n, d] -> [n]."""
    return layer.sense_logits(contexts, torch.tensor(sense_numbers(layer, word))).argmax(1)


def senses_by_frequency(
    senses: Sequence[int], counts: Sequence[int], groups: int = 10
) -> list[dict[str, Any]]:
    """Number of senses by word frequency.

    Args:
        senses: number of senses of each word, [V].
        counts: occurrences of each word, [V]. Words with 0 are left out.
        groups: number of groups of about equal size.

    Returns:
        for each group, from frequent to rare: number of ``words``, occurrences of the most and of
        the least frequent word, ``most`` and ``fewest``, and mean number of ``senses``.
    """
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
    senses: Sequence[int],
    symbols: Sequence[str],
    special: int,
    known: set[int] | None = None,
    with_pieces: bool = False,
) -> dict[int, list[str]]:
    """Words with a letter, by their number of senses.

    Args:
        senses, symbols: number of senses and text of each entry, [V].
        special: number of special symbols at the start.
        known: entries that are whole words of a text. Others such as ``ing`` are pieces. By default
            they are words, unless a mark tells that they are pieces.
        with_pieces: include pieces, as ``ban@@`` and ``@@ing``.
    """
    words: dict[int, list[str]] = {number: [] for number in range(1, max(senses) + 1)}
    sentencepiece = of_sentencepiece(symbols)
    for index, (symbol, number) in enumerate(zip(symbols, senses)):
        piece = is_always_piece(symbol, sentencepiece) or (known is not None and index not in known)
        wanted = with_pieces or not piece
        if wanted and is_proper_entry(symbol, index, special) and has_letter(symbol):
            word = symbol.removeprefix(SENTENCEPIECE_MARK) if sentencepiece else symbol
            words[number].append(written_piece(symbol) if piece else word)
    return words


def drawn_words(
    groups: Mapping[int, Sequence[str]], most: int, seed: int, csv: bool = False
) -> str:
    """At most ``most`` random words of each number of senses, as in the paper's Table 6.

    The text is Markdown, or CSV with a row per word: number of senses, size of the group, word.
    """
    from pandas import DataFrame

    draws = {n: Random(seed).sample(words, min(most, len(words))) for n, words in groups.items()}
    if csv:
        rows = [(n, len(groups[n]), word) for n, words in draws.items() for word in words]
        return csv_of(DataFrame(rows, columns=["senses", "words_in_all", "word"]))
    columns = {"": ["words in all", "drawn at random"]} | {
        f"{n} sense{'s' if n > 1 else ''}": [str(len(groups[n])), *map(escape_markdown, words)]
        for n, words in draws.items()
    }
    table = DataFrame.from_dict(columns, "index").T.fillna("")
    return f"{table.to_markdown(index=False, disable_numparse=True)}\n"
