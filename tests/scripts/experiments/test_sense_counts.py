"""The comparison of rules for the number of senses."""

import csv
from pathlib import Path

import numpy as np
import pytest

from scripts.experiments.sense_counts import (
    HALVES,
    HAS_DIPTEST,
    RULES,
    Case,
    compare,
    half_of,
    main,
)
from tests.helpers.cli import Capsys
from tests.helpers.tiny_checkpoint import binarized_corpus, fairseq_train


def case(word: str, half: str, scores: list[float], sources: list[float], frequency: int) -> Case:
    return Case(
        word=word,
        kind="words",
        half=half,
        frequency=frequency,
        entropy=float(np.argmax(scores)),
        scores=scores,
        distortion=[100.0, 80.0, 70.0],
        likelihood=[0.0, 12.0, 1.0],
        strength=[1.0, 0.85, 0.7],
        dip=[0.0, 0.02, 0.9],
        sources=sources,
        neighbours=[0.0, 0.5, 0.6],
        about_sources=0.15,
        rule=2,
    )


MEANINGS, MEANING = [0.5, 0.9, 0.7], [1.0, 0.6, 0.4]
CASES = [
    case("bank", "selection", MEANINGS, MEANINGS, 100),
    case("seal", "selection", MEANING, [0.7, 0.74, 0.6], 400),
    case("bat", "report", MEANINGS, MEANINGS, 300),
    case("man", "report", MEANING, MEANING, 900),
]


def test_a_rule_is_chosen_on_one_half_and_reported_on_both() -> None:
    tables = compare(CASES)
    assert [*tables] == ["candidates.csv", "parameters.csv", "words.csv"]
    rows = {(row["rule"], row["half"]): row for row in tables["candidates.csv"].to_dict("records")}
    assert len(rows) == 2 * len(RULES)
    ceiling, one, sources, both = (
        rows[name, "report"]
        for name in (
            "best number by the labels (ceiling)",
            "one sense per word",
            "source words",
            "source words, neighbours tell both",
        )
    )
    assert ceiling["f_mean"] == pytest.approx(0.95)
    assert (ceiling["better"], ceiling["worse"], ceiling["senses"]) == (1, 0, 1.5)
    assert (one["f_mean"], one["minus_one_mean"]) == pytest.approx((0.75, 0.0))
    # a margin of 0.05 keeps "seal" whole, and so do 0.1 and 0.2, of which the first is taken
    assert sources["parameter"] == 0.05
    assert sources["minus_one_mean"] == pytest.approx(0.2)
    # 0.0 would split "seal", and 0.2 is more than neighbours tell about source words
    assert both["parameter"] in (0.0, 0.2)
    tried = tables["parameters.csv"]
    assert len(tried) == sum(len(parameters) for _, parameters in RULES.values())
    assert tried["chosen"].sum() == len(RULES)
    words = tables["words.csv"]
    every = words[words["rule"] == "as many as frequency allows (before)"].set_index("word")
    assert every["f"].to_dict() == pytest.approx({"bank": 0.7, "seal": 0.4, "bat": 0.7, "man": 0.4})


def test_a_word_has_one_half_and_figures_are_means_over_models() -> None:
    assert half_of("bank") == half_of("bank")
    assert {half_of(f"w{number}") for number in range(20)} == {*HALVES}
    other = CASES[0].__class__(**{**vars(CASES[0]), "scores": [0.7, 0.9, 0.7]})
    words = compare([*CASES, other])["words.csv"]
    found = words[(words["rule"] == "one sense per word") & (words["word"] == "bank")]
    assert found["f"].tolist() == pytest.approx([0.6])


def test_the_script_compares_rules_of_a_trained_model(tmp_path: Path, capsys: Capsys) -> None:
    data = binarized_corpus(tmp_path, {"train": 300, "valid": 10, "test": 6})
    fairseq_train(data, "--save-dir", tmp_path / "save", "--output-layer", "softmax")
    lines = (tmp_path / "text" / "train.en").read_text().splitlines()
    gold = tmp_path / "gold.tsv"
    rows = []
    for line, text in enumerate(lines):
        for word in ("the", "a"):
            for occurrence in range(text.split().count(word)):
                rows.append(f"{line}\t{occurrence}\t{word}\t{'xy'[line % 2]}\n")
    gold.write_text("".join(rows))
    command = [tmp_path / "save" / "checkpoint_last.pt", "--data", data, "-o", tmp_path / "out"]
    assert main([str(part) for part in [*command, "--gold", gold]]) == 0
    with (tmp_path / "out" / "words.csv").open() as stream:
        found = list(csv.DictReader(stream))
    assert {row["word"] for row in found} == {"the", "a"}
    said = "the dip test is left out" in capsys.readouterr().err
    assert ("dip test" in {row["rule"] for row in found}) == HAS_DIPTEST != said
    one = [row for row in found if row["rule"] == "one sense per word"]
    assert all(0.6 < float(row["f"]) < 0.75 for row in one)  # two halves: precision ½, recall 1
    gold.write_text("0\t0\tnothing\tx\n")
    assert main([str(part) for part in [*command, "--gold", gold]]) == 2
    assert "gold-translations --all-words" in capsys.readouterr().err
