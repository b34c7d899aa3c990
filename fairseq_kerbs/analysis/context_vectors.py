"""Context vectors of words in reference translations or texts, of any fairseq model with a decoder.

The context vector h of a word is what the decoder hands to its output layer at the position that
predicts the word (teacher forcing).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from torch import Tensor
from torch.nn.functional import normalize

from fairseq_kerbs.analysis.occurrences import batches
from fairseq_kerbs.clusters import ContextSample
from fairseq_kerbs.output_layers import OutputLayer
from fairseq_kerbs.senses import number_senses
from fairseq_kerbs.utils.errors import UserError


@torch.no_grad()
def context_vectors(
    model: Any, task: Any, split: str, words: Collection[int], most: int
) -> dict[int, Tensor]:
    """Collect the first ``most`` context vectors of some words in a split, [n, d] for each of them.
    Raises what :func:`batches` and :func:`features_only` raise."""
    parts: dict[int, list[Tensor]] = defaultdict(list)
    missing = dict.fromkeys(set(words) - {task.target_dictionary.pad()}, most)
    with features_only(model):
        for batch in batches(task, split):
            target = batch["target"].flatten()  # [batch · len]
            here = {word for word in set(target.tolist()) if missing.get(word)}
            if not here:
                continue
            features = model(**batch["net_input"])[0]  # [batch, len, d]
            flat = features.reshape(len(target), -1)
            for word in here:
                parts[word].append(flat[target == word][: missing[word]].float())
                missing[word] -= len(parts[word][-1])
    return {word: torch.cat(found) for word, found in parts.items()}


def count_words(task: Any, split: str) -> Tensor:
    """Occurrences of each entry of the dictionary in a split, [V]. Raises what :func:`batches`
    raises; a UserError if there is none."""
    dictionary = task.target_dictionary
    counts = torch.zeros(len(dictionary), dtype=torch.long)
    for batch in batches(task, split):
        counts += batch["target"].flatten().bincount(minlength=len(counts))
    counts[dictionary.pad()] = 0
    if not counts.any():
        raise UserError(f"--split {split}: there is no word in it; name another split")
    return counts


@torch.no_grad()
def sample_contexts(model: Any, task: Any, split: str, sample: ContextSample) -> None:
    """Let a sample choose among all context vectors of a split. Raises what :func:`batches` and
    :func:`features_only` raise."""
    padding = task.target_dictionary.pad()
    with features_only(model):
        for batch in batches(task, split):
            real = batch["target"] != padding
            contexts = model(**batch["net_input"])[0][real]
            # without the 1 that a model with --sense-bias appends
            sample.add(batch["target"][real], contexts[:, : sample.kept.shape[1]])


@torch.no_grad()
def loss_in_bits(model: Any, task: Any, split: str, flag: str = "--split") -> float:
    """Mean −log2 P of the tokens of a split, ends of sentences among them, by teacher forcing.
    Raises what :func:`batches` and :func:`features_only` raise."""
    dictionary = task.target_dictionary
    rows, loss, tokens = max(1, SCORES // len(dictionary)), 0.0, 0
    with features_only(model) as output_layer:
        for batch in batches(task, split, flag):
            real = batch["target"] != dictionary.pad()
            features, words = model(**batch["net_input"])[0][real], batch["target"][real]
            for h, target in zip(features.split(rows), words.split(rows)):
                scores = log_probs(model, output_layer, h)
                loss -= float(scores.gather(1, target.unsqueeze(1)).double().sum())
            tokens += len(words)
    return loss / max(1, tokens) / math.log(2)


SCORES = 8 << 20  # that are kept at a time


def log_probs(model: Any, output_layer: Callable[..., Tensor], features: Tensor) -> Tensor:
    """Log-probabilities of all words of features [n, d], [n, V] in float32; ``output_layer`` as of
    :func:`features_only`."""
    # as if it were one sentence: fairseq's adaptive softmax asks for three dimensions
    output = output_layer(features.unsqueeze(0)), None
    scores: Tensor = model.get_normalized_probs(output, log_probs=True)[0].float()
    return scores


@contextmanager
def features_only(model: Any) -> Iterator[Callable[..., Tensor]]:
    """Let the decoder return what it would give to its output layer, and hand that layer out; a
    UserError if the model has none of its own."""
    decoder: Any = getattr(model, "decoder", None)
    if not callable(getattr(decoder, "output_layer", None)):
        raise UserError(
            f"a {type(model).__name__} has no decoder with an output layer of its own, so that its "
            "context vectors cannot be read"
        )
    output_layer = decoder.output_layer
    decoder.__dict__["output_layer"] = lambda features, **_: features
    try:
        yield output_layer
    finally:
        del decoder.__dict__["output_layer"]


def sense_numbers(layer: OutputLayer, word: int) -> list[int]:
    """Rows of a word's senses in the order of their numbers (`number_senses`)."""
    table, mask = layer.table[:2]
    rows = table[word][mask[word]]
    order = number_senses(torch.zeros_like(rows), layer.usage[rows]).argsort()
    return rows[order].tolist()


