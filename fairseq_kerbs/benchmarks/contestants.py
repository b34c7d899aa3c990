"""What the likelihood is compared with: naive autograd, fairseq's own softmax, our softmax."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_kerbs.benchmarks.inputs import PAD, Inputs
from fairseq_kerbs.likelihood import kerbs_nll

SMOOTHING = 0.1
SMALLEST_THETA = 1e-4


def kerbs(inputs: Inputs, label_smoothing: float = 0.0, trained: bool = False) -> Tensor:
    """KerBS by :func:`fairseq_kerbs.likelihood.kerbs_nll`."""
    theta = inputs.trained_theta if trained else inputs.theta
    return kerbs_nll(
        *(inputs.h, inputs.w, theta, inputs.allocation, inputs.target),
        ignore_index=PAD,
        label_smoothing=label_smoothing,
        table=inputs.table,
    )


def lean_softmax(inputs: Inputs, label_smoothing: float = 0.0) -> Tensor:
    """A plain softmax over words on the code path of KerBS: inner product, one sense a word."""
    word_of_sense = inputs.word_table.senses[:, 0]
    return kerbs_nll(
        *(inputs.h, inputs.words, inputs.no_theta, word_of_sense, inputs.target),
        ignore_index=PAD,
        label_smoothing=label_smoothing,
        kernel="lin",
        table=inputs.word_table,
    )


# ------------------------------------------------------------------ the plain way


def naive_kerbs(inputs: Inputs) -> Tensor:
    """KerBS as one would write it down, Eq. 9, 5 and 4, with autograd for the gradients.

        s = |h||w| a(θ)(e^{−θc} − 1),  a(θ) = −θ/(2(e^{−θ} + θ − 1)),  c = cos(h, w)

    Written so that few passes over tokens × senses are needed. The formula is 0/0 at θ = 0; where
    |θ| < 1e-4 it is evaluated at ±1e-4 (the logit changes by less than 1e-4 |h||w|).
    """
    h, w, theta = inputs.h, inputs.w, _away_from_zero(inputs.theta)
    scale = (-theta / (2.0 * (torch.expm1(-theta) + theta))).float()  # a(θ), [M]
    cosine = (F.normalize(h, dim=1) @ F.normalize(w, dim=1).t()).float()  # [N, M]
    h_norm = h.float().norm(dim=1, keepdim=True)  # [N, 1]
    w_norm = w.float().norm(dim=1)  # [M]
    logits = h_norm * ((w_norm * scale) * torch.expm1(-theta.float() * cosine))
    senses = logits.softmax(1)
    word_of_sense = inputs.allocation.expand(len(h), -1)
    words = senses.new_zeros(len(h), len(inputs.words)).scatter_add(1, word_of_sense, senses)
    return -words.gather(1, inputs.target.unsqueeze(1)).log().sum()


def stable_kerbs(inputs: Inputs) -> Tensor:
    """As :func:`naive_kerbs`, but as safe as ours: no 0/0 at c = 0, no word with probability 0.

        s = h·w g(θ) φ1(−θc),  φ1(z) = (e^z − 1)/z

    The sum over a word's senses is scaled by the largest of them.
    """
    h, w, theta = inputs.h, inputs.w, _away_from_zero(inputs.theta)
    gain = (theta.square() / (2.0 * (torch.expm1(-theta) + theta))).float()  # g(θ), [M]
    x = (h @ w.t()).float()  # [N, M]
    norms = h.float().norm(dim=1, keepdim=True) * w.float().norm(dim=1)
    z = -theta.float() * (x / norms)
    zero = z == 0
    phi1 = torch.where(zero, 1.0, torch.expm1(z) / torch.where(zero, 1.0, z))
    senses = (x * gain * phi1).log_softmax(1)
    word_of_sense = inputs.allocation.expand(len(h), -1)
    empty = senses.new_full((len(h), len(inputs.words)), -torch.inf)
    peak = empty.scatter_reduce(1, word_of_sense, senses.detach(), "amax")  # [N, V]
    scaled = torch.exp(senses - peak.gather(1, word_of_sense))
    words = torch.zeros_like(empty).scatter_add(1, word_of_sense, scaled).log() + peak
    return -words.gather(1, inputs.target.unsqueeze(1)).sum()


def _away_from_zero(theta: Tensor) -> Tensor:
    """θ in float64 with |θ| ≥ 1e-4, [M]; the gradient goes to θ."""
    least = torch.copysign(torch.full_like(theta, SMALLEST_THETA), theta)
    nudged = torch.where(theta.abs() < SMALLEST_THETA, least, theta)
    return (theta + (nudged - theta).detach()).double()


# ------------------------------------------------------------------ fairseq's own


class _StockModel:
    """As much of a fairseq model as its criterions ask for when they compute a loss."""

    def get_normalized_probs(self, net_output: Any, log_probs: bool, sample: Any = None) -> Tensor:
        from fairseq import utils

        result: Tensor = utils.log_softmax(net_output[0], dim=-1)  # in float32
        return result

    def get_targets(self, sample: dict[str, Tensor], net_output: Any) -> Tensor:
        return sample["target"]


@functools.cache
def _stock_criterion(label_smoothing: float) -> Any:
    from fairseq.criterions.cross_entropy import CrossEntropyCriterion
    from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion

    task = SimpleNamespace(target_dictionary=SimpleNamespace(pad=lambda: PAD))
    if label_smoothing:
        return LabelSmoothedCrossEntropyCriterion(task, False, label_smoothing)
    return CrossEntropyCriterion(task, False)


def stock_softmax(inputs: Inputs, label_smoothing: float = 0.0) -> Tensor:
    """fairseq's output projection with its ``cross_entropy``, or its label-smoothed criterion."""
    net_output, sample = (F.linear(inputs.h, inputs.words),), {"target": inputs.target}
    criterion = _stock_criterion(label_smoothing)
    result: Tensor = criterion.compute_loss(_StockModel(), net_output, sample)[0]
    return result


