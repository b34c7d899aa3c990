"""Files of gold senses from other people's lists, in their own formats."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairseq_kerbs.cli import main
from fairseq_kerbs.data.gold import gold_of_mlt
from fairseq_kerbs.utils.errors import UserError

LIST = """\
hat | hut | a man in a hat . | ein mann mit einem hut . | 1.jpg
white | weißen | a dog in front of a white fence . | ein hund vor einem weißen zaun . | 2.jpg
White | weiße | white cats and white dogs . | weiße katzen und weiße hunde . | 3.jpg
fence | zaun | a dog in front of a white fence . | ein hund vor einem weißen zaun . | 2.jpg
fence | gitter | a dog in front of a white fence . | ein hund vor einem weißen zaun . | 2.jpg
coat | mäntel | two coat - racks . | zwei mäntel . | 4.jpg
white | weißes | the white house | das weiße haus | 5.jpg
"""
TEXT = """\
A man in a hat .
A dog in front of a white fence .
White cats and white dogs .
Two coat @-@ racks .
The White house
"""


def test_translations_are_senses(tmp_path: Path) -> None:
    """Inflected forms are joined; a word that is there twice, or has two senses, is left out."""
    (tmp_path / "list.txt").write_text(LIST)
    (tmp_path / "test.en").write_text(TEXT)
    arguments = ["gold-mlt", f"{tmp_path / 'list.txt'}", "--text", f"{tmp_path / 'test.en'}"]
    assert main([*arguments, "-o", f"{tmp_path / 'gold.tsv'}"]) == 0
    rows = [row.split("\t") for row in (tmp_path / "gold.tsv").read_text().splitlines()]
    assert rows == [
        ["0", "0", "hat", "hut"],
        ["1", "0", "white", "weiss"],
        ["3", "0", "coat", "mantel"],
        ["4", "0", "White", "weiss"],
    ]


def test_a_list_of_another_text_or_form_is_refused(tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text(LIST)
    (tmp_path / "other.en").write_text("Nothing of it .\n")
    (tmp_path / "bad.txt").write_text("hat | hut\n")
    with pytest.raises(UserError, match=r"other\.en"):
        gold_of_mlt(tmp_path / "list.txt", tmp_path / "other.en")
    with pytest.raises(UserError, match="line 1"):
        gold_of_mlt(tmp_path / "bad.txt", tmp_path / "other.en")


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
        "0\t0\tbank\tbank_a", "1\t1\tbank\tbank_b", "2\t0\tseal\tseal_a"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("classes_map.txt", None),
        ("classes_map.txt", '{"0": "bank_a"'),
        ("classes_map.txt", "5"),
        ("classes_map.txt", '{"1": "bank_b"}'),
        ("train.data.txt", "6\tmoney at the bank .\n0\tbank\n"),
        ("train.data.txt", "-1\tmoney at the bank .\n0\tbank\n"),
        ("train.data.txt", "money at the bank .\n0\tbank\n"),
        ("train.gold.txt", "2\n1\n"),
    ],
)
def test_wrong_content_is_named(
    file: str, content: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    coarsewsd(tmp_path / "wsd")
    path = tmp_path / "wsd" / "bank" / file
    path.unlink() if content is None else path.write_text(content)
    files = ["--text", f"{tmp_path / 'text'}", "-o", f"{tmp_path / 'gold.tsv'}"]
    assert main(["gold-coarsewsd", f"{tmp_path / 'wsd'}", *files]) == 2
    error = capsys.readouterr().err
    assert ", line 1: " in error or str(path) in error
    assert not (tmp_path / "text").exists()


def test_files_that_do_not_fit_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    coarsewsd(tmp_path / "wsd")
    (tmp_path / "wsd" / "bank" / "train.gold.txt").write_text("0\n")
    files = ["--text", f"{tmp_path / 'text'}", "-o", f"{tmp_path / 'gold.tsv'}"]
    assert main(["gold-coarsewsd", f"{tmp_path / 'wsd'}", *files]) == 2
    assert "bank" in capsys.readouterr().err
    assert main(["gold-coarsewsd", f"{tmp_path / 'nowhere'}", *files]) == 2
    assert not (tmp_path / "gold.tsv").exists()
