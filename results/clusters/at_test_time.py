"""Beam search with another output layer than the one that was trained.

    python results/clusters/at_test_time.py LAYER DATA --path CHECKPOINT [flags of fairseq-generate]

LAYER is one of

- ``trained``: no change,
- ``top-sense``: a word has the probability of its most probable sense,
- ``softmax``: a word has one vector, the mean of its senses weighted by usage,
- ``prior``: input embeddings are weighted by usage, and not by the posterior (Eq. 7).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from fairseq_cli.generate import cli_main
from torch import Tensor

import fairseq_kerbs
import fairseq_kerbs.criterions
import fairseq_kerbs.models
from fairseq_kerbs.output_layers import KerbsOutputLayer
from fairseq_kerbs.output_layers.composition import ComposedEmbedding


def softmax_scores(layer: KerbsOutputLayer, h: Tensor, prepared: Any) -> tuple[Tensor, Any]:
    """Log-probabilities by one vector per word, [..., d] -> [..., V]."""
    table = layer.table
    prior = layer.look_up(torch.arange(layer.vocab_size)).prior * table.mask  # [V, K]
    vectors = torch.einsum("vk,vkd->vd", prior, layer.weight[table.senses])
    return (h @ vectors.t()).log_softmax(-1), prepared


if __name__ == "__main__":
    kind = sys.argv.pop(1)
    if kind == "top-sense":
        torch.logaddexp = torch.maximum
    elif kind == "softmax":
        KerbsOutputLayer._score = softmax_scores
    elif kind == "prior":
        compose = ComposedEmbedding.compose
        ComposedEmbedding.compose = lambda self, found, *_: compose(self, found)
    elif kind != "trained":
        sys.exit(f"{kind} is not trained, top-sense, softmax or prior.")
    sys.argv += ["--user-dir", str(Path(fairseq_kerbs.__file__).parent)]
    cli_main()
