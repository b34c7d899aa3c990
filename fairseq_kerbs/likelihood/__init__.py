"""Exact likelihood of words under a mixture of senses (Eq. 4, 5, 11)."""

from fairseq_kerbs.likelihood.backends.eager import Senses
from fairseq_kerbs.likelihood.functional import (
    kerbs_log_probs,
    kerbs_nll,
    nll_with_evidence,
    score_words,
    word_log_probs,
)

__all__ = [
    "Senses", "kerbs_log_probs", "kerbs_nll", "nll_with_evidence", "score_words", "word_log_probs",
]  # fmt: skip
