"""Losses of tokens and the gradients of their sum, chunk by chunk.

The gradient of a chunk needs only its logits, so it is added to dh, dW and dθ before the next chunk
begins. This takes three matrix products: logits, dh and dW. A chunk of n tokens goes through these
steps (:meth:`_Chunks.run`):

    x           products h·w, [M, n]
    logits      s = K(x, |h|, |w|, θ), [M, n]
    lse         logsumexp over all senses, [n]
    target      the logits of the target's senses and their logsumexp
    words       logsumexp over the senses of each word, [V, n], with label smoothing only
    loss        from these three
    gradients   G by the logits, G·∂s/∂x by the products, then dh and dW by products of these
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_kerbs.kernels import Kernel, safe_norm
from fairseq_kerbs.kernels.prepared import PreparedSenses, multiply, widen, writes_products
from fairseq_kerbs.likelihood import compilation, passes
from fairseq_kerbs.likelihood.logsumexp import LogSumExp, logsumexp
from fairseq_kerbs.likelihood.norms import LossWeights, TargetGradient, WordLogits, norm_rule
from fairseq_kerbs.likelihood.passes import LogitGradient, WordSmoothing
from fairseq_kerbs.senses import SenseTable
from fairseq_kerbs.torch_compat import assert_later

STEP = 32  # chunk sizes are multiples of it, which aligns rows of X with a CPU's vectors
CPU_TOKENS = 256  # maximum size of a chunk on a CPU
CPU_BYTES = 128 << 20  # maximum size of X on a CPU
GPU_SHARE_EAGER = 96  # logits take 1/96 of a GPU's memory in eager mode
GPU_SHARE_COMPILED = 16  # logits take 1/16 of a GPU's memory if passes are compiled
BLOCK = 1 << 18  # products per operation in eager mode

_LAST = (-1,)
_AXES_OF_GRADIENTS = (
    # of the kernel
    _LAST,  # x
    _LAST,  # |h|
    _LAST,  # |w|
    _LAST,  # θ
    # of the gradient by logits
    _LAST,  # lse
    _LAST,  # weight
    # of smoothing
    _LAST,  # weight
    _LAST,  # alone
    _LAST,  # rows
    (0, -1),  # word logits, with a row for each word that has several senses
    _LAST,  # logits
)
"""Axes whose sizes change between calls of :func:`.passes.write_gradients` with smoothing, by
tensor (:func:`.compilation.call`)."""


class LossInputs(NamedTuple):
    """Tensors that a loss is computed from."""

    h: Tensor  # context vectors, [N, d]
    w: Tensor  # sense embeddings, [M, d]
    theta: Tensor  # kernel parameters, [M]
    table: SenseTable  # senses of each word
    target: Tensor  # target words, [N]
    weight: Tensor
    """Weight of each token, [N] in the compute dtype. Gradients are those of Σ weight·loss. The
    losses themselves are not multiplied by it, but are 0 where it is 0."""


class Smoothing(NamedTuple):
    """Weights of the parts of a token's loss, see :class:`.nll.NllOptions`."""

    nll: float  # of −log P(target)
    word: float  # of −log P of each word. 0 is no label smoothing


@dataclass(frozen=True)
class LossSettings:
    """How a loss is computed."""

    kernel: Kernel  # bound to d
    products: torch.dtype  # dtype of the matrix products
    smoothing: Smoothing
    compile: bool = True  # allow torch.compile


class TokenLosses(NamedTuple):
    """Results for each token in the compute dtype, 0 for tokens of weight 0."""

    loss: Tensor  # [N]
    nll: Tensor  # without label smoothing, [N]
    sense_prob: Tensor  # P(s_t = m) of the senses of the target (Eq. 5), [N, K]


class InputGradients(NamedTuple):
    """Gradients of Σ weight·loss, in the compute dtype."""

    h: Tensor  # [N, d]
    w: Tensor  # [M, d]
    theta: Tensor  # [M]


def check_words(target: Tensor, vocab_size: int) -> None:
    """Raise a ValueError if a target is outside the vocabulary. On a GPU, an assertion fails."""
    valid = (target >= 0) & (target < vocab_size)
    if target.is_cuda:  # reading the result here would synchronize with the GPU
        assert_later(valid.all(), "a target is outside the vocabulary")
    elif not bool(valid.all()):
        raise ValueError(f"`target` holds {int(target[~valid][0])}, not one of {vocab_size} words.")


