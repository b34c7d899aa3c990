"""The toy corpus: fixed by its seed, without overlap, with gold senses that hold."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fairseq_kerbs.analysis.gold_senses import read_gold_senses
from fairseq_kerbs.data import toy
from fairseq_kerbs.data.toy import SENSES, write_toy_corpus
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import lock_folder, read_lines

ROOT = Path(__file__).resolve().parents[2]
SPLITS = ("test", "valid", "train")
WORDS = {sense.split()[0] for sense in SENSES}


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


@pytest.mark.parametrize("split", SPLITS)
def test_gold_senses_name_every_ambiguous_word_and_no_other(corpus: Path, split: str) -> None:
    expected = {
        (line, 0, word)
        for line, text in enumerate(read_lines(corpus / f"{split}.en"))
        for word in re.findall(r"\w+", text)
        if word.lower() in WORDS
    }
    gold = read_gold_senses(corpus / f"{split}.senses.tsv")
    assert set(gold) == expected  # hence never a capital
    assert len({line for line, *_ in gold}) == len(gold)
    german = read_lines(corpus / f"{split}.de")
    for (line, _, word), sense in gold.items():
        assert f"{word} {sense}" in SENSES
        assert {"anzünden": "zünd"}.get(sense, sense) in german[line]


def test_more_than_the_templates_can_make_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toy.Composer, "sentence", lambda *_: ("Ja.", "Yes."))
    with pytest.raises(UserError, match=r"no 2 different pairs; reduce --train"):
        list(toy.toy_pairs(2, 1, set()))


def test_two_runs_in_one_folder_are_refused(tmp_path: Path) -> None:
    code = "import sys; from fairseq_kerbs.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "toy", str(tmp_path), "--train", "5"]
    with lock_folder(tmp_path, ""):
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert f"another run is writing to {tmp_path}; wait for its end" in done.stderr
    assert [file.name for file in tmp_path.iterdir()] == [".lock"]


def test_gold_senses_of_training_get_their_name_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted before, the corpus does not look whole."""
    renamed: list[Path] = []
    monkeypatch.setattr(os, "replace", lambda _, target: renamed.append(target))
    write_toy_corpus(tmp_path, train=5, valid=5, test=5)
    assert (len(renamed), renamed[-1]) == (9, tmp_path / "train.senses.tsv")
