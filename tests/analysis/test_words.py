"""Table 6: words drawn by their number of senses."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_kerbs.analysis.words import (
    SenseGroup,
    groups_as_csv,
    groups_as_markdown,
    whole_words,
    words_by_number_of_senses,
)
from fairseq_kerbs.cli import main
from tests.analysis.conftest import BatchTask
from tests.helpers.fairseq_fixtures import make_model

SYMBOLS = [
    *("<s>", "<pad>", "</s>", "<unk>", "the", "ban@@", "ing", "change", "12", "=it", "."),
    *("they", "madeupword0000", "ü|x"),
]
SENSES = [1, 1, 2, 4, 4, 2, 1, 4, 4, 1, 2, 4, 1, 2]


def word_of_sense(senses: list[int]) -> torch.Tensor:
    owners = [word for word, number in enumerate(senses) for _ in range(number)]
    return torch.tensor(owners)[torch.randperm(len(owners))]


def groups(number: int = 9, seed: int = 1, **options: Any) -> dict[int, tuple[int, set[str]]]:
    found = words_by_number_of_senses(word_of_sense(SENSES), SYMBOLS, number, seed, **options)
    return {group.senses: (group.total, set(group.words)) for group in found}


def test_only_words_are_drawn() -> None:
    assert groups() == {
        1: (2, {"ing", "=it"}),
        2: (1, {"ü|x"}),
        3: (0, set()),
        4: (3, {"the", "change", "they"}),
    }


def test_pieces_are_left_out_or_marked() -> None:
    known = {"the", "change", "they", "=it", "ü|x"}
    assert groups(known=known)[1] == (1, {"=it"})
    assert groups(whole_words_only=False)[2] == (2, {"ban@@", "ü|x"})
    assert groups(whole_words_only=False, known=known)[1] == (2, {"@@ing", "=it"})


def test_words_that_stand_alone() -> None:
    number = {symbol: index for index, symbol in enumerate(SYMBOLS)}
    sentences = ["the ban@@ ing </s>", "they </s>", "ban@@ ban@@ change", "", "the ban@@"]
    targets = [torch.tensor([number[w] for w in s.split()], dtype=torch.long) for s in sentences]
    assert whole_words(targets, SYMBOLS) == {"the", "they", "</s>"}
    assert whole_words([torch.tensor([6])], SYMBOLS) == {"ing"}


def test_draw_is_seeded_without_repetition() -> None:
    symbols = [*SYMBOLS[:4], *(f"w{n}" for n in range(300))]
    owners = word_of_sense([1] * 4 + [1 + n % 4 for n in range(300)])
    first = words_by_number_of_senses(owners, symbols, 5, 1)
    assert first == words_by_number_of_senses(owners, symbols, 5, 1)
    assert first != words_by_number_of_senses(owners, symbols, 5, 2)
    for group in first:
        assert (group.total, len(set(group.words))) == (75, 5)
        assert {int(word[1:]) % 4 + 1 for word in group.words} == {group.senses}


def test_markdown_and_csv() -> None:
    table = [SenseGroup(1, 9, ("a|b", "c")), SenseGroup(2, 0, ()), SenseGroup(3, 1, ("=d",))]
    head, rule, *rows = groups_as_markdown(table).splitlines()
    assert set(rule) == {"|", "-"}
    assert [re.sub(" +", " ", row) for row in (head, *rows)] == [
        "| | 1 sense | 2 senses | 3 senses |",
        "| words in all | 9 | 0 | 1 |",
        "| drawn at random | a\\|b | | =d |",
        "| | c | | |",
    ]
    assert list(csv.reader(io.StringIO(groups_as_csv(table)))) == [
        ["senses", "words_in_all", "word"],
        ["1", "9", "a|b"],
        ["1", "9", "c"],
        ["3", "1", "'=d"],
    ]


def test_the_senses_command_prints_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model, task = make_model("lstm"), BatchTask("test", "train")
    loaded = "fairseq_kerbs.checkpoints.load_model_and_task"
    monkeypatch.setattr(loaded, lambda *_, **flags: (model, task))
    command = ["senses", "checkpoint.pt", "--data", "bin", "--words-each", "99"]
    file = tmp_path / "table.csv"
    assert main([*command, "--by-number-of-senses", "--table", str(file)]) == 0
    counts = model.decoder.output.inventory.senses_per_word().tolist()
    symbols = task.target_dictionary.symbols
    seen = {symbols[n] for n in task.batch["target"].flatten().tolist() if n > 3}
    rows = list(csv.DictReader(io.StringIO(file.read_text())))
    assert {row["word"] for row in rows} == seen
    assert all(counts[symbols.index(row["word"])] == int(row["senses"]) for row in rows)
    assert "| words in all " in capsys.readouterr().out
    assert main([*command, "--with-pieces", "--table", str(tmp_path / "table.md")]) == 0
    assert "@@w" in (tmp_path / "table.md").read_text()  # not in the training data
    assert "words in all" not in capsys.readouterr().out
    for flags, message in (
        (["--words-each", "0"], "--words-each is 0"),
        (["--table", "table.txt"], "must end in .md or .csv"),
    ):
        assert main([*command, *flags]) == 2
        assert message in capsys.readouterr().err
    task.splits = ("test",)
    assert main([*command, "--by-number-of-senses"]) == 2
    assert "bin has no training data" in capsys.readouterr().err
