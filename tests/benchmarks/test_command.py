"""The command: every benchmark end to end at tiny sizes, and one sentence for wrong flags."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_kerbs.benchmarks.command import BENCHMARKS, build_parser, chosen_sizes, main
from tests.helpers import HANGS

ROOT = Path(__file__).resolve().parents[2]
TINY_MODEL = ["--dim", "16", "--vocab", "60", "--ffn", "24", "--layers", "1"]
FEW = ["--quick", "--repetitions", "2", "--threads", "1"]


def benchmark(folder: Path, *flags: str) -> tuple[dict[str, Any], str]:
    """Run the script as users do; what it wrote, and what it printed."""
    result = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "benchmark.py"), *flags],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=HANGS,
    )
    assert result.returncode == 0, result.stderr
    assert "Traceback" not in result.stderr
    (written,) = folder.iterdir()
    assert written.name == f"benchmark-{flags[0]}.json"
    return json.loads(written.read_text()), result.stdout


def check_document(document: dict[str, Any], name: str, repetitions: int) -> None:
    assert document["benchmark"] == name
    assert document["complete"] is True
    assert {"cpu", "cores", "threads", "gpu", "load_average"} <= set(document["machine"])
    assert {"python", "torch", "fairseq", "fairseq_kerbs", "revision"} <= set(document["versions"])
    assert document["versions"]["torch"] == torch.__version__
    assert len(document["machine"]["load_average_at_end"]) == 3
    assert document["settings"]["seed"] == 1
    assert document["settings"]["threads"] == 1
    for result in document["results"]:
        for entry in result["contestants"].values():
            assert len(entry["seconds"]) == repetitions
            assert 0.0 < entry["lowest"] <= entry["q1"] <= entry["median"] <= entry["q3"]
        for ratio in result["ratios"]:
            of, over = (result["contestants"][ratio[key]] for key in ("of", "over"))
            expected = [a / b for a, b in zip(of["seconds"], over["seconds"], strict=True)]
            assert ratio["per_repetition"] == pytest.approx(expected)
            assert ratio["q1"] <= ratio["median"] <= ratio["q3"]


@pytest.mark.slow
def test_likelihood(tmp_path: Path) -> None:
    names = ["products", "kerbs", "naive", "stock", "lean"]
    document, text = benchmark(tmp_path, "likelihood", *FEW, "--contestants", *names)
    check_document(document, "likelihood", 2)
    (result,) = document["results"]
    entries = result["contestants"]
    assert list(entries) == names
    assert result["sizes"]["senses"] == 1200
    for one, other in (("kerbs", "naive"), ("lean", "stock")):
        assert entries[one]["loss"] == pytest.approx(entries[other]["loss"], rel=1e-5)
    assert result["products"]["fastest"] in entries["products"]["label"]
    assert {(ratio["of"], ratio["over"]) for ratio in result["ratios"]} >= {
        ("kerbs", "products"), ("kerbs", "naive"), ("kerbs", "stock"), ("lean", "stock")
    }  # fmt: skip
    naive = entries["naive"]["memory"]
    # cosines, e^x − 1, logits, sense probabilities: each 256 × 1200 numbers
    assert naive["extra_bytes"] > 4 * (4 * 256 * 1200)
    assert naive["gradient_bytes"] == 4 * (256 * 32 + 1200 * 32 + 1200)
    assert "kerbs ÷ naive" in text


@pytest.mark.slow
def test_step(tmp_path: Path) -> None:
    sizes = [*FEW, *TINY_MODEL, "--tokens", "128"]
    document, text = benchmark(
        tmp_path, "step", *sizes, "--contestants", "stock", "kerbs", "softmax"
    )
    check_document(document, "step", 2)
    (result,) = document["results"]
    assert result["sizes"]["tokens"] == 128
    assert [(ratio["of"], ratio["over"]) for ratio in result["ratios"]] == [
        *(("kerbs", "stock"), ("kerbs", "softmax"), ("softmax", "stock"))
    ]
    for entry in result["contestants"].values():
        assert entry["loss"] > 0.0
        assert entry["memory"]["extra_bytes"] > entry["memory"]["gradient_bytes"] > 0
    assert re.search(r"kerbs ÷ softmax +[0-9.]+ ", text)
    assert "like for like" in text
    # quartiles of two repetitions would be made up
    assert "range" in text
    assert "quartiles" not in text
    assert re.search(r"load average [0-9.]+ at the start, [0-9.]+ at the end", text)


@pytest.mark.slow
def test_decode(tmp_path: Path) -> None:
    sizes = [*FEW, *TINY_MODEL, "--batch", "2", "3", "--no-memory"]
    document, text = benchmark(tmp_path, "decode", *sizes, "--contestants", "stock", "kerbs")
    check_document(document, "decode", 2)
    assert [result["sizes"]["batch"] for result in document["results"]] == [2, 3]
    for result in document["results"]:
        entry = result["contestants"]["kerbs"]
        assert entry["rate"] == pytest.approx(result["sizes"]["batch"] / entry["median"])
        assert entry["memory"] is None
    assert "sentences/s" in text


@pytest.mark.slow
def test_scaling(tmp_path: Path) -> None:
    document, text = benchmark(tmp_path, "scaling", *FEW, "--tokens", "2048", "16384")
    check_document(document, "scaling", 2)
    (result,) = document["results"]
    assert result["axes"]["senses"]["tokens_times_senses"] == [2048 * 400, 2048 * 1200]
    few, many = (result["contestants"][name] for name in result["axes"]["tokens"]["points"])
    assert many["memory"]["gradient_bytes"] - few["memory"]["gradient_bytes"] == 4 * 32 * 14336
    # what grows with the tokens, besides dh, is far from tokens × senses
    growth = [one["memory"]["without_gradients_bytes"] for one in (few, many)]
    assert growth[1] - growth[0] < 0.5 * 4 * 14336 * 1200
    assert "against tokens" in text


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", list(BENCHMARKS))
def test_on_cuda(tmp_path: Path, name: str) -> None:
    document, _ = benchmark(tmp_path, name, *FEW, "--device", "cuda")
    check_document(document, name, 2)
    assert document["machine"]["gpu"]["name"]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["likelihood", "--vocab", "3"], "--vocab is 3; use 20 or more"),
        (["likelihood", "--senses-per-word", "3", "0.5"], "--senses-per-word is 0.5"),
        (["likelihood", "--senses-per-word", "nan"], "--senses-per-word is nan"),
        (["likelihood", "--repetitions", "0"], "--repetitions is 0"),
        (["scaling", "--threads", "0"], "--threads is 0"),
        (["scaling", "--quick", "--output", "."], "--output . cannot be written"),
        (
            ["scaling", "--output", "/dev/null/x.json"],
            "--output /dev/null/x.json cannot be written",
        ),
        (["step", "--dtype", "bfloat16"], "--dtype bfloat16"),
        (["step", "--dim", "33"], "--dim 33"),
        (["decode", "--senses-per-word", "5"], "--senses-per-word is 5.0"),
        (["decode", "--vocab", "20", "--beam", "10"], "--beam 10"),
        (["decode", "--steps", "1"], "--steps is 1; use 2 or more"),
        (["decode", "--device", "cuda"], "--device cuda: torch finds no CUDA device"),
    ],
)
def test_wrong_flags_give_one_sentence(
    flags: list[str],
    expected: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(flags) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("benchmark.py: error: ")
    assert expected in captured.err
    assert captured.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (["likelihood", "--dtype", "int8"], "--dtype"),
        (["likelihood", "--heads", "2"], "--heads"),
        (["likelihood", "--contestants", "nobody"], "--contestants: invalid choice: 'nobody'"),
        (["scaling", "--contestants", "kerbs"], "--contestants"),
        (["nothing"], "'nothing'"),
        ([], "BENCHMARK"),
    ],
)
def test_unknown_flags_are_refused(
    flags: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refusal:
        main(flags)
    assert refusal.value.code == 2
    assert expected in capsys.readouterr().err


def test_defaults_presets_and_own_values() -> None:
    def sizes(*flags: str) -> Any:
        return chosen_sizes(build_parser().parse_args(flags))

    plain = sizes("likelihood")
    assert plain == {
        "dim": [288],
        "vocab": [10_000],
        "senses_per_word": [3.0],
        "tokens": [4096],
        "repetitions": 7,
    }
    assert sizes("scaling")["senses_per_word"] == [1.0, 2.0, 3.0]
    assert (sizes("decode")["batch"], sizes("decode")["repetitions"]) == ([16, 64], 3)
    quick = sizes("likelihood", "--quick", "--tokens", "32", "64")
    assert (quick["tokens"], quick["dim"]) == ([32, 64], [32])
    for name in BENCHMARKS:
        assert set(sizes(name)) == set(sizes(name, "--quick"))
