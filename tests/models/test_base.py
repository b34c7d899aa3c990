"""All models: composition in training and in decoding, beam search, padding, checkpoints."""

import itertools
from typing import Any
from unittest import mock

import pytest
import torch
from fairseq.models import lstm
from fairseq.search import DiverseBeamSearch, Sampling
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor

from fairseq_kerbs.criterions import KerbsCrossEntropyCriterion
from fairseq_kerbs.utils.errors import UserError
from tests.helpers import fairseq_fixtures as tiny
from tests.helpers.fairseq_fixtures import (
    ALL_MODELS,
    LANGUAGE_MODELS,
    MODELS,
    make_model,
)

Flags = dict[str, Any]
SEPARATE: Flags = {"input_embedding": "separate", "decoder_out_embed_dim": 9}
DEEP: Flags = {"encoder_layers": 2, "decoder_layers": 2, "encoder_bidirectional": True}
SETTINGS: list[tuple[str, Flags]] = [
    *(("transformer", {"composition_passes": passes}) for passes in (-1, 0)),
    *((name, {"composition": "prior"}) for name in ("transformer", "lstm")),
    *((name, {"output_layer": "softmax"}) for name in ("transformer", "lstm", "fairseq_lstm")),
    *((name, {"sense_bias": True}) for name in ("lstm", "fairseq_lstm")),
    ("transformer", {"kernel": "kerbs_released", "total_senses": 2.0, "composition_passes": -1}),
    ("transformer", {"sense_bias": True, "composition_passes": -1}),
    ("transformer", {"input_embedding": "separate", "decoder_output_dim": 20}),
    ("lstm", {}),
    ("transformer", {"output_layer": "mos"}),
    ("lstm", {"output_layer": "mixture", "mixture_kernels": "lin, log"}),
    *(("gru", flags) for flags in ({}, {"kernel": "lin"})),
    *(("lstm_luong", flags) for flags in ({}, {"sense_bias": True}, {"output_layer": "softmax"})),
    *(("gru_luong", flags) for flags in ({}, {"composition": "prior"})),
    ("fairseq_lstm", {**DEEP, "decoder_out_embed_dim": 14, "decoder_embed_dim": 14}),  # no fc
    ("fairseq_lstm", {"decoder_attention": "0"}),
    ("fairseq_lstm", {"composition": "prior", "encoder_bidirectional": True}),
    ("fairseq_lstm", {**SEPARATE, **DEEP, "sense_bias": True}),
    ("fairseq_lstm_lm", {"residuals": True, "decoder_layers": 2, "sense_bias": True}),
    ("fairseq_lstm_lm", {**SEPARATE, "residuals": True}),
]
LAYERS: list[Flags] = [{"output_layer": "softmax"}, {"output_layer": "mos"}]
LAYERS += [{"composition": "prior"}, {"composition_passes": -1, "sense_bias": True}]
SETTINGS += itertools.product(("transformer_lm", "lstm_lm", "gru_lm"), LAYERS)
LENGTHS = (7, 6, 4)  # fairseq's LSTM wants the longest sentence first


def batch_of(name: str, lengths: tuple[int, ...] = LENGTHS, **options: Any) -> Flags:
    if name in LANGUAGE_MODELS:
        return tiny.make_text(lengths, both_sides=name == "bilstm_lm")
    return tiny.make_batch(lengths, **options)


@pytest.mark.parametrize(("name", "flags"), SETTINGS)
def test_teacher_forcing_and_decoding_give_the_same_scores(name: str, flags: Flags) -> None:
    model = make_model(name, **flags)
    for reorder_at in (-1, 3):
        batch = batch_of(name, (6, 6, 6) if reorder_at > 0 else LENGTHS, same_source=reorder_at > 0)
        real = batch["target"].ne(1)
        with torch.no_grad():
            together = tiny.teacher_forced(model, batch)
            single = tiny.step_by_step(model, batch, reorder_at)
        torch.testing.assert_close(single[real], together[real], rtol=1e-4, atol=2e-5)
        torch.testing.assert_close(together.exp().sum(-1), torch.ones(together.shape[:2]))


@pytest.mark.parametrize("name", [name for name in ALL_MODELS if name != "bilstm_lm"])
def test_composition_reaches_the_scores(name: str) -> None:
    """The test above would pass as well if the posterior were never used."""
    batch = batch_of(name)
    with torch.no_grad():
        posterior = tiny.teacher_forced(make_model(name), batch)
        prior = tiny.teacher_forced(make_model(name, composition="prior"), batch)
    torch.testing.assert_close(posterior[:, 0], prior[:, 0])  # no previous word at position 0
    assert (posterior[:, 1:] - prior[:, 1:]).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["transformer", "transformer_lm"])
