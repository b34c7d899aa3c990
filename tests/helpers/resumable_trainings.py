"""Trainings of an interval's length and more, whose checkpoints hold everything that lasts."""

from pathlib import Path
from typing import Any

import torch

from tests.helpers.commands import ROOT
from tests.helpers.tiny_trainings import TRANSFORMER
from tests.helpers.training_runs import Run

MODELS = {
    # the sample of contexts of an interval of four updates is half complete in checkpoints
    "gru_kerbs": [
        "--hidden-size",
        "12",
        "--embed-dim",
        "12",
        "--reallocation",
        "clusters",
        "--reallocation-interval",
        "4",
        "--reallocation-at",
        "4",
        "8",
        "--max-tokens",
        "150",
    ],
    # fairseq seeds by the number of the update, so dropout is as it would have been
    "transformer_kerbs": [
        *TRANSFORMER,
        "--dropout",
        "0.2",
        "--reallocation",
        "paper",
        "--log-prob-threshold",
        "-5",
        "--sense-decay",
        "1e-3",
    ],
    # sums over the interval are half complete in every second checkpoint
    "lstm_kerbs": [
        "--hidden-size",
        "12",
        "--embed-dim",
        "12",
        "--layers",
        "2",
        "--dropout",
        "0.2",
        "--reallocation",
        "released",
        "--kernel",
        "kerbs_released",
        "--max-moves",
        "0.1",
        "--update-freq",
        "2",
        "--amp",
    ],
}
COMMON = [
    "--user-dir",
    str(ROOT / "fairseq_kerbs"),
    "--criterion",
    "kerbs_cross_entropy",
    "--optimizer",
    "adam",
    "--lr",
    "0.01",
    "--clip-norm",
    "1.0",
    "--cpu",
    "--num-workers",
    "0",
    "--max-tokens",
    "60",
    "--max-tokens-valid",
    "200",
    "--reallocation-interval",
    "2",
    "--seed",
    "3",
    "--log-format",
    "simple",
]


def run(data: Path, folder: Path, arch: str, *flags: str, **more: Any) -> Run:
    """A training that adds to the log beside its folder."""
    arguments = [str(data), *COMMON, "--arch", arch, *MODELS[arch], *flags]
    arguments += ["--save-dir", str(folder)]
    return {"arguments": arguments, "log": f"{folder}.log", **more}


def load(path: Path) -> dict[str, Any]:
    return torch.load(path, map_location="cpu", weights_only=False)
