"""The policy ``clusters`` in an output layer: spare senses, placements, and a resume."""

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_kerbs.kernels import kernel_logits
from fairseq_kerbs.output_layers import KerbsOutputLayer
from fairseq_kerbs.reallocation import Clusters, ReallocationSettings, context_sample, kmeans
from fairseq_kerbs.reallocation.clusters import joined_senses, spare_senses

DIM = 6
WORDS = 8


def layer_of(senses: int = 16, seed: int = 0, **options: Any) -> KerbsOutputLayer:
    torch.manual_seed(seed)
    options |= {"biased": True, "policy": "clusters", "init_scale": 2.0}
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


def spare_in(layer: KerbsOutputLayer) -> Tensor:
    return spare_senses(layer.weight.detach(), layer.usage, layer.word_of_sense, WORDS)


def test_spare_senses_change_no_probability_and_get_no_gradient() -> None:
    layer = layer_of()
    single = KerbsOutputLayer(DIM + 1, WORDS, WORDS, biased=True)
    single.weight.data = layer.weight.data[:WORDS].clone()
    single.theta.data = layer.theta.data[:WORDS].clone()
    h, words = contexts_of()
    torch.testing.assert_close(layer.log_probs(h), single.log_probs(h))
    (grad,) = torch.autograd.grad(layer.nll(h, words), layer.weight)
    assert grad[WORDS:].abs().max() < 1e-8 < grad[:WORDS].abs().max()
    spare = spare_in(layer)
    assert spare.tolist() == [False] * WORDS + [True] * 8
    assert layer.senses_per_word().tolist() == [1] * WORDS


def test_live_senses_whose_biases_are_far_apart_are_not_spare() -> None:
    """The bias of a placed sense makes up for the mean of its word's contexts, here a large one."""
    layer = layer_of(WORDS + 1)
    h = torch.randn(600, DIM + 1) * 0.3
    h[:, 0] += 1.0 - 2.0 * (torch.arange(600) % 2)  # two clusters
    h[:, 0] += 60.0
    h[:, -1] = 1.0
    layer.theta.data.zero_()
    place(layer, h, torch.full((600,), 4))
    senses = (layer.word_of_sense == 4).nonzero().squeeze(1)
    biases = layer.weight.detach()[senses, -1]
    assert len(senses) == 2
    assert abs(biases[0] - biases[1]) > 15.0
    assert len(layer.sense_logits(h, senses).argmax(1).unique()) == 2
    assert layer.senses_per_word().tolist() == [1, 1, 1, 1, 2, 1, 1, 1]


def test_spare_senses_of_a_word_that_has_long_not_occurred() -> None:
    """Its usage has decayed to where float32 rounds, and a quotient may be anything."""
    layer = layer_of()
    for usage in (0.0, 1e-44, 1e-38):
        layer.usage.fill_(1e-44)
        layer.usage[:WORDS] = usage
        assert spare_in(layer).tolist() == [False] * WORDS + [True] * 8


def test_words_get_as_many_senses_as_their_contexts_have_clusters() -> None:
    layer = layer_of(WORDS + 3)
    (h, words) = contexts_of()
    train(layer, h, words)
    before = layer.weight.detach().clone()
    mass = layer_mass(layer, h, words)
    place(layer, h, words)
    assert layer.sample is None
    spare = spare_in(layer)
    counts = torch.bincount(layer.word_of_sense[~spare], minlength=WORDS)
    assert counts.tolist() == layer.senses_per_word().tolist() == [1, 1, 1, 1, 2, 3, 1, 1]
    torch.testing.assert_close(layer.weight[[0, 1, 2, 3, 6, 7]], before[[0, 1, 2, 3, 6, 7]])
    for word in (4, 5):  # the mean of the log mass stays, each sense is the top one somewhere
        here = words == word
        senses = (layer.word_of_sense == word).nonzero().squeeze(1)
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
    layer = layer_of(kernel=kernel, seed=3)
    h = contexts_of()[0].double()
    weight = layer.weight.detach().double()[4:7]
    theta = layer.theta.detach().double()[4:7]
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
    layer = layer_of(WORDS + 1)
    (h, words) = contexts_of()
    train(layer, h, words)
    place(layer, h, words)
    spare = spare_in(layer)
    first = torch.bincount(layer.word_of_sense[~spare], minlength=WORDS)
    assert sorted(first.tolist()) == [1] * (WORDS - 1) + [2]
    alone = words != int(first.argmax())
    place(layer, h[alone], words[alone])
    second = torch.bincount(layer.word_of_sense, minlength=WORDS)
    assert torch.equal(first, second)  # too few contexts: it keeps its senses, and none is left
    assert (layer.senses_per_word() <= layer.max_senses).all()


