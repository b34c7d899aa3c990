"""``--no-repeat-ngram-size``: stock fairseq compares with padding and forbids nothing."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from fairseq.ngram_repeat_block import NGramRepeatBlock
from fairseq.sequence_generator import SequenceGenerator
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.fairseq_fixtures import make_batch, make_model, make_task

PADDING, WORDS = 1, 7


def forbidden(words: list[int], size: int) -> set[int]:
    """Words that would end an n-gram that has occurred."""
    return {
        word
        for word in range(WORDS)
        if any([*words, word][-size:] == words[i : i + size] for i in range(len(words) - size + 1))
    }


@given(
    hypotheses=st.integers(0, 9).flatmap(
        lambda n: st.lists(
            st.lists(st.integers(3, 5), min_size=n, max_size=n), min_size=1, max_size=4
        )
    ),
    size=st.integers(1, 4),
)
def test_what_would_end_an_ngram_again_is_forbidden(hypotheses: list[list[int]], size: int) -> None:
    step = len(hypotheses[0])
    tokens = torch.tensor([[2, *words] + [PADDING] * (11 - step) for words in hypotheses])
    lprobs = torch.zeros(len(hypotheses), WORDS)
    found = NGramRepeatBlock(size)(tokens, lprobs, len(hypotheses), 1, step)
    for words, row in zip(hypotheses, found, strict=True):
        assert {word for word in range(WORDS) if row[word] == -math.inf} == forbidden(words, size)


@pytest.mark.parametrize("name", ["transformer", "lstm"])
def test_no_translation_repeats_itself(name: str) -> None:
    """These models repeat one word until they are cut off."""
    model, batch = make_model(name), make_batch()

    def repeats(size: int) -> list[bool]:
        generator = SequenceGenerator(
            [model],
            make_task().target_dictionary,
            beam_size=3,
            max_len_b=9,
            no_repeat_ngram_size=size,
        )
        with torch.no_grad():
            best = [each[0]["tokens"].tolist() for each in generator.generate([model], batch)]
        pairs = [list(pairwise(words)) for words in best]
        return [len(set(each)) < len(each) for each in pairs]

    assert any(repeats(0))
    assert not any(repeats(2))
