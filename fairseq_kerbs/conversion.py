"""From a trained softmax model, fairseq's own or ours, to a KerBS model.

The softmax model is rebuilt from its checkpoint. Its settings and parameters become those of the
converted model, which is built, compared with it on random sentences, and written. At θ = 0 the
kernel is the inner product (Eq. 9), so a word with one sense keeps its logit. With several it is
compared while they are equal and log(share) is added to the bias of each, which keeps the word's
probability (Eq. 4). Then senses go onto clusters, and probabilities change a little: see
:mod:`.clusters`.
"""

from __future__ import annotations

import argparse
import copy
import io
import time
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_kerbs.analysis.teacher_forcing import count_words, loss_in_bits, sample_contexts
from fairseq_kerbs.checkpoints import (
    READ,
    STOCK_WEIGHTS,
    build,
    one_sentence,
    read_checkpoint,
    registered_model,
    settings_of,
)
from fairseq_kerbs.clusters import ContextSample, Placement, place_senses
from fairseq_kerbs.configurations import Flags, flag_arguments
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import atomic_write

ALLOWED = 1e-3
"""Largest difference of log-probabilities, in nats, that rounding can explain."""
ARCHITECTURES = {
    "transformer": "transformer_kerbs",
    "transformer_lm": "transformer_lm_kerbs",
    "lstm": "fairseq_lstm_kerbs",
    "lstm_lm": "fairseq_lstm_lm_kerbs",
}
"""fairseq's models, and ours that they become."""

_OUTPUT = "decoder.output."
_STOCK_BIAS = "decoder.fc_out.bias"
_REFUSED = ("adaptive_input", "character_embeddings", "base_layers")
_UNUSED: dict[str, Any] = {
    "share_all_embeddings": False,
    "adaptive_softmax_cutoff": None,
    "encoder_embed_path": None,
    "decoder_embed_path": None,
}
"""Settings of fairseq's models that the converted one has no use for."""


@dataclass
class SoftmaxModel:
    """A model to convert."""

    checkpoint: Path
    state: dict[str, Any]  # content of the checkpoint
    config: Any  # all of its settings
    task: Any  # what it was built with
    model: Any  # in evaluation mode
    weight: Tensor  # [V, d] of its output layer
    bias: Tensor | None  # [V]
    settings: dict[str, Any]  # of the converted model, but for its senses
    replaced: set[str]  # names of the parameters that the converted output layer replaces


def read_softmax_model(
    checkpoint: Path, data: Path | None = None, trust: bool = False
) -> SoftmaxModel:
    """Rebuild the model of a checkpoint, and its task with ``data``, or with made-up words. Raises
    what :func:`read_checkpoint` and :func:`build` raise; a UserError if the model cannot be
    converted."""
    state = read_checkpoint(checkpoint, trust)  # from here on fairseq is quiet
    from fairseq_kerbs.models.config import as_namespace

    config, tensors = settings_of(checkpoint, state, data), state["model"]
    name, ours = registered_model(config.model)
    given = dict(vars(as_namespace(config.model)))
    if trust and not ours and name not in ARCHITECTURES:  # others are refused below
        known = ", ".join(ARCHITECTURES)
        raise UserError(
            f"{checkpoint} has the architecture '{name}'; {known} of fairseq can be converted"
        )
    _check_kind(checkpoint, ours, given, tensors)
    model, task = build(checkpoint, state, config, data, trust, any_model=True)
    settings = given | vars(as_namespace(config.model))  # fairseq's presets have filled in some
    loaded: dict[str, Tensor] = model.state_dict()
    names = (f"{_OUTPUT}weight", *STOCK_WEIGHTS)
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
        replaced = loaded.keys() & {*STOCK_WEIGHTS, _STOCK_BIAS} - (set() if tied else {READ})
        settings |= _UNUSED | {"input_embedding": "composed" if tied else "separate"}
        if tied:
            settings["decoder_freeze_embed"] = False  # they are the senses, too
        if name == "transformer":  # fairseq reads this flag for language models only
            settings["decoder_input_dim"] = settings["decoder_embed_dim"]
    settings |= {"arch": arch, "_name": arch, "output_layer": "kerbs", "kernel": "kerbs"}
    return SoftmaxModel(*(checkpoint, state, config, task, model, weight, bias, settings, replaced))


