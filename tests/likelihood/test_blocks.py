"""Plain torch block by block: the borders of blocks, words across them, and torch's threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from fairseq_kerbs.kernels import build_kernel
from fairseq_kerbs.likelihood import chunked, kerbs_nll
from fairseq_kerbs.likelihood.backends import blocks, closed_forms, eager
from fairseq_kerbs.likelihood.backends.blocks import Block, cut_rows, cut_words, each
from fairseq_kerbs.senses import build_sense_table
from tests.helpers.reference import make_problem
from tests.likelihood.test_backends import TORCH, run_all

OWNERS = torch.tensor([3, 0, 4, 2, 1, 4, 4, 2, 0, 4, 5, 6, 6])  # words 0 … 6: 2, 1, 2, 1, 4, 1, 2


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def backend_of(name: str, owners: Tensor, dtype: torch.dtype) -> tuple[eager.Backend, Tensor]:
    """A backend for random senses of these words, and the senses."""
    torch.manual_seed(len(owners))
    w, theta = torch.randn(len(owners), 5, dtype=dtype), torch.randn(len(owners), dtype=dtype)
    table = build_sense_table(owners, int(owners.max()) + 1)
    senses = eager.Senses(w, theta, owners, table, build_kernel(name))
    return TORCH[name](senses, dtype), w


@pytest.mark.parametrize("most", [1, 2, 3, 5, 12, 13, 100])
def test_cuts_have_every_sense_once_and_words_whole(most: int) -> None:
    table = build_sense_table(OWNERS, 7)
    rows = cut_rows(table, OWNERS, most)
    assert torch.cat([torch.arange(13)[block.senses] for block in rows]).tolist() == [*range(13)]
    assert all(block.rows == block.senses == block.words for block in rows)
    assert max(block.ranks[0] for block in rows) <= most
    words = cut_words(table, OWNERS, most)
    assert sorted(torch.cat([block.senses for block in words]).tolist()) == [*range(13)]
    assert torch.cat([block.numbers for block in words]).sort().values.tolist() == [*range(7)]
    for block in words:
        assert sum(block.ranks) == len(block.senses) == block.rows.stop - block.rows.start
        assert block.words.stop - block.words.start == len(block.numbers) == block.ranks[0]
        for part in block.senses.split(block.ranks):
            assert torch.equal(OWNERS[part], block.numbers[: len(part)])


def test_words_of_one_sense_stay_where_they_are() -> None:
    owners = torch.tensor([2, 0, 1])
    cut = cut_words(build_sense_table(owners, 3), owners, 2)
    assert [block.senses for block in cut] == [slice(0, 2), slice(2, 3)]
    assert [block.numbers.tolist() for block in cut] == [[2, 0], [1]]


@pytest.mark.parametrize("name", list(TORCH))
@pytest.mark.parametrize("owners", [OWNERS, torch.tensor([2, 0, 1, 3]), torch.tensor([0, 0, 0])])
@pytest.mark.parametrize("tokens", [1, 4])
def test_cuts_change_nothing(
    name: str, owners: Tensor, tokens: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one row a block, of some, and of all; above the last row, at it and below."""
    whole, w = backend_of(name, owners, torch.float64)
    h = torch.randn(tokens, 5, dtype=torch.float64)
    expected = run_all(whole, h, w)
    for rows in (1, 2, 3, len(owners) - 1, len(owners), len(owners) + 1):
        monkeypatch.setattr(eager, "BLOCK", rows * tokens)
        cut, _ = backend_of(name, owners, torch.float64)
        for key, value in run_all(cut, h, w).items():
            torch.testing.assert_close(value, expected[key], rtol=1e-12, atol=1e-13, msg=key)


@pytest.mark.parametrize("name", list(TORCH))
def test_the_number_of_threads_changes_no_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eager, "BLOCK", 8)
    h, before, found = torch.randn(4, 5), torch.get_num_threads(), []
    for threads in (1, 2, 3, 3):
        torch.set_num_threads(threads)
        backend, w = backend_of(name, OWNERS, torch.float32)
        found.append(run_all(backend, h, w))
    torch.set_num_threads(before)
    for other in found[1:]:
        assert all(torch.equal(value, found[0][key]) for key, value in other.items())


