"""What several tests of the likelihood, of kernels and of decoding use."""

from typing import Any
from unittest import mock

import torch
from torch import Tensor

from fairseq_kerbs.kernels import Kernel, build_kernel
from fairseq_kerbs.likelihood import chunks, kerbs_nll
from fairseq_kerbs.likelihood.nll import SenseParameters
from fairseq_kerbs.senses import build_sense_table
from tests.helpers.reference import Problem

KERNELS = ["kerbs", "kerbs_released", "lin"]
SMOOTHING = [0.0, 0.1]


def nll(p: Problem, **options: Any) -> Tensor:
    return kerbs_nll(*p.leaves, p.word_of_sense, p.target, **options)


def chunks_of(tokens: int) -> Any:
    """A context in which a chunk has so many tokens."""
    return mock.patch.object(chunks, "chunk_size", return_value=tokens)


def senses_of(p: Problem, kernel: str | Kernel = "kerbs") -> SenseParameters:
    table = build_sense_table(p.word_of_sense, p.vocab_size)
    return SenseParameters(p.w, p.theta, table, build_kernel(kernel))


def gradients(loss: Tensor, p: Problem) -> list[Tensor]:
    """Gradients of h, w, θ; zeros where a leaf takes no part."""
    return list(
        torch.autograd.grad(
            loss, p.leaves, retain_graph=True, allow_unused=True, materialize_grads=True
        )
    )


def assert_same(ours: list[Tensor], truth: list[Tensor], tolerance: float) -> None:
    """Largest error of each tensor within ``tolerance`` of its largest entry."""
    for actual, expected in zip(ours, truth, strict=True):
        scale = expected.abs().max().item()
        error = (actual.double() - expected.double()).abs().max().item()
        assert error <= tolerance * scale + 1e-30


def relative(actual: Tensor, expected: Tensor) -> float:
    """Norm of the difference, relative to that of what is expected."""
    error = (actual.double() - expected.double()).norm()
    return (error / expected.double().norm()).item()
