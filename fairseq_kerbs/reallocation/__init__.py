"""Reallocation of senses between words: policies, their registry, and moves.

A policy that is registered here is a value of ``--reallocation``, see :mod:`.policy`.
"""

from fairseq_kerbs.reallocation.algorithm1 import Algorithm1
from fairseq_kerbs.reallocation.authors_code import AuthorsCode
from fairseq_kerbs.reallocation.clusters import Clusters
from fairseq_kerbs.reallocation.moves import Moves, SenseState, apply_moves, reset_moments
from fairseq_kerbs.reallocation.policy import (
    POLICIES,
    Policy,
    ReallocationSettings,
    build_policy,
    propose_moves,
    reallocate,
    register,
)

for _policy in (Algorithm1, AuthorsCode, Clusters):
    register(_policy)

__all__ = [
    "POLICIES",
    "Algorithm1",
    "AuthorsCode",
    "Clusters",
    "Moves",
    "Policy",
    "ReallocationSettings",
    "SenseState",
    "apply_moves",
    "build_policy",
    "propose_moves",
    "reallocate",
    "register",
    "reset_moments",
]
