"""fairseq-generate's output, back in the corpus's order."""

from __future__ import annotations

from functools import partial
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
    raw = partial(detokenize_lines, language="en", name="out")
    assert raw(OUTPUT) == ["Hello!", "", "This is good."]
    tokens = ["Anna 's dog .", 'He said : " No ! "']  # tokenized text keeps its order
    assert raw(tokens) == ["Anna's dog.", 'He said: "No!"']
    entities = ["H-0\t-1\tR &amp; D"]  # are undone only when asked
    assert (raw(entities), raw(entities, unescape=True)) == (["R &amp; D"], ["R & D"])


def test_output_that_cannot_be_scored() -> None:
    for lines, message in (
        (["H-0\t-1\ta", "H-3\t-1\tb"], "out has no line H-1, and lacks 2 of 4 in total"),
        (["S-0\tx", "T-0\ty", "H-0\t-1\ta", "D-0\t-1"], "out is truncated: .* is missing"),
    ):
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
