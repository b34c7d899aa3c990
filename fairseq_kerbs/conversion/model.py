"""The converted model: its settings and parameters, a check that it predicts the same, its file."""

from __future__ import annotations

import argparse
import copy
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_kerbs.analysis.saved_layer import load_dictionary, remembered_dictionary
from fairseq_kerbs.conversion.copies import SensePlan, plan_senses, sense_rows
from fairseq_kerbs.conversion.stock import SoftmaxModel
from fairseq_kerbs.utils.dictionaries import STATE, digest
from fairseq_kerbs.utils.errors import ProgramEnd, UserError, reason_of
from fairseq_kerbs.utils.files import atomic_write_bytes

ALLOWED = 1e-3
"""Largest difference of log-probabilities, in nats, that rounding can explain."""

_OUTPUT = "decoder.output."


@dataclass(frozen=True)
class Wishes:
    """What the converted model is to be.

    Attributes:
        total_senses: senses in all, as a multiple of the vocabulary.
        max_senses: most senses of one word.
        extra_senses: where senses beyond one a word go, see :mod:`.copies`.
        split_noise: relative size of the difference between split senses.
        counts: [V] occurrences of each word in the training data, where known.
        special: entries at the beginning of the dictionary that are no words.
    """

    total_senses: float
    max_senses: int
    extra_senses: str
    split_noise: float = 0.0
    counts: Tensor | None = None
    special: int = 4

    def counted(self, dictionary: Any) -> Wishes:
        """The same with the counts of fairseq's dictionary."""
        counts = torch.tensor(dictionary.count, dtype=torch.long)
        return replace(self, counts=counts, special=int(dictionary.nspecial))


@dataclass
class Converted:
    """A converted model.

    Attributes:
        settings: of the model, for ``--arch`` of that name.
        model: the model, in evaluation mode.
        plan: its senses.
        difference: largest difference of log-probabilities from the softmax model, in nats.
    """

    settings: argparse.Namespace
    model: Any
    plan: SensePlan
    difference: float


def convert(source: SoftmaxModel, wishes: Wishes) -> Converted:
    """Turn a softmax model into a KerBS model with the same predictions.

    Raises:
        UserError: the wishes do not fit the model, its settings mean something that a model of
            fairseq_kerbs does not have, or the predictions would not be the same.
    """
    from fairseq.models import build_model

    vocab_size = len(source.weight)
    total = round(wishes.total_senses * vocab_size)
    plan = plan_senses(vocab_size, total, wishes.extra_senses, wishes.counts, wishes.special)
    rows = sense_rows(source.weight, source.bias, plan, wishes.split_noise)
    biased = rows.shape[1] > source.weight.shape[1]
    settings = _settings(source, wishes, plan, biased)
    task = copy.copy(source.task)
    try:
        model = build_model(copy.copy(settings), task)
    except ProgramEnd as error:
        raise UserError(f"{source.checkpoint} cannot be converted: {error.sentence}") from None
    except Exception as error:  # a setting that its own architecture has no use for
        raise UserError(
            f"{source.checkpoint} cannot be converted: its settings describe no --arch "
            f"{settings.arch} ({reason_of(error)})"
        ) from error
    model.load_state_dict(_parameters(source, model, plan, rows), strict=True)
    model.eval()
    difference = largest_difference(source.model, model, source.task)
    if not wishes.split_noise and not difference <= ALLOWED:
        raise UserError(
            f"{source.checkpoint} cannot be converted: log-probabilities would differ by "
            f"{difference:.3g}; its settings ask for something that --arch {settings.arch} has not"
        )
    return Converted(settings, model, plan, difference)


def _settings(
    source: SoftmaxModel, wishes: Wishes, plan: SensePlan, biased: bool
) -> argparse.Namespace:
    """Settings of the converted model: those it had, but for its embeddings and output layer."""
    settings = argparse.Namespace(**vars(source.settings))
    values: dict[str, Any] = {
        "arch": source.arch,
        "_name": source.arch,
        "output_layer": "kerbs",
        "kernel": "kerbs",
        "total_senses": wishes.total_senses,
        "max_senses": wishes.max_senses,
        "sense_bias": biased,
        # with its old vector a spare sense would lie idle at the word that receives it, too
        "new_sense": "split" if plan.words else "keep",
    }
    if not source.own:
        values["input_embedding"] = "composed" if source.tied else "separate"
        values |= {"encoder_embed_path": None, "decoder_embed_path": None}
        values |= {"share_all_embeddings": False, "adaptive_softmax_cutoff": None}
        if source.tied:
            values["decoder_freeze_embed"] = False  # they are the senses, too
        if source.arch == "transformer_kerbs":
            # fairseq reads this flag for language models only
            values["decoder_input_dim"] = settings.decoder_embed_dim
    vars(settings).update(values)
    return settings


