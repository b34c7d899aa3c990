"""The policy ``balanced``: a word is judged against words of its own frequency.

Algorithm 1 holds every word to one threshold. Eq. 12 adds up log P over occurrences, so frequent
words pass it first, and a word that is easy or hard by nature is judged like any other. This policy
asks instead what a further sense might win for a word, and what it costs where it comes from, both
in nats over the interval since the last reallocation. For word i with n_i occurrences in it:

    y_i = −(1/n_i) Σ_t log P(ŷ_t)                              mean loss
    f   = median y of words equally frequent, piecewise linear in log n
    g_i = (1/n_i) Σ_t [log P(ŷ_t) − log max_m P(s_t = m)]      how much its senses overlap
    e_i = max(0, y_i − f(log n_i)) · n_i/(n_i + n_0) · exp(−g_i)      excess, per occurrence
    C_m = Σ_t −log(1 − P(s_t = m | ŷ_t))                       cost of taking sense m away
    G_i = min(n_i e_i, least C_m of its senses)                gain

**Excess.** The curve says which loss a word of that frequency has as a rule; n/(n + n_0) shrinks
what few occurrences say towards it. The overlap is 0 where a single sense explains each occurrence
alone, and log k where k senses share every occurrence evenly: such senses lie on top of each
other, so the word is short of none. exp(−g) is the share of its best sense (geometric mean).

**Gain.** A word may hope for no more than the least useful sense that it has is worth to it (its
only one, n log V). A word that leaves a sense idle therefore receives none.

**Cost.** Without sense m the probability of each of its word's occurrences falls by the factor
1 − P(m | ŷ). No occurrence is counted with more than log V, the loss of knowing nothing.

**Moves.** Words are served by descending excess, at most ``max_moves``·V of them (but one at
least). Each takes the sense that costs least (ties: lower U, then lower number) from a word with
more than one sense, if G_i is greater than C_m by ``least_gain``. The word that gives must either
have a smaller excess than the one that receives, or have another idle sense besides (idle: C_m ≤
``least_gain``). A word gives one sense or receives one, not more: gains and costs are those of one
sense alone. The sense begins with θ = 1e-8 and its new word's mean usage.

**Moves end.** No word comes to have two idle senses, so moves of the second kind use up those
there are. Each of the first kind carries a sense to a word of greater excess: while excesses stand
still, their sum over all senses grows with each, and it has finitely many values.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fairseq_kerbs.senses import SenseInventory
from fairseq_kerbs.senses.moves import Moves, ReallocationSettings

MOST_BINS = 32
WORDS_IN_BIN = 25  # with fewer, a word would bend the curve that it is judged by


def expected_loss(count: Tensor, loss: Tensor) -> Tensor:
    """Loss that a frequency leads one to expect: medians in bins, interpolated over log n.

    Bins hold equally many words each, as far as that goes: words of equal counts are never parted,
    so that the order of the words does not matter.

    Args:
        count: [V] occurrences; words with 0 have no part.
        loss: [V] mean loss of each word in nats.

    Returns:
        [V] expected loss; 0 for words that do not occur.
    """
    seen = count > 0
    result = torch.zeros_like(loss)
    if bool(seen.any()):
        n, y = count[seen].numpy(), loss[seen].numpy()
        bins = max(1, min(MOST_BINS, len(n) // WORDS_IN_BIN))
        number = np.searchsorted(np.sort(n), n) * bins // len(n)  # by how many words are rarer
        own = [number == one for one in np.unique(number)]
        x = np.log(n)
        centers, medians = (
            np.array([np.median(values[chosen]) for chosen in own]) for values in (x, y)
        )
        result[seen] = torch.from_numpy(np.interp(x, centers, medians))
    return result


def judge(
    inventory: SenseInventory, settings: ReallocationSettings
) -> tuple[Tensor, Tensor, Tensor]:
    """Excess [V] in nats an occurrence, gain [V] and cost [M] in nats, in float64 on the CPU."""
    count, log_prob, best, cost = (
        getattr(inventory, f"interval_{name}").double().cpu()
        for name in ("count", "log_prob", "best", "loss")
    )
    occurrences = count.clamp_min(1.0)
    loss, overlap = -log_prob / occurrences, ((log_prob - best) / occurrences).clamp_min(0.0)
    above = (loss - expected_loss(count, loss)).clamp_min(0.0)
    excess = above * count / (count + settings.prior_count) * torch.exp(-overlap)
    excess = torch.where(count > 0, excess, 0.0)
    least = torch.full_like(count, torch.inf)
    least = least.scatter_reduce(0, inventory.word_of_sense.cpu(), cost, "amin")
    return excess, torch.minimum(count * excess, least), cost


def balanced_policy(inventory: SenseInventory, settings: ReallocationSettings) -> Moves:
    """Senses move to words that are predicted worse than their frequency explains."""
    excess, gain, cost = judge(inventory, settings)
    owners = inventory.word_of_sense.cpu()
    usage = inventory.usage.double().cpu()
    numbers = inventory.senses_per_word().cpu()
    needy = (excess > 0) & (gain > settings.least_gain) & (numbers < inventory.max_senses)
    # stable sorts from the last key to the first: words by excess, senses by cost, then usage
    words = torch.argsort(excess, descending=True, stable=True)
    spare = torch.argsort(usage, stable=True)
    spare = spare[torch.argsort(cost[spare], stable=True)]
    idle = cost <= settings.least_gain
    idle_senses = torch.zeros_like(gain).index_add_(0, owners, idle.to(gain))
    # what keeps a sense from words with a smaller excess; nothing keeps one idle sense of several
    guard = torch.where(idle & (idle_senses[owners] > 1), -torch.inf, excess[owners])
    # a sense that is kept from one word is kept from all later ones: one pass serves all words
    cheapest = iter(spare[numbers[owners[spare]] > 1].tolist())
    sense = next(cheapest, None)
    most = max(1, int(settings.max_moves * inventory.vocab_size))
    senses: list[int] = []
    sources: list[int] = []
    receivers: list[int] = []
    for word in words[needy[words]].tolist():
        closed = {*sources, *receivers}  # a word gives or receives one sense, not more
        if word in closed:
            continue
        while sense is not None and (int(owners[sense]) in closed or guard[sense] >= excess[word]):
            sense = next(cheapest, None)
        if sense is None or len(senses) == most:
            break
        if gain[word] > cost[sense] + settings.least_gain:
            senses.append(sense)
            sources.append(int(owners[sense]))
            receivers.append(word)
    mean_usage = torch.zeros_like(gain).index_add_(0, owners, usage) / numbers
    return Moves.from_lists(senses, sources, receivers, mean_usage[receivers].tolist())
