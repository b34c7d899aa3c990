"""Output layers, which compute word probabilities from context vectors (Sections 3 and 4.1)."""

from fairseq_kerbs.output_layers.base import OutputLayer, SoftmaxOutputLayer
from fairseq_kerbs.output_layers.kerbs import KerbsOutputLayer
from fairseq_kerbs.output_layers.mixture import MixtureOutputLayer

__all__ = [
    "KerbsOutputLayer",
    "MixtureOutputLayer",
    "OutputLayer",
    "SoftmaxOutputLayer",
]
