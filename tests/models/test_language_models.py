"""Language models: the recursion, both ways of computing it, and what a cloze model sees."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fairseq_kerbs.output_layers.composition import ComposedEmbedding
from tests.helpers.fairseq_fixtures import make_model, make_text

CELLS = {"gru_lm": nn.GRUCell, "lstm_lm": nn.LSTMCell}


def text(lengths: tuple[int, ...] = (7, 4, 6)) -> tuple[Tensor, Tensor]:
    """Sources and targets [batch, len], padded on the right."""
    batch = make_text(lengths)
    return batch["net_input"]["src_tokens"], batch["target"]


# ------------------------------------------------------------------- the recursion itself


def recursion(model: Any, row: Tensor, name: str) -> Tensor:
    """Eq. 2 and 6–7 word by word for one text [len], from torch's own cells: [len, d]."""
    decoder = model.decoder
    layer, sizes = decoder.output, (10, 12)
    posterior = decoder.embed_tokens.posterior
    embed = ComposedEmbedding(layer, 1, posterior)
    cells = []
    for number, weights in enumerate(decoder.rnn.all_weights):
        cell = CELLS[name](sizes[min(number, 1)], 12, dtype=layer.weight.dtype)
        for mine, given in zip(
            (cell.weight_ih, cell.weight_hh, cell.bias_ih, cell.bias_hh), weights, strict=True
        ):
            mine.data.copy_(given.data)
        cells.append(cell)
    states: list[Any] = [None] * len(cells)
    context: Tensor | None = None
    found = []
    for word in row:
        below = embed(word, context)
        for number, cell in enumerate(cells):
            states[number] = cell(below, states[number])
            below = states[number][0] if name == "lstm_lm" else states[number]
        context = decoder.to_context(below)
        found.append(context)
    return torch.stack(found)


@pytest.mark.parametrize("name", list(CELLS))
@pytest.mark.parametrize("composition", ["posterior", "prior"])
def test_context_vectors_follow_the_recursion(name: str, composition: str) -> None:
    model = make_model(name, composition=composition).double()
    source, target = text()
    with torch.no_grad():
        features, _ = model(source)
        for row, words in enumerate(source):
            length = int(target[row].ne(1).sum())
            expected = recursion(model, words[:length], name)
            torch.testing.assert_close(features[row, :length], expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", list(CELLS))
@pytest.mark.parametrize(
    "flags", [{"output_layer": "softmax"}, {"total_senses": 1.0}, {"composition": "prior"}]
)
def test_stepping_and_the_whole_sequence_agree(name: str, flags: dict[str, Any]) -> None:
    """Where composition does not matter: the same outputs and gradients, from the same weights."""
    source, target = text()
    found = []
    for stepping in (False, True):
        model = make_model(name, **flags).double()
        assert not model.decoder.embed_tokens.posterior
        if stepping:
            decoder = model.decoder
            look_up = decoder.embed_tokens.look_up
            if "composition" in flags:  # stay with the prior at every step
                decoder.embed_tokens.compose = lambda senses, contexts, old=decoder.embed_tokens: (
                    type(old).compose(old, senses, None)
                )
            decoder.embed_tokens.posterior = True
            called: list[int] = []
            decoder.embed_tokens.look_up = lambda words, prepare, seen=called, do=look_up: (
                seen.append(1) or do(words, prepare)
            )
        loss = model.decoder.output.nll(model(source)[0], target, ignore_index=1)
        loss.backward()
        assert not stepping or called
        found.append((loss.detach(), {k: p.grad for k, p in model.named_parameters()}))
    torch.testing.assert_close(found[0][0], found[1][0])
    assert found[0][1].keys() == found[1][1].keys()
    for key, gradient in found[0][1].items():
        torch.testing.assert_close(gradient, found[1][1][key], msg=key)


def test_gradient_of_the_stepping_path() -> None:
    """Against the recursion by autograd, through the posteriors too."""
    source, target = text((5,))
    models = [make_model("gru_lm").double() for _ in range(2)]
    torch.testing.assert_close(models[0].decoder.output.weight, models[1].decoder.output.weight)
    features, _ = models[0](source)
    models[0].decoder.output.nll(features, target).backward()
    # cells of torch have no gradient of the model's own weights: those of the rest are compared
    expected = recursion(models[1], source[0], "gru_lm")
    models[1].decoder.output.nll(expected, target[0]).backward()
    for one, other in (("output.weight", "output.theta"), ("to_context.weight", "to_context.bias")):
        for name in (one, other):
            first, second = (model.decoder.get_parameter(name).grad for model in models)
            torch.testing.assert_close(first, second, rtol=1e-9, atol=1e-11, msg=name)


# ------------------------------------------------------------------- what the cloze model sees


def cloze_gradients(model: Any, tokens: Tensor) -> Tensor:
    """Size of d features[t] / d embedding[s], [len (t), len (s)], summed over the batch."""
    embed = model.decoder.embed_tokens
    seen: list[Tensor] = []

    def remember(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        seen.append(output.detach().requires_grad_())
        return seen[-1]

    handle = embed.register_forward_hook(remember)
    features, _ = model.decoder.extract_features(tokens)
    handle.remove()
    rows = []
    for t in range(tokens.shape[1]):
        (gradient,) = torch.autograd.grad(features[:, t].square().sum(), seen[0], retain_graph=True)
        rows.append(gradient.abs().sum((0, 2)))
    return torch.stack(rows)


@pytest.mark.parametrize("direction", ["forwards", "backwards"])
def test_each_direction_sees_its_side_alone(direction: str) -> None:
    """One direction silenced: what is left has read t − 1 and before, or t + 1 and after."""
    model = make_model("bilstm_lm").double()
    weight = model.decoder.to_context.weight.data  # [d, 2 · hidden]
    if direction == "forwards":
        weight[:, 12:] = 0.0
    else:
        weight[:, :12] = 0.0
    tokens, _ = text((7,))
    found = cloze_gradients(model, tokens) > 0.0
    ones = torch.ones(7, 7, dtype=torch.bool)
    assert torch.equal(found, ones.tril(-1) if direction == "forwards" else ones.triu(1))


def test_a_cloze_model_refuses_to_generate() -> None:
    with pytest.raises(SystemExit, match="cannot generate"):
        make_model("bilstm_lm").decoder(text()[0], encoder_out=None)
