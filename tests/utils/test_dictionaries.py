"""Dictionaries of checkpoints: their digests, and data with other ones."""

import gzip
import re
import shutil
from pathlib import Path

import pytest

from fairseq_kerbs.utils import dictionaries
from fairseq_kerbs.utils.errors import UserError
from tests.helpers import commands
from tests.helpers.tiny_checkpoint import fairseq_train

KEPT = dictionaries.STATE


@pytest.mark.parametrize("kept", [None, "abc", [1], {KEPT: [1]}, {KEPT: {"source": 5}}])
def test_what_is_no_digest_is_none(kept: object) -> None:
    assert dictionaries.kept_in({"task_state": kept}, "source") is None


def test_a_file_that_is_no_dictionary_is_named(tmp_path: Path) -> None:
    for name, content in (("dict.txt.gz", gzip.compress(b"a 1\n")), ("text", b"a\n")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=f"{name} is no dictionary of fairseq"):
            dictionaries.read_dictionary(tmp_path / name)


def test_data_of_the_other_direction_are_refused(tiny_work: Path, tmp_path: Path) -> None:
    """With one dictionary for both languages, no word tells the directions apart.

    Here the languages of the data exchange their names, so that all dictionaries fit.
    """
    data = tmp_path / "bin"
    data.mkdir()
    for file in (tiny_work / "bin").iterdir():
        parts = {"de": "en", "en": "de", "de-en": "en-de"}
        name = ".".join(parts.get(part, part) for part in file.name.split("."))
        shutil.copy(file, data / name)
    says = "was trained to translate from de to en, and the data are from en to de: give --source"
    model = tiny_work / "model.pt"
    shutil.copy(model, tmp_path / "checkpoint_last.pt")
    assert says in commands.run(
        "fairseq-generate", data, "--path", model, "--cpu", *commands.USER_DIR, status=1
    )
    assert says in commands.run("fairseq-kerbs", "senses", model, "--data", data, status=2)
    page = tmp_path / "a.html"
    assert says in commands.run(
        "fairseq-kerbs", "report", model, "--data", data, "-o", page, status=2
    )
    with pytest.raises(SystemExit, match=says):
        fairseq_train(data, "--save-dir", tmp_path, "--max-update", 3)
    # a training of the other direction may begin with its parameters
    new = tmp_path / "new"
    fairseq_train(data, "--save-dir", new, "--finetune-from-model", model)
    assert (new / "checkpoint_last.pt").exists()


@pytest.mark.parametrize(("language", "side"), [("de", "source"), ("en", "target")])
def test_another_order_is_refused(
    language: str, side: str, tiny_work: Path, tmp_path: Path
) -> None:
    says = f"the checkpoint has a {side} dictionary of .* in another order: use the data"
    shutil.copy(tiny_work / "model.pt", tmp_path / "checkpoint_last.pt")
    data = shutil.copytree(tiny_work / "bin", tmp_path / "bin")
    new = tmp_path / "new"
    words = (file := data / f"dict.{language}.txt").read_text().splitlines()
    file.write_text("\n".join([words[1], words[0], *words[2:]]) + "\n")
    flags = "--path", tiny_work / "model.pt", "--cpu", *commands.USER_DIR
    assert re.search(says, commands.run("fairseq-generate", data, *flags, status=1))
    with pytest.raises(SystemExit, match=says):
        fairseq_train(data, "--save-dir", tmp_path, "--max-update", 3)
    with pytest.raises(SystemExit, match=says):
        fairseq_train(data, "--save-dir", new, "--finetune-from-model", tiny_work / "model.pt")
    assert not list(new.glob("*.pt"))
