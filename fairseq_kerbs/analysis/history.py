"""Reallocation and θ over training: from the log of fairseq-train or from TensorBoard's files."""

from __future__ import annotations

import json
import re
from pathlib import Path

from fairseq_kerbs.corpora.files import iter_lines
from fairseq_kerbs.errors import UserError

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
    series = _from_tensorboard(path) if path.is_dir() else _from_log(path)
    if not series:
        raise UserError(
            f"{path} has no figures of senses; name the output of fairseq-train with a KerBS model "
            "and --log-format simple, or its --tensorboard-logdir"
        )
    return series


def thin(series: Series, most: int = 500) -> Series:
    """At most about ``most`` points of each series, evenly chosen, the last one kept.

    Of senses moved the values in between are added up, so that none is lost.
    """
    result: Series = {}
    for name, (updates, values) in series.items():
        step = -(-len(updates) // most)
        ends = range(len(updates) - 1, -1, -step)[::-1]
        if name == "senses_moved":
            kept = [sum(values[max(0, end - step + 1) : end + 1]) for end in ends]
        else:
            kept = [values[end] for end in ends]
        result[name] = [updates[end] for end in ends], kept
    return result


def _from_log(path: Path) -> Series:
    found: dict[str, dict[int, dict[str, float]]] = {kind: {} for kind in _KINDS}
    for line in iter_lines(path):
        for kind in _KINDS:
            _, marked, rest = line.partition(f"| {kind} | ")
            if marked:
                figures = _figures(rest)
                if figures.get("num_updates") is not None:
                    # a training that was resumed writes the same update again: the last one counts
                    found[kind][int(figures["num_updates"])] = figures
    for kind in _KINDS:
        series: Series = {}
        for update in sorted(found[kind]):
            for name, value in found[kind][update].items():
                if NAMES.fullmatch(name):
                    updates, values = series.setdefault(name, ([], []))
                    updates.append(update)
                    values.append(value)
        if series:
            return series
    return {}


def _figures(text: str) -> dict[str, float]:
    """Names and numbers of a line, which is JSON or has ``name=value`` or ``name value``."""
    if text.lstrip().startswith("{"):
        try:
            pairs = json.loads(text)
        except json.JSONDecodeError:
            return {}
        # the names of an epoch's figures begin with the subset: train_num_updates
        found = {
            name if name.startswith("train_inner") else name.removeprefix("train_"): value
            for name, value in pairs.items()
        }
        return {name: float(value) for name, value in found.items() if _is_number(value)}
    return {name: float(value) for name, value in _SIMPLE.findall(text)}


def _is_number(text: object) -> bool:
    try:
        float(str(text))
    except ValueError:
        return False
    return True


def _from_tensorboard(folder: Path) -> Series:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for kind in (*_KINDS, "."):
        if not list((folder / kind).glob("events.out.tfevents.*")):
            continue
        events = EventAccumulator(str(folder / kind), size_guidance={"scalars": 0})
        events.Reload()
        series: Series = {}
        for name in sorted(events.Tags()["scalars"]):
            if NAMES.fullmatch(name):
                last = {event.step: event.value for event in events.Scalars(name)}
                series[name] = (sorted(last), [last[step] for step in sorted(last)])
        if series:
            return series
    return {}
