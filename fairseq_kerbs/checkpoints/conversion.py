"""Convert a checkpoint of a softmax model of fairseq or fairseq_kerbs into one of a KerBS model.

The converted model has the settings and parameters of the softmax model. At θ = 0 the kernel is the
inner product (Eq. 9), so a word with one sense keeps its logit. Senses of a word that share its
embedding, with log(share) added to the bias, keep its probability (Eq. 4). This is verified on
random sentences. Then the senses are placed on clusters of contexts
(:mod:`fairseq_kerbs.reallocation.placement`), which changes probabilities slightly.
"""

from __future__ import annotations

import copy
import io
import time
from argparse import Namespace  # as which fairseq keeps the settings of a model
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_kerbs.checkpoints.building import (
    INPUT_EMBEDDING,
    OUTPUT_EMBEDDINGS,
    build_model_and_task,
)
from fairseq_kerbs.checkpoints.contexts import loss_in_bits, sample_split
from fairseq_kerbs.checkpoints.finetuning import finetuning_flags
from fairseq_kerbs.checkpoints.reading import Checkpoint, open_checkpoint, plain_settings
from fairseq_kerbs.configurations import Flags
from fairseq_kerbs.reallocation.context_sample import LEAST_CONTEXTS, ContextSample
from fairseq_kerbs.reallocation.placement import (
    NumberOfSenses,
    Placement,
    PlacementSettings,
    place_senses,
)
from fairseq_kerbs.senses import checksum_of
from fairseq_kerbs.utils.dictionaries import digests_of
from fairseq_kerbs.utils.errors import UserError, as_user_error
from fairseq_kerbs.utils.files import atomic_write
from fairseq_kerbs.utils.progress import progress

ROUNDING_ERROR = 1e-3
"""Largest difference of log-probabilities that rounding errors can cause, in nats."""
ARCHITECTURES = {
    "transformer": "transformer_kerbs",
    "transformer_lm": "transformer_lm_kerbs",
    "lstm": "fairseq_lstm_kerbs",
    "lstm_lm": "fairseq_lstm_lm_kerbs",
}
"""Architecture of the converted model for each model of fairseq."""

Evidence = Callable[[Any, str, ContextSample], "NumberOfSenses | None"]
"""Number of senses of each word by a task, a split and its sample; None if nothing tells it."""

_OUTPUT_LAYER = "decoder.output."
_STOCK_BIAS = "decoder.fc_out.bias"
_UNSUPPORTED_SETTINGS = ("adaptive_input", "character_embeddings", "base_layers")
_INAPPLICABLE_SETTINGS = {
    "share_all_embeddings": False,
    "adaptive_softmax_cutoff": None,
    "encoder_embed_path": None,
    "decoder_embed_path": None,
}
"""Settings of fairseq's models that do not apply to the converted model, with the values there."""


@dataclass(frozen=True)
class PlacementOnData:
    """How senses are placed on clusters of the contexts of a split.

    With ``evidence`` they are senses to read, as many as it says. Without it, or if it returns
    None, they are rows that lower the loss of further training, as many as the limit allows.
    """

    total_senses: float = 3.0  # maximum number of senses, in units of the vocabulary size
    split: str = "train"  # split whose contexts are clustered
    valid_split: str = "valid"  # split for the loss before and after
    contexts: int = 600  # maximum number of sampled contexts of a word
    gap: float = 1.0  # maximum preference of a sense for its cluster, in nats
    memory: float = 2.0  # maximum size of the sample of contexts, in GB
    evidence: Evidence | None = None  # see :mod:`fairseq_kerbs.analysis.evidence`
    evidence_needed: bool = False  # raise a UserError if it returns None


@dataclass(frozen=True)
class ConversionSettings:
    """What is converted, and how. ``data`` and ``placement`` are given together, or not at all."""

    max_senses: int = 4  # maximum number of senses of a word
    data: Path | None = None  # folder of binarized data; without it, each word has one sense
    placement: PlacementOnData | None = None
    trust: bool = False  # whether the checkpoint may run code, see :mod:`.reading`


@dataclass(frozen=True)
class Conversion:
    """What has been done."""

    arch: str  # architecture of the converted model
    words: int
    senses: int
    summary: list[str]  # lines about the difference of the two models
    finetuning: Flags  # flags of fairseq-train to train the converted model


