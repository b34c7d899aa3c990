"""Context vectors of words in reference translations or texts, of any fairseq model with a decoder.

The context vector h of a word is what the decoder hands to its output layer at the position that
predicts the word (teacher forcing).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from fairseq_kerbs.analysis.occurrences import batches
from fairseq_kerbs.output_layers import OutputLayer
from fairseq_kerbs.senses import number_senses
from fairseq_kerbs.utils.errors import UserError


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
    with features_only(model):
        for batch in batches(task, split):
            target = batch["target"].flatten()  # [batch · len]
            here = set(target.tolist()) & missing.keys()
            if not here:
                continue
            features = model(**batch["net_input"])[0]  # [batch, len, d]
            flat = features.reshape(len(target), -1)
            for word in here:
                found = flat[target == word][: missing[word]].float()
                parts.setdefault(word, []).append(found)
                missing[word] -= len(found)
                if not missing[word]:
                    del missing[word]
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
    """Rows of a word's senses in the order of their numbers (`number_senses`)."""
    table, mask = layer.table
    rows = table[word][mask[word]]
    order = number_senses(torch.zeros_like(rows), layer.usage[rows]).argsort()
    numbers: list[int] = rows[order].tolist()
    return numbers


def usage_shares(layer: OutputLayer, senses: list[int]) -> Tensor:
    """[n] usage U (Eq. 13) of a word's senses as shares of their sum; 0 where none was used."""
    usage = layer.usage[senses].detach()
    return usage / usage.sum().clamp_min(1e-38)


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
    return layer.sense_logits(contexts, torch.tensor(sense_numbers(layer, word))).argmax(1)


class Projection(NamedTuple):
    """Context vectors of a word in a plane, and its sense vectors in the same plane."""

    contexts: Tensor  # [n, 2] along the first two principal components, mean 0
    senses: Tensor  # [K, 2] sense vectors scaled to the mean length of the contexts
    share: tuple[float, float]  # of the contexts' variance, along the two components


def project(contexts: Tensor, senses: Tensor) -> Projection:
    """Principal components of context vectors.

    A kernel compares directions, lengths are factors; so sense vectors are scaled.

    Args:
        contexts: [n, d], n ≥ 2.
        senses: [K, d] sense vectors.

    Raises:
        ValueError: there are fewer than two contexts.
    """
    from sklearn.decomposition import PCA

    if len(contexts) < 2:
        raise ValueError("a projection needs at least two context vectors")
    contexts = contexts.double()
    with np.errstate(invalid="ignore"):  # contexts that are all the same have no variance
        found = PCA(min(2, contexts.shape[1]), svd_solver="full").fit(contexts.numpy())
    scaled = normalize(senses.double()) * contexts.norm(dim=1).mean()
    lacking = 2 - found.n_components_  # vectors of one dimension lie on a line

    def plane(vectors: Tensor) -> Tensor:
        return torch.from_numpy(np.pad(found.transform(vectors.numpy()), ((0, 0), (0, lacking))))

    first, second = np.pad(np.nan_to_num(found.explained_variance_ratio_), (0, lacking)).tolist()
    return Projection(plane(contexts), plane(scaled), (first, second))
