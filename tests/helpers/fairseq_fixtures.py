"""Tiny fairseq tasks, models and batches, built in memory."""

from __future__ import annotations

import argparse
from types import SimpleNamespace
from typing import Any

import torch
from fairseq.data import Dictionary
from torch import Tensor

import fairseq_kerbs.criterions  # noqa: F401  (registers)
from fairseq_kerbs.models import GruKerbsModel, LstmKerbsModel, TransformerKerbsModel

MODELS: dict[str, Any] = {
    "transformer": TransformerKerbsModel,
    "lstm": LstmKerbsModel,
    "gru": GruKerbsModel,
}
SIZES: dict[str, dict[str, Any]] = {
    "transformer": {
        "encoder_embed_dim": 16,
        "decoder_embed_dim": 16,
        "encoder_ffn_embed_dim": 24,
        "decoder_ffn_embed_dim": 24,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "dropout": 0.0,
    },
    "lstm": {"hidden_size": 12, "embed_dim": 10, "layers": 2, "dropout": 0.0},
    "gru": {"hidden_size": 12, "embed_dim": 10, "layers": 1, "dropout": 0.0},
}


def dictionary(words: int = 23) -> Dictionary:
    """A dictionary of ``words`` entries, fairseq's four specials included."""
    result = Dictionary()
    for number in range(words - len(result)):
        result.add_symbol(f"w{number}")
    return result


class MemoryTask(SimpleNamespace):
    """As much of a fairseq task as models and the hook ask for."""

    def begin_epoch(self, epoch: int, model: Any) -> None:
        pass

    def optimizer_step(self, optimizer: Any, model: Any, update_num: int) -> None:
        optimizer.step()

    def train_step(
        self,
        sample: Any,
        model: Any,
        criterion: Any,
        optimizer: Any,
        update_num: int,
        ignore_grad: bool = False,
    ) -> Any:
        loss, size, log = criterion(model, sample)
        optimizer.backward(loss * 0 if ignore_grad else loss)
        return loss, size, log


def make_task(words: int = 23) -> Any:
    """A task with a source and a target dictionary."""
    return MemoryTask(source_dictionary=dictionary(19), target_dictionary=dictionary(words))


def make_model(
    name: str, task: Any = None, seed: int = 0, spread: float = 3.0, **flags: Any
) -> Any:
    """A tiny model in evaluation mode, its θ spread so that the kernel matters."""
    torch.manual_seed(seed)
    args = argparse.Namespace(**(SIZES[name] | flags))
    model = MODELS[name].build_model(args, task or make_task())
    if isinstance(model.decoder.output.theta, torch.nn.Parameter):
        torch.nn.init.normal_(model.decoder.output.theta, std=spread)
    # sense vectors long enough that posteriors are far from the prior
    model.decoder.output.weight.data.mul_(4.0)
    torch.nn.init.uniform_(model.decoder.output.usage)
    return model.eval()


def make_batch(
    lengths: tuple[int, ...] = (6, 4, 7),
    words: int = 23,
    seed: int = 1,
    pad_to: int = 0,
    same_source: bool = False,
) -> dict[str, Any]:
    """A batch as fairseq's translation task collates it: right-padded targets, left-padded sources.

    With ``same_source`` the rows are hypotheses of one sentence, as in a beam.
    """
    generator = torch.Generator().manual_seed(seed)
    longest = max(max(lengths), pad_to)
    source = torch.full((len(lengths), longest), 1)
    target = torch.full((len(lengths), longest), 1)
    previous = torch.full((len(lengths), longest), 1)
    for row, length in enumerate(lengths):
        sentence = torch.randint(4, 19, (length,), generator=generator)
        source[row, longest - length :] = sentence
        answer = torch.randint(4, words, (length,), generator=generator)
        answer[-1] = 2
        target[row, :length] = answer
        previous[row, 0] = 2
        previous[row, 1:length] = answer[:-1]
    if same_source:
        source = source[:1].expand_as(source).contiguous()
    return {
        "net_input": {
            "src_tokens": source,
            "src_lengths": source.ne(1).sum(1),
            "prev_output_tokens": previous,
        },
        "target": target,
        "ntokens": sum(lengths),
    }


def step_by_step(model: Any, batch: dict[str, Any], reorder_at: int = -1) -> Tensor:
    """Log-probabilities from incremental decoding of the reference, [batch, len, V].

    At step ``reorder_at`` the hypotheses are reversed, as a beam search reorders hypotheses of one
    sentence, and the results are put back into the first order.
    """
    net_input = batch["net_input"]
    encoder_out = model.encoder(net_input["src_tokens"], src_lengths=net_input["src_lengths"])
    tokens = net_input["prev_output_tokens"]
    state: dict[str, Any] = {}
    rows = torch.arange(len(tokens))
    results = []
    for step in range(tokens.shape[1]):
        if step == reorder_at:
            order = torch.arange(len(tokens) - 1, -1, -1)
            model.decoder.reorder_incremental_state_scripting(state, order)
            encoder_out = model.encoder.reorder_encoder_out(encoder_out, order)
            tokens, rows = tokens[order], rows[order]
        output = model.decoder(
            tokens[:, : step + 1], encoder_out=encoder_out, incremental_state=state
        )
        scores = model.get_normalized_probs(output, log_probs=True)[:, -1]
        back = torch.empty_like(scores)
        back[rows] = scores
        results.append(back)
    return torch.stack(results, 1)


def teacher_forced(model: Any, batch: dict[str, Any]) -> Tensor:
    """Log-probabilities of all positions at once, [batch, len, V]."""
    return model.get_normalized_probs(model(**batch["net_input"]), log_probs=True)
