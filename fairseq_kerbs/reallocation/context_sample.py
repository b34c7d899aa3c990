"""A random sample of the contexts of each word, in bounded memory."""

from __future__ import annotations

import torch
from torch import Tensor

LEAST_CONTEXTS = 40
"""Words with fewer contexts keep one sense, and so do special symbols."""

FLOAT16_MAX = 65504.0


class ContextSample:
    """A random sample of the contexts of each word, drawn in one pass (Vitter's algorithm R).

    Args:
        counts: expected number of contexts of each word, [V]. There may be more. Words with fewer
            than :data:`LEAST_CONTEXTS` are not sampled.
        dim: size d of contexts. They are stored in float16.
        most: maximum number of contexts of a word.
        memory: maximum size of the sample in bytes.
        special: number of special symbols at the start of the vocabulary, which are not sampled.
        seed: random seed.

    Raises:
        ValueError: ``most`` is below :data:`LEAST_CONTEXTS`, or ``memory`` is too small for as many
            contexts of each word.
    """

    size: Tensor  # maximum number of contexts of each word, [V]
    seen: Tensor  # number of contexts of each word that were added, [V]
    start: Tensor  # first row of each word in `kept`, [V]
    kept: Tensor  # contexts, [Σ size, d] in float16
    tags: Tensor  # what the caller gave with each context, int64 [Σ size], −1 for nothing
    device: torch.device  # of the contexts added last

    def __init__(
        self, counts: Tensor, dim: int, most: int, memory: int, special: int = 0, seed: int = 1
    ) -> None:
        if most < LEAST_CONTEXTS:
            raise ValueError(
                f"`most` is {most}, but clusters need {LEAST_CONTEXTS} contexts a word."
            )
        counts = torch.where(counts >= LEAST_CONTEXTS, counts, 0).cpu()
        counts[:special] = 0
        rows = memory // (2 * dim)
        most = min(most, _equal_limit(counts, rows))
        words = int((counts > 0).sum())
        if words and most < LEAST_CONTEXTS:
            need = f"{2e-9 * dim * LEAST_CONTEXTS * words:.2g} GB for {LEAST_CONTEXTS} contexts"
            raise ValueError(f"{memory / 1e9:.3g} GB are not enough: {words} words need {need}.")
        self._reset(counts.clamp_max(most), dim, seed)

    def _reset(self, size: Tensor, dim: int, seed: int) -> None:
        self.seed = seed
        self.size = size
        self.seen = torch.zeros_like(size)
        self.start = size.cumsum(0) - size
        self.kept = torch.empty(int(size.sum()), dim, dtype=torch.float16)
        self.tags = torch.full((len(self.kept),), -1)
        self.device = self.kept.device

    def _filled(self) -> Tensor:
        """Mask of the rows of :attr:`kept` that have a context."""
        place = torch.arange(len(self.kept)) - self.start.repeat_interleave(self.size)
        return place < self.seen.repeat_interleave(self.size)

    def state(self) -> dict[str, Tensor]:
        """State for a checkpoint, see :meth:`from_state`."""
        return {
            "size": self.size,
            "seen": self.seen,
            "kept": self.kept[self._filled()],
            "seed": torch.tensor(self.seed),
        }

    @classmethod
    def from_state(cls, state: dict[str, Tensor]) -> ContextSample:
        """Restore a sample from :meth:`state`. Sampling continues identically, without tags."""
        sample = cls.__new__(cls)
        sample._reset(state["size"].cpu(), state["kept"].shape[1], int(state["seed"]))
        sample.seen += state["seen"].cpu()
        sample.kept[sample._filled()] = state["kept"].cpu().half()
        return sample

    @property
    def dim(self) -> int:
        """Size d of contexts."""
        return self.kept.shape[1]

    @property
    def enough(self) -> Tensor:
        """Mask of words with enough contexts for clusters, [V]."""
        return (self.seen >= LEAST_CONTEXTS) & (self.size > 0)

    def add(self, words: Tensor, contexts: Tensor, tags: Tensor | None = None) -> None:
        """Add contexts [n, d] of words [n], each with an integer of ``tags`` [n] if it is given."""
        generator = torch.Generator().manual_seed(self.seed + int(self.seen.sum()))
        words, order = torch.sort(words.cpu(), stable=True)
        # number of each context among those of its word
        number = torch.arange(len(words)) - torch.searchsorted(words, words) + self.seen[words]
        self.seen += torch.bincount(words, minlength=len(self.seen))
        size = self.size[words]
        drawn = torch.rand(len(words), generator=generator)
        place = torch.where(number < size, number, (drawn.double() * (number + 1)).long())
        taken = (place < size).nonzero().squeeze(1)
        filled, which = (self.start[words] + place)[taken].unique(return_inverse=True)
        # of several contexts for the same row the last one stays
        last = torch.zeros_like(filled).scatter_reduce(0, which, taken, "amax")
        rows = contexts[order[last].to(contexts.device)].float().clamp(-FLOAT16_MAX, FLOAT16_MAX)
        self.kept[filled] = rows.to(self.kept)
        if tags is not None:
            self.tags[filled] = tags.cpu()[order[last]]
        self.device = contexts.device

    def contexts(self, word: int) -> Tensor:
        """Sampled contexts of a word, [n, d] in float32."""
        return self.kept[self._rows(word)].float()

    def tags_of(self, word: int) -> Tensor:
        """Tags of the sampled contexts of a word, [n]."""
        return self.tags[self._rows(word)]

    def _rows(self, word: int) -> slice:
        """Rows of :attr:`kept` that have a context of a word."""
        start = int(self.start[word])
        return slice(start, start + int(self.size[word].minimum(self.seen[word])))


def _equal_limit(counts: Tensor, rows: int) -> int:
    """The largest m with Σ_v min(m, counts_v) ≤ rows: of a word at most m contexts fit, [V] -> m.

    If the i smallest counts stay as they are, the other words divide the remaining rows. The
    largest of these quotients over i is m: a smaller i gives rows to words that do not need them,
    and a larger one leaves too few to the others.
    """
    ordered = counts.sort().values
    unlimited = ordered.cumsum(0) - ordered  # rows of the i smallest, for i = 0 … V − 1
    others = torch.arange(len(counts), 0, -1)
    return int(((rows - unlimited) // others).max())
