"""fairseq-generate's output in the corpus's order, sacreBLEU of it, and side-by-side examples."""

import json
import math
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sacrebleu import sentence_chrf

from fairseq_kerbs.evaluation.bleu import (
    CorpusScore,
    all_metrics,
    bleu_metric,
    corpus_scores,
    paired_bootstrap,
)
from fairseq_kerbs.evaluation.examples import Example, as_markdown, side_by_side
from fairseq_kerbs.evaluation.texts import detokenize_lines, generated_part, read_texts
from fairseq_kerbs.utils.errors import UserError
from tests.helpers.cli import Capsys, Patch, kerbs

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
    command, markdown = ["examples", *files], ["--format", "markdown"]
    text = kerbs(capsys, *command, "--choose", "best", "--number", 1, *markdown)
    assert text.startswith("1 of 5 lines: the largest gains of kerbs over softmax in sentence chrF")
    assert "| MoS | five of |\n| kerbs | five of them |\n" in text
    text = kerbs(capsys, *command, "--number", 9)
    rule = "4 of 5 lines, drawn from those with the most different answers (seed 1)"
    assert text.startswith(rule)
    assert "\n  Source     drei\n  Reference  a third\n  softmax    one third\n" in text
    kerbs(capsys, *command, "--number", 4, "--output", tmp_path / "o.md", *markdown)
    assert (tmp_path / "o.md").read_text().count("| Source |") == 4


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
    (path := tmp_path / "out").write_text(OUTPUT)
    assert read_texts(path, "S", "de") == ["Hallo!", "", "Das ist gut."]
    assert read_texts(path, "T", "en") == ["Hey!", "", "This is fine."]
    raw = partial(detokenize_lines, language="en", name="out")
    good = ["Hello!", "", "This is good."]
    assert read_texts(path, "H", "en") == raw(OUTPUT.splitlines()) == good
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
    with pytest.raises(UserError, match="out has no line S-0, and lacks 1 of 1 in total"):
        generated_part(["H-0\t-1\th0"], "S", "out")


REFERENCE = ["The cat sat on the mat.", "Anna's dog barks, doesn't it?"]
HYPOTHESES = ["The cat sat on a mat.", "Anna's dog barks, doesn't it?"]


def test_equals_the_sacrebleu_command_with_the_same_signature(tmp_path: Path) -> None:
    (tmp_path / "ref").write_text("\n".join(REFERENCE) + "\n")
    (tmp_path / "hyp").write_text("\n".join(HYPOTHESES) + "\n")
    files = [str(tmp_path / "ref"), "-i", str(tmp_path / "hyp")]
    command = [sys.executable, "-m", "sacrebleu", *files, "-w", "6", "-m", "bleu", "chrf", "ter"]
    theirs = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    metrics = all_metrics(language="en")
    assert [one["name"] for one in theirs] == list(metrics) == ["BLEU", "chrF2", "TER"]
    for result, expected in zip(corpus_scores(HYPOTHESES, [REFERENCE], metrics), theirs):
        assert result.score == pytest.approx(expected["score"], abs=1e-5)
        assert result.signature == expected["signature"]
        assert result.details.startswith(f"{expected['name']}|{result.signature} = ")


def test_case_order_and_several_references() -> None:
    def bleu(texts: list[str], *references: list[str], **options: Any) -> CorpusScore:
        name = next(iter(all_metrics(**options)))
        return corpus_scores(texts, references, {name: bleu_metric(**options)})[0]

    folded = bleu([line.lower() for line in REFERENCE], REFERENCE, lowercase=True)
    assert (folded.score, "case:lc" in folded.signature) == (pytest.approx(100), True)
    double = bleu(HYPOTHESES, REFERENCE, HYPOTHESES)
    assert (double.score, "nrefs:2" in double.signature) == (pytest.approx(100), True)
    # 13 of 14 words; then one word less than the reference: 13/13 times exp(1 - 14/13)
    result = bleu(HYPOTHESES, REFERENCE, order=1)
    assert result.score == pytest.approx(100 * 13 / 14)
    assert result.details.startswith(f"BLEU-1|{result.signature} = 92.86 ")
    shorter = ["The cat sat on the mat", REFERENCE[1]]
    assert bleu(shorter, REFERENCE, order=1).score == pytest.approx(100 * math.exp(1 - 14 / 13))


