"""Every kind of output layer, at a small size, and a model with one."""

from typing import Any

from torch import Tensor, nn

from fairseq_kerbs.output_layers import KerbsOutputLayer, MixtureOutputLayer
from fairseq_kerbs.output_layers.base import OutputLayer, SoftmaxOutputLayer

DIM = 8
LAYERS = ["softmax", "mixture", "mos", "kerbs", "kerbs_released", "lin"]


def make(name: str, words: int = 30) -> OutputLayer:
    if name == "softmax":
        return SoftmaxOutputLayer(DIM, words)
    if name == "mixture":
        return MixtureOutputLayer(DIM, words, ["lin", "kerbs"])
    if name == "mos":
        layer: Any = MixtureOutputLayer(DIM, words, ["lin"] * 3, biases=True)
        nn.init.normal_(layer.bias)
        return layer
    return KerbsOutputLayer(DIM, words, 75, kernel=name)


class Model(nn.Module):
    """A linear model of words: its loss where targets are given, else its scores."""

    def __init__(self, layer: OutputLayer, **options: Any) -> None:
        super().__init__()
        self.body = nn.Linear(DIM, DIM)
        self.options = options
        self.out: Any = layer

    def forward(self, h: Tensor, target: Tensor | None = None) -> Tensor:
        if target is None:
            return self.out.log_probs(self.body(h))
        return self.out.nll(self.body(h), target, **self.options)
