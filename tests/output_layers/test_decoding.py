"""Scores of all words for decoding, from senses that are prepared once."""

from typing import Any
from unittest import mock

import pytest
import torch

from fairseq_kerbs.kernels import InnerProductKernel, KerbsKernel, kerbs_kernel, prepared
from fairseq_kerbs.likelihood import kerbs_log_probs
from fairseq_kerbs.output_layers import decoding
from fairseq_kerbs.output_layers.decoding import RankedSenses, score_words
from tests.helpers.likelihood import KERNELS, senses_of
from tests.helpers.reference import make_problem, naive_logits, naive_word_log_probs


@pytest.mark.parametrize("kernel", KERNELS)
def test_scores_for_decoding_in_chunks_and_blocks(kernel: str) -> None:
    p = make_problem(24, 12, 30)
    naive = naive_word_log_probs(naive_logits(*p.leaves, kernel), p.word_of_sense, 12)
    expected = naive.view(2, 12, 12)
    h = p.h.view(2, 12, 7)
    senses = senses_of(p, kernel)

    def two_blocks(x: Any) -> list[slice]:
        return [slice(0, 4), slice(4, len(x))]

    chunks_of_five = mock.patch.object(decoding, "chunk_size", return_value=5)
    blocks = mock.patch.object(decoding, "row_blocks", two_blocks)
    with chunks_of_five, blocks:
        first, ranked = score_words(h[0, 3], senses)
        second, same = score_words(h.transpose(0, 1), senses, ranked)
        assert score_words(h[:0], senses)[0].shape == (0, 12, 12)
        single = senses_of(p.to(torch.float32), kernel)
        assert score_words(h[:0].float(), single)[0].numel() == 0
    assert same is ranked
    assert not first.requires_grad
    torch.testing.assert_close(first, expected[0, 3], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(second, expected.transpose(0, 1), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("total", [12, 30])
@pytest.mark.parametrize("mkl", [False, True])
def test_scores_for_decoding_by_each_library(mkl: bool, total: int) -> None:
    p = make_problem(24, 12, total, dtype=torch.float32)
    logits = naive_logits(*p.leaves).double()
    expected = naive_word_log_probs(logits, p.word_of_sense, 12)
    chunks_of_five = mock.patch.object(decoding, "chunk_size", return_value=5)
    library = mock.patch.object(prepared, "_mkl_is_faster", return_value=mkl)
    with chunks_of_five, library:
        scores, ranked = score_words(p.h, senses_of(p))
    assert ranked.w.is_mkldnn == (prepared._has_onednn() and not mkl)
    torch.testing.assert_close(scores.double(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("shift", [-200.0, 0.0, 200.0])
def test_words_of_two_senses_with_logits_of_any_size(shift: float) -> None:
    p = make_problem(24, 12, 24, dtype=torch.float32)
    p = p._replace(word_of_sense=torch.arange(24) % 12)
    second_senses = torch.arange(24) >= 12
    with torch.no_grad():
        p.h[:, -1] = 1.0
        p.w[:] = 0.1 * p.w
        p.w[:, -1] = shift - 2.0 * second_senses  # biases
    logits = naive_logits(*p.leaves, "lin").double()
    expected = naive_word_log_probs(logits, p.word_of_sense, 12)
    found = kerbs_log_probs(*p.leaves, p.word_of_sense, 12, kernel="lin")
    for scores in (found, score_words(p.h, senses_of(p, "lin"))[0]):
        tolerance = 1e-4 if shift else 3e-6
        torch.testing.assert_close(scores.double(), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("kernel", ["kerbs", "lin"])
@pytest.mark.parametrize("shift", [-200.0, 0.0, 200.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_few_words_with_several_senses(dtype: torch.dtype, shift: float, kernel: str) -> None:
    """One word with two and one with three keep the order of the words."""
    p = make_problem(24, 12, 15, dtype=dtype)
    order = torch.tensor([9, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 4, 9])
    p = p._replace(word_of_sense=order, theta=p.theta if kernel == "kerbs" else 0 * p.theta)
    with torch.no_grad():
        p.h[:, -1] = 1.0
        p.w[:] = 0.1 * p.w
        p.w[:, -1] = shift - 2.0 * (torch.arange(15) % 2)
    expected = naive_word_log_probs(naive_logits(*p.leaves, kernel).double(), order, 12)
    scores, ranked = score_words(p.h, senses_of(p, kernel))
    assert ranked.counts == [12, 2, 1]
    assert [words.tolist() for words in ranked.words_of_slot or []] == [[4, 9], [9]]
    tolerance = 1e-9 if dtype == torch.float64 else 2e-4
    torch.testing.assert_close(scores.double(), expected, rtol=0, atol=tolerance)
    more = make_problem(24, 12, 16)  # more than a quarter of a sense per word
    assert RankedSenses.of(more.h, senses_of(more)).words_of_slot is None


def test_kerbs_is_folded_where_theta_is_not_zero() -> None:
    """Senses that all have θ = 0 are scored by the inner product, which has the same logits."""
    p = make_problem(5, 12, 30, dtype=torch.float32)
    curved = RankedSenses.of(p.h, senses_of(p))
    assert isinstance(curved.kernel, KerbsKernel)
    assert curved.factors is not None
    flat = RankedSenses.of(p.h, senses_of(p._replace(theta=torch.zeros(30))))
    assert isinstance(flat.kernel, InnerProductKernel)
    assert flat.factors is None
    released = RankedSenses.of(p.h, senses_of(p, "kerbs_released"))
    assert released.factors is None


def test_a_folded_kernel_has_the_kernels_logits() -> None:
    """K = |h| f (e^{r·h/|h|} − 1), with the logits of single senses from what is prepared."""
    p = make_problem(5, 12, 30)
    kernel = KerbsKernel()
    w_norm = p.w.norm(dim=1)
    rows, factors = kernel.fold(p.w, w_norm, kernel.prepare(p.theta))
    h_norm = p.h.norm(dim=1, keepdim=True)
    logits = h_norm * factors * torch.expm1((p.h / h_norm) @ rows.t())
    expected = kerbs_kernel(*p.leaves)
    torch.testing.assert_close(logits, expected, rtol=1e-10, atol=1e-12)
    ranked = RankedSenses.of(p.h, senses_of(p))
    senses = torch.tensor([[3, 0], [7, 7], [29, 1], [2, 28], [11, 5]])
    single = ranked.logits_of(senses, p.w[senses], p.h)
    torch.testing.assert_close(single, expected.gather(1, senses), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_vectors_in_half_precision_are_not_rounded_twice(dtype: torch.dtype) -> None:
    p = make_problem(5, 12, 30, dtype=dtype)
    ranked = RankedSenses.of(p.h, senses_of(p))
    assert ranked.w.dtype == dtype
    assert ranked.factors is None
