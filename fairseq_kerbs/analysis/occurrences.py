"""Which sense a trained model uses where: posteriors over senses in reference translations.

A subword (BPE piece) is a token of its own and has senses like a word. It is left out unless it is
asked for; then sentences are shown as tokens, with the marks of their pieces.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
import torch

from fairseq_kerbs.checkpoints import load_model_and_task
from fairseq_kerbs.errors import UserError
from fairseq_kerbs.output_layers import OutputLayer

BPE_MARK = "@@"
_MAX_TOKENS = 4000  # of a batch, and so of a sentence


@dataclass(frozen=True)
class Occurrence:
    """One token of a reference, and the senses that predicted it.

    Attributes:
        line: number of the sentence in its file, from 0.
        index: number of this word form in the sentence, from 0; −1 for a piece of a word.
        word: the token: a word, or a piece such as ``ban@@``.
        senses: numbers of its senses.
        posterior: P(sense | word, context) of each (Eq. 7), adds up to 1.
        tokens: the whole sentence, subwords joined unless pieces were asked for.
        position: where in ``tokens`` the word stands.
    """

    line: int
    index: int
    word: str
    senses: tuple[int, ...]
    posterior: tuple[float, ...]
    tokens: tuple[str, ...]
    position: int

    @property
    def sense(self) -> int:
        """The most probable sense."""
        return self.senses[max(range(len(self.senses)), key=self.posterior.__getitem__)]


def load_model(checkpoint: Path, data: Path, trust: bool = False) -> tuple[Any, Any]:
    """Load a checkpoint of fairseq_kerbs and its task.

    Args:
        checkpoint: a file of fairseq-train.
        data: folder of binarized data with the checkpoint's dictionaries.
        trust: also a checkpoint that holds more than tensors and settings (``--trust-checkpoint``).

    Returns:
        model in evaluation mode, and task.

    Raises:
        UserError: a file is missing or damaged, the checkpoint is not to be trusted, holds no model
            of ours, or does not fit the data.
    """
    return load_model_and_task(checkpoint, data, trust=trust)


def joined_words(pieces: list[str]) -> tuple[list[str], list[int | None]]:
    """Join BPE pieces; for every word also the position of its token, None where it has several.

    >>> joined_words(["a", "ban@@", "k"])
    (['a', 'bank'], [0, None])
    """
    words: list[str] = []
    positions: list[int | None] = []
    begun = ""
    for position, piece in enumerate(pieces):
        if piece.endswith(BPE_MARK):
            begun += piece[: -len(BPE_MARK)]
            continue
        words.append(begun + piece)
        positions.append(None if begun else position)
        begun = ""
    if begun:
        words.append(begun)
        positions.append(None)
    return words, positions


@torch.no_grad()
def occurrences(model: Any, task: Any, split: str, pieces: bool = False) -> Iterator[Occurrence]:
    """Go through a split by teacher forcing.

    Args:
        model: a model of ours.
        task: its task.
        split: name of the split, such as "test".
        pieces: every token, pieces of words too, and sentences as tokens.

    Yields:
        every word of the references that is a single token, in no particular order; with
        ``pieces`` every token.

    Raises:
        UserError: the data have no such split, it is damaged, or a sentence is too long.
    """
    dictionary, layer = task.target_dictionary, model.decoder.output
    for batch in batches(task, split):
        features, _ = model(**batch["net_input"])
        target = batch["target"]  # [batch, len]
        _, _, evidence = layer.nll_with_evidence(features, target, ignore_index=dictionary.pad())
        joint = evidence.sense_prob.view(*target.shape, -1)  # [batch, len, K]
        posterior = joint / joint.sum(-1, keepdim=True).clamp_min(1e-38)
        for row, line in enumerate(batch["id"].tolist()):
            yield from _sentence(line, target[row], posterior[row], layer, dictionary, pieces)


def batches(task: Any, split: str) -> Iterator[dict[str, Any]]:
    """Batches of a split, in no particular order.

    Raises:
        UserError: the data have no such split, it is damaged, or a sentence is too long.
    """
    try:
        task.load_dataset(split)
        sizes = np.asarray(task.dataset(split).sizes)
        longest = sizes.reshape(len(sizes), -1).max(1)  # [sentences], of source and target
        if longest.max(initial=0) > _MAX_TOKENS:
            raise UserError(
                f"--split {split}: sentence {longest.argmax() + 1} has {longest.max()} tokens, "
                f"more than {_MAX_TOKENS}; divide it, or name another split"
            )
        yield from task.get_batch_iterator(
            task.dataset(split), max_tokens=_MAX_TOKENS, max_positions=None
        ).next_epoch_itr(shuffle=False)
    except FileNotFoundError as error:
        raise UserError(f"--split: {error}; name a split of the data") from error
    except (AssertionError, ValueError, struct.error) as error:
        raise UserError(
            f"--split {split}: the data are damaged ({shorten(str(error), 200)}); make them again"
        ) from error


def _sentence(
    line: int,
    target: torch.Tensor,
    posterior: torch.Tensor,
    layer: OutputLayer,
    dictionary: Any,
    pieces: bool,
) -> Iterator[Occurrence]:
    skipped = (dictionary.pad(), dictionary.eos())
    # padding is on the left with --left-pad-target
    real = [
        (place, number) for place, number in enumerate(target.tolist()) if number not in skipped
    ]
    tokens = [dictionary[number] for _, number in real]
    words, positions = joined_words(tokens)
    place_of = {position: place for place, position in enumerate(positions) if position is not None}
    shown = tuple(tokens if pieces else words)
    senses, mask = layer.table
    seen: dict[str, int] = {}
    index_of = []  # how often each word form was there before
    for word in words:
        seen[word] = seen.get(word, -1) + 1
        index_of.append(seen[word])
    for position, (column, number) in enumerate(real):
        place = place_of.get(position)
        if place is None and not pieces:
            continue
        own = mask[number]
        yield Occurrence(
            line,
            -1 if place is None else index_of[place],
            tokens[position],
            tuple(senses[number][own].tolist()),
            tuple(posterior[column][own].tolist()),
            shown,
            position if place is None or pieces else place,
        )
