"""Codes of languages, such as pt, pt_BR and por, and where the name of a text has one."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

CODE = re.compile(r"([A-Za-z]{2,3})(?:[-_]\w+)?")
"""A language, and its region or script, such as pt, pt_BR and zh-Hans."""

_TABLE = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
_OF_TWO_LETTERS: dict[str, str] = {
    code: short
    for kind in ("codes", "varieties")
    for code, short in (pair.split("=") for pair in _TABLE[kind].split())
}
_KNOWN = {*_OF_TWO_LETTERS.values(), *_TABLE["others with rules"].split()}


def base_language(code: str) -> str:
    """Code of a language without its region, of two letters if there is one.

    It is pt of pt_BR, zh of zh-Hans, and ko of kor. sacremoses and sacreBLEU know neither regions
    nor longer codes, and would take another language for them.
    """
    found = CODE.fullmatch(code)
    if found is None:
        return code
    language = found[1].lower()
    return _OF_TWO_LETTERS.get(language, language)


def is_language(code: str) -> bool:
    """Whether a code is that of a language with two letters, or with rules of its own."""
    return base_language(code) in _KNOWN


def language_of(path: Path) -> str:
    """Language of a text by its name, such as test.de, test.deu, test.pt_BR.gz or ref.zh.txt.

    "" if the name does not end in a code that :func:`base_language` gives two letters.
    """
    suffix = Path(path.name.removesuffix(".gz").removesuffix(".txt")).suffix.removeprefix(".")
    language = base_language(suffix)
    return language if re.fullmatch("[a-z]{2}", language) else ""
