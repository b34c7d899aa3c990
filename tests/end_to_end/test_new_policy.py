"""A policy that reads contexts is one class: all that a training needs follows from it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.helpers.commands import ROOT

pytestmark = pytest.mark.slow

SCRIPT = '''
"""A new policy, and trainings under it by fairseq-train in this process."""

import io
import json
import logging
import sys
from dataclasses import dataclass

import torch

from fairseq_kerbs.reallocation import Moves, Policy, SenseState, register
from fairseq_kerbs.reallocation.policy import DefaultSchedule, setting


@dataclass(frozen=True)
class Widest(Policy):
    """The word with the widest contexts receives the least used sense."""

    name = "widest"
    summary = "widest contexts"
    needs_contexts = True
    sense_allocation = "equal"
    default_schedule = DefaultSchedule(interval=3, at=(0.5,))

    least_width: float = setting(0.0, "width from which on a word receives a sense", "[0, inf)")

    def initialize(self, senses: SenseState) -> None:
        senses.weight[0] = 0.5

    def propose(self, senses: SenseState) -> Moves:
        inventory = senses.inventory
        widths = torch.zeros(inventory.vocab_size)
        for word in (senses.contexts.size > 0).nonzero().flatten().tolist():
            widths[word] = senses.contexts.contexts(word).std(0).mean().nan_to_num()
        widths[inventory.table.mask.all(1)] = 0.0
        several = inventory.table.mask.sum(1)[inventory.word_of_sense] > 1
        sense = inventory.usage.where(several, torch.inf).argmin().view(1)
        word = widths.argmax().view(1)
        assert widths[word] > self.least_width
        return Moves(sense, inventory.word_of_sense[sense], word, inventory.usage[sense].double())


register(Widest)
import fairseq_kerbs.criterions
import fairseq_kerbs.models
from tests.helpers.tiny_checkpoint import fairseq_train

data, folder = sys.argv[1:]
log = io.StringIO()
logging.getLogger().addHandler(logging.StreamHandler(log))
WIDEST = ("--reallocation", "widest", "--least-width", 1e-6, "--save-interval-updates", 2)


def train(name: str, updates: int, *flags: object) -> str:
    """What the training logs, or the sentence that ends it."""
    log.truncate(0)
    log.seek(0)
    save = ("--save-dir", f"{folder}/{name}", "--max-update", updates, "--max-tokens", 60)
    try:
        fairseq_train(data, *save, *flags)
    except SystemExit as ended:
        return str(ended.code)
    return log.getvalue()


said = {
    "straight": train("straight", 8, *WIDEST),
    "half": train("resumed", 2, *WIDEST, "--reallocation-at", 4),
    "resumed": train("resumed", 8, *WIDEST),
    "other flag": train("refused", 8, *WIDEST, "--max-moves", 0.1),
    "other policy": train("refused", 8, "--least-width", 0.2),
    "range": train("refused", 8, *WIDEST, "--least-width", -1),
    "resumed under another": train("resumed", 9),
    "too short": train("short", 3, *WIDEST, "--reallocation-at", 5),
}
print(json.dumps(said))
'''


def test_a_new_policy_is_one_class(data: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(data), str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    for name in ("straight", "resumed"):
        assert "reallocation after 4 updates: 1 senses moved to 1 words" in said[name]
    assert "reallocation after" not in said["half"]
    reader = "--reallocation released and not read by --reallocation widest"
    assert f"--max-moves is for {reader}" in said["other flag"]
    reader = "--reallocation widest and not read by --reallocation paper"
    assert f"--least-width is for {reader}" in said["other policy"]
    assert "--least-width is -1.0, but must be within [0, inf)" in said["range"]
    assert "was trained with --reallocation widest, not paper" in said["resumed under another"]
    assert "--reallocation widest moves no sense before update 5" in said["too short"]

    # an interval of 3 updates before the moves after 4: sampling begins after the first
    states = {
        name: torch.load(tmp_path / name, map_location="cpu", weights_only=False)["model"]
        for name in (
            "straight/checkpoint_1_2.pt",
            "straight/checkpoint_last.pt",
            "resumed/checkpoint_last.pt",
        )
    }
    sampling, straight, resumed = states.values()
    prefix = "decoder.output."
    assert len(sampling[f"{prefix}sample_kept"]) > 0
    weight = sampling[f"{prefix}weight"]
    assert sampling[f"{prefix}sample_kept"].shape[1] == weight.shape[1]  # there are no biases
    assert f"{prefix}sample_kept" not in straight
    first = sampling[f"{prefix}inventory.word_of_sense"]
    assert torch.equal(
        first, torch.arange(len(first)) % len(straight[f"{prefix}inventory.log_prob"])
    )
    moved = straight[f"{prefix}inventory.word_of_sense"] != first
    assert int(moved.sum()) == 1
    for name, value in straight.items():
        if not name.endswith("._float_tensor"):  # fairseq leaves it uninitialized
            assert torch.equal(resumed[name], value), name
