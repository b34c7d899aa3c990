"""Convert a trained softmax model of fairseq or fairseq_kerbs into a KerBS model.

The converted model has the settings and parameters of the softmax model. At θ = 0 the kernel is the
inner product (Eq. 9), so a word with one sense keeps its logit. Senses of a word that share its
embedding, with log(share) added to the bias, keep its probability (Eq. 4). This is verified on
random sentences. Then the senses are placed on clusters of contexts
(:mod:`.reallocation.clustering`), which
changes probabilities slightly.
"""

from __future__ import annotations

import argparse
import copy
import io
import time
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_kerbs import checkpoints
from fairseq_kerbs.analysis.teacher_forcing import count_words, loss_in_bits, sample_contexts
from fairseq_kerbs.configurations import Flags, flag_arguments
from fairseq_kerbs.reallocation.clustering import (
    LEAST_CONTEXTS,
    ContextSample,
    Placement,
    PlacementSettings,
    place_senses,
)
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import atomic_write
from fairseq_kerbs.utils.processes import progress

ALLOWED = 1e-3
"""Largest difference of log-probabilities that rounding errors can cause, in nats."""
ARCHITECTURES = {
    "transformer": "transformer_kerbs",
    "transformer_lm": "transformer_lm_kerbs",
    "lstm": "fairseq_lstm_kerbs",
    "lstm_lm": "fairseq_lstm_lm_kerbs",
}
"""Architecture of the converted model for each model of fairseq."""

_OUTPUT = "decoder.output."
_STOCK_BIAS = "decoder.fc_out.bias"
_REFUSED = ("adaptive_input", "character_embeddings", "base_layers")
_UNUSED = {"share_all_embeddings": False} | dict.fromkeys(
    ("adaptive_softmax_cutoff", "encoder_embed_path", "decoder_embed_path")
)
"""Settings of fairseq's models that do not apply to the converted model."""


@dataclass
class SoftmaxModel:
    """A model to convert."""

    checkpoint: Path
    state: dict[str, Any]  # content of the checkpoint
    config: Any  # configuration of its training
    task: Any  # fairseq's task that the model was built with
    model: Any  # in evaluation mode
    weight: Tensor  # output embeddings, [V, d]
    bias: Tensor | None  # output biases, [V]
    settings: dict[str, Any]  # of the converted model, except the number of senses
    replaced: set[str]  # names of the parameters that the converted output layer replaces


def read_softmax_model(
    checkpoint: Path, data: Path | None = None, trust: bool = False
) -> SoftmaxModel:
    """Rebuild the model of a softmax model's checkpoint.

    For ``data`` and ``trust`` see :func:`.checkpoints.load_model_and_task`. A UserError is raised
    if the checkpoint cannot be read, or the model cannot be converted.
    """
    state = checkpoints.read_checkpoint(checkpoint, trust)  # this silences fairseq's logs
    from fairseq_kerbs.models.config import as_namespace

    config, tensors = checkpoints.settings_of(checkpoint, state, data), state["model"]
    name, ours = checkpoints.registered_model(config.model)
    settings = dict(vars(as_namespace(config.model)))
    if trust and not ours and name not in ARCHITECTURES:  # without trust, build() refuses it
        known = ", ".join(ARCHITECTURES)
        raise UserError(
            f"{checkpoint} has the architecture '{name}'; {known} of fairseq can be converted"
        )
    _check_kind(checkpoint, ours, settings, tensors)
    model, task = checkpoints.build(checkpoint, state, config, data, trust, any_model=True)
    settings |= vars(as_namespace(config.model))  # build() has added values of fairseq's presets
    loaded: dict[str, Tensor] = model.state_dict()
    names = (f"{_OUTPUT}weight", *checkpoints.STOCK_WEIGHTS)
    weight, bias = next(loaded[key] for key in names if key in loaded), loaded.get(_STOCK_BIAS)
    if ours:
        arch = settings.get("arch", name)
        replaced = {key for key in loaded if key.startswith(_OUTPUT)}
        if settings.get("sense_bias"):
            weight, bias = weight[:, :-1], weight[:, -1]
    else:
        arch = ARCHITECTURES[name]
        if name == "transformer_lm" and not settings["decoder_normalize_before"]:
            arch = "fairseq_transformer_lm_kerbs"
        tied = bool(settings.get("share_decoder_input_output_embed"))
        replaced = loaded.keys() & {*checkpoints.STOCK_WEIGHTS, _STOCK_BIAS}
        if not tied:
            replaced.discard(checkpoints.READ)
        settings |= _UNUSED | {"input_embedding": "composed" if tied else "separate"}
        if tied:
            settings["decoder_freeze_embed"] = False  # they are the sense embeddings
        if name == "transformer":  # fairseq reads this flag for language models only
            settings["decoder_input_dim"] = settings["decoder_embed_dim"]
    settings |= {"arch": arch, "_name": arch, "output_layer": "kerbs", "kernel": "kerbs"}
    return SoftmaxModel(checkpoint, state, config, task, model, weight, bias, settings, replaced)


