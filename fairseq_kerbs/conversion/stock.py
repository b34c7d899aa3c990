"""Trained softmax models that can be converted: fairseq's own, and ours with a plain softmax.

A model is built by fairseq's own functions from the settings in its checkpoint, and its parameters
are loaded by its own code, which knows what older versions of fairseq wrote.
"""

from __future__ import annotations

import argparse
import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from torch import Tensor

from fairseq_kerbs.checkpoints import read_checkpoint, set_aside, settings_of
from fairseq_kerbs.utils.errors import ProgramEnd, UserError, reason_of

ARCHITECTURES = {
    "transformer": "transformer_kerbs",
    "transformer_lm": "transformer_lm_kerbs",
    "lstm": "fairseq_lstm_kerbs",
    "lstm_lm": "fairseq_lstm_lm_kerbs",
}
"""Our architectures by fairseq's models."""

_PROJECTIONS = ("decoder.output_projection.weight", "decoder.embed_out", "decoder.fc_out.weight")
_READ, _OURS = "decoder.embed_tokens.weight", "decoder.output."
_REFUSED = ("adaptive_input", "character_embeddings", "base_layers")
_SPECIAL = 4  # entries that every dictionary of fairseq begins with


class BuildingTask:
    """As much of a task as it takes to build a model: dictionaries of made-up words.

    Args:
        source, target: numbers of entries.
        targets: what a language model predicts, "future" or "self".
    """

    def __init__(self, source: int, target: int, targets: list[str]) -> None:
        self.target_dictionary = self.dictionary = self.output_dictionary = _made_up(target)
        # one object where the sizes allow it: fairseq ties embeddings of equal dictionaries only
        self.source_dictionary = self.dictionary if source == target else _made_up(source)
        self.targets = targets

    def optimizer_step(self, *args: Any, **kwargs: Any) -> NoReturn:
        """No training with this task."""
        raise NotImplementedError("a model that is being converted is not trained")

    train_step = optimizer_step


def _made_up(entries: int) -> Any:
    from fairseq.data import Dictionary

    dictionary = Dictionary()
    for number in range(entries - len(dictionary)):
        dictionary.add_symbol(f"word{number}")
    return dictionary


@dataclass
class SoftmaxModel:
    """A model to convert.

    Attributes:
        checkpoint: its file.
        state: content of the checkpoint.
        config: all of its settings.
        settings: those of the model.
        arch: architecture that it becomes.
        own: whether it is one of ours.
        task: what it was built with.
        model: the model, in evaluation mode.
        weight, bias: [V, d] and [V] of its output layer; no bias is None.
        tied: whether its decoder reads words with the same vectors.
        replaced: names of the parameters that the output layer of the converted model replaces.
    """

    checkpoint: Path
    state: dict[str, Any]
    config: Any
    settings: argparse.Namespace
    arch: str
    own: bool
    task: BuildingTask
    model: Any
    weight: Tensor
    bias: Tensor | None
    tied: bool
    replaced: set[str]


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
        averages = (state.get("extra_state") or {}).get("ema")
        if not averages:
            raise UserError(f"--ema: {checkpoint} holds no averages, as --store-ema makes them")
        state["model"] = averages
    config = settings_of(checkpoint, state)
    name, own = _model_name(checkpoint, config)
    settings = _settings(config.model)
    tensors = state["model"]
    _refuse_exotic(checkpoint, settings, tensors)
    task = _task(checkpoint, config, tensors, own)
    model = _build(checkpoint, config, task, tensors)
    # what fairseq's presets have filled in by now
    settings = argparse.Namespace(**(vars(settings) | vars(_settings(config.model))))
    found = _parts(model, settings, own)
    arch = str(getattr(settings, "arch", name)) if own else ARCHITECTURES[name]
    if name == "transformer_lm" and not settings.decoder_normalize_before:
        arch = "fairseq_transformer_lm_kerbs"
    return SoftmaxModel(checkpoint, state, config, settings, arch, own, task, model, *found)


