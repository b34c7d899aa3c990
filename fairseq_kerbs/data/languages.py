"""Codes of languages, such as pt and pt_BR, and where the name of a text has one."""

from __future__ import annotations

import re
from pathlib import Path

CODE = re.compile(r"([A-Za-z]{2,3})(?:[-_]\w+)?")
"""A language, and its region or script, such as pt, pt_BR and zh-Hans."""


def base_language(code: str) -> str:
    """Code of a language without its region, such as pt of pt_BR and zh of zh-Hans.

    sacremoses and sacreBLEU do not know regions, and would take another language for them.
    """
    found = CODE.fullmatch(code)
    return found[1].lower() if found else code


def language_of(path: Path) -> str:
    """Language of a text by its name, such as test.de, test.pt_BR.gz or ref.zh.txt.

    "" if the name does not end in a code of two letters.
    """
    suffix = Path(path.name.removesuffix(".gz").removesuffix(".txt")).suffix.removeprefix(".")
    language = base_language(suffix)
    return language if re.fullmatch("[a-z]{2}", language) else ""
