"""Models: composition in training and in decoding, scores, padding, causality, wrong flags."""

from __future__ import annotations

import argparse
from typing import Any

import pytest
import torch
from fairseq import options
from fairseq.models import ARCH_CONFIG_REGISTRY
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf, ValidationError

from fairseq_kerbs.models import PRESETS
from tests.helpers.fairseq_fixtures import (
    MODELS,
    SIZES,
    make_batch,
    make_model,
    make_task,
    step_by_step,
    teacher_forced,
)

SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("transformer", {"composition_passes": -1}),
    ("transformer", {"composition_passes": 0}),
    ("transformer", {"composition": "prior"}),
    ("transformer", {"output_layer": "softmax"}),
    ("transformer", {"kernel": "kerbs_released", "total_senses": 2.0, "composition_passes": -1}),
    ("transformer", {"sense_bias": True, "composition_passes": -1}),
    ("transformer", {"input_embedding": "separate", "decoder_output_dim": 20}),
    ("lstm", {}),
    ("lstm", {"sense_bias": True}),
    ("lstm", {"composition": "prior"}),
    ("lstm", {"output_layer": "softmax"}),
    ("gru", {}),
    ("gru", {"kernel": "lin"}),
]


@pytest.mark.parametrize(("name", "flags"), SETTINGS)
def test_teacher_forcing_and_step_by_step_decoding_give_the_same_scores(
    name: str, flags: dict[str, Any]
) -> None:
    model = make_model(name, **flags)
    for reorder_at in (-1, 3):
        batch = make_batch(same_source=reorder_at >= 0)
        real = batch["target"].ne(1)
        with torch.no_grad():
            together = teacher_forced(model, batch)
            single = step_by_step(model, batch, reorder_at)
        torch.testing.assert_close(single[real], together[real], rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("name", ["transformer", "lstm", "gru"])
def test_composition_reaches_the_scores(name: str) -> None:
    """The test above would pass as well if the posterior were never used."""
    batch = make_batch()
    with torch.no_grad():
        posterior = teacher_forced(make_model(name), batch)
        prior = teacher_forced(make_model(name, composition="prior"), batch)
    torch.testing.assert_close(posterior[:, 0], prior[:, 0])  # no previous word at position 0
    assert (posterior[:, 1:] - prior[:, 1:]).abs().max() > 1e-2


def test_enough_passes_are_the_sequential_recursion() -> None:
    """Pass k is exact at the first k positions; decoding step by step is the recursion of Eq. 6."""
    batch = make_batch()
    net_input = batch["net_input"]
    tokens = net_input["prev_output_tokens"]
    real = batch["target"].ne(1)
    model = make_model("transformer")
    with torch.no_grad():
        encoder_out = model.encoder(net_input["src_tokens"], net_input["src_lengths"])
        state: dict[str, Any] = {}
        exact = [
            model.decoder(tokens[:, : step + 1], encoder_out, state)[0]
            for step in range(tokens.shape[1])
        ]
        recursion = torch.cat(exact, 1)
        for passes in range(tokens.shape[1] + 1):
            model.decoder.passes = passes
            features, _ = model(**net_input)
            near = real.clone()
            near[:, passes + 1 :] = False  # position p needs p passes
            torch.testing.assert_close(features[near], recursion[near], rtol=1e-4, atol=2e-5)
        model.decoder.passes = -1
        sequential, _ = model(**net_input)
        torch.testing.assert_close(sequential[real], recursion[real], rtol=1e-4, atol=2e-5)
        model.decoder.passes = 1
        one_pass, _ = model(**net_input)
    assert (one_pass[real] - recursion[real]).abs().max() > 1e-3


@pytest.mark.parametrize("name", list(MODELS))
def test_padding_changes_nothing(name: str) -> None:
    model = make_model(name)
    with torch.no_grad():
        plain, padded = make_batch(), make_batch(pad_to=11)
        real = plain["target"].ne(1)
        expected = teacher_forced(model, plain)
        found = teacher_forced(model, padded)[:, : real.shape[1]]
    torch.testing.assert_close(found[real], expected[real], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", list(MODELS))
def test_padding_of_targets_on_the_left_changes_nothing(name: str) -> None:
    """--left-pad-target: what is trained must be what decoding computes, which knows no padding."""
    model, right, left = make_model(name), make_batch(), make_batch()
    real, tokens = right["target"].ne(1), left["net_input"]["prev_output_tokens"]
    for row, length in enumerate(real.sum(1).tolist()):
        tokens[row] = tokens[row].roll(real.shape[1] - length)
    with torch.no_grad():
        expected = teacher_forced(model, right)[real]
        found = teacher_forced(model, left)[real.flip(1)]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


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


@pytest.mark.parametrize("name", list(MODELS))
def test_a_later_token_never_changes_an_earlier_score(name: str) -> None:
    model, batch = (
        make_model(name, **({"composition_passes": 2} if name == "transformer" else {})),
        make_batch(),
    )
    with torch.no_grad():
        before = teacher_forced(model, batch)
        batch["net_input"]["prev_output_tokens"][0, 4] = 9
        after = teacher_forced(model, batch)
    torch.testing.assert_close(after[:, :4], before[:, :4])
    assert (after[0, 4:6] - before[0, 4:6]).abs().max() > 1e-4


@pytest.mark.parametrize("name", list(MODELS))
@pytest.mark.parametrize("layer", ["kerbs", "softmax"])
def test_every_parameter_learns(name: str, layer: str) -> None:
    model = make_model(name, output_layer=layer).train()
    batch = make_batch()
    features, _ = model(**batch["net_input"])
    model.decoder.output.nll(features, batch["target"], ignore_index=1).backward()
    idle = [key for key, value in model.named_parameters() if value.grad is None]
    assert idle == []


def test_probabilities_sum_to_one_at_every_temperature() -> None:
    model, batch = make_model("transformer"), make_batch()
    with torch.no_grad():
        features, extra = model(**batch["net_input"])
        for temperature in (0.5, 1.0, 3.0):
            probs = model.get_normalized_probs((features / temperature, extra), log_probs=False)
            torch.testing.assert_close(
                probs.sum(-1), torch.ones_like(probs[..., 0]), atol=1e-5, rtol=0
            )


WRONG_FLAGS = [
    ({"total_senses": 0.5}, "--total-senses"),
    ({"total_senses": 4.5}, "--total-senses"),
    ({"max_senses": 0}, "--max-senses"),
    ({"kernel": "rfb"}, "--kernel"),
    ({"sense_decay": -0.1}, "--sense-decay"),
    ({"sense_decay": 1.0}, "--sense-decay"),
    ({"log_prob_threshold": 0.5}, "--log-prob-threshold"),
    ({"reallocation_interval": 0}, "--reallocation-interval"),
    ({"composition_passes": -2}, "--composition-passes"),
]


@pytest.mark.parametrize("name", ["transformer", "lstm"])
@pytest.mark.parametrize(("flags", "named"), WRONG_FLAGS)
def test_a_wrong_flag_ends_with_one_sentence(name: str, flags: dict[str, Any], named: str) -> None:
    with pytest.raises(SystemExit) as ending:
        make_model(name, **flags)
    message = str(ending.value)
    assert named in message
    assert "\n" not in message
    assert message.startswith("fairseq_kerbs: error:")


@pytest.mark.parametrize("flags", [{"share_all_embeddings": True}, {"decoder_output_dim": 8}])
def test_the_transformer_refuses_what_it_cannot_do(flags: dict[str, Any]) -> None:
    with pytest.raises(SystemExit, match="--" + next(iter(flags)).replace("_", "-")):
        make_model("transformer", **flags)


@pytest.mark.parametrize(
    "flags", [{"hidden_size": 13}, {"hidden_size": 0}, {"embed_dim": 0}, {"layers": 0}]
)
def test_sizes_that_make_no_recurrent_model_are_refused(flags: dict[str, int]) -> None:
    args = argparse.Namespace(**(SIZES["lstm"] | flags))
    with pytest.raises(SystemExit, match="--" + next(iter(flags)).replace("_", "-")):
        MODELS["lstm"].build_model(args, make_task())


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"total_senses": 2.0}, "--total-senses"),
        ({"kernel": "lin"}, "--kernel"),
        ({"output_layer": "softmax"}, "--output-layer"),
        ({"total_senses": 3.0, "max_senses": 3}, "--max-senses"),
    ],
)
@pytest.mark.parametrize("name", ["transformer", "lstm"])
def test_a_checkpoint_of_another_model_is_refused(
    name: str, flags: dict[str, Any], named: str
) -> None:
    saved = make_model(name).state_dict()
    other = make_model(name, **flags)
    with pytest.raises(SystemExit) as ending:
        other.load_state_dict(saved)
    assert named in str(ending.value)


@pytest.mark.parametrize("name", list(MODELS))
def test_inventory_and_scores_survive_a_checkpoint(name: str) -> None:
    model, other, batch = make_model(name, seed=0), make_model(name, seed=5), make_batch()
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert torch.equal(teacher_forced(other, batch), teacher_forced(model, batch))
    for key, value in model.decoder.output.inventory.state_dict().items():
        assert torch.equal(other.decoder.output.inventory.state_dict()[key], value), key


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
