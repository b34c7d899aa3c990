"""What a model predicts in place of each word of the references, by teacher forcing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fairseq_kerbs.analysis.context_vectors import SCORES, features_only, log_probs
from fairseq_kerbs.analysis.occurrences import batches, real_tokens
from fairseq_kerbs.analysis.words import is_word, joined_words
from fairseq_kerbs.utils.errors import UserError

GUESSES = 16
"""Most probable words that are kept for each word of the references."""


@dataclass(frozen=True)
class Predictions:
    """Every word of the references, N in all, in the order of the split."""

    tokens: dict[int, tuple[str, ...]]  # of each sentence
    sentence: Tensor  # [N] number of its sentence (in a language model: its block), from 0
    place: Tensor  # [N] where it stands among the sentence's ``tokens``
    word: Tensor  # [N] its number in the dictionary
    probability: Tensor  # [N] P(word | context)
    guesses: Tensor  # [N, k] the words most probable there, the most probable first
    guessed: Tensor  # [N, k] their probabilities

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
    """Go through a split; ``joined``: only words that are a single token, and BPE pieces joined.
    Raises what :func:`features_only` and :func:`batches` do; a UserError if no word is left."""
    dictionary, columns = task.target_dictionary, []
    rows_a_time = max(1, SCORES // len(dictionary))
    sentences: dict[int, tuple[str, ...]] = {}
    with features_only(model) as output_layer:
        for batch in batches(task, split):
            target = batch["target"]  # [batch, len]
            chosen = []  # row, column, sentence, place
            for row, line in enumerate(batch["id"].tolist()):
                places, tokens = real_tokens(target[row], dictionary)
                positions: list[int | None] = list(range(len(tokens)))
                if joined:
                    tokens, positions = joined_words(tokens)
                sentences[line] = tuple(tokens)
                for place, position in enumerate(positions):
                    if position is None:
                        continue
                    number = int(target[row, places[position]])
                    if is_word(tokens[place], number, dictionary.nspecial):
                        chosen.append((row, places[position], line, place))
            if chosen:
                rows, where, *names = torch.tensor(chosen).unbind(1)
                features = model(**batch["net_input"])[0][rows, where]  # [n, d]
                words = target[rows, where]
                for part in torch.arange(len(words)).split(rows_a_time):
                    scored = _score(model, output_layer, features[part], words[part])
                    columns.append((*(name[part] for name in names), words[part], *scored))
    if not columns:
        raise UserError(f"--split {split}: there is no word in it; name another split")
    lines, at, *rest = (torch.cat(parts) for parts in zip(*columns))
    order = (lines * (int(at.max()) + 1) + at).argsort()
    return Predictions(sentences, *(column[order] for column in (lines, at, *rest)))


def _score(
    model: Any, output_layer: Callable[..., Tensor], features: Tensor, words: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities of words [n], guesses and theirs [n, k], of features [n, d]."""
    scores = log_probs(model, output_layer, features)  # [n, V]
    best = scores.topk(min(GUESSES, scores.shape[1]), dim=1)
    own = scores.gather(1, words.unsqueeze(1)).squeeze(1)
    return own.exp(), best.indices, best.values.exp()
