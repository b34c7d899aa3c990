"""fairseq's LSTMs with our output layer: fairseq's decoder and ours, decoding, padding, flags."""

from __future__ import annotations

import argparse
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fairseq_kerbs.models import FairseqLstmLanguageModel, FairseqLstmModel
from fairseq_kerbs.models.fairseq_lstm import FairseqLstmDecoder
from fairseq_kerbs.output_layers.composition import ComposedEmbedding
from tests.helpers.fairseq_fixtures import make_batch, make_task, step_by_step, teacher_forced
from tests.models.test_language_models import step_by_step as step_by_step_lm
from tests.models.test_language_models import text

SIZES: dict[str, Any] = {
    "encoder_embed_dim": 10,
    "decoder_embed_dim": 12,
    "decoder_out_embed_dim": 12,
    "encoder_hidden_size": 8,
    "decoder_hidden_size": 14,
    "dropout": 0.0,
}
DEEP = {"encoder_layers": 2, "decoder_layers": 2, "encoder_bidirectional": True}
TRANSLATION: list[dict[str, Any]] = [
    {},
    {"sense_bias": True},
    {**DEEP, "decoder_out_embed_dim": 14, "decoder_embed_dim": 14},  # no additional_fc
    {"decoder_attention": "0"},
    {"composition": "prior", "encoder_bidirectional": True},
    {"input_embedding": "separate", "decoder_out_embed_dim": 9, "sense_bias": True, **DEEP},
    {"output_layer": "softmax"},
]
LANGUAGE: list[dict[str, Any]] = [
    {"residuals": True, "decoder_layers": 2, "sense_bias": True},
    {"input_embedding": "separate", "decoder_out_embed_dim": 9, "residuals": True},
]
# fairseq's encoder wants the longest sentence first
LENGTHS = (7, 6, 4)


def make(flags: dict[str, Any], language: bool = False) -> Any:
    """A tiny model in evaluation mode whose senses differ and whose usages are uneven."""
    torch.manual_seed(0)
    task = make_task()
    if language:
        task.source_dictionary, task.targets = task.target_dictionary, ["future"]
    kind: Any = FairseqLstmLanguageModel if language else FairseqLstmModel
    model = kind.build_model(argparse.Namespace(**(SIZES | flags)), task)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    nn.init.uniform_(model.decoder.output.usage)
    return model.eval()


def composed_step_by_step(model: Any, batch: dict[str, Any]) -> Tensor:
    """Context vectors [batch, len, d] from fairseq's own decoder, one word at a time (Eq. 6–7)."""
    decoder, net_input = model.decoder, batch["net_input"]
    embed, padding = decoder.embed_tokens, decoder.embed_tokens.padding_idx
    plain = ComposedEmbedding(decoder.output, padding, True, decoder.output.biased)
    encoder_out = model.encoder(net_input["src_tokens"], src_lengths=net_input["src_lengths"])
    state: dict[str, Any] = {}
    context, found = None, []
    decoder.posterior, embed.posterior = embed.posterior, False  # fairseq's way
    for word in net_input["prev_output_tokens"].unbind(1):
        given = plain(word, context).unsqueeze(1)
        embed.forward = lambda _, given=given: given
        features, _ = decoder.extract_features(word.unsqueeze(1), encoder_out, state)
        context = features[:, 0]
        found.append(context)
    del embed.forward
    embed.posterior = decoder.posterior
    return torch.stack(found, 1)


@pytest.mark.parametrize("flags", TRANSLATION[:4])
def test_stepping_is_fairseqs_decoder_with_composed_inputs(flags: dict[str, Any]) -> None:
    model, batch = make(flags).double(), make_batch(LENGTHS)
    real = batch["target"].ne(1)
    with torch.no_grad():
        features, _ = model(**batch["net_input"])
        expected = composed_step_by_step(model, batch)
        model.decoder.embed_tokens.posterior = False
        prior, _ = model(**batch["net_input"])
    torch.testing.assert_close(features[real], expected[real], rtol=1e-10, atol=1e-10)
    assert (features[real] - prior[real]).abs().max() > 1e-3


