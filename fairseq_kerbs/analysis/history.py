"""Reallocation and θ over training: from the log of fairseq-train or from TensorBoard's files."""

from __future__ import annotations

import json
import re
from pathlib import Path

from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import iter_lines

Series = dict[str, tuple[list[int], list[float]]]
"""By name: numbers of updates, and the value at each."""

NAMES = re.compile(r"senses_moved|words_with_\d+|theta_q\d+")
_SIMPLE = re.compile(r"\b(\w+)[= ](-?[\d.]+(?:e[+-]?\d+)?)(?=,| \||\s*$)")
_KINDS = ("train_inner", "train")  # between two validations, or once an epoch


def read_history(path: Path) -> Series:
    """What a training says of its senses, by number of updates.

    Args:
        path: a file with what fairseq-train printed (``--log-format simple``, ``json`` or
            ``tqdm``), or the folder of ``--tensorboard-logdir``.

    Raises:
        UserError: there is no such file, or it has no figures of senses.
    """
    found = _from_tensorboard(path) if path.is_dir() else _from_log(path)
    if not found:
        raise UserError(
            f"{path} has no figures of senses; name the output of fairseq-train with a KerBS model "
            "and --log-format simple, or its --tensorboard-logdir"
        )
    return {name: (sorted(own), [own[at] for at in sorted(own)]) for name, own in found.items()}


def thin(series: Series, most: int = 500) -> Series:
    """At most about ``most`` points of each series, evenly chosen, the last one kept.

    Of senses moved the values in between are added up, so that none is lost.
    """
    result: Series = {}
    for name, (updates, values) in series.items():
        step = -(-len(updates) // most)
        ends = range(len(updates) - 1, -1, -step)[::-1]
        back = step if name == "senses_moved" else 1
        kept = [sum(values[max(0, end - back + 1) : end + 1]) for end in ends]
        result[name] = [updates[end] for end in ends], kept
    return result


def _from_log(path: Path) -> dict[str, dict[int, float]]:
    """Values by name and update; a training that was resumed writes an update again: the last
    one counts."""
    found: dict[str, dict[str, dict[int, float]]] = {kind: {} for kind in _KINDS}
    for line in iter_lines(path):
        for kind in _KINDS:
            _, marked, rest = line.partition(f"| {kind} | ")
            figures = _figures(rest) if marked else {}
            for name in filter(NAMES.fullmatch, figures if "num_updates" in figures else ()):
                at = int(float(figures["num_updates"]))
                found[kind].setdefault(name, {})[at] = float(figures[name])
    return next(filter(None, found.values()), {})


def _figures(text: str) -> dict[str, str]:
    """Names and values of a line, which is JSON or has ``name=value`` or ``name value``."""
    pairs = dict(_SIMPLE.findall(text))
    if text.lstrip().startswith("{"):
        try:
            pairs = json.loads(text)
        except json.JSONDecodeError:
            return {}
    # in JSON the names of an epoch's figures begin with the subset: train_num_updates
    return {name.removeprefix("train_"): value for name, value in pairs.items()}


def _from_tensorboard(folder: Path) -> dict[str, dict[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for kind in (*_KINDS, "."):
        if not list((folder / kind).glob("events.out.tfevents.*")):
            continue
        events = EventAccumulator(str(folder / kind), size_guidance={"scalars": 0})
        events.Reload()
        names = [name for name in sorted(events.Tags()["scalars"]) if NAMES.fullmatch(name)]
        if names:
            return {name: {e.step: e.value for e in events.Scalars(name)} for name in names}
    return {}
