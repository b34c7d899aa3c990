"""Senses: which word each belongs to, and the statistics of their use (Section 4.2, Eq. 12-13)."""

from fairseq_kerbs.senses.allocation import ALLOCATIONS, equal_allocation, random_allocation
from fairseq_kerbs.senses.inventory import (
    SenseInventory,
    SenseTable,
    build_sense_table,
    checksum_of,
    number_senses,
)
from fairseq_kerbs.senses.statistics import TargetProbabilities

__all__ = [
    "ALLOCATIONS",
    "SenseInventory",
    "SenseTable",
    "TargetProbabilities",
    "build_sense_table",
    "checksum_of",
    "equal_allocation",
    "number_senses",
    "random_allocation",
]
