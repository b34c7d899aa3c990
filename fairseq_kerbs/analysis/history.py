"""Reallocation and θ over training, from the log of fairseq-train."""

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


def read_history(path: Path) -> Series:
    """What a training says of its senses, by number of updates.

    Args:
        path: a file with what fairseq-train printed (``--log-format simple``, ``json`` or
            ``tqdm``). Of an update that a resumed training writes again, the last values count.

    Raises:
        UserError: there is no such file, or it has no figures of senses.
    """
    found: dict[str, dict[str, dict[int, float]]] = {kind: defaultdict(dict) for kind in _KINDS}
    for line in iter_lines(path):
        for kind in _KINDS:
            _, marked, rest = line.partition(f"| {kind} | ")
            figures = dict(_FIGURES.findall(rest)) if marked else {}
            for name in filter(_NAMES.fullmatch, figures if "num_updates" in figures else ()):
                found[kind][name][int(float(figures["num_updates"]))] = float(figures[name])
    series = found["train_inner"] or found["train"]
    if not series:
        raise UserError(
            f"{path} has no figures of senses; name the output of fairseq-train with a KerBS model "
            "and --log-format simple"
        )
    return {name: (sorted(own), [own[at] for at in sorted(own)]) for name, own in series.items()}
