"""Reading what fairseq-generate printed, back into raw text in the corpus's order."""

from __future__ import annotations

import re
from collections.abc import Iterable

from fairseq_kerbs.corpora import bpe, moses
from fairseq_kerbs.errors import UserError

_HYPOTHESIS = re.compile(r"H-(\d+)\t(\S+)\t(.*)", re.DOTALL)


def is_generated(lines: Iterable[str]) -> bool:
    """Whether a text has fairseq-generate's hypothesis lines: ``H-<id>``, score, tokens."""
    return any(_HYPOTHESIS.fullmatch(line) for line in lines)


def best_hypotheses(lines: Iterable[str], name: str) -> list[str]:
    """The best hypothesis of every sentence, in the order of the sentences, as it was printed.

    With ``--nbest`` the first of a sentence's consecutive lines is the best.

    Args:
        lines: the output of fairseq-generate; everything but ``H-`` lines is passed over.
        name: the file's name, for messages.

    Raises:
        UserError: there is no hypothesis, an id is missing, or one occurs in two places.
    """
    found: dict[int, str] = {}
    latest = -1
    for line in lines:
        match = _HYPOTHESIS.fullmatch(line)
        if match is None:
            continue
        sentence = int(match[1])
        if sentence not in found:
            found[sentence] = match[3]
        elif sentence != latest:
            raise UserError(
                f"{name}: sentence {sentence} was generated twice; is this the output of two runs?"
            )
        latest = sentence
    if not found:
        raise UserError(
            f"{name} has no hypothesis (no line starts with H-); is it fairseq-generate's output?"
        )
    missing = [i for i in range(max(found) + 1) if i not in found]
    if missing:
        shown = ", ".join(map(str, missing[:5])) + (", …" if len(missing) > 5 else "")
        raise UserError(
            f"{name}: no hypothesis for {len(missing)} of {max(found) + 1} sentences ({shown}); "
            "generate again without leaving sentences out"
        )
    return [found[i] for i in range(len(found))]


def detokenize_lines(
    lines: list[str], *, language: str, name: str, unescape: bool = False
) -> list[str]:
    """Raw text of fairseq-generate's output, or of tokenized text: BPE joined, Moses undone.

    Raises:
        UserError: no Moses rules for the language, or see `best_hypotheses`.
    """
    moses.check_language(language, "--lang")
    tokens = best_hypotheses(lines, name) if is_generated(lines) else lines
    return [moses.detokenize(bpe.undo(t), language=language, unescape=unescape) for t in tokens]
