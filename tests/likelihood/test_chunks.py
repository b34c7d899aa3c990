"""Chunks of tokens: their sizes and order change nothing, and their gradients lose no precision."""

from typing import Any

import pytest
import torch
from torch import Tensor

from fairseq_kerbs.kernels import prepared
from fairseq_kerbs.likelihood import chunks, compilation, custom_operator
from fairseq_kerbs.likelihood.chunks import _PolysemousWords, check_words, chunk_size, row_blocks
from fairseq_kerbs.output_layers import KerbsOutputLayer
from fairseq_kerbs.senses import build_sense_table
from tests.helpers.cli import Patch
from tests.helpers.likelihood import (
    KERNELS,
    SMOOTHING,
    assert_same,
    chunks_of,
    gradients,
    nll,
    relative,
)
from tests.helpers.reference import Memory, Problem, make_problem, naive_token_losses


@pytest.mark.parametrize("kernel", ["kerbs", "lin", "rbf", "kerbs_released"])
@pytest.mark.parametrize("smoothing", SMOOTHING)
@pytest.mark.parametrize("reduction", ["sum", "mean", "none"])
def test_chunks_blocks_and_order_change_nothing(
    kernel: str, smoothing: float, reduction: str, monkeypatch: Patch
) -> None:
    p = make_problem(13)

    def loss_and_gradients(q: Problem, chunk: int) -> list[Tensor]:
        with chunks_of(chunk):
            loss = nll(q, reduction=reduction, kernel=kernel, label_smoothing=smoothing)
            return [loss.detach(), *gradients(loss.sum(), q)]

    whole = loss_and_gradients(p, 13)
    order = torch.randperm(13)
    shuffled = p._replace(h=p.h.detach()[order], target=p.target[order]).to(torch.float64)
    loss, by_h, by_w, by_theta = whole
    expected = [loss[order] if reduction == "none" else loss, by_h[order], by_w, by_theta]
    assert_same(loss_and_gradients(shuffled, 13), expected, 1e-12)
    monkeypatch.setattr(chunks, "BLOCK", 100)
    for chunk in range(1, 15):
        assert_same(loss_and_gradients(p, chunk), whole, 1e-12)
    # compiled, tokens without weight fill up the last chunk; here they do it uncompiled
    monkeypatch.setattr(compilation, "worthwhile", lambda *_: True)
    monkeypatch.setattr(compilation, "call", lambda function, *inputs, axes: function(*inputs))
    for chunk in (6, 13, 64):
        assert_same(loss_and_gradients(p, chunk), whole, 1e-12)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_nothing_is_tokens_by_senses(kernel: str, reduction: str, monkeypatch: Patch) -> None:
    tokens = 800
    senses = 300
    chunk = 20
    p = make_problem(tokens, 100, senses, 6, dtype=torch.float32)
    options: dict[str, Any] = {
        "kernel": kernel,
        "reduction": reduction,
        "label_smoothing": 0.1,
    }
    monkeypatch.setattr(chunks, "chunk_size", lambda *_: chunk)
    # no mode sees inside an operator
    monkeypatch.setattr(custom_operator, "_run", custom_operator.flat_losses)
    prepared._has_onednn()  # which tries a product once
    with Memory() as memory:
        nll(p, **options).sum().backward()
    assert memory.largest >= chunk * senses
    assert memory.largest <= 2 * chunk * senses
    assert memory.peak <= 4 * tokens * senses / 2
    assert memory.products == tokens // chunk * (3 if reduction == "mean" else 4)
    with torch.no_grad(), Memory() as validation:
        nll(p, **options)
    assert validation.products == tokens // chunk
    with Memory() as naive:
        naive_token_losses(p, kernel, 0.1).sum().backward()
    assert naive.peak >= 3 * 4 * tokens * senses  # so the measure measures


