"""Table 6: words drawn by their number of senses."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest
import torch

from fairseq_kerbs.analysis.words import drawn_words, whole_words, words_by_number_of_senses
from fairseq_kerbs.cli import main
from fairseq_kerbs.commands import reading
from tests.analysis.conftest import BatchTask
from tests.helpers.fairseq_fixtures import make_model

SYMBOLS = [
    *("<s>", "<pad>", "</s>", "<unk>", "the", "ban@@", "ing", "change", "12", "=it", "."),
    *("they", "madeupword0000", "ü|x"),
]
SENSES = [1, 1, 2, 4, 4, 2, 1, 4, 4, 1, 2, 4, 1, 2]


def test_only_whole_words_are_drawn() -> None:
    assert words_by_number_of_senses(SENSES, SYMBOLS, 4) == {
        1: ["ing", "=it"],
        2: ["ü|x"],
        3: [],
        4: ["the", "change", "they"],
    }
    known = {"the", "change", "they", "=it", "ü|x"}
    assert words_by_number_of_senses(SENSES, SYMBOLS, 4, known)[1] == ["=it"]
    pieces = words_by_number_of_senses(SENSES, SYMBOLS, 4, known, with_pieces=True)
    assert pieces[1] == ["@@ing", "=it"]
    assert pieces[2] == ["ban@@", "ü|x"]


def test_words_that_stand_alone() -> None:
    number = {symbol: index for index, symbol in enumerate(SYMBOLS)}
    sentences = ["the ban@@ ing </s>", "they </s>", "ban@@ ban@@ change", "", "the ban@@"]
    targets = [torch.tensor([number[w] for w in s.split()], dtype=torch.long) for s in sentences]
    assert whole_words(targets, SYMBOLS) == {"the", "they", "</s>"}
    assert whole_words([torch.tensor([6])], SYMBOLS) == {"ing"}


def test_draw_is_seeded_without_repetition() -> None:
    groups = {1: [f"a{number}" for number in range(300)], 2: ["b"]}
    table = drawn_words(groups, 5, 1)
    assert table == drawn_words(groups, 5, 1) != drawn_words(groups, 5, 2)
    assert len(set(re.findall(r"\ba\d+", table))) == 5


def test_the_table_in_markdown() -> None:
    head, rule, *rows = drawn_words({1: ["a|b"], 2: [], 3: ["c"]}, 5, 1).splitlines()
    assert set(rule) == {"|", "-"}
    assert [re.sub(" +", " ", row) for row in (head, *rows)] == [
        "| | 1 sense | 2 senses | 3 senses |",
        "| words in all | 1 | 0 | 1 |",
        "| drawn at random | a\\|b | | c |",
    ]


def test_the_table_as_csv() -> None:
    table = drawn_words({1: ["a,b"], 2: [], 3: ["=d"]}, 5, 1, csv=True)
    assert list(csv.reader(table.splitlines())) == [
        ["senses", "words_in_all", "word"],
        ["1", "1", "a,b"],
        ["3", "1", "'=d"],
    ]


def test_the_senses_command_prints_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, task = make_model("lstm"), BatchTask("test", "train")
    loaded = "fairseq_kerbs.checkpoints.load_model_and_task"
    monkeypatch.setattr(loaded, lambda *_, **flags: (model, task))
    command = ["senses", "checkpoint.pt", "--data", "bin", "--words-each", "99"]
    file = tmp_path / "table.md"
    assert main([*command, "--by-number-of-senses", "--table", str(file)]) == 0
    assert file.read_text() in capsys.readouterr().out
    symbols = task.target_dictionary.symbols
    seen = {symbols[n] for n in task.batch["target"].flatten().tolist() if n > 3}
    assert set(re.findall(r"\bw\d+", file.read_text())) == seen
    rows = tmp_path / "table.csv"
    assert main([*command, "--with-pieces", "--table", str(rows)]) == 0
    assert "words in all" not in capsys.readouterr().out
    assert rows.read_text().startswith("senses,words_in_all,word\n")
    assert "@@w" in rows.read_text()  # not in the training data
    assert main([*command, "--words-each", "0"]) == 2
    assert "--words-each is 0" in capsys.readouterr().err
    task.splits = ("test",)
    assert main([*command, "--by-number-of-senses", "--split", "test"]) == 2
    assert "bin has no training data" in capsys.readouterr().err


def test_no_control_character_of_a_word_reaches_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    reading.show("bank\x1b[2J\x9b\rü ▲\nspring")
    assert capsys.readouterr().out == "bank\ufffd[2J\ufffd\ufffdü ▲\nspring\n"
