"""Allocation of senses to words, and the statistics of Eq. 12-13."""

from fairseq_kerbs.senses.inventory import (
    Evidence,
    SenseInventory,
    SenseTable,
    build_sense_table,
    number_senses,
    random_allocation,
    single_senses,
)

__all__ = [
    "Evidence",
    "SenseInventory",
    "SenseTable",
    "build_sense_table",
    "number_senses",
    "random_allocation",
    "single_senses",
]