def _check_kind(
    checkpoint: Path, ours: bool, settings: dict[str, Any], tensors: dict[str, Tensor]
) -> None:
    """Raise a UserError if this kind of model cannot be converted."""
    layer = settings.get("output_layer", "kerbs")
    unknown = [setting.replace("_", "-") for setting in _REFUSED if settings.get(setting)]
    if any(key.startswith("decoder.adaptive_softmax.") for key in tensors):
        unknown.append("adaptive-softmax-cutoff")
    if ours and layer == "kerbs":
        raise UserError(f"{checkpoint} is a KerBS model already; it needs no conversion")
    if ours and layer != "softmax":
        raise UserError(
            f"{checkpoint} was trained with --output-layer {layer}; only a softmax can become KerBS"
        )
    if unknown:
        raise UserError(
            f"{checkpoint} was trained with --{', --'.join(unknown)}, which fairseq_kerbs does not "
            "support; take a model without it"
        )


@dataclass
class Converted:
    """A converted model."""

    settings: argparse.Namespace  # of the model
    model: Any  # in evaluation mode
    word_of_sense: Tensor  # [M]
    difference: float  # largest difference of log-probabilities before the placement, in nats


def convert(source: SoftmaxModel, max_senses: int, placement: Placement | None = None) -> Converted:
    """Build a KerBS model from a softmax model, with at most ``max_senses`` senses per word.

    ``placement`` has the senses on clusters of contexts. By default each word has one sense, and
    predictions are equal to those of the softmax model. A UserError is raised if the settings
    cannot be converted, or predictions would differ.
    """
    from fairseq.models import build_model

    words = len(source.weight)
    word_of_sense, share = torch.arange(words), torch.ones(words)
    if placement is not None:
        word_of_sense, share = placement.word_of_sense, placement.share
    # a word that never occurred counts as one occurrence
    counts = torch.tensor(source.task.target_dictionary.count).double().clamp_min(1.0)
    usage = (counts / counts.sum())[word_of_sense] * share  # U of Eq. 13
    rows = sense_rows(source, word_of_sense, share.double().log())
    settings = argparse.Namespace(**source.settings)
    settings.total_senses, settings.max_senses = len(rows) / words, max_senses
    settings.sense_bias = rows.shape[1] > source.weight.shape[1]
    settings.reallocation, settings.reallocation_at = "none", None
    fault = f"fits no --arch {settings.arch}"
    with checkpoints.as_user_error(source.checkpoint, fault, "take another model"):
        model = build_model(copy.copy(settings), copy.copy(source.task))
    old, new = source.model.state_dict(), model.state_dict()
    copied = {key for key in new if not key.startswith(_OUTPUT)}
    if unmatched := (old.keys() - source.replaced - new.keys()) | (copied - old.keys()):
        raise UserError(
            f"{source.checkpoint} cannot be converted: only one of the two models has "
            f"{min(unmatched)}; fairseq_kerbs does not support some of its settings"
        )
    new |= {key: old[key] for key in copied}
    new[f"{_OUTPUT}weight"], new[f"{_OUTPUT}theta"] = rows, torch.zeros(len(rows))
    new[f"{_OUTPUT}inventory.word_of_sense"] = word_of_sense
    new[f"{_OUTPUT}inventory.usage"] = usage.float()
    model.load_state_dict(new, strict=True)
    model.eval()
    difference = largest_difference(source.model, model, source.task)
    if not difference <= ALLOWED:
        raise UserError(
            f"{source.checkpoint} cannot be converted: log-probabilities would differ by "
            f"{difference:.3g} nats; --arch {settings.arch} does not support some of its settings"
        )
    if placement is not None:
        rows = sense_rows(source, word_of_sense, placement.bias)
        rows[:, : source.weight.shape[1]] += placement.rows
        model.decoder.output.weight.data = rows
    return Converted(settings, model, word_of_sense, difference)


def sense_rows(source: SoftmaxModel, word_of_sense: Tensor, bias: Tensor) -> Tensor:
    """Embeddings of senses as copies of their words', float32 [M, d + 1] with the bias last.

    ``bias`` [M] is added to the biases of the words. Without these, and with one sense per word,
    the result is [M, d].
    """
    rows = source.weight.float()[word_of_sense]
    if source.bias is None and len(word_of_sense) == len(source.weight):
        return rows
    column = bias.double() + (0.0 if source.bias is None else source.bias.double()[word_of_sense])
    return torch.cat([rows, column.float().unsqueeze(1)], dim=1)