def _check_kind(
    checkpoint: Path, ours: bool, settings: dict[str, Any], tensors: dict[str, Tensor]
) -> None:
    """Refuse what cannot be converted."""
    layer = settings.get("output_layer", "kerbs")
    unknown = [setting.replace("_", "-") for setting in _REFUSED if settings.get(setting)]
    if any(key.startswith("decoder.adaptive_softmax.") for key in tensors):
        unknown.append("adaptive-softmax-cutoff")
    if ours and layer == "kerbs":
        raise UserError(f"{checkpoint} is a KerBS model already: train on with it as it is")
    if ours and layer != "softmax":
        raise UserError(
            f"{checkpoint} was trained with --output-layer {layer}; only a softmax can become KerBS"
        )
    if unknown:
        raise UserError(
            f"{checkpoint} was trained with --{', --'.join(unknown)}, and an output layer of "
            "fairseq_kerbs knows nothing like it; take a model without it"
        )


@dataclass
class Converted:
    """A converted model."""

    settings: argparse.Namespace  # of the model, for ``--arch`` of that name
    model: Any  # in evaluation mode
    word_of_sense: Tensor  # [M]
    difference: float  # largest difference of log-probabilities from the softmax, in nats


def convert(source: SoftmaxModel, max_senses: int, placement: Placement | None = None) -> Converted:
    """Turn a softmax model into a KerBS model with one sense a word and the same predictions, or
    with senses on clusters of contexts and nearly the same. ``max_senses`` are the most of a word.

    Raises a UserError if its settings mean something that ours do not, or predictions would differ.
    """
    words = len(source.weight)
    owners, share = torch.arange(words), torch.ones(words)
    if placement is not None:
        owners, share = placement.word_of_sense, placement.share
    # a word that never occurred counts as one occurrence
    counts = torch.tensor(source.task.target_dictionary.count).double().clamp_min(1.0)
    usage = (counts / counts.sum())[owners] * share  # U of Eq. 13
    rows = sense_rows(source, owners, share.double().log())
    settings = argparse.Namespace(**source.settings)
    settings.total_senses, settings.max_senses = len(owners) / words, max_senses
    settings.sense_bias = rows.shape[1] > source.weight.shape[1]
    settings.reallocation, settings.reallocation_at = "none", None
    model = _build(source, settings, rows, {"word_of_sense": owners, "usage": usage.float()})
    difference = largest_difference(source.model, model, source.task)
    if not difference <= ALLOWED:
        raise UserError(
            f"{source.checkpoint} cannot be converted: log-probabilities would differ by "
            f"{difference:.3g}; its settings ask for something that --arch {settings.arch} has not"
        )
    if placement is not None:
        rows = sense_rows(source, owners, placement.bias)
        rows[:, : source.weight.shape[1]] += placement.rows
        model.decoder.output.weight.data = rows
    return Converted(settings, model, owners, difference)


def sense_rows(source: SoftmaxModel, owners: Tensor, bias: Tensor) -> Tensor:
    """Vectors of the words that senses belong to, ``owners`` [M], with ``bias`` [M] added to the
    words' own: [M, d + 1], or [M, d] where there is none; float32."""
    rows = source.weight.float()[owners]
    if source.bias is None and len(owners) == len(source.weight):
        return rows
    column = bias.double() + (0.0 if source.bias is None else source.bias.double()[owners])
    return torch.cat([rows, column.float().unsqueeze(1)], dim=1)


