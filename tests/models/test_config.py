"""From parameters to flags, from flags to sentences; and what architectures preset."""

from __future__ import annotations

import argparse

import pytest
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY

from fairseq_kerbs.models import PRESETS, GruKerbsModel, LstmKerbsModel, TransformerKerbsModel
from fairseq_kerbs.models.config import in_flags, user_errors
from fairseq_kerbs.utils.errors import UserError


@pytest.mark.parametrize(("sentence", "expected"), [
    ("`max_senses` is 0.", "--max-senses is 0."),
    ("`decay` and `policy` differ.", "--sense-decay and --reallocation differ."),
    ("`power` of `kernel` is 0.", "--kernel-power of --kernel is 0."),
    ("--total-senses is 0, `h` has no rows.", "--total-senses is 0, `h` has no rows."),
])  # fmt: skip
def test_parameters_become_flags_at_the_boundary(sentence: str, expected: str) -> None:
    with pytest.raises(UserError) as ended, user_errors():
        raise ValueError(sentence)
    assert str(ended.value) == expected == in_flags(sentence)
    assert ended.value.code == f"fairseq_kerbs: error: {expected}"  # fairseq's programs end with 1


def test_models_that_translate_have_clusters_where_no_flag_says_otherwise() -> None:
    policies: dict[str, set[str]] = {}
    for name, model in ARCH_MODEL_REGISTRY.items():
        if model in PRESETS:
            for given in (argparse.Namespace(), argparse.Namespace(reallocation="released")):
                ARCH_CONFIG_REGISTRY[name](given)
                policies.setdefault(given.reallocation, set()).add(name)
    models = (TransformerKerbsModel, LstmKerbsModel, GruKerbsModel)
    assert policies["clusters"] == {name for model in models for name in PRESETS[model]}
    assert policies["paper"] == policies["released"] - policies["clusters"]
