"""The mathematics once more, literally and slowly: what the tests hold fairseq_kerbs against.

Nothing here is imported from the package. mpmath evaluates Eq. 9 as it is printed; torch code keeps
every tokens × senses matrix; recursions run one token, one word, one sense at a time.
"""

from __future__ import annotations

import functools
import math
import weakref
from collections.abc import Sequence
from itertools import combinations
from typing import Any, NamedTuple

import mpmath
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Vector = tuple[float, ...]
Numbers = Sequence[mpmath.mpf]


def _parts(h: Numbers, w: Numbers) -> tuple[mpmath.mpf, mpmath.mpf]:
    """|h||w| and cos(h, w)."""
    norms = mpmath.sqrt(sum(a * a for a in h)) * mpmath.sqrt(sum(b * b for b in w))
    return norms, sum(a * b for a, b in zip(h, w, strict=True)) / norms


def _eq9(h: Numbers, w: Numbers, theta: mpmath.mpf) -> mpmath.mpf:
    norms, cosine = _parts(h, w)
    if theta == 0:
        return norms * cosine
    a = -theta / (2 * (mpmath.exp(-theta) + theta - 1))
    return norms * (a * mpmath.exp(-theta * cosine) - a)


def _eq9_released(h: Numbers, w: Numbers, theta: mpmath.mpf) -> mpmath.mpf:
    norms, cosine = _parts(h, w)
    if cosine <= 0:
        return norms * cosine
    exponent = theta
    if theta > 3:
        exponent = 4 - mpmath.exp(3 - theta)
    elif theta < -4:
        exponent = mpmath.exp(4 + theta) - 5
    t = mpmath.exp(exponent)
    return norms * t * (mpmath.exp(t * cosine) - 1) / (2 * (mpmath.exp(t) - t - 1))


def _inner_product(h: Numbers, w: Numbers, _: mpmath.mpf) -> mpmath.mpf:
    return sum(a * b for a, b in zip(h, w, strict=True))


@functools.cache
def kernel_reference(h: Vector, w: Vector, theta: float, name: str = "kerbs") -> list[list[float]]:
    """Value, and derivatives by h, w and θ as central differences, in 70 digits."""
    kernels = {"kerbs": _eq9, "kerbs_released": _eq9_released, "lin": _inner_product}
    kernel, d = kernels[name], len(h)
    with mpmath.workdps(70):
        exact, step = [mpmath.mpf(float(value)) for value in (*h, *w, theta)], mpmath.mpf("1e-15")

        def moved(i: int, change: mpmath.mpf) -> mpmath.mpf:
            v = [*exact[:i], exact[i] + change, *exact[i + 1 :]]
            return kernel(v[:d], v[d : 2 * d], v[2 * d])

        by = [float((moved(i, step) - moved(i, -step)) / (2 * step)) for i in range(2 * d + 1)]
        return [[float(moved(0, mpmath.mpf(0)))], by[:d], by[d : 2 * d], by[2 * d :]]


