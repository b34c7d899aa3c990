"""Which sense a trained model uses where: posteriors over senses in reference translations."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from textwrap import shorten
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairseq_kerbs.analysis.words import joined_words
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.processes import progress

_MAX_TOKENS = 4000  # of a batch, and so of a sentence


@dataclass(frozen=True)
class Occurrence:
    """One token of a reference, and the senses that predicted it."""

    line: int  # number of the sentence in its file, from 0
    index: int  # number of this word form in the sentence, from 0
    word: str  # the token: the word
    senses: tuple[int, ...]  # rows of its senses in the output layer
    posterior: tuple[float, ...]  # P(sense | word, context) of each (Eq. 7), adds up to 1
    tokens: tuple[str, ...]  # the sentence, subwords joined
    position: int  # where in ``tokens`` the word stands
    context: Tensor  # [d] the context vector h that predicted it

    @property
    def sense(self) -> int:
        """The row of the most probable sense."""
        return self.senses[int(np.argmax(self.posterior))]


@torch.no_grad()
def occurrences(
    model: Any,
    task: Any,
    split: str,
    words: Collection[str] = (),
    flag: str = "--split",
) -> Iterator[Occurrence]:
    """Every word of a split that is a single token, by teacher forcing, in no particular order; of
    ``words`` alone where they are given. Raises what :func:`batches` raises."""
    dictionary, layer = task.target_dictionary, model.decoder.output
    table, mask = layer.table[:2]
    senses = [row[real].tolist() for row, real in zip(table, mask)]  # of each word
    for batch in batches(task, split, flag):
        features, _ = model(**batch["net_input"])
        target = batch["target"]  # [batch, len]
        # those of a word come first among the K
        posterior = layer.posterior(layer.look_up(target), features).tolist()  # [batch, len, K]
        for row, line in enumerate(batch["id"].tolist()):
            columns, tokens = real_tokens(target[row], dictionary)
            joined, positions = joined_words(tokens)
            seen: Counter[str] = Counter()
            for place, (word, at) in enumerate(zip(joined, positions)):
                index = seen[word]
                seen[word] += 1
                if at is None or (words and word not in words):
                    continue
                column = columns[at]
                rows = senses[target[row, column]]
                yield Occurrence(
                    *(line, index, word),
                    tuple(rows),
                    tuple(posterior[row][column][: len(rows)]),
                    *(tuple(joined), place),
                    features[row, column].float(),
                )


def batches(
    task: Any, split: str, flag: str = "--split", most: int = 0
) -> Iterator[dict[str, Any]]:
    """Batches of a split, in no particular order; of one with more than ``most`` tokens only every
    second, third …, with 0 all. A UserError, which names its ``flag``, if the data have no such
    split or target side, it is damaged, or a sentence is too long."""
    try:
        task.load_dataset(split)
        sizes = np.asarray(task.dataset(split).sizes)
        longest = sizes.reshape(len(sizes), -1).max(1)  # [sentences], of source and target
        if longest.max(initial=0) > _MAX_TOKENS:
            raise UserError(
                f"{flag} {split}: sentence {longest.argmax() + 1} has {longest.max()} tokens, "
                f"more than {_MAX_TOKENS}; divide it, or name another split"
            )
        found = task.get_batch_iterator(
            task.dataset(split), max_tokens=_MAX_TOKENS, max_positions=None
        ).next_epoch_itr(shuffle=False)
        step = max(1, round(longest.sum() / most)) if most else 1
        for batch in islice(progress(found, f"split {split}", " batches"), 0, None, step):
            if batch.get("target") is None:
                raise UserError(f"{flag} {split}: it has no target side; make the data again")
            yield batch
    except FileNotFoundError as error:
        raise UserError(f"{flag}: {error}; name a split of the data") from error
    except (AssertionError, ValueError, struct.error) as error:
        raise UserError(
            f"{flag} {split}: the data are damaged ({shorten(str(error), 200)}); make them again"
        ) from error


def real_tokens(target: Tensor, dictionary: Any) -> tuple[list[int], list[str]]:
    """Columns and symbols of the tokens of a sentence [len], without padding and end."""
    skipped, numbers = (dictionary.pad(), dictionary.eos()), target.tolist()
    columns = [column for column, number in enumerate(numbers) if number not in skipped]
    return columns, [dictionary[numbers[column]] for column in columns]
