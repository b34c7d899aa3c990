"""The policy ``clusters``: place the senses of a word on the clusters of its contexts.

In the paper a word should have as many senses as its contexts have clusters. Algorithm 1 instead
looks at how well a word is predicted. If the context determines the word, as in translation, no
gradient separates its senses, and in many words one of them takes all occurrences. This policy
samples contexts during training and places senses by :mod:`fairseq_kerbs.clusters`.

A placement needs one vector w and bias b per word. Let g(h) be the log of the word's unnormalized
probability (Eq. 4). For a word with several senses w is the mean gradient of g, and b preserves the
mean of g:

    w = E_h ∇g(h),    b = E_h [g(h) − h·w],    g(h) = log Σ_k exp K(h, w_k; θ_k)

over the sampled contexts of the word. If its senses are already further apart than ``gap`` allows,
``gap`` is raised for this word to

    max_k (w_k − w)·(m_k − m)

where m is the mean of its contexts, and m_k the mean of those with top sense k. Words with too few
contexts keep their senses. So do words that have one sense and receive no other.

**Spare senses.** A layer always has M senses. Senses without a cluster are spare: copies of another
sense of a word, with θ = 0 and a bias lower by :data:`SPARE_NATS`. With ``sense_init`` "spare" all
but the first sense of each word are spare at the start.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_kerbs.clusters import ContextSample, place_senses
from fairseq_kerbs.kernels import Kernel, kernel_logits
from fairseq_kerbs.reallocation.moves import Moves
from fairseq_kerbs.senses import SenseInventory, build_sense_table

SPARE_NATS = 30.0
"""Nats by which the bias of a spare sense is lower. Its gradient is far below Adam's epsilon."""


def spare_senses(weight: Tensor, word_of_sense: Tensor, vocab_size: int) -> Tensor:
    """Mask of spare senses, [M]. The last column of ``weight`` [M, d] has the biases."""
    bias = weight[:, -1].double()
    lowest = bias.new_full((vocab_size,), -torch.inf)
    highest = lowest.scatter_reduce(0, word_of_sense, bias, "amax")
    return bias < highest[word_of_sense] - SPARE_NATS / 2


def joined_senses(
    contexts: Tensor, weight: Tensor, theta: Tensor, kernel: Kernel
) -> tuple[Tensor, float]:
    """Vector and bias that replace the senses of a word, and how far these are apart.

    See the module's docstring for the equations.

    Args:
        contexts: contexts of the word, [n, d]. The last coordinate is 1.
        weight: embeddings of its senses, [k, d].
        theta: their kernel parameters, [k].
        kernel: kernel of the layer.

    Returns:
        the vector with the bias last, [d], and max_k (w_k − w)·(m_k − m) in nats.
    """
    with torch.enable_grad():
        h = contexts.detach().clone().requires_grad_()
        logits = kernel_logits(h, weight, theta, kernel)  # [n, k]
        mass = logits.logsumexp(1)
        (gradient,) = torch.autograd.grad(mass.sum(), h)
    vector = gradient.mean(0)
    vector[-1] = (mass.detach() - contexts[:, :-1] @ vector[:-1]).mean()
    top = F.one_hot(logits.argmax(1), len(weight)).to(contexts.dtype)  # [n, k]
    means = top.t() @ contexts / top.sum(0).clamp_min(1.0).unsqueeze(1)
    apart = ((weight - vector) * (means - contexts.mean(0)))[:, :-1].sum(1)
    return vector, float(apart[top.any(0)].max())


def place_on_clusters(
    inventory: SenseInventory,
    weight: Tensor,
    theta: Tensor,
    kernel: Kernel,
    sample: ContextSample,
    gap: float,
) -> Moves:
    """Moves of senses to the clusters of the sampled contexts.

    Args:
        inventory: the allocation.
        weight: sense embeddings, [M, d], with the biases in the last column.
        theta: kernel parameters, [M].
        kernel: kernel of the layer, which equals the inner product at θ = 0.
        sample: contexts of words, [·, d − 1], without the constant 1.
        gap: maximum preference in nats, see :func:`fairseq_kerbs.clusters.place_word`.

    Returns:
        all senses with a new embedding. Spare senses move to words with a free place.
    """
    owners, words = inventory.word_of_sense.cpu(), inventory.vocab_size
    sample.device = weight.device  # also if the sample is from a checkpoint
    table = build_sense_table(owners, words)
    weight, theta = weight.detach().double().cpu(), theta.detach().double().cpu()
    live = ~spare_senses(weight, owners, words)
    before = torch.bincount(owners[live], minlength=words)  # [V] live senses
    total = inventory.total_senses - int((before - 1)[~sample.enough].sum())
    joined = torch.zeros(words, weight.shape[1], dtype=torch.float64)
    gaps = torch.full((words,), gap, dtype=torch.float64)
    for word in sample.enough.nonzero().squeeze(1).tolist():
        contexts = F.pad(sample.contexts(word).double(), (0, 1), value=1.0)
        senses = table.senses[word][table.mask[word]]
        senses = senses[live[senses]]
        joined[word], apart = joined_senses(contexts, weight[senses], theta[senses], kernel)
        gaps[word] = max(gap, apart)
    placement = place_senses(sample, total, inventory.max_senses, gaps)
    after = torch.bincount(placement.word_of_sense, minlength=words)
    anew = sample.enough & ((before > 1) | (after > 1))  # [V]
    after = torch.where(anew, after, before)

    placed = anew[placement.word_of_sense]
    words_placed = placement.word_of_sense[placed]
    added = torch.cat([placement.rows, placement.bias.unsqueeze(1)], dim=1)[placed].double()

    mine, spare = live & anew[owners], ~live
    rows = torch.cat([mine.nonzero(), spare.nonzero()]).squeeze(1)  # that may be written
    placed_rows, left = rows.split([len(added), len(rows) - len(added)])
    spare_rows, spare_words = _places(left, spare[left], owners, inventory.max_senses - after)
    rows, new_words = torch.cat([placed_rows, spare_rows]), torch.cat([words_placed, spare_words])
    usage = torch.zeros(words, dtype=torch.float64)
    usage.index_add_(0, owners, inventory.usage.double().cpu())
    weight[placed_rows] = joined[words_placed] + added
    owners_after, live[rows], live[placed_rows] = owners.clone(), False, True
    owners_after[rows] = new_words
    senses = live.nonzero().squeeze(1)
    first = torch.full((words,), len(owners)).scatter_reduce(
        0, owners_after[senses], senses, "amin"
    )  # [V] a live sense of each word
    weight[spare_rows] = weight[first[spare_words]]
    weight[spare_rows, -1] -= SPARE_NATS
    share = torch.cat([placement.share[placed], torch.zeros(len(spare_rows))])
    new_usage, vectors = usage[new_words] * share, weight[rows].float()
    return Moves(rows, owners[rows], new_words, new_usage, vectors=vectors)


def _places(rows: Tensor, spare: Tensor, owners: Tensor, room: Tensor) -> tuple[Tensor, Tensor]:
    """Rows that become spare senses or move as such, and their words.

    A row that is already ``spare`` stays if its word has a free place. ``room`` [V] counts these.
    """
    free = room.tolist()
    leaving = []
    for row, idle, word in zip(rows.tolist(), spare.tolist(), owners[rows].tolist()):
        if idle and free[word] > 0:
            free[word] -= 1
        else:
            leaving.append(row)
    words = torch.arange(len(free)).repeat_interleave(torch.tensor(free))[: len(leaving)]
    return torch.tensor(leaving, dtype=torch.long), words
