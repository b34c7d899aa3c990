"""Files of gold senses from aligned texts."""

from pathlib import Path
from random import Random

import pytest

from fairseq_kerbs.cli import main
from fairseq_kerbs.data.gold import (
    frequent_senses,
    gold_of_translations,
    merge_forms,
    parallel_words,
    with_merged_forms,
    with_several_senses,
    without_accents,
)
from fairseq_kerbs.utils.errors import UserError
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


def test_function_words_of_another_language_are_told_by_the_text() -> None:
    """*und* stands between all words. *on* is a function word of English alone, here *that one*."""
    draw = Random(1)
    lexicon: dict[str, tuple[str, ...]] = {f"wort{x}": (f"slovo{x}",) for x in "abcdefghijkl"}
    content = [*lexicon]
    lexicon |= {"on": ("ten", "onen"), "und": ("a", "i")}
    lines = []
    for _ in range(400):
        one, two, three = (draw.choice(content) for _ in range(3))
        joined = [one, "und", two] if draw.randrange(3) else [one, two]
        lines.append([*joined, three, *["on"] * draw.randrange(2)])
    others = [" ".join(draw.choice(lexicon[word]) for word in line) for line in lines]
    Path("train.de").write_text("".join(f"{' '.join(line)}\n" for line in lines))
    Path("train.cs").write_text("".join(f"{line}\n" for line in others))
    command = "gold-translations --text train.de --other train.cs --stemmer none"
    assert {row[2] for row in gold(command)} == {"on"}
    assert {row[2] for row in gold(f"{command} --function-words")} == {"on", "und"}


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
    lines = [["the", "bank", ".", "bank"], []]
    others = [[".", "banka"], ["břeh"]]
    assert gold_of_translations(lines, others, [-1, 1, 1, 0]) == [(0, 0, "bank", "banka")]
    assert gold_of_translations(lines, others, [0, -1, 0, 2]) == [(0, 1, "bank", "břeh")]
    escaped = [["&quot;", "R&amp;D"]]  # an entity is no word
    assert gold_of_translations(escaped, [["x"]], [0, 0]) == [(0, 0, "R&amp;D", "x")]


def test_subwords_are_no_senses() -> None:
    for text, other in (("the ban@@ k", "banka"), ("the bank", "▁ban ka")):
        Path("a.en").write_text(f"one\n{text}\n")
        Path("a.cs").write_text(f"jedna\n{other}\n")
        with pytest.raises(UserError, match=r"line 2 has subwords \(@@ or ▁\)"):
            parallel_words(Path("a.en"), Path("a.cs"))


def test_an_entity_is_the_sign_that_it_stands_for() -> None:
    Path("a.en").write_text("the bank\n")
    Path("a.cs").write_text("&quot; banka &quot;\n")
    assert parallel_words(Path("a.en"), Path("a.cs"))[1] == [['"', "banka", '"']]


def test_combining_marks_are_parts_of_words() -> None:
    Path("a.en").write_text("I king\n")
    Path("a.xx").write_text("मैं kra\u0301l. Işık\n")
    assert parallel_words(Path("a.en"), Path("a.xx"), "turkish")[1][0][-1] == "ışık"
    lines, others = parallel_words(Path("a.en"), Path("a.xx"))
    assert others == [["मैं", "král", ".", "işık"]]
    assert [row[3] for row in gold_of_translations(lines, others, [0, 1])] == ["मैं", "král"]
    Path("a.az").write_text("Işık İstanbul\n")  # without a stemmer, by the name of the file
    assert parallel_words(Path("a.en"), Path("a.az"))[1] == [["ışık", "istanbul"]]


def test_apostrophes_are_parts_of_words_where_the_language_has_them() -> None:
    Path("a.en").write_text("five\n")
    for suffix, text, words in (
        ("uk", "П'ять", ["п'ять"]),
        ("ca", "L'home col·lecció", ["l", "'", "home", "col·lecció"]),
        ("fr", "L'homme", ["l", "'", "homme"]),
        ("hy", "տունը՞", ["տունը", "՞"]),
        ("fi", "EU:n", ["eu", ":", "n"]),
    ):
        Path(f"a.{suffix}").write_text(f"{text}\n")
        lines, others = parallel_words(Path("a.en"), Path(f"a.{suffix}"))
        assert others == [words]
    for sense in ("п'ять", "col·lecció"):
        assert gold_of_translations(lines, [[sense]], [0]) == [(0, 0, "five", sense)]
    assert gold_of_translations(lines, [["'п"]], [0]) == []


