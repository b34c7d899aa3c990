"""Exact likelihood of words under a mixture of senses (Eq. 4, 5, 11)."""

from fairseq_kerbs.likelihood.nll import kerbs_log_probs, kerbs_nll

__all__ = ["kerbs_log_probs", "kerbs_nll"]
