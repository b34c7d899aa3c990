"""Numbers of senses, and placed senses."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fairseq_kerbs.reallocation.context_sample import ContextSample
from fairseq_kerbs.reallocation.kmeans import cluster
from fairseq_kerbs.reallocation.placement import (
    SHRINKAGE,
    WHITENING,
    Placement,
    PlacementSettings,
    distribute_senses,
    place_senses,
    place_word,
    whiten,
)
from tests.helpers.contexts import blobs


def sample_of(contexts: dict[int, Tensor], words: int, **options: int) -> ContextSample:
    counts = torch.zeros(words, dtype=torch.long)
    for word, several in contexts.items():
        counts[word] = len(several)
    dim = next(iter(contexts.values())).shape[1]
    sample = ContextSample(counts, dim, **{"most": 600, "memory": 10**8, "special": 4} | options)
    for word, several in contexts.items():
        sample.add(torch.full((len(several),), word), several)
    return sample


def place(sample: ContextSample, total_senses: int, max_senses: int = 4) -> Placement:
    return place_senses(sample, PlacementSettings(total_senses, max_senses))


DROPS = st.lists(st.floats(0.5, 100.0), max_size=3)


@given(st.dictionaries(st.integers(4, 30), DROPS, max_size=8), st.integers(0, 12))
def test_senses_go_where_distortion_falls_most(drops: dict[int, list[float]], budget: int) -> None:
    extra = distribute_senses(drops, budget)
    assert sum(extra.values()) == min(budget, sum(map(len, drops.values())))
    assert all(1 <= number <= len(drops[word]) for word, number in extra.items())
    # a later sense of a word never counts more than the ones before it
    lowest = {word: np.minimum.accumulate(of_word) for word, of_word in drops.items()}
    taken = [lowest[word][number - 1] for word, number in extra.items()]
    waiting = [
        of_word[extra[word]] for word, of_word in lowest.items() if extra[word] < len(of_word)
    ]
    assert min(taken, default=np.inf) >= max(waiting, default=0.0)


def by_hand(
    points: np.ndarray, labels: np.ndarray, gap: float, others: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The formulas, term by term in numpy."""
    centers = np.stack([points[labels == k].mean(0) for k in np.unique(labels)])
    mean = points.mean(0)
    inside = points - centers[labels]
    scatter = inside.T @ inside / len(points)
    dim = len(scatter)
    ridge = SHRINKAGE * np.trace(scatter) / dim * np.eye(dim)
    inverse = np.linalg.inv((1 - SHRINKAGE) * scatter + ridge)
    ahead = max((c - mean) @ inverse @ (c - mean) for c in centers)
    spread = max(np.sqrt((((others - mean) @ inverse @ (c - mean)) ** 2).mean()) for c in centers)
    flat = gap / max(gap, ahead, spread / 2)
    share = np.bincount(labels) / len(points)
    rows = np.stack([flat * inverse @ (c - mean) for c in centers])
    bias = np.array(
        [
            flat * (0.5 * (mean @ inverse @ mean - c @ inverse @ c) + np.log(p))
            for c, p in zip(centers, share, strict=True)
        ]
    )
    return rows, bias - np.log(np.exp(points @ rows.T + bias).sum(1)).mean()


def second_moments(contexts: Tensor) -> Tensor:
    ones = torch.cat([contexts, torch.ones(len(contexts), 1)], 1).double()
    return ones.t() @ ones / len(ones)


@given(
    st.integers(0, 50),
    st.integers(1, 4),
    st.sampled_from([0.3, 1.0, 4.0, 1e9]),
    st.sampled_from([0.1, 1.0, 50.0]),
)
@settings(deadline=None, max_examples=27)
def test_a_placement_is_the_formula(seed: int, senses: int, gap: float, scale: float) -> None:
    points = blobs(seed)
    others = scale * blobs(seed + 1)
    labels = cluster([points], 4)[0][senses - 1][0]
    rows, bias, share = place_word(points, labels, gap, second_moments(others))
    right = by_hand(points.double().numpy(), labels.numpy(), gap, others.double().numpy())
    np.testing.assert_allclose(rows.numpy(), right[0], rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(bias.numpy(), right[1], rtol=1e-6, atol=1e-7)
    logits = points.double() @ rows.t() + bias
    assert logits.logsumexp(1).mean().item() == pytest.approx(0.0, abs=1e-9)
    assert share.sum().item() == pytest.approx(1.0)
    whole = place_word(points, labels, 1e9, second_moments(others))
    assert torch.equal(logits.argmax(1), (points.double() @ whole[0].t() + whole[1]).argmax(1))


def test_a_sense_goes_to_the_word_whose_distortion_falls_most_and_not_to_the_widest() -> None:
    wide = torch.randn(140, 5, generator=torch.Generator().manual_seed(1))
    parted = torch.eye(5)[:2]
    contexts = {4: wide, 5: 2.0 * parted.repeat(70, 1) + 0.1 * wide}
    assert place(sample_of(contexts, 9), 10).word_of_sense[-1] == 5
    for scale in (1.0, 0.01):
        basis, _ = whiten(sample_of({4: scale * wide}, 9))
        shrunk = torch.linalg.inv(basis @ basis.t())  # the scatter, over its mean
        assert shrunk.trace().item() == pytest.approx(5, rel=1e-3)


def test_contexts_without_scatter_in_their_clusters_are_told_apart() -> None:
    twice = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).repeat(50, 1)
    (found,) = cluster([twice], 4)
    rows, bias, _ = place_word(twice, found[1][0], 1.0, second_moments(twice))
    assert torch.isfinite(rows).all()
    assert (twice.double() @ rows.t() + bias).argmax(1).unique().tolist() == [0, 1]