@torch.no_grad()
def largest_difference(first: Any, second: Any, task: Any) -> float:
    """Largest difference of two models' log-probabilities on three random sentences, in nats."""
    generator = torch.Generator().manual_seed(1)
    source, target = (
        torch.randint(4, len(words), (3, 9), generator=generator)
        for words in (task.source_dictionary, task.target_dictionary)
    )
    batch = {"src_tokens": source, "src_lengths": torch.full((3,), 9)}
    if hasattr(first, "encoder"):
        batch["prev_output_tokens"] = target
    scores = [m.get_normalized_probs(m(**batch), log_probs=True) for m in (first, second)]
    return float((scores[0] - scores[1]).abs().max())


def write_checkpoint(path: Path, source: SoftmaxModel, converted: Converted) -> None:
    """Write a checkpoint of fairseq with parameters and settings, at update 0."""
    from omegaconf import OmegaConf

    config: Any = OmegaConf.to_container(source.config, resolve=True, enum_to_str=True)
    history = {"criterion_name": "KerbsCrossEntropyCriterion", "optimizer_name": "FairseqAdam"}
    state = {
        "args": None,
        "cfg": config | {"model": converted.settings},
        "model": {key: value.clone() for key, value in converted.model.state_dict().items()},
        "criterion": None,
        "optimizer_history": [history | {"lr_scheduler_state": {}, "num_updates": 0}],
        "extra_state": {"train_iterator": {"epoch": 1, "iterations_in_epoch": 0}},
        "last_optimizer_state": None,
        "task_state": source.state.get("task_state") or {},
    }
    content = io.BytesIO()
    torch.save(state, content)  # to memory, as torch.save hides the error of a full disk
    with atomic_write(path, "wb") as stream:
        stream.write(content.getbuffer())


class PlacedSenses:
    """A placement of senses, and its statistics.

    ``source`` was read with data, and ``args`` are the flags of ``fairseq-kerbs convert``. A
    UserError is raised if a split cannot be read, or ``--memory`` is too small.
    """

    def __init__(self, source: SoftmaxModel, args: argparse.Namespace) -> None:
        started = time.perf_counter()
        model, self._task, self._valid = source.model, source.task, args.valid_split
        self._before = loss_in_bits(model, self._task, self._valid, "--valid-split")
        counts = count_words(self._task, args.split)
        words, dim = source.weight.shape
        memory, special = int(min(args.memory, 1e6) * 1e9), self._task.target_dictionary.nspecial
        try:
            self._sample = ContextSample(counts, dim, args.contexts, memory, special)
        except ValueError as error:
            raise UserError(f"--memory {args.memory}: {error}") from None
        sample_contexts(model, self._task, args.split, self._sample)
        if not self._sample.enough.any():
            raise UserError(
                f"--split {args.split}: no word occurs {LEAST_CONTEXTS} times, so none can have "
                "several senses; name another split"
            )
        sampled = time.perf_counter()
        total = round(args.total_senses * words)
        settings = PlacementSettings(total, args.max_senses, args.gap)
        bar = partial(progress, title="clusters", unit=" batches")
        self.placement = place_senses(self._sample, settings, bar)
        self._seconds = sampled - started, time.perf_counter() - sampled

    def summary(self, converted: Converted) -> list[str]:
        """Lines with numbers of senses, contexts and seconds, and the loss before and after."""
        counts = converted.word_of_sense.bincount().bincount()[1:].tolist()
        words = ", ".join(f"{n} with {senses}" for senses, n in enumerate(counts, start=1))
        seen, contexts = int(self._sample.seen.sum()), self._sample.kept
        after = loss_in_bits(converted.model, self._task, self._valid)
        size = contexts.numel() * contexts.element_size() / 1e6
        return [
            f"words by number of senses: {words}",
            f"contexts: {seen} seen, {len(contexts)} kept ({size:.0f} MB), in "
            f"{self._seconds[0]:.0f} s; clusters: {self._seconds[1]:.0f} s",
            f"loss of split {self._valid}: {self._before:.3f} bits a token before, "
            f"{after:.3f} after",
        ]


_KEPT = {
    "task": (
        "source_lang",
        "target_lang",
        "left_pad_source",
        "left_pad_target",
        "truncate_source",
        "max_source_positions",
        "max_target_positions",
        "tokens_per_sample",
        "sample_break_mode",
        "add_bos_token",
        "self_target",
    ),
    "optimization": ("lr", "clip_norm", "update_freq", "sentence_avg"),
    "dataset": ("max_tokens", "batch_size"),
    "criterion": ("label_smoothing",),
}
"""Settings to keep, by section of the configuration, beside all of the optimizer and schedule."""

