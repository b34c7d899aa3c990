"""fairseq-generate's output, back in the corpus's order."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairseq_kerbs.evaluation.texts import detokenize_lines, generated_part, read_texts
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


def test_detokenized_output() -> None:
    texts = detokenize_lines(OUTPUT, language="en", name="out")
    assert texts == ["Hello!", "", "This is good."]


def test_tokenized_text_keeps_its_order() -> None:
    lines = ["Anna 's dog .", 'He said : " No ! "']
    assert generated_part(lines, "H", "x") is None
    assert detokenize_lines(lines, language="en", name="x") == ["Anna's dog.", 'He said: "No!"']


def test_entities_are_undone_only_when_asked() -> None:
    lines = ["H-0\t-1\tR &amp; D"]
    assert detokenize_lines(lines, language="en", name="x") == ["R &amp; D"]
    assert detokenize_lines(lines, language="en", name="x", unescape=True) == ["R & D"]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["H-0\t-1\ta", "H-3\t-1\tb"], "out has no line H-1, and lacks 2 of 4 in total"),
        (["H-1\t-1\ta"], "out has no line H-0, and lacks 1 of 2 in total"),
        (["S-0\tx", "T-0\ty", "H-0\t-1\ta", "D-0\t-1"], "out is truncated: .* is missing"),
    ],
)
def test_output_that_cannot_be_scored(lines: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        generated_part(lines, "H", "out")


def test_parts_of_generated_output(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text(
        "S-1\tb@@ b ?\nT-1\tt1 .\nH-1\t-1\th1 !\nS-0\ta\nT-0\tt0\nH-0\t-1\th0\nH-0\t-2\tx\n"
        "Generate test with beam=2: BLEU4 = 0.00\n"
    )
    assert read_texts(path, "S", "de") == ["a", "bb?"]
    assert read_texts(path, "T", "en") == ["t0", "t1."]
    assert read_texts(path, "H", "en") == ["h0", "h1!"]
    path.write_text("H-0\t-1\th0\n")
    with pytest.raises(UserError, match="out has no line S-0, and lacks 1 of 1 in total"):
        read_texts(path, "S", "de")
