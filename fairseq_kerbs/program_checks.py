"""Checks of the flags that a command of ours passes on to fairseq.

fairseq itself ends with a traceback for most of what is refused here, or goes on without a word: a
file to restore from that is not there begins a new training, and ``--lr -1`` trains nothing.
:func:`check_call` runs before the program starts, so a refusal costs no time and changes no file.
fairseq's own programs are not checked.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from argparse import Namespace
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from fairseq_kerbs.configurations import language_pair, languages_in, splits_in
from fairseq_kerbs.programs import GENERATE, TRAIN, Call
from fairseq_kerbs.utils.checkpoint_files import (
    LAST,
    NO_FILE,
    check_checkpoint,
    check_is_of_fairseq,
    check_whole,
    is_remote,
    with_suffix,
)
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import check_can_write
from fairseq_kerbs.utils.intervals import within

INTERVALS = {
    "adam_eps": "(0, inf)",
    "batch_size": "[1, inf)",
    "batch_size_valid": "[1, inf)",
    "beam": "[1, inf)",
    "clip_norm": "[0, inf)",
    "label_smoothing": "[0, 1)",
    "lr": "[0, inf)",
    "max_len_a": "[0, inf)",
    "max_tokens": "[1, inf)",
    "max_tokens_valid": "[1, inf)",
    "nbest": "[1, inf)",
    "num_shards": "[1, inf)",
    "required_batch_size_multiple": "[1, inf)",
    "required_seq_len_multiple": "[1, inf)",
    "save_interval": "[1, inf)",
    "seed": "[0, 4294967295]",  # of numpy
    "temperature": "(0, inf)",
    "tokens_per_sample": "[1, inf)",
    "total_num_update": "[1, inf)",
    "update_freq": "[1, inf)",
    "validate_interval": "[1, inf)",
    "warmup_updates": "[0, inf)",
    "weight_decay": "[0, inf)",
}
"""Values that fairseq can use, where its defaults do not show them. Of other flags, integers whose
default is not negative must not be negative, and all numbers must be finite."""

_OUTPUTS = ("log_file", "plasma_path", "results_path", "data", "tensorboard_logdir", "save_dir")
"""Flags whose files are written, or are checked elsewhere."""

_CHECKPOINTS = ("lm_path",)
"""Flags that name one or several checkpoints, besides those that a training begins with."""


def check_call(call: Call, data: str, *, dry_run: bool = False) -> None:
    """Raise a UserError if fairseq cannot do what the flags of a call say.

    Args:
        call: the call, as fairseq reads it.
        data: its folders, separated by ``:``.
        dry_run: the call is only shown, so it may be incomplete, and data may have no splits yet.
    """
    check_flags(call)
    check_languages(call, data)
    _check_splits(call, data, shown_only=dry_run)
    if call.program == TRAIN:
        _check_further_folders(call, data, shown_only=dry_run)
        _check_best_metric(call)
        _check_unused_splits(call, data)
        _check_alignments(call, data)
        _check_beginning(call)
        if not dry_run:
            _check_complete(call)
            _check_precision(call)


def check_flags(call: Call) -> None:
    """Raise a UserError if fairseq cannot use the values of flags, whatever the data are."""
    _check_ranges(call)
    _check_literals(call)
    _check_references(call)
    _check_together(call)
    _check_files(call)


# ------------------------------------------------------------------ numbers


def _check_ranges(call: Call) -> None:
    """Check the numbers that flags give."""
    checked_later = _own_flags()
    for name in sorted(call.given - checked_later):
        action = call.actions.get(name)
        value = getattr(call.values, name, None)
        interval = _interval(name, action)
        numbers = value if isinstance(value, (list, tuple)) else [value]
        for number in numbers:
            if isinstance(number, bool) or not isinstance(number, (int, float)):
                continue
            if not within(number, interval):
                raise UserError(
                    f"{call.flag(name)} is {number}, but must be within {interval}; "
                    "give another number"
                )


def _own_flags() -> set[str]:
    """Flags of this package, which :mod:`.models.config` checks in all programs."""
    import importlib

    config: Any = importlib.import_module("fairseq_kerbs.models.config")
    own = {"reallocation_at", "mixture_tanh_scale"}  # checked without an interval in their field
    for kind in (config.TransformerKerbsConfig, config.RecurrentAttentionConfig):
        own |= {item.name for item in fields(kind) if item.metadata.get("within")}
    return own


def _interval(name: str, action: argparse.Action | None) -> str:
    """Interval of a flag's values."""
    if name in INTERVALS:
        return INTERVALS[name]
    if name.endswith("dropout") or "_dropout" in name:
        return "[0, 1]"
    if action is not None and action.type is int:
        default = action.default if isinstance(action.default, int) else 0
        return "[0, inf)" if default >= 0 else f"[{default}, inf)"
    return "(-inf, inf)"


