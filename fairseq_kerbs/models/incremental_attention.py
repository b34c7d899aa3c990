"""Attention in step-by-step decoding that does not move what it keeps.

A beam search replaces hypotheses at each step. fairseq's self-attention follows by copying all
keys and values, and copies them again to append those of the step. Here they stay where they were
written, and an index says where each row of the batch has its past: only the index is reordered.
A step reads keys and values through it into one buffer, which serves all layers.

Attention to the source has one row of keys and values for all consecutive hypotheses of one source.

Rows of a batch are ordered by hypothesis, then by *stream*: a decoder may run several inputs for
each hypothesis.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

BEAMS = "fairseq_kerbs.beams"  # key of the index in the incremental state
_CACHE = "appended"  # key of our keys and values
_STOCK_CACHE = "attn_state"  # fairseq's key of them
_FIRST_ROOM = 16  # steps that are allocated at once

IncrementalState = dict[str, Any]
EncoderOut = dict[str, list[Tensor]] | None


class Beams:
    """Where the hypotheses of a decoder have their past, and which of them share a source.

    Attributes:
        group: consecutive hypotheses that have the same source; 1 once a reordering has torn them
            apart.
        streams: inputs for each hypothesis; 1 until :meth:`widen`.
        written: rows in the cache of every layer, those of the step included.
    """

    def __init__(self, hypotheses: int, group: int, device: torch.device) -> None:
        self.group, self.streams, self.written = group, 1, 0
        # [steps, hypotheses, streams]: row of the cache, and whether its word is padding
        self._past = torch.zeros(0, hypotheses, 1, dtype=torch.long, device=device)
        self._padding = self._past.bool()
        self._any_padding = False
        self._buffer: Tensor | None = None

    @property
    def rows(self) -> int:
        """Rows of a batch."""
        return self._past.shape[1] * self._past.shape[2]

    @property
    def padding(self) -> Tensor | None:
        """True where a row must not attend, [steps, rows]; None where it may everywhere."""
        return self._padding.flatten(1) if self._any_padding else None

    def begin_step(self, padding: Tensor) -> None:
        """Append the rows of a step; ``padding`` is True at hypotheses whose word is padding."""
        device, shape = padding.device, (1, len(padding), self.streams)
        new = torch.arange(self.written, self.written + self.rows, device=device)
        self._past = torch.cat([self._past, new.view(shape)])
        self._padding = torch.cat([self._padding, padding.unsqueeze(1).expand(shape)])
        self._any_padding = self._any_padding or bool(padding.any())
        self.written += self.rows

    def read(self, cache: Tensor) -> Tensor:
        """The past of every row, [steps, rows, d], valid until the next call."""
        index = self._past.flatten()
        if torch.is_grad_enabled():
            past = cache.index_select(0, index)
        else:
            # a fresh tensor of this size costs more than what is written to it
            size = len(index) * cache.shape[1]
            buffer = self._buffer
            if buffer is None or buffer.numel() < size or buffer.dtype != cache.dtype:
                buffer = self._buffer = cache.new_empty(size + size // 2)
            past = buffer[:size].view(len(index), -1)
            torch.index_select(cache, 0, index, out=past)
        return past.view(-1, self.rows, cache.shape[1])

    def widen(self, decoder: nn.Module, state: IncrementalState, streams: int) -> None:
        """Run more streams for each hypothesis from now on: copies of its last one."""
        chosen = torch.arange(streams, device=self._past.device).clamp_max(self.streams - 1)
        hypotheses = torch.arange(self._past.shape[1], device=self._past.device)
        self._follow(decoder, state, hypotheses, chosen)

    def reorder(self, decoder: nn.Module, state: IncrementalState, order: Tensor) -> None:
        """Hypothesis b now continues what was hypothesis ``order[b]``, [new hypotheses]."""
        before = torch.arange(self._past.shape[1] // self.group, device=order.device)
        self._follow(decoder, state, order, torch.arange(self.streams, device=order.device))
        sources = torch.div(order, self.group, rounding_mode="floor")
        groups = sources.view(-1, self.group) if len(order) % self.group == 0 else None
        if groups is not None and bool((groups == groups[:, :1]).all()):
            sources = groups[:, 0]
        else:
            self.group = 1
        if not torch.equal(sources, before):  # within its beam a hypothesis keeps its source
            for module in _attention(decoder, to_source=True):
                _select(module, state, sources)

    def _follow(
        self, decoder: nn.Module, state: IncrementalState, hypotheses: Tensor, streams: Tensor
    ) -> None:
        rows = hypotheses.unsqueeze(1) * self.streams + streams
        self._past = self._past[:, hypotheses][:, :, streams]
        self._padding = self._padding[:, hypotheses][:, :, streams]
        self.streams = len(streams)
        for module in _attention(decoder, to_source=False):
            if not isinstance(module, BeamSelfAttention):
                _select(module, state, rows.flatten())


def _attention(decoder: nn.Module, to_source: bool) -> list[Any]:
    return [
        module
        for module in decoder.modules()
        if isinstance(module, MultiheadAttention) and module.encoder_decoder_attention == to_source
    ]


def _select(module: Any, state: IncrementalState, rows: Tensor) -> None:
    """Reorder the state of fairseq's own attention."""
    buffer = module.get_incremental_state(state, _STOCK_CACHE) or {}
    chosen = {
        key: None if value is None else value.index_select(0, rows) for key, value in buffer.items()
    }
    module.set_incremental_state(state, _STOCK_CACHE, chosen)


