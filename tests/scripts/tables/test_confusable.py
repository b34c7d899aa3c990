"""The table of similar words that output layers take for each other."""

from math import comb
from typing import Any

import pytest

from scripts.tables import confusable

COUNTS = ("times", "right", "within", "other_right", "other_within", "resolved", "introduced")


def counted(name: str, *counts: int, **more: Any) -> dict[str, Any]:
    return {"words": name, **dict(zip(COUNTS, counts)), **more}


def result(other: tuple[int, ...], *examples: dict[str, Any]) -> dict[str, Any]:
    """Two clusters, of which the baseline confuses the second more often."""
    return {
        "found": "2 with 5 words, 2 shown",
        "clusters": [
            counted("soon quickly", 10, 6, 1, other[0], 1, 1, 0, cluster=1),
            counted("red b|ue", 20, 8, 4, other[1], 2, 3, 1, cluster=2),
        ],
        "totals": [
            counted("(all clusters)", 30, 14, 5, other[0] + other[1], 3, *other[2:]),
            counted("(all words)", 1000, 300, 5, 310, 3, *other[2:]),
        ],
        "examples": [*examples],
    }


def example(guess: str, probability: float, word: str, truth: float) -> dict[str, Any]:
    shown = {"word": word, "guess": guess, "text": f"a [{word}] cat", "cluster": 2, "sentence": 1}
    return shown | {"probability": probability, "truth": truth, "other_truth": 0.6}


def rows_of(lines: list[str]) -> list[list[str]]:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if "|" in line]
    return [row for row in rows if not set("".join(row)) <= set(":-")]


def test_counts_of_systems_and_clusters_and_the_clearest_examples() -> None:
    shown = [example("red", p, "pink", 0.1) for p in (0.3, 0.7, 0.5)]
    results = {"lin": result((6, 8, 0, 0)), "mix_big": result((7, 10, 9, 2), *shown)}
    lines = confusable.confusable_words(results, "lin")
    rows = rows_of(lines)
    assert ["lin", "14", "3", "", "", "", "310 of 1,000"] in rows
    # 9 against 2 by tossing a coin: at most 2 heads, or at least 9
    p = 2 * sum(comb(11, k) for k in range(3)) / 2**11
    assert ["mix_big", "17", "3", "9", "2", f"{p:.3f}", "310 of 1,000"] in rows
    text = "\n".join(lines)
    assert "2 with 5 words. Their words occur 30 times" in text
    clusters = rows[rows.index(["words", "times", "lin", "mix_big"]) + 1 :]
    assert clusters[1] == ["soon quickly", "10", "6", "7"]
    assert clusters[0][-3:] == ["20", "8", "10"]  # the more confused first
    examples = [row for row in rows if row[0] == "mix_big" and "cat" in row[1]]
    assert [row[2] for row in examples] == ["red 0.70, pink 0.10", "red 0.50, pink 0.10"]
    assert examples[0][3] == "pink 0.60"
    few = confusable.confusable_words(results, "lin", clusters=1)
    assert not any("soon quickly" in line for line in few)


def test_nothing_confused_and_no_examples() -> None:
    alone = result((6, 8, 0, 0))
    for cluster in alone["clusters"]:
        cluster["within"] = 0
    lines = confusable.confusable_words({"lin": alone, "mix": alone}, "lin")
    assert lines[-1] == "lin takes no word for another of its cluster."
    assert any(row[0] == "mix" and row[5] == "1.000" for row in rows_of(lines))


@pytest.mark.parametrize(("more", "fewer", "p"), [(0, 0, 1.0), (3, 3, 1.0), (5, 0, 2 / 32)])
def test_sign_test(more: int, fewer: int, p: float) -> None:
    assert confusable.sign_test(more, fewer) == pytest.approx(p)
    assert confusable.sign_test(fewer, more) == pytest.approx(p)
