"""Composed input embeddings (Eq. 6–7): weights, positions, padding, gradients."""

import copy
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

from fairseq_kerbs.kernels import KERNELS, build_kernel
from fairseq_kerbs.output_layers import KerbsOutputLayer, SoftmaxOutputLayer
from fairseq_kerbs.output_layers.base import prior_weights
from fairseq_kerbs.output_layers.composition import ComposedEmbedding, SeparateEmbedding
from fairseq_kerbs.output_layers.kerbs import posterior_weights
from fairseq_kerbs.senses import build_sense_table, checksum_of
from tests.helpers.cli import Patch
from tests.helpers.reference import Problem, composed_sequence, make_problem, naive_logits

PAD = 1
WORDS = torch.tensor([[2, 5, 0, 9, 3, 3, 10], [4, 8, 8, 2, 1, 1, 1], [1, 1, 6, 7, 0, 5, 2]])


def make_layer(kernel: str = "kerbs") -> tuple[KerbsOutputLayer, Problem]:
    p = make_problem(theta_scale=0.7)
    layer = KerbsOutputLayer(7, 11, 29, kernel=kernel).double()
    with torch.no_grad():
        layer.weight.copy_(p.w)
        layer.theta.copy_(p.theta)
    state = layer.state_dict()
    state["inventory.word_of_sense"] = p.word_of_sense
    state["inventory.checksum"] = checksum_of(p.word_of_sense)
    state["inventory.usage"] = torch.rand(29) + 0.01
    layer.load_state_dict(state)
    return layer, p._replace(w=layer.weight, theta=layer.theta)


def test_prior_is_uniform_for_words_that_never_occurred_and_is_rounded_once() -> None:
    table = build_sense_table(torch.tensor([0, 0, 1, 1, 1, 2]), 3, 4)
    usage, third = torch.tensor([0.0, 0.0, 1e-40, 1e-41, 0.0, 0.5]), 1 / 3
    weights = prior_weights(usage[table.senses], table.mask)
    expected = torch.tensor([[0.5, 0.5, 0, 0], [third, third, third, 0], [1.0, 0, 0, 0]])
    torch.testing.assert_close(weights, expected)
    words = torch.tensor([[0, 2], [1, 1]])
    assert torch.equal(prior_weights(usage[table.senses[words]], table.mask[words]), weights[words])
    table, usage = build_sense_table(torch.arange(300) % 100, 100), torch.rand(300) ** 8
    used = usage[table.senses].double()
    assert torch.equal(
        prior_weights(usage[table.senses], table.mask), (used / used.sum(1, keepdim=True)).float()
    )


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_without_gradient_only_words_with_several_senses_are_composed(
    given: bool, bias: bool, monkeypatch: Patch
) -> None:
    """The result is the same to the last bit, also for padding and where no word has several."""
    layer, _ = make_layer()
    layer.biased = bias
    embed = ComposedEmbedding(layer, PAD)
    contexts = torch.randn(*WORDS.shape, 7, dtype=torch.float64) if given else None
    expected = embed.compose(embed.look_up(WORDS), contexts)
    composed: list[Tensor] = []
    look_up = embed.look_up

    def note(words: Tensor, prepare: bool = False) -> Any:
        composed.append(words)
        return look_up(words, prepare)

    monkeypatch.setattr(embed, "look_up", note)
    with torch.no_grad():
        assert torch.equal(embed(WORDS, contexts), expected)
        several = layer.senses_per_word()[WORDS].gt(1) & WORDS.ne(PAD)
        assert torch.equal(composed.pop(), WORDS[several])
        single = WORDS[~several]
        flat = None if contexts is None else contexts[~several]
        assert torch.equal(embed(single, flat), expected[~several])
    assert not any(len(words) for words in composed)
    assert len(single)
    embed(WORDS, contexts)  # with a gradient all words are
    assert composed[-1] is WORDS


@pytest.mark.parametrize("kernel", ["kerbs", "kerbs_released", "lin"])
def test_posterior_is_eq_7_from_the_softmax_over_all_senses(kernel: str) -> None:
    p = make_problem(theta_scale=3.0)
    table = build_sense_table(p.word_of_sense, 11, 4)
    own, mask = table.senses[p.target], table.mask[p.target]
    weights = posterior_weights(p.h, p.w[own], p.theta[own], mask, build_kernel(kernel))
    senses = naive_logits(*p.leaves, kernel).softmax(1)  # Eq. 5
    for t, word in enumerate(p.target.tolist()):
        mine = senses[t, p.word_of_sense == word]
        torch.testing.assert_close(weights[t, : len(mine)], mine / mine.sum(), rtol=1e-9, atol=0)
        assert (weights[t, len(mine) :] == 0).all()


