"""A checkpoint goes with the dictionaries that it was trained with, and with no others."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch
from fairseq.data import Dictionary

from fairseq_kerbs.checkpoints import read_checkpoint
from fairseq_kerbs.cli import main
from fairseq_kerbs.utils.dictionaries import STATE, digest, digest_kept
from tests.helpers.tiny_checkpoint import LANGUAGES, fairseq_train, make_work

STOCK = ["--arch", "lstm", "--criterion", "cross_entropy", "--encoder-embed-dim", "4"]
STOCK += ["--encoder-hidden-size", "6", "--decoder-embed-dim", "6", "--decoder-hidden-size", "6"]
STOCK += ["--decoder-out-embed-dim", "6"]


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, a model of ours, one of fairseq's, and data with either dictionary in another order."""
    folder = make_work(tmp_path_factory.mktemp("dictionaries") / "work")
    fairseq_train(folder / "bin", "--save-dir", folder / "save", *STOCK)
    (folder / "save" / "checkpoint_last.pt").rename(folder / "stock.pt")
    for language in LANGUAGES:
        file = shutil.copytree(folder / "bin", folder / language) / f"dict.{language}.txt"
        words = file.read_text().splitlines()
        file.write_text("\n".join([words[1], words[0], *words[2:]]) + "\n")
    state = read_checkpoint(folder / "model.pt")
    del state["task_state"]["dictionaries"]
    torch.save(state, folder / "old.pt")
    return folder


def digests(folder: Path) -> dict[str, str]:
    files = {"source": "dict.de.txt", "target": "dict.en.txt"}
    return {side: digest(Dictionary.load(str(folder / file))) for side, file in files.items()}


def generate(data: Path, *models: Path) -> None:
    from fairseq_cli.generate import cli_main

    paths = ":".join(map(str, models))
    command = ["fairseq-generate", str(data), "--path", paths, "--cpu", "--beam", "1"]
    with mock.patch.object(sys, "argv", [*command, "--num-workers", "0", "--max-len-b", "5"]):
        cli_main()


def test_a_digest_is_of_words_in_their_order(work: Path) -> None:
    straight, other = digests(work / "bin"), digests(work / "de")
    assert straight["source"] != other["source"]
    assert straight["target"] == other["target"]
    assert read_checkpoint(work / "model.pt")["task_state"]["dictionaries"] == straight


@pytest.mark.parametrize("kept", [None, "abc", [1], {STATE: [1]}, {STATE: {"source": 5}}])
def test_what_is_no_digest_is_none(kept: object) -> None:
    assert digest_kept({"task_state": kept}, "source") is None


@pytest.mark.parametrize(("language", "side"), [("de", "source"), ("en", "target")])
def test_other_dictionaries_are_refused(
    language: str, side: str, work: Path, tmp_path: Path
) -> None:
    says = f"the checkpoint has a {side} dictionary of .* in another order: use the data"
    shutil.copy(work / "model.pt", tmp_path / "checkpoint_last.pt")
    with pytest.raises(SystemExit, match=says):
        generate(work / language, work / "model.pt")
    with pytest.raises(SystemExit, match=says):  # one of several
        generate(work / language, work / "old.pt", work / "model.pt")
    with pytest.raises(SystemExit, match=says):
        fairseq_train(work / language, "--save-dir", tmp_path, "--max-update", 3)
    with pytest.raises(SystemExit, match=says):
        fairseq_train(
            work / language,
            *("--save-dir", tmp_path / "new", "--finetune-from-model", work / "model.pt"),
        )
    assert not list((tmp_path / "new").glob("*.pt"))


def test_older_checkpoints_go_on(work: Path, tmp_path: Path) -> None:
    """Without digests no order can be told; what is trained on has them."""
    shutil.copy(work / "old.pt", tmp_path / "checkpoint_last.pt")
    generate(work / "en", work / "old.pt")
    generate(work / "bin", work / "old.pt", work / "model.pt")
    fairseq_train(work / "bin", "--save-dir", tmp_path, "--max-update", 3)
    last = read_checkpoint(tmp_path / "checkpoint_last.pt")
    assert last["optimizer_history"][-1]["num_updates"] == 3
    assert last["task_state"]["dictionaries"] == digests(work / "bin")


def test_a_converted_model_has_them(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """fairseq's model has no digests: those of the data that it was trained from are taken."""
    out = tmp_path / "kerbs.pt"
    assert main(["convert", str(work / "stock.pt"), "-o", str(out)]) == 0
    assert read_checkpoint(out)["task_state"]["dictionaries"] == digests(work / "bin")
    assert (
        main(["convert", str(work / "stock.pt"), "-o", str(out), "--data", f"{work / 'en'}"]) == 0
    )
    assert read_checkpoint(out)["task_state"]["dictionaries"] == digests(work / "en")
    ours = ["--output-layer", "softmax", "--save-dir", tmp_path / "save"]
    fairseq_train(work / "bin", *ours)
    softmax = str(tmp_path / "save" / "checkpoint_last.pt")
    assert main(["convert", softmax, "-o", str(out), "--data", str(work / "de")]) == 0
    assert read_checkpoint(out)["task_state"]["dictionaries"] == digests(work / "bin")
    capsys.readouterr()
    assert main(["convert", softmax, "-o", str(out), "--data", str(work / "en")]) == 2
    assert "has as many words as the checkpoint" in capsys.readouterr().err
