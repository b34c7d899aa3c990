"""Context vectors by teacher forcing."""

from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_kerbs.checkpoints.building import load_model_and_task
from fairseq_kerbs.checkpoints.contexts import contexts_of
from tests.checkpoints.conftest import ARCHITECTURES, Train


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_contexts_of_fairseqs_own_model_are_its_features(
    arch: str, trained_softmax: Train, corpus: Path
) -> None:
    model, task = load_model_and_task(trained_softmax(arch), corpus, any_model=True)
    word = task.target_dictionary.index("the")
    found = contexts_of(model, task, "valid", [word], 1000)[word]
    split = task.dataset("valid")
    expected = []
    for index in range(len(split)):
        batch = split.collater([split[index]])
        with torch.no_grad():
            features, _ = model.extract_features(**batch["net_input"])
        expected.append(features[batch["target"] == word])
    assert len(found) == sum(map(len, expected)) > 5
    sums = [[each.sum(0), each.norm(dim=1).sort()[0]] for each in (found, torch.cat(expected))]
    torch.testing.assert_close(*sums, rtol=2e-3, atol=2e-2)
    assert "output_layer" not in model.decoder.__dict__  # as it was


def test_the_model_reads_only_the_sentences_that_are_needed(
    trained_softmax: Train, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, task = load_model_and_task(trained_softmax("transformer_tiny"), corpus, any_model=True)
    word = task.target_dictionary.index("the")
    read: list[int] = []
    forward = type(model).forward

    def recording(self: Any, *arguments: Any, **inputs: Any) -> Any:
        read.append(len(inputs["src_tokens"]))
        return forward(self, *arguments, **inputs)

    monkeypatch.setattr(type(model), "forward", recording)
    every = contexts_of(model, task, "valid", [word], 1000)[word]
    split = task.dataset("valid")
    with_the = sum(word in split[index]["target"] for index in range(len(split)))
    assert sum(read) == with_the < len(split)
    read.clear()
    few = contexts_of(model, task, "valid", [word], 3)[word]
    assert len(few) == 3
    assert sum(read) <= 3
    task.load_dataset("train")  # whose order is another one each time
    again = [contexts_of(model, task, "train", [word], 9)[word] for _ in range(2)]
    assert torch.equal(*again)
    nearest = torch.cdist(few.double(), every.double()).min(1).values
    assert nearest.max() < 1e-3 * every.norm(dim=1).mean()
