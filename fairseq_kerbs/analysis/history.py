"""Reallocation and θ over training, from fairseq-train's log or its files for TensorBoard."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import iter_lines

Series = dict[str, tuple[list[int], list[float]]]
"""By name: numbers of updates, and the value at each."""

_NAMES = re.compile(r"senses_moved|words_with_\d+|theta_q\d+")
# name=value, name value or "name": "value"; of an epoch in JSON, "train_name"
_FIGURES = re.compile(r'\b(?:train_)?(\w+?)(?:[= ]|": )"?(-?\d[\d.]*(?:e[+-]?\d+)?)(?=[",} ]|$)')
_KINDS = ("train_inner", "train")  # between two validations, or once an epoch
_CHARTS = (
    ("Words by number of senses, over training", "words", "words_with_", "number of senses: {}"),
    ("Senses moved", "senses since the last record", "senses_moved", "senses moved"),
    ("θ over training", "θ", "theta_q", "{} % of the senses lie below"),
)


def read_history(path: Path) -> Series:
    """What a training says of its senses, by number of updates: in a file with what fairseq-train
    printed (``--log-format simple``, ``json`` or ``tqdm``), or in the folder of its
    ``--tensorboard-logdir``; a UserError if nothing is there of senses. Of an update that a resumed
    training writes again, the last counts.
    """
    series = _from_tensorboard(path) if path.is_dir() else _from_log(path)
    if not series:
        raise UserError(
            f"{path} has no figures of senses; name the output of fairseq-train with a KerBS model "
            "and --log-format simple, or its --tensorboard-logdir"
        )
    return {name: (sorted(own), [own[at] for at in sorted(own)]) for name, own in series.items()}


def history_charts(series: Series) -> list[tuple[str, str, Series]]:
    """What can be drawn of a history: titles, labels of values, and lines by their names."""
    charts = []
    for title, label, start, name in _CHARTS:
        lines = {
            name.format(key.removeprefix(start).lstrip("0")): values
            for key, values in sorted(series.items())
            if key.startswith(start)
        }
        if lines:
            charts.append((title, label, lines))
    return charts


def _from_log(path: Path) -> dict[str, dict[int, float]]:
    found: dict[str, dict[str, dict[int, float]]] = {kind: defaultdict(dict) for kind in _KINDS}
    for line in iter_lines(path):
        for kind in _KINDS:
            _, marked, rest = line.partition(f"| {kind} | ")
            figures = dict(_FIGURES.findall(rest)) if marked else {}
            for name in filter(_NAMES.fullmatch, figures if "num_updates" in figures else ()):
                found[kind][name][int(float(figures["num_updates"]))] = float(figures[name])
    return found["train_inner"] or found["train"]


def _from_tensorboard(folder: Path) -> dict[str, dict[int, float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for kind in (*_KINDS, "."):
        if not list((folder / kind).glob("events.out.tfevents.*")):
            continue
        events = EventAccumulator(str(folder / kind), size_guidance={"scalars": 0})
        events.Reload()
        if names := list(filter(_NAMES.fullmatch, events.Tags()["scalars"])):
            return {name: {e.step: e.value for e in events.Scalars(name)} for name in names}
    return {}
