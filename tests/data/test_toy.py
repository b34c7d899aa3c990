"""The toy corpus: fixed by its seed, without overlap."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import pytest

from fairseq_kerbs.data import toy
from fairseq_kerbs.data.toy import write_toy_corpus
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import lock_folder
from tests.helpers.commands import run_program


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus at its default size."""
    folder = tmp_path_factory.mktemp("toy")
    write_toy_corpus(folder)
    return folder


def _digest(folder: Path) -> str:
    files = sorted(file for file in folder.iterdir() if file.name != ".lock")
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def test_published_figures_are_of_this_text(corpus: Path) -> None:
    assert _digest(corpus) == "9e3800af3c0c0375020241d11fcdf91f66382eaf3e7e51263dccfbc24c8cc7ab"


def test_test_set_does_not_change_with_the_training_size(corpus: Path, tmp_path: Path) -> None:
    write_toy_corpus(tmp_path, train=50)
    for name in (f"{s}.{e}" for s in ("valid", "test") for e in ("de", "en", "senses.tsv")):
        assert (tmp_path / name).read_bytes() == (corpus / name).read_bytes()


def test_more_than_the_templates_can_make_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toy.Composer, "sentence", lambda *_: ("Ja.", "Yes."))
    with pytest.raises(UserError, match=r"no 2 different pairs; reduce --train"):
        list(toy.toy_pairs(2, 1, set()))


def test_two_runs_in_one_folder_are_refused(tmp_path: Path) -> None:
    with lock_folder(tmp_path, ""):
        command = (sys.executable, "-m", "fairseq_kerbs.cli", "toy", tmp_path, "--train", "5")
        said = run_program(*command, succeeds=False)
    assert f"another run is writing to {tmp_path}; wait for its end" in said
    assert [file.name for file in tmp_path.iterdir()] == [".lock"]


def test_gold_senses_of_training_get_their_name_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted before, the corpus does not look whole."""
    renamed: list[Path] = []
    monkeypatch.setattr(os, "replace", lambda _, target: renamed.append(target))
    write_toy_corpus(tmp_path, train=5, valid=5, test=5)
    assert (len(renamed), renamed[-1]) == (9, tmp_path / "train.senses.tsv")
