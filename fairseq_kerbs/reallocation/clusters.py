"""The policy ``clusters``: the senses of a word are placed on the clusters of its contexts.

The paper wants as many senses of a word as its contexts have clusters. Algorithm 1 asks instead how
well a word is predicted. Where the context decides a word, as in translation, no gradient parts its
senses: one of them wins all occurrences. This policy looks at the contexts themselves, at one or
several moments of a training, and places senses by :mod:`fairseq_kerbs.clusters`.

That needs one vector and bias a word. Of a word with several senses they are the mean gradient of
its log mass g by the context, and what keeps the mean of g:

    w = E_h ∇g(h),    b = E_h [g(h) − h·w],    g(h) = log Σ_k exp K(h, w_k; θ_k)

over the sampled contexts of the word. Its senses may have learned to part more than the bound
``gap`` lets them; new ones are let part as much: the bound of a word is at least

    max_k (w_k − w)·(m_k − m)

with m the mean of its contexts, m_k that of those in which sense k is the most probable one. Words
with too few contexts keep their senses, and a word that has one sense and gets no other keeps it
untouched.

**Spare senses.** A layer has M senses all the time, placed or not. The others lie idle: copies of a
sense of some word, with θ = 0 and a bias lower by :data:`SPARE_NATS`. A layer with ``sense_init``
"spare" begins that way, as a softmax with a kernel does.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_kerbs.clusters import ContextSample, place_senses
from fairseq_kerbs.kernels import Kernel, kernel_logits
from fairseq_kerbs.senses import SenseInventory, build_sense_table
from fairseq_kerbs.senses.moves import Moves

PLACED_KERNELS = ("kerbs", "lin")
"""Kernels with which senses can be placed: the inner product at θ = 0."""

SPARE_NATS = 30.0
"""How far the bias of a spare sense lies below that of its word: Adam sees no gradient so small."""


def spare_senses(weight: Tensor, word_of_sense: Tensor, vocab_size: int) -> Tensor:
    """Which senses lie idle, [M]. Of ``weight`` [M, d] the last column is the biases."""
    bias = weight[:, -1].double()
    highest = torch.full((vocab_size,), -torch.inf, dtype=bias.dtype, device=bias.device)
    highest = highest.scatter_reduce(0, word_of_sense, bias, "amax")
    return bias < highest[word_of_sense] - SPARE_NATS / 2


def joined_senses(
    contexts: Tensor, weight: Tensor, theta: Tensor, kernel: Kernel
) -> tuple[Tensor, float]:
    """One vector in the place of a word's senses, and how far they part; see the head of this file.

    Args:
        contexts: those of the word, [n, d]; the last coordinate is 1.
        weight, theta: of its senses, [k, d] and [k].
        kernel: the layer's.

    Returns:
        [d], the bias last, and a number of nats.
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
        weight, theta: of its senses, [M, d] with the biases last, and [M].
        kernel: the layer's, the inner product at θ = 0.
        sample: contexts [·, d − 1] of words, without the 1 that meets the bias.
        gap: see :func:`fairseq_kerbs.clusters.place_word`.

    Returns:
        every sense that begins anew, with its vector; also spare ones that have to go to a word
        that has a place for them.
    """
    owners, words = inventory.word_of_sense.cpu(), inventory.vocab_size
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
    return Moves(
        senses=rows,
        sources=owners[rows],
        words=new_words,
        usage=usage[new_words] * share,
        vectors=weight[rows].float(),
    )


def _places(rows: Tensor, spare: Tensor, owners: Tensor, room: Tensor) -> tuple[Tensor, Tensor]:
    """Rows that cannot stay what and where they are, and the words that they go to as spare senses.
    Of ``rows`` those stay that are ``spare`` already, if their word has ``room`` [V]."""
    free = room.tolist()
    leaving = []
    for row, idle, word in zip(rows.tolist(), spare.tolist(), owners[rows].tolist()):
        if idle and free[word] > 0:
            free[word] -= 1
        else:
            leaving.append(row)
    words = torch.arange(len(free)).repeat_interleave(torch.tensor(free))[: len(leaving)]
    return torch.tensor(leaving, dtype=torch.long), words
