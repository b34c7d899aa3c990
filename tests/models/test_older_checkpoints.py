"""Checkpoints that were written before the modules moved into rooms load, and predict the same.

The three in ``before_rooms`` are of revision 773dd97: six updates on pairs of the letters aa … ll
and their reversal, width 8, without the optimizer's state. ``expected.json`` has what that revision
made of "aa bb cc dd".
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from fairseq_kerbs.checkpoints import load_model_and_task

FOLDER = Path(__file__).parent / "before_rooms"
EXPECTED = json.loads((FOLDER / "expected.json").read_text())


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_predictions_are_those_of_the_revision_that_wrote_it(name: str) -> None:
    model, task = load_model_and_task(FOLDER / f"{name}.pt", FOLDER)
    source = task.source_dictionary.encode_line("aa bb cc dd").long()[None]
    target = task.target_dictionary.encode_line("dd cc bb aa").long()
    previous = target.roll(1)[None]
    with torch.no_grad():
        output = model(source, torch.tensor([source.shape[1]]), previous)
        log_probs = model.get_normalized_probs(output, True)[0]
    found = log_probs.gather(1, target[:, None])[:, 0]
    torch.testing.assert_close(found, torch.tensor(EXPECTED[name]["log_prob"]), rtol=0, atol=2e-5)
    assert log_probs.argmax(1).tolist() == EXPECTED[name]["best"]
