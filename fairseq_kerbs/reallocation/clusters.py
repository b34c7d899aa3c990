"""The policy ``clusters``: the senses of a word follow the clusters of its contexts.

The paper wants as many senses of a word as its contexts have clusters. Algorithm 1 asks instead how
well a word is predicted, and a sense moves with the vector that it had. Where the context decides a
word (in translation, P ≈ 1), no gradient parts its senses: one of them wins all occurrences,
although the contexts lie apart. This policy grows senses as codebooks are grown (Linde, Buzo and
Gray 1980): it splits the leading sense of a word where that lowers the distortion Σ |h − c|² most,
and merges two senses where that raises it least, again and again.

Statistics of an interval, for each sense: number n and mean c of the contexts h that it explains
best; for the leading (most used) sense a of each word also their spread, with one step of a power
iteration for their first principal component across c (P x = x − (x·c) c/|c|²):

    v ← normalize(P Σ (h − c)((h − c)·v)),    λ = |P Σ (h − c)((h − c)·v)| / n    variance along v

**Moves.** Words whose leading sense was the same for :data:`ROUNDS` intervals, so that v has
settled, and occurs :data:`LEAST_OCCURRENCES` times are served by descending gain n λ: nearly so
much does a split lower the distortion. Each takes an idle sense of its own, else the sense of other
words that costs least (ties: lower U, Algorithm 1's choice), if its gain is greater than
:data:`MARGIN` times that cost. A sense costs what the distortion of its word rises by when its
contexts go over to a sense of the word that has as many or more, the one for which that is least,

    n n' / (n + n') · 2 (|c||c'| − c·c'),

and nothing if it is idle: if it explains less than :data:`IDLE` of its word's occurrences, or none
best of all senses. Gains and costs leave out what is a difference of length alone, since no kernel
tells such contexts apart (2 (|c||c'| − c·c') is |c − c'|² without (|c| − |c'|)²). Leading senses do
not move, so no word loses its last one; a word that has received a sense gives none that is in use,
and the other way round. A normal distribution cut in half has an n λ of π/2 times what merging the
halves costs: the margin keeps such halves from being split and merged in turns. After a merge the
sense that stays is as it was, so its word's loss may rise until it has learned the other contexts.

**Beginnings.** The leading sense and the new one begin at both sides of its contexts: with b± =
c ± √λ v and u± = b±/|b±|, each is turned away from the other's side, orthogonally to its own,

    w± = s± (w_a − α± (b∓ − (b∓·u±) u±)),      K(b±, w±) = K(b±, w_a),   K(b∓, w±) = K(b∓, w_a) − γ,

with s± by the first condition (K is homogeneous in |w|), within a factor of 1.5, and α± by the
second, but no turn is longer than half of |w_a|. Within these bounds one sense has at each side the
logit that the leading one had, and the other is γ = :data:`GAP` nats below: both sides stay as
probable as they were. Between them the word loses up to γ/2 − log 2 nats. Both senses have θ of a
and half of its usage. Where contexts spread by less than :data:`LEAST_SPREAD` of |c| across c,
nothing is split: a turn that parts them reaches for the contexts of the word's other senses, too.

**Moves go on.** Later one of two senses may win again; the other is idle then, and splits anew.
"""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor
from torch.nn.functional import normalize

from fairseq_kerbs.senses import SenseInventory
from fairseq_kerbs.senses.clusters import ContextClusters
from fairseq_kerbs.senses.moves import Moves, ReallocationSettings

IDLE = 0.02
LEAST_OCCURRENCES = 20  # of a word's leading sense in an interval
ROUNDS = 2
MARGIN = 2.0  # between the gain of a split and the cost of the merge that it needs
GAP = 4.0
LEAST_SPREAD = 0.1


