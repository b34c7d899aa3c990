"""How far the likelihood is from the equations in float64, on random inputs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_kerbs.kernels import build_kernel
from fairseq_kerbs.likelihood import kerbs_nll
from fairseq_kerbs.likelihood.nll import NllOptions, SenseParameters, nll_with_probabilities
from fairseq_kerbs.senses import SenseTable, build_sense_table, random_allocation

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
PAD = 1  # fairseq's
SPECIALS = 4  # fairseq's <s>, <pad>, </s>, <unk>
FRESH_STD = 0.1  # deviation of θ early in training
TRAINED_STD = 1.5  # deviation of θ as training may leave it


@dataclass(frozen=True)
class Inputs:
    """Inputs of a likelihood. The first five tensors take gradients."""

    h: Tensor  # context vectors, [N, d], normal (as after a layer norm)
    w: Tensor  # sense embeddings, [M, d], normal with deviation d^−½
    words: Tensor  # word embeddings of the plain softmax, [V, d]; the first V rows of ``w``
    theta: Tensor  # θ early in training, [M]
    trained_theta: Tensor  # θ as training may leave it, [M]
    word_of_sense: Tensor  # [M]
    table: SenseTable  # senses of every word
    word_table: SenseTable  # the same for one sense a word
    target: Tensor  # target words, [N]; frequencies fall as 1/rank
    logits: Tensor  # room for the products, [N, M], which takes no memory until it is filled

    def drop_gradients(self) -> None:
        """Forget all gradients, so that the next backward pass makes its own."""
        for leaf in (self.h, self.w, self.words, self.theta, self.trained_theta):
            leaf.grad = None


def zipf_words(count: int, vocab: int, generator: torch.Generator) -> Tensor:
    """Random words of a dictionary of ``vocab`` entries, without its specials: [count]."""
    frequencies = 1.0 / torch.arange(1, vocab - SPECIALS + 1, dtype=torch.float64)
    return SPECIALS + torch.multinomial(frequencies, count, replacement=True, generator=generator)


@lru_cache(maxsize=1)
def make_inputs(
    dim: int, vocab: int, senses_per_word: float, tokens: int, dtype: str, device: str, seed: int
) -> Inputs:
    """Draw inputs of d, V, M ÷ V and N; numbers depend on the seed and the sizes alone."""
    generator = torch.Generator().manual_seed(seed)

    def leaf(*shape: int, std: float) -> Tensor:
        values = std * torch.randn(*shape, generator=generator)
        return values.to(device, DTYPES[dtype]).requires_grad_()

    senses = round(senses_per_word * vocab)
    most = max(4, math.ceil(senses_per_word))
    # what is drawn must stay in this order, so that a seed always gives the same inputs
    allocation = random_allocation(vocab, senses, most, generator).to(device)
    h = leaf(tokens, dim, std=1.0)
    w = leaf(senses, dim, std=dim**-0.5)
    fresh = leaf(senses, std=FRESH_STD)
    trained = leaf(senses, std=TRAINED_STD)
    target = zipf_words(tokens, vocab, generator).to(device)
    words = w.detach()[:vocab].clone().requires_grad_()
    table = build_sense_table(allocation, vocab)
    word_table = build_sense_table(torch.arange(vocab, device=device), vocab)
    logits = torch.empty(tokens, senses, dtype=h.dtype, device=device)
    return Inputs(h, w, words, fresh, trained, allocation, table, word_table, target, logits)


def kerbs(inputs: Inputs, smoothing: float = 0.0, trained: bool = False) -> Tensor:
    """Loss of KerBS as its layer computes it: the sum of −log P(target), a scalar."""
    theta = inputs.trained_theta if trained else inputs.theta
    senses = SenseParameters(inputs.w, theta, inputs.table, build_kernel("kerbs"))
    options = NllOptions(ignore_index=PAD, label_smoothing=smoothing)
    return nll_with_probabilities(inputs.h, senses, inputs.target, options)[0]


def naive_losses(inputs: Inputs, smoothing: float = 0.0) -> Tensor:
    """KerBS as one would write it down, Eq. 9, 5 and 4, with autograd for the gradients: [N].

        s = |h||w| a(θ)(e^{−θc} − 1),  a(θ) = −θ/(2(e^{−θ} + θ − 1)),  c = cos(h, w)

    Written so that few passes over tokens × senses are needed; 0/0 at θ = 0. After the products
    everything is in float32, or float64 where h is.
    """
    h = inputs.h
    w = inputs.w
    theta = inputs.theta.double()
    wide = torch.promote_types(h.dtype, torch.float32)
    scale = (-theta / (2.0 * (torch.expm1(-theta) + theta))).to(wide)  # a(θ), [M]
    cosine = (F.normalize(h, dim=1) @ F.normalize(w, dim=1).t()).to(wide)  # [N, M]
    h_norm = h.to(wide).norm(dim=1, keepdim=True)  # [N, 1]
    w_norm = w.to(wide).norm(dim=1)  # [M]
    logits = h_norm * ((w_norm * scale) * torch.expm1(-theta.to(wide) * cosine))
    senses = logits.softmax(1)
    word_of_sense = inputs.word_of_sense.expand(len(h), -1)
    words = senses.new_zeros(len(h), len(inputs.words)).scatter_add(1, word_of_sense, senses)
    nll = -words.gather(1, inputs.target.unsqueeze(1)).log().squeeze(1)
    if not smoothing:
        return nll
    each = smoothing / (len(inputs.words) - 1)
    return (1.0 - smoothing - each) * nll - each * words.log().sum(1)


def products(inputs: Inputs) -> None:
    """The three matrix products that any exact method must do, and nothing else.

        X = h Wᵀ,   dh = P W,   dW = Pᵀ h        X, P: [N, M]

    P is X itself here: its values do not matter for the time.
    """
    h = inputs.h.detach()
    w = inputs.w.detach()
    x = inputs.logits
    torch.mm(h, w.t(), out=x)
    torch.mm(x, w)
    torch.mm(x.t(), h)


LIMITS = {"float32": 1e-5, "bfloat16": 8 * 2.0**-8, "float16": 8 * 2.0**-11}
"""Largest allowed ‖error‖ ÷ ‖right value‖ by dtype of the inputs. The rounding of the inputs
themselves is not counted."""


def distance(value: Tensor, right: Tensor) -> float:
    """‖value − right‖ ÷ ‖right‖ of two tensors, infinite if that is no number."""
    value = value.detach().double()
    right = right.detach().double()
    error = float((value - right).norm() / right.norm().clamp_min(1e-300))
    return error if math.isfinite(error) else math.inf


def errors(inputs: Inputs) -> Iterator[tuple[float, str]]:
    """Errors of losses and gradients, with their names, without and with label smoothing."""
    inputs = replace(inputs, theta=inputs.trained_theta)
    given = (inputs.h, inputs.w, inputs.theta, inputs.word_of_sense, inputs.target)
    wide = [value.detach().double().requires_grad_() for value in (*given[:3], inputs.words)]
    exact = replace(inputs, h=wide[0], w=wide[1], theta=wide[2], words=wide[3])
    for smoothing in (0.0, 0.1):
        nll = partial(kerbs_nll, *given, label_smoothing=smoothing)
        loss = nll()
        right = naive_losses(exact, smoothing)
        with torch.no_grad():
            each = nll(reduction="none")
        ours = [loss, each, *torch.autograd.grad(loss, given[:3])]
        truth = [right.sum(), right, *torch.autograd.grad(right.sum(), wide[:3])]
        yield from zip(map(distance, ours, truth), ("loss", "losses", "dh", "dW", "dθ"))
