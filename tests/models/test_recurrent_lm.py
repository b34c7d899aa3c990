"""Recurrent language models against torch's own cells; the cloze model."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fairseq_kerbs.output_layers.composition import ComposedEmbedding
from tests.helpers import fairseq_fixtures as tiny
from tests.helpers.fairseq_fixtures import (
    make_model,
)

CELLS: dict[str, Any] = {"gru_lm": torch.gru_cell, "lstm_lm": torch.lstm_cell}


def recursion(model: Any, row: Tensor, name: str) -> Tensor:
    """Eq. 2 and 6–7 word by word for one text [len], from torch's own cells: [len, d]."""
    decoder = model.decoder
    embed = ComposedEmbedding(decoder.output, 1, decoder.embed_tokens.posterior)
    zeros = torch.zeros(1, 12, dtype=torch.float64)
    states: list[Any] = [(zeros, zeros) if name == "lstm_lm" else zeros] * decoder.rnn.num_layers
    context: Tensor | None = None
    found = []
    for word in row.unsqueeze(1):
        below = embed(word, context)
        for number, weights in enumerate(decoder.rnn.all_weights):
            states[number] = CELLS[name](below, states[number], *weights)
            below = states[number][0] if name == "lstm_lm" else states[number]
        context = decoder.to_context(below)
        found.append(context)
    return torch.cat(found)


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize(
    "flags", [{}, {"composition": "prior"}, {"output_layer": "softmax"}, {"total_senses": 1.0}]
)
def test_contexts_and_all_gradients_follow_the_recursion(name: str, flags: dict[str, Any]) -> None:
    """In steps where the posterior matters, and in one sequence where it does not."""
    model = make_model(name, **flags).double()
    batch = tiny.make_text()
    assert model.decoder.embed_tokens.posterior == (not flags)
    source = batch["net_input"]["src_tokens"]
    target = batch["target"]
    features, _ = model(source)
    losses = [model.decoder.output.nll(features, target, ignore_index=1)]
    for row, words in enumerate(source):
        length = int(target[row].ne(1).sum())
        expected = recursion(model, words[:length], name)
        torch.testing.assert_close(features[row, :length], expected, rtol=1e-10, atol=1e-10)
        losses.append(model.decoder.output.nll(expected, target[row, :length]))
    parameters = dict(model.named_parameters())
    leaves = [*parameters.values()]
    found, right = (torch.autograd.grad(x, leaves) for x in (losses[0], sum(losses[1:])))
    for key, ours, theirs in zip(parameters, found, right, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11, msg=key)


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
    silent = slice(12, None) if direction == "forwards" else slice(12)
    model.decoder.to_context.weight.data[:, silent] = 0.0  # [d, 2 · hidden]
    found = cloze_gradients(model, tiny.make_text((7,))["net_input"]["src_tokens"]) > 0.0
    ones = torch.ones(7, 7, dtype=torch.bool)
    assert torch.equal(found, ones.tril(-1) if direction == "forwards" else ones.triu(1))


def test_a_cloze_model_refuses_to_generate() -> None:
    with pytest.raises(SystemExit, match="cannot generate"):
        make_model("bilstm_lm").decoder(torch.tensor([[2, 5]]), encoder_out=None)
