"""``fairseq-generate --print-senses``: which sense each token of a hypothesis was predicted by.

Under the ``P-`` line of every hypothesis stands a line ``K-<id>`` with one entry for each of its
tokens, the end of the sentence included: ``word#sense:posterior``, with the number of the sense
within its word (`number_senses`) and the posterior of Eq. 7.

fairseq has no place where a plugin could add to this output. So the flag acts between its program
and two functions that it calls: the one that loads its models, and ``print``.
"""

from __future__ import annotations

import argparse
import builtins
import functools
import itertools
import re
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from fairseq import checkpoint_utils, options
from fairseq.models import FairseqLanguageModel
from torch import Tensor

from fairseq_kerbs.fairseq_patches.registry import patched, replace
from fairseq_kerbs.output_layers import OutputLayer
from fairseq_kerbs.senses import number_senses
from fairseq_kerbs.utils.errors import ProgramEnd

FLAG = "--print-senses"
Hypotheses = list[list[dict[str, Any]]]  # of each sentence, the best first


@torch.no_grad()
def hypothesis_senses(
    model: Any, net_input: dict[str, Any], hypotheses: list[Tensor], start: int, padding: int
) -> list[list[tuple[int, float]]]:
    """The number of the most probable sense of each token, and its posterior (Eq. 7), of one
    hypothesis [len] for each sentence of a batch, whose previous tokens are not used.

    ``start`` is the token before the first, ``padding`` the one that fills up what is shorter.
    """
    device = net_input["src_tokens"].device
    rows = [tokens.to(device).long() for tokens in hypotheses]
    words = torch.nn.utils.rnn.pad_sequence(rows, True, padding)  # [batch, len]
    previous = words.roll(1, dims=1)
    previous[:, 0] = start
    # what follows the last token must not look like a token before padding
    previous = previous.masked_fill(words.eq(padding), padding)
    decoder: Any = model.decoder
    trained = getattr(decoder, "passes", 0)
    decoder.passes = getattr(decoder, "decoding_passes", 0)  # senses are those of decoding
    try:
        if isinstance(model, FairseqLanguageModel):
            contexts, _ = model(previous)  # [batch, len, d]
        else:
            contexts, _ = model(**(net_input | {"prev_output_tokens": previous}))
    finally:
        decoder.passes = trained
    layer: OutputLayer = decoder.output
    share, slot = layer.posterior(layer.look_up(words), contexts).max(-1)  # [batch, len]
    sense = layer.table.senses[words].gather(-1, slot.unsqueeze(-1)).squeeze(-1)
    number = number_senses(layer.word_of_sense, layer.usage)[sense]
    return [
        list(zip(number[i, : len(row)].tolist(), share[i, : len(row)].tolist(), strict=True))
        for i, row in enumerate(rows)
    ]


class SenseLines:
    """The lines for the hypotheses of a task's latest batch, printed under those with scores; made
    when they are asked for, since only fairseq's program knows how many it will print."""

    def __init__(self, task: Any, model: Any) -> None:
        self._model, self._dictionary = model, task.target_dictionary
        self._waiting: dict[str, Iterator[str]] = {}  # by sentence
        self._step, task.inference_step = task.inference_step, self.inference_step

    def inference_step(
        self, generator: Any, models: list[Any], sample: dict[str, Any], **kwargs: Any
    ) -> Hypotheses:
        """The task's, which may begin the hypotheses with a token of its own."""
        dictionary = self._dictionary
        start, padding = dictionary.eos(), dictionary.pad()

        def generate(*args: Any, **options: Any) -> Any:
            nonlocal start
            given = options.get("bos_token")
            start = start if given is None else given
            return generator.generate(*args, **options)

        found: Hypotheses = self._step(SimpleNamespace(generate=generate), models, sample, **kwargs)

        @functools.cache
        def lines(rank: int) -> list[str]:
            # a sentence with fewer hypotheses shows its last again, and nobody asks for it
            tokens = [one[min(rank, len(one) - 1)]["tokens"] for one in found]
            senses = hypothesis_senses(self._model, sample["net_input"], tokens, start, padding)
            names = [[dictionary[token] for token in row.tolist()] for row in tokens]
            return [
                " ".join(f"{name}#{n}:{share:.4f}" for name, (n, share) in zip(*row, strict=True))
                for row in zip(names, senses, strict=True)
            ]

        def of_row(row: int) -> Iterator[str]:
            return (lines(rank)[row] for rank in itertools.count())

        self._waiting = {str(one): of_row(row) for row, one in enumerate(sample["id"].tolist())}
        return found

    def print(self, *values: Any, **kwargs: Any) -> None:
        """Python's ``print``, followed by the line that belongs there."""
        builtins.print(*values, **kwargs)
        scores = re.match(r"P-(\d+)\t", str(values[0])) if values else None
        if scores and scores[1] in self._waiting:
            builtins.print(f"K-{scores[1]}\t{next(self._waiting[scores[1]])}", **kwargs)


class _PrintSenses(argparse.Action):
    """The flag; fairseq parses its command line several times, which does it no harm."""

    given = False

    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        if "--buffer-size" in parser._option_string_actions:
            parser.error(f"{FLAG} is for fairseq-generate; fairseq-interactive cannot do it")
        _PrintSenses.given = True


@patched(checkpoint_utils, "load_model_ensemble", "--print-senses needs the loaded model")
def load_model_ensemble(stock: Any, filenames: Any, *args: Any, **kwargs: Any) -> Any:
    """With ``--print-senses``, look at what has been loaded."""
    models, settings = stock(filenames, *args, **kwargs)
    task = kwargs.get("task")  # a language model beside it is loaded without a task
    if not _PrintSenses.given or task is None:
        return models, settings
    if len(models) != 1:
        raise ProgramEnd(
            f"{FLAG} needs one model, but --path names {len(models)}, each with senses of "
            "its own: name one of them."
        )
    if not isinstance(getattr(models[0].decoder, "output", None), OutputLayer):
        raise ProgramEnd(
            f"{FLAG}: {filenames[0]} has no senses: name a checkpoint of fairseq_kerbs, "
            "or leave the flag out."
        )
    lines = SenseLines(task, models[0])
    for name in ("fairseq_cli.generate", "__main__"):
        program: Any = sys.modules.get(name)
        if hasattr(program, "get_symbols_to_strip_from_output"):
            replace(program, "print", lines.print, "a line belongs under every P- line").apply()
    return models, settings


@patched(options, "add_generation_args", "fairseq-generate has no flags of plugins")
def add_generation_args(stock: Any, parser: argparse.ArgumentParser) -> Any:
    """Add the flag to those of fairseq-generate."""
    group = stock(parser)
    text = "KerBS: print the sense and its posterior for every token of a hypothesis (K-)"
    group.add_argument(FLAG, action=_PrintSenses, nargs=0, default=False, help=text)
    return group
