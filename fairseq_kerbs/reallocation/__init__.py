"""Reallocation of senses between words (Algorithm 1), and their embeddings after a move."""

from fairseq_kerbs.reallocation.moves import Moves, ReallocationSettings
from fairseq_kerbs.reallocation.policies import POLICIES, reallocate, reset_moments

__all__ = [
    "POLICIES",
    "Moves",
    "ReallocationSettings",
    "reallocate",
    "reset_moments",
]