def test_enough_passes_are_the_sequential_recursion(name: str) -> None:
    """Pass k is exact at the first k positions; decoding step by step is the recursion of Eq. 6."""
    model = make_model(name)
    batch = batch_of(name)
    real = batch["target"].ne(1)
    with torch.no_grad():
        recursion = tiny.step_by_step(model, batch)
        for passes in (*range(real.shape[1] + 1), -1):
            model.decoder.passes = passes
            scores = tiny.teacher_forced(model, batch)
            near = real.clone()
            if passes >= 0:
                near[:, passes + 1 :] = False  # position p needs p passes
            torch.testing.assert_close(scores[near], recursion[near], rtol=1e-4, atol=2e-5)
            assert passes != 1 or (scores[real] - recursion[real]).abs().max() > 1e-3


@pytest.mark.parametrize("language", [False, True])
def test_with_one_sense_a_word_it_is_fairseqs_lstm(language: bool) -> None:
    """The same contexts and attention, with all parts of the decoder in use."""
    name = "fairseq_lstm_lm" if language else "fairseq_lstm"
    flags: Flags = {"decoder_layers": 2, "encoder_layers": 2, "residuals": language}
    model = make_model(name, total_senses=1.0, **flags).double()
    batch = batch_of(name)
    tokens = tiny.read_tokens(batch)
    encoder_out = None
    real = tokens.ne(1)
    with torch.no_grad():
        features, extra = model(**batch["net_input"])
        if not language:
            source = batch["net_input"]["src_tokens"]
            encoder_out = model.encoder(source, source.ne(1).sum(1))
        expected, attention = lstm.LSTMDecoder.extract_features(model.decoder, tokens, encoder_out)
    torch.testing.assert_close(features[real], expected[real])
    if not language:
        torch.testing.assert_close(extra["attn"][0][real], attention[real])


@pytest.mark.parametrize("name", ALL_MODELS)
@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_changes_nothing(name: str, side: str) -> None:
    """Also --left-pad-target: what is trained must be what decoding computes, which has none."""
    model = make_model(name)
    plain = batch_of(name)
    padded = batch_of(name)
    if name in MODELS:
        source = padded["net_input"]["src_tokens"]  # too, which fairseq's LSTM refuses
        padded["net_input"]["src_tokens"] = torch.nn.functional.pad(source, (4, 0), value=1)
    tokens = torch.nn.functional.pad(tiny.read_tokens(padded), (0, 7), value=1)
    if side == "left":
        tokens = torch.stack([row.roll(len(row) - int(row.ne(1).sum())) for row in tokens])
    padded["net_input"]["src_tokens" if name in LANGUAGE_MODELS else "prev_output_tokens"] = tokens
    with torch.no_grad():
        expected = tiny.teacher_forced(model, plain)[tiny.read_tokens(plain).ne(1)]
        padded_scores = tiny.teacher_forced(model, padded)[tokens.ne(1)]
    torch.testing.assert_close(padded_scores, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["transformer", "lstm", "gru", "lstm_luong", "gru_lm"])
def test_dropout_is_retained_where_it_is_asked_for(name: str) -> None:
    model = make_model(name, dropout=0.5)
    batch = batch_of(name)
    model.make_generation_fast_(retain_dropout=True)
    assert not torch.equal(*(tiny.teacher_forced(model, batch) for _ in range(2)))


@pytest.mark.parametrize("name", list(MODELS))
def test_attention_names_positions_of_the_source_as_given(name: str) -> None:
    """Alignments are read off it; fairseq pads sources on the left."""
    model = make_model(name)
    batch = tiny.make_batch()
    source = batch["net_input"]["src_tokens"]
    assert source[:, 0].eq(1).any()
    with torch.no_grad():
        _, extra = model(**batch["net_input"])
    attention = extra["attn"][0]  # [batch, len, src_len]
    assert attention[source.eq(1).unsqueeze(1).expand_as(attention)].abs().sum() == 0
    torch.testing.assert_close(attention.sum(-1), torch.ones_like(attention[..., 0]))


