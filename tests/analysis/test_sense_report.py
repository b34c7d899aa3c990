"""Occurrences and reports on a tiny model in memory."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from fairseq.data import LanguagePairDataset
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from fairseq_kerbs.analysis.frequency import FrequencyGroup, senses_by_frequency
from fairseq_kerbs.analysis.occurrences import Occurrence, joined_words, occurrences
from fairseq_kerbs.analysis.sense_report import build_report
from fairseq_kerbs.analysis.sense_tables import as_json, as_text
from tests.fairseq_fixtures import dictionary, make_batch, make_model, make_task


class _Task(TranslationTask):
    """A translation task whose test set is a batch in memory."""

    def __init__(
        self, batch: dict[str, Any], words: int = 23, left_pad_target: bool = False
    ) -> None:
        super().__init__(TranslationConfig(), dictionary(19), dictionary(words))
        self.batch, self.left_pad_target = batch, left_pad_target

    def load_dataset(self, split: str, *args: Any, **kwargs: Any) -> None:
        if split != "test":
            raise FileNotFoundError(f"Dataset not found: {split}")
        source = [row[row.ne(1)] for row in self.batch["net_input"]["src_tokens"]]
        target = [row[row.ne(1)] for row in self.batch["target"]]
        sizes = [len(row) for row in source], [len(row) for row in target]
        self.datasets[split] = LanguagePairDataset(
            *(source, sizes[0], self.src_dict, target, sizes[1], self.tgt_dict),
            left_pad_target=self.left_pad_target,
        )


def test_subwords_are_joined_and_only_whole_tokens_have_a_place() -> None:
    pieces = ["the", "ban@@", "k", "of@@", "f", "bank", "un@@"]
    words, positions = joined_words(pieces)
    assert words == ["the", "bank", "off", "bank", "un"]
    assert positions == [0, None, None, 5, None]


@pytest.mark.parametrize("left_pad_target", [False, True])
def test_posteriors_are_those_of_the_output_layer(left_pad_target: bool) -> None:
    model, batch = make_model("transformer"), make_batch()
    layer = model.decoder.output
    task = _Task(batch, left_pad_target=left_pad_target)
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
            owners = layer.inventory.word_of_sense[list(occurrence.senses)]
            assert owners.eq(int(target[position])).all()
    assert not found


def _occurrence(line: int, sense: int, word: str = "w3") -> Occurrence:
    posterior = tuple(0.9 if number == sense else 0.1 for number in (3, 40))
    return Occurrence(line, 0, word, (3, 40), posterior, ("a", word, "b"), 1)


def test_report_counts_senses_and_measures_purity() -> None:
    layer = make_model("lstm").decoder.output
    found = [_occurrence(line, 3 if line < 4 else 40) for line in range(6)]
    gold = {(line, 0, "w3"): "x" if line < 3 else "y" for line in range(6)}
    report = build_report(found, layer, {"w3": 7}, gold=gold)
    (word,) = report.words
    assert [(s.sense, s.count, s.true_senses) for s in word.senses] == [
        (3, 4, {"x": 3, "y": 1}),
        (40, 2, {"y": 2}),
    ]
    assert report.purity is not None
    assert report.purity.purity == pytest.approx(5 / 6)
    assert sum(sense.usage for sense in word.senses) == pytest.approx(1.0)
    text = as_text(report)
    assert "a [w3] b" in text
    assert "83.3%" in text
    assert json.loads(as_json(report))["words"][0]["senses"][0]["count"] == 4


def test_words_that_are_no_token_are_said() -> None:
    layer = make_model("lstm").decoder.output
    report = build_report([_occurrence(0, 3)], layer, {"w3": 7}, words=["w3", "absent"])
    assert report.missing == ["absent"]
    assert "absent" in as_text(report)


def test_senses_by_deciles_of_frequency() -> None:
    """Nine words in four groups of 2, 2, 2 and 3, by counts; the special symbol counts nothing."""
    counts = [0, 5, 90, 70, 5, 1, 30, 2, 8, 3]
    senses = [4, 2, 4, 3, 1, 1, 2, 1, 4, 2]
    assert senses_by_frequency(senses, counts, groups=4) == [
        FrequencyGroup(2, 90, 70, 3.5),
        FrequencyGroup(2, 30, 8, 3.0),
        FrequencyGroup(2, 5, 5, 1.5),
        FrequencyGroup(3, 3, 1, 4 / 3),
    ]
    assert len(senses_by_frequency(senses, counts)) == 9  # fewer words than deciles
    layer = make_model("lstm").decoder.output
    counts = [0] * 4 + list(range(layer.vocab_size - 4, 0, -1))
    report = build_report([_occurrence(0, 3)], layer, {"w3": 7}, counts=counts)
    mean = sum(group.words * group.senses for group in report.deciles)
    assert mean == pytest.approx(float(layer.inventory.senses_per_word()[4:].sum()))
    assert "senses a word" in as_text(report)
    assert json.loads(as_json(report))["deciles"][9]["fewest"] == 1
