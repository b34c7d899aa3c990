"""fairseq-generate's output, back in the corpus's order."""

from __future__ import annotations

import pytest

from fairseq_kerbs.evaluation.texts import best_hypotheses, detokenize_lines, is_generated
from fairseq_kerbs.utils.errors import UserError

OUTPUT = """\
S-2\tDas ist gut .
T-2\tThis is good .
H-2\t-0.25\tThis is go@@ od .
D-2\t-0.25\tThis is good .
P-2\t-0.1 -0.2
S-0\tHallo !
H-0\t-0.5\tHello !
H-0\t-0.9\tHi !
S-1\t
H-1\t-1.5\t
Generate test with beam=5: BLEU4 = 12.00
""".splitlines()


def test_best_hypotheses_in_order() -> None:
    assert best_hypotheses(OUTPUT, "out") == ["Hello !", "", "This is go@@ od ."]


def test_detokenized_output() -> None:
    texts = detokenize_lines(OUTPUT, language="en", name="out")
    assert texts == ["Hello!", "", "This is good."]


def test_tokenized_text_keeps_its_order() -> None:
    lines = ["Anna 's dog .", 'He said : " No ! "']
    assert not is_generated(lines)
    assert detokenize_lines(lines, language="en", name="x") == ["Anna's dog.", 'He said: "No!"']


def test_entities_are_undone_only_when_asked() -> None:
    lines = ["H-0\t-1\tR &amp; D"]
    assert detokenize_lines(lines, language="en", name="x") == ["R &amp; D"]
    assert detokenize_lines(lines, language="en", name="x", unescape=True) == ["R & D"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["no hypotheses here"], "out has no hypothesis"),
        (["H-0\t-1\ta", "H-3\t-1\tb"], r"no hypothesis for 2 of 4 sentences \(1, 2\)"),
        (["H-1\t-1\ta"], r"no hypothesis for 1 of 2 sentences \(0\)"),
        (["H-0\t-1\ta", "H-1\t-1\tb", "H-0\t-1\ta"], "sentence 0 was generated twice"),
    ],
)
def test_output_that_cannot_be_scored(lines: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        best_hypotheses(lines, "out")


def test_unknown_language() -> None:
    with pytest.raises(UserError, match="--lang: Moses has no rules for language 'xx'"):
        detokenize_lines(["a"], language="xx", name="out")
