"""The converted model: its settings and parameters, a check that it predicts the same, its file."""

from __future__ import annotations

import argparse
import copy
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairseq_kerbs.analysis.saved_layer import load_dictionary, remembered_dictionary
from fairseq_kerbs.conversion.sense_init import SensePlan, plan_senses, sense_rows
from fairseq_kerbs.conversion.stock import SoftmaxModel
from fairseq_kerbs.utils.dictionaries import STATE, digest, digest_kept
from fairseq_kerbs.utils.errors import ProgramEnd, UserError, reason_of
from fairseq_kerbs.utils.files import atomic_write_bytes

ALLOWED = 1e-3
"""Largest difference of log-probabilities, in nats, that rounding can explain."""

_OUTPUT = "decoder.output."
_WITHOUT: dict[str, Any] = {"share_all_embeddings": False, "adaptive_softmax_cutoff": None}
_WITHOUT |= {"encoder_embed_path": None, "decoder_embed_path": None}
"""Settings of fairseq's models that the converted one has no use for."""


@dataclass
class Converted:
    """A converted model."""

    settings: argparse.Namespace  # of the model, for ``--arch`` of that name
    model: Any  # in evaluation mode
    plan: SensePlan
    difference: float  # largest difference of log-probabilities from the softmax, in nats


def convert(
    source: SoftmaxModel,
    *,
    total_senses: float,
    max_senses: int,
    extra_senses: str,
    split_noise: float = 0.0,
    dictionary: Any = None,
) -> Converted:
    """Turn a softmax model into a KerBS model with the same predictions.

    Args:
        source: the softmax model.
        total_senses: senses in all, as a multiple of the vocabulary.
        max_senses: most senses of one word.
        extra_senses: where senses beyond one a word go, see `.sense_init`.
        split_noise: relative size of the difference between split senses.
        dictionary: fairseq's target dictionary with the counts of words, where they are known.

    Raises:
        UserError: the settings mean something that a model of fairseq_kerbs does not have, or the
            predictions would not be the same.
    """
    from fairseq.models import build_model

    vocab_size = len(source.weight)
    total = round(total_senses * vocab_size)
    counts, special = None, 4
    if dictionary is not None:
        counts, special = torch.tensor(dictionary.count), dictionary.nspecial
    plan = plan_senses(vocab_size, total, extra_senses, counts, special)
    rows = sense_rows(source.weight, source.bias, plan, split_noise)
    settings = _settings(source)
    settings.total_senses, settings.max_senses = total_senses, max_senses
    settings.sense_bias = rows.shape[1] > source.weight.shape[1]
    # with its old vector a spare sense would lie idle at the word that receives it, too
    settings.new_sense = "split" if plan.words else "keep"
    refused = f"{source.checkpoint} cannot be converted: "
    try:
        model = build_model(copy.copy(settings), copy.copy(source.task))
    except ProgramEnd as error:
        raise UserError(f"{refused}{error.sentence}") from None
    except Exception as error:  # a setting that its own architecture has no use for
        raise UserError(
            f"{refused}its settings describe no --arch {settings.arch} ({reason_of(error)})"
        ) from error
    old, new = source.model.state_dict(), model.state_dict()
    read = {key for key in new if not key.startswith(_OUTPUT)}
    if other := (old.keys() - source.replaced - new.keys()) | (read - old.keys()):
        raise UserError(
            f"{refused}only one of the two models has {min(other)}; its settings ask for something "
            "that a model of fairseq_kerbs has not"
        )
    new |= {key: old[key] for key in read}
    new[f"{_OUTPUT}weight"], new[f"{_OUTPUT}theta"] = rows, torch.zeros(len(rows))
    new[f"{_OUTPUT}inventory.word_of_sense"] = plan.word_of_sense
    new[f"{_OUTPUT}inventory.usage"] = plan.usage
    model.load_state_dict(new, strict=True)
    model.eval()
    difference = largest_difference(source.model, model, source.task)
    if not split_noise and not difference <= ALLOWED:
        raise UserError(
            f"{refused}log-probabilities would differ by {difference:.3g}; its settings ask for "
            f"something that --arch {settings.arch} has not"
        )
    return Converted(settings, model, plan, difference)