def _build(
    source: SoftmaxModel, settings: argparse.Namespace, rows: Tensor, statistics: dict[str, Tensor]
) -> Any:
    """The converted model with the parameters of the softmax's; a UserError if only one of the two
    has some of them."""
    from fairseq.models import build_model

    with one_sentence(source.checkpoint, f"fits no --arch {settings.arch}", "take another model"):
        model = build_model(copy.copy(settings), copy.copy(source.task))
    old, new = source.model.state_dict(), model.state_dict()
    read = {key for key in new if not key.startswith(_OUTPUT)}
    if other := (old.keys() - source.replaced - new.keys()) | (read - old.keys()):
        raise UserError(
            f"{source.checkpoint} cannot be converted: only one of the two models has "
            f"{min(other)}; its settings ask for something that a model of fairseq_kerbs has not"
        )
    new |= {key: old[key] for key in read}
    new[f"{_OUTPUT}weight"], new[f"{_OUTPUT}theta"] = rows, torch.zeros(len(rows))
    new |= {f"{_OUTPUT}inventory.{name}": value for name, value in statistics.items()}
    model.load_state_dict(new, strict=True)
    return model.eval()


@torch.no_grad()
def largest_difference(first: Any, second: Any, task: Any) -> float:
    """Largest difference of two models' log-probabilities, in nats, on a few random sentences."""
    generator = torch.Generator().manual_seed(1)
    source, target = (
        torch.randint(4, len(words), (3, 9), generator=generator)
        for words in (task.source_dictionary, task.target_dictionary)
    )
    batch = {"src_tokens": source, "src_lengths": torch.full((3,), 9)}
    if hasattr(first, "encoder"):
        batch["prev_output_tokens"] = target
    scores = [
        model.get_normalized_probs(model(**batch), log_probs=True)  # [3, 9, V]
        for model in (first, second)
    ]
    return float((scores[0] - scores[1]).abs().max())


def write_checkpoint(path: Path, source: SoftmaxModel, converted: Converted) -> None:
    """Write what fairseq's loader needs: parameters and settings. Training begins anew.

    Raises what `atomic_write` raises.
    """
    from omegaconf import OmegaConf

    config: Any = OmegaConf.to_container(source.config, resolve=True, enum_to_str=True)
    history = {
        "criterion_name": "KerbsCrossEntropyCriterion",
        "optimizer_name": "FairseqAdam",
        "lr_scheduler_state": {},
        "num_updates": 0,
    }
    state = {
        "args": None,
        "cfg": config | {"model": converted.settings},
        "model": {key: value.clone() for key, value in converted.model.state_dict().items()},
        "criterion": None,
        "optimizer_history": [history],
        "extra_state": {"train_iterator": {"epoch": 1, "iterations_in_epoch": 0}},
        "last_optimizer_state": None,
        "task_state": source.state.get("task_state") or {},
    }
    content = io.BytesIO()
    torch.save(state, content)  # which would hide that a disk is full
    with atomic_write(path, "wb") as stream:
        stream.write(content.getbuffer())


# ------------------------------------------------------------------ senses on clusters


class PlacedSenses:
    """A placement, and what is worth saying of it.

    Args:
        source: the model, read with data.
        args: flags of ``fairseq-kerbs convert``.

    Raises what `teacher_forced` does; a UserError if ``--memory`` is too little.
    """

    def __init__(self, source: SoftmaxModel, args: argparse.Namespace) -> None:
        started = time.perf_counter()
        model, self._task, self._valid = source.model, source.task, args.valid_split
        self._before = loss_in_bits(model, self._task, self._valid, "--valid-split")
        counts = count_words(self._task, args.split)
        words, dim = source.weight.shape
        memory, special = int(args.memory * 1e9), self._task.target_dictionary.nspecial
        try:
            self._sample = ContextSample(counts, dim, args.contexts, memory, special)
        except ValueError as error:
            raise UserError(f"--memory {args.memory}: {error}") from None
        sample_contexts(model, self._task, args.split, self._sample)
        collected = time.perf_counter()
        total = round(args.total_senses * words)
        self.placement = place_senses(self._sample, total, args.max_senses, args.gap)
        self._seconds = collected - started, time.perf_counter() - collected

    def summary(self, converted: Converted) -> list[str]:
        """What was placed, in lines, with the loss before and after."""
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


# ------------------------------------------------------------------ flags to train on with

