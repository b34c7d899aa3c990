"""``fairseq-generate --print-senses``: which sense each token of a hypothesis was predicted by.

Under the ``P-`` line of every hypothesis stands a line ``K-<id>`` with one entry for each of its
tokens, the end of the sentence included: ``sense:posterior``, where sense counts the senses of that
word from 0, as ``fairseq-kerbs senses`` does, and the posterior is that of Eq. 7.

fairseq has no place where a plugin could add to this output. So the flag, when it is given, acts
between fairseq's program and two functions that it calls: the one that loads its models, and
``print``.
"""

from __future__ import annotations

import argparse
import builtins
import re
import sys
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from fairseq import checkpoint_utils, options
from fairseq.models import FairseqLanguageModel
from torch import Tensor

from fairseq_kerbs.fairseq_patches.registry import patched, replace
from fairseq_kerbs.output_layers import OutputLayer
from fairseq_kerbs.utils.errors import ProgramEnd

FLAG = "--print-senses"

_SCORES = re.compile(r"P-(\d+)\t")
Hypotheses = list[list[dict[str, Any]]]  # of each sentence, the best first


@torch.no_grad()
def hypothesis_senses(
    model: Any, net_input: dict[str, Any], hypotheses: list[Tensor], start: int, padding: int
) -> list[list[tuple[int, float]]]:
    """The most probable sense of each token of some hypotheses, and its posterior (Eq. 7).

    Args:
        model: a model of ours.
        net_input: the batch that they are hypotheses of; its previous tokens are not used.
        hypotheses: tokens [len] of one for each sentence of the batch, the last one included.
        start: token before the first.
        padding: token that fills up what is shorter.

    Returns:
        for each hypothesis and token the number of the sense within its word, and the posterior.
    """
    device = net_input["src_tokens"].device
    rows = [tokens.to(device).long() for tokens in hypotheses]
    words = torch.nn.utils.rnn.pad_sequence(rows, True, padding)  # [batch, len]
    previous = words.roll(1, dims=1)
    previous[:, 0] = start
    # what follows the last token must not look like a token before padding
    previous = previous.masked_fill(words.eq(padding), padding)
    if isinstance(model, FairseqLanguageModel):
        contexts, _ = model(previous)  # [batch, len, d]
    else:
        contexts, _ = model(**(net_input | {"prev_output_tokens": previous}))
    layer: OutputLayer = model.decoder.output
    share, sense = layer.posterior(layer.look_up(words), contexts).max(-1)  # [batch, len]
    return [
        list(zip(sense[i, : len(row)].tolist(), share[i, : len(row)].tolist(), strict=True))
        for i, row in enumerate(rows)
    ]


class _Generator:
    """A generator of fairseq's that remembers which token its hypotheses began with."""

    def __init__(self, generator: Any, default: int) -> None:
        self.generator, self.start = generator, default

    def generate(self, *args: Any, bos_token: int | None = None, **kwargs: Any) -> Any:
        """As fairseq's."""
        if bos_token is not None:
            self.start = bos_token
            kwargs["bos_token"] = bos_token
        return self.generator.generate(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.generator, name)


class SenseLines:
    """The lines to be printed for the hypotheses of the latest batch.

    They are computed when they are asked for: how many of the hypotheses fairseq will print, only
    its program knows.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, Iterator[str]] = {}

    def begin(
        self, model: Any, sample: dict[str, Any], found: Hypotheses, start: int, padding: int
    ) -> None:
        """Take in a batch and its hypotheses."""
        ready: list[deque[str]] = [deque() for _ in found]

        def lines(row: int) -> Iterator[str]:
            for rank in range(len(found[row])):
                if not ready[row]:
                    # a sentence with fewer hypotheses shows its last again, and nobody asks for it
                    tokens = [one[min(rank, len(one) - 1)]["tokens"] for one in found]
                    batch = hypothesis_senses(model, sample["net_input"], tokens, start, padding)
                    for waiting, entries in zip(ready, batch, strict=True):
                        waiting.append(" ".join(f"{sense}:{share:.4f}" for sense, share in entries))
                yield ready[row].popleft()

        identities = map(str, sample["id"].tolist())
        self._waiting = {identity: lines(row) for row, identity in enumerate(identities)}

    def after(self, printed: str) -> str | None:
        """The line that belongs under a printed one, if there is any."""
        scores = _SCORES.match(printed)
        if scores is None or scores[1] not in self._waiting:
            return None
        return f"K-{scores[1]}\t{next(self._waiting[scores[1]])}"

    def annotate(self, task: Any, model: Any) -> None:
        """Let a task hand over every batch that it generates for."""
        dictionary, step = task.target_dictionary, task.inference_step

        def inference_step(
            generator: Any, models: list[Any], sample: dict[str, Any], **kwargs: Any
        ) -> Hypotheses:
            remembering = _Generator(generator, dictionary.eos())
            found: Hypotheses = step(remembering, models, sample, **kwargs)
            self.begin(model, sample, found, remembering.start, dictionary.pad())
            return found

        task.inference_step = inference_step

    def print(self, *values: Any, **kwargs: Any) -> None:
        """Python's ``print``, followed by the line that belongs there."""
        builtins.print(*values, **kwargs)
        line = self.after(values[0]) if values and isinstance(values[0], str) else None
        if line is not None:
            builtins.print(line, **kwargs)


@patched(checkpoint_utils, "load_model_ensemble", "--print-senses needs the loaded model")
def load_model_ensemble(stock: Any, filenames: Any, *args: Any, **kwargs: Any) -> Any:
    """With ``--print-senses``, look at what has been loaded."""
    models, settings = stock(filenames, *args, **kwargs)
    task = kwargs.get("task")
    # a language model beside it is loaded without a task
    if _PrintSenses.lines is not None and task is not None:
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
        _PrintSenses.lines.annotate(task, models[0])
    return models, settings


class _PrintSenses(argparse.Action):
    """The flag; fairseq parses its command line several times, which does it no harm."""

    lines: SenseLines | None = None

    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        if "--buffer-size" in parser._option_string_actions:
            parser.error(f"{FLAG} is for fairseq-generate; fairseq-interactive cannot do it")
        if _PrintSenses.lines is None:
            lines = _PrintSenses.lines = SenseLines()
            for name in ("fairseq_cli.generate", "__main__"):
                program: Any = sys.modules.get(name)
                if hasattr(program, "get_symbols_to_strip_from_output"):
                    reason = "a line belongs under every P- line"
                    replace(program, "print", lines.print, reason).apply()


@patched(options, "add_generation_args", "fairseq-generate has no flags of plugins")
def add_generation_args(stock: Any, parser: argparse.ArgumentParser) -> Any:
    """Add the flag to those of fairseq-generate."""
    group = stock(parser)
    group.add_argument(
        FLAG,
        action=_PrintSenses,
        nargs=0,
        default=False,
        help="KerBS: print the sense and its posterior for every token of a hypothesis (K-)",
    )
    return group
