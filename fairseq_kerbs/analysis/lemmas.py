"""Lemmas 4.1 and 4.2 as experiments, on context vectors whose clusters are known.

A context is drawn from a cluster: a direction μ_c with normal noise of relative width σ,

    h = |h| · unit(μ_c + σ z/√d),     z ~ N(0, I)

so σ is about the tangent of the angle between h and μ_c. Cluster directions are random, at a cosine
below :data:`MOST_COSINE` to each other, and every word is equally frequent. Only the output layer
is trained.

Lemma 4.1: words have 1 to 4 clusters each, there are as many senses as clusters in all, allocated
at random at first. Do words end with as many senses as they have clusters, one on each?

Lemma 4.2: every word has one cluster and one sense, clusters differ in width. Does θ grow with it?
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fairseq_kerbs.output_layers import KerbsOutputLayer
from fairseq_kerbs.reallocation import ReallocationSettings, reset_moments

MOST_COSINE = 0.6
NEAR = 0.7  # cosine from which on a sense counts as lying on a cluster
UNSURE = 0.01  # 1 − P(y) from which on a word's likelihood still says something about θ


@dataclass(frozen=True)
class Training:
    """How the output layer is trained.

    Attributes:
        dim: size of context vectors.
        length: their norm.
        steps: parameter updates; the learning rate falls linearly to 0 over them.
        batch: contexts in each.
        lr: first learning rate of Adam.
    """

    dim: int = 12
    length: float = 6.0
    steps: int = 800
    batch: int = 192
    lr: float = 0.03


@dataclass(frozen=True)
class Allocation:
    """How senses are reallocated in the experiment on Lemma 4.1.

    Attributes:
        policy: name of a policy, or "none".
        new_sense: what vector a moved sense begins with.
        interval: updates between two reallocations; none happens in the last fifth of training.
        decay: β of Eq. 12–13.
        needy_loss: ``paper``: ε is set to the log P at which a word with this mean loss in nats
            settles; with V equally frequent words that is −loss/(Vβ).
        max_moves: ``released``, ``balanced``: most moves at a time, as a fraction of the words.
    """

    policy: str = "balanced"
    new_sense: str = "context"
    interval: int = 40
    decay: float = 1e-3
    needy_loss: float = 0.3
    max_moves: float = 0.17


@dataclass(frozen=True)
class SensesFound:
    """What became of the senses (Lemma 4.1), of one seed.

    Attributes:
        senses: mean senses of the words with 1, 2, 3 and 4 clusters.
        exact: share of words with as many senses as clusters.
        correlation: Spearman's, between numbers of clusters and of senses.
        covered: share of clusters that a sense of their word lies on.
        distinct: share of clusters that a sense lies on to which no other cluster is nearer.
        placed: share of senses that lie on a cluster of their word.
        moves, late_moves: reallocations in all, and in the last fifth of those that there were.
        loss: mean loss of the last updates in nats.
    """

    senses: tuple[float, float, float, float]
    exact: float
    correlation: float
    covered: float
    distinct: float
    placed: float
    moves: int
    late_moves: int
    loss: float


@dataclass(frozen=True)
class ThetaFound:
    """θ of the words whose clusters have one width (Lemma 4.2), means over words.

    Attributes:
        width: σ.
        theta: learned θ of Eq. 9.
        norm: norm of sense vectors.
        cosine: between sense vectors and their cluster's direction.
        unsure: 1 − P(y) over the last updates.
    """

    width: float
    theta: float
    norm: float
    cosine: float
    unsure: float


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Rank correlation with mean ranks for ties; nan where one side is constant."""
    ranks = []
    for values in (first, second):
        x = torch.tensor(values, dtype=torch.float64)
        below, equal = x[:, None] > x, x[:, None] == x
        rank = below.sum(1).double() + (equal.sum(1).double() - 1) / 2
        ranks.append(rank - rank.mean())
    return float(ranks[0] @ ranks[1] / (ranks[0].norm() * ranks[1].norm()))


def spread_directions(number: int, dim: int, generator: torch.Generator) -> Tensor:
    """Random directions, [number, dim], any two with a cosine below :data:`MOST_COSINE`.

    Raises:
        ValueError: so many do not fit into so few dimensions.
    """
    found = torch.zeros(0, dim)
    for _ in range(1000 * number):
        if len(found) == number:
            return found
        one = normalize(torch.randn(1, dim, generator=generator))
        if not bool((found @ one.t() > MOST_COSINE).any()):
            found = torch.cat([found, one])
    raise ValueError(f"--dim {dim} has no room for {number} clusters that are far apart.")


class _Contexts:
    """A source of contexts: word of each cluster [C], directions [C, d], widths [C]."""

    def __init__(
        self, word: Tensor, width: Tensor, training: Training, generator: torch.Generator
    ) -> None:
        self.word, self.width, self.training, self.generator = word, width, training, generator
        self.direction = spread_directions(len(word), training.dim, generator)
        self.clusters = torch.bincount(word)  # [V]; clusters of a word follow each other
        self.first = self.clusters.cumsum(0) - self.clusters

    def draw(self) -> tuple[Tensor, Tensor]:
        """Contexts [batch, d] and their words [batch]."""
        n, g = self.training.batch, self.generator
        words = torch.randint(len(self.clusters), (n,), generator=g)
        which = self.first[words] + (torch.rand(n, generator=g) * self.clusters[words]).long()
        noise = torch.randn(n, self.training.dim, generator=g) / math.sqrt(self.training.dim)
        h = normalize(self.direction[which] + self.width[which, None] * noise)
        return self.training.length * h, words


# ------------------------------------------------------------------------- Lemma 4.1