def convert_checkpoint(checkpoint: Path, output: Path, settings: ConversionSettings) -> Conversion:
    """Convert the softmax model in a file, and write the KerBS model to another.

    A UserError is raised if the checkpoint or its data cannot be read, or the model cannot be
    converted. Nothing has been written then.
    """
    source = read_softmax_model(checkpoint, settings.data, settings.trust)
    if settings.placement is None:
        converted = add_senses(source, settings.max_senses)
        difference = f"{converted.difference:.2g} nats"
        summary = [f"largest difference of log-probabilities on random sentences: {difference}"]
    else:
        placed = _place(source, settings.placement, settings.max_senses)
        converted = add_senses(source, settings.max_senses, placed.placement)
        summary = _summarize(source, converted, placed, settings.placement)
    flags = finetuning_flags(source.checkpoint.config, converted.settings, output)
    length = flags.get("total-num-update")
    if length:
        summary.append(
            f"the schedule of the training ends after --total-num-update {length}: replace it by "
            "that of the new training"
        )
    write_checkpoint(output, source, converted)
    words = len(source.weight)
    senses = len(converted.word_of_sense)
    return Conversion(str(converted.settings.arch), words, senses, summary, flags)


# ------------------------------------------------------------------ the softmax model


@dataclass
class SoftmaxModel:
    """A model to convert."""

    checkpoint: Checkpoint
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

    For ``data`` and ``trust`` see :func:`.building.load_model_and_task`. A UserError is raised if
    the checkpoint cannot be read, or the model cannot be converted.
    """
    read = open_checkpoint(checkpoint, data, trust=trust, others=ARCHITECTURES)
    _check_kind(read)
    model, task = build_model_and_task(read, data)
    # read now, as building the model has added values of fairseq's presets
    settings = plain_settings(read.config.model)
    loaded: dict[str, Tensor] = model.state_dict()
    names = (f"{_OUTPUT_LAYER}weight", *OUTPUT_EMBEDDINGS)
    weight = next(loaded[key] for key in names if key in loaded)
    bias = loaded.get(_STOCK_BIAS)
    if read.ours:
        settings["arch"] = settings.get("arch", read.name)
        replaced = {key for key in loaded if key.startswith(_OUTPUT_LAYER)}
        if settings.get("sense_bias"):
            bias = weight[:, -1]
            weight = weight[:, :-1]
    else:
        tied = bool(settings.get("share_decoder_input_output_embed"))
        replaced = loaded.keys() & {*OUTPUT_EMBEDDINGS, _STOCK_BIAS}
        if not tied:
            replaced.discard(INPUT_EMBEDDING)
        settings |= _translated_settings(read.name, settings, tied)
    settings |= {"_name": settings["arch"], "output_layer": "kerbs", "kernel": "kerbs"}
    return SoftmaxModel(read, task, model, weight, bias, settings, replaced)


def _translated_settings(name: str, settings: dict[str, Any], tied: bool) -> dict[str, Any]:
    """Settings of our model that differ from those of fairseq's model of this name."""
    arch = ARCHITECTURES[name]
    if name == "transformer_lm" and not settings["decoder_normalize_before"]:
        arch = "fairseq_transformer_lm_kerbs"
    translated = {**_INAPPLICABLE_SETTINGS, "arch": arch}
    translated["input_embedding"] = "composed" if tied else "separate"
    if tied:
        translated["decoder_freeze_embed"] = False  # they are the sense embeddings
    if name == "transformer":  # fairseq reads this flag for language models only
        translated["decoder_input_dim"] = settings["decoder_embed_dim"]
    return translated


def _check_kind(checkpoint: Checkpoint) -> None:
    """Raise a UserError if this kind of model cannot be converted."""
    path = checkpoint.path
    settings = checkpoint.config.model
    layer = getattr(settings, "output_layer", "kerbs")
    unsupported = [
        name.replace("_", "-") for name in _UNSUPPORTED_SETTINGS if getattr(settings, name, None)
    ]
    if any(key.startswith("decoder.adaptive_softmax.") for key in checkpoint.state["model"]):
        unsupported.append("adaptive-softmax-cutoff")
    if checkpoint.ours and layer == "kerbs":
        raise UserError(f"{path} is a KerBS model already; it needs no conversion")
    if checkpoint.ours and layer != "softmax":
        raise UserError(
            f"{path} was trained with --output-layer {layer}; only a softmax can become KerBS"
        )
    if unsupported:
        raise UserError(
            f"{path} was trained with --{', --'.join(unsupported)}, which fairseq_kerbs does "
            "not support; take a model without it"
        )


# ------------------------------------------------------------------ senses on clusters


@dataclass(frozen=True)
class _Placed:
    """A placement of senses, and what its summary says."""

    placement: Placement
    sample: ContextSample
    by_evidence: bool  # whether evidence told the numbers of senses
    loss: float  # of the softmax model, in bits a token
    sampling: float  # seconds of both passes over the split
    aligning: float  # seconds of the reading and the alignment of source words
    clustering: float  # seconds