@dataclass(frozen=True)
class Contestant:
    """A way to compute the loss (and, by autograd, its gradients).

    Attributes:
        label: one line that says what it is.
        loss: from inputs to the sum of −log P(target), []. The inputs are leaves.
        senses: works on the M senses; else on the V words.
        backward: forward and backward; else forward alone, without autograd.
        temporaries: tensors of tokens × senses (or words) in float32 that it holds at its peak,
            roughly: where memory is short it is left out.
    """

    label: str
    loss: Callable[[Inputs], Tensor]
    senses: bool = True
    backward: bool = True
    temporaries: float = 0.0

    def gradient_bytes(self, inputs: Inputs) -> int:
        """Size of the gradients that a caller gets."""
        if not self.backward:
            return 0
        weights = [inputs.w, inputs.theta] if self.senses else [inputs.words]
        return sum(tensor.nbytes for tensor in (inputs.h, *weights))


CONTESTANTS: dict[str, Contestant] = {
    "kerbs": Contestant("kerbs_nll, θ of deviation 0.1", kerbs),
    "kerbs-trained": Contestant("kerbs_nll, θ of deviation 1.5", partial(kerbs, trained=True)),
    "kerbs-smoothed": Contestant(
        "kerbs_nll, label smoothing 0.1", partial(kerbs, label_smoothing=SMOOTHING)
    ),
    "kerbs-eval": Contestant("kerbs_nll, forward only", kerbs, backward=False),
    "naive": Contestant("KerBS as written, by autograd", naive_kerbs, temporaries=6.5),
    "naive-stable": Contestant("the same, safe for every input", stable_kerbs, temporaries=12),
    "stock": Contestant("fairseq's cross_entropy", stock_softmax, False, temporaries=3),
    "stock-smoothed": Contestant(
        "fairseq's label_smoothed_cross_entropy, 0.1",
        partial(stock_softmax, label_smoothing=SMOOTHING),
        senses=False,
        temporaries=3,
    ),
    "stock-eval": Contestant(
        "fairseq's cross_entropy, forward only", stock_softmax, False, False, temporaries=2
    ),
    "lean": Contestant("softmax by kerbs_nll, inner product", lean_softmax, False),
    "lean-smoothed": Contestant(
        "softmax by kerbs_nll, label smoothing 0.1",
        partial(lean_softmax, label_smoothing=SMOOTHING),
        senses=False,
    ),
}
"""All but the bare products, which compute no loss."""

# ------------------------------------------------------------------ whole models

SMOOTHED = "-smoothed"
MODELS: dict[str, str] = {
    "stock": "--share-decoder-input-output-embed",
    "softmax": "--output-layer softmax",
    "kerbs-prior": "--composition-passes 0",
    "kerbs": "--composition-passes 1",
    "kerbs-sequential": "--composition-passes -1",
}
"""Flags of each model: of fairseq's ``transformer`` for "stock", else of ``transformer_kerbs``."""

STEP_NAMES = tuple(  # kerbs-sequential is to decode
    model + suffix for suffix in ("", SMOOTHED) for model in MODELS if model != "kerbs-sequential"
)
DECODE_NAMES = tuple(MODELS)
MODEL_PAIRS = tuple(
    (of + suffix, over + suffix)
    for suffix in ("", SMOOTHED)
    for of, over in (
        ("kerbs", "stock"),
        ("kerbs", "softmax"),
        ("kerbs-sequential", "stock"),
        ("kerbs-sequential", "softmax"),
        ("kerbs-prior", "stock"),
        ("kerbs-prior", "softmax"),
        ("softmax", "stock"),
        ("kerbs", "kerbs-prior"),
    )
)
LIKE_FOR_LIKE = (
    "like for like: the ratios over softmax, our own code with one sense a word; stock is "
    "fairseq's code, so that the ratios over it also count what our code saves"
)