def _check_literals(call: Call) -> None:
    """Check flags whose value is a mapping in Python or JSON, as their default shows."""
    for name in sorted(call.given):
        action = call.actions.get(name)
        value = getattr(call.values, name, None)
        if name == "adam_betas" and not _are_betas(value):
            raise UserError(
                f"--adam-betas {value}: these are two numbers within [0, 1); write '(0.9, 0.98)'"
            )
        if action is None or action.default != "{}" or not isinstance(value, str):
            continue
        if not any(_is_mapping(read, value) for read in (ast.literal_eval, json.loads)):
            raise UserError(
                f"{call.flag(name)} {value} is no mapping; write '{{\"name\": value}}', in quotes"
            )


def _is_mapping(read: Callable[[str], Any], text: str) -> bool:
    try:
        return isinstance(read(text), dict)
    except (ValueError, SyntaxError):
        return False


def _are_betas(value: Any) -> bool:
    """Tell whether a value is, or is written as, two decay rates of Adam."""
    try:
        betas = ast.literal_eval(value) if isinstance(value, str) else value
        return len(betas) == 2 and all(within(beta, "[0, 1)") for beta in betas)
    except (ValueError, SyntaxError, TypeError):
        return False


def _check_references(call: Call) -> None:
    """Refuse ``${…}``, which fairseq takes for the name of another setting."""
    for name in sorted(call.given):
        value = getattr(call.values, name, None)
        if isinstance(value, str) and "${" in value:
            raise UserError(
                f"{call.flag(name)} {value} has '${{', which fairseq interprets; write it out"
            )


# ------------------------------------------------------------------ flags that go together


def _check_together(call: Call) -> None:
    """Check what fairseq asserts about several flags."""
    values = vars(call.values)
    if call.program == GENERATE:
        beam = values["beam"]
        nbest = values["nbest"]
        groups = values["diverse_beam_groups"]
        if values["sampling"] and nbest != beam:
            raise UserError(
                f"--sampling draws --beam hypotheses, of which --nbest {nbest} is not all {beam}; "
                f"give --beam {nbest}, or --nbest {beam}"
            )
        if groups > 0 and beam % groups:
            raise UserError(
                f"--diverse-beam-groups {groups} does not divide --beam {beam}; give --beam "
                f"{groups * max(1, round(beam / groups))}"
            )
        if values["shard_id"] >= values["num_shards"]:
            raise UserError(
                f"--shard-id {values['shard_id']} is none of the --num-shards "
                f"{values['num_shards']} parts, which count from 0; give --shard-id "
                f"{values['num_shards'] - 1}, or more parts"
            )
        if values["replace_unk"] is not None and values["dataset_impl"] != "raw":
            raise UserError(
                "--replace-unk reads text and no binarized data, so generate cannot serve it; "
                "leave it out"
            )
        if values["constraints"] is not None:
            raise UserError(
                "--constraints reads them beside the text, which only fairseq-interactive does; "
                "leave it out"
            )
        longest = values["max_len_b"]
        if not values["max_len_a"] and values["min_len"] > longest:
            raise UserError(
                f"--min-len {values['min_len']} is more than --max-len-b {longest}; give --min-len "
                f"{longest}"
            )
    elif values.get("finetune_from_model"):
        resets = ("reset_optimizer", "reset_lr_scheduler", "reset_meters", "reset_dataloader")
        clash = [name for name in resets if values.get(name)]
        if values["restore_file"] != LAST:
            clash.append("restore_file")
        if clash:
            raise UserError(
                f"{call.flag(clash[0])} does not go with --finetune-from-model, which resets all "
                "of the training; leave one of them out"
            )


