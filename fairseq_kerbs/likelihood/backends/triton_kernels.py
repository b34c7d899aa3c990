"""The passes over one chunk of products in Triton; :mod:`.backends.triton` launches them.

X is [senses, tokens] with contiguous rows. A program holds a tile of rows × columns: it takes one
block of tokens (first axis of the grid) through its share of the senses, or words (second axis).
What is summed over senses stays in registers, one running value for each cell of the tile, and
leaves as one row a share, [shares, tokens]. What is summed over tokens leaves as one row a block of
tokens, [blocks, senses]. torch adds those rows up: nothing is atomic, so every run gives the same
bits.

Elementary functions are written out with +, ·, / and bits, as in ``csrc/passes_body.h``: accurate
for tiny arguments, where the hardware's own e^x is not, and the same in Triton's interpreter.

Arguments of all kernels, where they have them:
    x: products, [senses, tokens], float32 or bfloat16.
    h_norm: norms of the context vectors, [tokens].
    largest: the largest logit, [tokens].
    senses: 1/|w|, −θ, radius, gain and 1 for curved senses, [5, senses]; None for inner products.
    table, count: senses of every word [words, width], and how many [words], int64.
    share: senses or words of one program, a multiple of ROWS.
    KERBS: the KerBS kernel, or else the inner product.
    ROWS, TOKENS: the tile.
"""

from __future__ import annotations

from typing import TypeAlias

import triton
import triton.language as tl

T: TypeAlias = tl.tensor  # a block of values, one value, or pointers

LOWEST = tl.constexpr(-3.4028234e38)  # a running maximum of nothing; −∞ − (−∞) would be NaN

LOG2_E = tl.constexpr(1.44269504088896341)
LN2 = tl.constexpr(0.693147180559945309)
LN2_HIGH = tl.constexpr(0.693359375)  # few bits, so that its multiples are exact
LN2_LOW = tl.constexpr(-2.12194440054690583e-4)
ROUNDER = tl.constexpr(12582912.0)  # 1.5·2^23: adding it rounds to whole numbers, the lowest bits
ONE_BITS = tl.constexpr(0x3F800000)
EXP_LOWEST = tl.constexpr(-88.0)  # rounds to the 127th power of ½, whose bits are those of 0
SQRT_HALF_BITS = tl.constexpr(0x3F3504F3)
MANTISSA_BITS = tl.constexpr(0x007FFFFF)

# ------------------------------------------------------------------------ elementary functions


@triton.jit
def _split_exp(x: T) -> tuple[T, T]:
    """2^k and e^r − 1 with x = k ln 2 + r, |r| ≤ ln 2/2, for |x| ≤ 88; relative error 2.5e-8."""
    shifted = x * LOG2_E + ROUNDER
    k = shifted - ROUNDER
    power = ((shifted.to(tl.int32, bitcast=True) << 23) + ONE_BITS).to(tl.float32, bitcast=True)
    r = (x - k * LN2_HIGH) - k * LN2_LOW
    tail = 0.04166655376 + r * (0.008363292753 + r * 0.001392632562)
    return power, r + r * r * (0.5 + r * (0.1666657631 + r * tail))


@triton.jit
def _expm1(x: T) -> T:
    """e^x − 1 with a relative error of a few units in the last place, for |x| ≤ 87."""
    power, reduced = _split_exp(x)
    return power * reduced + (power - 1.0)


@triton.jit
def _exp(x: T) -> T:
    """e^x for x ≤ 0 (up to 87); below the normal range of float32 it is 0. NaN stays NaN."""
    power, reduced = _split_exp(tl.where(x < EXP_LOWEST, EXP_LOWEST, x))
    return power * reduced + power


@triton.jit
def _log(x: T) -> T:
    """ln x for normal x > 0, by 2 artanh((m − 1)/(m + 1)) of its mantissa m in [√½, √2)."""
    bits = x.to(tl.int32, bitcast=True) - SQRT_HALF_BITS
    mantissa = ((bits & MANTISSA_BITS) + SQRT_HALF_BITS).to(tl.float32, bitcast=True)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    q = s * s
    series = s * (2.0 + q * (2.0 / 3 + q * (2.0 / 5 + q * (2.0 / 7 + q * (2.0 / 9)))))
    return (bits >> 23).to(tl.float32) * LN2 + series


