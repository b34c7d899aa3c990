"""Random inputs of the likelihood: the same for every contestant."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_kerbs.senses import SenseTable, build_sense_table, random_allocation

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
PAD = 1  # fairseq's
SPECIALS = 4  # fairseq's <s>, <pad>, </s>, <unk>
FRESH_STD, TRAINED_STD = 0.1, 1.5  # deviation of θ


@dataclass(frozen=True)
class Inputs:
    """What the contestants are given; all floating tensors but ``no_theta`` take gradients.

    Attributes:
        h: context vectors, [N, d], normal (as after a layer norm).
        w: sense embeddings, [M, d], normal with deviation d^−½.
        words: word embeddings of the plain softmax, [V, d]; the first V rows of ``w``.
        theta: θ early in training, [M], deviation 0.1.
        trained_theta: θ as training may leave it, [M], deviation 1.5.
        no_theta: zeros, [V], for the kernel that has no θ.
        allocation: word of each sense, [M].
        table: senses of every word.
        word_table: the same for one sense a word.
        target: target words, [N]; frequencies fall as 1/rank.
    """

    h: Tensor
    w: Tensor
    words: Tensor
    theta: Tensor
    trained_theta: Tensor
    no_theta: Tensor
    allocation: Tensor
    table: SenseTable
    word_table: SenseTable
    target: Tensor

    def leaves(self) -> list[Tensor]:
        """Tensors that receive gradients."""
        return [self.h, self.w, self.words, self.theta, self.trained_theta]

    def drop_gradients(self) -> None:
        """Forget all gradients, so that the next backward pass makes its own."""
        for leaf in self.leaves():
            leaf.grad = None


def zipf_words(count: int, vocab: int, generator: torch.Generator) -> Tensor:
    """Random words of a dictionary of ``vocab`` entries, without its specials: [count]."""
    frequencies = 1.0 / torch.arange(1, vocab - SPECIALS + 1, dtype=torch.float64)
    return SPECIALS + torch.multinomial(frequencies, count, replacement=True, generator=generator)


@functools.lru_cache(maxsize=1)
def make_inputs(
    dim: int, vocab: int, senses_per_word: float, tokens: int, dtype: str, device: str, seed: int
) -> Inputs:
    """Draw inputs; numbers depend on the seed and the sizes alone, whatever the device.

    Args:
        dim, vocab, senses_per_word, tokens: d, V, M ÷ V, N.
        dtype: of all floating tensors, a key of :data:`DTYPES`.
        device: where they lie.
        seed: of the generator.
    """
    generator = torch.Generator().manual_seed(seed)

    def leaf(*shape: int, std: float) -> Tensor:
        values = std * torch.randn(*shape, generator=generator)
        return values.to(device, DTYPES[dtype]).requires_grad_()

    senses = round(senses_per_word * vocab)
    most = max(4, math.ceil(senses_per_word))
    allocation = random_allocation(vocab, senses, most, generator).to(device)
    h = leaf(tokens, dim, std=1.0)
    w = leaf(senses, dim, std=dim**-0.5)
    return Inputs(
        h=h,
        w=w,
        words=w.detach()[:vocab].clone().requires_grad_(),
        theta=leaf(senses, std=FRESH_STD),
        trained_theta=leaf(senses, std=TRAINED_STD),
        no_theta=torch.zeros(vocab, device=device, dtype=DTYPES[dtype]),
        allocation=allocation,
        table=build_sense_table(allocation, vocab),
        word_table=build_sense_table(torch.arange(vocab, device=device), vocab),
        target=zipf_words(tokens, vocab, generator).to(device),
    )
