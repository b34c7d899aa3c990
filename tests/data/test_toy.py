"""The toy corpus: the published text, and what is refused."""

import hashlib
import os
import sys
from pathlib import Path

import pytest

from fairseq_kerbs.data import toy
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import lock_folder
from tests.helpers.cli import Patch
from tests.helpers.commands import run_program


def test_published_figures_are_of_this_text(tmp_path: Path) -> None:
    """The test set does not change with the training size."""
    toy.write_toy_corpus(tmp_path)
    files = sorted(file for file in tmp_path.iterdir() if file.name != ".lock")
    digest = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    assert digest == "9e3800af3c0c0375020241d11fcdf91f66382eaf3e7e51263dccfbc24c8cc7ab"
    toy.write_toy_corpus(tmp_path / "small", train=50)
    for name in (f"{s}.{e}" for s in ("valid", "test") for e in ("de", "en", "senses.tsv")):
        assert (tmp_path / "small" / name).read_bytes() == (tmp_path / name).read_bytes()


def test_more_than_the_templates_can_make_is_refused(monkeypatch: Patch) -> None:
    monkeypatch.setattr(toy.Composer, "sentence", lambda *_: ("Ja.", "Yes."))
    with pytest.raises(
        UserError, match=r"fewer than 2 different pairs; reduce --train, --valid or --test"
    ):
        list(toy.toy_pairs(2, 1, set()))


def test_two_runs_in_one_folder_are_refused(tmp_path: Path) -> None:
    with lock_folder(tmp_path, ""):
        command = (sys.executable, "-m", "fairseq_kerbs.cli", "toy", tmp_path, "--train", "5")
        said = run_program(*command, status=2)
    assert f"another run is writing to {tmp_path}; wait for its end" in said
    assert [file.name for file in tmp_path.iterdir()] == [".lock"]


def test_gold_senses_of_training_get_their_name_last(tmp_path: Path, monkeypatch: Patch) -> None:
    """Interrupted before, the corpus does not look whole."""
    renamed: list[Path] = []
    monkeypatch.setattr(os, "replace", lambda _, target: renamed.append(target))
    toy.write_toy_corpus(tmp_path, train=5, valid=5, test=5)
    assert (len(renamed), renamed[-1]) == (9, tmp_path / "train.senses.tsv")


def test_texts_of_another_corpus_are_not_overwritten(tmp_path: Path) -> None:
    toy.write_toy_corpus(tmp_path, train=3, valid=3, test=3)
    toy.write_toy_corpus(tmp_path, train=4, valid=3, test=3)  # may be repeated
    (tmp_path / "train.senses.tsv").unlink()
    (tmp_path / "train.en").write_text("mine")
    with pytest.raises(UserError, match=r"train.de is no text of 'fairseq-kerbs toy'"):
        toy.write_toy_corpus(tmp_path, train=3, valid=3, test=3)
    assert (tmp_path / "train.en").read_text() == "mine"
