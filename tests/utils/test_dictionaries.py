"""A checkpoint goes with the dictionaries that it was trained with, and with no others."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from unittest import mock

import pytest
from fairseq.data import Dictionary

from fairseq_kerbs.checkpoints import read_checkpoint
from fairseq_kerbs.utils.dictionaries import STATE, digest, digest_kept
from tests.helpers.tiny_checkpoint import LANGUAGES, fairseq_train


@pytest.fixture(scope="module")
def work(tiny_work: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data, a model, and data with either dictionary in another order."""
    folder = shutil.copytree(tiny_work, tmp_path_factory.mktemp("dictionaries") / "work")
    for language in LANGUAGES:
        file = shutil.copytree(folder / "bin", folder / language) / f"dict.{language}.txt"
        words = file.read_text().splitlines()
        file.write_text("\n".join([words[1], words[0], *words[2:]]) + "\n")
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
    with pytest.raises(SystemExit, match=says):
        fairseq_train(work / language, "--save-dir", tmp_path, "--max-update", 3)
    with pytest.raises(SystemExit, match=says):
        fairseq_train(
            work / language,
            *("--save-dir", tmp_path / "new", "--finetune-from-model", work / "model.pt"),
        )
    assert not list((tmp_path / "new").glob("*.pt"))
