"""What a model predicts in place of each word of the references, by teacher forcing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fairseq_kerbs.analysis.context_vectors import features_only
from fairseq_kerbs.analysis.occurrences import batches, joined_words
from fairseq_kerbs.analysis.sense_report import is_word
from fairseq_kerbs.errors import UserError

GUESSES = 16
"""Most probable words that are kept for each word of the references."""

_SCORES = 8 << 20  # probabilities that are kept at a time


@dataclass(frozen=True)
class Predictions:
    """Every word of the references, N in all, in the order of the split.

    Attributes:
        sentence: [N] number of its sentence in the split, from 0 (in a language model, of its block
            of text).
        place: [N] where it stands among the sentence's ``tokens``.
        word: [N] its number in the dictionary.
        probability: [N] P(word | context).
        guesses: [N, k] the words most probable there, the most probable first.
        guessed: [N, k] their probabilities.
        tokens: tokens of each sentence.
    """

    sentence: Tensor
    place: Tensor
    word: Tensor
    probability: Tensor
    guesses: Tensor
    guessed: Tensor
    tokens: dict[int, tuple[str, ...]]

    @property
    def right(self) -> Tensor:
        """[N] whether the most probable word is the reference's."""
        return self.guesses[:, 0] == self.word

    def same_words(self, other: Predictions) -> bool:
        """Whether both are about the same words of the same sentences."""
        return all(
            torch.equal(getattr(self, name), getattr(other, name))
            for name in ("sentence", "place", "word")
        )


@torch.no_grad()
def collect_predictions(model: Any, task: Any, split: str, joined: bool = False) -> Predictions:
    """Go through a split.

    Args:
        model: any fairseq model that :func:`features_only` takes.
        task: its task.
        split: name of the split.
        joined: only words that are a single token, and sentences with BPE pieces joined.

    Raises:
        UserError: see :func:`features_only` and :func:`batches`; or the split has no such word.
    """
    dictionary = task.target_dictionary
    parts: list[tuple[Tensor, ...]] = []
    sentences: dict[int, tuple[str, ...]] = {}
    with features_only(model) as output_layer:
        for batch in batches(task, split):
            target = batch["target"]  # [batch, len]
            chosen = []  # row, column, sentence, place
            for row, line in enumerate(batch["id"].tolist()):
                numbers = target[row].tolist()
                sentences[line], places = _places(numbers, dictionary, joined)
                chosen += [(row, column, line, place) for column, place in places]
            if not chosen:
                continue
            rows, columns, lines, at = torch.tensor(chosen).unbind(1)
            features = model(**batch["net_input"])[0][rows, columns]  # [n, d]
            words = target[rows, columns]
            scored = _score(model, output_layer, features, words, len(dictionary))
            parts.append((lines, at, *scored))
    if not parts:
        raise UserError(f"--split {split}: there is no word in it; name another split")
    columns_of = [torch.cat(column) for column in zip(*parts, strict=True)]
    lines, at = columns_of[:2]
    order = (lines * (int(at.max()) + 1) + at).argsort()
    lines, at, words, probability, guesses, guessed = (column[order] for column in columns_of)
    return Predictions(lines, at, words, probability, guesses, guessed, sentences)


def _places(
    numbers: Sequence[int], dictionary: Any, joined: bool
) -> tuple[tuple[str, ...], list[tuple[int, int]]]:
    """Tokens of a sentence, and column and place of each of its words.

    Args:
        numbers: [len] a row of targets, padded on either side.
    """
    skipped = (dictionary.pad(), dictionary.eos())
    columns = [column for column, number in enumerate(numbers) if number not in skipped]
    tokens = [dictionary[numbers[column]] for column in columns]
    if joined:
        tokens, positions = joined_words(tokens)
        found = [(columns[at], place) for place, at in enumerate(positions) if at is not None]
    else:
        found = [(column, place) for place, column in enumerate(columns)]
    special = dictionary.nspecial
    places = [
        (column, place)
        for column, place in found
        if is_word(tokens[place], numbers[column], special)
    ]
    return tuple(tokens), places


def _score(
    model: Any,
    output_layer: Callable[..., Tensor],
    features: Tensor,
    words: Tensor,
    vocabulary: int,
) -> tuple[Tensor, ...]:
    """Words [n], their probabilities [n], guesses and theirs [n, k], for features [n, d]."""
    rows, found = max(1, _SCORES // vocabulary), []
    for part, own in zip(features.split(rows), words.split(rows), strict=True):
        # as if it were one sentence: fairseq's adaptive softmax asks for three dimensions
        output = (output_layer(part.unsqueeze(0)), None)
        scores = model.get_normalized_probs(output, log_probs=True)[0]  # [n, V]
        best = scores.topk(min(GUESSES, scores.shape[1]), dim=1)
        probability = scores.gather(1, own.unsqueeze(1)).squeeze(1).exp()
        found.append((own, probability.float(), best.indices, best.values.float().exp()))
    return tuple(torch.cat(column) for column in zip(*found, strict=True))