@triton.jit
def _bent(z: T) -> T:
    """r(z) = (z e^z − (e^z − 1))/z² for |z| ≤ 1: the polynomial of csrc/passes.c."""
    high = 0.006941279401 + z * (0.001190157391 + z * (0.0001786452495 + z * 2.255325601e-5))
    low = 0.1250006353 + z * (0.0333333973 + z * high)
    return 0.4999999801 + z * (0.3333333313 + z * low)


@triton.jit
def _take_in(most: T, total: T, s: T, weight: T) -> tuple[T, T]:
    """Running maximum and sum of exponentials relative to it take in ``weight``·e^s."""
    larger = s > most
    fade = _exp(-tl.abs(s - most))
    total = tl.where(larger, total * fade + weight, total + weight * fade)
    return tl.where(larger, s, most), total


# ------------------------------------------------------------------------ one tile


@triton.jit
def _logits(
    x: T, rows: T, valid: T, h_norm: T, senses: T, size: T, KERBS: tl.constexpr,
) -> tuple[T, T, T]:  # fmt: skip
    """Logits s of a tile x with senses ``rows`` (−∞ where not ``valid``), E = e^{−θc} − 1 and c."""
    s, e, cosine = x, x, x
    if KERBS:
        inverse = tl.load(senses + rows, mask=valid, other=0.0)
        minus_theta = tl.load(senses + size + rows, mask=valid, other=0.0)
        radius = tl.load(senses + 2 * size + rows, mask=valid, other=0.0)
        cosine = inverse[:, None] * x
        e = _expm1(minus_theta[:, None] * cosine)
        s = (radius[:, None] * e) * h_norm[None, :]
    return tl.where(valid[:, None], s, float("-inf")), e, cosine


@triton.jit
def _words(
    x: T, columns: T, tokens: T, table: T, count: T, start: T, words: T, width: T, h_norm: T,
    senses: T, size: T, KERBS: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr,
) -> tuple[T, T, T, T, T]:  # fmt: skip
    """Words from ``start`` on: their numbers, pointers to their first senses, how many these are
    (0 for no word), [ROWS] each; their largest logits and the sums of exponentials by these."""
    numbers = start + tl.arange(0, ROWS)
    counts = tl.load(count + numbers, mask=numbers < words, other=0)
    own = table + numbers.to(tl.int64) * width
    most = tl.full([ROWS, TOKENS], LOWEST, tl.float32)
    total = tl.zeros([ROWS, TOKENS], tl.float32)
    for k in range(tl.max(counts, axis=0)):
        valid = k < counts
        rows = tl.load(own + k, mask=valid, other=0)
        at = x + rows[:, None] * tokens + columns[None, :]
        mask = valid[:, None] & (columns < tokens)[None, :]
        value = tl.load(at, mask=mask, other=0.0).to(tl.float32)
        s, _, _ = _logits(value, rows, valid, h_norm, senses, size, KERBS)
        most, total = _take_in(most, total, s, 1.0)
    return numbers, own, counts, most, total


@triton.jit
def _carry_back(
    at: T, mask: T, grad: T, e: T, cosine: T, rows: T, valid: T, h_norm: T, senses: T, size: T,
    along_h: T, weighted: T, bent: T, KERBS: tl.constexpr,
) -> T:  # fmt: skip
    """Write P = G·∂s/∂x over the products ``at``, and Σ|h|GE, Σ|h|G c² r(z) over these tokens; add
    Σ G s/|h| over these senses to ``along_h``, cell by cell."""
    p = grad
    if KERBS:
        minus_theta = tl.load(senses + size + rows, mask=valid, other=0.0)
        radius = tl.load(senses + 2 * size + rows, mask=valid, other=0.0)
        gain = tl.load(senses + 3 * size + rows, mask=valid, other=0.0)
        curved = tl.load(senses + 4 * size + rows, mask=valid, other=0.0)
        grad_e = grad * e
        along_h += radius[:, None] * grad_e
        tl.store(weighted + rows, tl.sum(grad_e * h_norm[None, :], axis=1), mask=valid)
        square = (grad * h_norm[None, :]) * (cosine * cosine)
        by_theta = tl.sum(square * _bent(minus_theta[:, None] * cosine), axis=1)
        tl.store(bent + rows, tl.where(curved > 0.0, by_theta, 0.0), mask=valid)
        p = gain[:, None] * (grad + grad_e)
    tl.store(at, p.to(at.dtype.element_ty), mask=mask)
    return along_h


