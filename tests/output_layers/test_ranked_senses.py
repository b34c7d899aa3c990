"""Scores for decoding are the naive log-probabilities."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_kerbs.output_layers import ranked_senses
from fairseq_kerbs.output_layers.ranked_senses import score_words
from tests.helpers.reference import Problem, make_problem, naive_logits, naive_word_log_probs
from tests.likelihood.test_nll import CLOSE, KERNELS, problems, senses_of


def naive(p: Problem, kernel: str) -> torch.Tensor:
    return naive_word_log_probs(naive_logits(*p.leaves, kernel), p.word_of_sense, p.vocab_size)


@pytest.mark.parametrize("kernel", KERNELS)
def test_scores_in_chunks_and_blocks(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    p = make_problem(24, 12, 30)
    right, h, senses = naive(p, kernel).view(2, 12, 12), p.h.view(2, 12, 7), senses_of(p, kernel)
    monkeypatch.setattr(ranked_senses, "chunk_size", lambda *_, **__: 5)
    monkeypatch.setattr(ranked_senses, "row_blocks", lambda x: [slice(0, 4), slice(4, len(x))])
    first, prepared = score_words(h[0, 3], senses)
    second, same = score_words(h.transpose(0, 1), senses, prepared)
    assert same is prepared
    assert not first.requires_grad
    torch.testing.assert_close(first, right[0, 3], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(second, right.transpose(0, 1), rtol=1e-9, atol=1e-9)
    assert score_words(h[:0], senses)[0].shape == (0, 12, 12)


@settings(max_examples=30)
@given(problems(torch.float64, torch.float32), st.sampled_from(KERNELS))
def test_scores_of_any_sizes_are_the_naive_ones(p: Problem, kernel: str) -> None:
    scores, _ = score_words(p.h, senses_of(p, kernel))
    exact = naive(p.to(torch.float64), kernel)
    torch.testing.assert_close(scores.double().exp(), exact.exp(), rtol=0, atol=CLOSE[p.h.dtype])
