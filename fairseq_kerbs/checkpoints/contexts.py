"""Context vectors of a split, by one teacher-forced pass of any fairseq model with a decoder.

The context vector h of a token is the input of the output layer at the position that predicts the
token. :func:`teacher_forced` yields them by batch. The other functions are passes over a split:
:func:`count_words`, :func:`sample_split`, :func:`contexts_of`, :func:`loss_in_bits`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Collection, Iterable, Iterator
from copy import copy
from itertools import islice
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fairseq_kerbs.reallocation.context_sample import LEAST_CONTEXTS, ContextSample
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.progress import progress

MOST_LOG_PROBS = 8 << 20
"""Maximum number of log-probabilities in memory."""
TOKENS_PER_BATCH = 4000
"""Maximum number of tokens of a batch, and so of a sentence."""
ORDER_SEED = 1  # of the order of sentences, as that of batches
TAG_OF_A_LINE = 1 << 20
"""The tag of a sampled context is its line in the split times this, plus its column."""


# ------------------------------------------------------------------ one pass


class Step(NamedTuple):
    """A batch of B sentences with L target tokens each, padding included."""

    batch: dict[str, Any]  # fairseq's batch
    target: Tensor  # [B, L]
    contexts: Tensor  # [B, L, d]
    log_probs: Callable[[Tensor], Tensor]  # contexts [n, d] -> log-probabilities [n, V]


@torch.no_grad()
def teacher_forced(
    model: Any,
    task: Any,
    split: str,
    flag: str = "--split",
    most: int = 0,
    only: Collection[int] | None = None,
) -> Iterator[Step]:
    """Context vectors of a split, for arguments see :func:`batches`.

    The model runs on the GPU, if there is one, and returns to the CPU at the end. A model without a
    separate output layer raises a UserError.
    """
    from fairseq.utils import apply_to_sample

    decoder: Any = getattr(model, "decoder", None)
    if not callable(getattr(decoder, "output_layer", None)):
        raise UserError(
            f"a {type(model).__name__} has no decoder with a separate output layer, so its context "
            "vectors cannot be read"
        )
    output_layer = decoder.output_layer

    def log_probs(contexts: Tensor) -> Tensor:
        # as one sentence, as fairseq's adaptive softmax needs three dimensions
        output = output_layer(contexts.unsqueeze(0)), None
        scores: Tensor = model.get_normalized_probs(output, log_probs=True)[0]
        return scores.float()

    decoder.__dict__["output_layer"] = lambda features, **_: features
    device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        model.to(device)
        for batch in batches(task, split, flag, most, model.max_positions(), only):
            batch = apply_to_sample(lambda value: value.to(device), batch)
            contexts = model(**batch["net_input"])[0]
            yield Step(batch, batch["target"], contexts, log_probs)
    finally:
        model.cpu()
        del decoder.__dict__["output_layer"]


def batches(
    task: Any,
    split: str,
    flag: str = "--split",
    most: int = 0,
    longest: Any = None,
    only: Collection[int] | None = None,
) -> Iterator[dict[str, Any]]:
    """Batches of a split, in no particular order, without sentences that the model cannot read.

    Args:
        task: fairseq's task.
        split: name of the split.
        flag: flag that names the split, for messages.
        most: approximate number of tokens. Every n-th batch of a larger split is used. 0 uses all.
        longest: maximum lengths that the model reads, besides those of the task.
        only: numbers of the sentences to read [all].

    Raises:
        UserError: the split is missing or damaged, or has no target side.
    """
    from fairseq.data.data_utils import numpy_seed
    from fairseq.utils import resolve_max_positions

    settings = task.cfg or task.args
    folder = Path(settings.data.split(":")[0])
    tokens = max(TOKENS_PER_BATCH, getattr(settings, "tokens_per_sample", None) or 0)
    try:
        # mapping an empty file into memory fails
        if any(not path.stat().st_size for path in folder.glob(f"{split}.*bin")):
            raise no_words(split, flag)
        task.load_dataset(split)
        dataset = task.dataset(split)
        if only is not None:
            with numpy_seed(ORDER_SEED):  # a training split has another order each time
                order = dataset.ordered_indices()
            dataset = copy(dataset)
            dataset.ordered_indices = lambda: order[np.isin(order, list(only))]
        epoch = task.get_batch_iterator(
            dataset,
            max_tokens=tokens,
            max_positions=resolve_max_positions(task.max_positions(), longest, tokens),
            ignore_invalid_inputs=True,
        ).next_epoch_itr(shuffle=False)
        bar = progress(epoch, f"reading {split}", " batches")
        for batch in islice(bar, 0, None, step_between_batches(dataset, most)):
            if batch.get("target") is None:
                raise UserError(f"{flag} {split}: it has no target side; prepare the data again")
            yield batch
    except FileNotFoundError as error:
        there = sorted({path.stem for path in folder.glob(f"{split}.*-*.*")})
        remedy = f"it has only {', '.join(there)}: a side is missing; prepare the data again"
        remedy = remedy if there else "name a split of the data"
        raise UserError(f"{flag}: {error}; {remedy}") from error
    except (AssertionError, ValueError, struct.error) as error:
        raise UserError(
            f"{flag} {split}: the data are damaged ({shorten(str(error), 200)}); prepare them again"
        ) from error


def step_between_batches(dataset: Any, most: int) -> int:
    """Step between batches that selects about ``most`` tokens, or all with 0."""
    sizes = np.asarray(dataset.sizes)  # [sentences], with a source [sentences, 2]
    tokens = (sizes if sizes.ndim == 1 else sizes.max(1)).sum()
    return max(1, round(tokens / most)) if most else 1


def no_words(split: str, flag: str = "--split") -> UserError:
    """The error for a split without words."""
    return UserError(f"{flag} {split}: it has no words that the model can read; name another split")


# ------------------------------------------------------------------ what a pass finds


def count_words(task: Any, split: str) -> Tensor:
    """Occurrences of each word of the target dictionary in a split, int64 [V].

    They are 0 for special symbols. A split without words raises a UserError.
    """
    dictionary = task.target_dictionary
    counts = torch.zeros(len(dictionary), dtype=torch.long)
    for batch in batches(task, split):
        counts += batch["target"].flatten().bincount(minlength=len(counts))
    counts[: dictionary.nspecial] = 0
    if not counts.any():
        raise no_words(split)
    return counts


def sample_split(
    model: Any, task: Any, split: str, dim: int, most: int, memory: float
) -> ContextSample:
    """A random sample of the context vectors of each word of a split.

    Args:
        model, task, split: see :func:`batches`.
        dim: size d of the context vectors.
        most: maximum number of contexts of a word.
        memory: maximum size of the sample in GB.

    Raises:
        UserError: the split has no words, no word has enough contexts for several senses, or
            ``memory`` is too small.
    """
    counts = count_words(task, split)
    steps = teacher_forced(model, task, split)
    size = int(min(memory, 1e6) * 1e9)
    try:
        sample = ContextSample(counts, dim, most, size, task.target_dictionary.nspecial)
    except ValueError as error:
        raise UserError(f"--memory {memory}: {error}") from None
    add_contexts(sample, steps, task.target_dictionary.pad())
    if not sample.enough.any():
        raise UserError(
            f"--split {split}: no word occurs {LEAST_CONTEXTS} times, so none can have several "
            "senses; name another split"
        )
    return sample


def add_contexts(sample: ContextSample, steps: Iterable[Step], padding: int) -> None:
    """Add the context vectors of a split to a sample, with tags of :data:`TAG_OF_A_LINE`."""
    for batch, target, contexts, _ in steps:
        real = target != padding
        columns = torch.arange(target.shape[1], device=target.device)
        tags = batch["id"].unsqueeze(1) * TAG_OF_A_LINE + columns  # [B, L]
        # without the 1 that a model with --sense-bias appends
        sample.add(target[real], contexts[real][:, : sample.dim], tags[real])


def contexts_of(
    model: Any,
    task: Any,
    split: str,
    words: Collection[int],
    most: int,
    select: Callable[[Tensor], Tensor] | None = None,
) -> dict[int, Tensor]:
    """A random sample of at most ``most`` contexts [n, d] of each word that occurs in a split.

    ``select`` maps target tokens [B, L] to a mask [B, L] of the occurrences to use, by default all.
    The model reads only sentences with these words, and no more of them than are needed.
    """

    def occurrences(target: Tensor) -> Tensor:
        mask = torch.isin(target, requested.to(target.device))
        mask &= target != task.target_dictionary.pad()
        if select is not None:
            mask &= select(target)
        return mask

    sample = None
    requested = torch.tensor(list(words))
    read = batches(task, split, longest=model.max_positions())
    chosen = _sentences_with(words, most, read, occurrences)
    for _, target, contexts, _ in teacher_forced(model, task, split, only=chosen):
        mask = occurrences(target)
        if sample is None:
            sample = sample_of(words, len(task.target_dictionary), contexts.shape[-1], most)
        sample.add(target[mask], contexts[mask])
    if sample is None:
        return {}
    generator = torch.Generator().manual_seed(0)
    by_word = {}
    for word in words:
        found = sample.contexts(word)
        if len(found) > most:
            # the first rows of a sample are no random part of it
            found = found[torch.randperm(len(found), generator=generator)[:most]]
        if len(found):
            by_word[word] = found
    return by_word


def _sentences_with(
    words: Collection[int],
    most: int,
    read: Iterable[dict[str, Any]],
    occurrences: Callable[[Tensor], Tensor],
) -> Collection[int]:
    """Numbers of random sentences that have ``most`` occurrences of each word, or all of them."""
    found: dict[int, list[Tensor]] = {word: [] for word in words}
    for batch in read:
        mask = occurrences(batch["target"])
        for word, rows in found.items():
            counts = (mask & (batch["target"] == word)).sum(1)  # [B]
            rows.append(torch.stack([batch["id"], counts], 1)[counts > 0])
    generator = torch.Generator().manual_seed(0)
    chosen: set[int] = set()
    for rows in found.values():
        if not rows:
            continue
        numbers, counts = torch.cat(rows).unbind(1)
        order = torch.randperm(len(numbers), generator=generator)
        before = counts[order].cumsum(0) - counts[order]
        chosen.update(numbers[order[before < most]].tolist())
    return chosen


def sample_of(words: Collection[int], vocabulary: int, dim: int, most: int) -> ContextSample:
    """An empty sample for ``most`` contexts of size ``dim`` of each of some words."""
    size = torch.zeros(vocabulary, dtype=torch.long)
    size[list(words)] = max(most, LEAST_CONTEXTS)
    return ContextSample(size, dim, int(size.max()), 2 * dim * int(size.sum()), special=0)


@torch.no_grad()
def loss_in_bits(model: Any, task: Any, split: str, flag: str = "--split") -> float:
    """Mean −log2 P of the tokens of a split, including ends of sentences."""
    dictionary = task.target_dictionary
    rows = max(1, MOST_LOG_PROBS // len(dictionary))
    loss = 0.0
    tokens = 0
    for _, target, contexts, log_probs in teacher_forced(model, task, split, flag):
        real = target != dictionary.pad()
        for h, words in zip(contexts[real].split(rows), target[real].split(rows)):
            loss -= float(log_probs(h).gather(1, words.unsqueeze(1)).double().sum())
            tokens += len(words)
    return loss / max(1, tokens) / math.log(2)
