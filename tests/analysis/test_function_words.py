"""Function words of made texts: frequent words beside any other word."""

from collections import Counter
from math import log

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fairseq_kerbs.analysis.function_words import (
    FREQUENT,
    LEAST_ENTROPY,
    FunctionWords,
    function_words,
)

Lines = list[list[str]]


def made_lines() -> Lines:
    """ "zu" stands between any words. "Mann" is as frequent, but always between the same."""
    draw = np.random.default_rng(1)
    nouns = [f"n{number}" for number in range(40)]
    lines = []
    for number in range(600):
        line = []
        for noun in draw.choice(nouns, 2):
            line += [str(noun), "zu" if number % 2 else "Zu"]
        line += [str(draw.choice(nouns)), "kleiner", "Mann", "geht", str(draw.choice(nouns))]
        lines.append(line)
    return lines


def test_a_function_word_is_frequent_and_stands_beside_any_word() -> None:
    lines = made_lines()
    assert function_words(lines) == {"zu"}
    times = Counter(word for line in lines for word in line)
    assert times["Mann"] == times["Zu"]
    rare = [["n1", "selten", f"n{number}"] for number in range(8)]
    assert function_words([*lines, *rare]) == {"zu"}


def test_texts_without_words_have_none() -> None:
    assert function_words([]) == function_words([[], []]) == frozenset()
    assert function_words([["a", "a"], ["A"]]) == frozenset()  # the entropy of words is 0


def plain_function_words(lines: Lines) -> set[str]:
    """By loops and dictionaries."""
    beside: dict[str, list[Counter[str]]] = {}
    times: Counter[str] = Counter()
    for line in lines:
        words = ["<s>", *(word.lower() for word in line), "</s>"]
        for place in range(1, len(words) - 1):
            times[words[place]] += 1
            sides = beside.setdefault(words[place], [Counter(), Counter()])
            sides[0][words[place - 1]] += 1
            sides[1][words[place + 1]] += 1

    def entropy(counts: Counter[str]) -> float:
        total = sum(counts.values())
        return -sum(count / total * log(count / total) for count in counts.values())

    found = set()
    total = sum(times.values())
    covered = 0
    for word, count in times.most_common():
        mean = sum(map(entropy, beside[word])) / 2
        diverse = mean >= LEAST_ENTROPY * entropy(times) > 0
        if diverse and covered < FREQUENT * total:
            found.add(word)
        covered += count
    return found


@given(st.lists(st.lists(st.sampled_from("abcdeFG"), max_size=8), max_size=12))
def test_counts_are_those_of_a_plain_loop(lines: Lines) -> None:
    assert function_words(lines) == plain_function_words(lines)


def test_the_list_of_english_words_is_for_english() -> None:
    """*or* is gold in French, and *the* tells English where the language is not known."""
    lines = [[f"a{number}", "the", f"b{number}"] for number in range(50)]
    french = [["zu" if word == "the" else word for word in line] for line in lines]
    for text, language, listed in (
        (lines, "en_US", True),
        (lines, "fr_CA", False),
        (lines, None, True),
        (french, None, False),
        (french, "", False),
        ([], "en", True),
    ):
        found = FunctionWords(text, language)
        assert ("or" in found, "Or" in found) == (listed, listed), language
        assert "fire" not in found
        assert "." in found
    assert "zu" in FunctionWords(french, None)
    assert "zu" not in FunctionWords(french, "en")
    assert "zu" in FunctionWords(french, "en", with_frequent=True)
