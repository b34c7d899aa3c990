"""Passes over a split by teacher forcing: its words, their contexts, senses and predictions.

The context vector h of a token is what the decoder hands to its output layer at the position that
predicts the token. `teacher_forced` makes them, of any fairseq model with a decoder.
"""

from __future__ import annotations

import math
import struct
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import count, islice
from textwrap import shorten
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairseq_kerbs.analysis.words import is_word, joined_words
from fairseq_kerbs.clusters import ContextSample
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.processes import progress

TOKENS = 250_000  # of a split whose words name senses, about; see `batches`
SCORES = 8 << 20  # log-probabilities that are kept at a time
GUESSES = 16  # most probable words that are kept for each word of the references
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
    model: Any,
    task: Any,
    split: str,
    flag: str = "--split",
    most: int = 0,
    wanted: Callable[[Tensor], bool] = lambda target: True,
) -> Iterator[Step]:
    """The contexts of the `batches` of a split whose target [B, L] is ``wanted``; a UserError if
    the model has no output layer of its own."""
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
            if wanted(batch["target"]):
                yield Step(batch, batch["target"], model(**batch["net_input"])[0], log_probs)
    finally:
        del decoder.__dict__["output_layer"]


def real_words(
    tokens: Tensor, dictionary: Any, joined: bool = True
) -> tuple[list[str], list[tuple[int, int]]]:
    """Words of a sentence [len] without padding and end, BPE pieces ``joined`` or not; of those
    that are a single token the column, and the place among the words."""
    skipped, numbers = (dictionary.pad(), dictionary.eos()), tokens.tolist()
    columns = [column for column, number in enumerate(numbers) if number not in skipped]
    symbols = [dictionary[numbers[column]] for column in columns]
    if not joined:
        return symbols, [(column, place) for place, column in enumerate(columns)]
    words, positions = joined_words(symbols)
    return words, [(columns[at], place) for place, at in enumerate(positions) if at is not None]


def batch_words(
    batch: dict[str, Any], dictionary: Any, joined: bool = True
) -> tuple[dict[int, list[str]], Tensor]:
    """`real_words` of each sentence by its number in the split; row, column, sentence and place of
    the n that are a single token, [4, n]."""
    words, single = {}, []
    for row, (sentence, tokens) in enumerate(zip(batch["id"].tolist(), batch["target"])):
        words[sentence], places = real_words(tokens, dictionary, joined)
        single += [(row, column, sentence, place) for column, place in places]
    return words, torch.tensor(single, dtype=torch.long).view(-1, 4).t()


def _no_words(split: str) -> UserError:
    return UserError(f"--split {split}: there is no word in it; name another split")


# --- words and their senses -----------------------------------------------------------------------


class Text(NamedTuple):
    """Lines of a split, and the senses that predicted their N words of a single token."""

    words: list[list[str]]  # of each line, pieces joined
    source: list[list[str]] | None  # those of the source side
    line: Numbers  # [N]
    place: Numbers  # [N] in the line's words
    entry: Numbers  # [N] number of the word in the dictionary
    sense: Numbers  # [N] row of the most probable sense
    posterior: NDArray[np.float64]  # [N] its share of the word (Eq. 7)
    number: Sequence[int] = ()  # of each line in the split
    contexts: Tensor = torch.empty(0, 0)  # [C, d] of those of the N that were asked for


@torch.no_grad()
def read_text(
    model: Any,
    task: Any,
    split: str,
    most: int = 0,
    words: Collection[int] = (),
    sample: ContextSample | None = None,
    flag: str = "--split",
) -> Text:
    """Words and senses of a split, of about ``most`` tokens (all with 0), in one pass.

    Args:
        words: entries of the dictionary whose contexts the text has.
        sample: takes the contexts of words of a single token in the whole split, whatever ``most``.
    """
    layer, two_sided = model.decoder.output, hasattr(model, "encoder")
    asked, step = torch.tensor(list(words), dtype=torch.long), 1
    lines: dict[int, list[str]] = {}
    sources: dict[int, list[str]] = {}
    tokens, posteriors, contexts = [], [], []
    passed = teacher_forced(model, task, split, flag, 0 if sample else most)
    for turn, (batch, target, vectors, _) in enumerate(passed):
        text, (row, column, line, place) = batch_words(batch, task.target_dictionary)
        entry, h = target[row, column], vectors[row, column]  # [n], [n, d]
        if sample:
            step = step if turn else _step(task.dataset(split), most)
            sample.add(entry, h)
        if turn % step:
            continue
        lines |= text
        if two_sided:
            for number, source in zip(text, batch["net_input"]["src_tokens"]):
                sources[number] = real_words(source, task.source_dictionary)[0]
        posterior, slot = layer.posterior(layer.look_up(entry), h).max(-1, keepdim=True)  # [n, 1]
        sense = layer.table.senses[entry].gather(-1, slot)[:, 0]
        tokens.append(torch.stack([line, place, entry, sense]))
        posteriors.append(posterior[:, 0].double())
        contexts.append(h[torch.isin(entry, asked)].float())
    if not any(part.shape[1] for part in tokens):
        raise _no_words(split)
    line, place, entry, sense = torch.cat(tokens, 1).numpy()
    order = sorted(lines)  # with gaps where batches were left out
    return Text(
        [lines[number] for number in order],
        [sources[number] for number in order] if two_sided else None,
        *(np.searchsorted(order, line), place, entry, sense, torch.cat(posteriors).numpy()),
        *(order, torch.cat(contexts)),
    )