@pytest.mark.parametrize("name", ALL_MODELS)
@pytest.mark.parametrize("layer", ["kerbs", "softmax", "mos"])
def test_criterion_trains_all_parameters(name: str, layer: str) -> None:
    flags = SEPARATE | DEEP if name == "fairseq_lstm" and layer == "kerbs" else {}
    model = make_model(name, output_layer=layer, **flags).train()
    batch = batch_of(name)
    criterion = KerbsCrossEntropyCriterion(tiny.make_task(model=name), False, label_smoothing=0.0)
    loss, size, log = criterion(model, batch)
    loss.backward()
    assert [key for key, value in model.named_parameters() if value.grad is None] == []
    target = batch["target"]
    scores = tiny.teacher_forced(model.eval(), batch).gather(-1, target.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(loss.detach(), -scores[target.ne(1)].sum().detach())
    assert log["ntokens"] == size == sum(LENGTHS)


@pytest.mark.parametrize(
    ("saved", "flags", "named"),
    [
        ({}, {"total_senses": 2.0}, "--total-senses"),
        ({}, {"kernel": "lin"}, "--kernel"),
        ({}, {"output_layer": "softmax"}, "--output-layer kerbs, and .* --output-layer softmax"),
        ({}, {"max_senses": 3}, "--max-senses"),
        ({}, {"sense_bias": True}, "was trained without --sense-bias, and this model is with it"),
        ({"sense_bias": True}, {}, "was trained with --sense-bias, and this model is without it"),
        ({"output_layer": "softmax"}, {}, "is a softmax model, which .* by fairseq-kerbs convert"),
        ({"output_layer": "mos"}, {}, "--output-layer mos, and .* --output-layer kerbs"),
        ({"output_layer": "softmax"}, {"output_layer": "mos"}, "--output-layer softmax"),
        (
            {"output_layer": "mos", "mixture_components": 2},
            {"output_layer": "mixture", "mixture_kernels": "lin,lin"},
            "--output-layer mos, and .* --output-layer mixture",
        ),
        (
            {"output_layer": "mixture", "mixture_kernels": "lin,lin"},
            {"output_layer": "mixture", "mixture_kernels": "lin,kerbs"},
            "another --mixture-kernels",
        ),
    ],
)
def test_a_checkpoint_of_another_model_is_refused(saved: Flags, flags: Flags, named: str) -> None:
    for name in ("transformer", "gru_lm"):
        with pytest.raises(SystemExit, match=named):
            make_model(name, **flags).load_state_dict(make_model(name, **saved).state_dict())
        other = make_model(name, tiny.make_task(24, name))
        with pytest.raises(SystemExit, match=r"has 23 words, .* of the data 24"):
            other.load_state_dict(make_model(name).state_dict())


BEGIN = torch.tensor([2])
DICTIONARY = tiny.make_task().target_dictionary


def generate(models: list[Any], batch: Any, **settings: Any) -> list[tuple[int, dict[str, Any]]]:
    """Hypotheses of a beam search, as fairseq-generate runs it, with the rows of their sources."""
    settings = {"beam_size": 4, "max_len_b": 9} | settings
    found = SequenceGenerator(models, DICTIONARY, **settings).generate(models, batch)
    assert all(len(hypotheses) == settings["beam_size"] for hypotheses in found)
    return [(row, each) for row, hypotheses in enumerate(found) for each in hypotheses]


def check_scores(models: list[Any], batch: Any, row: int, hypothesis: Any, heat: float = 1) -> None:
    """Scores of a hypothesis are log-probabilities by teacher forcing, averaged over models."""
    tokens = hypothesis["tokens"]
    source = batch["net_input"]["src_tokens"][[row]]
    previous = torch.cat([BEGIN, tokens[:-1]])
    probs = []
    for model in models:
        features, extra = model(source, source.ne(1).sum(1), previous.unsqueeze(0))
        probs.append(model.get_normalized_probs((features / heat, extra), log_probs=False))
    expected = torch.stack(probs).mean(0)[0].gather(1, tokens.unsqueeze(1)).log().squeeze(1)
    torch.testing.assert_close(hypothesis["positional_scores"], expected, rtol=1e-4, atol=1e-4)


SEARCHES: list[dict[str, Any]] = [
    {"temperature": 1.5, "min_len": 5},
    {"beam_size": 7},
    {"search_strategy": Sampling(DICTIONARY, sampling_topk=5)},
    {"search_strategy": DiverseBeamSearch(DICTIONARY, num_groups=2, diversity_strength=0.5)},
]
BEAMS = [*itertools.product(["transformer"], [-1, 0], SEARCHES)]
BEAMS += [(names, -1, {}) for names in ("lstm", "gru", "lstm_luong", "transformer lstm")]


@pytest.mark.parametrize(("names", "passes", "settings"), BEAMS)
def test_beam_scores_are_those_of_teacher_forcing(names: str, passes: int, settings: Any) -> None:
    """Sentences leave the batch at different steps; two of them are the same sentence."""
    batch = tiny.make_batch(lengths=(6, 6, 4, 7))
    batch["net_input"]["src_tokens"][1] = batch["net_input"]["src_tokens"][0]
    models = [make_model(name, seed=seed) for seed, name in enumerate(names.split())]
    models[0].decoder.passes = passes  # of the transformer
    torch.manual_seed(4)
    lengths = set()
    with torch.no_grad():
        for model in models:  # the end of a sentence has the mean context vector as its sense
            layer, (features, _) = model.decoder.output, model(**batch["net_input"])
            ends = layer.inventory.word_of_sense == 2
            mean = features.flatten(0, 1).mean(0)
            layer.weight[ends], layer.theta[ends] = 3.5 * mean / mean.norm(), 0.0
        for row, hypothesis in generate(models, batch, max_len_b=12, **settings):
            lengths.add(len(hypothesis["tokens"]))
            if not isinstance(settings.get("search_strategy"), DiverseBeamSearch):  # has a penalty
                check_scores(models, batch, row, hypothesis, settings.get("temperature", 1.0))
    assert len(lengths) > 1 or names != "transformer"


@pytest.mark.parametrize("passes", [-1, 0])
def test_attention_of_hypotheses_is_that_of_the_last_pass(passes: int) -> None:
    """What --print-alignment reads."""
    model = make_model("transformer", composition_passes=passes)
    batch = tiny.make_batch()
    with torch.no_grad():
        for row, hypothesis in generate([model], batch):
            source = batch["net_input"]["src_tokens"][[row]]
            previous = torch.cat([BEGIN, hypothesis["tokens"][:-1]]).unsqueeze(0)
            _, extra = model(source, source.ne(1).sum(1), previous)
            # [src_len, len]; fairseq leaves out the last step's of hypotheses cut at max_len
            expected = extra["attn"][0][0].t()
            torch.testing.assert_close(hypothesis["attention"], expected, rtol=1e-4, atol=1e-4)


def test_the_prior_is_used_before_a_share_of_the_updates() -> None:
    """Then the passes run. A model in evaluation mode has them before, so that it has one score."""
    torch.manual_seed(1)
    model = make_model("transformer", composition_from=0.25, max_update=10, dropout=0.0).train()
    batch = tiny.make_batch()["net_input"]

    def features() -> Tensor:
        with torch.no_grad():
            found: Tensor = model(**batch)[0]
            return found

    with mock.patch.object(model.decoder, "passes", 0):
        by_prior = features()
    with mock.patch.object(model.decoder, "passes", 1):
        refined = features()
    assert not torch.allclose(by_prior, refined)
    torch.testing.assert_close(features(), refined, rtol=0, atol=0)
    for updates, expected in ((0, by_prior), (2, by_prior), (3, refined), (9, refined)):
        model.set_num_updates(updates)  # as fairseq's task before an update
        torch.testing.assert_close(features(), expected, rtol=0, atol=0)
    model.set_num_updates(0)
    model.eval()
    torch.testing.assert_close(features(), refined, rtol=0, atol=0)
    with pytest.raises(UserError, match="--composition-from goes with --composition posterior"):
        make_model("transformer", composition_from=0.25, max_update=10, composition="prior")
    with pytest.raises(UserError, match=r"--composition-from goes with .* --composition-passes"):
        make_model("transformer", composition_from=0.25, max_update=10, composition_passes=0)
    with pytest.raises(UserError, match="--composition-from is a share of --max-update"):
        make_model("transformer", composition_from=0.25)
    with pytest.raises(UserError, match="--composition-from"):
        make_model("transformer", composition_from=1.0, max_update=10)
    separate: dict[str, Any] = {"input_embedding": "separate", "max_update": 10}
    with pytest.raises(UserError, match="not read with --input-embedding separate: leave it out"):
        make_model("transformer", composition_from=0.25, **separate)


@pytest.mark.parametrize("name", ["transformer", "lstm", "gru_lm", "fairseq_lstm"])
def test_torch_jit_script_advises_what_works(name: str) -> None:
    sizes = {"encoder_layers": 1, "decoder_layers": 1} if name == "transformer" else {}
    model = make_model(name, **sizes)
    with pytest.raises(TypeError, match=r"KerbsOutputLayer, .*: use torch.compile\(model\)"):
        torch.jit.script(model)
    batch = batch_of(name)

    def scores(of: Any) -> Tensor:
        net_output = of(**batch["net_input"])
        found: Tensor = model.get_normalized_probs(net_output, log_probs=True)
        return found

    with torch.no_grad():
        compiled = torch.compile(model, backend="eager")
        torch.testing.assert_close(scores(compiled), scores(model))
