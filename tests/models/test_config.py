"""Flags: where they come from, which are refused, and those of policies."""

import argparse
import math
from argparse import Namespace
from typing import Any

import pytest
from fairseq import options
from fairseq.models import ARCH_CONFIG_REGISTRY
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf, ValidationError

from fairseq_kerbs.models import PRESETS
from fairseq_kerbs.models.config import (
    KerbsConfig,
    in_flags,
    policy_from_flags,
    settings_of_program,
    user_errors,
)
from fairseq_kerbs.reallocation import AuthorsCode
from fairseq_kerbs.utils.errors import UserError
from tests.helpers import fairseq_fixtures as tiny
from tests.helpers.fairseq_fixtures import (
    make_model,
    make_task,
)


def test_settings_come_from_a_command_line_and_from_hydra() -> None:
    whole = OmegaConf.create({"checkpoint": {"save_dir": "a"}, "model": {"kernel": "kerbs"}})
    assert settings_of_program(whole.model)["save_dir"] == "a"
    assert settings_of_program(Namespace(save_dir="b"))["save_dir"] == "b"


def test_settings_of_policies_are_flags() -> None:
    flags = KerbsConfig.__dataclass_fields__
    assert flags["cluster_gap"].default == 1.0
    assert flags["cluster_gap"].type is float
    assert flags["cluster_gap"].metadata["within"] == "(0, inf)"
    assert flags["max_moves"].metadata["help"].startswith("for --reallocation released: maximum")
    assert "paper (Algorithm 1), released (" in flags["reallocation"].metadata["help"]
    interval = flags["reallocation_interval"].metadata["help"]
    assert interval.endswith("senses are placed [200; 100 with --reallocation released]")


def test_the_policy_has_the_settings_of_its_flags() -> None:
    given = Namespace(reallocation="released", max_moves=1, log_prob_threshold=-100.0)
    ARCH_CONFIG_REGISTRY["lstm_kerbs"](given)
    assert policy_from_flags(given) == AuthorsCode(max_moves=1.0)
    for flags in ({"reallocation": "none"}, {"output_layer": "softmax"}):
        given = Namespace(**flags)
        ARCH_CONFIG_REGISTRY["lstm_kerbs"](given)
        assert policy_from_flags(given) is None


@pytest.mark.parametrize("kernel", ["rbf", "kerbs_released"])
def test_clusters_need_a_kernel_that_is_an_inner_product(kernel: str) -> None:
    """Which is said before that such a kernel has no bias."""
    sentence = f"--reallocation clusters places senses of --kernel kerbs or lin, not {kernel}: give"
    with pytest.raises(UserError, match=sentence):
        make_model("lstm", reallocation="clusters", kernel=kernel)


def test_a_policy_without_senses_to_place_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        model = make_model("lstm", reallocation="clusters", total_senses=1.0)
    assert model.decoder.output.policy is None
    assert "--reallocation clusters has nothing to place with --total-senses 1" in caplog.text


