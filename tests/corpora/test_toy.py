"""The embedded corpus: fixed by its seed, without overlap, with gold senses that hold."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from fairseq_kerbs.corpora.files import read_lines
from fairseq_kerbs.corpora.toy import AMBIGUOUS, LANGUAGES, read_gold_senses, write_toy_corpus
from fairseq_kerbs.corpora.toy_lexicon import ADJECTIVES, NOUNS, SENSE_FRAMES, VERBS
from fairseq_kerbs.corpora.toy_morphology import (
    DATIVE,
    GENITIVE,
    english_with_do,
    german_verb,
    german_zu_infinitive,
    noun_form,
)
from fairseq_kerbs.errors import UserError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus at its default size."""
    folder = tmp_path_factory.mktemp("toy")
    write_synthetic_corpus(folder)
    return folder


def _digest(folder: Path) -> str:
    files = sorted(folder.iterdir())
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def test_seed_fixes_every_byte(tmp_path: Path) -> None:
    write_synthetic_corpus(tmp_path, train=200, valid=20, test=20, seed=7)
    assert _digest(tmp_path) == "1d2d5881ff1a446f15b690d62c39ba8dc43dfb8cb2ed63e435c91ab22e20fd74"


def test_text_does_not_depend_on_hash_randomization(tmp_path: Path) -> None:
    digests = set()
    for hash_seed in ("1", "2"):
        folder = tmp_path / hash_seed
        code = (
            "import sys; from fairseq_kerbs.corpora.synthetic import write_synthetic_corpus;"
            "write_synthetic_corpus(sys.argv[1], 300, 30, 30, 3)"
        )
        subprocess.run(
            [sys.executable, "-c", code, str(folder)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
            check=True,
        )
        digests.add(_digest(folder))
    assert len(digests) == 1


def test_another_seed_gives_other_text(tmp_path: Path) -> None:
    for seed in (1, 2):
        write_synthetic_corpus(tmp_path / str(seed), 50, 10, 10, seed)
    assert _digest(tmp_path / "1") != _digest(tmp_path / "2")


def test_test_set_does_not_change_with_the_training_size(tmp_path: Path) -> None:
    write_synthetic_corpus(tmp_path / "small", train=50, valid=30, test=40)
    write_synthetic_corpus(tmp_path / "large", train=500, valid=30, test=40)
    for split in ("valid", "test"):
        for suffix in (*LANGUAGES, "senses.tsv"):
            name = f"{split}.{suffix}"
            assert (tmp_path / "small" / name).read_bytes() == (
                tmp_path / "large" / name
            ).read_bytes()


def test_no_sentence_occurs_twice_in_any_split(corpus: Path) -> None:
    for language in LANGUAGES:
        lines = [
            line
            for split in ("train", "valid", "test")
            for line in read_lines(corpus / f"{split}.{language}")
        ]
        assert len(lines) == 21000
        assert len(set(lines)) == len(lines)


def test_gold_senses_name_every_ambiguous_word_and_no_other(corpus: Path) -> None:
    for split in ("train", "valid", "test"):
        found = Counter(
            (line, word)
            for line, text in enumerate(read_lines(corpus / f"{split}.en"))
            for word in re.findall(r"\w+", text)
            if word.lower() in AMBIGUOUS
        )
        gold = read_gold_senses(corpus / f"{split}.senses.tsv")
        assert Counter((row.line, row.word) for row in gold) == found  # hence never a capital
        assert all(row.sense in AMBIGUOUS[row.word] for row in gold)
        seen: Counter[tuple[int, str]] = Counter()
        for row in gold:
            assert row.occurrence == seen[row.line, row.word]
            seen[row.line, row.word] += 1


def test_german_line_contains_the_gold_lemma(corpus: Path) -> None:
    forms = {
        "Buchstabe": "Buchstabe",
        "anzünden": "zünde",
        "leicht": "leicht",
        "hell": "hell",
        "recht": "recht",
        "richtig": "richtig",
    }
    german = read_lines(corpus / "test.de")
    for row in read_gold_senses(corpus / "test.senses.tsv"):
        assert forms.get(row.sense, row.sense) in german[row.line]


def test_senses_are_frequent_enough_to_learn_and_to_measure(corpus: Path) -> None:
    assert len(AMBIGUOUS) >= 8
    for split, least in (("train", 400), ("test", 8)):
        counts = Counter(
            (r.word, r.sense) for r in read_gold_senses(corpus / f"{split}.senses.tsv")
        )
        assert set(counts) == {(word, s) for word, senses in AMBIGUOUS.items() for s in senses}
        assert min(counts.values()) >= least
        for word, senses in AMBIGUOUS.items():
            share = [counts[word, s] / sum(counts[word, t] for t in senses) for s in senses]
            assert 0.15 <= min(share) <= max(share) <= 0.65


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
    assert several == AMBIGUOUS
    assert {word for word, _ in SENSE_FRAMES} == set(AMBIGUOUS)


def test_vocabulary_and_lengths_are_of_a_small_translation_problem(corpus: Path) -> None:
    english = read_lines(corpus / "train.en")
    types = {word.lower() for line in english for word in re.findall(r"\w+", line)}
    assert 300 <= len(types) <= 800
    lengths = [len(line.split()) for line in english]
    assert 8 <= sum(lengths) / len(lengths) <= 16
    assert max(lengths) <= 40
    assert sum(line.endswith("?") for line in english) > 500
    assert any('"' in line for line in english)


@pytest.mark.parametrize(
    ("verb", "tense", "person", "expected"),
    [
        ("ausrauben", "present", "3s", ("raubt", [], "aus")),
        ("ausrauben", "perfect", "3p", ("haben", ["ausgeraubt"], "")),
        ("fliegen", "perfect", "1s", ("bin", ["geflogen"], "")),
        ("arbeiten", "past", "1p", ("arbeiteten", [], "")),
        ("lesen", "past", "3p", ("lasen", [], "")),
        ("klettern", "present", "1s", ("klettere", [], "")),
        ("streicheln", "present", "1s", ("streichle", [], "")),
        ("anzünden", "müssen past", "3p", ("mussten", ["anzünden"], "")),
        ("öffnen", "können present", "1p", ("können", ["öffnen"], "")),
        ("öffnen", "present", "3s", ("öffnet", [], "")),
        ("reparieren", "perfect", "3s", ("hat", ["repariert"], "")),
        ("verweigern", "past", "3s", ("verweigerte", [], "")),
        ("sein", "past", "3p", ("waren", [], "")),
    ],
)
def test_german_conjugation(
    verb: str, tense: str, person: str, expected: tuple[str, list[str], str]
) -> None:
    assert german_verb(VERBS[verb], tense, person) == expected


def test_german_infinitive_with_zu() -> None:
    assert german_zu_infinitive(VERBS["anzünden"]) == ["anzuzünden"]
    assert german_zu_infinitive(VERBS["lesen"]) == ["zu", "lesen"]


@pytest.mark.parametrize(
    ("noun", "plural", "case", "expected"),
    [
        ("Fluss", False, GENITIVE, "Flusses"),
        ("See", False, GENITIVE, "Sees"),
        ("Zimmer", False, GENITIVE, "Zimmers"),
        ("Junge", False, DATIVE, "Jungen"),
        ("Buchstabe", False, DATIVE, "Buchstaben"),
        ("Kind", True, DATIVE, "Kindern"),
        ("Auto", True, DATIVE, "Autos"),
        ("Frau", False, GENITIVE, "Frau"),
    ],
)
def test_german_declension(noun: str, plural: bool, case: int, expected: str) -> None:
    assert noun_form(NOUNS[noun], plural, case) == expected


@pytest.mark.parametrize(
    ("verb", "tense", "person", "expected"),
    [
        ("fangen", "present", "3s", (["does"], ["catch"])),
        ("fangen", "past", "3s", (["did"], ["catch"])),
        ("fangen", "wollen past", "3s", (["did"], ["want", "to", "catch"])),
        ("fangen", "müssen past", "1s", (["did"], ["have", "to", "catch"])),
        ("fangen", "perfect", "3s", (["has"], ["caught"])),
        ("sein", "present", "3p", (["are"], [])),
    ],
)
def test_english_auxiliaries(
    verb: str, tense: str, person: str, expected: tuple[list[str], list[str]]
) -> None:
    assert english_with_do(VERBS[verb], tense, person) == expected


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
        write_synthetic_corpus(tmp_path / "toy", **options)
    assert not (tmp_path / "toy").exists()


def test_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="is a file"):
        write_synthetic_corpus(tmp_path / "file", 10, 10, 10)


@pytest.mark.parametrize("row", ["1\t2\tbank", "a\t0\tbank\tBank", ""])
def test_broken_gold_senses(tmp_path: Path, row: str) -> None:
    (tmp_path / "x.senses.tsv").write_text(f"0\t0\tbank\tBank\n{row}\n")
    with pytest.raises(UserError, match="line 2"):
        read_gold_senses(tmp_path / "x.senses.tsv")