def test_sequence_equals_the_recursion_position_by_position() -> None:
    layer, p = make_layer()
    embedding, features = ComposedEmbedding(layer, PAD), torch.randn(3, 7, 7, dtype=torch.float64)
    composed, usage = embedding.embed_sequence(WORDS, features), layer.usage.double()
    for row in range(3):
        expected = composed_sequence(p, usage, WORDS[row].tolist(), features[row], PAD)
        # usage, and so the prior, is float32
        torch.testing.assert_close(composed[row], expected, rtol=1e-6, atol=1e-6)
    assert (composed[WORDS == PAD] == 0).all()
    single = embedding.embed_sequence(WORDS[:, :1], features[:, :1])
    assert torch.equal(single, embedding(WORDS[:, :1]))
    prior = ComposedEmbedding(layer, PAD, posterior=False)
    assert torch.equal(prior.embed_sequence(WORDS, features), prior(WORDS))
    assert torch.equal(prior(WORDS, features), prior(WORDS))


@pytest.mark.parametrize("kernel", ["kerbs", "kerbs_released", "lin"])
def test_gradients_reach_rows_theta_and_context(kernel: str) -> None:
    p = make_problem(theta_scale=0.7)
    table = build_sense_table(p.word_of_sense, 11, 4)
    own, mask = table.senses[p.target[:5]], table.mask[p.target[:5]]

    def compose(h: Tensor, w: Tensor, theta: Tensor) -> Tensor:
        rows = w[own]
        weights = posterior_weights(h, rows, theta[own], mask, build_kernel(kernel))
        return (weights.unsqueeze(-2) @ rows).squeeze(-2)

    leaves = (p.h[:5].detach().clone().requires_grad_(), p.w, p.theta)
    assert torch.autograd.gradcheck(compose, leaves, atol=1e-6)
    layer, _ = make_layer(kernel)
    embedding = ComposedEmbedding(layer, PAD)
    features = torch.randn(3, 7, 7, dtype=torch.float64, requires_grad=True)
    composed, inputs = embedding.embed_sequence(WORDS, features), [features, *layer.parameters()]
    gradients = torch.autograd.grad((composed * torch.randn_like(composed)).sum(), inputs)
    by_features, by_rows, *by_theta = (gradient != 0 for gradient in gradients)
    words = WORDS[WORDS != PAD].unique()
    used = layer.table.senses[words][layer.table.mask[words]].unique()
    assert torch.equal(by_rows.any(1).nonzero().squeeze(1), used)
    assert by_features[0, :6].any(1).sum() >= 4  # not behind words of a single sense
    assert not by_features[:, 6].any()  # predicts what is not an input
    assert [bool(part.any()) for part in by_theta] == [True] * (kernel != "lin")


def test_one_sense_a_word_is_a_plain_embedding() -> None:
    for layer in (SoftmaxOutputLayer(7, 11), KerbsOutputLayer(7, 11, 11)):
        embedding = ComposedEmbedding(layer, PAD)
        plain = torch.nn.functional.embedding(WORDS, layer.weight)
        plain[WORDS == PAD] = 0.0
        assert torch.equal(embedding(WORDS), plain)
        assert torch.equal(embedding.embed_sequence(WORDS, torch.randn(3, 7, 7)), plain)


def test_a_bias_counts_in_the_weights_but_is_not_embedded() -> None:
    """Against the embedding that keeps the last coordinate: values and every gradient."""
    found: list[list[Tensor]] = []
    for bias in (False, True):
        torch.manual_seed(4)
        layer, _ = make_layer()
        layer.biased = bias
        embedding = ComposedEmbedding(layer, PAD)
        features = torch.randn(3, 7, 7, dtype=torch.float64)
        features[..., -1] = 1.0
        features.requires_grad_()
        size, whole = embedding.embedding_dim, embedding.embed_sequence(WORDS, features)
        stepped = embedding.compose(embedding.look_up(WORDS[:, 4]), features[:, 3])
        single = embedding(WORDS)
        parts = [part[..., :6] for part in (whole, stepped, single)]
        assert [part.shape[-1] for part in (whole, stepped, single)] == [size] * 3
        loss = torch.stack([(part.sin() * part).sum() for part in parts]).sum()
        gradients = torch.autograd.grad(loss, [layer.weight, layer.theta, features])
        found.append([*(part.detach() for part in parts), *gradients])
        assert size == (6 if bias else 7)
        assert gradients[0][:, 6].abs().max() > 0  # by way of the weights
    torch.testing.assert_close(*found, rtol=1e-12, atol=1e-13)
    one = ComposedEmbedding(SoftmaxOutputLayer(7, 11, biased=True), PAD)
    assert torch.equal(one(WORDS)[0], one.layer.weight[WORDS[0], :6])


