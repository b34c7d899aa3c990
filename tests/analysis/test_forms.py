"""Forms of one word by a rule: words of several languages that belong together, or do not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_kerbs.analysis.forms import are_forms, joined_forms

JOINED = [
    "braunen brauner braune braun hellbrauner",  # endings, and a compound
    "Mann Männer Männern",  # umlaut
    "kaufen kauft gekauft Einkaufswagen",  # prefix ge-, and a compound
    "hellen hellblauen",
    "Berg Berges Berghang",
    "Feld Fußballfeld Spielfeld",
    "spielen spielt gespielt",
    "rot roter rotes",  # three letters
    "černého černými černá",
    "nakupování nákupním",
    "kitap kitaplar kitapta",
    "книга книги книгу",
]
APART = [
    "Licht hellen",
    "Schutzhelm hart",
    "Bank Ufer",
    "Stange Angelrute Pfosten",  # "ange" is not the beginning of Stange
    "Menge Parkplatz",
    "Wand Mauer",
    "an am",  # too short
    "ein Eis",
    "asiatischen afrikanischen",  # only an ending
    "basketbalisté fotbalisti",
    "бег нос",
    "銀行 銀河",
]


@pytest.mark.parametrize("line", JOINED)
def test_forms_of_a_word_and_compounds_with_it_are_joined(line: str) -> None:
    first, *others = line.split()
    assert [are_forms(first, other) for other in others] == [True] * len(others)


@pytest.mark.parametrize("line", APART)
def test_other_words_stay_apart(line: str) -> None:
    words = line.split()
    pairs = [(one, other) for one in words for other in words if one < other]
    assert pairs
    assert not [pair for pair in pairs if are_forms(*pair)]


WORDS = st.text(alphabet="abäčDe", min_size=1, max_size=9)


@given(WORDS, WORDS)
def test_the_rule_ignores_order_case_and_composition_of_letters(one: str, other: str) -> None:
    assert are_forms(one, one)
    assert are_forms(one, other) == are_forms(other, one)
    decomposed = one.replace("ä", "a\u0308").replace("č", "c\u030c")
    assert are_forms(decomposed.upper(), other) == are_forms(one, other)


@given(WORDS, st.text(alphabet="äč", max_size=3))
def test_endings_up_to_the_length_of_a_stem_are_forms(stem: str, ending: str) -> None:
    """By the first rule, however the stem is spelled."""
    if len(stem) >= 3:
        assert are_forms(stem + ending, stem + "xyz"[: len(ending)])


@given(st.lists(WORDS, max_size=30))
def test_each_word_joins_its_most_frequent_form(words: list[str]) -> None:
    forms = joined_forms(words)
    assert set(forms) == set(words)
    heads = set(forms.values())
    for word, head in forms.items():
        assert forms[head] == head
        assert word == head or are_forms(word, head)
        assert words.count(head) >= words.count(word)
        assert not [other for other in heads - {word} if word in heads and are_forms(word, other)]


def test_a_rare_word_does_not_join_two_frequent_ones() -> None:
    words = ["Licht"] * 5 + ["Kette"] * 4 + ["Lichterkette"]
    assert joined_forms(words) == {"Licht": "Licht", "Kette": "Kette", "Lichterkette": "Licht"}
