"""`fairseq-kerbs senses` on a trained checkpoint, with and without data."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_kerbs.analysis.occurrences import occurrences
from fairseq_kerbs.analysis.sense_report import build_report, report_as_text
from fairseq_kerbs.analysis.similarity import nearest_senses
from fairseq_kerbs.checkpoints import load_layer, load_model_and_task
from fairseq_kerbs.cli import main
from fairseq_kerbs.kernels import kerbs_kernel
from fairseq_kerbs.output_layers import SoftmaxOutputLayer
from tests.analysis.conftest import Refused, Trained
from tests.helpers.fairseq_fixtures import make_model


def senses(checkpoint: Path, *flags: str | Path) -> int:
    return main(["senses", str(checkpoint), *(str(flag) for flag in flags)])


def test_nearest_senses_are_those_of_a_plain_loop() -> None:
    layer = make_model("lstm").decoder.output
    owners = layer.word_of_sense.tolist()
    asked, ignored = [5, 0, 17, 40], [0, 3]
    found = list(nearest_senses(layer, asked, 4, ignored))
    for sense, near in zip(asked, found, strict=True):
        logits = kerbs_kernel(layer.weight[sense], layer.weight, layer.theta).tolist()
        others = [m for m, owner in enumerate(owners) if m != sense and owner not in ignored]
        expected = sorted(others, key=lambda m: (-logits[m], m))[:4]
        assert [m for m, _ in near] == expected
        assert [score for _, score in near] == pytest.approx([logits[m] for m in expected], 1e-4)


def test_a_sense_is_never_its_own_neighbour() -> None:
    layer = make_model("gru").decoder.output
    with torch.no_grad():
        layer.weight.fill_(0.5)
        layer.theta.zero_()
    (near,) = nearest_senses(layer, [1], 3)
    assert len({sense for sense, _ in near} - {1}) == 3
    assert len(next(nearest_senses(layer, [1], 10**6))) == layer.total_senses - 1
    assert list(nearest_senses(layer, [1, 2], 0)) == [[], []]


def test_the_checkpoint_alone_gives_the_layer_of_the_whole_model(trained: Trained) -> None:
    model, task = load_model_and_task(trained.kerbs, trained.data)
    layer, dictionary = load_layer(trained.kerbs)
    assert dictionary.symbols == task.target_dictionary.symbols
    expected = model.decoder.output.state_dict()
    assert layer.state_dict().keys() == expected.keys()
    for name, value in layer.state_dict().items():
        assert torch.equal(value, expected[name])
    assert layer.kernel_name == "kerbs"


def test_report_without_data(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = tmp_path / "a.json", tmp_path / "a.csv"
    flags = ("--dict", trained.dictionary, "--top", "4", "--nearest", "2")
    assert senses(trained.kerbs, *flags, "--json", files[0], "--csv", files[1]) == 0
    text = capsys.readouterr().out
    report = json.loads(files[0].read_text())
    layer, dictionary = load_layer(trained.kerbs)
    numbers = layer.senses_per_word().tolist()
    kept = numbers[4 : dictionary.symbols.index("madeupword0000")]
    assert report["by_number"] == [kept.count(n) for n in range(1, max(kept) + 1)]
    assert len(report["words"]) == 4
    assert all(len(word["senses"]) == max(kept) for word in report["words"])
    rows = list(csv.DictReader(files[1].read_text().splitlines()))
    assert len(rows) == 4 * max(kept)
    first = report["words"][0]["senses"][0]
    assert float(rows[0]["theta"]) == pytest.approx(layer.theta[first["row"]].item(), 1e-4)
    near = first["nearest"]
    assert len(near) == 2
    owner = layer.word_of_sense[near[0]["row"]]
    assert near[0]["word"] == dictionary.symbols[int(owner)]
    assert f"{near[0]['word']}#{near[0]['sense']} {near[0]['score']:.2f}" in text
    assert rows[0]["example"] == ""


def test_report_with_data(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("--data", trained.data, "--word", "the", "--examples", "3")
    assert senses(trained.kerbs, *flags, "--json", tmp_path / "a", "--csv", tmp_path / "b") == 0
    text = capsys.readouterr().out
    (word,) = json.loads((tmp_path / "a").read_text())["words"]
    model, task = load_model_and_task(trained.kerbs, trained.data)
    found = [o for o in occurrences(model, task, "train") if o.word == "the"]
    assert sum(sense["times"] for sense in word["senses"]) == len(found)
    for sense in word["senses"]:
        sure = sorted((max(o.posterior) for o in found if o.sense == sense["row"]), reverse=True)
        assert [e["posterior"] for e in sense["examples"]] == pytest.approx(sure[:3])
        assert all("[the]" in example["text"] for example in sense["examples"])
    rows = list(csv.DictReader((tmp_path / "b").read_text().splitlines()))
    assert len(rows) == sum(max(1, len(sense["examples"])) for sense in word["senses"])
    assert "@@" not in text
    sources = {source for sense in word["senses"] for source, _ in sense["sources"]}
    assert sources
    assert all(source in text for source in sources)


def test_gold_senses_are_compared_with(
    trained: Trained, tmp_path: Path, refused: Refused, capsys: pytest.CaptureFixture[str]
) -> None:
    text = trained.data.parents[1] / "text"
    flags: list[str | Path] = ["--data", trained.data, "--top", "2", "--json", tmp_path / "a"]
    flags += ["--split", "train", "--gold", text / "train.senses.tsv"]
    assert senses(trained.kerbs, *flags) == 0
    report = json.loads((tmp_path / "a").read_text())
    rows, every = report["gold"]["words"], report["gold"]["all"]
    most = sorted((row["occurrences"] for row in rows.values()), reverse=True)[:2]
    assert [rows[word["word"]]["occurrences"] for word in report["words"]] == most
    assert every["occurrences"] == sum(row["occurrences"] for row in rows.values())
    assert f"mean of {len(rows)} words" in capsys.readouterr().out
    # contexts of the same split, read once more
    assert senses(trained.kerbs, *flags, "--train-data", trained.data) == 0
    again = json.loads((tmp_path / "a").read_text())["gold"]["words"]
    assert again.keys() == rows.keys()
    assert all(again[word]["senses.ari"] == rows[word]["senses.ari"] for word in rows)
    for file in [*trained.data.glob("dict.*"), *trained.data.glob("test.*")]:
        shutil.copy(file, tmp_path)
    refused("--train-data", "senses", trained.kerbs, *flags, "--train-data", tmp_path)


def test_wrong_uses_are_one_sentence(
    trained: Trained, tmp_path: Path, refused: Refused, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "dict.txt"
    other.write_text("one 1\n")
    no_training = tmp_path / "bin"
    no_training.mkdir()
    for file in [*trained.data.glob("dict.*"), *trained.data.glob("test.*")]:
        shutil.copy(file, no_training)
    junk = tmp_path / "junk.txt"
    junk.write_text("no number\n")
    moved = tmp_path / "moved.pt"
    shutil.copy(trained.kerbs, moved)
    state: dict[str, Any] = torch.load(moved, weights_only=False)
    state["cfg"]["task"]["data"] = str(tmp_path / "gone")
    torch.save(state, moved)
    hostile = tmp_path / "hostile.pt"  # our parameters, and settings that no list has
    vars(state["cfg"]["model"]).update(_name="fconv", arch="fconv")
    torch.save(state, hostile)
    for checkpoint, flags, message in (
        (tmp_path / "absent.pt", [], "there is no checkpoint"),
        (trained.softmax, [], "no model of fairseq_kerbs"),
        (hostile, [], "no model of fairseq_kerbs"),
        (moved, [], "give --data BIN or --dict FILE"),
        (moved, ["--dict", other], "is not the dictionary of"),
        (moved, ["--dict", junk], "no dictionary of fairseq"),
        (moved, ["--dict", tmp_path / "absent.txt"], "no such file"),
        (moved, ["--dict", other, "--data", trained.data], "--dict is for use without data"),
        (moved, ["--gold", other], "give --data BIN as well"),
        (moved, ["--train-data", trained.data], "--train-data is for use with --gold"),
        (trained.kerbs, ["--data", no_training, "--json", tmp_path / "a"], "not found: train"),
        (trained.kerbs, ["--data", trained.data, "--split", "dev"], "name a split of the data"),
        (moved, ["--top", "-1"], "--top is -1"),
        (moved, ["--nearest", "-2"], "--nearest is -2"),
    ):
        refused(message, "senses", checkpoint, *flags)
    assert not (tmp_path / "a").exists()
    assert senses(trained.kerbs, "--data", no_training, "--split", "test") == 0
    assert senses(moved, "--dict", trained.dictionary, "--by-number-of-senses") == 0
    assert "| words in all " in capsys.readouterr().out


def test_a_softmax_layer_has_no_word_of_several_senses() -> None:
    layer = SoftmaxOutputLayer(4, 9)
    symbols = [f"w{number}" for number in range(9)]
    report = build_report(None, layer, symbols, special=4, nearest=2)
    assert report["by_number"] == [5]
    assert "no word here has several senses" in report_as_text(report)
    (word,) = build_report(None, layer, symbols, words=["w5"], special=4, nearest=9)["words"]
    (sense,) = word["senses"]
    assert sense["theta"] is None
    assert {near["word"] for near in sense["nearest"]} == {"w4", "w6", "w7", "w8"}