def test_float16_gradients_are_scaled_before_they_are_rounded() -> None:
    """Probabilities near 1e-8 are nothing in float16, but a loss scale must bring them back."""
    scale = 2.0**15
    p = make_problem(4, 8, 16, 4, dtype=torch.float16)
    other = p.word_of_sense != 0
    h = torch.tensor([3.0, 0, 0, 0])
    w = torch.tensor([-3.0, 0.5, 0, 0])
    low = p._replace(
        h=h.expand(4, 4),
        w=torch.where(other[:, None], w, h),
        theta=0 * p.theta,
        target=0 * p.target,
    ).to(torch.float16)
    wide = low.to(torch.float64)
    (expected,) = torch.autograd.grad(nll(wide) * scale, wide.w)
    assert (expected[other] / scale).abs().max() < 6e-7
    for reduction in ("sum", "none"):
        loss = nll(low, reduction=reduction).sum()
        (actual,) = torch.autograd.grad(loss * scale, low.w, retain_graph=True)
        assert relative(actual[other], expected[other]) < 0.02
        (actual,) = torch.autograd.grad(loss * 1e20, low.w)  # which the loss scaler has to see
        assert actual.isinf().any()


def test_gradients_of_a_frequent_word_that_is_certain_do_not_cancel() -> None:
    p = make_problem(600, 30, 60, dtype=torch.float32)
    with torch.no_grad():
        p.w[0] = 3.0
        p.target[:] = p.word_of_sense[0]
        p.h[:] = 3.0 + 0.1 * p.h
    for gradient in gradients(nll(p), p)[1:]:  # of w and θ, in float64 below 1e-12
        assert gradient[0].abs().max() < 1e-6


def test_sizes_of_chunks_on_a_cpu() -> None:
    """They are multiples of 32 and as equal as possible, and X has at most 128 MiB."""
    w = torch.empty(6000, 1)
    for compiled in (False, True):
        assert chunk_size(0, w, compiled) == 32
        assert chunk_size(5, w, compiled) == 32
        assert chunk_size(33, w, compiled) == 64
        assert chunk_size(256, w, compiled) == 256
        assert chunk_size(257, w, compiled) == 160
    assert chunk_size(1000, w, compiled=False) == 256
    assert chunk_size(1000, w, compiled=False, cpu_tokens=128) == 128
    assert chunk_size(1000, torch.empty(200_000, 1), compiled=False) == 160
    assert chunk_size(1000, torch.empty(10**7, 1), compiled=True) == 32
    # the products are in float32, or in float64
    wide, half = (torch.empty(200_000, 1, dtype=kind) for kind in (torch.float64, torch.bfloat16))
    assert [chunk_size(1000, w, compiled=False) for w in (wide, half)] == [64, 160]


@pytest.mark.parametrize("word_of_sense", [[0, 1, 2, 1], [2, 0, 0, 1, 1, 2], [0, 1, 1, 2, 1, 2]])
def test_words_with_several_senses_are_found(word_of_sense: list[int]) -> None:
    words = torch.tensor(word_of_sense)
    counts = torch.bincount(words)
    several = _PolysemousWords.of(build_sense_table(words, 3, 4))
    assert several.number == int((counts > 1).sum())
    assert len(several.senses) == max(2, several.number)
    for sense, word in enumerate(word_of_sense):
        alone = int(counts[word]) == 1
        assert bool(several.is_single[sense, 0]) == alone
        assert (sense in several.single_senses.tolist()) == alone
        if not alone:
            row = int(several.row_of_sense[sense])
            found = several.senses[row][several.mask[row]]
            assert sorted(found.tolist()) == (words == word).nonzero().flatten().tolist()


