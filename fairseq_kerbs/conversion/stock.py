"""Trained softmax models that can be converted: fairseq's own, and ours with a plain softmax.

A model is built by fairseq's own functions from the settings in its checkpoint, and its parameters
are loaded by its own code, which knows what older versions of fairseq wrote.
"""

from __future__ import annotations

import argparse
import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from torch import Tensor

from fairseq_kerbs.checkpoints import read_checkpoint, set_aside, settings_of
from fairseq_kerbs.utils.errors import ProgramEnd, UserError, reason_of


class Stock(NamedTuple):
    """A model of fairseq: our architecture, and the names of its output layer's parameters."""

    arch: str
    weight: tuple[str, ...]  # [V, d]: the first that there is
    bias: str | None = None  # [V]


_READ, _OURS = "decoder.embed_tokens.weight", "decoder.output."
_TRANSFORMER = ("decoder.output_projection.weight", "decoder.embed_out", _READ)
_LSTM = (("decoder.fc_out.weight", _READ), "decoder.fc_out.bias")
ARCHITECTURES = {
    "transformer": Stock("transformer_kerbs", _TRANSFORMER),
    "transformer_lm": Stock("transformer_lm_kerbs", _TRANSFORMER),
    "lstm": Stock("fairseq_lstm_kerbs", *_LSTM),
    "lstm_lm": Stock("fairseq_lstm_lm_kerbs", *_LSTM),
}
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
    """A model to convert."""

    checkpoint: Path
    state: dict[str, Any]  # content of the checkpoint
    config: Any  # all of its settings
    settings: argparse.Namespace  # those of the model
    arch: str  # architecture that it becomes
    own: bool  # whether it is one of ours
    task: BuildingTask  # what it was built with
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
        averages = (state.get("extra_state") or {}).get("ema")
        if not averages:
            raise UserError(f"--ema: {checkpoint} holds no averages, as --store-ema makes them")
        state["model"] = averages
    config = settings_of(checkpoint, state)
    name, stock = _kind(checkpoint, config)
    given, tensors = _settings(config.model), state["model"]
    refused = [setting for setting in _REFUSED if given.get(setting)]
    if any(key.startswith("decoder.adaptive_softmax.") for key in tensors):
        refused.append("adaptive_softmax_cutoff")
    for setting in refused:
        raise UserError(
            f"{checkpoint} was trained with --{setting.replace('_', '-')}, and an output layer of "
            "fairseq_kerbs knows nothing like it; take a model without it"
        )
    task = _task(checkpoint, config, tensors, stock)
    model = _build(checkpoint, config, task, tensors)
    # with what fairseq's presets have filled in by now
    settings = given | _settings(config.model)
    loaded: dict[str, Tensor] = model.state_dict()
    weight = loaded[next(key for key in stock.weight if key in loaded)]
    bias = loaded.get(stock.bias or "")
    replaced = {key for key in loaded if key.startswith(_OURS)}
    arch, own = stock.arch, bool(replaced)
    if own:
        arch = str(settings.get("arch", name))
        tied = settings.get("input_embedding", "composed") == "composed"
        if settings.get("sense_bias"):
            weight, bias = weight[:, :-1], weight[:, -1]
    else:
        tied = bool(settings.get("share_decoder_input_output_embed"))
        replaced = {key for key in (*stock.weight, stock.bias) if key in loaded}
        replaced -= set() if tied else {_READ}
        if name == "transformer_lm" and not settings["decoder_normalize_before"]:
            arch = "fairseq_transformer_lm_kerbs"
    return SoftmaxModel(
        *(checkpoint, state, config, argparse.Namespace(**settings), arch, own, task, model),
        *(weight, bias, tied, replaced),
    )


def _settings(model: Any) -> dict[str, Any]:
    from fairseq_kerbs.models.config import as_namespace

    return dict(vars(as_namespace(model)))


def _kind(checkpoint: Path, config: Any) -> tuple[str, Stock]:
    """Name of the model in fairseq's registry, and where its parameters are."""
    from fairseq.models import ARCH_MODEL_NAME_REGISTRY, MODEL_REGISTRY

    given = getattr(config.model, "_name", None) or getattr(config.model, "arch", None)
    name = str(ARCH_MODEL_NAME_REGISTRY.get(given, given))
    if str(getattr(MODEL_REGISTRY.get(name), "__module__", "")).startswith("fairseq_kerbs."):
        layer = getattr(config.model, "output_layer", "kerbs")
        if layer == "kerbs":
            raise UserError(f"{checkpoint} is a KerBS model already: train on with it as it is")
        if layer != "softmax":
            raise UserError(
                f"{checkpoint} was trained with --output-layer {layer}; only a softmax can become "
                "KerBS"
            )
        return name, Stock(name, (f"{_OURS}weight",))
    if name not in ARCHITECTURES:
        raise UserError(
            f"{checkpoint} is a model '{given}'; those that can be converted are "
            f"{', '.join(ARCHITECTURES)} of fairseq and those of fairseq_kerbs with a softmax"
        )
    return name, ARCHITECTURES[name]


def _task(checkpoint: Path, config: Any, tensors: dict[str, Any], stock: Stock) -> BuildingTask:
    def words(*names: str) -> int:
        return next((len(tensors[key]) for key in names if key in tensors), 0)

    target = words(*stock.weight)
    read = words("encoder.embed_tokens.weight", _READ) or target
    if min(target, read) <= _SPECIAL:
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