@pytest.mark.parametrize("language", [False, True])
def test_both_ways_agree_where_no_embedding_depends_on_its_context(language: bool) -> None:
    """The same outputs, attention and gradients, with all parts of the decoder in use."""
    flags = {"total_senses": 1.0, "sense_bias": True, "decoder_layers": 2, "encoder_layers": 2}
    found = []
    for stepping in (False, True):
        model = make(flags | {"residuals": language}, language).double()
        assert not model.decoder.embed_tokens.posterior
        model.decoder.embed_tokens.posterior = stepping
        batch = make_batch(LENGTHS)
        source, target = text() if language else (None, batch["target"])
        features, attention = model(source) if language else model(**batch["net_input"])
        loss = model.decoder.output.nll(features, target, ignore_index=1)
        loss.backward()
        gradients = {key: value.grad for key, value in model.named_parameters()}
        # the one weight that is looked up differently: its own gradient is the same
        found.append((loss.detach(), attention, gradients))
    torch.testing.assert_close(found[0][0], found[1][0])
    if not language:
        real = make_batch(LENGTHS)["target"].ne(1)
        torch.testing.assert_close(*(one[1]["attn"][0][real] for one in found))
    for key, gradient in found[0][2].items():
        torch.testing.assert_close(gradient, found[1][2][key], msg=key)


@pytest.mark.parametrize("flags", TRANSLATION)
def test_decoding_and_padding_change_nothing(flags: dict[str, Any]) -> None:
    model = make(flags)
    with torch.no_grad():
        batch = make_batch((6, 6, 6), same_source=True)
        together = teacher_forced(model, batch)
        torch.testing.assert_close(
            step_by_step(model, batch, reorder_at=3), together, rtol=1e-4, atol=2e-5
        )
        right, left = make_batch(LENGTHS), make_batch(LENGTHS, pad_to=9)
        # fairseq's encoder refuses a source that is padded further than it needs to be
        left["net_input"]["src_tokens"] = right["net_input"]["src_tokens"]
        real, padded = right["target"].ne(1), left["net_input"]["prev_output_tokens"]
        for row in padded:
            row.copy_(row.roll(9 - int(row.ne(1).sum())))
        expected = teacher_forced(model, right)[real]
        found = teacher_forced(model, left)[padded.ne(1)]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("flags", LANGUAGE)
def test_language_models_decode_what_they_score(flags: dict[str, Any]) -> None:
    model = make(flags, language=True)
    source, _ = text((6, 6, 6))
    with torch.no_grad():
        together = model.get_normalized_probs(model(source), log_probs=True)
        single = step_by_step_lm(model, source, reorder_at=3)
    torch.testing.assert_close(single, together, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("flags", [TRANSLATION[1], TRANSLATION[5]])
def test_every_parameter_learns(flags: dict[str, Any]) -> None:
    model, batch = make(flags).train(), make_batch(LENGTHS)
    features, attention = model(**batch["net_input"])
    assert attention == {"attn": [None]}  # as fairseq's decoder: shown in evaluation alone
    model.decoder.output.nll(features, batch["target"], ignore_index=1).backward()
    assert [key for key, value in model.named_parameters() if value.grad is None] == []
    assert isinstance(model.decoder, FairseqLstmDecoder)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"decoder_out_embed_dim": 9}, "--decoder-out-embed-dim must equal"),
        ({"decoder_layers": 2}, "--encoder-layers is 1, --decoder-layers is 2"),
        ({"encoder_hidden_size": 0}, "--encoder-hidden-size is 0"),
        ({"share_all_embeddings": True}, "--share-all-embeddings"),
        ({"adaptive_softmax_cutoff": "5,9"}, "--adaptive-softmax-cutoff"),
        ({"decoder_freeze_embed": True}, "--decoder-freeze-embed"),
        ({"sense_bias": True, "output_layer": "mos"}, "--sense-bias .* --output-layer mos"),
        ({"sense_bias": True, "kernel": "rbf"}, "--sense-bias .* --kernel rbf"),
        ({"total_senses": 9.0}, "--total-senses"),
    ],
)
def test_wrong_flags_end_with_a_sentence(flags: dict[str, Any], says: str) -> None:
    with pytest.raises(SystemExit, match=says):
        make(flags)
