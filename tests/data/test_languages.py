"""Languages by their codes, and by the names of texts."""

from pathlib import Path

import pytest
import sacremoses

from fairseq_kerbs.data.languages import base_language, is_language, language_of
from fairseq_kerbs.evaluation.bleu import TOKENIZED


@pytest.mark.parametrize(
    ("code", "language"),
    [
        ("pt", "pt"),
        ("pt_BR", "pt"),
        ("zh-Hans", "zh"),
        ("FR", "fr"),
        ("haw", "haw"),
        ("", ""),
        ("kor", "ko"),
        ("deu", "de"),
        ("GER", "de"),
        ("zho_Hans", "zh"),
        ("arb_Arab", "ar"),
        ("src", "src"),
    ],
)
def test_a_region_is_left_out(code: str, language: str) -> None:
    assert base_language(code) == language
    assert base_language("turkish") == "turkish"  # Snowball's name of a stemmer


def test_every_language_with_rules_is_known() -> None:
    """Those of sacremoses and sacreBLEU, by codes that no other code replaces."""
    data = Path(sacremoses.__file__).parent / "data" / "nonbreaking_prefixes"
    codes = {path.suffix.removeprefix(".") for path in data.iterdir()}
    assert len(codes) > 30
    for code in codes:
        assert is_language(code)
        assert base_language(code) in (code, "zh")  # zh of Cantonese
    assert all(map(is_language, TOKENIZED))
    assert not any(map(is_language, ("src", "xx", "english", "context", "cn", "")))


@pytest.mark.parametrize(
    ("name", "language"),
    [
        ("test.de", "de"),
        ("test.de.gz", "de"),
        ("test.pt_BR", "pt"),
        ("test.zh-Hans.txt", "zh"),
        ("ref.ZH.txt.gz", "zh"),
        ("train.eng", "en"),
        ("ref.kor.txt", "ko"),
        ("test.txt", ""),
        ("test.src", ""),
        ("hypotheses.out", ""),
        ("de", ""),
    ],
)
def test_the_language_of_a_text_is_in_its_name(name: str, language: str) -> None:
    assert language_of(Path(name)) == language