# ------------------------------------------------------------------------ the passes


@triton.jit
def _tokens(h_norm: T, tokens: T, share: T, TOKENS: tl.constexpr) -> tuple[T, T, T, T, T]:
    """A program's tokens, whether each is one, their norms, its first row, and where it writes."""
    columns = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    inside = columns < tokens
    norms = tl.load(h_norm + columns, mask=inside, other=0.0)
    at = tl.program_id(1).to(tl.int64) * tokens + columns
    return columns, inside, norms, tl.program_id(1) * share, at


@triton.jit
def _store_level(most: T, total: T, peaks: T, sums: T, mask: T) -> None:
    """What all rows of a tile have taken in, as one row."""
    peak = tl.max(most, axis=0)
    tl.store(peaks, peak, mask=mask)
    tl.store(sums, tl.sum(total * _exp(most - peak[None, :]), axis=0), mask=mask)


@triton.jit(do_not_specialize=["size", "share"])
def forward(
    x: T, h_norm: T, senses: T, peaks: T, sums: T, size: T, tokens: T, share: T,
    KERBS: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr,
) -> None:  # fmt: skip
    """Largest logit and sum of exponentials by it: ``peaks`` and ``sums``, [shares, tokens]."""
    columns, inside, norms, first, out = _tokens(h_norm, tokens, share, TOKENS)
    most = tl.full([ROWS, TOKENS], LOWEST, tl.float32)
    total = tl.zeros([ROWS, TOKENS], tl.float32)
    for start in range(first, tl.minimum(first + share, size), ROWS):
        rows = start + tl.arange(0, ROWS)
        valid = rows < size
        at = x + rows.to(tl.int64)[:, None] * tokens + columns[None, :]
        value = tl.load(at, mask=valid[:, None] & inside[None, :], other=0.0).to(tl.float32)
        s, _, _ = _logits(value, rows, valid, norms, senses, size, KERBS)
        most, total = _take_in(most, total, s, 1.0)
    _store_level(most, total, peaks + out, sums + out, inside)


@triton.jit(do_not_specialize=["size", "words", "share"])
def forward_words(
    x: T, h_norm: T, senses: T, table: T, count: T, peaks: T, sums: T, levels: T, size: T, words: T,
    width: T, tokens: T, share: T, KERBS: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr,
) -> None:  # fmt: skip
    """As ``forward``, with Σ logsumexp of the words, ``levels`` [shares, tokens] in float64."""
    columns, inside, norms, first, out = _tokens(h_norm, tokens, share, TOKENS)
    most = tl.full([ROWS, TOKENS], LOWEST, tl.float32)
    total = tl.zeros([ROWS, TOKENS], tl.float32)
    sum_high = tl.zeros([ROWS, TOKENS], tl.float32)
    sum_low = tl.zeros([ROWS, TOKENS], tl.float32)
    for start in range(first, tl.minimum(first + share, words), ROWS):
        numbers, _own, _counts, peak, weight = _words(
            x, columns, tokens, table, count, start, words, width, norms, senses, size,
            KERBS, ROWS, TOKENS,
        )  # fmt: skip
        most, total = _take_in(most, total, peak, weight)
        level = tl.where((numbers < words)[:, None], peak + _log(weight), 0.0)
        # what rounding takes from the sum is summed beside it, as float64 is slow on many devices
        grown = sum_high + level
        part = grown - sum_high
        sum_low += (sum_high - (grown - part)) + (level - part)
        sum_high = grown
    _store_level(most, total, peaks + out, sums + out, inside)
    level = tl.sum(sum_high.to(tl.float64) + sum_low.to(tl.float64), axis=0)
    tl.store(levels + out, level, mask=inside)


