"""Every kind of output layer, at a small size."""

from typing import Any

from torch import nn

from fairseq_kerbs.output_layers import KerbsOutputLayer, MixtureOutputLayer
from fairseq_kerbs.output_layers.base import OutputLayer, SoftmaxOutputLayer

LAYERS = ["softmax", "mixture", "mos", "kerbs", "kerbs_released", "lin"]


def make(name: str, words: int = 30) -> OutputLayer:
    if name == "softmax":
        return SoftmaxOutputLayer(8, words)
    if name == "mixture":
        return MixtureOutputLayer(8, words, ["lin", "kerbs"])
    if name == "mos":
        layer: Any = MixtureOutputLayer(8, words, ["lin"] * 3, biases=True)
        nn.init.normal_(layer.bias)
        return layer
    return KerbsOutputLayer(8, words, 75, kernel=name)
