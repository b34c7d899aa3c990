"""A checkpoint goes with the dictionaries that it was trained with, and with no others."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from fairseq_kerbs.utils.dictionaries import STATE, digest_kept
from tests.helpers.commands import USER_DIR, run
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


@pytest.mark.parametrize("kept", [None, "abc", [1], {STATE: [1]}, {STATE: {"source": 5}}])
def test_what_is_no_digest_is_none(kept: object) -> None:
    assert digest_kept({"task_state": kept}, "source") is None


@pytest.mark.parametrize(("language", "side"), [("de", "source"), ("en", "target")])
def test_other_dictionaries_are_refused(
    language: str, side: str, work: Path, tmp_path: Path
) -> None:
    says = f"the checkpoint has a {side} dictionary of .* in another order: use the data"
    shutil.copy(work / "model.pt", tmp_path / "checkpoint_last.pt")
    flags = "--path", work / "model.pt", "--cpu", *USER_DIR
    assert re.search(says, run("fairseq-generate", work / language, *flags, succeeds=False))
    with pytest.raises(SystemExit, match=says):
        fairseq_train(work / language, "--save-dir", tmp_path, "--max-update", 3)
    tuned = "--save-dir", tmp_path / "new", "--finetune-from-model", work / "model.pt"
    with pytest.raises(SystemExit, match=says):
        fairseq_train(work / language, *tuned)
    assert not list((tmp_path / "new").glob("*.pt"))
