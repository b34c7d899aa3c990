"""Senses on the clusters of contexts: the sample, the allocation, and the placement."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fairseq_kerbs import clusters
from fairseq_kerbs.clusters import ContextSample, cluster, place_senses, place_word, whiten


def blobs(seed: int, sizes: tuple[int, ...] = (70, 40, 30), dim: int = 5) -> Tensor:
    """Contexts around as many centers."""
    generator = torch.Generator().manual_seed(seed)
    parts = [
        4.0 * torch.randn(dim, generator=generator) + torch.randn(size, dim, generator=generator)
        for size in sizes
    ]
    return torch.cat(parts)


def sample_of(contexts: dict[int, Tensor], words: int, **options: int) -> ContextSample:
    """A sample of all contexts by word."""
    counts = torch.zeros(words, dtype=torch.long)
    for word, several in contexts.items():
        counts[word] = len(several)
    dim = next(iter(contexts.values())).shape[1]
    sample = ContextSample(counts, dim, **{"most": 600, "memory": 10**8} | options)
    for word, several in contexts.items():
        sample.add(torch.full((len(several),), word), several)
    return sample


def test_a_sample_with_room_keeps_everything() -> None:
    contexts = {word: blobs(word, (30, 30)) for word in (4, 7)}
    sample = ContextSample(torch.full((9,), 60), 5, most=60, memory=10**6)
    words = torch.tensor([4, 7]).repeat(60)
    sample.add(words[:50], torch.stack([contexts[4], contexts[7]], 1).flatten(0, 1)[:50])
    sample.add(words[50:], torch.stack([contexts[4], contexts[7]], 1).flatten(0, 1)[50:])
    for word, right in contexts.items():
        torch.testing.assert_close(sample.contexts(word), right, rtol=1e-3, atol=1e-2)
    assert len(sample.contexts(5)) == 0


def test_every_context_is_as_likely_to_be_kept() -> None:
    """Of 200 numbers 50 stay; their mean over many samples is that of all."""
    numbers = torch.arange(200.0).unsqueeze(1)
    hits = torch.zeros(200)
    for seed in range(300):
        sample = ContextSample(torch.tensor([200]), 1, 50, 10**6, special=0, seed=seed)
        for part in numbers.split(33):
            sample.add(torch.zeros(len(part), dtype=torch.long), part)
        kept = sample.contexts(0).long().squeeze(1)
        assert len(kept.unique()) == 50
        hits[kept] += 1
    # each is kept with probability ¼: 75 ± 7.5 of 300
    assert hits.view(10, 20).mean(1).sub(75).abs().max() < 6


def test_memory_is_shared_and_bounded() -> None:
    counts = torch.tensor([900, 900, 900, 900, 45, 39, 5000, 2000])
    sample = ContextSample(counts, dim=8, most=600, memory=2 * 8 * 1000)
    assert sample.size.tolist() == [0, 0, 0, 0, 45, 0, 477, 477]
    assert sample.kept.nbytes <= 2 * 8 * 1000
    with pytest.raises(ValueError, match=r"3 words need .* for 40 contexts"):
        ContextSample(counts, dim=8, most=600, memory=2 * 8 * 100)


@given(
    st.dictionaries(
        st.integers(4, 30), st.lists(st.floats(0.5, 100.0), min_size=0, max_size=3), max_size=8
    ),
    st.integers(0, 12),
)
def test_senses_go_where_distortion_falls_most(falls: dict[int, list[float]], extra: int) -> None:
    given_ = clusters.allocate(falls, extra)
    assert sum(given_.values()) == min(extra, sum(map(len, falls.values())))
    assert all(1 <= number <= len(falls[word]) for word, number in given_.items())
    taken = [falls[word][number - 1] for word, number in given_.items()]
    waiting = [fall[given_.get(word, 0)] for word, fall in falls.items()
               if given_.get(word, 0) < len(fall)]  # fmt: skip
    if extra == 1 and taken:
        assert max(taken) >= max(waiting, default=0.0)


def by_hand(
    points: np.ndarray, labels: np.ndarray, gap: float, others: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The formulas, term by term in numpy."""
    centers = np.stack([points[labels == k].mean(0) for k in np.unique(labels)])
    mean = points.mean(0)
    inside = points - centers[labels]
    scatter = inside.T @ inside / len(points)
    dim = len(scatter)
    ridge = clusters.SHRINKAGE * np.trace(scatter) / dim * np.eye(dim)
    inverse = np.linalg.inv((1 - clusters.SHRINKAGE) * scatter + ridge)
    ahead = max((c - mean) @ inverse @ (c - mean) for c in centers)
    spread = max(np.sqrt((((others - mean) @ inverse @ (c - mean)) ** 2).mean()) for c in centers)
    flat = gap / max(gap, ahead, spread / 2)
    share = np.bincount(labels) / len(points)
    rows = np.stack([flat * inverse @ (c - mean) for c in centers])
    bias = np.array([
        flat * (0.5 * (mean @ inverse @ mean - c @ inverse @ c) + np.log(p))
        for c, p in zip(centers, share, strict=True)
    ])  # fmt: skip
    masses = np.exp(points @ rows.T + bias).sum(1)
    return rows, bias - np.log(masses).mean()


