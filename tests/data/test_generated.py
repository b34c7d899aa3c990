"""fairseq-generate's output in all the forms in which it is handed on, read or refused."""

import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_kerbs.data.generated import Part, count_line, read_generated, sentences_of
from fairseq_kerbs.utils.errors import UserError

LOG = "2026-11-28 03:40:06 | INFO | "
BEFORE = (
    f"{LOG}fairseq_cli.generate | {{'_name': None}}",
    f"{LOG}fairseq.data.data_utils | loaded 4 examples from: d-1.0/test.de-en.de",
    f"{LOG}fairseq.data.data_utils | loaded 4 examples from: d-1.0/test.de-en.en",
)
TRANSLATED = f"{LOG}fairseq_cli.generate | Translated 4 sentences (9 tokens) in 0.1s (9 tokens/s)"
END = "Generate test with beam=5: BLEU4 = 12.00"
SKIPPED = (
    "2026-11-28 03:40:06 | WARNING | fairseq.tasks.fairseq_task | 1 samples have invalid sizes and "
    "will be skipped, max_positions=(1024, 1024), first few sample ids=[3]"
)
TEXTS = {2: "This is go@@ od .", 0: "Hello !", 3: "", 1: "No\u2028 more\x85 \x0b words"}


def output(decoded: bool = True, nbest: int = 1) -> list[str]:
    """Lines of four sentences, as fairseq prints them."""
    lines = []
    for number, text in TEXTS.items():
        lines += [f"S-{number}\tq@@ {number}", f"T-{number}\t{text} <<unk>>"]
        for place in range(nbest):
            score = -0.25 - 9.5 * place
            words = f"{text} {place}" if place else text
            lines.append(f"H-{number}\t{score}\t{words}")
            lines += [f"D-{number}\t{score}\t{words}"] if decoded else []
            lines += [f"P-{number}\t-0.1 -0.2", f"A-{number}\t0-0 1-1"]
    return lines


def texts(lines: list[str], part: Part = "H", **options: object) -> list[str]:
    read = read_generated(lines, "out")
    assert read is not None
    return read.texts(part, **options)  # type: ignore[arg-type]


def refusal(lines: list[str], part: Part = "H", **options: object) -> str:
    with pytest.raises(UserError) as refused:
        texts(lines, part, **options)
    return str(refused.value)


IN_ORDER = [TEXTS[number] for number in range(4)]


def kinds(letters: str, lines: list[str]) -> list[str]:
    return [line for line in lines if line[0] in letters and line[1] == "-"]


@pytest.mark.parametrize(
    "lines",
    [
        [*output(), END],
        [*output(nbest=3), END],
        [*BEFORE, *output(), TRANSLATED, END, ""],
        [*BEFORE, *output(decoded=False), TRANSLATED],
        kinds("H", output()),
        kinds("D", output()),
        kinds("HP", output(nbest=2)),
        kinds("DA", output(nbest=2)),
        sorted([*output(nbest=3), END]),
        sorted([*BEFORE, *output(nbest=3), TRANSLATED, END], reverse=True),
        sorted(kinds("D", output(nbest=2)), reverse=True),
        [*kinds("SHDP", output()), f"{LOG}fairseq_cli.interactive | Total time: 2.0 seconds"],
        [f"\r 50%|###   | 1/2 [00:01<00:01,  1.0it/s]{line}" for line in kinds("H", output())],
        [*kinds("H", output()), "K-0\tHello#1:0.9000 !#2:1.0000"],
    ],
)
def test_hypotheses_are_read_in_the_order_of_the_corpus(lines: list[str]) -> None:
    assert texts(lines) == IN_ORDER
    assert texts(lines, sentences=4, fill=True) == IN_ORDER


@given(st.randoms(use_true_random=False), st.sampled_from(["H", "D", "HD", "SHDPA", "HDP"]))
def test_no_order_and_no_selection_of_lines_changes_what_is_read(
    order: random.Random, letters: str
) -> None:
    lines = [*kinds(letters, output(nbest=3)), END]
    order.shuffle(lines)
    assert texts(lines) == IN_ORDER


def test_sources_and_references_are_read() -> None:
    assert texts([*output(), END], "S") == [f"q@@ {number}" for number in range(4)]
    assert texts([*output(), END], "T") == [f"{text} <<unk>>" for text in IN_ORDER]
    assert texts(kinds("T", output()), "T") == [f"{text} <<unk>>" for text in IN_ORDER]


def test_tabs_and_scores_of_any_kind() -> None:
    lines = ["H-0\t-1e-05\ta\tb", "H-1\tnan\tc", "H-1\t-inf\td", "H-1\t-2\te", "H-2\tnan\tf"]
    assert texts(lines) == ["a\tb", "e", "f"]


def test_text_that_fairseq_decoded_is_raw() -> None:
    """By --bpe or --tokenizer, which H- lines do not show."""
    pieces = ["H-0\t-1\t▁Hel lo !", "D-0\t-1\tHello!", "H-1\t-1\t▁Yes", "D-1\t-1\tYes"]
    read = read_generated(pieces, "out")
    assert read is not None
    assert (read.is_raw, read.texts("H")) == (True, ["Hello!", "Yes"])
    joined = ["H-0\t-1\tgo@@ od .", "D-0\t-1\tgood ."]  # --remove-bpe changes D and H alike
    read = read_generated(joined, "out")
    assert read is not None
    assert (read.is_raw, read.texts("H")) == (False, ["go@@ od ."])
    split = ["H-0\t-1\tgo@@ od .", "D-0\t-1\tgo@@ od ."]  # without any of these flags
    read = read_generated(split, "out")
    assert read is not None
    assert (read.is_raw, read.texts("H")) == (False, ["go@@ od ."])