def test_ignored_tokens_are_not_computed(monkeypatch: Patch) -> None:
    """They cost nothing on a CPU, and the others get what they would get alone."""
    p = make_problem(9, dtype=torch.float32)
    ignored = torch.tensor([1, 2, 5, 8])
    kept = torch.tensor([0, 3, 4, 6, 7])
    some = p._replace(h=p.h.detach()[kept], target=p.target[kept]).to(torch.float32)
    expected = nll(some, reduction="none", label_smoothing=0.1)
    by_h, *others = gradients(expected.sum(), some)
    p.target[ignored] = -100
    computed: list[int] = []
    original = chunks._Chunks.run

    def run(self: Any, tokens: Any) -> Any:
        computed.append(len(tokens.h))
        return original(self, tokens)

    monkeypatch.setattr(chunks._Chunks, "run", run)
    for reduction in ("sum", "none"):
        computed.clear()
        loss = nll(p, reduction=reduction, label_smoothing=0.1)
        assert sum(computed) == len(kept)
        found_h, *found = gradients(loss.sum(), p)
        if reduction == "none":
            assert torch.equal(loss[kept], expected)
            assert not loss[ignored].any()
        assert_same([found_h[kept]], [by_h], 1e-6)
        assert not found_h[ignored].any()
        assert_same(found, others, 1e-6)
    p.target[:] = -100
    assert nll(p).item() == 0.0


@pytest.mark.parametrize("mkl", [False, True])
def test_products_are_the_same_with_and_without_a_copy(mkl: bool, monkeypatch: Patch) -> None:
    monkeypatch.setattr(prepared, "_mkl_is_faster", lambda: mkl)
    p = make_problem(40, 40, 110, 7, dtype=torch.float32)
    a, b, result = p.w.detach(), p.h.detach(), torch.empty(110, 40)
    assert prepared.writes_products(a, b, result) == (mkl or not prepared._has_onednn())
    assert not prepared.writes_products(a, b, result.double())
    wide = p.to(torch.float64)
    with chunks_of(15):
        found = gradients(nll(p, label_smoothing=0.1), p)
    assert_same(found, gradients(nll(wide, label_smoothing=0.1), wide), 1e-5)


def test_blocks_of_rows_cover_a_matrix_once(monkeypatch: Patch) -> None:
    monkeypatch.setattr(chunks, "BLOCK", 100)
    matrix = torch.empty(31, 9)
    rows = [range(31)[block] for block in row_blocks(matrix)]
    assert [len(block) for block in rows] == [11, 11, 9]
    assert [row for block in rows for row in block] == [*range(31)]
    assert row_blocks(matrix, whole=True) == [slice(0, 31)]
    assert len(row_blocks(torch.empty(3, 500))) == 3  # a row is the least
    assert row_blocks(torch.empty(0, 4)) == []


@pytest.mark.parametrize("wrong", [-1, 11])
def test_a_target_outside_the_vocabulary_is_named(wrong: int) -> None:
    check_words(torch.tensor([0, 10]), 11)
    with pytest.raises(ValueError, match=f"`target` holds {wrong}, not one of 11 words"):
        check_words(torch.tensor([0, wrong, 10]), 11)


@pytest.mark.parametrize("kernel", ["kerbs", "lin", "rbf"])
@pytest.mark.parametrize("tokens", [0, 3])
def test_a_batch_without_counted_tokens_has_no_loss(kernel: str, tokens: int) -> None:
    layer = KerbsOutputLayer(4, 6, 12, kernel=kernel)
    h = torch.randn(tokens, 4, requires_grad=True)
    target = torch.full((tokens,), -100)
    for smoothing in (0.0, 0.1):
        loss = layer.nll(h, target, label_smoothing=smoothing)
        assert loss.item() == 0.0
        for gradient in torch.autograd.grad(loss, [h, layer.weight]):
            assert not gradient.any()
            assert gradient.isfinite().all()


def test_a_certain_prediction_has_finite_gradients_in_half_precision() -> None:
    """All of P is 0 then, which cannot be scaled."""
    layer = KerbsOutputLayer(4, 2, 4, kernel="lin").half()
    with torch.no_grad():
        layer.weight.copy_(torch.where(layer.table.words.eq(0).unsqueeze(1), 30.0, -30.0).half())
    h = torch.full((3, 4), 30.0, dtype=torch.float16, requires_grad=True)
    loss = layer.nll(h, torch.zeros(3, dtype=torch.long))
    assert loss.item() == 0.0
    for gradient in torch.autograd.grad(loss, [h, layer.weight]):
        assert gradient.isfinite().all()
