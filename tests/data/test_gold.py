"""Files of gold senses from other people's lists and texts, in their own formats."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest

from fairseq_kerbs.cli import main
from fairseq_kerbs.data.gold import gold_of_translations, with_several_senses

LIST = """\
hat | hut | a man in a hat . | ein mann mit einem hut . | 1.jpg
hat | mützen | two hats . | zwei mützen . | 1.jpg
white | weißen | a dog in front of a white fence . | ein hund vor einem weißen zaun . | 2.jpg
White | hell | white cats and white dogs . | helle katzen und helle hunde . | 3.jpg
rock | fels | a rock | ein fels | 4.jpg
rock | stein | a rock | ein stein | 4.jpg
"""
TEXT = """\
A man in a hat and a hat .
hat and rock
White cats and a white hat
a rock
a rock
a rock
nothing
"""
SOURCE = """\
Ein Mann mit einem Hut und einem Hut .
Mützen und Hüte auf Steinen
Weiße Katzen und eine Mütze
Eine Felswand
ein Steinchen auf einem Fels
Gestein
Hut
"""


def rows_of(path: Path) -> list[tuple[str, ...]]:
    return [tuple(row.split("\t")) for row in path.read_text().splitlines()]


def test_translations_in_the_source_are_senses(tmp_path: Path) -> None:
    """Inflected forms and compounds count; two translations at once, or none, leave a word out."""
    for name, text in (("list.txt", LIST), ("train.en", TEXT), ("train.de", SOURCE)):
        (tmp_path / name).write_text(text)
    texts = ["--text", f"{tmp_path / 'train.en'}", "--source", f"{tmp_path / 'train.de'}"]
    out = tmp_path / "gold.tsv"
    assert main(["gold-mlt", f"{tmp_path / 'list.txt'}", *texts, "-o", f"{out}"]) == 0
    assert rows_of(out) == [
        ("0", "0", "hat", "hut"), ("0", "1", "hat", "hut"), ("1", "0", "rock", "stein"),
        ("2", "0", "hat", "mutz"), ("3", "0", "rock", "fel"),
    ]  # fmt: skip


LEXICON = {"bank": ("banka", "banky", "břeh"), "seal": ("tuleň",), "tree": ("strom", "stromy")}
LEXICON |= {"in": ("uvnitř", "do")}  # a function word
LEXICON |= {word: (word[::-1],) for word in ("one", "two", "three", "four", "five", "six")}


def translations(folder: Path, *flags: str) -> list[tuple[str, ...]]:
    """Gold senses of a text of words drawn from the lexicon, translated word by word."""
    draw = Random(1)
    lines = [[draw.choice([*LEXICON]) for _ in range(4)] for _ in range(400)]
    others = [" ".join(draw.choice(LEXICON[word]) for word in reversed(line)) for line in lines]
    (folder / "train.en").write_text("".join(f"{' '.join(line)} .\n" for line in lines))
    (folder / "train.cs").write_text("".join(f"{line.capitalize()}.\n" for line in others))
    texts = ["--text", f"{folder / 'train.en'}", "--other", f"{folder / 'train.cs'}"]
    assert main(["gold-translations", *texts, "-o", f"{folder / 'gold.tsv'}", *flags]) == 0
    rows = rows_of(folder / "gold.tsv")
    for line, occurrence, word, _ in rows:
        assert lines[int(line)].count(word) > int(occurrence)
    return rows


def test_aligned_words_are_senses(tmp_path: Path) -> None:
    senses = {row[2:] for row in translations(tmp_path, "--stemmer", "none")}
    assert senses == {(word, other) for word in ("bank", "tree") for other in LEXICON[word]}
    senses = {row[2:] for row in translations(tmp_path)}  # Czech by the suffix .cs
    assert senses == {("bank", "bank"), ("bank", "břeh")}  # "strom" and "stromy" are one
    words = {row[2] for row in translations(tmp_path, "--function-words")}
    assert words == {"bank", "in"}


def test_a_short_text_is_aligned_with_more_text(tmp_path: Path) -> None:
    """Three lines alone do not tell which word is which."""
    translations(tmp_path)
    (tmp_path / "test.en").write_text("bank seal\nbank seal\nseal bank\n")
    (tmp_path / "test.cs").write_text("tuleň břeh\nbanka tuleň\nbanka tuleň\n")
    command = ["gold-translations", "-o", f"{tmp_path / 'gold'}", "--least-count", "1"]
    command += ["--text", f"{tmp_path / 'test.en'}", "--other", f"{tmp_path / 'test.cs'}"]
    more = ["--more-text", f"{tmp_path / 'train.en'}", "--more-other", f"{tmp_path / 'train.cs'}"]
    assert main([*command, *more]) == 0
    rows = [("0", "0", "bank", "břeh"), ("1", "0", "bank", "bank"), ("2", "0", "bank", "bank")]
    assert rows_of(tmp_path / "gold") == rows
    assert main([*command, *more[:2]]) == 2


def test_words_aligned_with_none_or_with_punctuation_have_no_sense() -> None:
    lines, others = [["the", "bank", ".", "bank"], []], [[".", "banka"], ["břeh"]]
    assert gold_of_translations(lines, others, [-1, 1, 1, 0]) == [(0, 0, "bank", "banka")]
    assert gold_of_translations(lines, others, [0, -1, 0, 2]) == [(0, 1, "bank", "břeh")]


def test_rare_words_and_senses_are_left_out() -> None:
    rows = [(line, 0, "bank", "a" if line < 8 else "b") for line in range(10)]
    rows += [(0, 0, "seal", "a"), (1, 0, "seal", "b"), (2, 0, "one", "a"), (10, 0, "bank", "c")]
    assert {row[2] for row in with_several_senses(rows)} == {"bank", "seal"}
    chosen = with_several_senses(rows, least_count=3, least_share=0.15)
    assert {row[2:] for row in chosen} == {("bank", "a"), ("bank", "b")}
    assert len(chosen) == 10
    assert with_several_senses(rows, least_share=0.6) == []


NOAD = "masc\tthe bank of the bank\t1:shore 4:money\nsemcor\ta bank\t1:money\n"


def test_labelled_words_of_a_dictionary(tmp_path: Path) -> None:
    labels, files = tmp_path / "noad.tsv", ["--text", f"{tmp_path / 'text'}"]
    command = ["gold-noad", str(labels), *files, "-o", f"{tmp_path / 'gold.tsv'}"]
    labels.write_text(NOAD)
    assert main(command) == 0
    assert (tmp_path / "text").read_text() == "the bank of the bank\na bank\n"
    assert rows_of(tmp_path / "gold.tsv") == [
        ("0", "0", "bank", "shore"), ("0", "1", "bank", "money"), ("1", "0", "bank", "money")
    ]  # fmt: skip
    labels.write_text("s\ta bank\t2:money\n")  # no word has this position
    assert main(command) == 2


def coarsewsd(folder: Path) -> None:
    for word, sentences, senses in (
        ("bank", ["3\tmoney at the bank .", "4\tbank of the river bank ."], "0\n1\n"),
        ("seal", ["0\tseal it ."], "0\n"),
    ):
        (folder / word).mkdir(parents=True)
        (folder / word / "train.data.txt").write_text("\n".join(sentences) + "\n")
        (folder / word / "train.gold.txt").write_text(senses)
        names = {"0": f"{word}_a", "1": f"{word}_b"}
        (folder / word / "classes_map.txt").write_text(json.dumps(names))


def test_sentences_of_all_words_are_one_text(tmp_path: Path) -> None:
    coarsewsd(tmp_path / "wsd")
    files = ["--text", f"{tmp_path / 'text'}", "-o", f"{tmp_path / 'gold.tsv'}"]
    assert main(["gold-coarsewsd", f"{tmp_path / 'wsd'}", *files]) == 0
    assert (tmp_path / "text").read_text().splitlines() == [
        "money at the bank .", "bank of the river bank .", "seal it ."
    ]  # fmt: skip
    assert (tmp_path / "gold.tsv").read_text().splitlines() == [
        "0\t0\tbank\tbank_a", "1\t1\tbank\tbank_b"
    ]  # fmt: skip


@pytest.mark.parametrize(("file", "content"), [
    ("classes_map.txt", None), ("classes_map.txt", '{"1": "bank_b"}'), ("train.gold.txt", "0\n"),
    ("train.data.txt", "6\tmoney at the bank .\n0\tbank\n"),
])  # fmt: skip
def test_wrong_content_is_named(
    file: str, content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    coarsewsd(tmp_path / "wsd")
    path = tmp_path / "wsd" / "bank" / file
    path.unlink() if content is None else path.write_text(content)
    files = ["--text", f"{tmp_path / 'text'}", "-o", f"{tmp_path / 'gold.tsv'}"]
    assert main(["gold-coarsewsd", f"{tmp_path / 'wsd'}", *files]) == 2
    error = capsys.readouterr().err
    assert f"{path}: expected" in error or "train.data.txt, line " in error
    assert not (tmp_path / "text").exists()