# --- contexts -------------------------------------------------------------------------------------


def context_vectors(
    model: Any, task: Any, split: str, words: Collection[int], most: int
) -> dict[int, Tensor]:
    """The first ``most`` context vectors of some words in a split, [n, d] of each that occurs."""
    parts: dict[int, list[Tensor]] = defaultdict(list)
    missing = dict.fromkeys(set(words) - {task.target_dictionary.pad()}, most)

    def present(target: Tensor) -> list[int]:
        return [word for word in target.unique().tolist() if missing.get(word)]

    passed = teacher_forced(model, task, split, wanted=lambda target: bool(present(target)))
    for _, target, contexts, _ in passed:
        for word in present(target):
            parts[word].append(contexts[target == word][: missing[word]].float())
            missing[word] -= len(parts[word][-1])
    return {word: torch.cat(vectors) for word, vectors in parts.items()}


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


def sample_contexts(model: Any, task: Any, split: str, sample: ContextSample) -> None:
    """Let a sample choose among all context vectors of a split."""
    for _, target, contexts, _ in teacher_forced(model, task, split):
        real = target != task.target_dictionary.pad()
        # without the 1 that a model with --sense-bias appends
        sample.add(target[real], contexts[real][:, : sample.kept.shape[1]])


# --- predictions ----------------------------------------------------------------------------------


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


class Predictions(NamedTuple):
    """Every word of the references, N in all, in the order of the split."""

    tokens: dict[int, list[str]]  # of each sentence
    sentence: Tensor  # [N] number of its sentence (in a language model: its block), from 0
    place: Tensor  # [N] where it stands among the sentence's ``tokens``
    word: Tensor  # [N] its number in the dictionary
    probability: Tensor  # [N] P(word | context)
    guesses: Tensor  # [N, k] the words most probable there, the most probable first
    guessed: Tensor  # [N, k] their probabilities

    @property
    def right(self) -> Tensor:
        """[N] whether the most probable word is the reference's."""
        return self.guesses[:, 0] == self.word

    def same_words(self, other: Predictions) -> bool:
        """Whether both are about the same words of the same sentences."""
        return all(torch.equal(mine, yours) for mine, yours in zip(self[1:4], other[1:4]))


@torch.no_grad()
def collect_predictions(model: Any, task: Any, split: str, joined: bool = False) -> Predictions:
    """Predictions of a split's words; ``joined``: only of those that are a single token, and BPE
    pieces joined. A UserError if no word is left."""
    dictionary, parts = task.target_dictionary, []
    rows_a_time = max(1, SCORES // len(dictionary))
    sentences: dict[int, list[str]] = {}
    for batch, target, contexts, log_probs in teacher_forced(model, task, split):
        text, single = batch_words(batch, dictionary, joined)
        sentences |= text
        for row, column, sentence, place in (part.t() for part in single.t().split(rows_a_time)):
            word = target[row, column]
            scores = log_probs(contexts[row, column])  # [n, V]
            best = scores.topk(min(GUESSES, scores.shape[1]), dim=1)
            probability = scores.gather(1, word.unsqueeze(1))[:, 0].exp()
            parts.append((sentence, place, word, probability, best.indices, best.values.exp()))
    real = [is_word(*pair, dictionary.nspecial) for pair in zip(dictionary.symbols, count())]
    columns = [torch.cat(column) for column in zip(*parts)] or [torch.empty(0).long()] * 3
    sentence, place, word = columns[:3]
    proper = torch.tensor(real)[word].nonzero()[:, 0]
    if not len(proper):
        raise _no_words(split)
    order = proper[(sentence * (int(place.max()) + 1) + place)[proper].argsort()]
    return Predictions(sentences, *(column[order] for column in columns))