def _place(source: SoftmaxModel, settings: PlacementOnData, max_senses: int) -> _Placed:
    """Place senses on clusters of the contexts of a softmax model, which was read with data."""
    model = source.model
    task = source.task
    words, dim = source.weight.shape
    loss = loss_in_bits(model, task, settings.valid_split, "--valid-split")
    started = time.perf_counter()
    sample = sample_split(model, task, settings.split, dim, settings.contexts, settings.memory)
    sampling_ended = time.perf_counter()
    total = round(settings.total_senses * words)
    bar = partial(progress, title="clusters", unit=" batches")
    number = None
    if settings.evidence is not None:
        number = settings.evidence(task, settings.split, sample)
        if number is None and settings.evidence_needed:
            raise UserError(
                f"--number-of-senses evidence: split {settings.split} has no source side in "
                "another language, which would tell how many senses a word has; give "
                "--number-of-senses distortion"
            )
    limits = PlacementSettings(total, max_senses, settings.gap, number)
    aligning_ended = time.perf_counter()
    placement = place_senses(sample, limits, bar)
    return _Placed(
        placement,
        sample,
        by_evidence=number is not None,
        loss=loss,
        sampling=sampling_ended - started,
        aligning=aligning_ended - sampling_ended,
        clustering=time.perf_counter() - aligning_ended,
    )


def _summarize(
    source: SoftmaxModel, converted: Converted, placed: _Placed, settings: PlacementOnData
) -> list[str]:
    """Lines with numbers of senses, contexts and seconds, and the loss before and after."""
    valid_split = settings.valid_split
    of_word = converted.word_of_sense.bincount()  # [V]
    counts = of_word.bincount()[1:].tolist()
    words = ", ".join(f"{n} with {senses}" for senses, n in enumerate(counts, start=1))
    several = (of_word[placed.sample.enough] > 1).double().mean()
    aim = "distortion, for further training"
    seconds = f"{placed.sampling:.0f} s; clusters: {placed.clustering:.0f} s"
    if placed.by_evidence:
        aim = "evidence of source words and neighbours, to be read"
        seconds += f"; source words: {placed.aligning:.0f} s"
    seen = int(placed.sample.seen.sum())
    contexts = placed.sample.kept
    size = contexts.numel() * contexts.element_size() / 1e6
    budget = describe_budget(
        of_word, settings.total_senses, placed.sample.enough, by_evidence=placed.by_evidence
    )
    loss = loss_in_bits(converted.model, source.task, valid_split)
    return [
        f"{of_word.double().mean():.2f} senses a word; {several:.0%} of the words with "
        f"{LEAST_CONTEXTS} contexts have several",
        budget,
        f"words by number of senses: {words}; by {aim}",
        f"contexts: {seen} seen, {len(contexts)} kept ({size:.0f} MB), in {seconds}",
        f"loss of split {valid_split}: {placed.loss:.3f} bits a token before, {loss:.3f} after",
    ]


def describe_budget(of_word: Tensor, allowed: float, enough: Tensor, *, by_evidence: bool) -> str:
    """A line that says why there are not more senses.

    Args:
        of_word: number of senses of each word, [V].
        allowed: maximum number of senses, in units of V.
        enough: mask of the words with enough contexts for several senses, [V].
        by_evidence: whether evidence says how many senses a word has.
    """
    words = len(of_word)
    if int(of_word.sum()) == round(allowed * words):
        return f"these are all that --total-senses {allowed:g} allows"
    few = words - int(enough.sum())
    of_others = "contexts of the others have no more clusters"
    if by_evidence:
        of_others = "evidence tells no more senses of the others apart"
    return (
        f"--total-senses {allowed:g} allows more, but {few} of {words} words have fewer than "
        f"{LEAST_CONTEXTS} contexts, and {of_others}"
    )


# ------------------------------------------------------------------ the KerBS model


@dataclass
class Converted:
    """A converted model."""

    settings: Namespace  # of the model
    model: Any  # in evaluation mode
    word_of_sense: Tensor  # [M]
    difference: float  # largest difference of log-probabilities before the placement, in nats


