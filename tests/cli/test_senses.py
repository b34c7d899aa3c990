"""``fairseq-kerbs senses``: what it shows by default; tests/analysis has what it computes."""

import json
from pathlib import Path

from tests.helpers.cli import Capsys, kerbs


def test_twenty_words_by_default(tiny_work: Path, tmp_path: Path, capsys: Capsys) -> None:
    given = ["senses", tiny_work / "model.pt", "--dict", tiny_work / "bin" / "dict.en.txt"]
    file = tmp_path / "senses.json"
    for flags, number in (([], 20), (["--top", 3], 3)):
        kerbs(capsys, *given, *flags, "--json", file)
        assert len(json.loads(file.read_text())["words"]) == number


def test_an_empty_name_of_a_split_is_refused(tiny_work: Path, capsys: Capsys) -> None:
    """As of a variable of the shell that is not set."""
    given = ["senses", tiny_work / "model.pt", "--data", tiny_work / "bin"]
    assert "--split" in kerbs(capsys, *given, "--split", "", status=2)


def test_words_of_the_table_stand_anywhere_in_the_training_data(
    tiny_work: Path, tmp_path: Path, capsys: Capsys
) -> None:
    lines = [line.split() for line in (tiny_work / "text" / "train.en").read_text().splitlines()]
    letters = {word for line in lines for word in line if word.isalpha()}
    first = {line[0] for line in lines}
    file = tmp_path / "table.csv"
    given = ["senses", tiny_work / "model.pt", "--data", tiny_work / "bin", "--words-each", 999]
    kerbs(capsys, *given, "--split", "train", "--table", file)
    shown = set(file.read_text().replace(",", " ").replace('"', " ").split())
    assert letters - first
    assert letters <= shown