def test_words_far_below_the_others_keep_their_precision() -> None:
    """Every word's logsumexp is relative to its own largest sense, every block's to its own."""
    owners = torch.arange(6).repeat(2)
    w = torch.tensor([[0.0], [-50], [-500], [-5e3], [-90], [-1]]).repeat(2, 1).double()
    table = build_sense_table(owners, 6)
    senses = eager.Senses(w, w[:, 0], owners, table, build_kernel("lin"))
    for one in (senses, senses._replace(w=w.float(), theta=w[:, 0].float())):
        backend = closed_forms.InnerProductBackend(one, one.w.dtype)
        h_norm = torch.ones(1, dtype=one.w.dtype)
        smoothing = eager.Smoothing.of(0.1, 6)
        saved = backend.forward(one.w.clone(), h_norm, torch.zeros(1, dtype=torch.long), smoothing)
        expected = -torch.tensor([[0.0, -50, -500, -5e3, -90, -1]]).double().log_softmax(1).sum()
        assert saved.uniform_nll is not None
        assert saved.uniform_nll.item() == pytest.approx(expected.item(), rel=1e-6)
        p, _ = backend.backward(saved, h_norm, torch.zeros(2, 12, dtype=one.w.dtype))
        # a word's two senses are alike: each has half of its ε'
        half = -0.5 * smoothing.uniform_weight
        assert p[[2, 3, 8, 9], 0].tolist() == pytest.approx([half] * 4, rel=1e-6)


def some_blocks(count: int) -> list[Block]:
    owners = torch.arange(count)
    return cut_rows(build_sense_table(owners, count), owners, 1)


def test_work_is_done_on_threads_where_torch_runs_alone(threads: int) -> None:
    def work(block: Block, number: int) -> tuple[int, int, str, bool, bool]:
        name = threading.current_thread().name
        state = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        return block.rows.start, torch.get_num_threads() * 10 + number, name, *state

    blocks._workers.cache_clear()  # new threads, and with them the number that later ones get
    for inference in (False, True):
        with torch.inference_mode(inference), torch.no_grad():
            found = each(work, some_blocks(40), [*range(40)])
        assert [(start, number) for start, number, *_ in found] == [(i, 10 + i) for i in range(40)]
        assert (found[0][2] == threading.current_thread().name) == (threads == 1)
        assert {state for *_, state in found} == {inference}
        assert {grad for *_, grad, _ in found} == {False}
    assert torch.get_num_threads() == threads
    later: list[int] = []
    thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert later == [threads]


def test_an_error_in_a_block_is_the_callers(threads: int) -> None:
    def work(block: Block) -> None:
        if block.rows.start == 3:
            raise ZeroDivisionError("third")

    with pytest.raises(ZeroDivisionError, match="third"):
        each(work, some_blocks(7))
    assert each(lambda block: block.rows.start, some_blocks(7)) == [*range(7)]


def test_a_fork_has_threads_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads do not survive a fork: their pool would wait for ever."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    each(lambda block: None, some_blocks(2))
    held = blocks._workers(2, os.getpid())
    monkeypatch.setattr(os, "getpid", lambda: -1)
    names = each(lambda block: threading.current_thread().name, some_blocks(2))
    torch.set_num_threads(before)
    assert set(names) <= {thread.name for thread in blocks._workers(2, -1)._threads}
    assert not set(names) & {thread.name for thread in held._threads}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_shares_of_products_change_nothing(
    dtype: torch.dtype, smoothing: float, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks of 70 tokens: gradients by context vectors, too, come in more than one part."""
    monkeypatch.setenv("FAIRSEQ_KERBS_FUSED", "0")
    p = make_problem(80, 12, 31, 5, theta_scale=0.5, dtype=dtype)
    options: dict[str, Any] = {"label_smoothing": smoothing, "chunk_tokens": 70}

    def found() -> tuple[Tensor, ...]:
        loss = kerbs_nll(*p.leaves, p.word_of_sense, p.target, **options)
        return loss.detach(), *torch.autograd.grad(loss, p.leaves)

    expected, rounding = found(), 4 * torch.finfo(torch.promote_types(dtype, torch.float32)).eps
    for share in (1, 3, 30, 31, 32):
        monkeypatch.setattr(chunked, "SHARE", share)
        for ours, right in zip(found(), expected, strict=True):
            bound = max(rounding, torch.finfo(right.dtype).eps) * right.abs().max().item()
            torch.testing.assert_close(ours, right, rtol=0.0, atol=4 * bound)


def test_products_are_shared_out_where_backends_have_threads(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunked, "SHARE", 10)
    h, owners = torch.randn(3, 2), torch.arange(25)
    table = build_sense_table(owners, 25)
    senses = eager.Senses(torch.randn(25, 2), torch.zeros(25), owners, table, build_kernel("kerbs"))
    assert chunked.Products(h, senses).share == 25  # the C code has OpenMP's threads
    monkeypatch.setenv("FAIRSEQ_KERBS_FUSED", "0")
    assert chunked.Products(h, senses).share == (25 if threads == 1 else 10)


def test_threads_that_cannot_be_started(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error comes out, and those that were started do not wait for the others for ever."""
    start = threading.Thread.start
    started: list[threading.Thread] = []

    def only_one(thread: threading.Thread) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", only_one)
    with pytest.raises(RuntimeError, match="start new thread"):
        blocks._workers(3, -1)
    started[0].join(60)
    assert not started[0].is_alive()
    assert torch.get_num_threads() == 3  # what was asked for, not a worker's single one
