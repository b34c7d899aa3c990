"""What the likelihood is compared with: bare products, naive autograd, fairseq's own softmax."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_kerbs.benchmarks.inputs import PAD, Inputs, Sizes
from fairseq_kerbs.likelihood import kerbs_nll

Loss = Callable[[Inputs], Tensor]
SMOOTHING = 0.1
SMALLEST_THETA = 1e-4


@dataclass(frozen=True)
class Contestant:
    """A way to compute the loss (and, by autograd, its gradients).

    Attributes:
        label: one line that says what it is.
        make: returns the function from inputs to loss; called once, outside the measurement.
        senses: works on the M senses; else on the V words.
        backward: forward and backward; else forward alone, without autograd.
        temporaries: tensors of tokens × senses (or words) in float32 that it holds at its peak,
            roughly: where memory is short it is left out.
    """

    label: str
    make: Callable[[], Loss]
    senses: bool = True
    backward: bool = True
    temporaries: float = 0.0

    def gradient_bytes(self, inputs: Inputs) -> int:
        """Size of the gradients that a caller gets."""
        if not self.backward:
            return 0
        weights = [inputs.w, inputs.theta] if self.senses else [inputs.words]
        return sum(tensor.nbytes for tensor in (inputs.h, *weights))

    def peak_bytes(self, sizes: Sizes) -> float:
        """Rough peak of memory."""
        columns = sizes.senses if self.senses else sizes.vocab
        return 4.0 * self.temporaries * sizes.tokens * columns


# ------------------------------------------------------------------ ours


def kerbs(label_smoothing: float = 0.0, trained: bool = False) -> Loss:
    """KerBS by :func:`fairseq_kerbs.likelihood.kerbs_nll`."""

    def loss(inputs: Inputs) -> Tensor:
        return kerbs_nll(
            inputs.h,
            inputs.w,
            inputs.trained_theta if trained else inputs.theta,
            inputs.allocation,
            inputs.target,
            ignore_index=PAD,
            label_smoothing=label_smoothing,
            table=inputs.table,
        )

    return loss


def lean_softmax(label_smoothing: float = 0.0) -> Loss:
    """A plain softmax over words on the code path of KerBS: inner product, one sense a word."""

    def loss(inputs: Inputs) -> Tensor:
        return kerbs_nll(
            inputs.h,
            inputs.words,
            inputs.no_theta,
            inputs.word_table.senses[:, 0],
            inputs.target,
            ignore_index=PAD,
            label_smoothing=label_smoothing,
            kernel="lin",
            table=inputs.word_table,
        )

    return loss


# ------------------------------------------------------------------ the plain way


def naive_kerbs_nll(
    h: Tensor, w: Tensor, theta: Tensor, word_of_sense: Tensor, target: Tensor, vocab_size: int
) -> Tensor:
    """KerBS as one would write it down, Eq. 9, 5 and 4, with autograd for the gradients.

        s = |h||w| a(θ)(e^{−θc} − 1),  a(θ) = −θ/(2(e^{−θ} + θ − 1)),  c = cos(h, w)

    Written so that few passes over tokens × senses are needed. The formula is 0/0 at θ = 0; where
    |θ| < 1e-4 it is evaluated at ±1e-4 (the logit changes by less than 1e-4 |h||w|).

    Args:
        h: context vectors, [N, d].
        w: sense embeddings, [M, d].
        theta: kernel parameters, [M].
        word_of_sense: owner of each sense, [M].
        target: target words, [N].
        vocab_size: number of words V.

    Returns:
        sum of −log P(target).
    """
    near = theta.abs() < SMALLEST_THETA
    nudged = torch.where(near, torch.copysign(torch.full_like(theta, SMALLEST_THETA), theta), theta)
    safe = (theta + (nudged - theta).detach()).double()  # [M]; the gradient goes to θ
    scale = (-safe / (2.0 * (torch.expm1(-safe) + safe))).float()  # a(θ), [M]
    cosine = (F.normalize(h, dim=1) @ F.normalize(w, dim=1).t()).float()  # [N, M]
    h_norm = h.float().norm(dim=1, keepdim=True)  # [N, 1]
    w_norm = w.float().norm(dim=1)  # [M]
    logits = h_norm * ((w_norm * scale) * torch.expm1(-safe.float() * cosine))
    senses = logits.softmax(1)
    owners = word_of_sense.expand(len(h), -1)
    words = senses.new_zeros(len(h), vocab_size).scatter_add(1, owners, senses)  # [N, V]
    return -words.gather(1, target.unsqueeze(1)).log().sum()


def stable_kerbs_nll(
    h: Tensor, w: Tensor, theta: Tensor, word_of_sense: Tensor, target: Tensor, vocab_size: int
) -> Tensor:
    """As :func:`naive_kerbs_nll`, but as safe as ours: no 0/0 at c = 0, no word with probability 0.

        s = h·w g(θ) φ1(−θc),  φ1(z) = (e^z − 1)/z

    The sum over a word's senses is scaled by the largest of them.
    """
    near = theta.abs() < SMALLEST_THETA
    nudged = torch.where(near, torch.copysign(torch.full_like(theta, SMALLEST_THETA), theta), theta)
    safe = (theta + (nudged - theta).detach()).double()  # [M]
    gain = (safe.square() / (2.0 * (torch.expm1(-safe) + safe))).float()  # g(θ), [M]
    x = (h @ w.t()).float()  # [N, M]
    norms = h.float().norm(dim=1, keepdim=True) * w.float().norm(dim=1)
    z = -safe.float() * (x / norms)
    zero = z == 0
    phi1 = torch.where(zero, 1.0, torch.expm1(z) / torch.where(zero, 1.0, z))
    senses = (x * gain * phi1).log_softmax(1)
    owners = word_of_sense.expand(len(h), -1)
    empty = senses.new_full((len(h), vocab_size), -torch.inf)
    peak = empty.scatter_reduce(1, owners, senses.detach(), "amax")  # [N, V]
    scaled = torch.exp(senses - peak.gather(1, owners))
    words = torch.zeros_like(empty).scatter_add(1, owners, scaled).log() + peak
    return -words.gather(1, target.unsqueeze(1)).sum()


def naive(stable: bool = False) -> Loss:
    """:func:`naive_kerbs_nll` or :func:`stable_kerbs_nll` as a contestant."""
    function = stable_kerbs_nll if stable else naive_kerbs_nll
    return lambda inputs: function(
        inputs.h, inputs.w, inputs.theta, inputs.allocation, inputs.target, len(inputs.words)
    )


# ------------------------------------------------------------------ fairseq's own


class _StockModel:
    """As much of a fairseq model as its criterions ask for when they compute a loss."""

    def get_normalized_probs(self, net_output: Any, log_probs: bool, sample: Any = None) -> Tensor:
        from fairseq import utils

        result: Tensor = utils.log_softmax(net_output[0], dim=-1)  # in float32
        return result

    def get_targets(self, sample: dict[str, Tensor], net_output: Any) -> Tensor:
        return sample["target"]


def stock_softmax(label_smoothing: float = 0.0) -> Loss:
    """fairseq's output projection with its ``cross_entropy``, or its label-smoothed criterion."""
    from fairseq.criterions.cross_entropy import CrossEntropyCriterion
    from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion

    task = SimpleNamespace(target_dictionary=SimpleNamespace(pad=lambda: PAD))
    if label_smoothing:
        criterion = LabelSmoothedCrossEntropyCriterion(task, False, label_smoothing)
    else:
        criterion = CrossEntropyCriterion(task, False)
    model = _StockModel()

    def loss(inputs: Inputs) -> Tensor:
        net_output = (F.linear(inputs.h, inputs.words),)
        result: Tensor = criterion.compute_loss(model, net_output, {"target": inputs.target})[0]
        return result

    return loss