# of an optimizer or schedule, but set elsewhere; the user sets the length of training
_ELSEWHERE = ("lr", "tpu", "max_update", "total_num_update")
# --input-embedding replaces the first; the second belongs to models that cannot be converted
_REPLACED = ("share_decoder_input_output_embed", "base_shuffle")


def finetuning_flags(config: Any, settings: argparse.Namespace, out: Path) -> Flags:
    """Flags of fairseq-train to train the checkpoint ``out`` on, where they are not the defaults.

    ``config`` is that of the softmax model's training, and ``settings`` are those of the converted
    model. A UserError is raised if no flag sets one of these.
    """
    from fairseq import options
    from fairseq.optim import OPTIMIZER_REGISTRY
    from fairseq.optim.lr_scheduler import LR_SCHEDULER_REGISTRY

    from fairseq_kerbs.models.config import as_namespace

    task = getattr(config.task, "_name", None) or getattr(config.task, "task", "translation")
    flags: Flags = {"finetune-from-model": str(out.resolve()), "task": str(task)}
    flags |= {"arch": str(settings.arch), "criterion": "kerbs_cross_entropy"}
    wanted: dict[str, Any] = {}
    for part, names in _KEPT.items():
        wanted |= {name: getattr(getattr(config, part), name, None) for name in names}
    parts = {"optimizer": OPTIMIZER_REGISTRY, "lr_scheduler": LR_SCHEDULER_REGISTRY}
    for part, registry in parts.items():
        values = vars(as_namespace(getattr(config, part, None) or argparse.Namespace()))
        if name := values.get("_name"):
            if name not in registry:
                raise UserError(f"fairseq has no {part} {name}, which this model was trained with")
            flags[part.replace("_", "-")] = name
            parser = argparse.ArgumentParser(allow_abbrev=False)
            registry[name].add_args(parser)
            # without a dataclass, as SGD, values has all flags of the training
            defined = {action.dest for action in parser._actions} - {*_ELSEWHERE}
            wanted |= {name: value for name, value in values.items() if name in defined}
    wanted = {name: value for name, value in wanted.items() if value is not None}
    settings_of_arch, defaults = _model_flags(str(settings.arch))
    wanted |= {name: value for name, value in vars(settings).items() if name in settings_of_arch}
    while True:  # repeat, as a flag can change the defaults of others
        parser = options.get_training_parser()
        parsed = options.parse_args_and_arch(parser, ["DATA", *flag_arguments(flags)])
        values = defaults | vars(parsed)
        actions = [action for action in parser._actions if action.dest in wanted]
        differing = [a for a in actions if not _same(wanted[a.dest], values.get(a.dest))]
        if not differing:
            return flags
        before = len(flags)
        for action in differing:
            flag, value = action.option_strings[0][2:], wanted[action.dest]
            # no flag turns a switch off; a later iteration sets the flag that turned it on
            if flag not in flags and value is not None and (action.nargs != 0 or value):
                flags[flag] = True if action.nargs == 0 else _written(value)
        if len(flags) == before:
            setting = differing[0].dest
            raise UserError(
                f"--arch {settings.arch} has no flag for {setting}={wanted[setting]}, which this "
                "model was trained with; take another model"
            )


def _model_flags(arch: str) -> tuple[set[str], dict[str, Any]]:
    """Names of an architecture's settings, and the defaults of fairseq's Transformers."""
    from fairseq.dataclass.utils import gen_parser_from_dataclass
    from fairseq.models import ARCH_MODEL_REGISTRY
    from fairseq.models.transformer import TransformerConfig
    from fairseq.models.transformer_lm import TransformerLanguageModelConfig

    parser, stock = (argparse.ArgumentParser(allow_abbrev=False) for _ in range(2))
    ARCH_MODEL_REGISTRY[arch].add_args(parser)
    config = TransformerLanguageModelConfig() if "_lm" in arch else TransformerConfig()
    gen_parser_from_dataclass(stock, config, with_prefix="")
    return {action.dest for action in parser._actions} - {*_REPLACED}, vars(stock.parse_args([]))


def _same(value: Any, other: Any) -> bool:
    """Whether two values of a setting are equal. None is equal to False."""
    off = (None, False)
    return _written(value) == _written(other) or (value in off and other in off)


def _written(value: Any) -> str:
    """Text of a value on the command line."""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        return str(value)
    return ",".join(map(str, value))