def learn_senses(
    allocation: Allocation,
    training: Training,
    *,
    words_each: int = 3,
    width: float = 0.6,
    seed: int = 0,
) -> SensesFound:
    """Train with reallocation; ``words_each`` words have k clusters for k = 1, 2, 3, 4."""
    g = torch.Generator().manual_seed(seed)
    clusters = torch.arange(1, 5).repeat(words_each)  # [V]
    vocab, total = len(clusters), int(clusters.sum())
    owner = torch.arange(vocab).repeat_interleave(clusters)
    contexts = _Contexts(owner, torch.full((total,), width), training, g)
    torch.manual_seed(seed)
    how = "keep" if allocation.policy == "none" else allocation.new_sense
    layer = KerbsOutputLayer(training.dim, vocab, total, new_sense=how)
    settings = ReallocationSettings(
        log_prob_threshold=-allocation.needy_loss / (vocab * allocation.decay),
        max_moves=allocation.max_moves,
    )
    optimizer, schedule = _optimizer(layer, training)
    moves, losses = [], []
    for step in range(1, training.steps + 1):
        losses.append(_update(layer, contexts, optimizer, schedule))
        layer.update_statistics(allocation.decay)
        last = step > 0.8 * training.steps
        if allocation.policy != "none" and step % allocation.interval == 0 and not last:
            made = layer.reallocate(allocation.policy, settings)
            reset_moments(optimizer, layer.sense_parameters(), made.senses)
            moves.append(len(made))
    senses = layer.inventory.senses_per_word()
    covered, distinct, placed = _places(layer, contexts)
    mean = [float(senses[clusters == k].float().mean()) for k in (1, 2, 3, 4)]
    return SensesFound(
        (mean[0], mean[1], mean[2], mean[3]),
        float((senses == clusters).float().mean()),
        spearman(clusters.tolist(), senses.tolist()),
        covered,
        distinct,
        placed,
        sum(moves),
        sum(moves[-max(1, len(moves) // 5) :]),
        sum(losses[-20:]) / 20,
    )


def _places(layer: KerbsOutputLayer, contexts: _Contexts) -> tuple[float, float, float]:
    """Shares of clusters covered, of clusters with a sense of their own, of senses placed."""
    cosine = contexts.direction @ normalize(layer.weight.detach()).t()  # [C, M]
    own = layer.inventory.word_of_sense == contexts.word[:, None]
    cosine = cosine.where(own, torch.full_like(cosine, -1.0))
    near = cosine > NEAR
    nearest = cosine.argmax(0)[near.any(0)]  # the cluster that each placed sense lies on
    share = len(nearest.unique()) / len(cosine)
    return float(near.any(1).float().mean()), share, float(near.any(0).float().mean())


# ------------------------------------------------------------------------- Lemma 4.2


def learn_theta(
    widths: Sequence[float],
    training: Training,
    *,
    words_each: int = 4,
    norm: float | None = None,
    seed: int = 0,
) -> list[ThetaFound]:
    """Train one sense a word from θ = 0; ``words_each`` words have each of the widths.

    Args:
        widths: σ of the clusters.
        training: how to train.
        words_each: words of each width.
        norm: hold sense vectors at this norm; by default they are free, and the norm, too, can
            answer to the width.
        seed: of directions, contexts and first vectors.
    """
    g = torch.Generator().manual_seed(seed)
    width = torch.tensor(widths).repeat_interleave(words_each)  # [V]
    vocab = len(width)
    contexts = _Contexts(torch.arange(vocab), width, training, g)
    torch.manual_seed(seed)
    layer = KerbsOutputLayer(training.dim, vocab, vocab, max_senses=1)
    optimizer, schedule = _optimizer(layer, training)
    with torch.no_grad():
        layer.theta.zero_()
    for step in range(training.steps):
        _update(layer, contexts, optimizer, schedule)
        layer.update_statistics(0.0)
        if norm is not None:
            with torch.no_grad():
                layer.weight.copy_(norm * normalize(layer.weight))
        if step == training.steps - 101:
            layer.inventory.start_interval()
    inventory, weight = layer.inventory, layer.weight.detach()
    unsure = 1.0 - inventory.interval_prob / inventory.interval_count.clamp_min(1.0)
    cosine = (normalize(weight) * contexts.direction).sum(1)
    found = []
    for number, sigma in enumerate(widths):
        part = slice(number * words_each, (number + 1) * words_each)
        values = (layer.theta.detach(), weight.norm(dim=1), cosine, unsure)
        found.append(ThetaFound(sigma, *(float(value[part].mean()) for value in values)))
    return found


def theta_correlations(found: Sequence[ThetaFound]) -> tuple[float, float]:
    """Spearman's between width and θ: over all widths, and over those that leave doubt.

    Where 1 − P(y) has vanished, so has the gradient of θ: its value says how far training came.
    """
    unsure = [one for one in found if one.unsure >= UNSURE]
    return (
        spearman([one.width for one in found], [one.theta for one in found]),
        spearman([one.width for one in unsure], [one.theta for one in unsure])
        if len(unsure) > 1
        else math.nan,
    )


# ------------------------------------------------------------------------- both


def _optimizer(
    layer: KerbsOutputLayer, training: Training
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    optimizer = torch.optim.Adam(layer.parameters(), lr=training.lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1.0 - n / training.steps)
    return optimizer, schedule


def _update(
    layer: KerbsOutputLayer,
    contexts: _Contexts,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler,
) -> float:
    h, words = contexts.draw()
    optimizer.zero_grad()
    loss = layer.nll(h, words, reduction="mean")
    loss.backward()
    optimizer.step()
    schedule.step()
    return loss.item()
