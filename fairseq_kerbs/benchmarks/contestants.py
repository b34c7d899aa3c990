"""What is compared, and on what: random inputs, ways to compute the loss, flags of whole models."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_kerbs.likelihood import kerbs_nll
from fairseq_kerbs.senses import SenseTable, build_sense_table, random_allocation

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
PAD = 1  # fairseq's
SPECIALS = 4  # fairseq's <s>, <pad>, </s>, <unk>
FRESH_STD, TRAINED_STD = 0.1, 1.5  # deviation of θ
SMOOTHING = 0.1
SMALLEST_THETA = 1e-4


@dataclass(frozen=True)
class Inputs:
    """What the contestants are given; the first five tensors take gradients."""

    h: Tensor  # context vectors, [N, d], normal (as after a layer norm)
    w: Tensor  # sense embeddings, [M, d], normal with deviation d^−½
    words: Tensor  # word embeddings of the plain softmax, [V, d]; the first V rows of ``w``
    theta: Tensor  # θ early in training, [M]
    trained_theta: Tensor  # θ as training may leave it, [M]
    no_theta: Tensor  # zeros, [V], for the kernel that has no θ
    allocation: Tensor  # word of each sense, [M]
    table: SenseTable  # senses of every word
    word_table: SenseTable  # the same for one sense a word
    target: Tensor  # target words, [N]; frequencies fall as 1/rank

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


# ------------------------------------------------------------------ losses: sums of −log P(target)


def kerbs(inputs: Inputs, smoothing: float = 0.0, trained: bool = False) -> Tensor:
    """KerBS by :func:`fairseq_kerbs.likelihood.kerbs_nll`."""
    theta = inputs.trained_theta if trained else inputs.theta
    return kerbs_nll(
        *(inputs.h, inputs.w, theta, inputs.allocation, inputs.target),
        ignore_index=PAD,
        label_smoothing=smoothing,
        table=inputs.table,
    )


def lean_softmax(inputs: Inputs, smoothing: float = 0.0) -> Tensor:
    """A plain softmax over words on the code path of KerBS: inner product, one sense a word."""
    word_of_sense = inputs.word_table.senses[:, 0]
    return kerbs_nll(
        *(inputs.h, inputs.words, inputs.no_theta, word_of_sense, inputs.target),
        ignore_index=PAD,
        label_smoothing=smoothing,
        kernel="lin",
        table=inputs.word_table,
    )


def naive_kerbs(inputs: Inputs) -> Tensor:
    """KerBS as one would write it down, Eq. 9, 5 and 4, with autograd for the gradients.

        s = |h||w| a(θ)(e^{−θc} − 1),  a(θ) = −θ/(2(e^{−θ} + θ − 1)),  c = cos(h, w)

    Written so that few passes over tokens × senses are needed. The formula is 0/0 at θ = 0; where
    |θ| < 1e-4 it is evaluated at ±1e-4 (the logit changes by less than 1e-4 |h||w|).
    """
    h, w, theta = inputs.h, inputs.w, inputs.theta
    least = torch.copysign(torch.full_like(theta, SMALLEST_THETA), theta)
    nudged = torch.where(theta.abs() < SMALLEST_THETA, least, theta)
    theta = (theta + (nudged - theta).detach()).double()  # the gradient goes to θ
    scale = (-theta / (2.0 * (torch.expm1(-theta) + theta))).float()  # a(θ), [M]
    cosine = (F.normalize(h, dim=1) @ F.normalize(w, dim=1).t()).float()  # [N, M]
    h_norm = h.float().norm(dim=1, keepdim=True)  # [N, 1]
    w_norm = w.float().norm(dim=1)  # [M]
    logits = h_norm * ((w_norm * scale) * torch.expm1(-theta.float() * cosine))
    senses = logits.softmax(1)
    word_of_sense = inputs.allocation.expand(len(h), -1)
    words = senses.new_zeros(len(h), len(inputs.words)).scatter_add(1, word_of_sense, senses)
    return -words.gather(1, inputs.target.unsqueeze(1)).log().sum()


def stock_softmax(inputs: Inputs, smoothing: float = 0.0) -> Tensor:
    """fairseq's output projection with its ``cross_entropy``, or its label-smoothed criterion."""
    from fairseq import utils
    from fairseq.criterions.cross_entropy import CrossEntropyCriterion
    from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterion

    task = SimpleNamespace(target_dictionary=SimpleNamespace(pad=lambda: PAD))
    criterion = (
        LabelSmoothedCrossEntropyCriterion(task, False, smoothing)
        if smoothing
        else CrossEntropyCriterion(task, False)
    )
    # as much of a fairseq model as its criterions ask for
    model = SimpleNamespace(
        get_normalized_probs=lambda output, log_probs: utils.log_softmax(output[0], dim=-1),
        get_targets=lambda sample, output: sample["target"],
    )
    sample = {"target": inputs.target}
    result: Tensor = criterion.compute_loss(model, (F.linear(inputs.h, inputs.words),), sample)[0]
    return result


