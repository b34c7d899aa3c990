"""Flags: where they come from, those of policies, and those that are gone."""

import argparse
from argparse import Namespace

import pytest
from fairseq.models import ARCH_CONFIG_REGISTRY
from omegaconf import OmegaConf

from fairseq_kerbs.configurations import GONE_FLAGS
from fairseq_kerbs.models.config import (
    KerbsConfig,
    add_gone_flags,
    policy_from_flags,
    settings_of_program,
)
from fairseq_kerbs.reallocation import AuthorsCode
from fairseq_kerbs.utils.errors import UserError
from tests.helpers.fairseq_fixtures import make_model


def test_settings_come_from_a_command_line_and_from_hydra() -> None:
    whole = OmegaConf.create({"checkpoint": {"save_dir": "a"}, "model": {"kernel": "kerbs"}})
    assert settings_of_program(whole.model)["save_dir"] == "a"
    assert settings_of_program(Namespace(save_dir="b"))["save_dir"] == "b"


@pytest.mark.parametrize("flag", GONE_FLAGS)
def test_a_flag_that_is_gone_says_what_to_do(flag: str) -> None:
    parser = argparse.ArgumentParser()
    add_gone_flags(parser)
    assert vars(parser.parse_args([])) == {}
    assert flag not in parser.format_help()
    for arguments in ([flag], [flag, "split"], [f"{flag}=split"]):
        with pytest.raises(UserError, match=f"^{flag} is gone: .*: leave it out.$"):
            parser.parse_args(arguments)


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
