"""fairseq-generate's output in the corpus's order, detokenized."""

from functools import partial
from pathlib import Path

import pytest

from fairseq_kerbs.evaluation.bleu import read_systems
from fairseq_kerbs.evaluation.texts import detokenize_lines, read_texts, tokenized
from fairseq_kerbs.utils.errors import UserError
from tests.helpers.cli import Log

OUTPUT = """\
S-2\tDas ist gu@@ t .
T-2\tThis is fi@@ ne .
H-2\t-0.25\tThis is go@@ od .
D-2\t-0.25\tThis is good .
P-2\t-0.1 -0.2
S-0\tHallo !
T-0\tHey !
H-0\t-0.5\tHello !
H-0\t-0.9\tHi !
S-1\t
T-1\t
H-1\t-1.5\t
Generate test with beam=5: BLEU4 = 12.00
"""


def test_detokenized_output(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text(OUTPUT)
    assert read_texts(path, "S", "de") == ["Hallo!", "", "Das ist gut."]
    assert read_texts(path, "T", "en") == ["Hey!", "", "This is fine."]
    raw = partial(detokenize_lines, language="en", name="out")
    good = ["Hello!", "", "This is good."]
    assert read_texts(path, "H", "en") == raw(OUTPUT.splitlines()) == good
    tokens = ["Anna 's dog .", 'He said : " No ! "']  # tokenized text keeps its order
    assert raw(tokens) == ["Anna's dog.", 'He said: "No!"']
    pieces = ["H-0\t-1\t▁Anna ' s ▁' d og ' ."]  # of raw text, without --remove-bpe
    assert raw(pieces) == ["Anna's 'dog'."]
    assert raw([*pieces, pieces[0].replace("H", "D", 1)]) == ["Anna's 'dog'."]  # D lines as well
    entities = ["H-0\t-1\tR &amp; D"]  # are undone only when asked
    assert (raw(entities), raw(entities, unescape=True)) == (["R &amp; D"], ["R & D"])


def test_pieces_of_every_kind_of_line_are_joined(tmp_path: Path) -> None:
    """fairseq-generate without --remove-bpe=sentencepiece, and with D lines decoded."""
    path = tmp_path / "out"
    line = "▁Anna ' s ▁d og ."
    output = (
        f"S-0\t{line}\nT-0\t{line}\nH-0\t-1\t{line}\nD-0\t-1\t{line}\nGenerate test with beam=5: \n"
    )
    for text in (output, output.replace("D-0\t-1\t▁Anna ' s ▁d og .", "D-0\t-1\tAnna's dog.")):
        path.write_text(text)
        for part in ("S", "T", "H"):
            assert read_texts(path, part, "en") == ["Anna's dog."]


@pytest.mark.parametrize(
    ("line", "is_tokenized"),
    [
        ("Anna's 'dog' barks, doesn't it?", False),
        ("Was ? Vraiment !", False),  # as French is written
        ("한국어를 공부합니다.", False),
        ("Anna 's dog", True),
        ("a dog .", True),
        ("a dog , and a cat", True),
        ("यह घर है ।", True),
        ("a d@@ og", True),
        ("▁a ▁d og", True),
        ("Mr. A. B. Smith left .", True),  # abbreviations keep their full stops
        ("Wait ...\nAnd then ... he left .", True),
        ("I do n't know .", True),  # of the Penn Treebank
        ("De auto's en foto's zijn mooi .", True),  # Dutch, where 's belongs to the word
        ("Mr. Smith , of 1,000 men", True),
        ("One , two.\nThree, four.", False),  # an error of the writer
        ("It's so , he said, and she said", False),
        ('She left."\n(He left.) \nThey , too', False),
        ("It was 12.\nHe , too", False),
        ("▁ is the capital.\nThis is a line.", False),  # one line of a text with this sign
        ("▁▁▁ is the capital .\nThis is a line .", True),
        ("यह घर है।\nयह घर है ।\nनहीं।", False),
        ("مرحبا، كيف الحال\nمرحبا ، كيف", False),
    ],
)
def test_raw_text_is_told_from_tokens(line: str, is_tokenized: bool) -> None:
    lines = ["A cat", *line.split("\n")]
    assert tokenized(lines) == is_tokenized
    kept = detokenize_lines(lines, language="en", name="text", has_tokens=tokenized)
    assert kept == lines if not is_tokenized else kept[1:] != lines[1:]


@pytest.mark.parametrize(
    "raw",
    ["यह अच्छा है ।\nवह घर जाता है ।", "قال الرجل ، إنه هنا .\nنعم ، هو", "Hello there , my friend ."],
)
def test_raw_text_with_spaces_before_its_marks_equals_itself(
    raw: str, tmp_path: Path, caplog: Log
) -> None:
    hypotheses = tmp_path / "hypotheses"
    reference = tmp_path / "reference"
    for path in (hypotheses, reference):
        path.write_text(f"{raw}\n", "utf-8")
    systems, references = read_systems([hypotheses], [reference], language="hi")
    assert [*systems.values()] == references == [raw.split("\n")]
    hypotheses.write_text(raw.replace(" ", "@@ ", 1) + "\n", "utf-8")
    systems, _ = read_systems([hypotheses], [reference], language="en")
    assert not any("@@" in line for lines in systems.values() for line in lines)
    assert "has spaces before its marks" in caplog.text


def test_a_blank_to_be_filled_in_is_a_word() -> None:
    lines = ["▁▁▁ is the capital of France .", "▁ too ,", "This is a line , too .", "And this ."]
    raw = ["▁▁▁ is the capital of France.", "▁ too,", "This is a line, too.", "And this."]
    assert detokenize_lines(lines, language="en", name="text") == raw


@pytest.mark.parametrize(
    ("reference", "other"),
    [
        (["hey!", "", "This is fine."], False),
        (["Hey !", "", "this is another one"], False),  # of two lines with letters one
        (["Hallo!", "", "Das ist gut."], True),
        (["", "Hey!", "Is this fine?"], True),
    ],
)
def test_a_reference_of_another_text_is_noticed(
    reference: list[str], other: bool, tmp_path: Path, caplog: Log
) -> None:
    """By the T- lines of the output, without case, spaces and marks."""
    (tmp_path / "out").write_text(OUTPUT)
    (tmp_path / "ref").write_text("".join(f"{line}\n" for line in reference))
    read_systems([tmp_path / "out"], [tmp_path / "ref"], language="en")
    assert ("out has other target sentences (T- lines) than" in caplog.text) == other


def test_swapped_hypotheses_and_references_are_noticed(tmp_path: Path, caplog: Log) -> None:
    (tmp_path / "out").write_text(OUTPUT)
    (tmp_path / "ref").write_text("Hey!\n\nThis is fine.\n")
    read_systems([tmp_path / "out"], [tmp_path / "ref"], language="en")
    read_systems([tmp_path / "out"], [tmp_path / "out"], language="en")  # with its own T- lines
    assert not caplog.text
    read_systems([tmp_path / "ref"], [tmp_path / "out"], language="en")
    assert "see that the two are not swapped" in caplog.text


def test_references_with_unknown_words_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text(
        "S-0\t<<unk>>\nT-0\tthe zebra\nH-0\t-1\t<unk>\nS-1\ta\nT-1\tthe <<unk>>\nH-1\t-1\tb\n"
        "Generate test with beam=5: \n"
    )
    with pytest.raises(UserError, match=r"the reference T-1 has <<unk>>.*give the raw reference"):
        read_texts(path, "T", "en")
    assert read_texts(path, "S", "en") == ["<<unk>>", "a"]


def test_output_that_cannot_be_scored(tmp_path: Path) -> None:
    for lines, message in (
        (["H-0\t-1\ta", "H-3\t-1\tb"], "out has no line H-1, and lacks 2 of 4 in total"),
        (["S-0\tx", "T-0\ty", "H-0\t-1\ta", "D-0\t-1"], "out is truncated: line 4 ends before"),
        (["S-0\tx", "T-0\ty", "H-0\t-1\ta"], "out is truncated: .* is missing"),
    ):
        with pytest.raises(UserError, match=message):
            detokenize_lines(lines, language="en", name="out")
    (path := tmp_path / "out").write_text("H-0\t-1\th0\n")
    with pytest.raises(UserError, match="out has no line S-0, and no other S- lines"):
        read_texts(path, "S", "en")