def test_rare_words_and_senses_are_left_out() -> None:
    rows = [(line, 0, "bank", "a" if line < 8 else "b") for line in range(10)]
    rows += [(0, 0, "seal", "a"), (1, 0, "seal", "b"), (2, 0, "one", "a"), (10, 0, "bank", "c")]
    assert {row[2] for row in with_several_senses(rows)} == {"bank", "seal"}
    chosen = with_several_senses(rows, least_count=3, least_share=0.15)
    assert {row[2:] for row in chosen} == {("bank", "a"), ("bank", "b")}
    assert len(chosen) == 10
    assert with_several_senses(rows, least_share=0.6) == []


def test_words_with_one_sense_are_kept_on_request() -> None:
    rows = translations("--stemmer none --all-words")
    assert {row[2] for row in rows} == {"bank", "seal", "tree"}  # all but function words
    assert {row[3] for row in rows if row[2] == "bank"} == {*LEXICON["bank"]}
    merged = translations("--stemmer none --all-words --merge-forms")
    assert len(merged) == len(rows)
    senses = {row[3] for row in merged if row[2] == "bank"}
    assert len(senses) == 2
    assert "břeh" in senses
    assert len({row[3] for row in merged if row[2] == "tree"}) == 1


def test_forms_begin_alike() -> None:
    """The most frequent form stands for all. Accents do not count, three letters and ⅔ do."""
    counts = {"kamen": 5, "kámen": 7, "kamínek": 1, "břeh": 9, "bok": 2, "bod": 1, "kraj": 3}
    assert merge_forms(counts | {"krajina": 1}) == {
        "břeh": "břeh",
        "kámen": "kámen",
        "kamen": "kámen",
        "kamínek": "kamínek",  # kam is less than two thirds of kamen
        "kraj": "kraj",
        "krajina": "kraj",
        "bok": "bok",  # bo are two letters
        "bod": "bod",
    }
    assert merge_forms({"kran": 2, "kranich": 1}, beginning=5) == {
        "kran": "kran",
        "kranich": "kranich",
    }
    assert merge_forms({"a": 2, "á": 1}) == {"a": "a", "á": "a"}
    assert merge_forms({}) == {}


@pytest.mark.parametrize(
    ("one", "other"),
    [("사람", "사랑"), ("은행", "은하"), ("バス", "パス"), ("かき", "かぎ"), ("ไม่", "ไม้")],
)
def test_marks_that_make_another_letter_are_no_accents(one: str, other: str) -> None:
    """Of Korean, whose letters are parts of a character, of Japanese and of Thai."""
    assert merge_forms({one: 9, other: 5}) == {one: one, other: other}


def test_accents_and_points_are_left_out() -> None:
    words = ["Männer", "kámen", "שָׁלוֹם", "كِتَاب", "हिंदी", "사람"]
    plain = ["Manner", "kamen", "שלום", "كتاب", "हिंदी", "사람"]
    assert [*map(without_accents, words)] == plain


def test_forms_are_merged_within_a_word() -> None:
    rows = [
        (0, 0, "a", "strom"),
        (1, 0, "a", "stromy"),
        (2, 0, "a", "strom"),
        (0, 0, "b", "stromy"),
    ]
    assert [row[3] for row in with_merged_forms(rows)] == ["strom", "strom", "strom", "stromy"]


def test_a_rare_sense_is_left_out_before_words_are_counted() -> None:
    rows = [(line, 0, "bank", "a" if line < 19 else "b") for line in range(20)]
    rows += [(0, 0, "seal", "c"), (1, 0, "seal", "d")]
    assert len(frequent_senses(rows)) == 22
    assert {row[2:] for row in frequent_senses(rows, least_share=0.1)} == {
        ("bank", "a"),
        ("seal", "c"),
        ("seal", "d"),
    }
    assert frequent_senses(rows, least_count=20, least_share=0.1) == []
    assert len(frequent_senses(rows, least_count=19, least_share=0.1)) == 19