@pytest.mark.parametrize("kernel", ["kerbs", None])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("word", [-100, -1, 11])
def test_a_number_that_is_no_word_is_refused(kernel: str | None, grad: bool, word: int) -> None:
    """As an index, -100, which targets have for "ignored", would be another word."""
    layer = SoftmaxOutputLayer(7, 11) if kernel is None else make_layer(kernel)[0]
    embedding = ComposedEmbedding(layer, PAD)
    with torch.set_grad_enabled(grad):
        assert embedding(torch.tensor([10])).isfinite().all()
        for embed in (embedding, embedding.look_up, layer.look_up):
            with pytest.raises(IndexError, match="out of range"):
                embed(torch.tensor([3, word]))


def test_layer_is_shared_not_owned() -> None:
    layer, _ = make_layer()
    embedding = ComposedEmbedding(layer, PAD)
    model = torch.nn.ModuleDict({"embed": embedding, "output": layer})
    assert not any(name.startswith("embed") for name in model.state_dict())
    twin = copy.deepcopy(model)
    assert twin["embed"].layer is twin["output"]
    assert twin["embed"].layer.weight is not layer.weight
    assert (embedding.embedding_dim, embedding.padding_idx) == (7, 1)


def test_posterior_of_narrow_inputs_is_that_of_the_same_numbers_in_float32() -> None:
    h, rows, theta = torch.randn(5, 64), torch.randn(5, 3, 64), torch.randn(5, 3)
    mask, kernel = torch.tensor([True, True, True]), build_kernel("kerbs")
    for dtype in (torch.float16, torch.bfloat16):
        a, b, c = h.to(dtype), rows.to(dtype), theta.to(dtype)
        right = posterior_weights(a.float(), b.float(), c.float(), mask, kernel)
        assert torch.equal(posterior_weights(a, b, c, mask, kernel), right)
    plain = posterior_weights(h, rows, theta, mask, kernel)
    exact = posterior_weights(h.double(), rows.double(), theta.double(), mask, kernel)
    torch.testing.assert_close(plain.double(), exact, rtol=1e-4, atol=1e-6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(posterior_weights(h, rows, theta, mask, kernel), plain)
    for wide in ((h.double(), rows, theta), (h, rows.double(), theta), (h, rows, theta.double())):
        assert posterior_weights(*wide, mask, kernel).dtype == torch.float64


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_prepared_posterior(kernel: str, dtype: torch.dtype, monkeypatch: Patch) -> None:
    layer = KerbsOutputLayer(8, 11, 29, kernel=kernel).to(dtype).eval()
    found, contexts = layer.look_up(WORDS), torch.randn(3, 7, 8, dtype=dtype)
    contexts[1, 2] = 0.0
    plain = layer.posterior(found, contexts).detach()
    with torch.no_grad():
        layer.log_probs(contexts)  # prepares
        monkeypatch.setattr("fairseq_kerbs.output_layers.kerbs.posterior_weights", None)
        prepared = layer.posterior(found, contexts)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            layer.log_probs(contexts)
            assert torch.equal(layer.posterior(found, contexts), prepared)
    tolerance = 2e-5 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(prepared, plain, rtol=tolerance, atol=tolerance)
    assert prepared.dtype == dtype


def test_separate_embeddings_begin_at_random_and_refer_to_the_layer() -> None:
    layer = KerbsOutputLayer(8, 2_000, 3_000)
    embedding = SeparateEmbedding(layer, PAD, 25)
    assert embedding.posterior is False
    assert embedding.layer is layer
    assert [name for name, _ in embedding.named_parameters()] == ["weight"]
    assert embedding.weight[PAD].eq(0.0).all()
    words = torch.arange(2_000)
    others = embedding(words[words != PAD])  # [1999, 25]
    assert float(others.std()) == pytest.approx(25**-0.5, rel=0.02)
    assert float(others.mean()) == pytest.approx(0.0, abs=0.005)


def test_with_one_sense_a_word_no_weights_are_computed() -> None:
    """Both are 1: contexts are not read, and the embedding is a row."""
    layer = KerbsOutputLayer(7, 11, 11, max_senses=1)
    embed = ComposedEmbedding(layer, PAD)
    assert not embed.posterior
    with mock.patch.object(embed, "look_up", side_effect=AssertionError):
        embedded = embed(WORDS, torch.randn(3, 7, 7))
    rows = layer.weight[layer.table.senses[WORDS][..., 0]]
    assert torch.equal(embedded, rows.masked_fill(WORDS.eq(PAD).unsqueeze(-1), 0.0))
    assert ComposedEmbedding(KerbsOutputLayer(7, 11, 12), PAD).posterior