def _settings(model: Any) -> argparse.Namespace:
    from fairseq_kerbs.models.config import as_namespace

    return argparse.Namespace(**vars(as_namespace(model)))


def _model_name(checkpoint: Path, config: Any) -> tuple[str, bool]:
    """Name of the model in fairseq's registry, and whether it is one of ours."""
    from fairseq.models import ARCH_MODEL_NAME_REGISTRY, MODEL_REGISTRY

    given = getattr(config.model, "_name", None) or getattr(config.model, "arch", None)
    name = ARCH_MODEL_NAME_REGISTRY.get(given, given)
    own = str(getattr(MODEL_REGISTRY.get(name), "__module__", "")).startswith("fairseq_kerbs.")
    if own:
        layer = getattr(config.model, "output_layer", "kerbs")
        if layer == "kerbs":
            raise UserError(f"{checkpoint} is a KerBS model already: train on with it as it is")
        if layer != "softmax":
            raise UserError(
                f"{checkpoint} was trained with --output-layer {layer}; only a softmax can become "
                "KerBS"
            )
    elif name not in ARCHITECTURES:
        raise UserError(
            f"{checkpoint} is a model '{given}'; those that can be converted are "
            f"{', '.join(ARCHITECTURES)} of fairseq and those of fairseq_kerbs with a softmax"
        )
    return str(name), own


def _refuse_exotic(checkpoint: Path, settings: argparse.Namespace, tensors: dict[str, Any]) -> None:
    refused = [setting for setting in _REFUSED if getattr(settings, setting, None)]
    if any(key.startswith("decoder.adaptive_softmax.") for key in tensors):
        refused.append("adaptive_softmax_cutoff")
    for setting in refused:
        flag = "--" + setting.replace("_", "-")
        raise UserError(
            f"{checkpoint} was trained with {flag}, and an output layer of fairseq_kerbs knows "
            "nothing like it; take a model without it"
        )


def _task(checkpoint: Path, config: Any, tensors: dict[str, Any], own: bool) -> BuildingTask:
    own_name = f"{_OURS}weight"
    names = (own_name,) if own else (*_PROJECTIONS, _READ)
    target = next((len(tensors[key]) for key in names if key in tensors), None)
    read = next(
        (len(tensors[key]) for key in ("encoder.embed_tokens.weight", _READ) if key in tensors),
        target,
    )
    if target is None or read is None or min(target, read) <= _SPECIAL:
        raise UserError(f"{checkpoint} has no parameters of an output layer; take a whole model")
    kinds = ("self", "future", "past")
    targets = [kind for kind in kinds if getattr(config.task, f"{kind}_target", False)]
    return BuildingTask(read, target, targets or ["future"])


def _build(checkpoint: Path, config: Any, task: BuildingTask, tensors: dict[str, Any]) -> Any:
    from fairseq.models import build_model

    try:
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
    return model.eval()


def _parts(
    model: Any, settings: argparse.Namespace, own: bool
) -> tuple[Tensor, Tensor | None, bool, set[str]]:
    """Weight and bias of the output layer, whether it is tied, and names of what goes."""
    tensors: dict[str, Tensor] = model.state_dict()
    if own:
        weight, bias = tensors[f"{_OURS}weight"], None
        if getattr(settings, "sense_bias", False):
            weight, bias = weight[:, :-1], weight[:, -1]
        gone = {key for key in tensors if key.startswith(_OURS)}
        return weight, bias, getattr(settings, "input_embedding", "composed") == "composed", gone
    tied = bool(getattr(settings, "share_decoder_input_output_embed", False))
    gone = {key for key in tensors if key in _PROJECTIONS or key == "decoder.fc_out.bias"}
    name = next((key for key in _PROJECTIONS if key in tensors), _READ)
    if tied:
        gone.add(_READ)
    return tensors[name], tensors.get("decoder.fc_out.bias"), tied, gone
