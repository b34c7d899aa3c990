"""What holds for every size, precision, allocation and θ: properties, checked on drawn cases."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_kerbs.likelihood import kerbs_log_probs, kerbs_nll
from fairseq_kerbs.output_layers import KerbsOutputLayer
from fairseq_kerbs.reallocation import POLICIES, ReallocationSettings
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


@pytest.mark.parametrize("policy", list(POLICIES))
@pytest.mark.parametrize("new_sense", ["keep", "split"])
@settings(max_examples=3)
@given(st.integers(1, 25), st.integers(1, 5), st.floats(0, 1), st.integers(0, 2**31))
def test_hundreds_of_reallocations_keep_every_number(
    policy: str, new_sense: str, words: int, most: int, share: float, seed: int
) -> None:
    """Each word keeps 1 to `most` senses, and all of them together stay M."""
    senses, moved = words + round(share * words * (most - 1)), 0
    torch.manual_seed(seed)
    layer = KerbsOutputLayer(3, words, senses, max_senses=most, new_sense=new_sense)
    inventory, rule = layer.inventory, ReallocationSettings(log_prob_threshold=-1.0, max_moves=0.5)
    for number in range(80):
        draw_statistics(layer, number)
        moved += len(layer.reallocate(policy, rule))
        counts = torch.bincount(inventory.word_of_sense, minlength=words)
        assert len(inventory.word_of_sense) == senses == int(counts.sum())
        assert 1 <= int(counts.min()) <= int(counts.max()) <= most
    assert (inventory.table.mask.sum(1) == counts).all()
    assert all(value.isfinite().all() for value in layer.state_dict().values())
    assert moved > 0 or policy != "paper" or not (5 < words < senses < most * words)


def draw_statistics(layer: KerbsOutputLayer, number: int) -> None:
    """Random sums as an interval may leave them; nothing at all every tenth time."""
    inventory, some = layer.inventory, float(number % 10 > 0)
    count = torch.randint(0, 50, (layer.vocab_size,)).float() * some
    inventory.usage.copy_(torch.rand(layer.total_senses) ** 4)
    inventory.log_prob.copy_(-3.0 * torch.rand(layer.vocab_size) * some)
    inventory.interval_count.copy_(count)
    inventory.interval_prob.copy_(count * torch.rand(layer.vocab_size))
    inventory.interval_usage.copy_(torch.rand(layer.total_senses) * some)
