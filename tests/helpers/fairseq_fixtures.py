"""Tiny fairseq tasks, models and batches, built in memory."""

import argparse
from types import SimpleNamespace
from typing import Any

import torch
from fairseq.data import Dictionary
from torch import Tensor

import fairseq_kerbs.criterions  # noqa: F401  (registers)
from fairseq_kerbs import models

MODELS: dict[str, Any] = {"transformer": models.TransformerKerbsModel}
MODELS |= {"lstm": models.LstmKerbsModel, "gru": models.GruKerbsModel}
MODELS |= {"lstm_luong": models.LstmKerbsModel, "gru_luong": models.GruKerbsModel}
LANGUAGE_MODELS: dict[str, Any] = {"transformer_lm": models.TransformerLanguageModel}
LANGUAGE_MODELS |= {"lstm_lm": models.LstmLanguageModel, "gru_lm": models.GruLanguageModel}
LANGUAGE_MODELS |= {"bilstm_lm": models.BilstmLanguageModel}
LANGUAGE_MODELS |= {"fairseq_lstm_lm": models.FairseqLstmLanguageModel}
ALL_MODELS = MODELS | {"fairseq_lstm": models.FairseqLstmModel} | LANGUAGE_MODELS
RECURRENT: dict[str, Any] = {"hidden_size": 12, "embed_dim": 10, "dropout": 0.0}
FAIRSEQ_LSTM: dict[str, Any] = {
    "encoder_embed_dim": 10,
    "decoder_embed_dim": 12,
    "decoder_out_embed_dim": 12,
    "encoder_hidden_size": 8,
    "decoder_hidden_size": 14,
    "dropout": 0.0,
}


def _transformer(*sides: str) -> dict[str, Any]:
    sizes = {"embed_dim": 16, "ffn_embed_dim": 24, "layers": 2, "attention_heads": 2}
    named = {f"{side}_{name}": size for side in sides for name, size in sizes.items()}
    return {**named, "dropout": 0.0}


SIZES: dict[str, dict[str, Any]] = {
    "transformer": _transformer("encoder", "decoder"),
    "transformer_lm": _transformer("decoder") | {"tokens_per_sample": 30},
    **dict.fromkeys(("lstm", "lstm_lm", "bilstm_lm"), RECURRENT | {"layers": 2}),
    **dict.fromkeys(("gru", "gru_lm"), RECURRENT | {"layers": 1}),
    "lstm_luong": RECURRENT | {"layers": 2, "attention": "luong"},
    "gru_luong": RECURRENT | {"layers": 1, "attention": "luong"},
    **dict.fromkeys(("fairseq_lstm", "fairseq_lstm_lm"), FAIRSEQ_LSTM),
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


def make_task(words: int = 23, model: str = "") -> Any:
    """A task with a source and a target dictionary, which are one for a language model."""
    task = MemoryTask(source_dictionary=dictionary(19), target_dictionary=dictionary(words))
    if model in LANGUAGE_MODELS:
        task.source_dictionary = task.dictionary = task.target_dictionary
        task.targets = ["self" if model == "bilstm_lm" else "future"]
    return task


def make_model(name: str, task: Any = None, seed: int = 0, spread: float = 3, **flags: Any) -> Any:
    """A tiny model in evaluation mode, its θ spread so that the kernel matters."""
    torch.manual_seed(seed)
    args = argparse.Namespace(**(SIZES[name] | flags))
    model = ALL_MODELS[name].build_model(args, task or make_task(model=name))
    if "fairseq_lstm" in name:  # whose first parameters are small
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.4)
    if isinstance(model.decoder.output.theta, torch.nn.Parameter):
        torch.nn.init.normal_(model.decoder.output.theta, std=spread)
    # sense vectors long enough that posteriors are far from the prior
    model.decoder.output.weight.data.mul_(4.0)
    torch.nn.init.uniform_(model.decoder.output.usage)
    return model.eval()


def make_batch(
    lengths: tuple[int, ...] = (6, 4, 7), words: int = 23, seed: int = 1, same_source: bool = False
) -> dict[str, Any]:
    """As fairseq collates it: targets padded on the right, sources on the left, or all the same."""
    generator, longest = torch.Generator().manual_seed(seed), max(lengths)
    source, target, previous = (torch.full((len(lengths), longest), 1) for _ in range(3))
    for row, length in enumerate(lengths):
        source[row, longest - length :] = torch.randint(4, 19, (length,), generator=generator)
        answer = torch.randint(4, words, (length,), generator=generator)
        answer[-1] = 2
        target[row, :length] = answer
        previous[row, 0] = 2
        previous[row, 1:length] = answer[:-1]
    if same_source:
        source = source[:1].expand_as(source).contiguous()
    net_input = {"src_tokens": source, "src_lengths": source.ne(1).sum(1)}
    net_input["prev_output_tokens"] = previous
    return {"net_input": net_input, "target": target, "ntokens": sum(lengths)}


def make_text(lengths: tuple[int, ...] = (7, 4, 6), both_sides: bool = False) -> dict[str, Any]:
    """A batch of a language model, left-to-right or cloze, padded on the right."""
    batch = make_batch(lengths)
    read = batch["net_input"]["prev_output_tokens"]
    target = read if both_sides else batch["target"]
    return batch | {"net_input": {"src_tokens": read}, "target": target}


def read_tokens(batch: dict[str, Any]) -> Tensor:
    """The words that a decoder reads, [batch, len]."""
    net_input = batch["net_input"]
    return net_input.get("prev_output_tokens", net_input["src_tokens"])


def step_by_step(model: Any, batch: dict[str, Any], reorder_at: int = -1) -> Tensor:
    """Log-probabilities by incremental decoding of the reference, [batch, len, V]; at one step
    hypotheses are reversed, as in a beam search, and their results are put back."""
    tokens, encoder_out = read_tokens(batch), None
    if hasattr(model, "encoder"):
        source = batch["net_input"]["src_tokens"]
        encoder_out = model.encoder(source, src_lengths=source.ne(1).sum(1))
    state: dict[str, Any] = {}
    rows, results = torch.arange(len(tokens)), []
    for step in range(tokens.shape[1]):
        if step == reorder_at:
            order = torch.arange(len(tokens) - 1, -1, -1)
            model.decoder.reorder_incremental_state_scripting(state, order)
            if encoder_out is not None:
                encoder_out = model.encoder.reorder_encoder_out(encoder_out, order)
            tokens, rows = tokens[order], rows[order]
        read = tokens[:, : step + 1]
        output = model.decoder(read, encoder_out=encoder_out, incremental_state=state)
        scores = model.get_normalized_probs(output, log_probs=True)[:, -1]
        output[0].mul_(7.0)  # as a generator divides by the temperature
        back = torch.empty_like(scores)
        back[rows] = scores
        results.append(back)
    return torch.stack(results, 1)


def teacher_forced(model: Any, batch: dict[str, Any]) -> Tensor:
    """Log-probabilities of all positions at once, [batch, len, V]."""
    return model.get_normalized_probs(model(**batch["net_input"]), log_probs=True)
