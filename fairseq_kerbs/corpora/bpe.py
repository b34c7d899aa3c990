"""Byte pair encoding, by subword-nmt: learned on training text, applied to all."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path

from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import atomic_write, iter_lines
from fairseq_kerbs.utils.processes import progress


def learn(texts: Iterable[Path], codes: Path, merges: int) -> int:
    """Learn merges on one or several tokenized texts together, as ``learn-bpe`` and
    ``learn-joint-bpe-and-vocab`` of subword-nmt do; return how many were found, or raise a
    UserError if no pair of characters occurs twice."""
    from subword_nmt import learn_bpe

    learn_bpe.tqdm = partial(progress, what="learn BPE", unit=" merges")
    learned = io.StringIO()
    with suppress(ValueError):  # which comes of text without a word of two characters
        learn_bpe.learn_bpe(chain.from_iterable(map(iter_lines, texts)), learned, merges)
    found = learned.getvalue().count("\n") - 1  # the first line is the version
    if found < 1:
        raise UserError("BPE needs a pair of characters that occurs twice; use --bpe none")
    with atomic_write(codes) as stream:
        stream.write(learned.getvalue())
    return found


def make_segmenter(
    codes: Path, vocabulary: Path | None = None, threshold: int = 0
) -> Callable[[str], str]:
    """A function from a tokenized line to its subwords, for `parallel_map`; with a vocabulary,
    units rarer than `threshold` are split further."""
    from subword_nmt.apply_bpe import BPE, read_vocabulary

    known = read_vocabulary(iter_lines(vocabulary), threshold) if vocabulary else None
    with codes.open(encoding="utf-8", newline="\n") as stream:
        return BPE(stream, vocab=known).segment


def write_vocabulary(text: Path, codes: Path, vocabulary: Path) -> dict[str, int]:
    """Count the subwords of a tokenized text, as ``get-vocab`` does; return how many ``types``."""
    from subword_nmt.get_vocab import get_vocab

    with atomic_write(vocabulary) as stream:
        get_vocab(map(make_segmenter(codes), iter_lines(text)), stream)
    return {"types": sum(1 for _ in iter_lines(vocabulary))}


def undo(line: str) -> str:
    """Join subwords to words, as fairseq's ``--remove-bpe`` does."""
    return (line + " ").replace("@@ ", "").rstrip(" ")