Flags = dict[str, Any]
# each of these alone is wrong
WRONG_ALONE: list[tuple[str, Flags]] = [
    ("transformer", {"total_senses": 0.5, "sense_decay": 1.0, "composition_passes": -2}),
    ("transformer", {"share_all_embeddings": True, "decoder_output_dim": 8}),
    ("transformer_lm", {"adaptive_input": True, "decoder_output_dim": 8}),
    ("fairseq_lstm", {"total_senses": 4.5, "share_all_embeddings": True}),
    ("fairseq_lstm", {"adaptive_softmax_cutoff": "5,9", "decoder_freeze_embed": True}),
    ("lstm", {"max_senses": 0, "kernel": "rfb", "sense_decay": -0.1, "log_prob_threshold": 0.5}),
    ("lstm", {"reallocation_interval": 0, "hidden_size": 13, "embed_dim": 0, "layers": 0}),
    ("lstm", {"cluster_gap": 0.0, "attention": "bahdanu"}),
    ("gru_lm", {"hidden_size": -1}),
    ("bilstm_lm", {"dropout": 1.5}),
]
WRONG_FLAGS: list[tuple[str, Flags, str]] = [
    *(
        (model, {name: value}, f"--{name.replace('_', '-')}")
        for model, flags in WRONG_ALONE
        for name, value in flags.items()
    ),
    (
        "transformer",
        {"share_decoder_input_output_embed": True, "input_embedding": "separate"},
        "--share-decoder-input-output-embed asks for one embedding",
    ),
    ("bilstm_lm", {"targets": ["future"]}, "--self-target"),
    ("gru_lm", {"targets": ["self"]}, "--self-target"),
    ("transformer_lm", {"targets": ["self", "future"]}, "--self-target"),
    ("lstm_lm", {"targets": None}, "--task language_modeling"),
    ("gru_lm", {"source_dictionary": tiny.dictionary(19)}, "--output-dictionary-size"),
    ("fairseq_lstm", {"decoder_out_embed_dim": 9}, "--decoder-embed-dim"),
    ("fairseq_lstm", {"decoder_layers": 2}, "--encoder-layers"),
    ("fairseq_lstm", {"sense_bias": True, "output_layer": "mos"}, "--sense-bias"),
    ("lstm", {"sense_bias": True, "output_layer": "mos"}, "mos, which has a bias already"),
    ("lstm", {"sense_bias": True, "kernel": "rbf"}, "--sense-bias"),
    ("lstm", {"mixture_tanh_scale": 1.0}, "not read by --output-layer kerbs: leave it out"),
    ("gru_lm", {"output_layer": "softmax", "mixture_tanh_scale": 2.0}, "--output-layer softmax"),
    *(
        ("lstm", {"output_layer": "mos", "mixture_tanh_scale": r}, f"--mixture-tanh-scale is {r}, ")
        for r in (0.0, -1.0, math.inf, math.nan)
    ),
    ("lstm", {"output_layer": "mos", "mixture_components": 0}, "--mixture-components"),
    ("lstm", {"output_layer": "mixture", "mixture_kernels": "lin,,log"}, "--mixture-kernels"),
    ("lstm", {"output_layer": "mixture", "mixture_kernels": "lin,rfb"}, "'rfb'"),
    (
        "lstm",
        {"kernel": "lin", "kernel_power": 1.0},
        "kernels log, pow and pol, and is not read by --kernel lin",
    ),
    (
        "lstm",
        {"kernel": "pow", "kernel_gamma": 1.0},
        "--kernel-gamma is for the kernel",
    ),
    ("lstm", {"output_layer": "mos", "kernel_gamma": 1.0}, "--output-layer mos"),
    (
        "lstm",
        {"output_layer": "mixture", "kernel": "rbf"},
        "--kernel rbf is not read by --output-layer mixture: name its kernels by --mixture-kernels",
    ),
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
]


@pytest.mark.parametrize(("name", "flags", "named"), WRONG_FLAGS)
def test_a_wrong_flag_ends_with_one_sentence(name: str, flags: Flags, named: str) -> None:
    task = tiny.make_task(model=name)
    of_task = {key: flags[key] for key in ("targets", "source_dictionary") if key in flags}
    vars(task).update(of_task)
    with pytest.raises(SystemExit) as ending:
        make_model(name, task, **{key: flags[key] for key in flags.keys() - of_task.keys()})
    assert named in str(ending.value)
    assert "\n" not in str(ending.value)


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


@pytest.mark.parametrize("kind", ["mos", "mixture"])
def test_mixtures_are_the_published_ones_unless_flags_say_otherwise(kind: str) -> None:
    for given, scale in ((None, 1.0), (4.0, 4.0), ("0.5", 0.5)):
        flags: Flags = {"output_layer": kind, "mixture_tanh_scale": given}
        if kind == "mixture":
            flags["mixture_kernels"] = "lin"
        layer = make_model("lstm", **flags).decoder.output
        assert layer.tanh_scale == scale
        biases = {name for name, _ in layer.named_parameters() if "bias" in name}
        assert biases == ({"bias", "projections.bias"} if kind == "mos" else set())


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("`max_senses` is 0.", "--max-senses is 0."),
        ("`decay` and `policy` differ.", "--sense-decay and --reallocation differ."),
        ("`power` of `kernel` is 0.", "--kernel-power of --kernel is 0."),
        ("--total-senses is 0, `h` has no rows.", "--total-senses is 0, `h` has no rows."),
    ],
)
def test_parameters_become_flags_at_the_boundary(sentence: str, expected: str) -> None:
    with pytest.raises(UserError) as ended, user_errors():
        raise ValueError(sentence)
    assert str(ended.value) == expected == in_flags(sentence)
    assert ended.value.code == f"fairseq_kerbs: error: {expected}"  # fairseq's programs end with 1


