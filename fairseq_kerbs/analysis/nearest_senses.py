"""Nearest senses by kernel: what the output layer would take for each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from fairseq_kerbs.kernels import kernel_logits
from fairseq_kerbs.output_layers import OutputLayer

_SCORES = 16 << 20  # logits that are kept at a time


@dataclass(frozen=True)
class NearSense:
    """A sense beside another.

    Attributes:
        word: the word that owns it.
        sense: its number.
        score: its kernel logit K(w, w'; θ') where the context vector is the other sense's vector.
    """

    word: str
    sense: int
    score: float


@torch.no_grad()
def nearest_senses(
    layer: OutputLayer, senses: Sequence[int], number: int, ignored: Sequence[int] = ()
) -> Iterator[list[tuple[int, float]]]:
    """For each sense the others with the highest kernel logits, were its vector the context.

    Args:
        layer: output layer. (The components of a mixture map contexts, each in its own way; what
            is compared here are its word vectors, by inner product.)
        senses: numbers of senses, any number of them.
        number: how many others; fewer where there are not as many.
        ignored: words whose senses are never named, such as fairseq's special symbols.

    Yields:
        for each of ``senses`` its neighbours and their logits, the highest first.
    """
    hidden = torch.zeros(layer.vocab_size, dtype=torch.bool)
    hidden[torch.tensor(list(ignored), dtype=torch.long)] = True
    left_out = hidden[layer.inventory.word_of_sense.cpu()]  # [M]
    number = min(number, int((~left_out).sum()) - 1)
    weight, theta = layer.weight.float(), layer.theta.float()
    rows = max(1, _SCORES // layer.total_senses)
    for part in torch.tensor(list(senses), dtype=torch.long).split(rows):
        if number < 1:
            yield from ([] for _ in part)
            continue
        contexts = layer.as_contexts(weight[part])  # [n, d]
        logits = kernel_logits(contexts, weight, theta, layer.kernel)  # [n, M]
        logits[:, left_out] = -torch.inf
        logits.scatter_(1, part.unsqueeze(1), -torch.inf)  # itself
        scores, found = logits.topk(number, dim=1)
        for row_scores, row_found in zip(scores.tolist(), found.tolist(), strict=True):
            pairs = zip(row_found, row_scores, strict=True)
            yield [(sense, score) for sense, score in pairs if score > -torch.inf]