def _check_best_metric(call: Call) -> None:
    """Refuse a metric of the best checkpoint that our criterion does not log.

    fairseq finds that out after the first validation, before it has saved a checkpoint.
    """
    values = vars(call.values)
    metric = values["best_checkpoint_metric"]
    if values.get("criterion") != "kerbs_cross_entropy":  # others have metrics of their own
        return
    logged = ["loss", "nll_loss", "ppl"]
    if values.get("report_accuracy"):
        logged.append("accuracy")
    if values.get("eval_bleu"):
        logged.append("bleu")
    if metric not in logged and not metric.startswith("mixture_"):
        needs = {"accuracy": "--report-accuracy", "bleu": "--eval-bleu"}.get(metric)
        advice = f"add {needs}" if needs else f"give one of {', '.join(logged)}"
        raise UserError(f"--best-checkpoint-metric {metric} is not logged; {advice}")


def _check_precision(call: Call) -> None:
    """Refuse --fp16 where there is no GPU for it. fairseq's other precisions need none."""
    import torch

    values = vars(call.values)
    if "fp16" not in call.given or values.get("memory_efficient_fp16"):
        return
    if values.get("cpu"):
        raise UserError("--fp16 needs a GPU and does not go with --cpu; leave one of them out")
    if not torch.cuda.is_available():
        raise UserError("--fp16 needs a GPU, and there is none; leave it out")


def _check_complete(call: Call) -> None:
    """Check that a training has what fairseq needs and has no default for."""
    values = vars(call.values)
    if not values.get("arch"):
        raise UserError(
            "no --arch names an architecture; 'fairseq-kerbs architectures' lists them, and the "
            "configuration toy has one"
        )
    if not values.get("optimizer"):
        raise UserError("no --optimizer is given; add --optimizer adam")
    if values.get("max_tokens") is None and values.get("batch_size") is None:
        raise UserError("the size of a batch is missing; give --max-tokens N or --batch-size N")


# ------------------------------------------------------------------ files and folders


def _check_files(call: Call) -> None:
    """Check that the files that flags name are there."""
    for name in sorted(call.given):
        value = getattr(call.values, name, None)
        if not isinstance(value, str) or name in (*_OUTPUTS, "path", "restore_file"):
            continue
        if name in _CHECKPOINTS:
            for path in value.split(":"):
                check_checkpoint(Path(path), call.flag(name))
            continue
        is_input = name.endswith(("_path", "_file")) and not is_remote(value)
        if is_input and not Path(value).exists():
            raise UserError(f"{call.flag(name)} {value}: there is no such file; name another")


def checkpoints_of(call: Call) -> list[Path]:
    """Files of ``--path``, as fairseq names them."""
    values = call.values
    return [Path(path) for path in with_suffix(values.path, values.checkpoint_suffix).split(":")]


def _check_beginning(call: Call) -> None:
    """Check the checkpoint that a training begins with, and the folder that it writes to."""
    values = vars(call.values)
    suffix = values.get("checkpoint_suffix")
    restored = values["restore_file"]
    save_dir = Path(values["save_dir"])
    if not values.get("no_save"):
        check_can_write(save_dir, "--save-dir", folder=True)
    if values.get("tensorboard_logdir"):
        check_can_write(Path(values["tensorboard_logdir"]), "--tensorboard-logdir", folder=True)
    if values.get("log_file"):
        check_can_write(Path(values["log_file"]), "--log-file")
    if restored != LAST:
        if restored != NO_FILE and not is_remote(restored):
            check_checkpoint(Path(with_suffix(restored, suffix)), "--restore-file")
        return
    last = save_dir / with_suffix(LAST, suffix)
    if last.is_file():  # with which the training goes on
        try:
            check_whole(last)
        except UserError:
            raise UserError(
                f"{last} is damaged; to go on from another checkpoint, name it with --restore-file"
            ) from None
        check_is_of_fairseq(last)
        return
    for name in ("continue_once", "finetune_from_model"):
        file = values.get(name)
        if file:
            if not is_remote(file):
                check_checkpoint(Path(file), call.flag(name))
            return