def add_senses(
    source: SoftmaxModel, max_senses: int, placement: Placement | None = None
) -> Converted:
    """Build a KerBS model from a softmax model, with at most ``max_senses`` senses per word.

    ``placement`` has the senses on clusters of contexts. By default each word has one sense, and
    predictions are equal to those of the softmax model. A UserError is raised if the settings
    cannot be converted, or predictions would differ.
    """
    words = len(source.weight)
    if placement is None:
        word_of_sense = torch.arange(words)
        share = torch.ones(words)
    else:
        word_of_sense = placement.word_of_sense
        share = placement.share
    rows = sense_rows(source, word_of_sense, share.double().log())
    settings = Namespace(**source.settings)
    settings.total_senses = len(rows) / words
    settings.max_senses = max_senses
    settings.sense_bias = rows.shape[1] > source.weight.shape[1]
    settings.reallocation = "none"
    settings.reallocation_at = None
    # a word that never occurred counts as one occurrence
    counts = torch.tensor(source.task.target_dictionary.count).double().clamp_min(1.0)
    usage = (counts / counts.sum())[word_of_sense] * share  # U of Eq. 13
    model = _build_with_parameters_of(
        source,
        settings,
        {
            f"{_OUTPUT_LAYER}weight": rows,
            f"{_OUTPUT_LAYER}theta": torch.zeros(len(rows)),
            f"{_OUTPUT_LAYER}inventory.word_of_sense": word_of_sense,
            f"{_OUTPUT_LAYER}inventory.checksum": checksum_of(word_of_sense),
            f"{_OUTPUT_LAYER}inventory.usage": usage.float(),
        },
    )
    difference = largest_difference(source.model, model, source.task)
    if not difference <= ROUNDING_ERROR:
        raise UserError(
            f"{source.checkpoint.path} cannot be converted: log-probabilities would differ by "
            f"{difference:.3g} nats; --arch {settings.arch} does not support some of its settings"
        )
    if placement is not None:
        rows = sense_rows(source, word_of_sense, placement.bias)
        rows[:, : source.weight.shape[1]] += placement.rows
        model.decoder.output.weight.data = rows
    return Converted(settings, model, word_of_sense, difference)


def _build_with_parameters_of(
    source: SoftmaxModel, settings: Namespace, output_layer: dict[str, Tensor]
) -> Any:
    """A model with the parameters of a softmax model, but for those of the output layer."""
    from fairseq.models import build_model

    fault = f"fits no --arch {settings.arch}"
    with as_user_error(source.checkpoint.path, fault, "take another model"):
        model = build_model(copy.copy(settings), copy.copy(source.task))
    old = source.model.state_dict()
    new = model.state_dict()
    copied = {key for key in new if not key.startswith(_OUTPUT_LAYER)}
    unmatched = (old.keys() - source.replaced - new.keys()) | (copied - old.keys())
    if unmatched:
        raise UserError(
            f"{source.checkpoint.path} cannot be converted: only one of the two models has "
            f"{min(unmatched)}; fairseq_kerbs does not support some of its settings"
        )
    new |= {key: old[key] for key in copied}
    new |= output_layer
    model.load_state_dict(new, strict=True)
    return model.eval()


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
    shape = (3, 9)
    source = torch.randint(4, len(task.source_dictionary), shape, generator=generator)
    target = torch.randint(4, len(task.target_dictionary), shape, generator=generator)
    batch = {"src_tokens": source, "src_lengths": torch.full((3,), 9)}
    if hasattr(first, "encoder"):
        batch["prev_output_tokens"] = target
    before = first.get_normalized_probs(first(**batch), log_probs=True)
    after = second.get_normalized_probs(second(**batch), log_probs=True)
    return float((before - after).abs().max())


def _parameters_of(model: Any) -> dict[str, Tensor]:
    """Copies of a model's parameters and buffers."""
    state: dict[str, Tensor] = {key: value.clone() for key, value in model.state_dict().items()}
    for key, value in state.items():
        if key.endswith("._float_tensor"):
            value.zero_()  # fairseq leaves it uninitialized, so that equal models would differ
    return state


def write_checkpoint(path: Path, source: SoftmaxModel, converted: Converted) -> None:
    """Write a checkpoint of fairseq with parameters and settings, at update 0."""
    from omegaconf import OmegaConf

    config: Any = OmegaConf.to_container(source.checkpoint.config, resolve=True, enum_to_str=True)
    history = {
        "criterion_name": "KerbsCrossEntropyCriterion",
        "optimizer_name": "FairseqAdam",
        "lr_scheduler_state": {},
        "num_updates": 0,
    }
    task_state = dict(source.checkpoint.state.get("task_state") or {})
    if hasattr(source.task, "state"):  # else its words are placeholders
        task_state |= digests_of(source.task)
    state = {
        "args": None,
        "cfg": config | {"model": converted.settings},
        "model": _parameters_of(converted.model),
        "criterion": None,
        "optimizer_history": [history],
        "extra_state": {"train_iterator": {"epoch": 1, "iterations_in_epoch": 0}},
        "last_optimizer_state": None,
        "task_state": task_state,
    }
    content = io.BytesIO()
    torch.save(state, content)  # to memory, as torch.save hides the error of a full disk
    with atomic_write(path, "wb") as stream:
        stream.write(content.getbuffer())
