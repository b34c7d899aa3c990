"""Files of gold senses from aligned texts."""

from pathlib import Path
from random import Random

import pytest

from fairseq_kerbs.cli import main
from fairseq_kerbs.data.gold import gold_of_translations, parallel_words, with_several_senses
from tests.helpers.cli import Patch

Rows = list[tuple[str, ...]]


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)


def gold(command: str) -> Rows:
    assert main([*command.split(), "-o", "gold.tsv"]) == 0
    return [tuple(row.split("\t")) for row in Path("gold.tsv").read_text().splitlines()]


LEXICON = {"bank": ("banka", "banky", "břeh"), "seal": ("tuleň",), "tree": ("strom", "stromy")}
LEXICON |= {"in": ("uvnitř", "do")}  # a function word
LEXICON |= {word: (word[::-1],) for word in ("one", "two", "three", "four", "five", "six")}


def translations(flags: str = "") -> Rows:
    """Gold senses of a text of words drawn from the lexicon, translated word by word."""
    draw = Random(1)
    lines = [[draw.choice([*LEXICON]) for _ in range(4)] for _ in range(400)]
    others = [" ".join(draw.choice(LEXICON[word]) for word in reversed(line)) for line in lines]
    Path("train.en").write_text("".join(f"{' '.join(line)} .\n" for line in lines))
    Path("train.cs").write_text("".join(f"{line.capitalize()}.\n" for line in others))
    rows = gold(f"gold-translations --text train.en --other train.cs {flags}")
    for line, occurrence, word, _ in rows:
        assert lines[int(line)].count(word) > int(occurrence)
    return rows


def test_aligned_words_are_senses() -> None:
    senses = {row[2:] for row in translations("--stemmer none")}
    assert senses == {(word, other) for word in ("bank", "tree") for other in LEXICON[word]}
    senses = {row[2:] for row in translations()}  # Czech by the suffix .cs
    assert senses == {("bank", "bank"), ("bank", "břeh")}  # "strom" and "stromy" are one
    assert {row[2] for row in translations("--function-words")} == {"bank", "in"}


def test_a_short_text_is_aligned_with_more_text() -> None:
    """Three lines alone do not tell which word is which."""
    translations()
    Path("test.en").write_text("bank seal\nbank seal\nseal bank\n")
    Path("test.cs").write_text("tuleň břeh\nbanka tuleň\nbanka tuleň\n")
    command = "gold-translations --text test.en --other test.cs --least-count 1"
    rows = [("0", "0", "bank", "břeh"), ("1", "0", "bank", "bank"), ("2", "0", "bank", "bank")]
    assert gold(f"{command} --more-text train.en --more-other train.cs") == rows
    assert main(f"{command} --more-text train.en -o gold.tsv".split()) == 2


def test_words_aligned_with_none_or_with_punctuation_have_no_sense() -> None:
    lines, others = [["the", "bank", ".", "bank"], []], [[".", "banka"], ["břeh"]]
    assert gold_of_translations(lines, others, [-1, 1, 1, 0]) == [(0, 0, "bank", "banka")]
    assert gold_of_translations(lines, others, [0, -1, 0, 2]) == [(0, 1, "bank", "břeh")]


def test_combining_marks_are_parts_of_words() -> None:
    Path("a.en").write_text("I king\n")
    Path("a.xx").write_text("मैं kra\u0301l. Işık\n")
    assert parallel_words(Path("a.en"), Path("a.xx"), "turkish")[1][0][-1] == "ışık"
    lines, others = parallel_words(Path("a.en"), Path("a.xx"))
    assert others == [["मैं", "král", ".", "işık"]]
    assert [row[3] for row in gold_of_translations(lines, others, [0, 1])] == ["मैं", "král"]


def test_rare_words_and_senses_are_left_out() -> None:
    rows = [(line, 0, "bank", "a" if line < 8 else "b") for line in range(10)]
    rows += [(0, 0, "seal", "a"), (1, 0, "seal", "b"), (2, 0, "one", "a"), (10, 0, "bank", "c")]
    assert {row[2] for row in with_several_senses(rows)} == {"bank", "seal"}
    chosen = with_several_senses(rows, least_count=3, least_share=0.15)
    assert {row[2:] for row in chosen} == {("bank", "a"), ("bank", "b")}
    assert len(chosen) == 10
    assert with_several_senses(rows, least_share=0.6) == []