def _settings(source: SoftmaxModel) -> argparse.Namespace:
    """Settings of the converted model: those it had, but for its embeddings and output layer."""
    values = vars(source.settings) | {"arch": source.arch, "_name": source.arch}
    values |= {"output_layer": "kerbs", "kernel": "kerbs"}
    if not source.own:
        values |= {"input_embedding": "composed" if source.tied else "separate", **_WITHOUT}
        if source.tied:
            values["decoder_freeze_embed"] = False  # they are the senses, too
        if source.arch == "transformer_kerbs":
            # fairseq reads this flag for language models only
            values["decoder_input_dim"] = values["decoder_embed_dim"]
    return argparse.Namespace(**values)


@torch.no_grad()
def largest_difference(first: Any, second: Any, task: Any) -> float:
    """Largest difference of two models' log-probabilities, in nats, on a few random sentences."""
    batch, real = _random_batch(first, task)
    found = [
        model.get_normalized_probs(model(**batch), log_probs=True)[real]  # [positions, V]
        for model in (first, second)
    ]
    return float((found[0] - found[1]).abs().max())


def _random_batch(model: Any, task: Any) -> tuple[dict[str, Tensor], Tensor]:
    """Input of a model, padded as fairseq does it, and where [batch, len] it is no padding."""
    from fairseq.data.data_utils import collate_tokens

    longest = model.max_positions()
    longest = min(longest) if isinstance(longest, tuple) else longest
    lengths = [max(1, min(length, int(longest) - 1)) for length in (9, 7, 4)]
    generator = torch.Generator().manual_seed(1)

    def sentences(dictionary: Any, left: bool) -> Tensor:
        rows = [torch.randint(4, len(dictionary), (n,), generator=generator) for n in lengths]
        for row in rows:
            row[-1 if left else 0] = dictionary.eos()
        return collate_tokens(rows, dictionary.pad(), left_pad=left)

    target = sentences(task.target_dictionary, left=False)
    batch = {"src_tokens": target, "src_lengths": torch.tensor(lengths)}
    if hasattr(model, "encoder"):
        batch["prev_output_tokens"] = target
        batch["src_tokens"] = sentences(task.source_dictionary, left=True)
    return batch, target.ne(task.target_dictionary.pad())


def known_dictionaries(source: SoftmaxModel, target: Any, data: Path | None) -> dict[str, str]:
    """Digests of a model's dictionaries, see :mod:`fairseq_kerbs.utils.dictionaries`.

    fairseq's own models have none: those of the files that their sizes fit are taken, in the folder
    ``data`` or that which they were trained from; ``target`` is the target dictionary, if named.
    """
    known = {}
    for side in ("source", "target"):
        if kept := digest_kept(source.state, side):
            known[side] = kept
        elif side == "target" and target is not None:
            known[side] = digest(target)
        else:
            words = len(getattr(source.task, f"{side}_dictionary"))
            with suppress(UserError):  # it is not there, or is another one
                path = remembered_dictionary(source.checkpoint, source.config, data, side)
                known[side] = digest(load_dictionary(path, words, {}))
    return known


def write_checkpoint(
    path: Path, source: SoftmaxModel, converted: Converted, dictionaries: dict[str, str]
) -> None:
    """Write what fairseq's loader needs: parameters and settings; training begins anew.

    Raises:
        UserError: the disk is full, or the name or folder is none that can be written to.
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
        "task_state": {**(source.state.get("task_state") or {}), STATE: dictionaries},
    }
    with atomic_write_bytes(path) as stream:
        torch.save(state, stream)
