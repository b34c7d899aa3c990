"""``--no-repeat-ngram-size``: no sequence of so many words occurs twice in a translation."""

from __future__ import annotations

import math
from typing import Any

from fairseq.ngram_repeat_block import NGramRepeatBlock
from torch import Tensor

from fairseq_kerbs.fairseq_patches.registry import patched


@patched(NGramRepeatBlock, "_no_repeat_ngram", "the last words are padding's, which never repeat")
def no_repeat_ngram(
    stock: Any, block: Any, tokens: Tensor, lprobs: Tensor, bsz: int, beam_size: int, step: int
) -> Tensor:
    """Forbid the words that would end an n-gram a second time.

    Args:
        tokens: [B, T] hypotheses: the sentence end they begin with, ``step`` words, then padding.
        lprobs: [B, V] log probabilities of the next words, changed in place.
    """
    size = block.no_repeat_ngram_size
    if step >= size:
        ngrams = tokens[:, 1 : step + 1].unfold(1, size, 1)  # [B, step − size + 1, size]
        last = tokens[:, None, step + 2 - size : step + 1]  # [B, 1, size − 1]
        row, place = (ngrams[..., :-1] == last).all(-1).nonzero(as_tuple=True)
        lprobs[row, ngrams[row, place, -1]] = -math.inf
    return lprobs