PUBLISHED = {  # Sections 4 and 5 of the paper, which does not give Q
    "output_layer": "kerbs",
    "kernel": "kerbs",
    "total_senses": 3.0,
    "max_senses": 4,
    "reallocation": "paper",
    "reallocation_interval": 200,
    "reallocation_at": None,
    "sense_allocation": "random",
    "sense_bias": False,
    "composition": "posterior",
}


@pytest.mark.parametrize("arch", [arch for presets in PRESETS.values() for arch in presets])
def test_a_bare_architecture_is_the_method_of_the_paper(arch: str) -> None:
    given = argparse.Namespace()
    ARCH_CONFIG_REGISTRY[arch](given)
    assert {name: getattr(given, name) for name in PUBLISHED} == PUBLISHED
    ours = argparse.Namespace(reallocation="clusters")
    ARCH_CONFIG_REGISTRY[arch](ours)  # asked for by name, it turns on what it needs
    assert ours.sense_bias is True


@pytest.mark.parametrize(
    ("layer", "flag", "value"),
    [
        ("kerbs", "--mixture-components", 5),
        ("mixture", "--mixture-components", 5),
        ("mos", "--mixture-kernels", "lin,pow"),
        ("softmax", "--mixture-kernels", "lin,pow"),
    ],
)
def test_flags_of_another_output_layer_are_refused(layer: str, flag: str, value: Any) -> None:
    name = flag[2:].replace("-", "_")
    with pytest.raises(UserError, match=f"^{flag} is for --output-layer .* not read by .* {layer}"):
        make_model("lstm", output_layer=layer, **{name: value})


@pytest.mark.parametrize(
    ("policy", "flag", "value"),
    [
        ("clusters", "--log-prob-threshold", -50.0),
        ("released", "--log-prob-threshold", -50.0),
        ("paper", "--max-moves", 0.1),
        ("paper", "--cluster-gap", 2.0),
    ],
)
def test_flags_of_another_policy_are_refused(policy: str, flag: str, value: Any) -> None:
    name = flag[2:].replace("-", "_")
    with pytest.raises(UserError, match=f"^{flag} is for --reallocation .*by .* {policy}: leave"):
        make_model("lstm", reallocation=policy, **{name: value})
    make_model("lstm", reallocation="none", **{name: value})  # an ablation
    make_model("lstm", output_layer="softmax", **{name: value})  # a baseline


def test_the_released_policy_brings_its_interval_and_equal_numbers_of_senses() -> None:
    """But not where a flag says otherwise, and not with another output layer."""
    for flags, interval, allocation in (
        ({"reallocation": "released"}, 100, "equal"),
        ({"reallocation": "released", "reallocation_interval": 30}, 30, "equal"),
        ({"reallocation": "released", "sense_allocation": "random"}, 100, "random"),
        ({"reallocation": "released", "output_layer": "softmax"}, 200, "random"),
        ({"reallocation": "paper"}, 200, "random"),
        ({"reallocation": "paper", "sense_allocation": "equal"}, 200, "equal"),
    ):
        given = argparse.Namespace(**flags)
        ARCH_CONFIG_REGISTRY["lstm_kerbs"](given)
        assert given.reallocation_interval == interval, flags
        assert given.sense_allocation == allocation, flags
        task = make_task(model="lstm")
        model = make_model("lstm", task, **flags)
        assert task._kerbs_updates.schedule.interval == interval, flags
        if given.output_layer == "kerbs":
            counts = model.decoder.output.senses_per_word()
            assert (counts.max() == counts.min()) == (allocation == "equal"), flags
