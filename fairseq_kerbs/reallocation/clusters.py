"""The policy ``clusters`` (ours): place the senses of a word on the clusters of its contexts.

In the paper a word should have as many senses as its contexts have clusters. Algorithm 1 instead
looks at how well a word is predicted. If the context determines the word, as in translation, no
gradient separates its senses, and in many words one of them takes all occurrences. This policy
samples contexts during training and places senses by :mod:`.clustering`.

A placement needs one vector w and bias b per word. Let g(h) be the log of the word's unnormalized
probability (Eq. 4). For a word with several senses w is the mean gradient of g, and b preserves the
mean of g:

    w = E_h ∇g(h),    b = E_h [g(h) − h·w],    g(h) = log Σ_k exp K(h, w_k; θ_k)

over the sampled contexts of the word. If its senses are already further apart than ``cluster_gap``
allows, the limit is raised for this word to

    max_k (w_k − w)·(m_k − m)

where m is the mean of its contexts, and m_k the mean of those with top sense k. Words with too few
contexts keep their senses. So do words that have one sense and receive no other.

**Spare senses.** A layer always has M senses. Senses without a cluster are spare: copies of another
sense of a word, with θ = 0 and a bias lower by :data:`SPARE_NATS`. At the start of a training all
but the first sense of each word are spare.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_kerbs.kernels import KERNELS, Kernel, kernel_logits
from fairseq_kerbs.reallocation.clustering import (
    LEAST_CONTEXTS,
    ContextSample,
    PlacementSettings,
    place_senses,
)
from fairseq_kerbs.reallocation.moves import Moves, SenseState
from fairseq_kerbs.reallocation.policy import DefaultSchedule, Policy, setting

SPARE_NATS = 30.0
"""Nats by which the bias of a spare sense is lower. Its gradient is far below Adam's epsilon."""

SPARE_USAGE = 1e-6
"""Largest share of a word's usage that a spare sense has. It begins with 0, and then has e^−30."""


@dataclass(frozen=True)
class Clusters(Policy):
    """Place the senses of each word on the clusters of its contexts, see the module's docstring.

    Senses are placed once, because training must recover from each placement. Moves are all senses
    with a new embedding. Spare senses move to words with a free place.
    """

    name = "clusters"
    summary = "clusters of each word's contexts, ours"
    needs_contexts = True
    needs_bias = True
    default_schedule = DefaultSchedule(at=(0.2,))

    cluster_gap: float = setting(
        1.0, "maximum preference of a sense for its cluster, in nats", "(0, inf)"
    )

    def check_layer(self, kernel: Kernel, biased: bool) -> None:
        super().check_layer(kernel, biased)
        if not kernel.inner_product_at_zero:
            placed = [name for name, known in KERNELS.items() if known.inner_product_at_zero]
            names = " or ".join(placed)
            raise ValueError(
                f"`policy` {self.name} places senses of `kernel` {names}, not {kernel.name}: give "
                "another policy, or another kernel."
            )

    def initialize(self, senses: SenseState) -> None:
        """Make all but the first sense of each word spare."""
        inventory = senses.inventory
        # senses 0 … V − 1 are the first of their words
        extra = slice(inventory.vocab_size, None)
        owners = inventory.word_of_sense.clone()
        owners[extra] = -1
        words = inventory.word_of_sense[extra]
        senses.weight[extra] = _spare_copies(senses.weight, owners, words)
        senses.theta[extra] = 0.0
        inventory.usage[extra] = 0.0

    def describe(self, moves: Moves, senses_per_word: Tensor) -> str:
        several = senses_per_word[senses_per_word > 1]
        return f"{several.sum()} senses placed on clusters; {len(several)} words have several"

    def describe_none(self) -> str:
        return (
            f"no word receives a second sense; words need {LEAST_CONTEXTS} sampled contexts, in "
            "--reallocation-interval updates"
        )

    def propose(self, senses: SenseState) -> Moves:
        sample = senses.contexts
        if sample is None:
            raise ValueError(f"`policy` {self.name} reads contexts, and there are none.")
        inventory = senses.inventory
        vocab_size = inventory.vocab_size
        word_of_sense = inventory.word_of_sense.cpu()
        weight = senses.weight.detach().double().cpu()
        theta = senses.theta.detach().double().cpu()
        sample.device = senses.weight.device  # also if the sample is from a checkpoint

        usage = inventory.usage.cpu()
        live = ~spare_senses(weight, usage, word_of_sense, vocab_size)  # [M]
        live_before = torch.bincount(word_of_sense[live], minlength=vocab_size)  # [V]
        owners = torch.where(live, word_of_sense, -1)
        joined, distances = _join_senses(sample, owners, weight, theta, senses.kernel)
        gaps = distances.clamp_min(self.cluster_gap)

        kept = int((live_before - 1)[~sample.enough].sum())  # second and later senses of others
        settings = PlacementSettings(inventory.total_senses - kept, inventory.max_senses, gaps)
        placement = place_senses(sample, settings, senses.progress)
        live_after = torch.bincount(placement.word_of_sense, minlength=vocab_size)
        changed = sample.enough & ((live_before > 1) | (live_after > 1))  # [V]
        live_after = torch.where(changed, live_after, live_before)
        placed = changed[placement.word_of_sense]  # of the senses of the placement
        placed_words = placement.word_of_sense[placed]
        added = torch.cat([placement.rows, placement.bias.unsqueeze(1)], dim=1)[placed].double()

        # the rows that may be written: senses of words that change, then spare senses
        own_rows = (live & changed[word_of_sense]).nonzero()
        rows = torch.cat([own_rows, (~live).nonzero()]).squeeze(1)
        placed_rows, left_rows = rows.split([len(added), len(rows) - len(added)])
        room = inventory.max_senses - live_after
        spare_rows, spare_words = _spare_places(left_rows, ~live[left_rows], word_of_sense, room)
        rows = torch.cat([placed_rows, spare_rows])
        new_words = torch.cat([placed_words, spare_words])

        weight[placed_rows] = joined[placed_words] + added
        live_afterwards = live.clone()
        live_afterwards[rows] = False
        live_afterwards[placed_rows] = True
        owners = word_of_sense.clone()
        owners[rows] = new_words
        owners[~live_afterwards] = -1
        weight[spare_rows] = _spare_copies(weight, owners, spare_words)

        usage_of_word = torch.zeros(vocab_size, dtype=torch.float64)
        usage_of_word.index_add_(0, word_of_sense, usage.double())
        share = torch.cat([placement.share[placed], torch.zeros(len(spare_rows))])
        new_usage = usage_of_word[new_words] * share
        vectors = weight[rows].float()
        return Moves(rows, word_of_sense[rows], new_words, new_usage, vectors=vectors)


