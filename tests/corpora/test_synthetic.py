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

from fairseq_kerbs.analysis.sense_report import read_gold_senses
from fairseq_kerbs.corpora.synthetic import write_synthetic_corpus
from fairseq_kerbs.corpora.synthetic_grammar import (
    ADJECTIVES,
    AMBIGUOUS,
    NOUNS,
    VERBS,
    english_verb,
    german_verb,
    noun_form,
)
from fairseq_kerbs.utils.errors import UserError
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


@pytest.mark.parametrize("hash_seed", ["1", "2"])
def test_seed_fixes_every_byte_in_any_process(tmp_path: Path, hash_seed: str) -> None:
    code = (
        "import sys; from fairseq_kerbs.corpora.synthetic import write_synthetic_corpus;"
        "write_synthetic_corpus(sys.argv[1], train=200, valid=20, test=20, seed=7)"
    )
    subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
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


@pytest.mark.parametrize(
    ("verb", "tense", "person", "expected"),
    [
        ("ausrauben", "present", "3s", ("raubt", "", "aus")),
        ("ausrauben", "perfect", "3p", ("haben", "ausgeraubt", "")),
        ("fliegen", "perfect", "1s", ("bin", "geflogen", "")),
        ("arbeiten", "past", "1p", ("arbeiteten", "", "")),
        ("streicheln", "present", "1s", ("streichle", "", "")),
        ("anzünden", "müssen past", "3p", ("mussten", "anzünden", "")),
        ("reparieren", "perfect", "3s", ("hat", "repariert", "")),
    ],
)
def test_german_conjugation(
    verb: str, tense: str, person: str, expected: tuple[str, str, str]
) -> None:
    assert german_verb(VERBS[verb], tense, person) == expected


def test_german_declension() -> None:
    assert noun_form(NOUNS["Fluss"], False, "gen") == "Flusses"
    assert noun_form(NOUNS["Zimmer"], False, "gen") == "Zimmers"
    assert noun_form(NOUNS["Junge"], False, "dat") == "Jungen"
    assert noun_form(NOUNS["Kind"], True, "dat") == "Kindern"


def test_english_auxiliaries() -> None:
    catch = VERBS["fangen"]
    assert english_verb(catch, "present", "3s") == ("", "catches")
    assert english_verb(catch, "present", "3s", with_do=True) == ("does", "catch")
    assert english_verb(catch, "müssen past", "1s", with_do=True) == ("did", "have to catch")
    assert english_verb(catch, "perfect", "3s", with_do=True) == ("has", "caught")
    assert english_verb(VERBS["anzünden"], "future", "3s") == ("will", "light|anzünden")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"train": 0}, "--train must be at least 1"),
        ({"test": -3}, "--test must be at least 1"),
        ({"seed": -1}, "--seed must not be negative"),
    ],
)
def test_impossible_sizes(tmp_path: Path, options: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        write_synthetic_corpus(tmp_path / "text", **options)
    assert not (tmp_path / "text").exists()


def test_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="is a file"):
        write_synthetic_corpus(tmp_path / "file", 10, 10, 10)


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