class Contestant(NamedTuple):
    """A way to compute the loss and, by autograd, its gradients."""

    label: str  # one line that says what it is
    loss: Callable[[Inputs], Tensor]  # from inputs, which are leaves, to the sum, []
    senses: bool = True  # works on the M senses; else on the V words
    # tensors of tokens × senses (or words) in float32 that it holds at its peak, roughly: where
    # memory is short it is left out
    temporaries: float = 0.0


CONTESTANTS: dict[str, Contestant] = {
    "kerbs": Contestant("kerbs_nll, θ of deviation 0.1", kerbs),
    "kerbs-trained": Contestant("kerbs_nll, θ of deviation 1.5", partial(kerbs, trained=True)),
    "kerbs-smoothed": Contestant("kerbs_nll, label smoothing 0.1", partial(kerbs, smoothing=0.1)),
    "naive": Contestant("KerBS as written, by autograd", naive_kerbs, True, 6.5),
    "stock": Contestant("fairseq's cross_entropy", stock_softmax, False, 3),
    "stock-smoothed": Contestant(
        "fairseq's label_smoothed_cross_entropy, 0.1",
        *(partial(stock_softmax, smoothing=0.1), False, 3),
    ),
    "lean": Contestant("softmax by kerbs_nll, inner product", lean_softmax, False),
    "lean-smoothed": Contestant(
        "softmax by kerbs_nll, label smoothing 0.1", partial(lean_softmax, smoothing=0.1), False
    ),
}
"""All but the bare products, which compute no loss."""


def ratios(text: str) -> tuple[tuple[str, str], ...]:
    """Pairs of contestants, written as "of/over"."""
    return tuple((of, over) for of, _, over in (pair.partition("/") for pair in text.split()))


PRODUCTS = "products"
LIKELIHOOD_NAMES = (PRODUCTS, *CONTESTANTS)
LIKELIHOOD_RATIOS = ratios(
    "kerbs/products kerbs-trained/products kerbs-smoothed/products kerbs/naive kerbs/stock "
    "kerbs-smoothed/stock-smoothed kerbs/lean kerbs-smoothed/lean-smoothed lean/stock "
    "lean-smoothed/stock-smoothed kerbs-trained/kerbs kerbs-smoothed/kerbs lean-smoothed/lean "
    "stock-smoothed/stock"
)

# ------------------------------------------------------------------ whole models

SMOOTHED = "-smoothed"
MODELS: dict[str, str] = {
    "stock": "--share-decoder-input-output-embed",
    "softmax": "--output-layer softmax",
    "kerbs-prior": "--composition-passes 0",
    "kerbs": "--composition-passes 1",
    "kerbs-sequential": "--composition-passes -1",
}
"""Flags of each model: of fairseq's ``transformer`` for "stock", else of ``transformer_kerbs``."""

STEP_NAMES = tuple(  # kerbs-sequential is to decode
    model + suffix for suffix in ("", SMOOTHED) for model in MODELS if model != "kerbs-sequential"
)
DECODE_NAMES = tuple(MODELS)
MODEL_RATIOS = ratios(
    "kerbs/stock kerbs/softmax kerbs-sequential/stock kerbs-sequential/softmax kerbs-prior/stock "
    "kerbs-prior/softmax softmax/stock kerbs/kerbs-prior"
)
MODEL_RATIOS += tuple((of + SMOOTHED, over + SMOOTHED) for of, over in MODEL_RATIOS)
LIKE_FOR_LIKE = (
    "like for like: the ratios over softmax, our own code with one sense a word; stock is "
    "fairseq's code, so that the ratios over it also count what our code saves"
)