_KEPT = {
    "task": (
        *("source_lang", "target_lang", "left_pad_source", "left_pad_target", "truncate_source"),
        *("max_source_positions", "max_target_positions"),
        *("tokens_per_sample", "sample_break_mode", "add_bos_token", "self_target"),
    ),
    "optimization": ("lr", "clip_norm", "update_freq", "sentence_avg"),
    "dataset": ("max_tokens", "batch_size"),
    "criterion": ("label_smoothing",),
}
"""Settings that are kept, by part of the configuration; of the optimizer and schedule all are."""

# of an optimizer or schedule, but said elsewhere; the length of training is for the user to say
_ELSEWHERE = ("_name", "lr", "tpu", "max_update", "total_num_update")
# the first is for --input-embedding to say, the second for models that are refused
_REPLACED = ("share_decoder_input_output_embed", "base_shuffle")


def finetuning_flags(config: Any, settings: argparse.Namespace, out: Path) -> Flags:
    """Flags of the model, its task and its training, those that differ from the defaults, by all
    settings of the softmax model (``config``), and ``settings`` and file of the converted one.
    Raises a UserError if a setting of the model cannot be given on a command line."""
    import fairseq.optim  # noqa: F401  (registers)
    from fairseq import options

    from fairseq_kerbs.models.config import as_namespace

    task = getattr(config.task, "_name", None) or getattr(config.task, "task", "translation")
    flags: Flags = {"finetune-from-model": str(out.resolve()), "task": str(task)}
    flags |= {"arch": str(settings.arch), "criterion": "kerbs_cross_entropy"}
    wanted: dict[str, Any] = {}
    for part, names in _KEPT.items():
        wanted |= {name: getattr(getattr(config, part), name, None) for name in names}
    for part in ("optimizer", "lr_scheduler"):
        chosen = vars(as_namespace(getattr(config, part, None) or argparse.Namespace()))
        if chosen.get("_name"):
            flags[part.replace("_", "-")] = str(chosen["_name"])
            wanted |= {name: value for name, value in chosen.items() if name not in _ELSEWHERE}
    wanted = {name: value for name, value in wanted.items() if value is not None}
    settings_of_arch, defaults = _model_flags(str(settings.arch))
    wanted |= {name: value for name, value in vars(settings).items() if name in settings_of_arch}
    while True:  # again: a size that is set may be the default of others
        parser = options.get_training_parser()
        given = options.parse_args_and_arch(parser, ["DATA", *flag_arguments(flags)])
        values = defaults | vars(given)
        differing = [
            action
            for action in parser._actions
            if action.dest in wanted and not _same(wanted[action.dest], values.get(action.dest))
        ]
        if not differing:
            return flags
        before = len(flags)
        for action in differing:
            flag, value = action.option_strings[0][2:], wanted[action.dest]
            # a switch that is on by another flag's default goes off with that flag
            if flag not in flags and value is not None and (action.nargs != 0 or value):
                flags[flag] = True if action.nargs == 0 else _written(value)
        if len(flags) == before:
            setting = differing[0].dest
            raise UserError(
                f"--arch {settings.arch} has no flag for {setting}={wanted[setting]}, which this "
                "model was trained with; it cannot be converted"
            )


def _model_flags(arch: str) -> tuple[set[str], dict[str, Any]]:
    """Names of an architecture's settings; defaults of fairseq's Transformers, by dataclass."""
    from fairseq.dataclass.utils import gen_parser_from_dataclass
    from fairseq.models import ARCH_MODEL_REGISTRY
    from fairseq.models.transformer import TransformerConfig
    from fairseq.models.transformer_lm import TransformerLanguageModelConfig

    parser, stock = (argparse.ArgumentParser(allow_abbrev=False) for _ in range(2))
    ARCH_MODEL_REGISTRY[arch].add_args(parser)
    config = TransformerLanguageModelConfig() if "_lm" in arch else TransformerConfig()
    gen_parser_from_dataclass(stock, config, with_prefix="")
    return {action.dest for action in parser._actions} - {*_REPLACED}, vars(stock.parse_args([]))


def _same(value: Any, given: Any) -> bool:
    """Whether two settings mean the same; a switch that is off may also be absent."""
    off = (None, False)
    return _written(value) == _written(given) or (value in off and given in off)


def _written(value: Any) -> str:
    """A value as it stands on a command line."""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        return str(value)
    return ",".join(map(str, value))
