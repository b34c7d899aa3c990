"""Moses tokens and back."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairseq_kerbs.corpora.moses import check_language, detokenize, tokenize
from fairseq_kerbs.corpora.synthetic import write_synthetic_corpus
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import read_lines


@pytest.mark.parametrize(
    ("language", "raw", "tokens"),
    [
        ("en", "Anna's dog didn't bark, Mr. Smith.", "Anna 's dog didn 't bark , Mr. Smith ."),
        ("en", 'He said: "No!"', 'He said : " No ! "'),
        ("en", "It cost $3.50 (5,300 in all).", "It cost $ 3.50 ( 5,300 in all ) ."),
        ("en", "Wait... what?", "Wait ... what ?"),
        ("de", "Das ist z. B. der 3. Versuch.", "Das ist z. B. der 3. Versuch ."),
        ("de", "Der Mann, der „Ja“ sagt.", "Der Mann , der „ Ja “ sagt ."),
        ("de", "Ärzte grüßen Straßenbahn-Fahrer!", "Ärzte grüßen Straßenbahn-Fahrer !"),
    ],
)
def test_tokens_and_round_trip(language: str, raw: str, tokens: str) -> None:
    assert tokenize(raw, language=language) == tokens
    assert detokenize(tokens, language=language) == raw


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


def test_unusual_whitespace_becomes_one_space() -> None:
    assert tokenize("a\u00a0b\u2028c\td  e\r", language="en") == "a b c d e"


@pytest.mark.parametrize("language", ["de", "en"])
@pytest.mark.parametrize("escape", [False, True])
def test_synthetic_corpus_survives_the_round_trip(
    tmp_path: Path, language: str, escape: bool
) -> None:
    write_synthetic_corpus(tmp_path, train=1500, valid=10, test=10)
    for raw in read_lines(tmp_path / f"train.{language}"):
        tokens = tokenize(raw, language=language, escape=escape)
        assert tokens.split()[-1] in (".", "?", '"', "&quot;")
        assert detokenize(tokens, language=language, unescape=escape) == raw


def test_unknown_language_names_the_flag() -> None:
    check_language("de", "--source-moses")
    with pytest.raises(UserError, match="--source-moses: Moses has no rules for language 'xx'"):
        check_language("xx", "--source-moses")
