"""scripts/benchmarks/price.py with tiny trainings and a tiny checkpoint."""

import csv
import gc
from pathlib import Path

import pytest

from scripts.benchmarks import price


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "collect", lambda: 0)  # slow beside all that pytest keeps


@pytest.fixture
def configuration(tmp_path: Path) -> Path:
    """The flags of the tiny checkpoint, as a configuration."""
    lines = ["train:", "  arch: lstm_kerbs", "  hidden-size: 6", "  embed-dim: 4", "  lr: 0.01"]
    lines += ["  criterion: kerbs_cross_entropy", "  optimizer: adam", "  batch-size: 8"]
    lines += ["  max-update: 2", "  num-workers: 0", "  task: translation"]
    file = tmp_path / "tiny.yaml"
    file.write_text("\n".join(lines) + "\n")
    return file


def rows_of(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as stream:
        return [*csv.DictReader(stream)]


def test_trainings_alternate_beside_a_softmax(
    configuration: Path, tiny_work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # a value may have a comma
    flags = "--output-layer softmax --adam-betas '(0.9, 0.98)'"
    contestants = [f"softmax={configuration},{flags}", f"kerbs={configuration}"]
    output = tmp_path / "rows.csv"
    sizes = [
        "--rounds",
        "2",
        "--updates",
        "2",
        "--label",
        "now",
        "--parts",
        "--output",
        str(output),
    ]
    price.main(["train", str(tiny_work / "bin"), *contestants, *sizes])
    rows = rows_of(output)
    names = [row["contestant"] for row in rows]
    assert names == ["softmax", "kerbs", "kerbs", "softmax", "softmax", "kerbs"]
    assert [row["round"] for row in rows] == ["0", "0", "1", "1", "2", "2"]
    assert {row["label"] for row in rows} == {"now"}
    assert {row["count"] for row in rows} == {"2"}
    assert all(float(row["processor_ms"]) > 0 for row in rows)
    printed, _, *parts = capsys.readouterr().out.partition("\n\n")
    softmax, kerbs = printed.splitlines()[1:]
    assert softmax.split("\t")[2] == "1.000"
    for name in ("softmax", "kerbs"):
        found = "".join(parts).split(f"{name}\nwhole\t")[1].split("\n\n")[0]
        whole, *each = [line.split("\t")[-1] for line in found.splitlines()]
        assert 0 < max(map(float, each)) < float(whole)
        assert ("statistics" in found) == (name == "kerbs")
    times = {
        name: [float(row["processor_ms"]) for row in rows[2:] if row["contestant"] == name]
        for name in ("softmax", "kerbs")
    }
    ratios = sorted(a / b for a, b in zip(times["kerbs"], times["softmax"], strict=True))
    assert float(kerbs.split("\t")[3]) == pytest.approx(ratios[0], abs=1e-3)
    assert float(kerbs.split("\t")[4]) == pytest.approx(ratios[1], abs=1e-3)


def test_models_translate_the_test_set(tiny_work: Path, tmp_path: Path) -> None:
    model = tiny_work / "model.pt"
    output = tmp_path / "rows.csv"
    sizes = ["--rounds", "1", "--sentences", "4", "--beam", "2", "--output", str(output)]
    price.main(["decode", str(tiny_work / "bin"), f"a={model}", f"b={model}", *sizes])
    assert {(row["contestant"], row["count"]) for row in rows_of(output)} == {
        ("a", "6"),
        ("b", "6"),
    }
