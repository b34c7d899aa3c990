"""The toy corpus: fixed by its seed, without overlap, with gold senses that hold."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest
import yaml

from fairseq_kerbs.analysis.gold_senses import read_gold_senses
from fairseq_kerbs.data import toy
from fairseq_kerbs.data.toy import PLAIN, SENSES, write_toy_corpus
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


def test_seed_fixes_every_byte_in_any_process(tmp_path: Path) -> None:
    code = "import sys; from fairseq_kerbs.data.toy import write_toy_corpus;"
    code += "write_toy_corpus(sys.argv[1], train=200, valid=20, test=20, seed=7)"
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code, tmp_path / "a"], env=environment, check=True)
    write_toy_corpus(tmp_path / "b", train=200, valid=20, test=20, seed=7)
    assert _digest(tmp_path / "a") == _digest(tmp_path / "b")
    write_toy_corpus(tmp_path / "b", train=200, valid=20, test=20, seed=8)
    assert _digest(tmp_path / "a") != _digest(tmp_path / "b")


def test_test_set_does_not_change_with_the_training_size(corpus: Path, tmp_path: Path) -> None:
    write_toy_corpus(tmp_path, train=50)
    for name in (f"{s}.{e}" for s in ("valid", "test") for e in ("de", "en", "senses.tsv")):
        assert (tmp_path / name).read_bytes() == (corpus / name).read_bytes()


@pytest.mark.parametrize("language", ["de", "en"])
def test_no_sentence_occurs_twice_in_any_split(corpus: Path, language: str) -> None:
    lines = [line for split in SPLITS for line in read_lines(corpus / f"{split}.{language}")]
    assert len(lines) == len(set(lines)) == 21000


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


def test_contexts_vary(corpus: Path) -> None:
    """A sense stands beside many other words, and most of these beside other senses, too."""
    english = read_lines(corpus / "train.en")
    beside: dict[str, Counter[str]] = {sense: Counter() for sense in SENSES}
    for (line, _, word), sense in read_gold_senses(corpus / "train.senses.tsv").items():
        beside[f"{word} {sense}"].update(set(re.findall(r"\w+", english[line])) - WORDS)
    shared = set.intersection(*(set(counts) for counts in beside.values()))
    for sense, counts in beside.items():
        assert len(counts) > 200, sense
        assert len(shared) > 0.6 * len(counts), sense


def test_the_templates_of_both_languages_fit() -> None:
    table = yaml.safe_load(Path(toy.__file__).with_suffix(".yaml").read_text("utf-8"))
    frames = [frame for frame, _ in table["frames"]]
    for template in chain(PLAIN, *SENSES.values(), frames, [table["time"]]):
        german, english = template.split(" = ")
        options = [re.findall(r"\[(.*?)\]", side) for side in (german, english)]
        assert [option.count("/") for option in options[0]] == [
            option.count("/") for option in options[1]
        ], template
        assert german.count("<") == english.count("<>"), template


def test_only_the_ambiguous_words_are_ambiguous() -> None:
    """A noun of English translates one German lemma, unless `SENSES` says otherwise."""
    lemmas: dict[str, set[str]] = {}
    for german, _, english in chain(*toy._NOUNS.values()):
        lemmas.setdefault(english, set()).add(german.partition("+")[0])
    several = {
        f"{word} {lemma}" for word in lemmas for lemma in lemmas[word] if len(lemmas[word]) > 1
    }
    assert several <= set(SENSES)
    assert len(WORDS) == 12


def test_more_than_the_templates_can_make_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toy.Composer, "sentence", lambda *_: ("Ja.", "Yes."))
    with pytest.raises(UserError, match=r"no 2 different pairs; ask for fewer \(--train\)"):
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
    """Interrupted before any of the nine renamings, the corpus does not look whole."""
    rename = os.replace
    for moment in range(9):
        left = moment

        def replace(source: object, target: object) -> None:
            nonlocal left
            if left == 0:
                raise KeyboardInterrupt
            left -= 1
            rename(str(source), str(target))

        folder = tmp_path / str(moment)
        monkeypatch.setattr(os, "replace", replace)
        with pytest.raises(KeyboardInterrupt):
            write_toy_corpus(folder, train=5, valid=5, test=5)
        assert len([file for file in folder.iterdir() if file.name != ".lock"]) == moment
        assert not (folder / "train.senses.tsv").exists()
