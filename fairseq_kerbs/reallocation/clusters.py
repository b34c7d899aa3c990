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

**Beginnings.** The leading sense and the new one begin at both sides of its contexts: with b± =
c ± √λ v and u± = b±/|b±|, each is turned away from the other's side, orthogonally to its own,

    w± = s± (w_a − α± (b∓ − (b∓·u±) u±)),      K(b±, w±) = K(b±, w_a),   K(b∓, w±) = K(b∓, w_a) − γ,

with s± by the first condition (K is homogeneous in |w|), within a factor of 1.5, and α± by the
second, but no turn is longer than half of |w_a|. Within these bounds one sense has at each side the
logit that the leading one had, and the other is γ = :data:`GAP` nats below: both sides stay as
probable as they were. Between them the word loses up to γ/2 − log 2 nats. Both senses have θ of a
and half of its usage. Where contexts spread by less than :data:`LEAST_SPREAD` of |c| across c,
nothing is split.

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
LEAST_SPREAD = 0.01


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
    leader = clusters.leader.cpu()
    center, spread = clusters.centers().cpu(), clusters.spread().cpu()
    # contexts that differ in length alone have one direction: no kernel tells them apart
    unit = normalize(center, dim=1)
    spread = (spread - (spread * unit).sum(1, keepdim=True) * unit).norm(dim=1)
    leads = leader == inventory.leading_senses().cpu()
    often = clusters.lead_count.cpu() >= LEAST_OCCURRENCES
    apart = spread > clusters.lead_count.cpu() * (LEAST_SPREAD * center.norm(dim=1)) ** 2
    ready = leads & often & apart & (clusters.rounds.cpu() >= ROUNDS)
    words = torch.argsort(torch.where(ready, spread, 0.0), descending=True, stable=True)
    words = words[: int(ready.sum())]

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
            others = (one for one in anyone if one not in taken and numbers[int(owners[one])] > 1)
            sense = next(others, None)
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
    senses, words = senses.long(), words.long()
    leaders = clusters.leader.cpu()[words]
    spread = clusters.spread().cpu().double()[words]
    center = clusters.centers().cpu().double()[words]
    count = clusters.lead_count.cpu().double()[words].unsqueeze(1)
    aside = (spread.norm(dim=1, keepdim=True) / count).sqrt() * normalize(spread, dim=1)
    usage = inventory.usage.double().cpu()[leaders] / 2
    return Moves(
        senses=torch.cat([leaders, senses]),
        sources=torch.cat([words, inventory.word_of_sense.cpu()[senses]]),
        words=torch.cat([words, words]),
        usage=torch.cat([usage, usage]),
        reset_theta=False,
        bases=torch.cat([leaders, leaders]),
        sides=torch.cat([center + aside, center - aside]),
    )
