"""Sense inventories with given allocations and statistics, and what they record."""

from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from fairseq_kerbs.likelihood.nll import NllOptions, nll_with_probabilities
from fairseq_kerbs.senses import SenseInventory, checksum_of
from tests.helpers.likelihood import senses_of
from tests.helpers.reference import Problem


def inventory_of(owners: Any, vocab_size: int, most: int = 4, **values: Any) -> SenseInventory:
    """An inventory of senses with these words, and with these values of other buffers."""
    inventory = SenseInventory(vocab_size, len(owners), most)
    state = inventory.state_dict()
    for name, value in {"word_of_sense": owners, **values}.items():
        state[name] = torch.as_tensor(value, dtype=state[name].dtype)
    state["checksum"] = checksum_of(state["word_of_sense"])
    inventory.load_state_dict(state)
    return inventory


@st.composite
def sizes(draw: st.DrawFn) -> tuple[int, int, int]:
    """A number of words, a number of senses, and the maximum number of senses of a word."""
    vocab_size = draw(st.integers(1, 60))
    max_senses = draw(st.integers(1, 5))
    return vocab_size, draw(st.integers(vocab_size, vocab_size * max_senses)), max_senses


def probabilities_of(p: Problem, rows: list[int]) -> tuple[Tensor, Any]:
    """Targets of some rows of a problem, and their probabilities."""
    part = p.target[rows]
    return part, nll_with_probabilities(p.h[rows], senses_of(p), part, NllOptions(ignore_index=-1))[
        2
    ]