def usage_shares(layer: OutputLayer, senses: list[int]) -> Tensor:
    """[n] usage U (Eq. 13) of a word's senses as shares of their sum; 0 where none was used."""
    usage = layer.usage[senses].detach()
    return usage / usage.sum().clamp_min(1e-38)


@torch.no_grad()
def sense_of(layer: OutputLayer, word: int, contexts: Tensor) -> Tensor:
    """The most probable (Eq. 7) of a word's senses in contexts [n, d]: [n], its index in them."""
    return layer.sense_logits(contexts, torch.tensor(sense_numbers(layer, word))).argmax(1)


class Projection(NamedTuple):
    """Context vectors of a word in a plane, and a mark of each of its senses there."""

    contexts: Tensor  # [n, 2] along two axes, mean 0
    senses: Tensor  # [K, 2]; NaN for a sense without a mark
    axes: tuple[str, str]  # what they are, with the share of the variance that they show


def discriminate(contexts: Tensor, labels: Tensor, senses: int) -> Projection:
    """Context vectors [n, d] on the directions that part their senses most, by linear discriminants
    (Fisher 1936; covariance after Ledoit and Wolf 2004).

    Args:
        labels: the sense of each, one of ``senses``, [n]. Where only two occur, the second axis is
            the first principal component of what the discriminant leaves. The marks are means.

    Raises:
        ValueError: there are fewer than two contexts, or all are of one sense.
    """
    points, kinds = contexts.double().numpy(), labels.numpy()
    present = np.unique(kinds)
    if len(points) < 2 or len(present) < 2:
        raise ValueError("discriminants need contexts of at least two senses")
    model = LinearDiscriminantAnalysis(solver="eigen", shrinkage="auto").fit(points, kinds)
    plane = model.transform(points)[:, :2]
    between = model.explained_variance_ratio_[: len(present) - 1]
    shares = between / between.sum()  # of what parts the senses
    axes = [
        f"{name} discriminant ({share:.0%})" for name, share in zip(("first", "second"), shares)
    ]
    if plane.shape[1] < 2:
        direction = model.scalings_[:, :1] / np.linalg.norm(model.scalings_[:, :1])
        rest = points - points @ direction @ direction.T
        plane = np.concatenate([plane, PCA(1).fit_transform(rest)], 1)
        axes.append("first principal component of the rest")
    plane = plane - plane.mean(0)
    marks = np.full((senses, 2), np.nan)
    for kind in present:
        marks[kind] = plane[kinds == kind].mean(0)
    return Projection(torch.from_numpy(plane), torch.from_numpy(marks), (axes[0], axes[1]))


def project(contexts: Tensor, senses: Tensor) -> Projection:
    """Principal components of context vectors [n, d], and sense vectors [K, d] on them, scaled to
    the contexts' mean length, since a kernel compares directions; a ValueError if there are fewer
    than two contexts."""
    if len(contexts) < 2:
        raise ValueError("a projection needs at least two context vectors")
    scaled = normalize(senses.double()) * contexts.double().norm(dim=1).mean()
    # vectors of one dimension lie on a line of the plane
    points, marks = (np.pad(each.double(), ((0, 0), (0, 1))) for each in (contexts, scaled))
    with np.errstate(invalid="ignore"):  # contexts that are all the same have no variance
        found = PCA(2, svd_solver="full").fit(points)
    plane = [torch.from_numpy(found.transform(each)) for each in (points, marks)]
    first, second = np.nan_to_num(found.explained_variance_ratio_).tolist()
    axes = f"first principal component ({first:.0%} of the variance)", f"second ({second:.0%})"
    return Projection(plane[0], plane[1], axes)
