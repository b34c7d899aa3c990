"""Side-by-side examples."""

from pathlib import Path
from typing import Any

import pytest
from sacrebleu import sentence_chrf

from fairseq_kerbs.evaluation.examples import Example, as_markdown, side_by_side
from tests.helpers.cli import Capsys, kerbs

SOURCES = ["eins", "zwei", "drei", "vier", "fünf"]
REFERENCES = ["the first sentence", "the second one", "a third", "it is four", "five of them"]
SYSTEMS = {
    "softmax": ["the first", "the second one", "one third", "four", "five"],
    "MoS": ["the first", "the second one", "a third", "four", "five of"],
    "kerbs": ["the first sentence", "the second one", "b", "it is four", "five of them"],
}


def lines(examples: list[Example]) -> list[int]:
    return [example.line for example in examples]


def test_differing_takes_the_most_different_first_and_never_equal_ones() -> None:
    assert side_by_side(SOURCES, REFERENCES, SYSTEMS, "differing", 9, 1) == [
        Example(n + 1, SOURCES[n], REFERENCES[n], {name: SYSTEMS[name][n] for name in SYSTEMS})
        for n in (0, 2, 3, 4)
    ]
    for seed in range(5):
        assert lines(side_by_side(SOURCES, None, SYSTEMS, "differing", 2, seed)) == [3, 5]
    drawn = [lines(side_by_side(SOURCES, None, SYSTEMS, "differing", 3, s)) for s in range(9)]
    assert {tuple(each) for each in drawn} == {(1, 3, 5), (3, 4, 5)}


def test_best_has_the_largest_gains_in_order() -> None:
    def score(name: str, line: int) -> Any:
        return sentence_chrf(SYSTEMS[name][line - 1], [REFERENCES[line - 1]]).score

    chosen = side_by_side(SOURCES, REFERENCES, SYSTEMS, "best", 9, 1)
    gains = {line: score("kerbs", line) - score("softmax", line) for line in (1, 4, 5)}
    expected = sorted(gains, key=lambda line: -gains[line])
    assert lines(chosen) == expected
    right = {"kerbs": 100.0, "softmax": score("softmax", expected[0])}
    assert chosen[0].scores == pytest.approx(right)
    assert lines(side_by_side(SOURCES, REFERENCES, SYSTEMS, "best", 1, 1)) == expected[:1]
    systems = {name: SYSTEMS[name] for name in ("softmax", "kerbs", "MoS")}
    assert lines(side_by_side(SOURCES, REFERENCES, systems, "best", 9, 1, baseline="kerbs")) == [3]


def test_texts_stay_whole() -> None:
    example = Example(7, "a|b *c* <d>", "x\ny", {"s_1": "=1+1", "k": "'t is"}, {"k": 50.04})
    assert as_markdown([example, example]).split("\n\n")[0] == (
        "| | line 7 (k 50.0) |\n| --- | --- |\n| Source | a\\|b \\*c\\* &lt;d&gt; |\n"
        "| Reference | x y |\n| s\\_1 | =1+1 |\n| k | 't is |"
    )
    assert as_markdown([]) == ""


def test_examples_command(tmp_path: Path, capsys: Capsys) -> None:
    for name, texts in {"src": SOURCES, "ref": REFERENCES, **SYSTEMS}.items():
        (tmp_path / name).write_text("".join(text + "\n" for text in texts))
    systems = [part for name in SYSTEMS for part in ("--system", f"{name}={tmp_path / name}")]
    files = ["--source", tmp_path / "src", *systems, "--reference", tmp_path / "ref"]
    command = ["examples", *files]
    markdown = ["--format", "markdown"]
    text = kerbs(capsys, *command, "--choose", "best", "--number", 1, *markdown)
    assert text.startswith("1 of 5 lines: the largest gains of kerbs over softmax in sentence chrF")
    assert "| MoS | five of |\n| kerbs | five of them |\n" in text
    text = kerbs(capsys, *command, "--number", 9)
    rule = "4 of 5 lines, drawn from those with the most different answers (seed 1)"
    assert text.startswith(rule)
    assert "\n  Source     drei\n  Reference  a third\n  softmax    one third\n" in text
    kerbs(capsys, *command, "--number", 4, "--output", tmp_path / "o.md", *markdown)
    assert (tmp_path / "o.md").read_text().count("| Source |") == 4
    refused = kerbs(capsys, *command, "--baseline", "MoS", status=2)
    assert "--baseline is for --choose best; give that, or leave it out" in refused