def second_moments(contexts: Tensor) -> Tensor:
    ones = torch.cat([contexts, torch.ones(len(contexts), 1)], 1).double()
    return ones.t() @ ones / len(ones)


@given(
    st.integers(0, 50), st.integers(1, 4), st.sampled_from([0.3, 1.0, 4.0, 1e9]),
    st.sampled_from([0.1, 1.0, 50.0]),
)  # fmt: skip
@settings(deadline=None, max_examples=27)
def test_a_placement_is_the_formula(seed: int, senses: int, gap: float, scale: float) -> None:
    points, others = blobs(seed), scale * blobs(seed + 1)
    labels = cluster(points, 4)[0][senses - 1]
    rows, bias, share = place_word(points, labels, gap, second_moments(others))
    right = by_hand(points.double().numpy(), labels, gap, others.double().numpy())
    np.testing.assert_allclose(rows.numpy(), right[0], rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(bias.numpy(), right[1], rtol=1e-6, atol=1e-7)
    logits = points.double() @ rows.t() + bias
    assert logits.logsumexp(1).mean().item() == pytest.approx(0.0, abs=1e-9)
    assert share.sum().item() == pytest.approx(1.0)
    whole = place_word(points, labels, 1e9, second_moments(others))
    unscaled = (points.double() @ whole[0].t() + whole[1]).argmax(1)
    assert torch.equal(logits.argmax(1), unscaled)


def test_equal_contexts_get_one_sense() -> None:
    assert len(cluster(torch.ones(90, 3), 4)[0]) == 1
    twice = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).repeat(50, 1)
    labels, _ = cluster(twice, 4)
    assert len(labels) == 2
    rows, bias, _ = place_word(twice, labels[1], 1.0, second_moments(twice))
    assert torch.isfinite(rows).all()
    assert (twice.double() @ rows.t() + bias).argmax(1).unique().tolist() == [0, 1]


def test_directions_in_which_all_words_vary_part_no_senses() -> None:
    """A word has two meanings, and the contexts of all words vary more along something else."""
    draw = torch.Generator().manual_seed(1)
    noise = torch.tensor([0.5, 0.5, 3.0, 0.5])
    contexts = {word: torch.randn(100, 4, generator=draw) * noise for word in range(4, 9)}
    contexts[4][:50, 0] += 4.0
    sample = sample_of(contexts, 9)
    basis = whiten(sample)
    aside = torch.cat([x - x.mean(0) for x in map(sample.contexts, contexts)]).double()
    scatter = aside.t() @ aside
    level = scatter.trace() / 4 * torch.eye(4, dtype=torch.float64)
    shrunk = (1 - clusters.WHITENING) * scatter + clusters.WHITENING * level
    met = basis.double().t() @ shrunk @ basis.double()
    torch.testing.assert_close(met / met[0, 0], torch.eye(4).double(), rtol=1e-4, atol=1e-4)

    def parted(points: Tensor) -> bool:
        labels = cluster(points, 2)[0][1]
        return bool((labels[:50] == labels[0]).all() and (labels[50:] != labels[0]).all())

    assert parted(sample.contexts(4) @ basis)
    assert not parted(sample.contexts(4))
    assert torch.allclose(whiten(sample_of({4: torch.ones(60, 3)}, 9)), 2**0.5 * torch.eye(3))
    placed = place_senses(sample, 10)
    assert placed.word_of_sense[-1] == 4
    logits = sample.contexts(4) @ placed.rows[[4, 9]].t() + placed.bias[[4, 9]]
    assert logits[:50].argmax(1).unique().tolist() != logits[50:].argmax(1).unique().tolist()


def test_a_word_with_nearly_equal_contexts_does_not_disturb_other_words() -> None:
    """It hardly varies, so discriminants of it alone are huge in the contexts of other words."""
    contexts = {word: blobs(word) for word in range(4, 9)}
    contexts[9] = 1.0 + 0.01 * blobs(9, (60, 60))
    placed = place_senses(sample_of(contexts, 10), 40)
    senses = placed.word_of_sense == 9
    assert senses.sum() > 1
    everything = torch.cat([*contexts.values()]).double()
    rows = placed.rows[senses].double()
    logits = (everything - contexts[9].double().mean(0)) @ rows.t()
    assert logits.square().mean(0).sqrt().max() == pytest.approx(2, rel=0.01)  # 2 gap


def test_the_limit_holds_and_words_that_need_no_sense_get_none() -> None:
    contexts = {word: blobs(word) for word in range(4, 9)} | {9: torch.ones(60, 5)}
    sample = sample_of(contexts, 12)
    for total in (12, 13, 17, 40):
        placed = place_senses(sample, total, max_senses=3)
        senses = placed.word_of_sense.bincount(minlength=12)
        assert len(placed.word_of_sense) == min(total, 12 + 5 * 2)
        assert senses.max() <= 3
        assert (senses[[0, 1, 2, 3, 9, 10, 11]] == 1).all()
        shares = torch.zeros(12).index_add(0, placed.word_of_sense, placed.share)
        torch.testing.assert_close(shares, torch.ones(12))
    with pytest.raises(ValueError, match="12 words need a sense each"):
        place_senses(sample, 11)
