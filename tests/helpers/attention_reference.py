"""Attention once more, one source position at a time. Nothing is imported from the package."""

from __future__ import annotations

import torch
from torch import Tensor

Read = tuple[Tensor, Tensor]
"""What is read of one sentence, [units], and the weight of each position, [len]."""


def softmax_of_numbers(scores: list[Tensor]) -> list[Tensor]:
    """exp(score) of each, divided by their sum."""
    exponentials = [torch.exp(score) for score in scores]
    total = torch.stack(exponentials).sum()
    return [value / total for value in exponentials]


def weighted_sum(weights: list[Tensor], vectors: list[Tensor]) -> Tensor:
    result = torch.zeros_like(vectors[0])
    for weight, vector in zip(weights, vectors, strict=True):
        result = result + weight * vector
    return result


def bahdanau(state: Tensor, outputs: list[Tensor], weights: dict[str, Tensor]) -> Read:
    """v · tanh(W_s s + W_h h_j + b) of each position, and the sum of the h_j with its softmax."""
    scores = []
    for output in outputs:
        of_state = weights["state_proj.weight"] @ state
        of_output = weights["key_proj.weight"] @ output + weights["key_proj.bias"]
        scores.append(weights["score_proj.weight"][0] @ torch.tanh(of_state + of_output))
    alphas = softmax_of_numbers(scores)
    return weighted_sum(alphas, outputs), torch.stack(alphas)


def luong(state: Tensor, outputs: list[Tensor], weights: dict[str, Tensor]) -> Read:
    """h_j · W s of each position, and tanh(W_c [c; s]) of the sum c with its softmax."""
    scores = [output @ (weights["input_proj.weight"] @ state) for output in outputs]
    alphas = softmax_of_numbers(scores)
    attended = weighted_sum(alphas, outputs)
    return torch.tanh(weights["output_proj.weight"] @ torch.cat([attended, state])), torch.stack(
        alphas
    )


READS = {"bahdanau": bahdanau, "luong": luong}


def maxout(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The greater of two units for each output; the second ones follow all first ones."""
    outputs = len(weight) // 2
    rows = []
    for j in range(outputs):
        first = weight[j] @ x + bias[j]
        second = weight[j + outputs] @ x + bias[j + outputs]
        rows.append(first if first > second else second)
    return torch.stack(rows)