def _check_number_of_languages(call: Call, data: str) -> None:
    """Raise a UserError for text of one language where the task reads two, or the reverse."""
    folder = Path(data.split(":")[0])
    one = (folder / "dict.txt").is_file()
    several = bool(languages_in(data))
    task = vars(call.values).get("task")  # those that extend these may read other dictionaries
    if task == "translation" and one and not several:
        raise UserError(
            f"{data} is text of one language (it has dict.txt), and --task translation reads two: "
            "name a configuration of a language model, or prepare pairs with 'fairseq-kerbs "
            "prepare'"
        )
    if task == "language_modeling" and several and not one:
        raise UserError(
            f"{data} is text of two languages (it has no dict.txt), and --task language_modeling "
            "reads one: name a configuration for translation, or prepare text with 'fairseq-kerbs "
            "prepare-lm'"
        )


def check_languages(call: Call, data: str) -> tuple[str, str] | None:
    """Source and target language of a translation, or None for other tasks and data without names.

    fairseq reads them from the names of files, unless both are given.

    Raises:
        UserError: a language is not one of the data's; only one is given, and it is not that of the
            data, which fairseq would read instead; or the data are text of one language where the
            task reads two, or the reverse.
    """
    _check_number_of_languages(call, data)
    values = vars(call.values)
    if "source_lang" not in values or "target_lang" not in values:
        return None
    if not is_translation(call):
        return None
    given = {name: values[name] for name in ("source_lang", "target_lang") if values[name]}
    there = languages_in(data)
    for name, language in given.items():
        if language not in there:
            raise UserError(
                f"{call.flag(name)} {language}: {data} has no dict.{language}.txt; give one of its "
                f"languages, {' or '.join(there) or 'of which there are none'}"
            )
    if len(given) == 2:
        if values["source_lang"] == values["target_lang"]:
            raise UserError("--source-lang and --target-lang are one language; give two")
        return values["source_lang"], values["target_lang"]
    if not given:
        return None
    source, target = language_pair(data)
    ((name, language),) = given.items()
    found = {"source_lang": source, "target_lang": target}
    if found[name] != language:
        raise UserError(
            f"{call.flag(name)} {language} is not read alone, and the data are from {source} to "
            f"{target}; give --source-lang and --target-lang"
        )
    return source, target


def is_translation(call: Call) -> bool:
    """Tell whether the task of a call is translation, or derived from it."""
    from fairseq.tasks import TASK_REGISTRY
    from fairseq.tasks.translation import TranslationTask

    kind = TASK_REGISTRY.get(str(vars(call.values).get("task")))
    return kind is not None and issubclass(kind, TranslationTask)


def _check_split_files(folder: Path, split: str, *, both_sides: bool) -> None:
    """Raise a UserError if a dictionary or a binarized file of a split is empty or missing.

    A copy of the folder that was broken off may lack files. fairseq-train finds that out at the
    first validation.

    Args:
        folder: folder of the data.
        split: name of a split.
        both_sides: whether a translation needs the split in both of its languages.
    """
    binarized = [path for path in folder.glob(f"{split}.*") if path.suffix in (".bin", ".idx")]
    for file in sorted([*folder.glob("dict*.txt"), *binarized]):
        if not file.stat().st_size:
            raise UserError(f"{file} is empty; prepare the data again")
    needed = {path.with_suffix(suffix) for path in binarized for suffix in (".bin", ".idx")}
    if both_sides:
        for path in binarized:
            pair, _, language = path.stem.removeprefix(f"{split}.").partition(".")
            for other in (pair.removeprefix(f"{language}-"), pair.removesuffix(f"-{language}")):
                if other not in ("", pair):
                    needed.add(folder / f"{split}.{pair}.{other}.idx")
    for file in sorted(needed):
        if not file.exists():
            raise UserError(f"{file} is missing, while {split} has other files; copy it as well")