def test_a_checkpoint_holds_the_sample_and_resumes_exactly() -> None:
    layer = layer_of()
    (h, words) = contexts_of()
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
    layer.start_sampling()
    layer.load_state_dict(other.state_dict())
    assert layer.sample is None


@pytest.mark.parametrize("seed", range(4))
def test_many_placements_keep_every_number(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each word keeps 1 to K senses, all of them together stay M, words without contexts theirs."""
    monkeypatch.setattr(context_sample, "LEAST_CONTEXTS", 6)
    monkeypatch.setattr(kmeans, "CONTEXTS_A_SENSE", 3)
    most = 2 + seed // 2
    layer = layer_of(WORDS + 2 * seed, seed, max_senses=most)
    for number in range(5):
        words = torch.randint(number % 3, WORDS, (90,))
        before = layer.weight.detach()[layer.word_of_sense == 0].clone()
        place(layer, F.pad(4 * torch.randn(90, DIM), (0, 1), value=1.0), words)
        counts = layer.senses_per_word()
        assert int(counts.sum()) == WORDS + 2 * seed
        assert 1 <= int(counts.min()) <= int(counts.max()) <= most
        spare = spare_in(layer)
        assert torch.bincount(layer.word_of_sense[~spare], minlength=WORDS).min() == 1
        assert all(value.isfinite().all() for value in layer.state_dict().values())
        after = layer.weight.detach()[layer.word_of_sense == 0]
        assert (after == before[0]).all(1).any()  # a special symbol


def test_senses_that_have_parted_are_not_drawn_together() -> None:
    """A placement after a training leaves the loss nearly as it is, where senses are needed."""
    layer = layer_of(WORDS + 3)
    (h, words) = contexts_of()
    train(layer, h, words, 5)
    place(layer, h, words)
    train(layer, h, words, 150)
    trained = float(layer.nll(h, words, reduction="mean"))
    place(layer, h, words)
    assert float(layer.nll(h, words, reduction="mean")) < trained + 0.02


def test_a_larger_gap_parts_senses_more() -> None:
    spread = []
    for gap in (0.5, 4.0):
        layer = layer_of(WORDS + 3)
        (h, words) = contexts_of()
        layer.start_sampling(special=4)
        train(layer, h, words)
        layer.reallocate("clusters", ReallocationSettings(cluster_gap=gap))
        own = layer.weight.detach()[layer.word_of_sense == 5, :-1]
        spread.append(float((own - own.mean(0)).norm()))
    assert spread[1] > 2 * spread[0]


def test_bad_use() -> None:
    with pytest.raises(ValueError, match=r"need biases: give `biased`"):
        KerbsOutputLayer(DIM, WORDS, 12, policy="clusters")
    with pytest.raises(ValueError, match=r"kerbs or lin, not rbf"):
        KerbsOutputLayer(DIM, WORDS, 12, biased=True, kernel="rbf", policy=Clusters())
    with pytest.raises(ValueError, match=r"call start_sampling\(\) before"):
        layer_of().reallocate("clusters")
    # a layer that was made for another policy, which has sampled contexts in vain
    for biased, kernel, message in ((False, "lin", "need biases"), (True, "rbf", "not rbf")):
        layer = KerbsOutputLayer(DIM, WORDS, 12, biased=biased, kernel=kernel)
        layer.start_sampling()
        with pytest.raises(ValueError, match=message):
            layer.reallocate("clusters")
