"""What holds for every size, precision, allocation and θ: properties, checked on drawn cases."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fairseq_kerbs.likelihood import kerbs_log_probs, kerbs_nll
from fairseq_kerbs.output_layers import KerbsOutputLayer
from fairseq_kerbs.reallocation import POLICIES, ReallocationSettings
from tests.helpers.fairseq_fixtures import make_batch, make_model, teacher_forced
from tests.helpers.reference import (
    Problem,
    make_problem,
    naive_logits,
    naive_token_losses,
    naive_word_log_probs,
)

KERNELS = ("kerbs", "kerbs_released", "lin")
SOME = settings(max_examples=30)
# float32 errs in the logits, in proportion to their size; the tight bounds are in test_kernels
CLOSE = {torch.float64: 1e-9, torch.float32: 2e-4}


@st.composite
def problems(draw: st.DrawFn, *dtypes: torch.dtype) -> Problem:
    """Any numbers of tokens, words, senses and dimensions; θ from flat to steep."""
    vocab_size = draw(st.integers(1, 40))
    p = make_problem(
        tokens=draw(st.integers(1, 30)),
        vocab_size=vocab_size,
        total_senses=draw(st.integers(vocab_size, 4 * vocab_size)),
        dim=draw(st.integers(1, 33)),
        seed=draw(st.integers(0, 2**31)),
        theta_scale=draw(st.sampled_from([0.0, 1e-4, 0.3, 3.0, 12.0])),
    )
    size = draw(st.sampled_from([1e-3, 0.3, 1.0])) * p.h.shape[1] ** -0.25
    return p._replace(h=p.h * size, w=p.w * size).to(draw(st.sampled_from(dtypes)))


@SOME
@given(problems(torch.float64, torch.float32), st.sampled_from(KERNELS), st.booleans())
def test_probabilities_and_losses_are_those_of_the_reference(
    p: Problem, kernel: str, smooth: bool
) -> None:
    exact, tolerance = p.to(torch.float64), CLOSE[p.h.dtype]
    found = kerbs_log_probs(*p.leaves, p.word_of_sense, p.vocab_size, kernel=kernel).double()
    logits = naive_logits(*exact.leaves, kernel)
    expected = naive_word_log_probs(logits, p.word_of_sense, p.vocab_size)
    torch.testing.assert_close(found.exp(), expected.exp(), rtol=0, atol=tolerance)
    smoothing = 0.1 if smooth else 0.0
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
    leaves = [value.detach() * scale for value in p.leaves]
    found = kerbs_log_probs(
        leaves[0], leaves[1], leaves[2], p.word_of_sense, p.vocab_size, kernel=kernel
    )
    assert found.shape == (len(p.target), p.vocab_size)
    assert found.isfinite().all()
    assert (found <= 1e-5).all()
    assert (found.double().exp().sum(1) - 1).abs().max() <= 1e-5


@SOME
@given(problems(torch.float64), st.sampled_from(KERNELS), st.integers(0, 2**31))
def test_the_numbering_of_senses_and_the_order_of_tokens_mean_nothing(
    p: Problem, kernel: str, seed: int
) -> None:
    g = torch.Generator().manual_seed(seed)
    senses = torch.randperm(len(p.word_of_sense), generator=g)
    tokens = torch.randperm(len(p.target), generator=g)
    other = Problem(
        p.h.detach()[tokens],
        p.w.detach()[senses],
        p.theta.detach()[senses],
        p.word_of_sense[senses],
        p.target[tokens],
        p.vocab_size,
    ).to(torch.float64)
    results = []
    for one in (p, other):
        loss = kerbs_nll(*one.leaves, one.word_of_sense, one.target, kernel=kernel)
        parts = torch.autograd.grad(loss, one.leaves, allow_unused=True)
        results.append([loss, *(torch.zeros(1) if part is None else part for part in parts)])
    (loss, by_h, by_w, by_theta), found = results
    expected = [loss, by_h[tokens], by_w[senses]]
    expected.append(by_theta[senses] if len(by_theta) > 1 else by_theta)
    for mine, right in zip(found, expected, strict=True):
        largest = float(right.detach().abs().max())
        torch.testing.assert_close(mine, right, rtol=1e-10, atol=1e-11 * max(1.0, largest))


# ----------------------------------------------------------------------------- models

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "transformer, 0 passes": ("transformer", {"composition_passes": 0}),
    "transformer, 1 pass": ("transformer", {"composition_passes": 1}),
    "transformer, all passes": ("transformer", {"composition_passes": -1}),
    "lstm": ("lstm", {}),
    "gru": ("gru", {}),
}
FEW = settings(max_examples=5)


@functools.cache
def model_of(name: str) -> Any:
    architecture, flags = MODELS[name]
    return make_model(architecture, **flags)


class Drawn(NamedTuple):
    """A batch: lengths of its sentences, the number of positions, and a seed for its words."""

    lengths: tuple[int, ...]
    pad_to: int
    seed: int

    def make(self) -> dict[str, Any]:
        return make_batch(self.lengths, seed=self.seed, pad_to=self.pad_to)


batches = st.builds(
    Drawn,
    st.lists(st.integers(1, 9), min_size=1, max_size=5).map(tuple),
    st.integers(0, 12),
    st.integers(0, 2**31),
)


def alone(batch: dict[str, Any], row: int) -> dict[str, Any]:
    """One sentence of a batch, without padding."""
    net_input = batch["net_input"]
    source, previous = net_input["src_tokens"][row], net_input["prev_output_tokens"][row]
    source, previous = source[source.ne(1)], previous[previous.ne(1)]
    lengths = torch.tensor([len(source)])
    return {
        "net_input": {
            "src_tokens": source.unsqueeze(0),
            "src_lengths": lengths,
            "prev_output_tokens": previous.unsqueeze(0),
        }
    }


@pytest.mark.parametrize("name", list(MODELS))
@FEW
@given(batches)
def test_neither_padding_nor_other_sentences_change_a_score(name: str, drawn: Drawn) -> None:
    model, batch = model_of(name), drawn.make()
    order = torch.arange(len(drawn.lengths) - 1, -1, -1)
    turned = {"net_input": {key: value[order] for key, value in batch["net_input"].items()}}
    with torch.no_grad():
        found = teacher_forced(model, batch)
        torch.testing.assert_close(
            teacher_forced(model, turned)[order], found, rtol=1e-4, atol=1e-4
        )
        for row, length in enumerate(drawn.lengths):
            single = teacher_forced(model, alone(batch, row))[0]
            torch.testing.assert_close(found[row, :length], single, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", list(MODELS))
@FEW
@given(batches, st.integers(0, 11), st.integers(4, 22))
def test_no_score_knows_of_what_comes_later(
    name: str, drawn: Drawn, position: int, word: int
) -> None:
    model, batch = model_of(name), drawn.make()
    tokens: Tensor = batch["net_input"]["prev_output_tokens"]
    position %= tokens.shape[1]
    with torch.no_grad():
        before = teacher_forced(model, batch)
        tokens[:, position:] = torch.where(tokens[:, position:].eq(1), 1, word)
        after = teacher_forced(model, batch)
    torch.testing.assert_close(after[:, :position], before[:, :position], rtol=1e-5, atol=1e-5)


# ----------------------------------------------------------------------------- reallocation

ROUNDS = 80


@pytest.mark.parametrize("policy", list(POLICIES))
@pytest.mark.parametrize("new_sense", ["keep", "split", "context"])
@settings(max_examples=3)
@given(st.integers(1, 25), st.integers(1, 5), st.floats(0, 1), st.integers(0, 2**31))
def test_hundreds_of_reallocations_keep_every_number(
    policy: str, new_sense: str, words: int, most: int, share: float, seed: int
) -> None:
    """Each word keeps 1 to `most` senses, and all of them together stay M; 3 · 80 a policy."""
    senses = words + round(share * words * (most - 1))
    torch.manual_seed(seed)
    follows = policy == "clusters"
    layer = KerbsOutputLayer(
        3, words, senses, max_senses=most, new_sense=new_sense, follow_clusters=follows
    )
    inventory, moved = layer.inventory, 0
    for number in range(ROUNDS // 10 if follows else ROUNDS):  # each split takes bisections
        draw_statistics(layer, number)
        rule = ReallocationSettings(log_prob_threshold=-1.0, max_moves=0.5)
        moved += len(layer.reallocate(policy, rule))
        counts = torch.bincount(inventory.word_of_sense, minlength=words)
        assert len(inventory.word_of_sense) == senses == int(counts.sum())
        assert 1 <= int(counts.min()) <= int(counts.max()) <= most
    assert (inventory.table.mask.sum(1) == counts).all()
    for name, value in layer.state_dict().items():
        assert value.isfinite().all(), name
    if policy == "paper" and words > 5 and words < senses < most * words:
        assert moved > 0


def draw_statistics(layer: KerbsOutputLayer, number: int) -> None:
    """Random sums as an interval may leave them; nothing at all every tenth time."""
    inventory, some = layer.inventory, float(number % 10 > 0)
    count = torch.randint(0, 50, (layer.vocab_size,)).float() * some
    inventory.usage.copy_(torch.rand(layer.total_senses) ** 4)
    inventory.log_prob.copy_(-3.0 * torch.rand(layer.vocab_size) * some)
    inventory.interval_count.copy_(count)
    inventory.interval_prob.copy_(count * torch.rand(layer.vocab_size))
    inventory.interval_usage.copy_(torch.rand(layer.total_senses) * some)
    if inventory.clusters is not None:
        inventory.clusters.sense_count.copy_(inventory.interval_usage * 50)
        inventory.clusters.sense_sum.copy_(torch.randn_like(layer.weight) * some)
        inventory.clusters.lead_along.copy_(torch.randn_like(inventory.clusters.lead_along) * some)
        inventory.clusters.rounds.random_(0, 4)
    if inventory.interval_contexts is not None:
        inventory.interval_contexts.copy_(torch.randn_like(inventory.interval_contexts) * some)
