"""Files of gold senses from other people's lists and texts, in their own formats."""

import json
from pathlib import Path
from random import Random

import pytest

from fairseq_kerbs.cli import main
from fairseq_kerbs.data.gold import gold_of_translations, parallel_words, with_several_senses
from tests.helpers.cli import Capsys, Patch, kerbs

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
    command = "gold-mlt list --text text.en --source text.de"
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


def test_labelled_words_of_a_dictionary() -> None:
    labels = Path("noad")
    labels.write_text("masc\tthe bank of the bank\t1:shore 4:money\nsemcor\ta bank\t1:money\n")
    assert gold("gold-noad noad --text text") == [
        ("0", "0", "bank", "shore"),
        ("0", "1", "bank", "money"),
        ("1", "0", "bank", "money"),
    ]
    assert Path("text").read_text() == "the bank of the bank\na bank\n"
    for wrong in ("2:money", "1:money 1:shore", "1:"):  # no word has the first position
        labels.write_text(f"s\ta bank\t{wrong}\n")
        assert main(["gold-noad", "noad", "--text", "text", "-o", "gold.tsv"]) == 2


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
    assert gold("gold-coarsewsd wsd --text text") == rows
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
    error = kerbs(capsys, "gold-coarsewsd", "wsd", "--text", "text", "-o", "gold.tsv", status=2)
    assert f"{path}: expected" in error or "train.data.txt, line " in error
    assert not Path("text").exists()
