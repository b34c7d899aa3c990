"""Tokens of Moses, by sacremoses, and byte pair encoding, by subword-nmt; and their undoing.

Text is not escaped by default: fairseq needs no XML entities, and what was never escaped cannot be
left escaped. Detokenization undoes entities only where tokenization made them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

from fairseq_kerbs.utils.files import atomic_write, iter_lines
from fairseq_kerbs.utils.processes import progress

SMALL = 5000
"""Lines that are done before other processes have started."""


@cache
def _moses(kind: str, language: str) -> Any:
    import sacremoses  # slow to import

    return getattr(sacremoses, kind)(lang=language)


def tokenize(line: str, *, language: str, lowercase: bool = False, escape: bool = False) -> str:
    """Tokens of a raw line, joined by spaces; lower-cased after tokenization if asked."""
    text = _moses("MosesTokenizer", language).tokenize(line, return_str=True, escape=escape)
    return text.lower() if lowercase else text


def detokenize(line: str, *, language: str, unescape: bool = False) -> str:
    """The raw text of a line of tokens; `unescape` for text tokenized with `escape`."""
    return _moses("MosesDetokenizer", language).detokenize(line.split(), unescape=unescape)


def run_parallel(
    function: Callable[[str], str], lines: Sequence[str], workers: int
) -> Iterable[str]:
    """The function of every line, by sacremoses's own processes if there are many lines."""
    from sacremoses.util import parallelize_preprocess

    return parallelize_preprocess(function, lines, workers if len(lines) > SMALL else 1)


def learn_bpe(texts: Sequence[Path], codes: Path, merges: int) -> None:
    """Learn merges on one or several tokenized texts together, as ``learn-bpe`` and
    ``learn-joint-bpe-and-vocab`` of subword-nmt do."""
    from subword_nmt import learn_bpe

    learn_bpe.tqdm = partial(progress, what="learn BPE", unit=" merges")
    with atomic_write(codes) as stream:
        learn_bpe.learn_bpe(chain.from_iterable(map(iter_lines, texts)), stream, merges)


def write_vocabulary(text: Path, codes: Path, vocabulary: Path) -> None:
    """Count the subwords of a tokenized text, as ``get-vocab`` of subword-nmt does."""
    from subword_nmt.get_vocab import get_vocab

    with atomic_write(vocabulary) as stream:
        get_vocab(map(load_bpe(codes).segment, iter_lines(text)), stream)


def load_bpe(codes: Path, vocabulary: Path | None = None, threshold: int = 0) -> Any:
    """subword-nmt's segmenter; with a vocabulary, units rarer than `threshold` are split more."""
    from subword_nmt.apply_bpe import BPE, read_vocabulary

    known = read_vocabulary(iter_lines(vocabulary), threshold) if vocabulary else None
    with codes.open(encoding="utf-8", newline="\n") as stream:
        return BPE(stream, vocab=known)


def join_subwords(line: str) -> str:
    """Join subwords to words, as fairseq's ``--remove-bpe`` does."""
    return (line + " ").replace("@@ ", "").rstrip(" ")