def test_score_command_with_both_cases(tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "out").write_text("H-0\t-0.1\tthe cat s@@ at .\n")
    (tmp_path / "ref").write_text("The cat sat.\n")
    files = ["score", "--hypotheses", tmp_path / "out", "--reference", tmp_path / "ref"]
    command = [*files, "--max-ngram-order", 1, "--both-cases"]
    names = [line.partition("|")[0] for line in kerbs(capsys, *command).splitlines()]
    assert names == 2 * ["BLEU-1", "chrF2", "TER"]
    printed = [*map(json.loads, kerbs(capsys, *command, "--format", "json").splitlines())]
    assert [each["bleu"] for each in printed] == pytest.approx([75, 100])
    assert printed[0]["max_ngram_order"] == 1
    assert printed[0]["chrf"] < printed[1]["chrf"] == 100
    line = kerbs(capsys, *files, "--lowercase", "--tokenize", "char")
    assert "case:lc" in line
    assert "|tok:char|" in line


def test_the_first_is_the_baseline(tmp_path: Path, capsys: Capsys, monkeypatch: Patch) -> None:
    """The samples are the same whatever the environment asks of sacreBLEU."""
    reference = [f"the cat number {n} sat on the mat ." for n in range(40)]
    wrong = [line.replace("cat", "dog") for line in reference]
    better = [line.replace("mat", "hat") if "1" in line else line for line in reference]
    texts = {"base": wrong, "other": better, "same": wrong}
    for name, lines in {"ref": reference, **texts}.items():
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    monkeypatch.chdir(tmp_path)
    command = ["score", "--reference", "ref", "--hypotheses", *texts, "--max-ngram-order", "1"]
    printed = []
    for seed in ("12345", "none"):
        monkeypatch.setenv("SACREBLEU_SEED", seed)
        printed.append(kerbs(capsys, *command, "--format", "json"))
    assert printed[0] == printed[1]
    found = json.loads(printed[0])
    assert list(found["signatures"]) == ["BLEU-1", "chrF2", "TER"]
    assert all("|bs:1000|seed:12345|" in one for one in found["signatures"].values())
    base, other, same = found["systems"]
    assert [one["system"] for one in found["systems"]] == list(texts)
    for metric in found["signatures"]:
        assert base[metric]["p_value"] is None
        assert other[metric]["p_value"] < 0.05
        assert same[metric]["p_value"] == 1
    detokenized = [line.replace(" .", ".") for line in texts["other"]]
    (score,) = corpus_scores(detokenized, [reference], {"BLEU-1": bleu_metric(1)})
    assert other["BLEU-1"]["score"] == pytest.approx(score.score)


def test_equal_scores_are_no_significant_difference() -> None:
    """Equal texts, texts that score equally in every resample, and a difference of 0 overall."""
    reference = [f"the cat number {number} sat on the mat." for number in range(10, 30)]
    base = [line.replace("cat", "zyx") for line in reference]
    level = [line.replace("cat", "qvw") for line in reference]  # the references have none of these
    first_half, second_half = [*reference, *base], [*base, *reference]
    for systems, references, expected in (
        ([base, list(base), level, reference], reference, [1, 1, 0]),
        ([first_half, second_half], reference * 2, [1]),
    ):
        _, results = paired_bootstrap(systems, [references], all_metrics())
        assert list(results) == ["BLEU", "chrF2", "TER"]
        for baseline, *others in results.values():
            assert baseline.p_value is None
            found = [result.p_value for result in others]
            assert found == pytest.approx(expected, abs=0.01)
