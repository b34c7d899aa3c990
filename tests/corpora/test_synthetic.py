"""The synthetic corpus: fixed by its seed, without overlap, with gold senses that hold."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from fairseq_kerbs.analysis.gold_senses import read_gold_senses
from fairseq_kerbs.corpora.synthetic import write_synthetic_corpus
from fairseq_kerbs.corpora.synthetic_grammar import ADJECTIVES, AMBIGUOUS, NOUNS, VERBS
from fairseq_kerbs.utils.files import read_lines

ROOT = Path(__file__).resolve().parents[2]
SPLITS = ("test", "valid", "train")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus at its default size."""
    folder = tmp_path_factory.mktemp("synthetic")
    write_synthetic_corpus(folder)
    return folder


def _digest(folder: Path) -> str:
    files = sorted(folder.iterdir())
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def test_published_figures_are_of_this_text(corpus: Path) -> None:
    assert _digest(corpus) == "53d1c66293d7e7d6cdb69260b21a07ab4c71b0b84dbfd7bdb19ff2041db96d3d"


def test_seed_fixes_every_byte_in_any_process(tmp_path: Path) -> None:
    code = (
        "import sys; from fairseq_kerbs.corpora.synthetic import write_synthetic_corpus;"
        "write_synthetic_corpus(sys.argv[1], train=200, valid=20, test=20, seed=7)"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": str(ROOT)},
        check=True,
    )
    assert _digest(tmp_path) == "1d2d5881ff1a446f15b690d62c39ba8dc43dfb8cb2ed63e435c91ab22e20fd74"


def test_test_set_does_not_change_with_the_training_size(corpus: Path, tmp_path: Path) -> None:
    write_synthetic_corpus(tmp_path, train=50)
    for name in (f"{s}.{e}" for s in ("valid", "test") for e in ("de", "en", "senses.tsv")):
        assert (tmp_path / name).read_bytes() == (corpus / name).read_bytes()


@pytest.mark.parametrize("language", ["de", "en"])
def test_no_sentence_occurs_twice_in_any_split(corpus: Path, language: str) -> None:
    lines = [line for split in SPLITS for line in read_lines(corpus / f"{split}.{language}")]
    assert len(lines) == len(set(lines)) == 21000


@pytest.mark.parametrize("split", SPLITS)
def test_gold_senses_name_every_ambiguous_word_and_no_other(corpus: Path, split: str) -> None:
    found = Counter(
        (line, word)
        for line, text in enumerate(read_lines(corpus / f"{split}.en"))
        for word in re.findall(r"\w+", text)
        if word.lower() in AMBIGUOUS
    )
    expected = {(line, n, word) for (line, word), count in found.items() for n in range(count)}
    gold = read_gold_senses(corpus / f"{split}.senses.tsv")
    assert set(gold) == expected  # hence never a capital
    german = read_lines(corpus / f"{split}.de")
    for (line, _, word), sense in gold.items():
        assert sense in AMBIGUOUS[word]
        assert {"anzünden": "ünde"}.get(sense, sense) in german[line]


def test_only_the_ambiguous_words_are_ambiguous() -> None:
    """A content word of English translates one German lemma, unless `AMBIGUOUS` says otherwise."""
    lemmas: dict[str, set[str]] = {}
    for noun in NOUNS.values():
        for form in {noun.en, noun.en_plural if noun.de_plural else noun.en}:
            lemmas.setdefault(form, set()).add(noun.de)
    for german, english in ADJECTIVES.items():
        lemmas.setdefault(english, set()).add(german)
    for verb in VERBS.values():
        for form in {verb.en, verb.en_past, verb.en_participle}:
            lemmas.setdefault(f"{form} {verb.particle}".strip(), set()).add(verb.de)
    several = {word: senses for word, senses in lemmas.items() if len(senses) > 1}
    assert several == {word: set(senses) for word, senses in AMBIGUOUS.items()}


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
            write_synthetic_corpus(folder, train=5, valid=5, test=5)
        assert len(list(folder.iterdir())) == moment
        assert not (folder / "train.senses.tsv").exists()