CONTESTANTS: dict[str, Contestant] = {
    "kerbs": Contestant("kerbs_nll, θ of deviation 0.1", kerbs),
    "kerbs-trained": Contestant("kerbs_nll, θ of deviation 1.5", lambda: kerbs(trained=True)),
    "kerbs-smoothed": Contestant("kerbs_nll, label smoothing 0.1", lambda: kerbs(SMOOTHING)),
    "kerbs-eval": Contestant("kerbs_nll, forward only", kerbs, backward=False),
    "naive": Contestant("KerBS as written, by autograd", naive, temporaries=6.5),
    "naive-stable": Contestant(
        "the same, safe for every input", lambda: naive(stable=True), temporaries=12
    ),
    "stock": Contestant("fairseq's cross_entropy", stock_softmax, senses=False, temporaries=3),
    "stock-smoothed": Contestant(
        "fairseq's label_smoothed_cross_entropy, 0.1",
        lambda: stock_softmax(SMOOTHING),
        senses=False,
        temporaries=3,
    ),
    "stock-eval": Contestant(
        "fairseq's cross_entropy, forward only",
        stock_softmax,
        senses=False,
        backward=False,
        temporaries=2,
    ),
    "lean": Contestant("softmax by kerbs_nll, inner product", lean_softmax, senses=False),
    "lean-smoothed": Contestant(
        "softmax by kerbs_nll, label smoothing 0.1", lambda: lean_softmax(SMOOTHING), senses=False
    ),
}
"""All but the bare products, which compute no loss."""
