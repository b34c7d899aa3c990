"""fairseq's own LSTM models (``lstm``, ``lstm_lm``) with an output layer of ours.

fairseq builds them, so their flags, sizes and parameters are those of fairseq, and a trained model
of fairseq can become one of these (``fairseq-kerbs convert``). Their decoder is stepped through
here, each input composed with the posterior of the step before (Eq. 6–7). ``lstm_kerbs`` and
``lstm_lm_kerbs`` are other models.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from fairseq.models import lstm, lstm_lm
from torch import Tensor

from fairseq_kerbs.models.base import KerbsModel, build_input_embedding
from fairseq_kerbs.models.config import SeparableKerbsConfig, refuse_flags
from fairseq_kerbs.models.recurrent import Memory, SteppingDecoder

EncoderOut = tuple[Tensor, Tensor, Tensor, Tensor]
"""fairseq's: outputs [src_len, batch, units], final h and c [layers, batch, units], padding
[src_len, batch]."""


class FairseqLstmDecoder(SteppingDecoder, lstm.LSTMDecoder):
    """fairseq's LSTM decoder; forward returns context vectors."""

    def first_memory(self, batch: int, encoder_out: EncoderOut | None) -> Memory:
        zero = self.output.weight.new_zeros(batch, self.hidden_size)
        if encoder_out is None:
            return Memory(((zero, zero),) * self.num_layers, None, None)
        projections = (self.encoder_hidden_proj, self.encoder_cell_proj)
        finals = (
            [final if project is None else project(final) for final in given.unbind(0)]
            for given, project in zip(encoder_out[1:3], projections)
        )
        return Memory(tuple(zip(*finals)), zero, None)

    def step(
        self, words: Tensor, memory: Memory, encoder_out: EncoderOut | None
    ) -> tuple[Memory, Tensor | None]:
        below = self.dropout_in_module(words)
        if memory.fed is not None:
            below = torch.cat([below, memory.fed], dim=1)
        states = []
        for layer, old in zip(self.layers, memory.states):
            states.append(layer(below, old))
            below = self.dropout_out_module(states[-1][0])
            if self.residuals:
                below = below + old[0]
        out, attention = states[-1][0], None  # as fairseq has it: without the last residual
        if self.attention is not None:
            assert encoder_out is not None
            out, scores = self.attention(out, encoder_out[0], encoder_out[3])
            attention = scores.t()
        features = out = self.dropout_out_module(out)
        if hasattr(self, "additional_fc"):
            features = self.dropout_out_module(self.additional_fc(out))
        fed = None if memory.fed is None else out
        return Memory(tuple(states), fed, self.contexts(features)), attention


class _FairseqLstm(KerbsModel):
    """What both models check and build."""

    flags = SeparableKerbsConfig

    @classmethod
    def check(cls, args: Any) -> None:
        """Refuse what an output layer of ours has no use for."""
        unused = ("adaptive_softmax_cutoff", "decoder_embed_path", "share_all_embeddings")
        refuse_flags(args, cls.arch, *unused)
        if args.input_embedding == "composed" and getattr(args, "decoder_freeze_embed", False):
            raise ValueError(
                "--decoder-freeze-embed asks for --input-embedding separate: give both."
            )

    @classmethod
    def build(cls, args: Any, task: Any) -> Any:
        """fairseq's model, with our embedding and output layer in its decoder."""
        # fairseq freezes an embedding from a file alone, and asks which criterion there is
        stock = {"criterion": None, **vars(args), "decoder_freeze_embed": False}
        model: Any = super(KerbsModel, cls).build_model(argparse.Namespace(**stock), task)
        sizes = args.decoder_embed_dim, args.decoder_out_embed_dim
        embed = build_input_embedding(args, task.target_dictionary, *sizes)
        if getattr(args, "decoder_freeze_embed", False):
            embed.weight.requires_grad = False
        decoder = model.decoder
        decoder.__class__ = FairseqLstmDecoder  # which has the same parameters
        decoder.embed_tokens, decoder.output = embed, embed.layer
        decoder._modules.pop("fc_out", None)  # fairseq's output vectors
        return model


class FairseqLstmModel(_FairseqLstm, lstm.LSTMModel):
    """fairseq's lstm, for converted models."""

    arch = "fairseq_lstm_kerbs"
    fill_stock = staticmethod(lstm.base_architecture)


class FairseqLstmLanguageModel(_FairseqLstm, lstm_lm.LSTMLanguageModel):
    """fairseq's lstm_lm, for converted models."""

    arch = "fairseq_lstm_lm_kerbs"
    fill_stock = staticmethod(lstm_lm.base_architecture)
    target = "future"
