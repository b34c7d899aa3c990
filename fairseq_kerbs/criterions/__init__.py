"""Criterions, registered with fairseq on import."""

from fairseq_kerbs.criterions.kerbs_cross_entropy import KerbsCrossEntropyCriterion

__all__ = ["KerbsCrossEntropyCriterion"]
