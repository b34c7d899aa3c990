"""What holds for every size, precision, allocation and θ: properties, checked on drawn cases."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_kerbs.likelihood import kerbs_log_probs, kerbs_nll
from tests.helpers.reference import Problem, make_problem, naive_logits, naive_token_losses
from tests.helpers.reference import naive_word_log_probs as naive_words

KERNELS = ("kerbs", "kerbs_released", "lin")
# float32 errs in the logits, in proportion to their size; the tight bounds are in test_nll
CLOSE = {torch.float64: 1e-9, torch.float32: 2e-4}


@st.composite
def problems(draw: st.DrawFn, *dtypes: torch.dtype) -> Problem:
    """Any numbers of tokens, words, senses and dimensions; θ from flat to steep."""
    words, seed = draw(st.integers(1, 40)), draw(st.integers(0, 2**31))
    senses, scale = draw(st.integers(words, 4 * words)), st.sampled_from([0.0, 1e-4, 0.3, 3.0, 12])
    sizes = (draw(st.integers(1, 30)), words, senses, draw(st.integers(1, 33)))
    p = make_problem(*sizes, seed=seed, theta_scale=draw(scale))
    size = draw(st.sampled_from([1e-3, 0.3, 1.0])) * p.h.shape[1] ** -0.25
    return p._replace(h=p.h * size, w=p.w * size).to(draw(st.sampled_from(dtypes)))


@settings(max_examples=30)
@given(problems(torch.float64, torch.float32), st.sampled_from(KERNELS), st.booleans())
def test_probabilities_and_losses_are_those_of_the_reference(
    p: Problem, kernel: str, smooth: bool
) -> None:
    exact, tolerance, smoothing = p.to(torch.float64), CLOSE[p.h.dtype], 0.1 if smooth else 0.0
    found = kerbs_log_probs(*p.leaves, p.word_of_sense, p.vocab_size, kernel=kernel).double()
    expected = naive_words(naive_logits(*exact.leaves, kernel), p.word_of_sense, p.vocab_size)
    torch.testing.assert_close(found.exp(), expected.exp(), rtol=0, atol=tolerance)
    options: dict[str, Any] = {"kernel": kernel, "label_smoothing": smoothing}
    each = kerbs_nll(*p.leaves, p.word_of_sense, p.target, reduction="none", **options)
    truth = naive_token_losses(exact, kernel, smoothing)
    torch.testing.assert_close(each.double(), truth, rtol=tolerance, atol=tolerance)


@given(
    problems(torch.float64, torch.float32, torch.bfloat16, torch.float16),
    st.sampled_from(KERNELS),
    st.sampled_from([1.0, 30.0]),
)
def test_probabilities_sum_to_one(p: Problem, kernel: str, scale: float) -> None:
    h, w, theta = (value.detach() * scale for value in p.leaves)
    found = kerbs_log_probs(h, w, theta, p.word_of_sense, p.vocab_size, kernel=kernel)
    assert found.shape == (len(p.target), p.vocab_size)
    assert found.isfinite().all()
    assert (found <= 1e-5).all()
    assert (found.double().exp().sum(1) - 1).abs().max() <= 1e-5
