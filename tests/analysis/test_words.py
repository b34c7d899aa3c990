"""Words by their number of senses (Table 6), and senses by frequency."""

import csv
import re
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from pandas import DataFrame

from fairseq_kerbs.analysis import words as entries
from fairseq_kerbs.analysis.names import SenseNames
from fairseq_kerbs.analysis.report import (
    build_report,
)
from fairseq_kerbs.output_layers import OutputLayer
from fairseq_kerbs.utils.errors import UserError
from tests.analysis.conftest import Trained, text_of
from tests.helpers.cli import Capsys, kerbs
from tests.helpers.fairseq_fixtures import dictionary, make_model

WORDS = dictionary(23)


def names_of(layer: OutputLayer, *numbers: int) -> SenseNames:
    """Names of a text "a w3 b" a line, each with a sense of w3 by its number."""
    rows = entries.sense_numbers(layer, 7)
    tokens = [(line, 1, 7, rows[number - 1]) for line, number in enumerate(numbers)]
    return SenseNames(text_of([["a", "w3", "b"]] * len(numbers), tokens), WORDS.symbols)


def test_a_word_with_its_accent_apart_is_found() -> None:
    words = SimpleNamespace(indices={"é": 4, "▁caf\u00e9": 5})
    assert entries.word_numbers(words, ["e\u0301", "cafe\u0301", "café"]) == [4, 5, 5]
    apart = SimpleNamespace(indices={"e\u0301t": 4})
    assert entries.word_numbers(apart, ["\u00e9t", "e\u0301t"]) == [4, 4]


@pytest.mark.parametrize("name", ["the#1", "@@the", " the ", "The", "@@the#12"])
def test_a_name_as_it_is_printed_leads_to_its_word(name: str) -> None:
    words = SimpleNamespace(indices={"the": 4, "C#": 5})
    with pytest.raises(UserError, match="not in the dictionary; did you mean the\\?"):
        entries.word_numbers(words, [name])
    assert entries.word_numbers(words, ["C#"]) == [5]


def test_senses_by_deciles_of_frequency() -> None:
    """Nine words in four groups of 3, 2, 2 and 2, by counts; the special symbol counts nothing."""
    counts = [0, 5, 90, 70, 5, 1, 30, 2, 8, 3]
    numbers = [4, 2, 4, 3, 1, 1, 2, 1, 4, 2]
    groups = entries.senses_by_frequency(numbers, counts, groups=4)
    right = [(3, 90, 30, 3.0), (2, 8, 5, 3.0), (2, 5, 3, 1.5), (2, 2, 1, 1.0)]
    assert [tuple(group.values()) for group in groups] == right
    assert len(entries.senses_by_frequency(numbers, counts)) == 9  # fewer words than deciles
    layer = make_model("lstm").decoder.output
    report = build_report(names_of(layer, 1), layer, WORDS)
    mean = sum(group["words"] * group["senses"] for group in report["deciles"])
    assert mean == pytest.approx(float(layer.senses_per_word()[4:].sum()))


SYMBOLS = [
    "<s>",
    "<pad>",
    "</s>",
    "<unk>",
    "the",
    "ban@@",
    "ing",
    "change",
    "12",
    "=it",
    ".",
    "they",
    "madeupword0000",
    "ü|x",
]
NUMBERS = [1, 1, 2, 4, 4, 2, 1, 4, 4, 1, 2, 4, 1, 2]


def test_only_whole_words_are_drawn() -> None:
    drawn = partial(entries.words_by_number_of_senses, NUMBERS, SYMBOLS, 4)
    assert drawn() == {1: ["ing", "=it"], 2: ["ü|x"], 3: [], 4: ["the", "change", "they"]}
    known = {SYMBOLS.index(word) for word in ("the", "change", "they", "=it", "ü|x")}
    assert drawn(known)[1] == ["=it"]
    pieces = drawn(known, with_pieces=True)
    assert (pieces[1], pieces[2]) == (["@@ing", "=it"], ["ban@@", "ü|x"])
    # of SentencePiece: what begins a word has a mark, and may be a word or go on
    symbols = ["<s>", "▁light", "ing", "▁ban", "a", "▁a"]
    drawn = partial(entries.words_by_number_of_senses, [1] * 6, symbols, 1)
    assert drawn() == {1: ["light", "ban", "a"]}
    assert drawn({1, 5}) == {1: ["light", "a"]}
    assert drawn({1, 5}, with_pieces=True) == {1: ["light", "@@ing", "▁ban@@", "@@a", "a"]}


def test_the_table_in_markdown_and_as_csv() -> None:
    head, _, *rows = entries.drawn_words({1: ["a|b"], 2: [], 3: ["c"]}, 5, 1).splitlines()
    assert [re.sub(" +", " ", row) for row in (head, *rows)] == [
        "| | 1 sense | 2 senses | 3 senses |",
        "| words in all | 1 | 0 | 1 |",
        "| drawn at random | a\\|b | | c |",
    ]
    table = entries.drawn_words({1: ["a,b"], 2: [], 3: ["=d"]}, 5, 1, csv=True)
    assert table.splitlines() == ["senses,words_in_all,word", '1,1,"a,b"', "3,1,=d"]
    gaps = DataFrame([{"a": 0.12345678, "b": None, "c": 1}, {"a": None, "b": "x", "c": 2}])
    for frame in (gaps, gaps.astype({"a": object})):
        assert entries.csv_of(frame, 6) == "a,b,c\n0.123457,,1\n,x,2\n"
    groups = {1: [f"a{number}" for number in range(300)], 2: ["b"]}
    table, again, other = (entries.drawn_words(groups, 5, seed) for seed in (1, 1, 2))
    assert table == again != other
    assert len(set(re.findall(r"\ba\d+", table))) == 5


def test_the_command_prints_the_table(trained: Trained, tmp_path: Path, capsys: Capsys) -> None:
    given = ["senses", trained.kerbs, "--data", trained.data, "--words-each", "999", "--table"]
    file = tmp_path / "table.md"
    rows = tmp_path / "table.csv"
    shown = kerbs(capsys, *given, file, "--by-number-of-senses")
    assert file.read_text() in shown
    assert "words in all" not in kerbs(capsys, *given, rows, "--with-pieces")
    words = {row["word"] for row in csv.DictReader(rows.read_text().splitlines())}
    pieces = {word for word in words if "@@" in word}
    assert {word[-2:] == "@@" for word in pieces} == {True, False}
    assert "@@" not in file.read_text()
    assert all(f"| {word} " in file.read_text() for word in words - pieces)
