"""The passes over a chunk of logits, one by one, in eager mode."""

import pytest
import torch
from torch import Tensor

from fairseq_kerbs.kernels import build_kernel
from fairseq_kerbs.kernels.prepared import PreparedSenses
from fairseq_kerbs.likelihood import passes
from fairseq_kerbs.likelihood.chunks import _PolysemousWords
from fairseq_kerbs.likelihood.norms import HOMOGENEOUS
from fairseq_kerbs.likelihood.passes import LogitGradient, WordSmoothing
from fairseq_kerbs.senses import build_sense_table
from tests.helpers.reference import Problem, make_problem, naive_logits, naive_word_log_probs


@pytest.mark.parametrize("total", [11, 29])
def test_word_logits_and_their_means_are_sums_over_the_senses_of_a_word(total: int) -> None:
    p = make_problem(6, 11, total)
    logits = naive_logits(*p.leaves).detach().t()
    table = build_sense_table(p.word_of_sense, 11)
    found = passes.word_logits(logits, table.senses, table.mask)
    values = torch.empty_like(found)
    means = torch.empty_like(found)
    passes.write_word_logits(logits, table.senses, table.mask, values, means)
    torch.testing.assert_close(values, found)
    for word in range(11):
        own = logits[p.word_of_sense == word]
        torch.testing.assert_close(found[word], own.logsumexp(0))
        torch.testing.assert_close(means[word], (own.softmax(0) * own).sum(0))


def logits_and_gradient(p: Problem, weight: Tensor, word_weight: Tensor) -> tuple[Tensor, Tensor]:
    """Logits [M, n], and by autograd G of weight·lse − word_weight·Σ_i lse_i."""
    logits = naive_logits(*p.leaves).detach().requires_grad_()
    lse = logits.logsumexp(1)
    word_lse = naive_word_log_probs(logits, p.word_of_sense, p.vocab_size) + lse.unsqueeze(1)
    total = (weight * lse).sum() - (word_weight * word_lse.sum(1)).sum()
    (gradient,) = torch.autograd.grad(total, logits)
    return logits.detach().t(), gradient.t()


@pytest.mark.parametrize("total", [11, 12, 29])
@pytest.mark.parametrize("smoothed", [False, True])
def test_the_gradient_by_logits_is_that_of_autograd(total: int, smoothed: bool) -> None:
    p = make_problem(6, 11, total)
    weight = torch.rand(6, dtype=torch.float64)
    word_weight = torch.rand(6, dtype=torch.float64) * smoothed
    logits, expected = logits_and_gradient(p, weight, word_weight)
    smoothing = None
    if smoothed:
        table = build_sense_table(p.word_of_sense, 11)
        if total > 11:
            several = _PolysemousWords.of(table)
            words = passes.word_logits(logits, several.senses, several.mask)
            smoothing = WordSmoothing(word_weight, several.is_single, several.row_of_sense, words)
        else:
            smoothing = WordSmoothing(word_weight, None, None, None)
    gradient = LogitGradient(logits.logsumexp(0), weight, smoothing)
    torch.testing.assert_close(gradient.of(logits), expected)
    # the lowest number stands for a sense that is left out
    left_out = logits.clone()
    left_out[3, 2] = torch.finfo(torch.float64).min
    expected[3, 2] = 0.0
    torch.testing.assert_close(gradient.of(left_out), expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_gradients_overwrite_logits_or_bfloat16_products(dtype: torch.dtype) -> None:
    p = make_problem(6, dtype=torch.float64)
    kernel = build_kernel("kerbs")
    senses = PreparedSenses.of(p.h, p.w.detach(), p.theta.detach(), kernel, torch.float64)
    x = (senses.w @ p.h.detach().t()).to(dtype)
    inputs = senses.inputs(x, p.h.detach().norm(dim=1), slice(None))
    logits = inputs.value()
    before = x.clone()
    gradient = LogitGradient(logits.logsumexp(0), torch.ones(6, dtype=torch.float64), None)
    grad_logits = gradient.of(logits)
    partials = inputs.partials()
    by_norm = (grad_logits * logits).sum(1)
    by_theta = (grad_logits * partials.theta).sum(1)
    by_x = grad_logits * partials.x
    untouched = logits.clone()
    sums = passes.write_gradients(HOMOGENEOUS, inputs, gradient, logits)
    torch.testing.assert_close(sums.w_norm, by_norm)
    torch.testing.assert_close(sums.theta, by_theta)
    assert not sums.h_norm.any()  # a homogeneous kernel knows it from the mean logit
    if dtype == torch.bfloat16:
        assert torch.equal(x, by_x.to(dtype))
        assert torch.equal(logits, untouched)
    else:
        assert torch.equal(logits, by_x)
        assert torch.equal(x, before)


def test_gradients_by_norms_are_summed_over_senses() -> None:
    generator = torch.Generator().manual_seed(2)
    grad_logits = torch.randn(9, 4, generator=generator, dtype=torch.float64)
    slope = torch.randn(9, 4, generator=generator, dtype=torch.float64)
    expected = torch.stack([grad_logits[:, n] @ slope[:, n] for n in range(4)])
    torch.testing.assert_close(passes._sum_over_senses(grad_logits, slope), expected)
    assert passes._sum_over_senses(grad_logits, 0.0).tolist() == [0.0] * 4
