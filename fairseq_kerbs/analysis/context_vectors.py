"""Context vectors of words in reference translations or texts, of any fairseq model with a decoder.

The context vector h of a word is what the decoder hands to its output layer at the position that
predicts the word (teacher forcing).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fairseq_kerbs.analysis.occurrences import batches
from fairseq_kerbs.errors import UserError
from fairseq_kerbs.kernels import kernel_logits
from fairseq_kerbs.output_layers import OutputLayer


@torch.no_grad()
def context_vectors(
    model: Any, task: Any, split: str, words: Collection[int], most: int
) -> dict[int, Tensor]:
    """Collect context vectors of some words, the first ones that the split has.

    Args:
        model: a fairseq model.
        task: its task.
        split: name of the split.
        words: numbers of words.
        most: most vectors of one word.

    Returns:
        [n, d] for each word that occurs, in float32.

    Raises:
        UserError: see :func:`batches`; or the model's decoder shows no context vectors.
    """
    parts: dict[int, list[Tensor]] = {}
    missing = dict.fromkeys(set(words) - {task.target_dictionary.pad()}, most)
    asked = torch.tensor(sorted(missing), dtype=torch.long)
    with features_only(model):
        for batch in batches(task, split):
            target = batch["target"].flatten()  # [batch · len]
            if not torch.isin(target, asked).any():
                continue
            features = model(**batch["net_input"])[0]  # [batch, len, d]
            flat = features.reshape(len(target), -1)
            for word in set(target.tolist()) & missing.keys():
                found = flat[target == word][: missing[word]].float()
                parts.setdefault(word, []).append(found)
                missing[word] -= len(found)
                if not missing[word]:
                    del missing[word]
            asked = torch.tensor(sorted(missing), dtype=torch.long)
            if not missing:
                break
    return {word: torch.cat(found) for word, found in parts.items()}


@contextmanager
def features_only(model: Any) -> Iterator[Callable[..., Tensor]]:
    """Let the decoder return what it would give to its output layer, and hand that layer out.

    Raises:
        UserError: the model has no decoder with an output layer of its own.
    """
    decoder: Any = getattr(model, "decoder", None)
    if not callable(getattr(decoder, "output_layer", None)):
        raise UserError(
            f"a {type(model).__name__} has no decoder with an output layer of its own, so that its "
            "context vectors cannot be read"
        )
    own, output_layer = decoder.__dict__.get("output_layer"), decoder.output_layer
    decoder.__dict__["output_layer"] = lambda features, **_: features
    try:
        yield output_layer
    finally:
        del decoder.__dict__["output_layer"]
        if own is not None:
            decoder.__dict__["output_layer"] = own


def sense_numbers(layer: OutputLayer, word: int) -> list[int]:
    """Numbers of a word's senses."""
    table, mask = layer.table
    numbers: list[int] = table[word][mask[word]].tolist()
    return numbers


@torch.no_grad()
def sense_of(layer: OutputLayer, word: int, contexts: Tensor) -> Tensor:
    """The most probable of a word's senses (Eq. 7) in each context.

    Args:
        layer: output layer.
        word: number of the word.
        contexts: [n, d] context vectors.

    Returns:
        [n] index within the word's senses.
    """
    own = sense_numbers(layer, word)
    weight, theta = layer.weight[own].float(), layer.theta[own].float()
    return kernel_logits(contexts, weight, theta, layer.kernel).argmax(1)


@dataclass(frozen=True)
class Projection:
    """Context vectors of a word in a plane, and its sense vectors in the same plane.

    Attributes:
        contexts: [n, 2] coordinates along the first two principal components, mean 0.
        senses: [K, 2] those of the sense vectors, each scaled to the mean length of the contexts:
            a kernel compares directions, lengths are factors.
        share: shares of the contexts' variance along the two components.
    """

    contexts: Tensor
    senses: Tensor
    share: tuple[float, float]


def project(contexts: Tensor, senses: Tensor) -> Projection:
    """Principal components of context vectors.

    Args:
        contexts: [n, d], n ≥ 2.
        senses: [K, d] sense vectors.

    Raises:
        ValueError: there are fewer than two contexts.
    """
    if len(contexts) < 2:
        raise ValueError("a projection needs at least two context vectors")
    contexts, senses = contexts.double(), senses.double()
    mean = contexts.mean(0)
    _, values, rows = torch.linalg.svd(contexts - mean, full_matrices=False)
    axes = torch.zeros(2, contexts.shape[1], dtype=contexts.dtype)
    axes[: min(2, len(rows))] = rows[:2]
    # the sign of an axis is arbitrary: its largest coordinate is made positive
    largest = axes.gather(1, axes.abs().argmax(1, keepdim=True))
    axes = axes * torch.where(largest < 0, -1.0, 1.0)
    length = contexts.norm(dim=1).mean()
    scaled = senses * (length / senses.norm(dim=1, keepdim=True).clamp_min(1e-12))
    variances = values.square()
    total = variances.sum().clamp_min(1e-300)
    shares = [float(value / total) for value in variances[:2]] + [0.0, 0.0]
    return Projection((contexts - mean) @ axes.T, (scaled - mean) @ axes.T, (shares[0], shares[1]))
