"""The policy ``clusters`` (ours): place the senses of a word on the clusters of its contexts.

In the paper a word should have as many senses as its contexts have clusters. Algorithm 1 instead
looks at how well a word is predicted. If the context determines the word, as in translation, no
gradient separates its senses, and in many words one of them takes all occurrences. This policy
samples contexts during training and places senses by :mod:`.placement`.

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
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_kerbs.kernels import KERNELS, Kernel, kernel_logits
from fairseq_kerbs.reallocation.context_sample import LEAST_CONTEXTS, ContextSample
from fairseq_kerbs.reallocation.moves import Moves, SenseState
from fairseq_kerbs.reallocation.placement import PlacementSettings, place_senses
from fairseq_kerbs.reallocation.policy import DefaultSchedule, Policy, setting
from fairseq_kerbs.senses.statistics import LEAST_USAGE

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
        before = _SensesBefore.of(senses)
        joined, distances = _join_senses(sample, before, senses.kernel)

        several = before.live_of_word() - 1  # second and later senses, [V]
        settings = PlacementSettings(
            # the other words keep theirs
            total_senses=inventory.total_senses - int(several[~sample.enough].sum()),
            max_senses=inventory.max_senses,
            gap=distances.clamp_min(self.cluster_gap),
            device=senses.weight.device,
        )
        placement = place_senses(sample, settings, senses.progress)
        placed_of_word = torch.bincount(placement.word_of_sense, minlength=inventory.vocab_size)
        changed = sample.enough & ((several > 0) | (placed_of_word > 1))  # [V]
        placed = changed[placement.word_of_sense]  # mask of the placement's senses
        words = placement.word_of_sense[placed]
        rows = _assign_rows(before, changed, words, inventory.max_senses)

        weight = before.weight
        added = torch.cat([placement.rows, placement.bias.unsqueeze(1)], dim=1)[placed].double()
        weight[rows.placed] = joined[words] + added
        weight[rows.spare] = _spare_copies(weight, rows.owners_after(before), rows.spare_words)

        usage_of_word = torch.zeros(inventory.vocab_size, dtype=torch.float64)
        usage_of_word.index_add_(0, before.word_of_sense, before.usage)
        share = torch.cat([placement.share[placed], torch.zeros(len(rows.spare))])
        written = torch.cat([rows.placed, rows.spare])
        new_words = torch.cat([words, rows.spare_words])
        return Moves(
            written,
            before.word_of_sense[written],
            new_words,
            usage_of_word[new_words] * share,
            vectors=weight[written].float(),
        )


class _SensesBefore(NamedTuple):
    """The senses of a layer before a placement, on the CPU in float64."""

    weight: Tensor  # embeddings, [M, d], with the bias last
    theta: Tensor  # kernel parameters, [M]
    usage: Tensor  # [M]
    word_of_sense: Tensor  # [M]
    live: Tensor  # mask of the senses that are not spare, [M]
    vocab_size: int

    @classmethod
    def of(cls, senses: SenseState) -> _SensesBefore:
        """Copy the senses."""
        inventory = senses.inventory
        words = inventory.word_of_sense.cpu()
        weight = _copied(senses.weight)
        theta = _copied(senses.theta)
        usage = _copied(inventory.usage)
        live = ~spare_senses(weight, usage, words, inventory.vocab_size)
        return cls(weight, theta, usage, words, live, inventory.vocab_size)

    def live_of_word(self) -> Tensor:
        """Number of live senses of each word, [V]."""
        return torch.bincount(self.word_of_sense[self.live], minlength=self.vocab_size)

    def owners(self) -> Tensor:
        """Word of each live sense, and −1 for spare ones, [M]."""
        return torch.where(self.live, self.word_of_sense, -1)


def _copied(value: Tensor) -> Tensor:
    """A copy on the CPU in float64."""
    return value.detach().to("cpu", torch.float64, copy=True)


class _Rows(NamedTuple):
    """The rows of a layer that a placement writes."""

    placed: Tensor  # rows of the P placed senses
    placed_words: Tensor  # their words, [P]
    spare: Tensor  # rows of the S senses that become spare, or move as spare ones
    spare_words: Tensor  # their words, [S]

    def owners_after(self, before: _SensesBefore) -> Tensor:
        """As :meth:`_SensesBefore.owners`, after the placement, [M]."""
        owners = before.owners()
        owners[self.placed] = self.placed_words
        owners[self.spare] = -1
        return owners


def _assign_rows(
    before: _SensesBefore, changed: Tensor, placed_words: Tensor, max_senses: int
) -> _Rows:
    """Assign rows to placed senses, and words to the rows that are left.

    Placed senses get the rows of live senses of changed words in ascending order, which may have
    been those of another word, and then rows of spare senses.

    Args:
        before: the senses before the placement.
        changed: mask of the words whose live senses are replaced, [V].
        placed_words: words of the placed senses, [P].
        max_senses: maximum number of senses of a word, spare ones included.
    """
    own = (before.live & changed[before.word_of_sense]).nonzero().squeeze(1)
    available = torch.cat([own, (~before.live).nonzero().squeeze(1)])
    placed, left = available.split([len(placed_words), len(available) - len(placed_words)])
    placed_of_word = torch.bincount(placed_words, minlength=before.vocab_size)
    room = max_senses - torch.where(changed, placed_of_word, before.live_of_word())
    return _Rows(placed, placed_words, *_spare_places(left, before, room))


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
    total = usage_of_word[word_of_sense]
    unused = (total <= LEAST_USAGE) | (usage <= SPARE_USAGE * total)
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
    sample: ContextSample, before: _SensesBefore, kernel: Kernel
) -> tuple[Tensor, Tensor]:
    """Join the live senses of each word with enough contexts by :func:`joined_senses`.

    Args:
        sample: contexts.
        before: senses.
        kernel: kernel of the layer.

    Returns:
        the vector of each word, [V, d], and the distance of its senses, [V]; 0 for other words.
    """
    weight = before.weight
    theta = before.theta
    vocab_size = before.vocab_size
    joined = weight.new_zeros(vocab_size, weight.shape[1])
    distances = weight.new_zeros(vocab_size)
    by_word = before.owners().sort(stable=True)
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


def _spare_places(rows: Tensor, before: _SensesBefore, room: Tensor) -> tuple[Tensor, Tensor]:
    """Rows that become spare senses or move as such, and their words.

    A row that is spare already stays if its word has a free place. ``room`` [V] counts these.
    """
    free = room.tolist()
    leaving = []
    live = before.live[rows].tolist()
    words_before = before.word_of_sense[rows].tolist()
    for row, is_live, word in zip(rows.tolist(), live, words_before):
        if not is_live and free[word] > 0:
            free[word] -= 1
        else:
            leaving.append(row)
    words = torch.arange(len(free)).repeat_interleave(torch.tensor(free))[: len(leaving)]
    return torch.tensor(leaving, dtype=torch.long), words