def _check_splits(call: Call, data: str, *, shown_only: bool) -> None:
    """Check that the splits are there that are read. A call that is only shown needs none yet."""
    values = vars(call.values)
    read = ["gen_subset"]
    if call.program == TRAIN:
        read = ["train_subset", "valid_subset"]  # also with --disable-validation
    folder = Path(data.split(":")[0])
    there = splits_in(folder)
    if shown_only and not there:
        return
    for name in read:
        subsets = str(values[name])
        if name == "train_subset" and "," in subsets:
            raise UserError(
                f"--train-subset {subsets}: fairseq trains on one split; give one, and further "
                "data as DATA:MORE"
            )
        splits = [subsets]
        if name == "valid_subset":
            splits = subsets.split(",")
        for split in splits:
            if split in there and not shown_only:
                both_sides = call.program == TRAIN and is_translation(call)
                _check_split_files(folder, split, both_sides=both_sides)
            if split not in there:
                found = f"give one of {', '.join(there)}" if there else "prepare the data again"
                raise UserError(f"{call.flag(name)} {split}: {folder} has no such split; {found}")


def _check_further_folders(call: Call, data: str, *, shown_only: bool) -> None:
    """Check the folders after the first one, from which fairseq reads further epochs.

    It reads them by the dictionaries of the first, and looks for their split after an epoch.
    """
    first, *others = map(Path, data.split(":"))
    split = str(call.values.train_subset)
    for folder in others:
        for dictionary in sorted(first.glob("dict*.txt")):
            other = folder / dictionary.name
            if not other.is_file() or other.read_bytes() != dictionary.read_bytes():
                raise UserError(
                    f"{other} is not the dictionary {dictionary}, by which {folder} would be read; "
                    "prepare all text in one call of 'prepare', or with these dictionaries "
                    "(fairseq-preprocess --srcdict, --tgtdict)"
                )
        if not shown_only and split not in splits_in(folder):
            raise UserError(f"--train-subset {split}: {folder} has no such split")


def _check_unused_splits(call: Call, data: str) -> None:
    """Refuse further splits for validation that no flag is about, as fairseq does.

    It does so after it has built the model, and by a flag that it does not have.
    """
    from fairseq.data.data_utils import raise_if_valid_subsets_unintentionally_ignored

    read = Namespace(dataset=call.values, task=Namespace(data=data))
    try:
        raise_if_valid_subsets_unintentionally_ignored(read)
    except ValueError:
        splits = {split for folder in data.split(":") for split in splits_in(Path(folder))}
        # the pattern is fairseq's own
        numbered = {split for split in splits if re.match(r"valid*[0-9]", split)}
        # of pairs of languages it also counts those that --valid-subset names
        unnamed = numbered.difference(str(call.values.valid_subset).split(","))
        further = sorted(unnamed or numbered)
        raise UserError(
            f"{data} has further splits for validation ({', '.join(further)}); give "
            "--ignore-unused-valid-subsets for those of --valid-subset alone, or "
            "--combine-valid-subsets and --upsample-primary 1 for all of them as one"
        ) from None


def _check_alignments(call: Call, data: str) -> None:
    """Check that there are the alignments that a flag names. fairseq trains without them."""
    if not vars(call.values).get("load_alignments"):
        return
    for split in call.values.train_subset.split(","):
        if not any(Path(data.split(":")[0]).glob(f"{split}.align.*")):
            raise UserError(
                f"--load-alignments: {data} has no {split}.align.*, which fairseq-preprocess makes "
                "of the file of --align-suffix; leave it out"
            )
