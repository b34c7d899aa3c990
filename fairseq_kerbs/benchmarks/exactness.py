"""How far the likelihood's values and gradients are from the written-down equations in float64."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from fairseq_kerbs.benchmarks.likelihood import Inputs, naive_losses
from fairseq_kerbs.likelihood import kerbs_nll

LIMITS = {"float32": 1e-5, "bfloat16": 8 * 2.0**-8, "float16": 8 * 2.0**-11}
"""Of ‖error‖ ÷ ‖right value‖ with inputs of a dtype; their own rounding is no error."""


def distance(value: Tensor, right: Tensor) -> float:
    """‖a − b‖ ÷ ‖b‖ of two tensors, infinite where that is no number."""
    value, right = value.detach().double(), right.detach().double()
    error = float((value - right).norm() / right.norm().clamp_min(1e-300))
    return error if math.isfinite(error) else math.inf


def errors(inputs: Inputs) -> Iterator[tuple[float, str]]:
    """Errors of losses and gradients, with their names, without and with label smoothing."""
    inputs = replace(inputs, theta=inputs.trained_theta)
    given = inputs.h, inputs.w, inputs.theta, inputs.word_of_sense, inputs.target
    wide = [value.detach().double().requires_grad_() for value in (*given[:3], inputs.words)]
    exact = replace(inputs, h=wide[0], w=wide[1], theta=wide[2], words=wide[3])
    for smoothing in (0.0, 0.1):
        nll = partial(kerbs_nll, *given, label_smoothing=smoothing)
        loss, right = nll(), naive_losses(exact, smoothing)
        with torch.no_grad():
            each = nll(reduction="none")
        ours = [loss, each, *torch.autograd.grad(loss, given[:3])]
        truth = [right.sum(), right, *torch.autograd.grad(right.sum(), wide[:3])]
        yield from zip(map(distance, ours, truth), ("loss", "losses", "dh", "dW", "dθ"))