def _parameters(
    source: SoftmaxModel, model: Any, plan: SensePlan, rows: Tensor
) -> dict[str, Tensor]:
    """All parameters and buffers of the converted model."""
    old, new = source.model.state_dict(), model.state_dict()
    lost = old.keys() - source.replaced - new.keys()
    unknown = {key for key in new if not key.startswith(_OUTPUT)} - old.keys()
    if lost or unknown:
        name = sorted(lost or unknown)[0]
        where = "this model alone" if lost else "the converted model alone"
        raise UserError(
            f"{source.checkpoint} cannot be converted: {where} has {name}; its settings ask for "
            "something that a model of fairseq_kerbs has not"
        )
    values = {key: old[key] for key in new if not key.startswith(_OUTPUT)}
    own = {
        "weight": rows,
        "theta": torch.zeros(len(rows)),
        "inventory.word_of_sense": plan.word_of_sense,
        "inventory.usage": plan.usage,
    }
    values |= {f"{_OUTPUT}{name}": value for name, value in own.items()}
    return {key: values.get(key, new[key]) for key in new}


# ------------------------------------------------------------------- the same predictions


@torch.no_grad()
def largest_difference(first: Any, second: Any, task: Any, seed: int = 1) -> float:
    """Largest difference of two models' log-probabilities, in nats, on a few random sentences.

    Args:
        first, second: models in evaluation mode.
        task: has their dictionaries.
        seed: of the sentences.
    """
    batch, real = _random_batch(first, task, seed)
    found = [
        model.get_normalized_probs(model(**batch), log_probs=True)[real]  # [positions, V]
        for model in (first, second)
    ]
    return float((found[0] - found[1]).abs().max())


def _random_batch(model: Any, task: Any, seed: int) -> tuple[dict[str, Tensor], Tensor]:
    """Input of a model, padded as fairseq does it, and where [batch, len] it is no padding."""
    longest = model.max_positions()
    longest = min(longest) if isinstance(longest, tuple) else longest
    lengths = [max(1, min(length, int(longest) - 1)) for length in (9, 7, 4)]
    generator = torch.Generator().manual_seed(seed)

    def sentences(dictionary: Any, left: bool) -> Tensor:
        rows = torch.full((len(lengths), lengths[0]), dictionary.pad())
        for row, length in zip(rows, lengths, strict=True):
            words = torch.randint(4, len(dictionary), (length,), generator=generator)
            words[0 if not left else -1] = dictionary.eos()
            row[-length if left else 0 :][:length] = words
        return rows

    target = sentences(task.target_dictionary, left=False)
    real = target.ne(task.target_dictionary.pad())
    if not hasattr(model, "encoder"):
        return {"src_tokens": target, "src_lengths": torch.tensor(lengths)}, real
    source = sentences(task.source_dictionary, left=True)
    return {
        "src_tokens": source,
        "src_lengths": torch.tensor(lengths),
        "prev_output_tokens": target,
    }, real


# ------------------------------------------------------------------- the file


def known_dictionaries(
    source: SoftmaxModel, target: Any = None, data: Path | None = None
) -> dict[str, str]:
    """Digests of a model's dictionaries, see :mod:`fairseq_kerbs.utils.dictionaries`.

    fairseq's own models have none: those of the files that their sizes fit are taken.

    Args:
        source: the model.
        target: its target dictionary, where one was named.
        data: its folder of data, by default the one that it was trained from.
    """
    kept: dict[str, str] = (source.state.get("task_state") or {}).get(STATE, {})
    if kept:
        return kept
    found = {}
    for side in ("source", "target"):
        words = len(getattr(source.task, f"{side}_dictionary"))
        with suppress(UserError):  # it is not there, or is another one
            path = remembered_dictionary(source.checkpoint, source.config, data, side)
            found[side] = digest(load_dictionary(path, words, {}))
    return found if target is None else found | {"target": digest(target)}


def checkpoint_of(
    source: SoftmaxModel, converted: Converted, dictionaries: dict[str, str]
) -> dict[str, Any]:
    """What fairseq's loader needs: parameters and settings; training begins anew."""
    from omegaconf import OmegaConf

    config = OmegaConf.to_container(source.config, resolve=True, enum_to_str=True)
    config["model"] = converted.settings
    return {
        "args": None,
        "cfg": config,
        "model": {key: value.clone() for key, value in converted.model.state_dict().items()},
        "criterion": None,
        "optimizer_history": [
            {
                "criterion_name": "KerbsCrossEntropyCriterion",
                "optimizer_name": "FairseqAdam",
                "lr_scheduler_state": {},
                "num_updates": 0,
            }
        ],
        "extra_state": {"train_iterator": {"epoch": 1, "iterations_in_epoch": 0}},
        "last_optimizer_state": None,
        "task_state": {**(source.state.get("task_state") or {}), STATE: dictionaries},
    }


def check_output(path: Path, checkpoint: Path) -> None:
    """Refuse an output that cannot be written, or that is the checkpoint itself.

    Raises:
        UserError: the message names the file.
    """
    if path.exists() and checkpoint.exists() and path.samefile(checkpoint):
        raise UserError(f"-o {path} is the checkpoint itself; name another file")
    if path.is_dir():
        raise UserError(f"-o {path} is a folder; name a file")


def write_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write a checkpoint that appears under its name only when it is whole.

    Raises:
        UserError: the disk is full, or the name or folder is none that can be written to.
    """
    with atomic_write_bytes(path) as stream:
        torch.save(state, stream)
