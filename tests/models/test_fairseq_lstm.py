"""fairseq's LSTMs with our output layer: fairseq's decoder and ours, decoding, padding, flags."""

from __future__ import annotations

import argparse
from typing import Any

import pytest
import torch
from fairseq.models import lstm
from torch import nn

from fairseq_kerbs.models import FairseqLstmLanguageModel, FairseqLstmModel
from fairseq_kerbs.models.fairseq_lstm import FairseqLstmDecoder
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
        task.source_dictionary = task.dictionary = task.target_dictionary
        task.targets = ["future"]
    kind: Any = FairseqLstmLanguageModel if language else FairseqLstmModel
    model = kind.build_model(argparse.Namespace(**(SIZES | flags)), task)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    nn.init.uniform_(model.decoder.output.usage)
    return model.eval()


@pytest.mark.parametrize("language", [False, True])
def test_with_one_sense_a_word_it_is_fairseqs_decoder(language: bool) -> None:
    """The same contexts and attention, with all parts of the decoder in use."""
    flags = {"total_senses": 1.0, "decoder_layers": 2, "encoder_layers": 2, "residuals": language}
    model = make(flags, language).double()
    batch = make_batch(LENGTHS)
    net_input = {"src_tokens": text()[0]} if language else batch["net_input"]
    real = net_input["src_tokens" if language else "prev_output_tokens"].ne(1)
    with torch.no_grad():
        features, extra = model(**net_input)
        encoder_out = None
        if not language:
            encoder_out = model.encoder(net_input["src_tokens"], net_input["src_lengths"])
        tokens = net_input["src_tokens" if language else "prev_output_tokens"]
        expected, attention = lstm.LSTMDecoder.extract_features(model.decoder, tokens, encoder_out)
    torch.testing.assert_close(features[real], expected[real])
    if not language:
        torch.testing.assert_close(extra["attn"][0][real], attention[real])


@pytest.mark.parametrize("name", ["lstm", "lstm_lm"])
def test_composition_reaches_the_scores(name: str) -> None:
    language = name == "lstm_lm"
    inputs = {"src_tokens": text()[0]} if language else make_batch(LENGTHS)["net_input"]
    found = []
    with torch.no_grad():
        for composition in ("posterior", "prior"):
            model = make({"composition": composition}, language)
            found.append(model.get_normalized_probs(model(**inputs), log_probs=True))
    torch.testing.assert_close(found[0][:, 0], found[1][:, 0])
    assert (found[0][:, 1:] - found[1][:, 1:]).abs().max() > 1e-3


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
    features, _ = model(**batch["net_input"])
    model.decoder.output.nll(features, batch["target"], ignore_index=1).backward()
    assert [key for key, value in model.named_parameters() if value.grad is None] == []
    assert isinstance(model.decoder, FairseqLstmDecoder)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"decoder_out_embed_dim": 9}, "requires --decoder-embed-dim to match"),
        ({"decoder_layers": 2}, "--encoder-layers must match"),
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