def left_out(number: int, lines: list[str]) -> list[str]:
    return [line for line in lines if not re.match(rf"[STHDPA]-{number}\t", line)]


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize(
    "known",
    [
        [*BEFORE, SKIPPED, TRANSLATED.replace("Translated 4", "Translated 3"), END],
        [END, count_line("test", 4)],
        [count_line("test", 4)],
    ],
)
def test_a_sentence_left_out_is_named_wherever_it_stands(number: int, known: list[str]) -> None:
    lines = [*left_out(number, output()), *known]
    said = refusal(lines)
    assert f"out has no line H-{number}, and lacks 1 of 4 in total (line {number + 1} of" in said
    assert "--skip-invalid-size-inputs-valid-test" in said
    assert "--fill-missing" in said
    expected = [*IN_ORDER]
    expected[number] = ""
    assert texts(lines, fill=True) == expected


def test_a_last_sentence_is_missed_by_the_number_that_the_caller_knows() -> None:
    lines = left_out(3, kinds("H", output()))
    assert texts(lines) == IN_ORDER[:3]  # nothing tells
    assert "has no line H-3, and lacks 1 of 4" in refusal(lines, sentences=4)
    assert texts(lines, sentences=4, fill=True) == IN_ORDER


def test_of_many_missing_lines_the_first_are_named() -> None:
    said = refusal(["H-40\t-1\ta"])
    assert "lacks 40 of 41 in total (line 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, … of the text)" in said


def test_references_are_never_invented() -> None:
    lines = [*left_out(1, output()), END]
    said = refusal(lines, "T", fill=True)
    assert "has no line T-1, and lacks 1 of 4" in said
    assert "name a raw reference" in said


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (output(), "is truncated: fairseq-generate's last line"),
        ([*BEFORE, *kinds("H", output())], "is truncated: fairseq-generate's last line"),
        (["S-0\tx", "T-0\ty", "H-0\t-1\ta", "D-0\t-1"], "is truncated: line 4 ends before its"),
        (["H-0\t-1\ta", "H-1"], "is truncated: line 2 ends before its text"),
        (["H-0\t-1\ta", "D-0\t-1\ta", "H-1\t-1\tb"], "has 1 lines H-1 and 0 D-1"),
        ([*output()[:6], TRANSLATED], "it has hypotheses of 1 sentences, and by its log 4 were"),
        ([*output(), END, *output(), END], "has S-2 twice, so it is of several runs"),
        (["H-0\tgood\tb"], "line 1: 'good' is no score"),
        (kinds("S", output()), "has no line H-0, and no other H- lines"),
        (kinds("PA", output()), "has no line H-0, and no other H- lines"),
    ],
)
def test_what_is_not_whole_is_refused(lines: list[str], said: str) -> None:
    assert said in refusal(lines)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([*BEFORE, TRANSLATED, END], "is a log without hypotheses"),
        (["-0.25\tThis is it .", "-1.5e-05\t", "-0.1\ta\tb"], "begins with a score"),
        (["0\t-0.25\tThis is it .", "1\t-0.1\tb"], "begins with a score"),  # sed 's/^D-//'
        (["H-1\tHello !", "", "H-0\tNo"], "lines without their scores"),  # cut -f1,3
        (["D-0\tHello !"], "lines without their scores"),
        (["H-0\t-0.25", "H-1\t-0.5"], "is truncated: line 1 ends before its text"),  # cut -f1,2
        (["H-0 -0.25 Hello !", "H-1 -0.5 No"], "without their tabs"),
        (["Hello!\tHello#1:0.9031 !#2:1.0000", "No\tNo#1:1.0000"], "has senses after each text"),
    ],
)
def test_leftovers_of_an_output_are_no_text(lines: list[str], said: str) -> None:
    with pytest.raises(UserError, match="out") as refused:
        read_generated(lines, "out")
    assert said in str(refused.value)


@pytest.mark.parametrize(
    "lines",
    [
        [],
        ["", ""],
        ["H-bomb tests", "T-34 tanks", "S-1"],
        ["-0.5 degrees", "Hello"],
        ["tagged#1:0.9 is no posterior", "2026-11-28 is a date | INFO | none"],
        ["A-1\troad", "and text"],
    ],
)
def test_text_is_no_output(lines: list[str]) -> None:
    assert read_generated(lines, "text") is None


def test_sentences_of_data(tiny_work: Path, tmp_path: Path) -> None:
    pair = ("de", "en")
    assert sentences_of(tiny_work / "bin", "test", pair) == 6
    assert sentences_of(tiny_work / "bin", "train", pair) == 40
    assert sentences_of(tiny_work / "bin", "test", ("en", "de")) == 6
    assert sentences_of(tiny_work / "bin", "test1", pair) is None
    (tmp_path / "test.de-en.de").write_text("eins\u2028zwei\ndrei\n")
    assert sentences_of(tmp_path, "test", pair) == 2


def test_sentences_of_each_pair_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "test.de-en.de").write_text("eins\nzwei\n")
    (tmp_path / "test.fr-en.fr").write_text("un\n")
    assert sentences_of(tmp_path, "test", ("de", "en")) == 2
    assert sentences_of(tmp_path, "test", ("fr", "en")) == 1
    assert sentences_of(tmp_path, "test", ("de", "fr")) is None


def test_a_damaged_index_is_left_to_fairseq(tiny_work: Path, tmp_path: Path) -> None:
    for file in (tiny_work / "bin").glob("test.*"):
        content = file.read_bytes()
        (tmp_path / file.name).write_bytes(content[:30] if file.suffix == ".idx" else content)
    assert sentences_of(tmp_path, "test", ("de", "en")) is None