@triton.jit(do_not_specialize=["size", "words", "share"])
def backward(
    x: T, h_norm: T, largest: T, all_weight: T, uniform_weight: T, target_weight: T, target: T,
    senses: T, table: T, count: T, along_h: T, weighted: T, bent: T, size: T, words: T, width: T,
    tokens: T, share: T, KERBS: tl.constexpr, ROWS: tl.constexpr, TOKENS: tl.constexpr,
) -> None:  # fmt: skip
    """P over x, for G = all·e^{s − largest} − (uniform + target·1[L(m)=y])·P(m | its word).

    The weights are [tokens], as is ``target``, which holds the y, int64. Sums: ``along_h``
    [shares, tokens], the other two [blocks, senses].
    """
    columns, inside, norms, first, out = _tokens(h_norm, tokens, share, TOKENS)
    tops = tl.load(largest + columns, mask=inside, other=0.0)
    all_weights = tl.load(all_weight + columns, mask=inside, other=0.0)
    uniform_weights = tl.load(uniform_weight + columns, mask=inside, other=0.0)
    target_weights = tl.load(target_weight + columns, mask=inside, other=0.0)
    targets = tl.load(target + columns, mask=inside, other=-1)
    block = tl.program_id(0).to(tl.int64) * size
    along = tl.zeros([ROWS, TOKENS], tl.float32)
    for start in range(first, tl.minimum(first + share, words), ROWS):
        numbers, own, counts, peak, total = _words(
            x, columns, tokens, table, count, start, words, width, norms, senses, size,
            KERBS, ROWS, TOKENS,
        )  # fmt: skip
        inner = uniform_weights[None, :]
        is_target = targets[None, :] == numbers[:, None]
        inner = tl.where(is_target, inner + target_weights[None, :], inner)
        # G of a sense is this times e^{s − peak}
        factor = all_weights[None, :] * _exp(peak - tops[None, :]) - inner / total
        tl.debug_barrier()  # no thread may write over products that another has yet to read
        for k in range(tl.max(counts, axis=0)):
            valid = k < counts
            rows = tl.load(own + k, mask=valid, other=0)
            mask = valid[:, None] & inside[None, :]
            at = x + rows[:, None] * tokens + columns[None, :]
            value = tl.load(at, mask=mask, other=0.0).to(tl.float32)
            s, e, cosine = _logits(value, rows, valid, norms, senses, size, KERBS)
            grad = tl.where(mask, _exp(s - peak) * factor, 0.0)
            along = _carry_back(
                at, mask, grad, e, cosine, rows, valid, norms, senses, size,
                along, weighted + block, bent + block, KERBS,
            )  # fmt: skip
    if KERBS:
        tl.store(along_h + out, tl.sum(along, axis=0), mask=inside)


@triton.jit(do_not_specialize=["size", "words", "share", "stride"])
def log_probs(
    x: T, h_norm: T, normalizer: T, senses: T, table: T, count: T, result: T, size: T, words: T,
    width: T, tokens: T, stride: T, share: T, KERBS: tl.constexpr, ROWS: tl.constexpr,
    TOKENS: tl.constexpr,
) -> None:  # fmt: skip
    """Log-probabilities of the words into ``result`` [tokens, words], rows ``stride`` apart."""
    columns, inside, norms, first, _out = _tokens(h_norm, tokens, share, TOKENS)
    levels = tl.load(normalizer + columns, mask=inside, other=0.0)
    for start in range(first, tl.minimum(first + share, words), ROWS):
        numbers, _own, _counts, peak, total = _words(
            x, columns, tokens, table, count, start, words, width, norms, senses, size,
            KERBS, ROWS, TOKENS,
        )  # fmt: skip
        at = result + columns.to(tl.int64)[None, :] * stride + numbers[:, None]
        level = peak + _log(total) - levels[None, :]
        tl.store(at, level, mask=(numbers < words)[:, None] & inside[None, :])
