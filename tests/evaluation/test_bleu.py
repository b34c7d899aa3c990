"""sacreBLEU's scores and its paired bootstrap."""

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fairseq_kerbs.evaluation.bleu import (
    CorpusScore,
    all_metrics,
    bleu_metric,
    corpus_scores,
    paired_bootstrap,
)
from tests.helpers.cli import Capsys, Patch, kerbs

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


def test_case_of_turkish_is_ignored_by_its_own_rules(tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "out").write_text("istanbul ve ışık burada .\n")
    (tmp_path / "ref.tr").write_text("İstanbul ve Işık burada.\n")
    printed = kerbs(
        capsys,
        "score",
        "--hypotheses",
        tmp_path / "out",
        "--reference",
        tmp_path / "ref.tr",
        "--both-cases",
        "--format",
        "json",
    )
    cased, ignored = map(json.loads, printed.splitlines())
    assert cased["bleu"] < 100
    assert (ignored["bleu"], ignored["chrf"], ignored["ter"]) == (pytest.approx(100), 100, 0)


@pytest.mark.parametrize(
    ("name", "text", "tokenizer"),
    [
        ("ref.ko", "저는 한국어를 공부합니다.", "tok:ko-mecab"),
        ("ref.zh", "我爱你。", "tok:zh"),
        ("ref.nl", "Hij zei 'ja' en m'n auto's.", "tok:13a"),
        ("ref.txt", "The cat's 'mat'.", "tok:13a"),
        ("ref", "The cat's mat.", "tok:13a"),
    ],
)
def test_the_reference_names_the_language(
    name: str, text: str, tokenizer: str, tmp_path: Path, capsys: Capsys
) -> None:
    """Text that equals the reference has all points, as its language is detokenized."""
    lines = f"{text}\n{text}\n"
    (tmp_path / "out").write_text(lines)
    (tmp_path / name).write_text(lines)
    if tokenizer == "tok:ko-mecab":
        pytest.importorskip(
            "mecab_ko", reason="mecab-ko, sacreBLEU's extra for Korean, is not installed"
        )
    printed = kerbs(
        capsys, "score", "--hypotheses", tmp_path / "out", "--reference", tmp_path / name
    )
    assert tokenizer in printed
    assert " = 100.00 " in printed


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
    first_half = [*reference, *base]
    second_half = [*base, *reference]
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