def as_leaves(h: Tensor, w: Tensor, theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Copies that collect gradients."""
    copies = [value.detach().clone().requires_grad_() for value in (h, w, theta)]
    return copies[0], copies[1], copies[2]


def naive_logits(h: Tensor, w: Tensor, theta: Tensor, kernel: str = "kerbs") -> Tensor:
    """All logits [N, M] by plain autograd operations, in the dtype of the inputs."""
    x = h @ w.t()
    if kernel == "lin":
        return x
    norms = h.norm(dim=1, keepdim=True) * w.norm(dim=1)
    cosine = x / norms
    if kernel == "kerbs_released":
        high = 4 - torch.exp(3 - theta.clamp_min(3))
        low = torch.exp(4 + theta.clamp_max(-4)) - 5
        t = torch.exp(torch.where(theta > 3, high, torch.where(theta < -4, low, theta)))
        return torch.where(cosine > 0, _naive_eq9(norms, cosine.clamp_min(0), -t), x)
    return _naive_eq9(norms, cosine, theta)


def _naive_eq9(norms: Tensor, cosine: Tensor, theta: Tensor) -> Tensor:
    """Eq. 9 as printed, and for |θ| < 1 its quotient of power series with both z cancelled."""
    small = theta.abs() < 1.0
    inside, outside = torch.where(small, theta, 0.0), torch.where(small, 1.0, theta)
    a = -outside / (2 * (torch.exp(-outside) + outside - 1))
    printed = norms * (a * torch.exp(-outside * cosine) - a)
    above = sum((-inside * cosine) ** k / float(math.factorial(k + 1)) for k in range(20))
    below = sum((-inside) ** k / float(math.factorial(k + 2)) for k in range(20))
    return torch.where(small, norms * cosine * above / (2 * below), printed)


def naive_word_log_probs(logits: Tensor, word_of_sense: Tensor, vocab_size: int) -> Tensor:
    """Eq. 5 over all senses, then Eq. 4: scatter of [N, M] senses over [N, V] words."""
    log_sense = logits.log_softmax(1)
    index = word_of_sense.expand_as(log_sense)
    empty = torch.full((logits.shape[0], vocab_size), -torch.inf, dtype=logits.dtype)
    peak = empty.scatter_reduce(1, index, log_sense.detach(), "amax")
    scaled = torch.exp(log_sense - peak.gather(1, index))
    return torch.zeros_like(empty).scatter_add(1, index, scaled).log() + peak


def naive_token_losses(
    problem: Problem, kernel: str = "kerbs", label_smoothing: float = 0.0, ignore_index: int = -100
) -> Tensor:
    """(1 − ε − ε_i)·nll + ε_i Σ_i −log p_i of each token with ε_i = ε/(V − 1), [N]."""
    logits = naive_logits(*problem.leaves, kernel)
    log_probs = naive_word_log_probs(logits, problem.word_of_sense, problem.vocab_size)
    counted = problem.target != ignore_index
    target = torch.where(counted, problem.target, 0)
    return torch.where(counted, naive_smoothed_losses(log_probs, target, label_smoothing), 0.0)


class Problem(NamedTuple):
    """Inputs of a likelihood."""

    h: Tensor
    w: Tensor
    theta: Tensor
    word_of_sense: Tensor
    target: Tensor
    vocab_size: int

    def to(self, dtype: torch.dtype) -> Problem:
        """Leaves with gradients, in ``dtype``."""
        h, w, theta = (value.detach().to(dtype).requires_grad_() for value in self.leaves)
        return self._replace(h=h, w=w, theta=theta)

    @property
    def leaves(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.h, self.w, self.theta


def make_problem(
    tokens: int = 23,
    vocab_size: int = 11,
    total_senses: int = 29,
    dim: int = 7,
    *,
    seed: int = 0,
    theta_scale: float = 1.0,
    dtype: torch.dtype = torch.float64,
) -> Problem:
    """Random inputs whose every word owns 1 … 4 senses, in shuffled order; some θ exactly 0."""
    g = torch.Generator().manual_seed(seed)
    slots = [(word, extra) for word in range(vocab_size) for extra in range(3)]
    chosen = torch.randperm(len(slots), generator=g)[: total_senses - vocab_size].tolist()
    owners = torch.tensor([*range(vocab_size), *(slots[i][0] for i in chosen)])
    owners = owners[torch.randperm(total_senses, generator=g)]
    theta = torch.randn(total_senses, generator=g, dtype=torch.float64) * theta_scale
    theta[:: max(2, total_senses // 4)] = 0.0
    theta[1 :: max(2, total_senses // 3)] = 1e-8
    h, w = (torch.randn(n, dim, generator=g, dtype=torch.float64) for n in (tokens, total_senses))
    target = torch.randint(vocab_size, (tokens,), generator=g)
    return Problem(h, w, theta, owners, target, vocab_size).to(dtype)


Floats = list[float]
Stream = list[tuple[int, Floats]]


def printed_statistics(
    log_prob: Floats, usage: Floats, owners: list[int], stream: Stream, decay: float
) -> tuple[Floats, Floats]:
    """Eq. 12 and 13 as printed; ``stream`` holds (ŷ_t, P(s_t = m) of every sense m) per token."""
    log_prob, usage = list(log_prob), list(usage)
    for target, senses in stream:
        for i in range(len(log_prob)):
            word = sum(p for p, owner in zip(senses, owners, strict=True) if owner == i)
            log_prob[i] = (1 - decay) * log_prob[i] + (math.log(word) if i == target else 0.0)
        for m, owner in enumerate(owners):
            usage[m] = (1 - decay) * usage[m] + decay * (senses[m] if owner == target else 0.0)
    return log_prob, usage


Move = tuple[int, int, int]  # sense, from, to


def _least_used(owners: list[int], usage: list[float], receiver: int) -> int | None:
    best = None
    for m, owner in enumerate(owners):
        spare = owner != receiver and owners.count(owner) > 1
        if spare and (best is None or usage[m] < usage[best]):
            best = m
    return best


def algorithm1(
    owners: list[int], usage: Floats, log_prob: Floats, threshold: float, most: int
) -> tuple[list[Move], list[int], Floats]:
    """The allocation phase of Algorithm 1 in O(V·M) and more, words kept within 1 … ``most``."""
    owners, usage, moves = list(owners), list(usage), []
    for i in range(len(log_prob)):
        if log_prob[i] < threshold and owners.count(i) < most:
            m = _least_used(owners, usage, i)
            if m is not None:
                moves.append((m, owners[m], i))
                usage[m] = math.fsum(usage) / len(usage)
                owners[m] = i
    return moves, owners, usage


def released_statistics(
    owners: list[int], stream: Stream, vocab_size: int, padding: int
) -> tuple[Floats, Floats, Floats]:
    """Sums of the released code over an interval: how often each word was the target, its
    probabilities, and P(s_t = m) of each sense of the target."""
    counts, probs, usage = [0.0] * vocab_size, [0.0] * vocab_size, [0.0] * len(owners)
    for target, senses in stream:
        if target == padding:
            continue
        counts[target] += 1
        for m, owner in enumerate(owners):
            if owner == target:
                usage[m] += senses[m]
                probs[target] += senses[m]
    return counts, probs, usage


def released_reallocation(
    owners: list[int], counts: Floats, probs: Floats, usage: Floats, fraction: float, most: int
) -> tuple[list[Move], int]:
    """The released policy, one word and one sense at a time.

    Returns the moves, and how often a word was given one of its own senses instead.
    """
    owners, own = list(owners), 0
    moves: list[Move] = []
    words, tiny = len(counts), 1e-7
    least = min(sorted(counts)[-(words // 2) :])
    needy = [(n + tiny) / (p + tiny) for n, p in zip(counts, probs, strict=True)]
    needy = [value / (math.sqrt(n) + tiny) for value, n in zip(needy, counts, strict=True)]
    queue = sorted(range(len(owners)), key=lambda m: usage[m])
    for i in sorted(range(words), key=lambda i: needy[i]):
        if counts[i] <= least or owners.count(i) >= most:
            continue
        if len(moves) + own >= fraction * words:
            break
        while queue and owners.count(owners[queue[0]]) == 1:
            queue.pop(0)
        if not queue:
            break
        m = queue.pop(0)
        if owners[m] == i:
            own += 1
        else:
            moves.append((m, owners[m], i))
            owners[m] = i
    return moves, own


def composed_sequence(
    problem: Problem, usage: Tensor, words: list[int], features: Tensor, padding: int
) -> Tensor:
    """Input embeddings of one sequence, position by position, [len, d].

    ``features[t]`` is h_t, which predicted the word that is the input at t + 1.
    """
    owners, rows = problem.word_of_sense, []
    for t, word in enumerate(words):
        own = (owners == word).nonzero().flatten()
        if word == padding:
            rows.append(torch.zeros_like(problem.w[0]))
            continue
        if t == 0 or words[t - 1] == padding:
            weights = usage[own] / usage[own].sum()
        else:
            logits = naive_logits(features[t - 1 : t], problem.w, problem.theta)
            senses = logits.softmax(1)[0]  # Eq. 5, over all senses
            weights = senses[own] / senses[own].sum()  # Eq. 7
        parts = [weights[k] * problem.w[m] for k, m in enumerate(own.tolist())]
        rows.append(torch.stack(parts).sum(0))
    return torch.stack(rows)


def naive_mixture_contexts(
    h: Tensor, maps: Tensor, biases: Tensor | None, tanh_scale: float
) -> Tensor:
    """r tanh((C_k h + b_k) / r) of h [N, d], C [K, d, d] and b [K, d] or None: [N, K, d]."""
    contexts = []
    for k, c in enumerate(maps):
        projected = h @ c.t()
        if biases is not None:
            projected = projected + biases[k]
        contexts.append(tanh_scale * torch.tanh(projected / tanh_scale))
    return torch.stack(contexts, 1)


def naive_mixture_log_probs(
    contexts: Tensor,
    w: Tensor,
    log_weights: Tensor,
    kernels: Sequence[str],
    thetas: list[Tensor],
    bias: Tensor | None = None,
) -> Tensor:
    """Gao et al. 2019, Eq. 1: log Σ_k π_k softmax(S_k + b), [N, K, d] and b [V] -> [N, V]."""
    parts = []
    for k, name in enumerate(kernels):
        if name == "log":  # their Eq. 5 with p = 2, from differences of vectors
            logits = -torch.log((contexts[:, k, None, :] - w).square().sum(2) + 1.0)
        else:
            logits = naive_logits(contexts[:, k], w, thetas[k], name)
        if bias is not None:
            logits = logits + bias
        parts.append(log_weights[:, k, None] + logits.log_softmax(1))
    return torch.logsumexp(torch.stack(parts), 0)


def naive_smoothed_losses(log_probs: Tensor, target: Tensor, label_smoothing: float) -> Tensor:
    """fairseq's label-smoothed loss of each token, [N, V] and [N] -> [N]."""
    each = label_smoothing / max(1, log_probs.shape[1] - 1)
    nll = -log_probs.gather(1, target[:, None]).squeeze(1)
    if label_smoothing == 0.0:
        return nll
    return (1.0 - label_smoothing - each) * nll - each * log_probs.sum(1)


class Memory(TorchDispatchMode):
    """Largest tensor, peak of living storage in bytes, and products, of what is done inside.

    Tensors under 1 KB are left out: they are many, and none is tokens × senses.
    """

    def __init__(self) -> None:
        super().__init__()
        self.largest = self.peak = self.products = 0
        self._living: list[weakref.ref[Tensor]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.products += str(func).split(".")[1] in ("mm", "addmm_", "_linear_pointwise")
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, tuple | list) else (result,):
            if isinstance(value, Tensor) and value.numel() >= 256:
                self.largest = max(self.largest, value.numel())
                self._living.append(weakref.ref(value))
        tensors = [t for t in (ref() for ref in self._living) if t is not None]
        self._living = [weakref.ref(t) for t in tensors]
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
        self.peak = max(self.peak, sum(storages.values()))
        return result


def bcubed_by_occurrence(gold: Sequence[int], induced: Sequence[int]) -> tuple[float, float, float]:
    """B-cubed precision, recall and F: for each occurrence, those that share its senses."""
    precision = 0.0
    recall = 0.0
    for i in range(len(gold)):
        same_induced = {j for j in range(len(gold)) if induced[j] == induced[i]}
        same_gold = {j for j in range(len(gold)) if gold[j] == gold[i]}
        precision += len(same_induced & same_gold) / len(same_induced) / len(gold)
        recall += len(same_induced & same_gold) / len(same_gold) / len(gold)
    return precision, recall, 2 * precision * recall / (precision + recall)


def paired_by_pair(gold: Sequence[int], induced: Sequence[int]) -> tuple[float, float, float]:
    """Precision, recall and F of pairs of occurrences with one sense. No pairs are not wrong."""
    pairs = list(combinations(range(len(gold)), 2))
    of_induced = {pair for pair in pairs if induced[pair[0]] == induced[pair[1]]}
    of_gold = {pair for pair in pairs if gold[pair[0]] == gold[pair[1]]}
    both = of_induced & of_gold
    precision = len(both) / len(of_induced) if of_induced else 1.0
    recall = len(both) / len(of_gold) if of_gold else 1.0
    total = precision + recall
    return precision, recall, 2 * precision * recall / total if total else 0.0
