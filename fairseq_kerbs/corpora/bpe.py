"""Byte pair encoding, by subword-nmt: learned on training text, applied to all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

from subword_nmt.apply_bpe import BPE, read_vocabulary
from subword_nmt.get_vocab import get_vocab
from subword_nmt.learn_bpe import get_vocabulary, learn_bpe

from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import atomic_write, iter_lines


def learn(texts: Iterable[Path], codes: Path, merges: int) -> int:
    """Learn merges on one or several tokenized texts together; return how many were found.

    Gives the codes that subword-nmt's commands give: ``learn-bpe`` for one text,
    ``learn-joint-bpe-and-vocab`` for several. Fewer than `merges` are found in a small text, since
    a pair must occur twice.

    Raises:
        UserError: no word has two characters or no pair occurs twice, so that there is nothing to
            learn.
    """
    words: Counter[str] = Counter()
    for text in texts:
        words += get_vocabulary(iter_lines(text))
    if all(len(word) == 1 for word in words):
        raise UserError("BPE needs words of two characters or more; use --bpe none for this text")
    with atomic_write(codes) as stream:
        learn_bpe([f"{word} {n}" for word, n in words.items()], stream, merges, is_dict=True)
    found = sum(1 for _ in iter_lines(codes)) - 1  # the first line is the version
    if found == 0:  # subword-nmt cannot apply such codes
        codes.unlink()
        raise UserError("BPE needs a pair of characters that occurs twice; use --bpe none")
    return found


def make_segmenter(
    codes: Path, vocabulary: Path | None = None, threshold: int = 0
) -> Callable[[str], str]:
    """A function from a tokenized line to its subwords, for `parallel_map`.

    With a vocabulary, units rarer than `threshold` are split further.
    """
    known = read_vocabulary(iter_lines(vocabulary), threshold) if vocabulary else None
    with codes.open(encoding="utf-8", newline="\n") as stream:
        segment: Callable[[str], str] = BPE(stream, vocab=known).segment
    return segment


def write_vocabulary(text: Path, codes: Path, vocabulary: Path) -> dict[str, int]:
    """Count the subwords of a tokenized text, most frequent first, as ``get-vocab`` does.

    Returns the number of ``types``.
    """
    with atomic_write(vocabulary) as stream:
        get_vocab(map(make_segmenter(codes), iter_lines(text)), stream)
    return {"types": sum(1 for _ in iter_lines(vocabulary))}


def undo(line: str) -> str:
    """Join subwords to words, as fairseq's ``--remove-bpe`` does."""
    return (line + " ").replace("@@ ", "").rstrip(" ")
