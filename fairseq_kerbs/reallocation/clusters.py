"""The policy ``clusters``: the senses of a word follow the clusters of its contexts.

The paper wants as many senses of a word as its contexts have clusters. Algorithm 1 asks instead how
well a word is predicted, and a sense moves with the vector that it had. Where the context decides a
word (in translation, P ≈ 1), no gradient parts its senses: one of them wins all occurrences,
although the contexts lie apart. This policy grows senses as codebooks are grown (Linde, Buzo and
Gray 1980): it splits the leading sense of a word where its contexts spread most, again and again.

Statistics of an interval, for the leading (most used) sense a of each word: number n, mean c and
spread of the contexts h that it explains best, with one step of a power iteration for their first
principal component:

    v ← normalize(Σ (h − c)((h − c)·v)),      λ = |Σ (h − c)((h − c)·v)| / n    variance along v

**Moves.** A sense is idle if it explains less than :data:`IDLE` of its word's occurrences, and so
are all but the leading sense of a word that does not occur. Words whose leading sense was the same
for :data:`ROUNDS` intervals, so that v has settled, and occurs :data:`LEAST_OCCURRENCES` times are
served by descending n λ: nearly so much does a split lower the distortion Σ |h − c|². Each takes an
idle sense of its own, else the least used idle one of all (Algorithm 1's choice).

**Beginnings.** The leading sense and the new one begin at both sides, b± = c ± √λ v. With u± =
b±/|b±| and a gap of γ = :data:`GAP` nats,

    w± = w_a − α (b∓ − (b∓·u±) u±),      α = γ / (|b₊||b₋| sin² ∠(b₊, b₋)).

Each turn is orthogonal to the sense's own side: there its logit stays as it was, and the other's
falls by γ. So each side has one sense, and to first order no target's probability changes. (No turn
is longer than half of |w_a|.) Both have θ of a and half of its usage.

**Moves go on.** Later one of two senses may win again; the other is idle then, and splits anew.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fairseq_kerbs.senses import SenseInventory
from fairseq_kerbs.senses.clusters import ContextClusters
from fairseq_kerbs.senses.moves import Moves, ReallocationSettings

IDLE = 0.02
LEAST_OCCURRENCES = 20  # of a word's leading sense in an interval
ROUNDS = 2
GAP = 4.0


def clusters_policy(inventory: SenseInventory, settings: ReallocationSettings) -> Moves:
    """Idle senses move beside leading senses whose contexts spread most."""
    clusters = inventory.clusters
    if clusters is None:
        raise ValueError("`policy` clusters needs an output layer that was built for it.")
    count = inventory.interval_count.cpu()
    owners = inventory.word_of_sense.cpu()
    numbers = inventory.senses_per_word().tolist()
    idle = inventory.interval_usage.cpu() < IDLE * count[owners]
    idle |= count[owners] == 0
    idle[clusters.leader.cpu()] = False
    least_used = torch.argsort(inventory.usage.double().cpu(), stable=True)
    spare = least_used[idle[least_used]].tolist()
    gain = clusters.spread().norm(dim=1).cpu()
    ready = (clusters.rounds.cpu() >= ROUNDS) & (clusters.lead_count.cpu() >= LEAST_OCCURRENCES)
    gain = torch.where(ready & (gain > 0), gain, 0.0)
    words = torch.argsort(gain, descending=True, stable=True)[: int((gain > 0).sum())]

    by_word: dict[int, list[int]] = {}
    for sense in spare:
        by_word.setdefault(int(owners[sense]), []).append(sense)
    taken: set[int] = set()
    anyone = iter(spare)
    senses: list[int] = []
    receivers: list[int] = []
    for word in words.tolist():
        sense = next((one for one in by_word.get(word, ()) if one not in taken), None)
        if sense is None and numbers[word] < inventory.max_senses:
            sense = next((one for one in anyone if one not in taken), None)
        if sense is None:
            continue
        taken.add(sense)
        numbers[int(owners[sense])] -= 1
        numbers[word] += 1
        senses.append(sense)
        receivers.append(word)
    return _split(inventory, clusters, torch.tensor(senses), torch.tensor(receivers))


def _split(
    inventory: SenseInventory, clusters: ContextClusters, senses: Tensor, words: Tensor
) -> Moves:
    """Moves of idle senses [K] beside the leading ones of words [K], and of these to one side."""
    words = words.long()
    leaders = clusters.leader.cpu()[words]
    center = clusters.centers().cpu().double()[words]
    count = clusters.lead_count.cpu().double()[words]
    length = clusters.spread().cpu().double()[words].norm(dim=1)
    aside = (length / count).sqrt().unsqueeze(1) * clusters.direction.cpu().double()[words]
    sides = center + aside, center - aside
    units = [normalize(side, dim=1) for side in sides]
    cosine = (units[0] * units[1]).sum(1, keepdim=True)
    area = sides[0].norm(dim=1, keepdim=True) * sides[1].norm(dim=1, keepdim=True)
    alpha = GAP / (area * (1.0 - cosine**2)).clamp_min(1e-12)
    turns = [
        -alpha * (other - (other * unit).sum(1, keepdim=True) * unit)
        for unit, other in zip(units, reversed(sides), strict=True)
    ]
    usage = inventory.usage.double().cpu()[leaders] / 2
    return Moves(
        senses=torch.cat([leaders, senses.long()]),
        sources=torch.cat([words, inventory.word_of_sense.cpu()[senses.long()]]),
        words=torch.cat([words, words]),
        usage=torch.cat([usage, usage]),
        reset_theta=False,
        bases=torch.cat([leaders, leaders]),
        turns=torch.cat(turns),
    )
