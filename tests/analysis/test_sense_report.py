"""Occurrences and reports on a tiny model in memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fairseq_kerbs.analysis.context_vectors import sense_numbers
from fairseq_kerbs.analysis.gold_senses import labels_of_senses
from fairseq_kerbs.analysis.names import SenseNames, Text
from fairseq_kerbs.analysis.occurrences import Occurrence, occurrences
from fairseq_kerbs.analysis.sense_report import build_report, report_as_text
from fairseq_kerbs.analysis.words import joined_words, senses_by_frequency
from fairseq_kerbs.output_layers import OutputLayer
from tests.analysis.conftest import BatchTask
from tests.helpers.fairseq_fixtures import make_model, make_task

SYMBOLS = make_task().target_dictionary.symbols


def test_subwords_are_joined_and_only_whole_tokens_have_a_place() -> None:
    pieces = ["the", "ban@@", "k", "of@@", "f", "bank", "un@@"]
    words, positions = joined_words(pieces)
    assert words == ["the", "bank", "off", "bank", "un"]
    assert positions == [0, None, None, 5, None]


@pytest.mark.parametrize("left_pad_target", [False, True])
def test_posteriors_are_those_of_the_output_layer(left_pad_target: bool) -> None:
    model, task = make_model("transformer"), BatchTask("test", left_pad_target=left_pad_target)
    layer, batch = model.decoder.output, task.batch
    found = {(o.line, o.position): o for o in occurrences(model, task, "test")}
    with torch.no_grad():
        features, _ = model(**batch["net_input"])
        _, _, evidence = layer.nll_with_evidence(features, batch["target"], ignore_index=1)
    joint = evidence.sense_prob.view(*batch["target"].shape, -1)
    words = make_task().target_dictionary
    for row, target in enumerate(batch["target"]):
        for position in range(int(target.ne(1).sum()) - 1):  # the end of sentence is no word
            occurrence = found.pop((row, position))
            assert occurrence.word == words[int(target[position])]
            expected = joint[row, position][joint[row, position] > 0]
            torch.testing.assert_close(
                torch.tensor(occurrence.posterior), expected / expected.sum(), rtol=1e-4, atol=1e-5
            )
            owners = layer.word_of_sense[list(occurrence.senses)]
            assert owners.eq(int(target[position])).all()
    assert not found


def _names(layer: OutputLayer, *numbers: int) -> SenseNames:
    """Names of a text "a w3 b" a line, each with a sense of w3 by its number."""
    rows = sense_numbers(layer, 7)
    count = len(numbers)
    senses = np.array([rows[number - 1] for number in numbers])
    columns = np.arange(count), np.ones(count, int), np.full(count, 7), senses, np.full(count, 0.9)
    return SenseNames(Text([["a", "w3", "b"]] * count, None, *columns), SYMBOLS)


def test_report_counts_senses_and_true_ones() -> None:
    layer = make_model("lstm").decoder.output
    rows = tuple(sense_numbers(layer, 7))
    found = [
        Occurrence(line, 0, "w3", rows, posterior, ("a", "w3", "b"), 1, torch.zeros(1))
        for line in range(6)
        for posterior in [(0.1, 0.9) if line < 4 else (0.9, 0.1)]
    ]
    gold = {(line, 0, "w3"): "x" if line < 3 else "y" for line in range(6)}
    labels = labels_of_senses(found, gold)
    report = build_report(
        _names(layer, 2, 2, 2, 2, 1, 1), layer, SYMBOLS, gold=labels, words=["w3"]
    )
    (word,) = report["words"]
    senses = word["senses"]
    assert [(s["name"], s["sense"], s["times"], s["true_senses"]) for s in senses[:2]] == [
        ("w3#1", 1, 2, {"y": 2}),
        ("w3#2", 2, 4, {"x": 3, "y": 1}),
    ]
    assert sum(sense["usage"] for sense in senses) == pytest.approx(1.0)
    text = report_as_text(report)
    assert "a [w3] b" in text
    assert "true: x 3, y 1" in text


def test_words_that_are_no_token_are_said() -> None:
    layer = make_model("lstm").decoder.output
    report = build_report(_names(layer, 1), layer, SYMBOLS, words=["w3", "absent"])
    assert report["missing"] == ["absent"]
    assert "absent" in report_as_text(report)


def test_senses_by_deciles_of_frequency() -> None:
    """Nine words in four groups of 3, 2, 2 and 2, by counts; the special symbol counts nothing."""
    counts = [0, 5, 90, 70, 5, 1, 30, 2, 8, 3]
    senses = [4, 2, 4, 3, 1, 1, 2, 1, 4, 2]
    found = [tuple(group.values()) for group in senses_by_frequency(senses, counts, groups=4)]
    assert found == [(3, 90, 30, 3.0), (2, 8, 5, 3.0), (2, 5, 3, 1.5), (2, 2, 1, 1.0)]
    assert len(senses_by_frequency(senses, counts)) == 9  # fewer words than deciles
    layer = make_model("lstm").decoder.output
    counts = [0] * 4 + list(range(layer.vocab_size - 4, 0, -1))
    report = build_report(_names(layer, 1), layer, SYMBOLS, counts=counts)
    mean = sum(group["words"] * group["senses"] for group in report["deciles"])
    assert mean == pytest.approx(float(layer.senses_per_word()[4:].sum()))
    assert "senses a word" in report_as_text(report)
    assert report["deciles"][9]["fewest"] == 1