def test_directions_in_which_all_words_vary_part_no_senses() -> None:
    """A word has two meanings, and the contexts of all words vary more along something else."""
    draw = torch.Generator().manual_seed(1)
    noise = torch.tensor([0.5, 0.5, 3.0, 0.5])
    contexts = {word: torch.randn(100, 4, generator=draw) * noise for word in range(4, 9)}
    contexts[4][:50, 0] += 4.0
    sample = sample_of(contexts, 9)
    basis, moments = whiten(sample)
    kept = list(map(sample.contexts, contexts))
    torch.testing.assert_close(moments / 500, second_moments(torch.cat(kept)))
    aside = torch.cat([x - x.mean(0) for x in kept]).double()
    scatter = aside.t() @ aside
    level = scatter.trace() / 4 * torch.eye(4, dtype=torch.float64)
    shrunk = (1 - WHITENING) * scatter + WHITENING * level
    met = basis.double().t() @ shrunk @ basis.double()
    torch.testing.assert_close(met / met[0, 0], torch.eye(4).double(), rtol=1e-4, atol=1e-4)

    def parted(points: Tensor) -> bool:
        labels = cluster([points], 2)[0][1][0]
        return bool((labels[:50] == labels[0]).all() and (labels[50:] != labels[0]).all())

    assert parted(sample.contexts(4) @ basis)
    assert not parted(sample.contexts(4))
    assert torch.allclose(whiten(sample_of({4: torch.ones(60, 3)}, 9))[0], 2**0.5 * torch.eye(3))
    placed = place(sample, 10)
    assert placed.word_of_sense[-1] == 4
    logits = sample.contexts(4) @ placed.rows[[4, 9]].t() + placed.bias[[4, 9]]
    assert logits[:50].argmax(1).unique().tolist() != logits[50:].argmax(1).unique().tolist()


def test_a_word_with_nearly_equal_contexts_does_not_disturb_other_words() -> None:
    """It hardly varies, so discriminants of it alone are huge in the contexts of other words."""
    contexts = {word: blobs(word) for word in range(4, 9)}
    contexts[9] = 1.0 + 0.01 * blobs(9, (60, 60))
    placed = place(sample_of(contexts, 10), 40)
    senses = placed.word_of_sense == 9
    assert senses.sum() > 1
    everything = torch.cat([*contexts.values()]).double()
    rows = placed.rows[senses].double()
    logits = (everything - contexts[9].double().mean(0)) @ rows.t()
    assert logits.square().mean(0).sqrt().max() == pytest.approx(2, rel=0.01)  # 2 gap


def test_the_limit_holds_and_words_that_need_no_sense_get_none() -> None:
    sample = sample_of({word: blobs(word) for word in range(4, 9)} | {9: torch.ones(60, 5)}, 12)
    for total in (12, 13, 17, 40):
        placed = place(sample, total, max_senses=3)
        senses = placed.word_of_sense.bincount(minlength=12)
        assert len(placed.word_of_sense) == min(total, 12 + 5 * 2)
        assert senses.max() <= 3
        assert (senses[[0, 1, 2, 3, 9, 10, 11]] == 1).all()
        shares = torch.zeros(12).index_add(0, placed.word_of_sense, placed.share)
        torch.testing.assert_close(shares, torch.ones(12))
    sample.seen[6] = 2000  # of which the sample holds a part
    assert place(sample, 14).word_of_sense[12:].tolist() == [6, 6]
    assert whiten(sample)[1][-1, -1].item() == pytest.approx(int(sample.seen.sum()))
    assert place(sample, 40).word_of_sense.bincount().max() == 4
    few = place(sample_of({4: blobs(4, (30,))}, 9), 12)
    assert few.word_of_sense.tolist() == [*range(9)]
    assert not few.rows.any()