def spare_senses(weight: Tensor, usage: Tensor, word_of_sense: Tensor, vocab_size: int) -> Tensor:
    """Mask of spare senses, [M]: those with a low bias that are not used.

    The biases of live senses may also be far apart, because the bias of a placed sense makes up for
    the product of its embedding and the mean context of its word.

    Args:
        weight: embeddings of senses, [M, d], with the bias last.
        usage: usage of senses, [M].
        word_of_sense: word of each sense, [M].
        vocab_size: number of words V.
    """
    bias = weight[:, -1].double()
    lowest = bias.new_full((vocab_size,), -torch.inf)
    highest = lowest.scatter_reduce(0, word_of_sense, bias, "amax")
    usage = usage.double()
    usage_of_word = usage.new_zeros(vocab_size).index_add_(0, word_of_sense, usage)
    unused = usage <= SPARE_USAGE * usage_of_word[word_of_sense]
    return unused & (bias < highest[word_of_sense] - SPARE_NATS / 2)


def joined_senses(
    contexts: Tensor, weight: Tensor, theta: Tensor, kernel: Kernel
) -> tuple[Tensor, float]:
    """Vector and bias that replace the senses of a word, and the distance of these senses.

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
        word_logits = logits.logsumexp(1)  # g(h), [n]
        (gradient,) = torch.autograd.grad(word_logits.sum(), h)
    vector = gradient.mean(0)
    vector[-1] = (word_logits.detach() - contexts[:, :-1] @ vector[:-1]).mean()
    top = F.one_hot(logits.argmax(1), len(weight)).to(contexts.dtype)  # [n, k]
    means = top.t() @ contexts / top.sum(0).clamp_min(1.0).unsqueeze(1)
    distances = ((weight - vector) * (means - contexts.mean(0)))[:, :-1].sum(1)
    return vector, float(distances[top.any(0)].max())


def _join_senses(
    sample: ContextSample, owners: Tensor, weight: Tensor, theta: Tensor, kernel: Kernel
) -> tuple[Tensor, Tensor]:
    """Join the senses of each word with enough contexts by :func:`joined_senses`.

    Args:
        sample: contexts.
        owners: word of each live sense, [M], and −1 for spare ones.
        weight: embeddings of senses, float64 [M, d].
        theta: their kernel parameters, float64 [M].
        kernel: kernel of the layer.

    Returns:
        the vector of each word, [V, d], and the distance of its senses, [V]; 0 for other words.
    """
    vocab_size = len(sample.enough)
    joined = weight.new_zeros(vocab_size, weight.shape[1])
    distances = weight.new_zeros(vocab_size)
    by_word = owners.sort(stable=True)
    ends = torch.searchsorted(by_word.values, torch.arange(vocab_size), right=True).tolist()
    starts = torch.searchsorted(by_word.values, torch.arange(vocab_size)).tolist()
    for word in sample.enough.nonzero().squeeze(1).tolist():
        contexts = F.pad(sample.contexts(word).double(), (0, 1), value=1.0)
        own = by_word.indices[starts[word] : ends[word]]
        joined[word], distances[word] = joined_senses(contexts, weight[own], theta[own], kernel)
    return joined, distances


def _spare_copies(weight: Tensor, owners: Tensor, words: Tensor) -> Tensor:
    """A spare sense for each of ``words`` [n]: a copy of its first live sense with a lower bias.

    Args:
        weight: embeddings of senses, [M, d], with the bias last.
        owners: word of each live sense, [M], and −1 for spare ones.
        words: words, each with a live sense, [n].

    Returns:
        [n, d].
    """
    live = (owners >= 0).nonzero().squeeze(1)
    none = owners.new_full((int(owners.max()) + 1,), len(owners))
    first = none.scatter_reduce(0, owners[live], live, "amin")  # [V] first live sense of a word
    copies = weight[first[words]]
    copies[:, -1] -= SPARE_NATS
    return copies


def _spare_places(
    rows: Tensor, spare: Tensor, word_of_sense: Tensor, room: Tensor
) -> tuple[Tensor, Tensor]:
    """Rows that become spare senses or move as such, and their words.

    A row that is already ``spare`` stays if its word has a free place. ``room`` [V] counts these.
    """
    free = room.tolist()
    leaving = []
    for row, is_spare, word in zip(rows.tolist(), spare.tolist(), word_of_sense[rows].tolist()):
        if is_spare and free[word] > 0:
            free[word] -= 1
        else:
            leaving.append(row)
    words = torch.arange(len(free)).repeat_interleave(torch.tensor(free))[: len(leaving)]
    return torch.tensor(leaving, dtype=torch.long), words
