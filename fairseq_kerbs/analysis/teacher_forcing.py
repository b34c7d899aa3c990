"""Passes over a split by teacher forcing: its words, their contexts, senses and predictions.

The context vector h of a token is what the decoder hands to its output layer at the position that
predicts the token. `teacher_forced` makes them, of any fairseq model with a decoder.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from textwrap import shorten
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairseq_kerbs.analysis.words import joined_words
from fairseq_kerbs.clusters import LEAST_CONTEXTS, ContextSample
from fairseq_kerbs.output_layers import OutputLayer
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.processes import progress

if TYPE_CHECKING:  # convert does without pandas
    from pandas import DataFrame

TOKENS = 250_000  # of a split whose words name senses, about; see `batches`
SCORES = 8 << 20  # log-probabilities that are kept at a time
_MAX_TOKENS = 4000  # of a batch, and so of a sentence

Numbers = NDArray[np.int64]


def _lengths(dataset: Any) -> Numbers:
    """[sentences] tokens of the longer side of each."""
    sizes = np.asarray(dataset.sizes)
    return sizes.reshape(len(sizes), -1).max(1)


def _step(dataset: Any, most: int) -> int:
    """1 in how many batches make up about ``most`` tokens; with 0 all do."""
    return max(1, round(_lengths(dataset).sum() / most)) if most else 1


def batches(
    task: Any, split: str, flag: str = "--split", most: int = 0
) -> Iterator[dict[str, Any]]:
    """Batches of a split, in no particular order; of one with more than ``most`` tokens only every
    second, third …, with 0 all. A UserError, which names its ``flag``, if the data have no such
    split or target side, it is damaged, or a sentence is too long."""
    try:
        task.load_dataset(split)
        dataset = task.dataset(split)
        lengths = _lengths(dataset)
        if lengths.max(initial=0) > _MAX_TOKENS:
            raise UserError(
                f"{flag} {split}: sentence {lengths.argmax() + 1} has {lengths.max()} tokens, "
                f"more than {_MAX_TOKENS}; divide it, or name another split"
            )
        epoch = task.get_batch_iterator(
            dataset, max_tokens=_MAX_TOKENS, max_positions=None
        ).next_epoch_itr(shuffle=False)
        shown = progress(epoch, f"split {split}", " batches")
        for batch in islice(shown, 0, None, _step(dataset, most)):
            if batch.get("target") is None:
                raise UserError(f"{flag} {split}: it has no target side; make the data again")
            yield batch
    except FileNotFoundError as error:
        raise UserError(f"{flag}: {error}; name a split of the data") from error
    except (AssertionError, ValueError, struct.error) as error:
        raise UserError(
            f"{flag} {split}: the data are damaged ({shorten(str(error), 200)}); make them again"
        ) from error


class Step(NamedTuple):
    """A batch of B sentences with L target tokens each, padding included."""

    batch: dict[str, Any]  # as fairseq collates it
    target: Tensor  # [B, L]
    contexts: Tensor  # [B, L, d]
    log_probs: Callable[[Tensor], Tensor]  # of contexts [n, d] those of all words, [n, V]


@torch.no_grad()
def teacher_forced(
    model: Any, task: Any, split: str, flag: str = "--split", most: int = 0
) -> Iterator[Step]:
    """The contexts of the `batches` of a split; a UserError if the model has no output layer of its
    own."""
    decoder: Any = getattr(model, "decoder", None)
    if not callable(getattr(decoder, "output_layer", None)):
        raise UserError(
            f"a {type(model).__name__} has no decoder with an output layer of its own, so that its "
            "context vectors cannot be read"
        )
    output_layer = decoder.output_layer

    def log_probs(contexts: Tensor) -> Tensor:
        # as if it were one sentence: fairseq's adaptive softmax asks for three dimensions
        output = output_layer(contexts.unsqueeze(0)), None
        scores: Tensor = model.get_normalized_probs(output, log_probs=True)[0]
        return scores.float()

    decoder.__dict__["output_layer"] = lambda features, **_: features
    try:
        for batch in batches(task, split, flag, most):
            yield Step(batch, batch["target"], model(**batch["net_input"])[0], log_probs)
    finally:
        del decoder.__dict__["output_layer"]


def real_words(
    tokens: Sequence[int], dictionary: Any, joined: bool = True
) -> tuple[list[str], list[tuple[int, int]]]:
    """Words of a sentence [len] without padding and end, BPE pieces ``joined`` or not; of those
    that are a single token the column, and the place among the words."""
    skipped = dictionary.pad(), dictionary.eos()
    columns = [at for at, token in enumerate(tokens) if token not in skipped]
    symbols = [dictionary[tokens[column]] for column in columns]
    words, places = joined_words(symbols) if joined else (symbols, list(range(len(symbols))))
    return words, [(columns[at], place) for place, at in enumerate(places) if at is not None]


class Text(NamedTuple):
    """Lines of a split, and their N words of a single token.

    ``tokens`` has N rows: the ``line`` and the ``place`` of a word in it, both from 0, its
    ``entry`` in the dictionary; of a model with senses the row of the most probable ``sense`` and
    its ``posterior`` (Eq. 7); with guesses also the ``probability`` of the word, and the word of
    highest probability, ``guess``, with this.
    """

    words: list[list[str]]  # of each line, pieces joined
    source: list[list[str]] | None  # those of the source side
    tokens: DataFrame
    number: Sequence[int] = ()  # of each line in the split
    contexts: Tensor = torch.empty(0, 0)  # [C, d] of those of the N that were asked for


@torch.no_grad()
def read_text(
    model: Any, task: Any, split: str, most: int = 0, *, words: Collection[int] = (),
    sample: ContextSample | None = None, joined: bool = True, guesses: bool = False,
    flag: str = "--split",
) -> Text:  # fmt: skip
    """Words of a split, of about ``most`` tokens (all with 0), in one pass; a UserError, which
    names its ``flag``, if it has none.

    Args:
        words: entries of the dictionary whose contexts the text has.
        sample: takes the contexts of words of a single token in the whole split, whatever ``most``.
        joined: whether BPE pieces are joined, or every piece is a word.
        guesses: whether the table has predictions.
    """
    from pandas import DataFrame

    layer, two_sided = getattr(model.decoder, "output", None), hasattr(model, "encoder")
    asked, step = torch.tensor(list(words), dtype=torch.long), 1
    lines: dict[int, list[str]] = {}
    sources: dict[int, list[str]] = {}
    tables, contexts = [], []
    passed = teacher_forced(model, task, split, flag, 0 if sample else most)
    for turn, (batch, target, vectors, log_probs) in enumerate(passed):
        read = [real_words(row, task.target_dictionary, joined) for row in target.tolist()]
        numbers = batch["id"].tolist()
        places = [(r, at, n, place) for r, n in enumerate(numbers) for at, place in read[r][1]]
        row, column, line, place = torch.tensor(places, dtype=torch.long).view(-1, 4).t()
        entry, h = target[row, column], vectors[row, column]  # [n], [n, d]
        if sample:
            step = step if turn else _step(task.dataset(split), most)
            sample.add(entry, h)
        if turn % step:
            continue
        lines |= dict(zip(numbers, (text for text, _ in read)))
        if two_sided:
            given = batch["net_input"]["src_tokens"].tolist()
            texts = (real_words(tokens, task.source_dictionary)[0] for tokens in given)
            sources |= dict(zip(numbers, texts))
        table = {"line": line, "place": place, "entry": entry}
        if isinstance(layer, OutputLayer):
            share, slot = layer.posterior(layer.look_up(entry), h).max(-1, keepdim=True)  # [n, 1]
            table["sense"] = layer.table.senses[entry].gather(-1, slot)[:, 0]
            table["posterior"] = share[:, 0].double()
        if guesses:
            table |= _guesses(log_probs, h, entry, len(task.target_dictionary))
        tables.append(table)
        contexts.append(h[torch.isin(entry, asked)].float())
    if not any(len(table["entry"]) for table in tables):
        raise _no_words(split, flag)
    columns = {name: torch.cat([table[name] for table in tables]).numpy() for name in tables[0]}
    order = sorted(lines)  # with gaps where batches were left out
    columns["line"] = np.searchsorted(order, columns["line"])
    return Text(
        [lines[number] for number in order],
        [sources[number] for number in order] if two_sided else None,
        *(DataFrame(columns), order, torch.cat(contexts)),
    )


def _guesses(log_probs: Any, h: Tensor, entry: Tensor, words: int) -> dict[str, Tensor]:
    """Of contexts [n, d] of words [n] the columns of predictions."""
    parts = []
    rows = max(1, SCORES // words)
    for contexts, those in zip(h.split(rows), entry.split(rows)):
        scores = log_probs(contexts).exp()  # [n, V]
        best = scores.max(1)
        parts.append((scores.gather(1, those[:, None])[:, 0], best.indices, best.values))
    columns = map(torch.cat, zip(*parts))
    return dict(zip(("probability", "guess", "guessed"), columns))


def _no_words(split: str, flag: str = "--split") -> UserError:
    return UserError(f"{flag} {split}: there is no word in it; name another split")


# --- every token ----------------------------------------------------------------------------------


def contexts_of(
    model: Any, task: Any, split: str, words: Collection[int], most: int
) -> dict[int, Tensor]:
    """Context vectors of some words in a split, at most ``most`` drawn at random, [n, d] of each
    that occurs."""
    sample, asked = None, torch.tensor(list(words))
    for _, target, contexts, _ in teacher_forced(model, task, split):
        there = torch.isin(target, asked) & (target != task.target_dictionary.pad())
        dim = contexts.shape[-1]
        sample = sample or sample_of(words, len(task.target_dictionary), dim, most)
        sample.add(target[there], contexts[there])
    drawn = {word: sample.contexts(word)[:most] for word in words} if sample else {}
    return {word: contexts for word, contexts in drawn.items() if len(contexts)}


def sample_of(words: Collection[int], vocabulary: int, dim: int, most: int) -> ContextSample:
    """A sample, still empty, of at most ``most`` contexts [d] of some words of V."""
    room = torch.zeros(vocabulary, dtype=torch.long)
    room[list(words)] = max(most, LEAST_CONTEXTS)
    return ContextSample(room, dim, int(room.max()), 2 * dim * int(room.sum()), special=0)


def sample_contexts(model: Any, task: Any, split: str, sample: ContextSample) -> None:
    """Let a sample choose among all context vectors of a split."""
    for _, target, contexts, _ in teacher_forced(model, task, split):
        real = target != task.target_dictionary.pad()
        # without the 1 that a model with --sense-bias appends
        sample.add(target[real], contexts[real][:, : sample.kept.shape[1]])


def count_words(task: Any, split: str) -> Tensor:
    """Occurrences of each entry of the dictionary in a split, [V]; a UserError if there is none."""
    dictionary = task.target_dictionary
    counts = torch.zeros(len(dictionary), dtype=torch.long)
    for batch in batches(task, split):
        counts += batch["target"].flatten().bincount(minlength=len(counts))
    counts[dictionary.pad()] = 0
    if not counts.any():
        raise _no_words(split)
    return counts


@torch.no_grad()
def loss_in_bits(model: Any, task: Any, split: str, flag: str = "--split") -> float:
    """Mean −log2 P of the tokens of a split, ends of sentences among them."""
    dictionary = task.target_dictionary
    rows, loss, tokens = max(1, SCORES // len(dictionary)), 0.0, 0
    for _, target, contexts, log_probs in teacher_forced(model, task, split, flag):
        real = target != dictionary.pad()
        for h, words in zip(contexts[real].split(rows), target[real].split(rows)):
            loss -= float(log_probs(h).gather(1, words.unsqueeze(1)).double().sum())
            tokens += len(words)
    return loss / max(1, tokens) / math.log(2)