class BeamSelfAttention(MultiheadAttention):
    """fairseq's self-attention; in step-by-step decoding with :class:`Beams`, without copies."""

    def forward(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        key_padding_mask: Tensor | None = None,
        incremental_state: IncrementalState | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """As fairseq's; with beams, ``query`` is [1, rows, d], and no weights are returned."""
        beams: Beams | None = (incremental_state or {}).get(BEAMS)
        if incremental_state is None or beams is None:
            return super().forward(
                query, key, value, key_padding_mask, incremental_state, *args, **kwargs
            )
        cache = self.get_incremental_state(incremental_state, _CACHE) or {}
        cache["keys"] = _appended(cache.get("keys"), self.k_proj(query)[0], beams.written)
        cache["values"] = _appended(cache.get("values"), self.v_proj(query)[0], beams.written)
        self.set_incremental_state(incremental_state, _CACHE, cache)

        heads = beams.rows * self.num_heads
        queries = (self.q_proj(query) * self.scaling).view(heads, 1, self.head_dim)
        keys = beams.read(cache["keys"]).view(-1, heads, self.head_dim)
        scores = torch.bmm(queries, keys.permute(1, 2, 0))  # [rows × heads, 1, steps]
        if beams.padding is not None:
            hidden = beams.padding.t().repeat_interleave(self.num_heads, 0).unsqueeze(1)
            scores = scores.masked_fill(hidden, -math.inf)
        probs = self.dropout_module(scores.softmax(-1, dtype=torch.float32).type_as(scores))
        values = beams.read(cache["values"]).view(-1, heads, self.head_dim)
        attended = torch.bmm(probs, values.transpose(0, 1))  # [rows × heads, 1, head_dim]
        return self.out_proj(attended.view(1, beams.rows, -1)), None


def _appended(cache: Tensor | None, new: Tensor, end: int) -> Tensor:
    """A cache, [at least ``end``, d], whose rows up to ``end`` are old ones and ``new``."""
    begin = end - len(new)
    if cache is None or len(cache) < end:
        larger = new.new_empty(max(_FIRST_ROOM * len(new), 2 * begin), new.shape[1])
        if cache is not None:
            larger[:begin] = cache[:begin]
        cache = larger
    cache[begin:end] = new
    return cache


def keep_in_place(layer: nn.Module) -> None:
    """Turn fairseq's attention to earlier words, and to these alone, into our own."""
    for module in layer.modules():
        plain = type(module) is MultiheadAttention and module.self_attention
        if plain and module.bias_k is None and not module.add_zero_attn:
            module.__class__ = BeamSelfAttention  # which has the same parameters and no others


def one_source_each(encoder_out: EncoderOut, group: int) -> EncoderOut:
    """An encoder's output with one row for ``group`` consecutive ones; a view."""
    if encoder_out is None or group == 1:
        return encoder_out
    return {
        "encoder_out": [states[:, ::group] for states in encoder_out["encoder_out"]],
        "encoder_padding_mask": [mask[::group] for mask in encoder_out["encoder_padding_mask"]],
    }


def equal_neighbours(encoder_out: EncoderOut) -> int:
    """Largest n so that each n consecutive rows of an encoder's output are equal.

    Read off the output itself, because a decoder is not told the size of a beam.
    """
    if encoder_out is None or not encoder_out["encoder_out"]:
        return 1
    states = encoder_out["encoder_out"][0]  # [src_len, batch, d]
    begins = (states[:, 1:] != states[:, :-1]).any(2).any(0)  # [batch − 1]
    for mask in encoder_out["encoder_padding_mask"]:
        begins |= (mask[1:] != mask[:-1]).any(1)
    return math.gcd(states.shape[1], *(begins.nonzero().flatten() + 1).tolist())
