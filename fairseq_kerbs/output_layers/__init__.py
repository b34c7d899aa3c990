"""Output layers: from a context vector to word probabilities (Sections 3 and 4.1)."""

from fairseq_kerbs.output_layers.kerbs import (
    SENSE_INITS,
    KerbsOutputLayer,
    OutputLayer,
    SoftmaxOutputLayer,
)

__all__ = [
    "SENSE_INITS",
    "KerbsOutputLayer",
    "OutputLayer",
    "SoftmaxOutputLayer",
]
