"""A single HTML file with everything in it: data, style and script. It asks the network nothing."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any

_PLACE = re.compile(r"__(TITLE|STYLE|DATA|SCRIPT)__")


def html_page(title: str, data: Mapping[str, Any]) -> str:
    """The page, from the files in ``page/``.

    Args:
        title: its title, plain text.
        data: what `fairseq_kerbs.analysis.page_data.page_data` gathers.
    """
    folder = files(__package__) / "page"
    parts = {
        "TITLE": html.escape(title),
        "STYLE": (folder / "style.css").read_text(encoding="utf-8").rstrip(),
        "DATA": script_json(data),
        "SCRIPT": "\n".join(
            (folder / name).read_text(encoding="utf-8").rstrip()
            for name in ("charts.js", "page.js")
        ),
    }
    # one pass, so that a text that looks like a place is left as it is
    return _PLACE.sub(
        lambda match: parts[match[1]], (folder / "page.html").read_text(encoding="utf-8")
    )


def script_json(data: Mapping[str, Any]) -> str:
    """JSON that can stand inside a ``<script>`` element.

    Characters that HTML might take for markup, ``<``, ``>`` and ``&``, and two line ends that older
    JavaScript refuses, are written as escapes, which stand for the same text.

    Raises:
        ValueError: a number is not finite.
    """
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
