"""``benchmark.py likelihood``: loss and gradients of the output layer alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_kerbs.evaluation.numerics import (
    PAD,
    Inputs,
    kerbs,
    make_inputs,
    naive_losses,
    products,
)
from fairseq_kerbs.kernels import build_kernel
from fairseq_kerbs.likelihood.nll import NllOptions, SenseParameters, nll_with_probabilities
from scripts.benchmarks.comparison import Workload


def lean_softmax(inputs: Inputs) -> Tensor:
    """A plain softmax over words on the code path of KerBS: inner product, one sense a word."""
    theta = inputs.words.new_zeros(len(inputs.words))
    senses = SenseParameters(inputs.words, theta, inputs.word_table, build_kernel("lin"))
    return nll_with_probabilities(inputs.h, senses, inputs.target, NllOptions(ignore_index=PAD))[0]


def stock_softmax(inputs: Inputs) -> Tensor:
    """What fairseq's output projection and ``cross_entropy`` compute."""
    scores = F.log_softmax(F.linear(inputs.h, inputs.words), dim=-1, dtype=torch.float32)
    return F.nll_loss(scores, inputs.target, ignore_index=PAD, reduction="sum")


PRODUCTS = "products"
CONTESTANTS: dict[str, tuple[str, Callable[[Inputs], Tensor | None]]] = {
    PRODUCTS: ("h Wᵀ, P W, Pᵀ h", products),
    "kerbs": ("kerbs_nll, θ of deviation 0.1", kerbs),
    "kerbs-trained": ("kerbs_nll, θ of deviation 1.5", partial(kerbs, trained=True)),
    "kerbs-smoothed": ("kerbs_nll, label smoothing 0.1", partial(kerbs, smoothing=0.1)),
    "naive": ("KerBS as written, by autograd", lambda inputs: naive_losses(inputs).sum()),
    "stock": ("fairseq's cross_entropy", stock_softmax),
    "lean": ("softmax by kerbs_nll, inner product", lean_softmax),
}
"""What each is, and its loss, the sum of −log P(target); autograd gives the gradients."""


def workload(name: str, **inputs_of: Any) -> Workload:
    """Forward and backward of a system of `CONTESTANTS`, on inputs of `make_inputs`."""
    inputs = make_inputs(**inputs_of)
    _, loss_of = CONTESTANTS[name]
    tokens = len(inputs.target)

    def run() -> Tensor | None:
        loss = loss_of(inputs)
        if loss is None:
            return None
        loss.backward()
        return loss.detach() / tokens

    return Workload(run, inputs.drop_gradients, tokens, "token", reuses=name == PRODUCTS)
