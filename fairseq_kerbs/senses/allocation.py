"""Initial allocations of senses to words (Section 4.2)."""

from __future__ import annotations

import torch
from torch import Tensor


def _check_sizes(vocab_size: int, total_senses: int, max_senses: int) -> None:
    """Raise a ValueError unless every word can have one to ``max_senses`` senses."""
    if max_senses < 1:
        raise ValueError(f"`max_senses` is {max_senses}, but every word needs at least one sense.")
    if total_senses < vocab_size:
        raise ValueError(
            f"`total_senses` gives {total_senses} senses for {vocab_size} words, but every word "
            "needs at least one: ask for as many senses as words, or more."
        )
    if total_senses > vocab_size * max_senses:
        raise ValueError(
            f"`total_senses` gives {total_senses} senses for {vocab_size} words, more than "
            f"`max_senses` {max_senses} of each: ask for at most {max_senses} times as many senses "
            "as words, or raise `max_senses`."
        )


def random_allocation(
    vocab_size: int, total_senses: int, max_senses: int, generator: torch.Generator | None = None
) -> Tensor:
    """Allocate senses to words at random, and return the word of each sense, [M].

    Sense i < V belongs to word i, like the rows of a softmax. The others are drawn uniformly from
    the free places of all words.

    Args:
        vocab_size: number of words V.
        total_senses: number of senses M.
        max_senses: maximum number of senses of a word.
        generator: random generator [torch's default].

    Raises:
        ValueError: M is below V or above ``max_senses`` · V.
    """
    _check_sizes(vocab_size, total_senses, max_senses)
    places = torch.randperm(vocab_size * (max_senses - 1), generator=generator)
    extra = places[: total_senses - vocab_size] % vocab_size
    return torch.cat([torch.arange(vocab_size), extra])


def equal_allocation(
    vocab_size: int, total_senses: int, max_senses: int, generator: torch.Generator | None = None
) -> Tensor:
    """Allocate equally many senses to all words, and return the word of each sense, [M].

    Sense m belongs to word m mod V, as in the authors' released code. That code has only whole
    numbers M/V. Otherwise, and this is our choice, the last M mod V senses belong to different
    words, which are drawn at random. Arguments and errors are those of :func:`random_allocation`.
    """
    _check_sizes(vocab_size, total_senses, max_senses)
    each, rest = divmod(total_senses, vocab_size)
    extra = torch.randperm(vocab_size, generator=generator)[:rest]
    return torch.cat([torch.arange(vocab_size).repeat(each), extra])


ALLOCATIONS = {"random": random_allocation, "equal": equal_allocation}
"""Initial allocations of senses to words, by their name for ``--sense-allocation``."""