def row_blocks(values: Tensor, whole: bool = False) -> list[slice]:
    """Blocks of rows of a matrix [m, n] that fit into a CPU's cache, or one block of all rows."""
    count, columns = values.shape
    size = BLOCK // max(1, columns)
    if whole or values.is_cuda:
        size = count
    size = max(1, size)
    return [slice(start, start + size) for start in range(0, count, size)]


def chunk_size(tokens: int, w: Tensor, compiled: bool, cpu_tokens: int = CPU_TOKENS) -> int:
    """Number of tokens in a chunk, a multiple of :data:`STEP`.

    Chunks are as equal as possible. Those on a GPU are large, as each updates all of dW.
    """
    row = max(4, w.element_size()) * max(1, len(w))  # bytes per token, in float32 or float64
    most = min(cpu_tokens, CPU_BYTES // row)
    if w.is_cuda:
        memory = torch.cuda.get_device_properties(w.device).total_memory
        share = GPU_SHARE_COMPILED if compiled else GPU_SHARE_EAGER
        most = memory // share // row
    most = max(STEP, most // STEP * STEP)
    count = max(1, math.ceil(tokens / most))
    return max(STEP, math.ceil(tokens / count / STEP) * STEP)


def compute_losses(
    inputs: LossInputs, settings: LossSettings, gradients: bool
) -> tuple[TokenLosses, InputGradients | None]:
    """Losses of all tokens and, if they are wanted, the gradients of Σ weight·loss.

    Raises:
        ValueError: a target is outside the vocabulary.
    """
    check_words(inputs.target, len(inputs.table.senses))
    with torch.no_grad(), torch.autocast(inputs.h.device.type, enabled=False):
        counted = inputs.weight.ne(0.0)
        if inputs.h.is_cuda or bool(counted.all()):  # a GPU would have to wait for the answer
            return _losses_of(inputs, settings, gradients)
        rows = counted.nonzero().squeeze(1)
        if not len(rows):  # one token of weight 0, as compiled passes treat a size of 0 apart
            rows = rows.new_zeros(1)
        some = inputs._replace(
            h=inputs.h[rows], target=inputs.target[rows], weight=inputs.weight[rows]
        )
        losses, by_inputs = _losses_of(some, settings, gradients)
        count = len(counted)
        losses = TokenLosses(*(_in_rows(values, rows, count) for values in losses))
        if by_inputs is not None:
            by_inputs = by_inputs._replace(h=_in_rows(by_inputs.h, rows, count))
        return losses, by_inputs


def _in_rows(values: Tensor, rows: Tensor, count: int) -> Tensor:
    """Values [n, ...] in the given rows [n] of a tensor with ``count`` rows, 0 elsewhere."""
    return values.new_zeros(count, *values.shape[1:]).index_copy_(0, rows, values)


def _losses_of(
    inputs: LossInputs, settings: LossSettings, gradients: bool
) -> tuple[TokenLosses, InputGradients | None]:
    """:func:`compute_losses` with all tokens, also those of weight 0."""
    chunks = _Chunks(inputs, settings, gradients)
    results = [chunks.run(tokens) for tokens in chunks.tokens(inputs)]
    losses = TokenLosses(
        loss=torch.cat([result.losses.loss for result in results]),
        nll=torch.cat([result.losses.nll for result in results]),
        sense_prob=torch.cat([result.losses.sense_prob for result in results]),
    )
    for values in losses:
        values[inputs.weight == 0.0] = 0.0
    if not gradients:
        return losses, None
    grad_h = torch.cat([result.grad_h for result in results if result.grad_h is not None])
    return losses, InputGradients(grad_h, chunks.grad_w_with_norms(inputs.w), chunks.grad_theta)


class _Tokens(NamedTuple):
    """The tokens of a chunk."""

    h: Tensor  # context vectors, [n, d]
    mapped: Tensor  # A h of Kernel.map_contexts() in the dtype of products, [n, d]
    h_norm: Tensor  # |h|, [n]
    target: Tensor  # [n]
    weight: Tensor  # [n]

    def split(self, size: int) -> Iterator[_Tokens]:
        """Chunks of ``size`` tokens."""
        parts = (values.split(size) for values in self)
        return (_Tokens(*chunk) for chunk in zip(*parts))

    def padded(self, size: int) -> _Tokens:
        """The same with norms, targets and weights padded to ``size`` by tokens of weight 0."""
        padding = (0, size - len(self.h))
        return self._replace(
            h_norm=F.pad(self.h_norm, padding),
            target=F.pad(self.target, padding),
            weight=F.pad(self.weight, padding),
        )


class _Targets(NamedTuple):
    """The senses of the targets, K for each of n tokens."""

    senses: Tensor  # their numbers, [K, n]. Padding repeats a word's first sense
    padding: Tensor  # True at padding, [K, n]
    logits: Tensor  # [K, n]
    lse: Tensor  # logsumexp over them, [n]

    def probabilities(self, lse: Tensor) -> Tensor:
        """P(s_t = m) of Eq. 5, [n, K], given the logsumexp over all senses [n]. 0 at padding."""
        # by rounding errors alone, a probability could exceed 1
        probabilities = (self.logits - lse).exp().clamp_max(1.0)
        return probabilities.masked_fill(self.padding, 0.0).t()

    def posteriors(self) -> Tensor:
        """P(s_t = m | y), [K, n]. Padding has that of the word's first sense."""
        return torch.exp((self.logits - self.lse).clamp_max(0.0))


class _Scores(NamedTuple):
    """What a chunk's loss is computed from."""

    x: Tensor  # products, [M, n]
    logits: Tensor  # [M, n]
    log_sum: LogSumExp  # over all senses
    target: _Targets
    words: WordLogits | None  # None without label smoothing


class _ChunkResult(NamedTuple):
    """Results of a chunk that belong to its tokens."""

    losses: TokenLosses
    grad_h: Tensor | None  # [n, d]. None if no gradients are wanted


class _Buffers(NamedTuple):
    """Memory that all chunks reuse, as the first access to new memory is slow on a CPU."""

    x: Tensor
    logits: Tensor
    word_logits: Tensor  # empty if nothing needs it
    word_means: Tensor  # of the same size


class _PolysemousWords(NamedTuple):
    """The S words with several senses, for label smoothing."""

    senses: Tensor  # their rows in the table, [S, K]. A single word is there twice
    mask: Tensor  # [S, K]
    number: int  # S, without the repetition
    single_senses: Tensor  # numbers of the senses of other words, [V − S]
    is_single: Tensor  # whether a sense is the only one of its word, [M, 1]
    row_of_sense: Tensor  # row of the word of each sense among the S, 0 for single ones, [M]

    @classmethod
    def of(cls, table: SenseTable) -> _PolysemousWords:
        """Find the words in a table of senses, of which one has several senses at least.

        A GPU would have to wait for their number, so there all words count as such.
        """
        if table.mask.is_cuda:
            return cls(
                senses=table.senses,
                mask=table.mask,
                number=len(table.senses),
                single_senses=table.words[:0],
                is_single=torch.zeros_like(table.words, dtype=torch.bool).unsqueeze(1),
                row_of_sense=table.words,
            )
        has_several = table.mask[:, 1]
        words = has_several.nonzero().squeeze(1)
        number = len(words)
        if number == 1:  # torch.compile treats a size of 1 apart
            words = words.repeat(2)
        is_single = ~has_several[table.words]
        rows = torch.zeros_like(table.senses[:, 0])
        rows[words[:number]] = torch.arange(number, device=words.device)
        return cls(
            senses=table.senses[words],
            mask=table.mask[words],
            number=number,
            single_senses=is_single.nonzero().squeeze(1),
            is_single=is_single.unsqueeze(1),
            row_of_sense=rows[table.words],
        )


class _Chunks:
    """Losses of chunks of tokens, and sums of gradients over the chunks."""

    def __init__(self, inputs: LossInputs, settings: LossSettings, gradients: bool) -> None:
        w = inputs.w
        self.table = inputs.table
        self.smoothing = settings.smoothing
        self.senses = PreparedSenses.of(
            inputs.h, w, inputs.theta, settings.kernel, settings.products
        )
        self.rule = norm_rule(settings.kernel)
        self.with_gradients = gradients
        pays = compilation.worthwhile(len(w), len(self.table.senses))
        self.compiled = settings.compile and gradients and pays
        self.size = chunk_size(len(inputs.h), w, self.compiled)
        sums_by_word = settings.smoothing.word > 0 and len(self.table.senses) < len(w)
        self.several = _PolysemousWords.of(self.table) if sums_by_word else None
        self.buffers = self._allocate()
        # sums over the chunks
        like = self.senses.w_norm  # has the compute dtype
        self.grad_w = like.new_zeros(w.shape if gradients else 0)  # through the products alone
        self.norm_sums = like.new_zeros(len(w) if gradients else 0)  # of the rule, for each sense
        self.grad_theta = like.new_zeros(len(w) if gradients else 0)

    def _allocate(self) -> _Buffers:
        like = self.senses.w_norm  # has the compute dtype
        senses = len(self.table.words)
        words = 0 if self.several is None else len(self.several.senses)

        columns = math.ceil(self.size / STEP) * STEP  # to which run() may pad a chunk

        def matrix(rows: int) -> Tensor:
            return like.new_empty(rows * columns)

        return _Buffers(
            x=matrix(0 if like.is_cuda else senses),
            logits=matrix(senses),
            word_logits=matrix(words),
            word_means=matrix(words),
        )

    def _call(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        axes: Sequence[compilation.Axes] = (),
    ) -> Any:
        """Call a pass, compiled if that is worth while. ``axes``: see :func:`compilation.call`."""
        if self.compiled:
            return compilation.call(function, *arguments, axes=axes)
        return function(*arguments)

    def _blocks(self, matrix: Tensor) -> list[slice]:
        """Blocks of rows for a pass: compiled functions take all rows at once."""
        return row_blocks(matrix, whole=self.compiled)

    def tokens(self, inputs: LossInputs) -> Iterator[_Tokens]:
        """The tokens of each chunk."""
        wide = inputs.h.to(self.senses.w_norm.dtype)
        mapped = self.senses.kernel.map_contexts(wide).to(self.senses.w.dtype)
        h_norm = safe_norm(wide).squeeze(-1)
        tokens = _Tokens(inputs.h, mapped, h_norm, inputs.target, inputs.weight)
        return tokens.split(self.size)

    def run(self, tokens: _Tokens) -> _ChunkResult:
        """Losses of a chunk. Its gradients by w and θ are added to the sums."""
        count = len(tokens.h)
        if self.compiled and not tokens.h.is_cuda:  # for aligned rows, and no size 1
            tokens = tokens.padded(math.ceil(count / STEP) * STEP)
        x = self._products(tokens)
        logits = self._logits(x, tokens.h_norm)
        log_sum = self._log_sum(logits)
        target = self._targets(tokens.target, logits)
        words = self._words(logits) if self.smoothing.word else None
        # by rounding errors alone, a probability could exceed 1
        nll = (log_sum.lse - target.lse).clamp_min(0.0)
        loss = nll
        if words is not None:
            of_all_words = len(self.table.senses) * log_sum.lse - words.total  # Σ_i −log P(word i)
            loss = self.smoothing.nll * nll + self.smoothing.word * of_all_words
        sense_prob = target.probabilities(log_sum.lse)
        losses = TokenLosses(loss[:count], nll[:count], sense_prob[:count])
        if not self.with_gradients:
            return _ChunkResult(losses, None)
        scores = _Scores(x, logits, log_sum, target, words)
        return _ChunkResult(losses, self._add_gradients(tokens, scores))

    def _products(self, tokens: _Tokens) -> Tensor:
        """X = W hᵀ, [M, n]. On a GPU it stays in the dtype of products, and the passes widen it."""
        w = self.senses.w
        if tokens.h.is_cuda:
            return multiply(w, tokens.mapped)
        columns = len(tokens.target)
        x = self.buffers.x[: len(w) * columns].view(len(w), columns)
        products = x[:, : len(tokens.h)]
        if writes_products(w, tokens.mapped, products):
            torch.mm(w, tokens.mapped.t(), out=products)
        else:
            for rows in row_blocks(products):  # a product of all rows would allocate memory
                products[rows] = widen(multiply(w[rows], tokens.mapped), x.dtype)
        x[:, len(tokens.h) :] = 0.0
        return x

    def _logits(self, x: Tensor, h_norm: Tensor) -> Tensor:
        """Logits of all senses, [M, n]."""
        logits = self.buffers.logits[: x.numel()].view_as(x)
        for rows in self._blocks(x):
            self._call(passes.write_logits, self.senses.inputs(x, h_norm, rows), logits[rows])
        return logits

    def _log_sum(self, logits: Tensor) -> LogSumExp:
        """logsumexp over all senses, with the mean logit if the gradients need it."""
        function = self.rule.logsumexp if self.with_gradients else logsumexp
        return _joined([self._call(function, logits[rows]) for rows in self._blocks(logits)])

    def _targets(self, target: Tensor, logits: Tensor) -> _Targets:
        """The senses of target words [n]."""
        senses = self.table.senses[target].t()
        padding = ~self.table.mask[target].t()
        target_logits = logits.gather(0, senses)
        lse = target_logits.masked_fill(padding, -torch.inf).logsumexp(0)
        return _Targets(senses, padding, target_logits, lse)

    def _words(self, logits: Tensor) -> WordLogits:
        """logsumexp over the senses of each word."""
        several = self.several
        if several is None:
            total = logits.sum(0)
            return WordLogits(None, total, total)
        shape = (len(several.senses), logits.shape[1])
        values = self.buffers.word_logits[: shape[0] * shape[1]].view(shape)
        means = self.buffers.word_means[: shape[0] * shape[1]].view(shape)
        for words in self._blocks(values):
            self._call(
                passes.write_word_logits,
                logits,
                several.senses[words],
                several.mask[words],
                values[words],
                means[words],
                axes=((-1,), (0,), (0,), (0, -1), (0, -1)),
            )
        single = logits[several.single_senses].sum(0)
        return WordLogits(
            values,
            total=single + values[: several.number].sum(0),
            total_mean=single + means[: several.number].sum(0),
        )

    def _add_gradients(self, tokens: _Tokens, scores: _Scores) -> Tensor:
        """Add to the gradients by w and θ, and return the gradient by h, [n, d].

        The senses of the targets y are apart from the others, as sums of the parts of
        G_m = a·P(m) − b·P(m | y) − c·P(m | L(m)) would cancel.
        """
        weights = self._loss_weights(tokens.weight)
        target = _target_gradient(scores, weights)
        numbers = scores.target.senses
        at_targets = self.senses.inputs_at(scores.x, tokens.h_norm, numbers).partials()
        token_terms, sense_terms = self.rule.target_terms(target, at_targets)
        # the lowest number says to the pass that G is 0 here
        lowest = torch.full_like(target.logits, torch.finfo(scores.logits.dtype).min)
        scores.logits.scatter_(0, numbers, lowest)
        token_sums = self.rule.known_token_sums(scores.log_sum, weights, scores.words)
        token_sums += self._write_grad_products(tokens, scores, weights)
        token_sums += token_terms.sum(0)
        # index_put_ adds in a fixed order, also on a GPU
        self.norm_sums.index_put_((numbers,), sense_terms, accumulate=True)
        theta_terms = target.grad_without_padding * at_targets.theta
        self.grad_theta.index_put_((numbers,), theta_terms, accumulate=True)
        grad_x = passes.written_over(scores.x, scores.logits)
        grad_x.scatter_(0, numbers, (target.grad_logits * at_targets.x).to(grad_x.dtype))
        return self._add_products(tokens, grad_x, token_sums)

    def _loss_weights(self, weight: Tensor) -> LossWeights:
        """Weights of the logsumexps in weight·loss of each token [n]."""
        nll, word = self.smoothing
        return LossWeights(
            lse=(nll + len(self.table.senses) * word) * weight,
            target=nll * weight,
            word=word * weight,
        )

    def _write_grad_products(
        self, tokens: _Tokens, scores: _Scores, weights: LossWeights
    ) -> Tensor:
        """Overwrite logits or products by the gradient by products, except at the targets' senses.

        Adds to the sums for each sense, and returns the sum for each token, [n].
        """
        token_sums = torch.zeros_like(weights.lse)
        for rows in self._blocks(scores.x):
            smoothing = None
            if scores.words is not None:
                smoothing = self._word_smoothing(rows, scores.words, weights)
            gradient = LogitGradient(scores.log_sum.lse, weights.lse, smoothing)
            inputs = self.senses.inputs(scores.x, tokens.h_norm, rows)
            sums = self._call(
                passes.write_gradients,
                self.rule,
                inputs,
                gradient,
                scores.logits[rows],
                axes=_AXES_OF_GRADIENTS if self.several is not None else (),
            )
            token_sums += sums.h_norm
            self.norm_sums[rows] += sums.w_norm
            self.grad_theta[rows] += sums.theta
        return token_sums

    def _word_smoothing(
        self, rows: slice, words: WordLogits, weights: LossWeights
    ) -> WordSmoothing:
        """What label smoothing adds to the gradient of a block of senses."""
        several = self.several
        if several is None:
            return WordSmoothing(weights.word, None, None, None)
        return WordSmoothing(
            weight=weights.word,
            is_single=several.is_single[rows],
            row_of_sense=several.row_of_sense[rows],
            word_logits=words.values,
        )

    def _add_products(self, tokens: _Tokens, grad_x: Tensor, token_sums: Tensor) -> Tensor:
        """Add P (A h) to the gradient by w, and return the gradient by h from Pᵀ W, [n, d].

        P is the gradient by products, [M, n]. It may have columns of padding.
        """
        count = len(tokens.h)
        w = self.senses.w
        dtype = self.grad_w.dtype
        p = grad_x[:, :count]
        scale = None
        if w.dtype == torch.float16 and p.numel():
            scale = _float16_scale(p, w, tokens.mapped)
            p = p * scale
        p = p.to(w.dtype)
        if scale is None and writes_products(p, tokens.mapped, self.grad_w):
            self.grad_w.addmm_(p, tokens.mapped)
        else:
            for rows in row_blocks(p):  # a product of all rows would allocate memory
                product = multiply(p[rows], tokens.mapped.t()).to(dtype)
                self.grad_w[rows] += product if scale is None else product / scale
        by_mapped = multiply(p.t(), w.t()).to(dtype)
        if scale is not None:
            by_mapped = by_mapped / scale
        product = self.senses.kernel.map_contexts(by_mapped)
        return self.rule.add(product, tokens.h, tokens.h_norm[:count], token_sums[:count])

    def grad_w_with_norms(self, w: Tensor) -> Tensor:
        """Gradient by w of the sum over all chunks, [M, d], after all of them have run."""
        w_norm = self.senses.w_norm.squeeze(1)
        return self.rule.add(self.grad_w, w, w_norm, self.norm_sums)


def _joined(parts: list[LogSumExp]) -> LogSumExp:
    """logsumexp and mean logit over several blocks of senses, from those of each block."""
    by_block = torch.stack([part.lse for part in parts])  # [blocks, n]
    lse = by_block.logsumexp(0)
    means = [part.mean for part in parts if part.mean is not None]
    if not means:
        return LogSumExp(lse, None)
    return LogSumExp(lse, ((by_block - lse).exp() * torch.stack(means)).sum(0))


def _target_gradient(scores: _Scores, weights: LossWeights) -> TargetGradient:
    """Gradient by the logits of the targets' senses."""
    target = scores.target
    posteriors = target.posteriors()
    probabilities = torch.exp(target.logits - scores.log_sum.lse)
    grad_logits = probabilities * weights.lse - posteriors * (weights.word + weights.target)
    return TargetGradient(
        target.logits,
        grad_logits,
        grad_without_padding=grad_logits.masked_fill(target.padding, 0.0),
        through_target=(posteriors * -weights.target).masked_fill(target.padding, 0.0),
    )


def _float16_scale(p: Tensor, w: Tensor, contexts: Tensor) -> Tensor:
    """A scale of P [M, n], whose entries are tiny, at which neither Pᵀ W nor P h overflows."""
    sums = [p.abs().sum(0).amax(), p.abs().sum(1).amax()]
    largest = [w.abs().amax().clamp_min(1.0), contexts.abs().amax().clamp_min(1.0)]
    bounds = [total * factor for total, factor in zip(sums, largest)]
    # if all of P is 0 the scale must be finite, as 0 times infinity is NaN
    return 32768.0 / torch.stack(bounds).amax().clamp_min(1e-30)
