"""Source words and neighbours of sampled contexts."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from fairseq_kerbs.analysis import evidence
from fairseq_kerbs.analysis.evidence import ParallelLines, number_by_evidence, source_numbers
from fairseq_kerbs.checkpoints.contexts import TAG_OF_A_LINE
from fairseq_kerbs.reallocation.context_sample import ContextSample
from fairseq_kerbs.reallocation.kmeans import Clustering
from tests.helpers.cli import Patch
from tests.helpers.fairseq_fixtures import dictionary

ENGLISH = ["the ri@@ ver bank is green", "a bank in the city", "Green bank"]
GERMAN = ["das Fluss@@ ufer ist grün", "eine Bank in der Stadt", "Grünes Ufer"]


class Task:
    """Two dictionaries, and lines in batches, with tokens as fairseq has them."""

    cfg = None

    def __init__(
        self, english: list[str], german: list[str], language: str = "de", target: str = "en"
    ) -> None:
        self.args = type("Args", (), {"source_lang": language, "target_lang": target})()
        self.target_dictionary = dictionary(0)
        self.source_dictionary = dictionary(0)
        self.lines = list(zip(english, german))
        for line in english:
            self.target_dictionary.encode_line(line, append_eos=False)
        for line in german:
            self.source_dictionary.encode_line(line, append_eos=False)

    def batches(self, *_: object) -> Iterator[dict[str, Any]]:
        for number, (english, german) in enumerate(self.lines):
            own = self.source_dictionary.encode_line(german, add_if_not_exist=False)
            target = self.target_dictionary.encode_line(english, add_if_not_exist=False)
            padding = torch.full((2,), self.target_dictionary.pad())
            inputs = {"src_tokens": own.unsqueeze(0), "prev_output_tokens": target.unsqueeze(0)}
            yield {
                "id": torch.tensor([number]),
                "target": torch.cat([target, padding]).unsqueeze(0),
                "net_input": inputs,
            }


def lines_of(task: Task, monkeypatch: Patch) -> ParallelLines:
    monkeypatch.setattr(evidence, "batches", task.batches)
    lines = ParallelLines.read(task, "train")
    assert lines is not None
    return lines


def tags(*places: tuple[int, int]) -> np.ndarray:
    return np.array([line * TAG_OF_A_LINE + column for line, column in places])


def test_an_occurrence_has_its_word_and_neighbours(monkeypatch: Patch) -> None:
    lines = lines_of(Task(ENGLISH * 9, GERMAN * 9), monkeypatch)
    where = tags((0, 3), (0, 2), (1, 1), (5, 1))
    assert lines.occurrences(where) == [
        (0, 0, "bank"),
        (0, 0, "river"),  # of which the column is a piece
        (1, 0, "bank"),
        (5, 0, "bank"),
    ]
    # of all lines in alphabetical order, without function words: bank, city, green, river
    assert lines.neighbours(where).tolist() == [
        [False, False, True, True],
        [True, False, True, False],
        [False, True, False, False],
        [False, False, True, False],
    ]


def test_function_words_are_those_of_the_target_language(monkeypatch: Patch) -> None:
    """English *die* and *not* are content words in German, and *der* is a function word."""
    numbers = range(30)
    german = [f"der Mann{n} große not" for n in numbers] + [f"a{n} der b{n}" for n in numbers]
    english = [f"x{n} y{n}" for n in range(60)]
    lines = lines_of(Task(german, english, "en", "de"), monkeypatch)
    assert not lines._is_content("der")
    assert not lines._is_content("42")
    assert lines._is_content("not")
    assert not lines_of(Task(german, english, "fr", "en"), monkeypatch)._is_content("not")


def test_source_words_are_aligned_stems(monkeypatch: Patch) -> None:
    english = ["bank money", "bank water", "money", "water"] * 30
    german = ["Bank Geld", "Ufer Wasser", "Geld", "Wasser"] * 30
    lines = lines_of(Task(english, german), monkeypatch)
    where = tags((0, 0), (4, 0), (1, 0), (5, 0))
    assert lines.sources(where).tolist() == [0, 0, 1, 1]


def test_source_numbers_join_forms_and_leave_out_rare_words() -> None:
    aligned = ["strass"] * 30 + ["strassenrand"] * 9 + ["", "feld", "kran", "kranich"] * 10
    found = source_numbers(aligned + ["wald"] * 3)  # 3 of 72
    assert found[:39].tolist() == [3] * 39
    assert found[39:43].tolist() == [-1, 0, 1, 2]
    assert found[-3:].tolist() == [-1] * 3
    assert source_numbers(["", ""]).tolist() == [-1, -1]


def test_dialog_and_language_models_have_no_source_words(monkeypatch: Patch) -> None:
    turns = [f"we talk about {word} now" for word in ("a", "b", "c", "d", "e", "f")]
    task = Task(turns, turns[1:] + turns[:1], "en")
    monkeypatch.setattr(evidence, "batches", task.batches)
    assert ParallelLines.read(task, "train") is None
    sample = ContextSample(torch.zeros(5, dtype=torch.long), 2, 40, 10**6)
    assert number_by_evidence(task, "train", sample) is None
    batch = next(task.batches())
    del batch["net_input"]["prev_output_tokens"]
    monkeypatch.setattr(evidence, "batches", lambda *_: [batch])
    assert ParallelLines.read(task, "train") is None


@pytest.mark.parametrize(("least", "senses"), [(0.2, 2), (1.0, 1)])
def test_the_number_is_by_source_words_and_neighbours(
    least: float, senses: int, monkeypatch: Patch
) -> None:
    english = ["bank money", "bank water", "money", "water"] * 30
    task = Task(english, ["Bank Geld", "Ufer Wasser", "Geld", "Wasser"] * 30)
    monkeypatch.setattr(evidence, "batches", task.batches)
    word = task.target_dictionary.index("bank")
    sample = ContextSample(torch.full((len(task.target_dictionary),), 60), 2, 60, 10**6)
    numbers = torch.arange(60)
    lines = 4 * (numbers // 2) + numbers % 2  # those with "bank"
    sample.add(torch.full((60,), word), torch.ones(60, 2), lines * TAG_OF_A_LINE)
    number = number_by_evidence(task, "train", sample, least)
    assert number is not None
    order = torch.from_numpy(sample.tags_of(word).numpy() // TAG_OF_A_LINE)
    clusterings = [Clustering(torch.zeros(60, dtype=torch.long), 2.0), Clustering(order % 2, 1.0)]
    assert number(word, clusterings) == senses
