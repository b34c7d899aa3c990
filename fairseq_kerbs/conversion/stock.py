"""Trained softmax models that can be converted: fairseq's own, and ours with a plain softmax.

A model is built by fairseq's own functions from the settings in its checkpoint, and its parameters
are loaded by its own code, which knows what older versions of fairseq wrote.
"""

from __future__ import annotations

import argparse
import copy
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from fairseq_kerbs.analysis.saved_layer import STOCK_WEIGHTS
from fairseq_kerbs.checkpoints import read_checkpoint, registered_model, set_aside, settings_of
from fairseq_kerbs.utils.errors import ProgramEnd, UserError, reason_of

ARCHITECTURES = {
    "transformer": "transformer_kerbs",
    "transformer_lm": "transformer_lm_kerbs",
    "lstm": "fairseq_lstm_kerbs",
    "lstm_lm": "fairseq_lstm_lm_kerbs",
}
"""fairseq's models, and ours that they become."""

_READ, _OURS = "decoder.embed_tokens.weight", "decoder.output."
_WEIGHTS = (*(f"decoder.{name}" for name in STOCK_WEIGHTS), _READ)
_BIAS = "decoder.fc_out.bias"
_REFUSED = ("adaptive_input", "character_embeddings", "base_layers")


def building_task(source: int, target: int, targets: list[str]) -> SimpleNamespace:
    """As much of a task as it takes to build a model: dictionaries of so many made-up words.

    ``targets`` are what a language model predicts: "future" or "self".
    """
    from fairseq.data import Dictionary

    dictionaries = []
    for entries in (source, target):
        dictionaries.append(Dictionary())
        for number in range(entries - len(dictionaries[-1])):
            dictionaries[-1].add_symbol(f"word{number}")
    return SimpleNamespace(
        source_dictionary=dictionaries[0],
        **dict.fromkeys(("target_dictionary", "dictionary", "output_dictionary"), dictionaries[1]),
        targets=targets,
        **dict.fromkeys(("optimizer_step", "train_step")),  # it trains nothing
    )


@dataclass
class SoftmaxModel:
    """A model to convert."""

    checkpoint: Path
    state: dict[str, Any]  # content of the checkpoint
    config: Any  # all of its settings
    settings: argparse.Namespace  # those of the model
    arch: str  # architecture that it becomes
    own: bool  # whether it is one of ours
    task: SimpleNamespace  # what it was built with
    model: Any  # in evaluation mode
    weight: Tensor  # [V, d] of its output layer
    bias: Tensor | None  # [V]
    tied: bool  # whether its decoder reads words with the same vectors
    replaced: set[str]  # names of the parameters that the converted output layer replaces


def read_softmax_model(
    checkpoint: Path, trust: bool = False, averaged: bool = False
) -> SoftmaxModel:
    """Rebuild the model of a checkpoint.

    Args:
        checkpoint: a file of fairseq-train.
        trust: see :func:`fairseq_kerbs.checkpoints.read_checkpoint`.
        averaged: take the averages of ``--store-ema`` in place of the parameters.

    Raises:
        UserError: see :func:`read_checkpoint`; there are no averages; or the model is none that can
            be converted, for a reason that the message names.
    """
    state = read_checkpoint(checkpoint, trust)
    if averaged:
        state["model"] = (state.get("extra_state") or {}).get("ema")
        if not state["model"]:
            raise UserError(f"--ema: {checkpoint} holds no averages, as --store-ema makes them")
    config = settings_of(checkpoint, state)
    name, own = _check_kind(checkpoint, config)
    given = _settings(config.model)
    _check_layer(checkpoint, given, state["model"])
    names = (f"{_OURS}weight",) if own else _WEIGHTS
    sizes = [len(state["model"][key]) for key in names if key in state["model"]]
    if not sizes:
        raise UserError(f"{checkpoint} has no parameters of an output layer; take a whole model")
    task, model = _build(checkpoint, config, state["model"], sizes[0])
    settings = given | _settings(config.model)  # with what fairseq's presets have filled in by now
    loaded: dict[str, Tensor] = model.state_dict()
    weight, bias = next(loaded[key] for key in names if key in loaded), loaded.get(_BIAS)
    if own:
        arch = str(settings.get("arch", name))
        replaced = {key for key in loaded if key.startswith(_OURS)}
        tied = settings.get("input_embedding", "composed") == "composed"
        if settings.get("sense_bias"):
            weight, bias = weight[:, :-1], weight[:, -1]
    else:
        arch = ARCHITECTURES[name]
        tied = bool(settings.get("share_decoder_input_output_embed"))
        replaced = loaded.keys() & {*_WEIGHTS, _BIAS} - (set() if tied else {_READ})
        if name == "transformer_lm" and not settings["decoder_normalize_before"]:
            arch = "fairseq_transformer_lm_kerbs"
    return SoftmaxModel(
        *(checkpoint, state, config, argparse.Namespace(**settings), arch, own, task, model),
        *(weight, bias, tied, replaced),
    )


def _settings(model: Any) -> dict[str, Any]:
    from fairseq_kerbs.models.config import as_namespace

    return dict(vars(as_namespace(model)))


def _check_kind(checkpoint: Path, config: Any) -> tuple[str, bool]:
    """Name of the model in fairseq's registry, and whether it is ours."""
    name, own = registered_model(config.model)
    layer = getattr(config.model, "output_layer", "kerbs")
    if own and layer == "kerbs":
        raise UserError(f"{checkpoint} is a KerBS model already: train on with it as it is")
    if own and layer != "softmax":
        raise UserError(
            f"{checkpoint} was trained with --output-layer {layer}; only a softmax can become KerBS"
        )
    if not own and name not in ARCHITECTURES:
        raise UserError(
            f"{checkpoint} is a model '{name}'; those that can be converted are "
            f"{', '.join(ARCHITECTURES)} of fairseq and those of fairseq_kerbs with a softmax"
        )
    return str(name), own


def _check_layer(checkpoint: Path, settings: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    refused = [setting for setting in _REFUSED if settings.get(setting)]
    if any(key.startswith("decoder.adaptive_softmax.") for key in tensors):
        refused.append("adaptive_softmax_cutoff")
    if refused:
        raise UserError(
            f"{checkpoint} was trained with --{refused[0].replace('_', '-')}, and an output layer "
            "of fairseq_kerbs knows nothing like it; take a model without it"
        )


def _build(
    checkpoint: Path, config: Any, tensors: dict[str, Tensor], words: int
) -> tuple[SimpleNamespace, Any]:
    """A task with so many words in the target dictionary, and the model in evaluation mode."""
    from fairseq.models import build_model

    try:
        read = tensors.get("encoder.embed_tokens.weight", tensors.get(_READ))
        kinds = ("self", "future", "past")
        targets = [kind for kind in kinds if getattr(config.task, f"{kind}_target", False)]
        source = words if read is None else len(read)
        task = building_task(source, words, targets or ["future"])
        set_aside(config.model)
        model = build_model(config.model, task)
        model.load_state_dict(copy.copy(tensors), strict=True, model_cfg=config.model)
    except ProgramEnd as error:
        raise UserError(f"{checkpoint}: {error.sentence}") from None
    except Exception as error:  # what fairseq raises about settings and sizes is of every kind
        raise UserError(
            f"{checkpoint} does not hold the model that its settings describe "
            f"({reason_of(error)}); take the file that fairseq-train wrote"
        ) from error
    return task, model.eval()
