"""Exact likelihood of words under a mixture of senses (Eq. 4, 5, 11)."""

from fairseq_kerbs.likelihood.chunks import kernel_key
from fairseq_kerbs.likelihood.nll import (
    NllOptions,
    Senses,
    kerbs_nll,
    nll_with_evidence,
)
from fairseq_kerbs.likelihood.scores import kerbs_log_probs, score_words, word_log_probs

__all__ = [
    "NllOptions", "Senses", "kerbs_log_probs", "kerbs_nll", "kernel_key", "nll_with_evidence",
    "score_words", "word_log_probs",
]  # fmt: skip
