"""Languages by their codes, and by the names of texts."""

from pathlib import Path

import pytest

from fairseq_kerbs.data.languages import base_language, language_of


@pytest.mark.parametrize(
    ("code", "language"),
    [("pt", "pt"), ("pt_BR", "pt"), ("zh-Hans", "zh"), ("FR", "fr"), ("haw", "haw"), ("", "")],
)
def test_a_region_is_left_out(code: str, language: str) -> None:
    assert base_language(code) == language
    assert base_language("turkish") == "turkish"  # Snowball's name of a stemmer


@pytest.mark.parametrize(
    ("name", "language"),
    [
        ("test.de", "de"),
        ("test.de.gz", "de"),
        ("test.pt_BR", "pt"),
        ("test.zh-Hans.txt", "zh"),
        ("ref.ZH.txt.gz", "zh"),
        ("test.txt", ""),
        ("hypotheses.out", ""),
        ("de", ""),
    ],
)
def test_the_language_of_a_text_is_in_its_name(name: str, language: str) -> None:
    assert language_of(Path(name)) == language
