"""Models: composition in training and in decoding, scores, padding, causality, wrong flags."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from fairseq import options
from fairseq.models import ARCH_CONFIG_REGISTRY, lstm
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf, ValidationError

from fairseq_kerbs.criterions import KerbsCrossEntropyCriterion
from fairseq_kerbs.models import PRESETS
from tests.helpers.fairseq_fixtures import (
    ALL_MODELS,
    LANGUAGE_MODELS,
    MODELS,
    dictionary,
    make_batch,
    make_model,
    make_task,
    make_text,
    read_tokens,
    step_by_step,
    teacher_forced,
)

Flags = dict[str, Any]
SEPARATE: Flags = {"input_embedding": "separate", "decoder_out_embed_dim": 9}
DEEP: Flags = {"encoder_layers": 2, "decoder_layers": 2, "encoder_bidirectional": True}
SETTINGS: list[tuple[str, Flags]] = [
    ("transformer", {"composition_passes": -1}),
    ("transformer", {"composition_passes": 0}),
    ("transformer", {"composition": "prior"}),
    ("transformer", {"output_layer": "softmax"}),
    ("transformer", {"kernel": "kerbs_released", "total_senses": 2.0, "composition_passes": -1}),
    ("transformer", {"sense_bias": True, "composition_passes": -1}),
    ("transformer", {"input_embedding": "separate", "decoder_output_dim": 20}),
    ("transformer", {"output_layer": "mos"}),
    ("lstm", {}),
    ("lstm", {"output_layer": "mixture", "mixture_kernels": "lin, log"}),
    ("lstm", {"sense_bias": True}),
    ("lstm", {"composition": "prior"}),
    ("lstm", {"output_layer": "softmax"}),
    ("gru", {}),
    ("gru", {"kernel": "lin"}),
    ("fairseq_lstm", {"sense_bias": True}),
    # no additional_fc
    ("fairseq_lstm", {**DEEP, "decoder_out_embed_dim": 14, "decoder_embed_dim": 14}),
    ("fairseq_lstm", {"decoder_attention": "0"}),
    ("fairseq_lstm", {"composition": "prior", "encoder_bidirectional": True}),
    ("fairseq_lstm", {**SEPARATE, **DEEP, "sense_bias": True}),
    ("fairseq_lstm", {"output_layer": "softmax"}),
    ("fairseq_lstm_lm", {"residuals": True, "decoder_layers": 2, "sense_bias": True}),
    ("fairseq_lstm_lm", {**SEPARATE, "residuals": True}),
]
SETTINGS += [
    (name, flags)
    for name in ("transformer_lm", "lstm_lm", "gru_lm")
    for flags in (
        {"composition": "prior"},
        {"output_layer": "softmax"},
        {"output_layer": "mos"},
        {"composition_passes": -1, "sense_bias": True},
    )
]
LENGTHS = (7, 6, 4)  # fairseq's LSTM wants the longest sentence first


def batch_of(name: str, lengths: tuple[int, ...] = LENGTHS, **options: Any) -> Flags:
    if name in LANGUAGE_MODELS:
        return make_text(lengths, both_sides=name == "bilstm_lm")
    return make_batch(lengths, **options)


@pytest.mark.parametrize(("name", "flags"), SETTINGS)
def test_teacher_forcing_and_step_by_step_decoding_give_the_same_scores(
    name: str, flags: Flags
) -> None:
    model = make_model(name, **flags)
    for reorder_at in (-1, 3):
        batch = batch_of(name, (6, 6, 6) if reorder_at > 0 else LENGTHS, same_source=reorder_at > 0)
        real = batch["target"].ne(1)
        with torch.no_grad():
            together = teacher_forced(model, batch)
            single = step_by_step(model, batch, reorder_at)
        torch.testing.assert_close(single[real], together[real], rtol=1e-4, atol=2e-5)
        torch.testing.assert_close(together.exp().sum(-1), torch.ones(together.shape[:2]))


@pytest.mark.parametrize("name", [name for name in ALL_MODELS if name != "bilstm_lm"])
def test_composition_reaches_the_scores(name: str) -> None:
    """The test above would pass as well if the posterior were never used."""
    batch = batch_of(name)
    with torch.no_grad():
        posterior = teacher_forced(make_model(name), batch)
        prior = teacher_forced(make_model(name, composition="prior"), batch)
    torch.testing.assert_close(posterior[:, 0], prior[:, 0])  # no previous word at position 0
    assert (posterior[:, 1:] - prior[:, 1:]).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["transformer", "transformer_lm"])
def test_enough_passes_are_the_sequential_recursion(name: str) -> None:
    """Pass k is exact at the first k positions; decoding step by step is the recursion of Eq. 6."""
    model, batch = make_model(name), batch_of(name)
    real = batch["target"].ne(1)
    with torch.no_grad():
        recursion = step_by_step(model, batch)
        for passes in (*range(real.shape[1] + 1), -1):
            model.decoder.passes = passes
            scores = teacher_forced(model, batch)
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
    model, batch = make_model(name, total_senses=1.0, **flags).double(), batch_of(name)
    tokens, encoder_out = read_tokens(batch), None
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
    model, plain, padded = make_model(name), batch_of(name), batch_of(name)
    if name in MODELS:
        padded = make_batch(LENGTHS, pad_to=11)  # sources, too, which fairseq's LSTM refuses
    tokens = torch.nn.functional.pad(read_tokens(padded), (0, 3), value=1)
    if side == "left":
        tokens = torch.stack([row.roll(len(row) - int(row.ne(1).sum())) for row in tokens])
    padded["net_input"]["src_tokens" if name in LANGUAGE_MODELS else "prev_output_tokens"] = tokens
    with torch.no_grad():
        expected = teacher_forced(model, plain)[read_tokens(plain).ne(1)]
        padded_scores = teacher_forced(model, padded)[tokens.ne(1)]
    torch.testing.assert_close(padded_scores, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", list(MODELS))
def test_attention_names_positions_of_the_source_as_given(name: str) -> None:
    """Alignments are read off it; fairseq pads sources on the left."""
    model, batch = make_model(name), make_batch()
    source = batch["net_input"]["src_tokens"]
    assert source[:, 0].eq(1).any()
    with torch.no_grad():
        _, extra = model(**batch["net_input"])
    attention = extra["attn"][0]  # [batch, len, src_len]
    on_padding = source.eq(1).unsqueeze(1).expand_as(attention)
    assert attention[on_padding].abs().sum() == 0
    torch.testing.assert_close(attention.sum(-1), torch.ones_like(attention[..., 0]))


@pytest.mark.parametrize("name", ALL_MODELS)
@pytest.mark.parametrize("layer", ["kerbs", "softmax", "mos"])
def test_criterion_trains_all_parameters(name: str, layer: str) -> None:
    flags = SEPARATE | DEEP if name == "fairseq_lstm" and layer == "kerbs" else {}
    model, batch = make_model(name, output_layer=layer, **flags).train(), batch_of(name)
    criterion = KerbsCrossEntropyCriterion(make_task(model=name), False, label_smoothing=0.0)
    loss, size, log = criterion(model, batch)
    loss.backward()
    assert [key for key, value in model.named_parameters() if value.grad is None] == []
    target = batch["target"]
    scores = teacher_forced(model.eval(), batch).gather(-1, target.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(loss.detach(), -scores[target.ne(1)].sum().detach())
    assert log["ntokens"] == size == sum(LENGTHS)


WRONG_FLAGS: list[tuple[str, Flags, str]] = [
    ("transformer", {"total_senses": 0.5}, "--total-senses"),
    ("fairseq_lstm", {"total_senses": 4.5}, "--total-senses"),
    ("lstm", {"max_senses": 0}, "--max-senses"),
    ("lstm", {"kernel": "rfb"}, "--kernel"),
    ("lstm", {"sense_decay": -0.1}, "--sense-decay"),
    ("transformer", {"sense_decay": 1.0}, "--sense-decay"),
    ("lstm", {"log_prob_threshold": 0.5}, "--log-prob-threshold"),
    ("lstm", {"reallocation_interval": 0}, "--reallocation-interval"),
    ("transformer", {"composition_passes": -2}, "--composition-passes"),
    ("transformer", {"share_all_embeddings": True}, "--share-all-embeddings"),
    ("transformer", {"decoder_output_dim": 8}, "--decoder-output-dim"),
    ("lstm", {"hidden_size": 13}, "--hidden-size"),
    ("gru_lm", {"hidden_size": -1}, "--hidden-size"),
    ("lstm", {"embed_dim": 0}, "--embed-dim"),
    ("lstm", {"layers": 0}, "--layers"),
    ("bilstm_lm", {"dropout": 1.5}, "--dropout"),
    ("bilstm_lm", {"targets": ["future"]}, "--self-target"),
    ("gru_lm", {"targets": ["self"]}, "--self-target"),
    ("transformer_lm", {"targets": ["self", "future"]}, "--self-target"),
    ("lstm_lm", {"targets": None}, "--task language_modeling"),
    ("gru_lm", {"source_dictionary": dictionary(19)}, "--output-dictionary-size"),
    ("transformer_lm", {"adaptive_input": True}, "--adaptive-input"),
    ("transformer_lm", {"decoder_output_dim": 8}, "--decoder-output-dim"),
    ("fairseq_lstm", {"decoder_out_embed_dim": 9}, "--decoder-embed-dim"),
    ("fairseq_lstm", {"decoder_layers": 2}, "--encoder-layers"),
    ("fairseq_lstm", {"share_all_embeddings": True}, "--share-all-embeddings"),
    ("fairseq_lstm", {"adaptive_softmax_cutoff": "5,9"}, "--adaptive-softmax-cutoff"),
    ("fairseq_lstm", {"decoder_freeze_embed": True}, "--decoder-freeze-embed"),
    ("fairseq_lstm", {"sense_bias": True, "output_layer": "mos"}, "--sense-bias"),
    ("lstm", {"sense_bias": True, "kernel": "rbf"}, "--sense-bias"),
    ("lstm", {"output_layer": "mos", "mixture_components": 0}, "--mixture-components"),
    ("lstm", {"output_layer": "mixture", "mixture_kernels": "lin,,log"}, "--mixture-kernels"),
    ("lstm", {"output_layer": "mixture", "mixture_kernels": "lin,rfb"}, "'rfb'"),
    ("lstm", {"kernel": "lin", "kernel_power": 1.0}, "log, pow, pol and not read by --kernel lin"),
    ("lstm", {"kernel": "pow", "kernel_gamma": 1.0}, "--kernel-gamma is for the kernel rbf"),
    ("lstm", {"output_layer": "mos", "kernel_gamma": 1.0}, "--output-layer mos"),
    ("lstm", {"kernel": "pow", "kernel_power": 0.0}, "--kernel-power is 0.0"),
    ("lstm", {"kernel": "log", "kernel_power": math.inf}, "--kernel-power is inf"),
    ("lstm", {"kernel": "pol", "kernel_power": 2.5}, "power is 2.5, but it must be a whole number"),
    ("lstm", {"kernel": "pol", "kernel_power": 0.0}, "power is 0.0, but it must be a whole number"),
    ("lstm", {"kernel": "pol", "kernel_alpha": -1.0}, "--kernel-alpha is -1.0"),
    ("lstm", {"kernel": "pol", "kernel_offset": math.nan}, "--kernel-offset is nan"),
    ("lstm", {"kernel": "rbf", "kernel_gamma": -0.1}, "--kernel-gamma is -0.1"),
    ("lstm", {"kernel": "wav", "kernel_a": 0.0}, "--kernel-a is 0.0"),
    ("lstm", {"kernel": "wav", "kernel_b": math.nan}, "--kernel-b is nan"),
    ("lstm", {"kernel": "mog", "embed_dim": 7}, "--kernel mog halves its vectors, which have 7"),
    ("lstm", {"reallocation_at": [1.5], "max_update": 9}, "--reallocation-at 1.5: give a share"),
    ("lstm", {"reallocation_at": [0.5]}, "shares of --max-update: give that, too"),
    ("lstm", {"cluster_gap": 0.0}, "--cluster-gap is 0.0"),
]


@pytest.mark.parametrize(("name", "flags", "named"), WRONG_FLAGS)
def test_a_wrong_flag_ends_with_one_sentence(name: str, flags: Flags, named: str) -> None:
    task = make_task(model=name)
    of_task = {key: flags[key] for key in ("targets", "source_dictionary") if key in flags}
    vars(task).update(of_task)
    with pytest.raises(SystemExit) as ending:
        make_model(name, task, **{key: flags[key] for key in flags.keys() - of_task.keys()})
    assert named in str(ending.value)
    assert "\n" not in str(ending.value)


@pytest.mark.parametrize(("saved", "flags", "named"), [
    ({}, {"total_senses": 2.0}, "--total-senses"),
    ({}, {"kernel": "lin"}, "--kernel"),
    ({}, {"output_layer": "softmax"}, "--output-layer"),
    ({}, {"max_senses": 3}, "--max-senses"),
    ({"output_layer": "mos"}, {}, "--output-layer"),
    ({"output_layer": "softmax"}, {"output_layer": "mos"}, "--output-layer"),
    (
        {"output_layer": "mos", "mixture_components": 2},
        {"output_layer": "mixture", "mixture_kernels": "lin,kerbs"},
        "--mixture-kernels",
    ),
])  # fmt: skip
def test_a_checkpoint_of_another_model_is_refused(saved: Flags, flags: Flags, named: str) -> None:
    for name in ("transformer", "gru_lm"):
        with pytest.raises(SystemExit, match=named):
            make_model(name, **flags).load_state_dict(make_model(name, **saved).state_dict())


@pytest.mark.parametrize("arch", [arch for presets in PRESETS.values() for arch in presets])
def test_hydra_reads_what_the_flags_of_an_architecture_say(arch: str) -> None:
    """``model=ARCH`` of fairseq-hydra-train is --arch ARCH of fairseq-train, with all its flags."""
    node = ConfigStore.instance().load(f"model/{arch}.yaml").node
    node.total_senses, node.dropout = "2.5", 0.25
    with pytest.raises(ValidationError, match=r"'linear'.*mog"):
        node.kernel = "linear"
    root = OmegaConf.create({"task": {"tokens_per_sample": 99}, "model": node})
    model = OmegaConf.create(OmegaConf.to_container(root, resolve=True, enum_to_str=True)).model
    ARCH_CONFIG_REGISTRY[model.pop("_name")](model)
    task = ["--task", "language_modeling", "--tokens-per-sample", "99"] if "_lm" in arch else []
    given = ["data", "--arch", arch, *task, "--total-senses", "2.5", "--dropout", "0.25"]
    args = vars(options.parse_args_and_arch(options.get_training_parser(), given))
    assert model == {name: args[name] for name in model}
    assert model.get("tokens_per_sample") == (99 if task else None)


def test_mos_reaches_farther_than_the_printed_tanh() -> None:
    for kind, scale in (("mos", 4.0), ("mixture", 1.0)):
        layer = make_model("lstm", output_layer=kind, mixture_kernels="lin").decoder.output
        assert layer.state_dict()["tanh_scale"] == scale
