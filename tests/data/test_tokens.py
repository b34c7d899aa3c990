"""Moses tokens and back; BPE equals what subword-nmt's own commands give, byte for byte."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fairseq_kerbs.data import tokens
from fairseq_kerbs.data.tokens import detokenize, join_subwords, learn_bpe, load_bpe, tokenize
from fairseq_kerbs.data.toy import write_toy_corpus
from fairseq_kerbs.utils.files import iter_lines, read_lines
from fairseq_kerbs.utils.processes import find_program


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokens")
    write_toy_corpus(folder, train=800, valid=100, test=10)
    return folder


@pytest.mark.parametrize(("language", "raw", "words"), [
    ("en", "Anna's dog didn't bark, Mr. Smith.", "Anna 's dog didn 't bark , Mr. Smith ."),
    ("de", "Das ist z. B. der 3. Versuch.", "Das ist z. B. der 3. Versuch ."),
    ("de", "Der Mann, der „Ja“ sagt.", "Der Mann , der „ Ja “ sagt ."),
])  # fmt: skip
def test_tokens_and_round_trip(language: str, raw: str, words: str) -> None:
    assert tokenize(raw, language=language) == words
    assert detokenize(words, language=language) == raw


def test_escaping_is_off_unless_asked_for_and_undone_only_then() -> None:
    raw = "R&D costs [a lot] | <unk>"
    plain = tokenize(raw, language="en")
    escaped = tokenize(raw, language="en", escape=True)
    assert plain == "R & D costs [ a lot ] | < unk >"
    assert escaped == "R &amp; D costs &#91; a lot &#93; &#124; &lt; unk &gt;"
    assert detokenize(escaped, language="en", unescape=True) == detokenize(plain, language="en")
    assert "&lt;" in detokenize("a &lt; b", language="en")


def test_lower_casing_keeps_the_tokens_of_cased_text() -> None:
    raw = "He left. Then Mr. Smith came."
    assert tokenize(raw, language="en", lowercase=True) == "he left . then mr. smith came ."
    # Case tells where sentences end, so lower-casing first would lose a full stop.
    assert tokenize(raw.lower(), language="en") == "he left. then mr. smith came ."


def subword_nmt(*arguments: object) -> None:
    """Run subword-nmt's command line."""
    command = [find_program("subword-nmt"), *map(str, arguments)]
    subprocess.run(command, check=True, capture_output=True)


def apply(text: Path, codes: Path, vocabulary: Path | None = None, threshold: int = 0) -> str:
    segment = load_bpe(codes, vocabulary, threshold).segment
    return "".join(segment(line) + "\n" for line in iter_lines(text))


def test_codes_vocabulary_and_threshold_equal_the_command_s(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = [corpus / "train.de", corpus / "train.en"]
    learn_bpe(texts, tmp_path / "ours", 400)
    assert capsys.readouterr().err == ""  # no bar into a file
    vocabularies = [tmp_path / "theirs.de", tmp_path / "theirs.en"]
    subword_nmt(
        *("learn-joint-bpe-and-vocab", "--input", *texts, "-s", "400"),
        *("-o", tmp_path / "theirs", "--write-vocabulary", *vocabularies),
    )
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    for text, theirs in zip(texts, vocabularies, strict=True):
        ours = tmp_path / f"ours{text.suffix}"
        tokens.write_vocabulary(text, tmp_path / "ours", ours)
        assert sorted(read_lines(ours)) == sorted(read_lines(theirs))
        subword_nmt(
            *("apply-bpe", "-i", text, "-o", tmp_path / "applied", "-c", tmp_path / "theirs"),
            *("--vocabulary", theirs, "--vocabulary-threshold", "20"),
        )
        applied = (tmp_path / "applied").read_text(encoding="utf-8")
        assert apply(text, tmp_path / "ours", ours, 20) == applied
        assert applied != apply(text, tmp_path / "ours")  # the threshold did something


def test_joined_subwords_are_the_words(corpus: Path, tmp_path: Path) -> None:
    learn_bpe([corpus / "train.de"], tmp_path / "codes", 100)
    segment, lines = load_bpe(tmp_path / "codes").segment, read_lines(corpus / "valid.de")
    assert [segment(line) for line in lines] != lines
    assert [join_subwords(segment(line)) for line in lines] == lines
    assert join_subwords("Früh@@ ling is@@") == "Frühling is"  # a hypothesis may end within a word
