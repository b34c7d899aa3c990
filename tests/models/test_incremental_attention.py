"""Decoding step by step: streams, caches that are not moved, sources that are shared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch
from fairseq.models import FairseqIncrementalDecoder
from torch import Tensor

from fairseq_kerbs.models import incremental_attention as beam_attention
from fairseq_kerbs.models.incremental_attention import equal_neighbours
from fairseq_kerbs.output_layers.composition import ComposedEmbedding
from tests.helpers.fairseq_fixtures import make_batch, make_model

BEAM = 2
SENTENCES = 3


def encode(model: Any, beam: int = BEAM) -> Any:
    """The encoder's output for three sentences, each repeated as for a beam."""
    source = make_batch()["net_input"]
    encoded = model.encoder(source["src_tokens"], source["src_lengths"])
    return model.encoder.reorder_encoder_out(encoded, torch.arange(SENTENCES * beam) // beam)


def step_of_one_pass(
    model: Any, contexts: Tensor | None, tokens: Tensor, encoder_out: Any, state: dict[str, Any],
    **settings: Any,
) -> tuple[Tensor, dict[str, Any]]:  # fmt: skip
    """One step of one pass by fairseq's own attention; ``contexts`` [batch, 1, d] composes it."""
    embed = model.decoder.embed_tokens

    def compose(words: Tensor) -> Tensor:
        return ComposedEmbedding.forward(embed, words, contexts)

    with patch.object(embed, "forward", compose):
        found: tuple[Tensor, dict[str, Any]] = model.decoder.extract_features_scriptable(
            tokens, encoder_out, state, **settings
        )
    return found


class PassByPass:
    """The plain reference: one call and one attention state for each pass."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.states: list[dict[str, Any]] = [{} for _ in range(model.decoder.passes + 1)]
        self.features: list[Tensor | None] = [None for _ in self.states]

    def step(
        self, tokens: Tensor, encoder_out: Any, **settings: Any
    ) -> tuple[Tensor, dict[str, Any]]:
        contexts = [None, *self.features[:-1]]
        for number, state in enumerate(self.states):
            self.features[number], extra = step_of_one_pass(
                self.model, contexts[number], tokens, encoder_out, state, **settings
            )
        assert self.features[-1] is not None
        return self.features[-1], extra

    def reorder(self, order: Tensor) -> None:
        for number, state in enumerate(self.states):
            FairseqIncrementalDecoder.reorder_incremental_state_scripting(
                self.model.decoder, state, order
            )
            features = self.features[number]
            self.features[number] = None if features is None else features[order]


def beam_orders(generator: torch.Generator) -> Iterator[Tensor]:
    """As a beam search: within a beam; after steps 3 and 6 a sentence has left."""
    for kept in ([0, 1, 2], [0, 1, 2], [0, 1, 2], [0, 2], [0, 1], [0, 1], [1], [0]):
        places = torch.randint(0, BEAM, (len(kept), BEAM), generator=generator)
        yield (torch.tensor(kept).unsqueeze(1) * BEAM + places).flatten()


VARIANTS: list[dict[str, Any]] = [
    {"composition_passes": 0},
    {"composition_passes": 1},
    {"composition_passes": 3},
    {"composition": "prior"},
    {"output_layer": "softmax"},
    {"decoder_normalize_before": True, "decoder_learned_pos": True},
    {"cross_self_attention": True, "composition_passes": 2},
    {"no_cross_attention": True, "cross_self_attention": True},
    {"kernel": "kerbs_released", "checkpoint_activations": True, "no_decoder_final_norm": True},
]


@pytest.mark.parametrize("flags", VARIANTS)
@pytest.mark.parametrize("padding", [False, True])
def test_a_step_equals_fairseqs_attention_pass_by_pass(
    flags: dict[str, Any], padding: bool
) -> None:
    model = make_model("transformer", **flags)
    generator = torch.Generator().manual_seed(3)
    tokens = torch.full((SENTENCES * BEAM, 1), 2)
    settings = {"alignment_layer": 0, "alignment_heads": 1}
    reference = PassByPass(model)
    state: dict[str, Any] = {}
    with torch.no_grad():
        encoder_out = encode(model)
        for order in beam_orders(generator):
            expected, plain = reference.step(tokens, encoder_out, **settings)
            found, extra = model.decoder(tokens, encoder_out, state, features_only=True, **settings)
            torch.testing.assert_close(found, expected)
            torch.testing.assert_close(extra["attn"], plain["attn"])
            torch.testing.assert_close(extra["inner_states"], plain["inner_states"])
            reference.reorder(order)
            model.decoder.reorder_incremental_state_scripting(state, order)
            encoder_out = model.encoder.reorder_encoder_out(encoder_out, order)
            words = torch.randint(4, 23, (len(order), 1), generator=generator)
            if padding and tokens.shape[1] in (2, 3):
                words[0] = 1
            tokens = torch.cat([tokens[order], words], 1)
    assert tokens.shape == (BEAM, 9)


@pytest.mark.parametrize("passes", [-1, 0, 1, 3])
@pytest.mark.parametrize("beam", [1, 3])
def test_any_reordering_equals_teacher_forcing(passes: int, beam: int) -> None:
    """Hypotheses multiply, leave, and change places with those of other sentences."""
    model = make_model("transformer", composition_passes=passes)
    generator = torch.Generator().manual_seed(beam)
    source = make_batch()["net_input"]["src_tokens"].repeat_interleave(beam, 0)
    tokens = torch.full((SENTENCES * beam, 1), 2)
    state: dict[str, Any] = {}
    with torch.no_grad(), patch.object(beam_attention, "_FIRST_ROOM", 2):
        encoder_out = encode(model, beam)
        for size in (9, 9, 6, 6, 4, 7, 3, 1, 2):
            found, _ = model.decoder(tokens, encoder_out, state)
            expected, _ = model(source, source.ne(1).sum(1), tokens)
            torch.testing.assert_close(found[:, 0], expected[:, -1], rtol=1e-4, atol=2e-5)
            order = torch.randint(0, len(tokens), (size,), generator=generator)
            model.decoder.reorder_incremental_state_scripting(state, order)
            encoder_out = model.encoder.reorder_encoder_out(encoder_out, order)
            words = torch.randint(4, 23, (size, 1), generator=generator)
            tokens, source = torch.cat([tokens[order], words], 1), source[order]


@pytest.mark.parametrize(
    ("passes", "chosen", "effective"),
    [(1, -1, -1), (3, -1, -1), (0, -1, 0), (-1, 1, 1), (2, 0, 0), (2, None, 2)],
)
def test_steps_may_take_other_passes_than_teacher_forcing(
    passes: int, chosen: int | None, effective: int
) -> None:
    source = make_batch()["net_input"]["src_tokens"]
    tokens = torch.randint(4, 23, (SENTENCES, 6), generator=torch.Generator().manual_seed(1))
    model = make_model("transformer", composition_passes=passes, decoding_passes=chosen)
    other = make_model("transformer", composition_passes=effective)
    state: dict[str, Any] = {}
    with torch.no_grad():
        encoder_out = encode(model, 1)
        for step in range(6):
            found, _ = model.decoder(tokens[:, : step + 1], encoder_out, state)
        whole, expected = (
            one(source, source.ne(1).sum(1), tokens)[0][:, -1] for one in (model, other)
        )
    torch.testing.assert_close(found[:, 0], expected, rtol=1e-4, atol=2e-5)
    assert torch.allclose(found[:, 0], whole, atol=1e-3) == (passes == effective)


@pytest.mark.parametrize(
    ("flags", "streams"),
    [
        ({"composition_passes": 3}, [1, 2, 3, 4, 4]),
        ({}, [1, 2, 2, 2, 2]),
        ({"composition_passes": 0}, [1] * 5),
        ({"composition_passes": -1}, [1] * 5),
        ({"composition": "prior"}, [1] * 5),
        ({"total_senses": 1.0}, [1] * 5),
        ({"output_layer": "softmax"}, [1] * 5),
    ],
)
def test_a_step_is_one_call_and_keeps_each_source_once(
    flags: dict[str, Any], streams: list[int]
) -> None:
    model = make_model("transformer", **flags)
    state: dict[str, Any] = {}
    rows: list[int] = []
    layer = model.decoder.layers[0]
    layer.register_forward_pre_hook(lambda _, inputs: rows.append(inputs[0].shape[1]))
    tokens = make_batch(lengths=(6,) * 6)["net_input"]["prev_output_tokens"]
    with torch.no_grad():
        encoder_out = encode(model)
        for step in range(5):
            model.decoder(tokens[:, : step + 1], encoder_out, state)
            order = torch.arange(6).view(-1, 2).flip(1).flatten()
            model.decoder.reorder_incremental_state_scripting(state, order)
    assert rows == [6 * count for count in streams]
    keys = layer.encoder_attn.get_incremental_state(state, "attn_state")["prev_key"]
    assert len(keys) == SENTENCES


def test_what_a_step_returns_may_be_changed_in_place() -> None:
    """fairseq's generator divides it by the temperature."""
    tokens = make_batch()["net_input"]["prev_output_tokens"]
    for passes in (0, 1, 2):
        model = make_model("transformer", composition_passes=passes)
        with torch.no_grad():
            encoder_out = encode(model, 1)
            states: list[dict[str, Any]] = [{}, {}]
            for step in range(4):
                first, second = (
                    model.decoder(tokens[:, : step + 1], encoder_out, state)[0] for state in states
                )
                assert torch.equal(first, second)
                second.div_(3.0)


def test_gradients_flow_through_steps() -> None:
    model, batch = make_model("transformer", composition_passes=0), make_batch()
    net_input = batch["net_input"]
    whole, _ = model(**net_input)
    encoder_out = model.encoder(net_input["src_tokens"], net_input["src_lengths"])
    tokens = net_input["prev_output_tokens"]
    state: dict[str, Any] = {}
    steps = [
        model.decoder(tokens[:, : step + 1], encoder_out, state)[0]
        for step in range(tokens.shape[1])
    ]
    real = batch["target"].ne(1)
    weights = list(model.decoder.layers.parameters())
    expected = torch.autograd.grad(whole[real].square().sum(), weights)
    found = torch.autograd.grad(torch.cat(steps, 1)[real].square().sum(), weights)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


def test_equal_neighbours_are_found() -> None:
    def rows(*numbers: int, hidden: int = 0) -> dict[str, list[Tensor]]:
        states = torch.tensor(numbers, dtype=torch.float32).expand(4, 5, -1).transpose(1, 2)
        mask = torch.zeros(len(numbers), 4, dtype=torch.bool)
        mask[:hidden] = True
        return {"encoder_out": [states], "encoder_padding_mask": [mask]}

    assert equal_neighbours(rows(3, 3, 3, 7, 7, 7)) == 3
    assert equal_neighbours(rows(3, 3, 3, 3, 7, 7)) == 2
    assert equal_neighbours(rows(3, 3, 7, 7, 7, 7)) == 2
    assert equal_neighbours(rows(3, 7, 7, 3)) == 1
    assert equal_neighbours(rows(3, 3, 3, 3)) == 4
    assert equal_neighbours(rows(3, 3, 3, 3, hidden=2)) == 2
    assert equal_neighbours(rows(5)) == 1
    assert equal_neighbours(None) == 1
    assert equal_neighbours({"encoder_out": [], "encoder_padding_mask": []}) == 1
