"""Occurrences of words in a split, with their senses, context vectors and predictions.

:func:`read_text` reads them in one teacher-forced pass (:mod:`fairseq_kerbs.checkpoints.contexts`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from pandas import DataFrame
from torch import Tensor

from fairseq_kerbs.analysis.words import joined_words, of_sentencepiece, word_of_piece
from fairseq_kerbs.checkpoints.contexts import (
    MOST_LOG_PROBS,
    no_words,
    step_between_batches,
    teacher_forced,
)
from fairseq_kerbs.output_layers import OutputLayer
from fairseq_kerbs.reallocation.context_sample import ContextSample

TOKENS_FOR_NAMES = 250_000
"""Approximate number of tokens that are read for the names of senses."""

Numbers = NDArray[np.int64]


def real_words(
    tokens: Sequence[int],
    dictionary: Any,
    joined: bool = True,
    sentencepiece: bool | None = None,
) -> tuple[list[str], list[tuple[int, int]]]:
    """Words of a sentence, and the column and place of those that are a single token.

    Padding and the end of the sentence are left out. Pieces are words unless ``joined``. Whether
    the dictionary is :func:`.of_sentencepiece` is found out if ``sentencepiece`` does not say it.
    """
    if sentencepiece is None:
        sentencepiece = of_sentencepiece(dictionary.symbols)
    skipped = dictionary.pad(), dictionary.eos()
    columns = [at for at, token in enumerate(tokens) if token not in skipped]
    symbols = [dictionary[tokens[column]] for column in columns]
    if not joined:
        return symbols, list(zip(columns, range(len(symbols))))
    words, places = joined_words(symbols, sentencepiece)
    return words, [(columns[at], place) for place, at in enumerate(places) if at is not None]


def all_tokens(
    tokens: Sequence[int], dictionary: Any, sentencepiece: bool | None = None
) -> tuple[list[str], list[tuple[int, int, bool]]]:
    """Words of a sentence with pieces joined, and its tokens: column, place and piece.

    The place is that of the word in the sentence. A token that is not a whole word is a piece.
    Padding and the end of the sentence are left out. For ``sentencepiece`` see :func:`real_words`.
    """
    if sentencepiece is None:
        sentencepiece = of_sentencepiece(dictionary.symbols)
    words, singles = real_words(tokens, dictionary, sentencepiece=sentencepiece)
    whole = dict(singles)
    skipped = dictionary.pad(), dictionary.eos()
    columns = [at for at, token in enumerate(tokens) if token not in skipped]
    places = word_of_piece([dictionary[tokens[column]] for column in columns], sentencepiece)
    return words, [(column, place, column not in whole) for column, place in zip(columns, places)]


class Text(NamedTuple):
    """Lines of a split, and their N words that are a single token.

    ``tokens`` has a row per word: its ``line`` and ``place`` in the line (from 0), and ``entry`` in
    the dictionary; for a model with senses, the row of the most probable ``sense`` and its
    ``posterior`` (Eq. 7); with guesses, the ``probability`` of the word, the most probable word
    ``guess``, and its probability ``guessed``. With pieces there is a row per token, ``place`` is
    that of its word, and ``piece`` says whether the token is a part of a longer word.
    """

    words: list[list[str]]  # of each line
    source: list[list[str]] | None  # of each line of the source side
    tokens: DataFrame
    number: Sequence[int] = ()  # of each line in the split
    contexts: Tensor = torch.empty(0, 0)  # [C, d] of the requested words among the N


@dataclass(frozen=True)
class Extras:
    """What :func:`read_text` reads beside the words and their senses.

    Args:
        words: entries of the dictionary whose contexts are returned.
        sample: collects contexts of the whole split, however few lines are returned.
        guesses: include predictions.
        pieces: include tokens that are pieces of words.
        piece_contexts: with pieces, return also their contexts.
    """

    words: Collection[int] = ()
    sample: ContextSample | None = None
    guesses: bool = False
    pieces: bool = False
    piece_contexts: bool = False


NO_EXTRAS = Extras()


@torch.no_grad()
def read_text(
    model: Any,
    task: Any,
    split: str,
    most: int = 0,
    *,
    extras: Extras = NO_EXTRAS,
    joined: bool = True,
    flag: str = "--split",
) -> Text:
    """Read the words of a split in one pass. A split without words raises a UserError.

    Args:
        model, task, split, most, flag: see :func:`.contexts.batches`.
        extras: what is read beside the words and their senses.
        joined: join BPE pieces.
    """
    sample = extras.sample
    layer = getattr(model.decoder, "output", None)
    two_sided = hasattr(model, "encoder")
    target_words = task.target_dictionary
    of_target = of_sentencepiece(target_words.symbols)
    of_source = two_sided and of_sentencepiece(task.source_dictionary.symbols)
    requested = torch.tensor(list(extras.words), dtype=torch.long)
    step = 1
    lines: dict[int, list[str]] = {}
    sources: dict[int, list[str]] = {}
    tables: list[dict[str, Tensor]] = []
    contexts: list[Tensor] = []
    steps = teacher_forced(model, task, split, flag, 0 if sample else most)
    for index, (batch, target, vectors, log_probs) in enumerate(steps):
        if extras.pieces:
            texts = [all_tokens(row, target_words, of_target) for row in target.tolist()]
        else:
            texts = [_whole_words(row, target_words, joined, of_target) for row in target.tolist()]
        numbers = batch["id"].tolist()
        places = [
            (row, column, number, place, is_piece)
            for row, number in enumerate(numbers)
            for column, place, is_piece in texts[row][1]
        ]
        row, column, line, place, piece = torch.tensor(places, dtype=torch.long).view(-1, 5).t()
        entry = target[row, column]  # [n]
        h = vectors[row, column]  # [n, d]
        if sample:
            if index == 0:  # the first batch has loaded the split
                step = step_between_batches(task.dataset(split), most)
            sample.add(entry, h)
        if index % step:
            continue
        lines |= dict(zip(numbers, (text for text, _ in texts)))
        if two_sided:
            for number, own in zip(numbers, batch["net_input"]["src_tokens"].tolist()):
                words, _ = real_words(own, task.source_dictionary, sentencepiece=of_source)
                sources[number] = words
        table = {"line": line, "place": place, "entry": entry}
        if extras.pieces:
            table["piece"] = piece.bool()
        if isinstance(layer, OutputLayer):
            table |= _senses_of(layer, entry, h)
        if extras.guesses:
            table |= _guesses(log_probs, h, entry, len(task.target_dictionary))
        tables.append(table)
        wanted = torch.isin(entry, requested.to(entry.device))
        if extras.piece_contexts:
            wanted |= piece.bool().to(entry.device)
        contexts.append(h[wanted].float().cpu())
    if not any(len(table["entry"]) for table in tables):
        raise no_words(split, flag)
    return _as_text(lines, sources if two_sided else None, tables, torch.cat(contexts))


def _senses_of(layer: OutputLayer, entry: Tensor, h: Tensor) -> dict[str, Tensor]:
    """Columns of the most probable sense of words [n] in their contexts [n, d]."""
    share, slot = layer.posterior(layer.look_up(entry), h).max(-1, keepdim=True)  # [n, 1]
    sense = layer.table.senses[entry].gather(-1, slot)
    return {"sense": sense[:, 0], "posterior": share[:, 0].double()}


def _as_text(
    lines: Mapping[int, list[str]],
    sources: Mapping[int, list[str]] | None,
    tables: Sequence[Mapping[str, Tensor]],
    contexts: Tensor,
) -> Text:
    """The text of batches, in the order of the split.

    Args:
        lines: words of each line, by its number in the split.
        sources: those of the source side, if there is one.
        tables: columns of the words of each batch. ``line`` has numbers in the split.
        contexts: those of the requested words, [C, d].
    """
    parts = {name: torch.cat([table[name] for table in tables]) for name in tables[0]}
    columns = {name: values.cpu().numpy() for name, values in parts.items()}
    order = sorted(lines)  # with gaps for omitted batches
    columns["line"] = np.searchsorted(order, columns["line"])
    words = [lines[number] for number in order]
    others = None
    if sources is not None:
        others = [sources[number] for number in order]
    return Text(words, others, DataFrame(columns), order, contexts)


def without_pieces(text: Text, requested: NDArray[np.bool_]) -> Text:
    """The whole words of a text that was read with pieces and their contexts.

    Args:
        requested: mask of the tokens whose contexts the text has, [N].
    """
    whole = ~text.tokens["piece"].to_numpy()
    contexts = text.contexts[torch.from_numpy(whole[requested])]
    tokens = text.tokens[whole].drop(columns="piece").reset_index(drop=True)
    return text._replace(tokens=tokens, contexts=contexts)


def _whole_words(
    tokens: Sequence[int], dictionary: Any, joined: bool, sentencepiece: bool
) -> tuple[list[str], list[tuple[int, int, bool]]]:
    """As :func:`all_tokens`, without pieces."""
    words, singles = real_words(tokens, dictionary, joined, sentencepiece)
    return words, [(column, place, False) for column, place in singles]


def _guesses(
    log_probs: Callable[[Tensor], Tensor], h: Tensor, entry: Tensor, words: int
) -> dict[str, Tensor]:
    """Columns of predictions for contexts [n, d] of words [n]."""
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    rows = max(1, MOST_LOG_PROBS // words)
    for contexts, target in zip(h.split(rows), entry.split(rows)):
        scores = log_probs(contexts).exp()  # [n, V]
        best = scores.max(1)
        parts.append((scores.gather(1, target[:, None])[:, 0], best.indices, best.values))
    columns = map(torch.cat, zip(*parts))
    return dict(zip(("probability", "guess", "guessed"), columns))
