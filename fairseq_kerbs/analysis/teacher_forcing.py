"""Words of a split with their context vectors, senses and predictions, by teacher forcing.

The context vector h of a token is the input of the output layer at the position that predicts the
token. :func:`teacher_forced` computes it for any fairseq model with a decoder.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fairseq_kerbs.analysis.words import joined_words
from fairseq_kerbs.output_layers import OutputLayer
from fairseq_kerbs.reallocation.clustering import LEAST_CONTEXTS, ContextSample
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.processes import progress

if TYPE_CHECKING:  # convert does not need pandas
    from pandas import DataFrame

TOKENS = 250_000  # approximate number of tokens for the names of senses
SCORES = 8 << 20  # maximum number of log-probabilities in memory
_MAX_TOKENS = 4000  # per batch, and so per sentence

Numbers = NDArray[np.int64]


def _step(dataset: Any, most: int) -> int:
    """Step between batches that selects about ``most`` tokens, or all with 0."""
    sizes = np.asarray(dataset.sizes)  # [sentences], with a source [sentences, 2]
    tokens = (sizes if sizes.ndim == 1 else sizes.max(1)).sum()
    return max(1, round(tokens / most)) if most else 1


def batches(
    task: Any, split: str, flag: str = "--split", most: int = 0, longest: Any = None
) -> Iterator[dict[str, Any]]:
    """Batches of a split, in no particular order, without sentences that the model cannot read.

    Args:
        task: fairseq's task.
        split: name of the split.
        flag: flag that names the split, for messages.
        most: approximate number of tokens. Every n-th batch of a larger split is used. 0 uses all.
        longest: maximum lengths that the model reads, besides those of the task.

    Raises:
        UserError: the split is missing or damaged, or has no target side.
    """
    from fairseq.utils import resolve_max_positions

    settings = task.cfg or task.args
    folder = Path(settings.data.split(":")[0])
    tokens = max(_MAX_TOKENS, getattr(settings, "tokens_per_sample", None) or 0)
    try:
        # mapping an empty file into memory fails
        if any(not path.stat().st_size for path in folder.glob(f"{split}.*bin")):
            raise _no_words(split, flag)
        task.load_dataset(split)
        dataset = task.dataset(split)
        epoch = task.get_batch_iterator(
            dataset,
            max_tokens=tokens,
            max_positions=resolve_max_positions(task.max_positions(), longest, tokens),
            ignore_invalid_inputs=True,
        ).next_epoch_itr(shuffle=False)
        bar = progress(epoch, f"split {split}", " batches")
        for batch in islice(bar, 0, None, _step(dataset, most)):
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


class Step(NamedTuple):
    """A batch of B sentences with L target tokens each, padding included."""

    batch: dict[str, Any]  # fairseq's batch
    target: Tensor  # [B, L]
    contexts: Tensor  # [B, L, d]
    log_probs: Callable[[Tensor], Tensor]  # contexts [n, d] -> log-probabilities [n, V]


@torch.no_grad()
def teacher_forced(
    model: Any, task: Any, split: str, flag: str = "--split", most: int = 0
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
        for batch in batches(task, split, flag, most, model.max_positions()):
            batch = apply_to_sample(lambda value: value.to(device), batch)
            yield Step(batch, batch["target"], model(**batch["net_input"])[0], log_probs)
    finally:
        model.cpu()
        del decoder.__dict__["output_layer"]


def real_words(
    tokens: Sequence[int], dictionary: Any, joined: bool = True
) -> tuple[list[str], list[tuple[int, int]]]:
    """Words of a sentence, and the column and place of those that are a single token.

    Padding and the end of the sentence are left out. BPE pieces are words unless ``joined``.
    """
    skipped = dictionary.pad(), dictionary.eos()
    columns = [at for at, token in enumerate(tokens) if token not in skipped]
    symbols = [dictionary[tokens[column]] for column in columns]
    words, places = joined_words(symbols) if joined else (symbols, list(range(len(symbols))))
    return words, [(columns[at], place) for place, at in enumerate(places) if at is not None]


class Text(NamedTuple):
    """Lines of a split, and their N words that are a single token.

    ``tokens`` has a row per word: its ``line`` and ``place`` in the line (from 0), and ``entry`` in
    the dictionary; for a model with senses, the row of the most probable ``sense`` and its
    ``posterior`` (Eq. 7); with guesses, the ``probability`` of the word, the most probable word
    ``guess``, and its probability ``guessed``.
    """

    words: list[list[str]]  # of each line
    source: list[list[str]] | None  # of each line of the source side
    tokens: DataFrame
    number: Sequence[int] = ()  # of each line in the split
    contexts: Tensor = torch.empty(0, 0)  # [C, d] of the requested words among the N


@torch.no_grad()
def read_text(
    model: Any,
    task: Any,
    split: str,
    most: int = 0,
    *,
    words: Collection[int] = (),
    sample: ContextSample | None = None,
    joined: bool = True,
    guesses: bool = False,
    flag: str = "--split",
) -> Text:
    """Read the words of a split in one pass. A split without words raises a UserError.

    Args:
        model, task, split, most, flag: see :func:`batches`.
        words: entries of the dictionary whose contexts are returned.
        sample: collects contexts of the whole split, whatever ``most``.
        joined: join BPE pieces.
        guesses: include predictions.
    """
    from pandas import DataFrame

    layer, two_sided = getattr(model.decoder, "output", None), hasattr(model, "encoder")
    requested, step = torch.tensor(list(words), dtype=torch.long), 1
    lines: dict[int, list[str]] = {}
    sources: dict[int, list[str]] = {}
    tables, contexts = [], []
    steps = teacher_forced(model, task, split, flag, 0 if sample else most)
    for index, (batch, target, vectors, log_probs) in enumerate(steps):
        texts = [real_words(row, task.target_dictionary, joined) for row in target.tolist()]
        numbers = batch["id"].tolist()
        places = [(r, at, n, place) for r, n in enumerate(numbers) for at, place in texts[r][1]]
        row, column, line, place = torch.tensor(places, dtype=torch.long).view(-1, 4).t()
        entry, h = target[row, column], vectors[row, column]  # [n], [n, d]
        if sample:
            step = step if index else _step(task.dataset(split), most)
            sample.add(entry, h)
        if index % step:
            continue
        lines |= dict(zip(numbers, (text for text, _ in texts)))
        if two_sided:
            rows = batch["net_input"]["src_tokens"].tolist()
            sources |= dict(zip(numbers, (real_words(r, task.source_dictionary)[0] for r in rows)))
        table = {"line": line, "place": place, "entry": entry}
        if isinstance(layer, OutputLayer):
            share, slot = layer.posterior(layer.look_up(entry), h).max(-1, keepdim=True)  # [n, 1]
            table["sense"] = layer.table.senses[entry].gather(-1, slot)[:, 0]
            table["posterior"] = share[:, 0].double()
        if guesses:
            table |= _guesses(log_probs, h, entry, len(task.target_dictionary))
        tables.append(table)
        contexts.append(h[torch.isin(entry, requested.to(entry.device))].float().cpu())
    if not any(len(table["entry"]) for table in tables):
        raise _no_words(split, flag)
    parts = {name: torch.cat([table[name] for table in tables]) for name in tables[0]}
    columns = {name: values.cpu().numpy() for name, values in parts.items()}
    order = sorted(lines)  # with gaps for omitted batches
    columns["line"] = np.searchsorted(order, columns["line"])
    return Text(
        [lines[number] for number in order],
        [sources[number] for number in order] if two_sided else None,
        DataFrame(columns),
        order,
        torch.cat(contexts),
    )


def _guesses(log_probs: Any, h: Tensor, entry: Tensor, words: int) -> dict[str, Tensor]:
    """Columns of predictions for contexts [n, d] of words [n]."""
    parts = []
    rows = max(1, SCORES // words)
    for contexts, target in zip(h.split(rows), entry.split(rows)):
        scores = log_probs(contexts).exp()  # [n, V]
        best = scores.max(1)
        parts.append((scores.gather(1, target[:, None])[:, 0], best.indices, best.values))
    columns = map(torch.cat, zip(*parts))
    return dict(zip(("probability", "guess", "guessed"), columns))


def _no_words(split: str, flag: str = "--split") -> UserError:
    return UserError(f"{flag} {split}: it has no words that the model can read; name another split")


def contexts_of(
    model: Any, task: Any, split: str, words: Collection[int], most: int
) -> dict[int, Tensor]:
    """A random sample of at most ``most`` contexts [n, d] of each word that occurs in a split."""
    sample, requested = None, torch.tensor(list(words))
    for _, target, contexts, _ in teacher_forced(model, task, split):
        mask = torch.isin(target, requested.to(target.device))
        mask &= target != task.target_dictionary.pad()
        dim = contexts.shape[-1]
        sample = sample or sample_of(words, len(task.target_dictionary), dim, most)
        sample.add(target[mask], contexts[mask])
    by_word = {word: sample.contexts(word)[:most] for word in words} if sample else {}
    return {word: contexts for word, contexts in by_word.items() if len(contexts)}


def sample_of(words: Collection[int], vocabulary: int, dim: int, most: int) -> ContextSample:
    """An empty sample for ``most`` contexts of size ``dim`` of each of some words."""
    size = torch.zeros(vocabulary, dtype=torch.long)
    size[list(words)] = max(most, LEAST_CONTEXTS)
    return ContextSample(size, dim, int(size.max()), 2 * dim * int(size.sum()), special=0)


def sample_contexts(model: Any, task: Any, split: str, sample: ContextSample) -> None:
    """Add all context vectors of a split to a sample."""
    for _, target, contexts, _ in teacher_forced(model, task, split):
        real = target != task.target_dictionary.pad()
        # without the 1 that a model with --sense-bias appends
        sample.add(target[real], contexts[real][:, : sample.kept.shape[1]])


def count_words(task: Any, split: str) -> Tensor:
    """Occurrences of each word of the target dictionary in a split, int64 [V], with 0 for special
    symbols. A split without words raises a UserError."""
    dictionary = task.target_dictionary
    counts = torch.zeros(len(dictionary), dtype=torch.long)
    for batch in batches(task, split):
        counts += batch["target"].flatten().bincount(minlength=len(counts))
    counts[: dictionary.nspecial] = 0
    if not counts.any():
        raise _no_words(split)
    return counts


@torch.no_grad()
def loss_in_bits(model: Any, task: Any, split: str, flag: str = "--split") -> float:
    """Mean −log2 P of the tokens of a split, including ends of sentences."""
    dictionary = task.target_dictionary
    rows, loss, tokens = max(1, SCORES // len(dictionary)), 0.0, 0
    for _, target, contexts, log_probs in teacher_forced(model, task, split, flag):
        real = target != dictionary.pad()
        for h, words in zip(contexts[real].split(rows), target[real].split(rows)):
            loss -= float(log_probs(h).gather(1, words.unsqueeze(1)).double().sum())
            tokens += len(words)
    return loss / max(1, tokens) / math.log(2)
