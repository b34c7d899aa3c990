"""Read raw text, also from fairseq-generate's output, and write text for tables."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from fairseq_kerbs.data.tokens import detokenize, join_subwords
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import read_lines

Part = Literal["S", "T", "H"]
"""Kind of line in fairseq-generate's output: source, target (reference) or hypothesis."""

# S-<id> or T-<id>, and the text; H-<id>, score and text
_LINE = re.compile(r"(?:([ST])-(\d+)|(H)-(\d+)\t\S+)\t(.*)", re.DOTALL)
_SUBWORD = re.compile(r"@@(?: |$)")
_MARKUP = str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;"} | {sign: f"\\{sign}" for sign in "\\`*_[]|~$#"}
)


def generated_part(lines: Sequence[str], part: Part, name: str) -> list[str] | None:
    """Lines of one kind in fairseq-generate's output, one per sentence, in the order of the corpus.

    With ``--nbest``, the first hypothesis of a sentence is the best. Returns None if there are no
    hypotheses. If a sentence is missing, or the last line of an output with references, a UserError
    with the ``name`` of the file is raised.
    """
    parts: dict[str, dict[int, str]] = {"S": {}, "T": {}, "H": {}}
    for match in filter(None, map(_LINE.fullmatch, lines)):
        parts[match[1] or match[3]].setdefault(int(match[2] or match[4]), match[5])
    if not parts["H"]:
        return None
    if parts["S"] and parts["T"] and not any(line.startswith("Generate ") for line in lines):
        raise UserError(
            f"{name} is truncated: fairseq-generate's last line ('Generate SUBSET with beam=…') is "
            "missing; generate all sentences again"
        )
    sentences = range(max(parts["H"]) + 1)
    missing = [sentence for sentence in sentences if sentence not in parts[part]]
    if missing:
        raise UserError(
            f"{name} has no line {part}-{missing[0]}, and lacks {len(missing)} of "
            f"{len(sentences)} in total; generate all sentences again, without --quiet"
        )
    return [parts[part][sentence] for sentence in sentences]


def detokenize_lines(
    lines: list[str], *, language: str, name: str, unescape: bool = False
) -> list[str]:
    """Raw text of fairseq-generate's hypotheses, or of tokenized text with BPE.

    For ``name`` and errors see :func:`generated_part`.
    """
    tokens = generated_part(lines, "H", name) or lines
    return [detokenize(join_subwords(t), language=language, unescape=unescape) for t in tokens]


def read_texts(path: Path, part: Part, language: str, unescape: bool = False) -> list[str]:
    """Raw text of each sentence of a file, which is raw text or fairseq-generate's output.

    Of such an output, lines of the kind ``part`` are joined and detokenized; for ``language`` and
    ``unescape`` see :func:`.detokenize`. A UserError is raised if the file cannot be read or is
    incomplete, or is raw text with subwords.
    """
    lines = read_lines(path)
    name = str(path)
    tokens = generated_part(lines, part, name)
    if tokens is None:
        marked = next((n for n, line in enumerate(lines, 1) if _SUBWORD.search(line)), None)
        if marked:
            raise UserError(
                f"{path}, line {marked} has subword marks (@@); give fairseq-generate's unchanged "
                "output, or raw text from 'fairseq-kerbs detokenize'"
            )
        return lines
    return detokenize_lines(tokens, language=language, name=name, unescape=unescape)


def shown(text: str) -> str:
    """A text on one line for display, with control characters replaced by U+FFFD."""
    line = " ".join(text.split())
    return "".join("\ufffd" if unicodedata.category(c) == "Cc" else c for c in line)


def escape_markdown(text: str) -> str:
    """Escape markup in a text for a cell of a Markdown table."""
    return text.translate(_MARKUP)