def clusters_policy(inventory: SenseInventory, settings: ReallocationSettings) -> Moves:
    """Senses move beside leading senses whose contexts spread most."""
    clusters = inventory.clusters
    if clusters is None:
        raise ValueError("`policy` clusters needs an output layer that was built for it.")
    owners, leader = inventory.word_of_sense.cpu(), clusters.leader.cpu()
    words, gains, sides = _splits(inventory, clusters)
    costs = clusters.merge_costs(*inventory.table[:2]).cpu()
    occurrences = inventory.interval_count.cpu()[owners]
    idle = (inventory.interval_usage.cpu() < IDLE * occurrences) | (occurrences == 0)
    costs[idle] = 0.0
    costs[leader] = costs[inventory.leading_senses().cpu()] = torch.inf
    order = torch.argsort(inventory.usage.double().cpu(), stable=True)
    order = order[torch.argsort(costs[order], stable=True)]
    spare = deque(order[costs[order] < torch.inf].tolist())
    cost, owner = costs.tolist(), owners.tolist()
    own_idle: dict[int, list[int]] = {}
    for sense in spare:
        if cost[sense] == 0:
            own_idle.setdefault(owner[sense], []).append(sense)

    numbers = inventory.senses_per_word().tolist()
    taken: set[int] = set()
    closed: set[int] = set()  # words that have received a sense, or given one that was in use

    def free(sense: int) -> bool:
        last = numbers[owner[sense]] == 1
        return not (last or sense in taken) and (cost[sense] == 0 or owner[sense] not in closed)

    senses: list[int] = []
    places: list[int] = []  # of their words among those that split
    for place, (word, gain) in enumerate(zip(words.tolist(), gains.tolist(), strict=True)):
        while spare and not free(spare[0]):
            spare.popleft()
        own = [sense for sense in own_idle.get(word, ()) if sense not in taken]
        others = (sense for sense in spare if free(sense) and owner[sense] != word)
        more = word not in closed and numbers[word] < inventory.max_senses
        sense = own[0] if own else next(others, None) if more else None
        if sense is None or MARGIN * cost[sense] >= gain:
            continue
        taken.add(sense)
        closed.update((word,) if cost[sense] == 0 else (word, owner[sense]))
        numbers[owner[sense]] -= 1
        numbers[word] += 1
        senses.append(sense)
        places.append(place)
    chosen = torch.tensor(places, dtype=torch.long)
    return _split(inventory, clusters, torch.tensor(senses).long(), words[chosen], sides[:, chosen])


def _splits(inventory: SenseInventory, clusters: ContextClusters) -> tuple[Tensor, Tensor, Tensor]:
    """Words [K] whose leading sense may be split, by descending gain; their gains n λ; contexts b+
    and b− at both sides, [2, K, d]."""
    ready = (clusters.leader == inventory.leading_senses()) & (clusters.rounds >= ROUNDS)
    ready &= clusters.sense_count[clusters.leader] >= LEAST_OCCURRENCES
    words = ready.nonzero().squeeze(1)
    leaders = clusters.leader[words]
    count = clusters.sense_count[leaders].double().cpu()
    center = clusters.centers(leaders).double().cpu()
    spread = clusters.spread(words).double().cpu()
    gain = spread.norm(dim=1)
    aside = (gain / count).sqrt().unsqueeze(1) * normalize(spread, dim=1)
    sides = torch.stack([center + aside, center - aside])
    apart = gain > count * (LEAST_SPREAD * center.norm(dim=1)).square()
    order = gain.argsort(descending=True, stable=True)
    order = order[apart[order]]
    return words.cpu()[order], gain[order], sides[:, order]


def _split(
    inventory: SenseInventory,
    clusters: ContextClusters,
    senses: Tensor,
    words: Tensor,
    sides: Tensor,
) -> Moves:
    """Moves of senses [K] beside the leading ones of words [K], and of these to one of the sides
    [2, K, d]."""
    leaders = clusters.leader.cpu()[words]
    usage = inventory.usage.double().cpu()[leaders] / 2
    return Moves(
        senses=torch.cat([leaders, senses]),
        sources=torch.cat([words, inventory.word_of_sense.cpu()[senses]]),
        words=torch.cat([words, words]),
        usage=torch.cat([usage, usage]),
        reset_theta=False,
        bases=torch.cat([leaders, leaders]),
        sides=sides.flatten(0, 1),
    )
