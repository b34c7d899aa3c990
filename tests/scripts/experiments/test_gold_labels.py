"""Files of gold senses from other people's lists, in their own formats."""

import json
import re
from pathlib import Path

import pytest

from scripts.experiments.gold_labels import main
from tests.helpers.cli import Capsys, Patch

Rows = list[tuple[str, ...]]
SENSES = ("hat|hut", "hat|mützen", "white|weißen", "White|hell", "rock|fels", "rock|stein")
PAIRS = [
    ("A man in a hat and a hat .", "Ein Mann mit einem Hut und einem Hut ."),
    ("hat and rock", "Mützen und Hüte auf Steinen"),
    ("White cats and a white hat", "Weiße Katzen und eine Mütze"),
    ("a rock", "Eine Felswand"),
    ("a rock", "ein Steinchen auf einem Fels"),
    ("a rock", "Gestein"),
    ("nothing", "Hut"),
]


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)


def gold(command: str) -> Rows:
    assert main([*command.split(), "-o", "gold.tsv"]) == 0
    return [tuple(row.split("\t")) for row in Path("gold.tsv").read_text().splitlines()]


def test_translations_in_the_source_are_senses() -> None:
    """Inflected forms and compounds count; two translations at once, or none, leave a word out."""
    rows = (f"{pair.replace('|', ' | ')} | two . | zwei . | 1.jpg\n" for pair in SENSES)
    Path("list").write_text("".join(rows))
    for name, lines in zip(("text.en", "text.de"), zip(*PAIRS)):
        Path(name).write_text("".join(f"{line}\n" for line in lines))
    command = "mlt list --text text.en --source text.de"
    assert gold(command) == [
        ("0", "0", "hat", "hut"),
        ("0", "1", "hat", "hut"),
        ("1", "0", "rock", "stein"),
        ("2", "0", "hat", "mutz"),
        ("3", "0", "rock", "fel"),
    ]
    plain = gold(f"{command} --stemmer none")  # which does not find "Mütze"
    assert [row[3] for row in plain] == ["hut", "hut", "mützen", "stein", "fels"]
    Path("list").write_text("hat | | two . | zwei . | 1.jpg\n")
    assert main(f"{command} -o gold.tsv".split()) == 2


def test_labelled_words_of_a_dictionary() -> None:
    labels = Path("noad")
    labels.write_text("masc\tthe bank of the bank\t1:shore 4:money\nsemcor\ta bank\t1:money\n")
    assert gold("noad noad --text text") == [
        ("0", "0", "bank", "shore"),
        ("0", "1", "bank", "money"),
        ("1", "0", "bank", "money"),
    ]
    assert Path("text").read_text() == "the bank of the bank\na bank\n"
    for wrong in ("2:money", "1:money 1:shore", "1:"):  # no word has the first position
        labels.write_text(f"s\ta bank\t{wrong}\n")
        assert main(["noad", "noad", "--text", "text", "-o", "gold.tsv"]) == 2


@pytest.fixture
def bank() -> Path:
    """The folder of one of two words, as CoarseWSD-20 has them."""
    for word, sentences, senses in (
        ("seal", "0\tseal it .\n", "0\n"),
        ("bank", "3\tmoney at the bank .\n4\tbank of the river bank .\n", "0\n1\n"),
    ):
        (folder := Path("wsd", word)).mkdir(parents=True)
        (folder / "train.data.txt").write_text(sentences)
        (folder / "train.gold.txt").write_text(senses)
        (folder / "classes_map.txt").write_text(json.dumps({"0": f"{word} \ta", "1": 7}))
    return folder


@pytest.mark.usefixtures("bank")
def test_sentences_of_all_words_are_one_text() -> None:
    rows = [("0", "0", "bank", "bank a"), ("1", "1", "bank", "7")]
    assert gold("coarsewsd wsd --text text") == rows
    assert Path("text").read_text() == "money at the bank .\nbank of the river bank .\nseal it .\n"


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("classes_map.txt", None),
        ("classes_map.txt", '{"1": "bank_b"}'),
        ("train.gold.txt", "0\n"),
        ("train.data.txt", "6\tmoney at the bank .\n0\tbank\n"),
        ("train.data.txt", "-1\ta bank\n"),
    ],
)
def test_wrong_content_is_named(file: str, content: str | None, bank: Path, capsys: Capsys) -> None:
    path = bank / file
    path.unlink() if content is None else path.write_text(content)
    assert main(["coarsewsd", "wsd", "--text", "text", "-o", "gold.tsv"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("gold_labels.py: error: ")
    assert f"{path}: expected" in error or "train.data.txt, line " in error
    assert not Path("text").exists()


MISUSES = [
    ("mlt two --text two --source two -o gold --stemmer german", "two, line 1"),
    ("mlt two --text two --source two -o gold", "--source: there is no stemmer"),
    ("noad two --text text -o gold", "two"),
    ("coarsewsd . --text text -o gold", "train.data.txt"),
    ("mlt two --text two -o gold", "--source"),
    ("mtl two", "mtl"),
]


@pytest.mark.parametrize(("command", "named"), MISUSES)
def test_misuse_is_one_sentence(command: str, named: str, capsys: Capsys) -> None:
    Path("two").write_text("a b\nc d\n")
    assert main(command.split()) == 2
    error = capsys.readouterr().err
    assert re.fullmatch(r"gold_labels\.py[ \w]*: error: .*\n", error), error
    assert named in error
    assert not Path("gold").exists()
