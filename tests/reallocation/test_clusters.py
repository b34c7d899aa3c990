"""Senses on the clusters of contexts: the sample, the placement, and the policy of a layer."""

import copy
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from torch import Tensor

from fairseq_kerbs import clusters
from fairseq_kerbs.clusters import ContextSample, cluster, place_senses, place_word, whiten
from fairseq_kerbs.kernels import kernel_logits
from fairseq_kerbs.output_layers import KerbsOutputLayer
from fairseq_kerbs.reallocation import ReallocationSettings
from fairseq_kerbs.reallocation.clusters import joined_senses, spare_senses

DIM, WORDS = 6, 8


def layer_of(senses: int = 16, seed: int = 0, **options: Any) -> KerbsOutputLayer:
    torch.manual_seed(seed)
    options |= {"biased": True, "sense_init": "spare", "init_scale": 2.0}
    return KerbsOutputLayer(DIM + 1, WORDS, senses, **options)


def contexts_of(number: int = 600, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Contexts with a 1, and words: 4 has two clusters, 5 three, 6 one, 7 few, 0 to 3 none."""
    g = torch.Generator().manual_seed(seed)
    words = torch.tensor([4, 5, 6])[torch.arange(number) % 3]
    words[:20] = 7
    centers = 5.0 * F.normalize(torch.randn(WORDS, 3, DIM, generator=g), dim=2)
    which = (torch.rand(number, generator=g) * torch.tensor([1, 1, 1, 1, 2, 3, 1, 1])[words]).long()
    points = centers[words, which] + 0.3 * torch.randn(number, DIM, generator=g)
    return F.pad(points, (0, 1), value=1.0), words


def train(layer: KerbsOutputLayer, h: Tensor, words: Tensor, updates: int = 3) -> None:
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
    for _ in range(updates):
        optimizer.zero_grad()
        layer.nll(h, words).backward()
        optimizer.step()
        layer.update_statistics(1e-3)


def place(layer: KerbsOutputLayer, h: Tensor, words: Tensor) -> None:
    layer.start_sampling(special=4)
    with torch.no_grad():
        layer.nll(h, words)
    layer.update_statistics(1e-3)
    layer.reallocate("clusters")


def test_spare_senses_change_no_probability_and_get_no_gradient() -> None:
    layer = layer_of()
    single = KerbsOutputLayer(DIM + 1, WORDS, WORDS, biased=True)
    single.weight.data = layer.weight.data[:WORDS].clone()
    single.theta.data = layer.theta.data[:WORDS].clone()
    h, words = contexts_of()
    torch.testing.assert_close(layer.log_probs(h), single.log_probs(h))
    (grad,) = torch.autograd.grad(layer.nll(h, words), layer.weight)
    assert grad[WORDS:].abs().max() < 1e-8 < grad[:WORDS].abs().max()
    spare = spare_senses(layer.weight.detach(), layer.word_of_sense, WORDS)
    assert spare.tolist() == [False] * WORDS + [True] * 8


def test_words_get_as_many_senses_as_their_contexts_have_clusters() -> None:
    layer, (h, words) = layer_of(WORDS + 3), contexts_of()
    train(layer, h, words)
    before, mass = layer.weight.detach().clone(), layer_mass(layer, h, words)
    place(layer, h, words)
    assert layer.sample is None
    spare = spare_senses(layer.weight.detach(), layer.word_of_sense, WORDS)
    counts = torch.bincount(layer.word_of_sense[~spare], minlength=WORDS)
    assert counts.tolist() == [1, 1, 1, 1, 2, 3, 1, 1]
    torch.testing.assert_close(layer.weight[[0, 1, 2, 3, 6, 7]], before[[0, 1, 2, 3, 6, 7]])
    for word in (4, 5):  # the mean of the log mass stays, each sense is the top one somewhere
        here, senses = words == word, (layer.word_of_sense == word).nonzero().squeeze(1)
        after = layer_mass(layer, h, words)
        assert float(after[here].mean()) == pytest.approx(float(mass[here].mean()), abs=2e-3)
        assert len(layer.sense_logits(h[here], senses).argmax(1).unique()) == len(senses)
        assert (layer.theta[senses] == layer.kernel.moved_theta).all()
        assert layer.usage[senses].sum() > 0
    assert layer.usage[spare].sum() == 0


def layer_mass(layer: KerbsOutputLayer, h: Tensor, words: Tensor) -> Tensor:
    """Log mass of each context's word, [n]."""
    logits = layer.sense_logits(h, torch.arange(layer.total_senses)).detach()
    return logits.where(layer.word_of_sense == words.unsqueeze(1), -torch.inf).logsumexp(1)


@pytest.mark.parametrize("kernel", ["lin", "kerbs"])
def test_joined_senses(kernel: str) -> None:
    """The mean of the log mass stays. For ``lin`` the vector is the mean by the posterior."""
    layer, h = layer_of(kernel=kernel, seed=3), contexts_of()[0].double()
    weight, theta = layer.weight.detach().double()[4:7], layer.theta.detach().double()[4:7]
    vector, apart = joined_senses(h, weight, theta, layer.kernel)
    assert apart > 0
    mass = kernel_logits(h, weight, theta, kernel).logsumexp(1)
    torch.testing.assert_close((h @ vector).mean(), mass.mean())
    if kernel == "lin":
        posterior = (h @ weight.t()).softmax(1).mean(0)
        torch.testing.assert_close(vector[:-1], (posterior @ weight)[:-1])
        alone, apart = joined_senses(h, weight[:1], theta[:1], layer.kernel)
        torch.testing.assert_close(alone, weight[0])
        assert apart == pytest.approx(0.0, abs=1e-6)


def test_a_limit_and_a_second_placement() -> None:
    """The larger fall of distortion wins the only sense to give, and keeps it."""
    layer, (h, words) = layer_of(WORDS + 1), contexts_of()
    train(layer, h, words)
    place(layer, h, words)
    spare = spare_senses(layer.weight.detach(), layer.word_of_sense, WORDS)
    first = torch.bincount(layer.word_of_sense[~spare], minlength=WORDS)
    assert sorted(first.tolist()) == [1] * (WORDS - 1) + [2]
    alone = words != int(first.argmax())
    place(layer, h[alone], words[alone])
    second = torch.bincount(layer.word_of_sense, minlength=WORDS)
    assert torch.equal(first, second)  # too few contexts: it keeps its senses, and none is left
    assert (layer.senses_per_word() <= layer.max_senses).all()


def test_a_checkpoint_holds_the_sample_and_resumes_exactly() -> None:
    layer, (h, words) = layer_of(), contexts_of()
    layer.start_sampling(special=4)
    train(layer, h[:300], words[:300], 2)
    state = copy.deepcopy(layer.state_dict())
    assert state["sample_kept"].dtype == torch.float16
    other = layer_of(seed=9)
    other.load_state_dict(state)
    for each in (layer, other):
        train(each, h[300:], words[300:], 2)
        each.reallocate("clusters")
    torch.testing.assert_close(layer.state_dict(), other.state_dict(), rtol=0, atol=0)
    assert not any(name.startswith("sample") for name in layer.state_dict())
    layer.load_state_dict(other.state_dict())
    assert layer.sample is None


@pytest.mark.parametrize("seed", range(4))
def test_many_placements_keep_every_number(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each word keeps 1 to K senses, all of them together stay M, words without contexts theirs."""
    monkeypatch.setattr(clusters, "LEAST_CONTEXTS", 6)
    monkeypatch.setattr(clusters, "CONTEXTS_A_SENSE", 3)
    most = 2 + seed // 2
    layer = layer_of(WORDS + 2 * seed, seed, max_senses=most)
    for number in range(5):
        words = torch.randint(number % 3, WORDS, (90,))
        before = layer.weight.detach()[layer.word_of_sense == 0].clone()
        place(layer, F.pad(4 * torch.randn(90, DIM), (0, 1), value=1.0), words)
        counts = layer.senses_per_word()
        assert int(counts.sum()) == WORDS + 2 * seed
        assert 1 <= int(counts.min()) <= int(counts.max()) <= most
        spare = spare_senses(layer.weight.detach(), layer.word_of_sense, WORDS)
        assert torch.bincount(layer.word_of_sense[~spare], minlength=WORDS).min() == 1
        assert all(value.isfinite().all() for value in layer.state_dict().values())
        after = layer.weight.detach()[layer.word_of_sense == 0]
        assert (after == before[0]).all(1).any()  # a special symbol


def test_senses_that_have_parted_are_not_drawn_together() -> None:
    """A placement after a training leaves the loss nearly as it is, where senses are needed."""
    layer, (h, words) = layer_of(WORDS + 3), contexts_of()
    train(layer, h, words, 5)
    place(layer, h, words)
    train(layer, h, words, 150)
    trained = float(layer.nll(h, words, reduction="mean"))
    place(layer, h, words)
    assert float(layer.nll(h, words, reduction="mean")) < trained + 0.02


def test_a_larger_gap_parts_senses_more() -> None:
    spread = []
    for gap in (0.5, 4.0):
        layer, (h, words) = layer_of(WORDS + 3), contexts_of()
        layer.start_sampling(special=4)
        train(layer, h, words)
        layer.reallocate("clusters", ReallocationSettings(gap=gap))
        own = layer.weight.detach()[layer.word_of_sense == 5, :-1]
        spread.append(float((own - own.mean(0)).norm()))
    assert spread[1] > 2 * spread[0]


def test_bad_use() -> None:
    with pytest.raises(ValueError, match=r"need biases: give `biased`"):
        KerbsOutputLayer(DIM, WORDS, 12, sense_init="spare")
    with pytest.raises(ValueError, match=r"kerbs or lin, not rbf"):
        KerbsOutputLayer(DIM, WORDS, 12, biased=True, kernel="rbf").start_sampling()
    with pytest.raises(ValueError, match=r"call start_sampling\(\) before"):
        layer_of().reallocate("clusters")


def blobs(seed: int, sizes: tuple[int, ...] = (70, 40, 30), dim: int = 5) -> Tensor:
    """Contexts around as many centers."""
    draw = partial(torch.randn, generator=torch.Generator().manual_seed(seed))
    return torch.cat([4.0 * draw(dim) + draw(size, dim) for size in sizes])


def sample_of(contexts: dict[int, Tensor], words: int, **options: int) -> ContextSample:
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
    contexts[4][0], contexts[7][0] = 1e6, -1e6  # too large for float16
    sample = ContextSample(torch.full((9,), 60), 5, most=60, memory=10**6)
    words = torch.tensor([4, 7]).repeat(60)
    sample.add(words[:50], torch.stack([contexts[4], contexts[7]], 1).flatten(0, 1)[:50])
    sample.add(words[50:], torch.stack([contexts[4], contexts[7]], 1).flatten(0, 1)[50:])
    for word, right in contexts.items():
        right = right.clamp(-65504, 65504)
        torch.testing.assert_close(sample.contexts(word), right, rtol=1e-3, atol=1e-2)
    assert len(sample.contexts(5)) == 0
    assert len(sample.state()["kept"]) == 120


def test_every_context_is_as_likely_to_be_kept() -> None:
    """Of 200 numbers 50 stay; their mean over many samples is that of all."""
    numbers, hits = torch.arange(200.0).unsqueeze(1), torch.zeros(200)

    def draw(seed: int) -> Tensor:
        sample = ContextSample(torch.tensor([200]), 1, 50, 10**6, special=0, seed=seed)
        for part in numbers.split(33):
            sample.add(torch.zeros(len(part), dtype=torch.long), part)
        return sample.contexts(0).long().squeeze(1)

    for seed in range(300):
        hits[kept := draw(seed)] += 1
        assert len(kept.unique()) == 50
    assert torch.equal(draw(299), kept)
    # each is kept with probability ¼: 75 ± 7.5 of 300
    assert hits.view(10, 20).mean(1).sub(75).abs().max() < 6


def test_memory_is_shared_and_bounded() -> None:
    counts = torch.tensor([900, 900, 900, 900, 40, 39, 5000, 2000])
    for rows, sizes in ((1001, [40, 0, 480, 480]), (120, [40, 0, 40, 40])):
        sample = ContextSample(counts, dim=8, most=600, memory=2 * 8 * rows)
        assert sample.size.tolist() == [0] * 4 + sizes
        assert sample.kept.nbytes <= 2 * 8 * rows
    with pytest.raises(ValueError, match=r"^1.9e-06 GB .* 3 words need 1.9e-06 GB for 40 contexts"):
        ContextSample(counts, dim=8, most=600, memory=2 * 8 * 119)


FALLS = st.lists(st.floats(0.5, 100.0), max_size=3)


@given(st.dictionaries(st.integers(4, 30), FALLS, max_size=8), st.integers(0, 12))
def test_senses_go_where_distortion_falls_most(falls: dict[int, list[float]], extra: int) -> None:
    given_ = clusters.allocate(falls, extra)
    assert sum(given_.values()) == min(extra, sum(map(len, falls.values())))
    assert all(1 <= number <= len(falls[word]) for word, number in given_.items())
    # a later sense of a word never counts more than the ones before it
    lowest = {word: np.minimum.accumulate(fall) for word, fall in falls.items()}
    taken = [lowest[word][number - 1] for word, number in given_.items()]
    waiting = [fall[n] for word, fall in lowest.items() if (n := given_[word]) < len(fall)]
    assert min(taken, default=np.inf) >= max(waiting, default=0.0)


def by_hand(
    points: np.ndarray, labels: np.ndarray, gap: float, others: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The formulas, term by term in numpy."""
    centers = np.stack([points[labels == k].mean(0) for k in np.unique(labels)])
    mean, inside = points.mean(0), points - centers[labels]
    scatter = inside.T @ inside / len(points)
    dim = len(scatter)
    ridge = clusters.SHRINKAGE * np.trace(scatter) / dim * np.eye(dim)
    inverse = np.linalg.inv((1 - clusters.SHRINKAGE) * scatter + ridge)
    ahead = max((c - mean) @ inverse @ (c - mean) for c in centers)
    spread = max(np.sqrt((((others - mean) @ inverse @ (c - mean)) ** 2).mean()) for c in centers)
    flat, share = gap / max(gap, ahead, spread / 2), np.bincount(labels) / len(points)
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
    points, others = blobs(seed), scale * blobs(seed + 1)
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


def test_words_of_other_sizes_beside_it_do_not_change_the_clusters_of_a_word() -> None:
    """Clusters are those of the nearest center, nearly as compact as those of scikit-learn."""
    sizes: list[tuple[int, ...]] = [(70, 40, 30), (25, 20), (30,), (90, 90)]
    contexts = [blobs(seed, each) for seed, each in enumerate(sizes)]
    for points, found in zip(contexts, cluster(contexts, 4), strict=True):
        assert len(found) == min(4, len(points) // clusters.CONTEXTS_A_SENSE)
        for k, (labels, mean) in enumerate(found, 1):
            assert torch.equal(labels, cluster([points], 4)[0][k - 1][0])
            best = KMeans(k, n_init=20, random_state=0).fit(points.numpy()).inertia_ / len(points)
            assert best * 0.9999 < mean < best * 1.02
            centers = torch.stack([points[labels == i].mean(0) for i in range(k)])
            distances = torch.cdist(points.double(), centers.double())
            assert torch.equal(distances.argmin(1), labels)
            assert distances.square().amin(1).mean().item() == pytest.approx(mean, rel=1e-5)


def test_a_sense_goes_to_the_word_whose_distortion_falls_most_and_not_to_the_widest() -> None:
    wide, parted = torch.randn(140, 5, generator=torch.Generator().manual_seed(1)), torch.eye(5)[:2]
    contexts = {4: wide, 5: 2.0 * parted.repeat(70, 1) + 0.1 * wide}
    assert place_senses(sample_of(contexts, 9), 10).word_of_sense[-1] == 5
    for scale in (1.0, 0.01):
        basis, _ = whiten(sample_of({4: scale * wide}, 9))
        shrunk = torch.linalg.inv(basis @ basis.t())  # the scatter, over its mean
        assert shrunk.trace().item() == pytest.approx(5, rel=1e-3)


def test_equal_contexts_get_one_sense() -> None:
    assert len(cluster([torch.ones(90, 3)], 4)[0]) == 1
    assert len(cluster([1.0 + 1e-7 * blobs(0)], 4)[0]) == 1  # equal but for rounding
    twice = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).repeat(50, 1)
    (found,) = cluster([twice], 4)
    assert len(found) == 2
    rows, bias, _ = place_word(twice, found[1][0], 1.0, second_moments(twice))
    assert torch.isfinite(rows).all()
    assert (twice.double() @ rows.t() + bias).argmax(1).unique().tolist() == [0, 1]


def test_directions_in_which_all_words_vary_part_no_senses() -> None:
    """A word has two meanings, and the contexts of all words vary more along something else."""
    draw, noise = torch.Generator().manual_seed(1), torch.tensor([0.5, 0.5, 3.0, 0.5])
    contexts = {word: torch.randn(100, 4, generator=draw) * noise for word in range(4, 9)}
    contexts[4][:50, 0] += 4.0
    sample = sample_of(contexts, 9)
    basis, moments = whiten(sample)
    kept = list(map(sample.contexts, contexts))
    torch.testing.assert_close(moments / 500, second_moments(torch.cat(kept)))
    aside = torch.cat([x - x.mean(0) for x in kept]).double()
    scatter = aside.t() @ aside
    level = scatter.trace() / 4 * torch.eye(4, dtype=torch.float64)
    shrunk = (1 - clusters.WHITENING) * scatter + clusters.WHITENING * level
    met = basis.double().t() @ shrunk @ basis.double()
    torch.testing.assert_close(met / met[0, 0], torch.eye(4).double(), rtol=1e-4, atol=1e-4)

    def parted(points: Tensor) -> bool:
        labels = cluster([points], 2)[0][1][0]
        return bool((labels[:50] == labels[0]).all() and (labels[50:] != labels[0]).all())

    assert parted(sample.contexts(4) @ basis)
    assert not parted(sample.contexts(4))
    assert torch.allclose(whiten(sample_of({4: torch.ones(60, 3)}, 9))[0], 2**0.5 * torch.eye(3))
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
    everything, rows = torch.cat([*contexts.values()]).double(), placed.rows[senses].double()
    logits = (everything - contexts[9].double().mean(0)) @ rows.t()
    assert logits.square().mean(0).sqrt().max() == pytest.approx(2, rel=0.01)  # 2 gap


def test_the_limit_holds_and_words_that_need_no_sense_get_none() -> None:
    sample = sample_of({word: blobs(word) for word in range(4, 9)} | {9: torch.ones(60, 5)}, 12)
    for total in (12, 13, 17, 40):
        placed = place_senses(sample, total, max_senses=3)
        senses = placed.word_of_sense.bincount(minlength=12)
        assert len(placed.word_of_sense) == min(total, 12 + 5 * 2)
        assert senses.max() <= 3
        assert (senses[[0, 1, 2, 3, 9, 10, 11]] == 1).all()
        shares = torch.zeros(12).index_add(0, placed.word_of_sense, placed.share)
        torch.testing.assert_close(shares, torch.ones(12))
    sample.seen[6] = 2000  # of which the sample holds a part
    assert place_senses(sample, 14).word_of_sense[12:].tolist() == [6, 6]
    assert whiten(sample)[1][-1, -1].item() == pytest.approx(int(sample.seen.sum()))
    assert place_senses(sample, 40).word_of_sense.bincount().max() == 4
    few = place_senses(sample_of({4: blobs(4, (30,))}, 9), 12)
    assert few.word_of_sense.tolist() == [*range(9)]
    assert not few.rows.any()
