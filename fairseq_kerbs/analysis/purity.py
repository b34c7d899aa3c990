"""How well learned senses separate true ones, against a single sense and against chance.

Of the occurrences of one word, let n(s, g) be those with learned sense s and true sense g. Purity
is the share that would be right if each learned sense meant the true sense it most often goes with:

    purity = Σ_s max_g n(s, g) / Σ n

A model with one sense a word reaches the share of the most frequent true sense. More senses reach
more even when they mean nothing; chance is the mean purity after shuffling the learned senses
among the occurrences of the word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from fairseq_kerbs.corpora.files import read_lines
from fairseq_kerbs.errors import UserError

SHUFFLES = 200


@dataclass(frozen=True)
class Purity:
    """Purity of one word's learned senses (or of many words together).

    Attributes:
        occurrences: how many were counted.
        purity: see the head of this file, within (0, 1].
        single: what one sense a word reaches.
        chance: what as many senses reach by chance.
    """

    occurrences: int
    purity: float
    single: float
    chance: float


def purity_of(learned: Sequence[object], true: Sequence[object]) -> float:
    """Purity of one grouping against another.

    Raises:
        ValueError: the two differ in length, or are empty.
    """
    if len(learned) != len(true) or not learned:
        raise ValueError("purity needs as many learned senses as true ones, and at least one")
    largest: dict[object, int] = {}
    for (group, _), count in Counter(zip(learned, true, strict=True)).items():
        largest[group] = max(largest.get(group, 0), count)
    return sum(largest.values()) / len(true)


def measure(learned: Sequence[object], true: Sequence[object], seed: int = 1) -> Purity:
    """Purity of one word with both baselines; chance from :data:`SHUFFLES` seeded shuffles."""
    rng, shuffled, total = Random(seed), list(learned), 0.0
    for _ in range(SHUFFLES):
        rng.shuffle(shuffled)
        total += purity_of(shuffled, true)
    single = max(Counter(true).values()) / len(true)
    return Purity(len(true), purity_of(learned, true), single, total / SHUFFLES)


def overall(words: Sequence[Purity]) -> Purity:
    """Mean over words, weighted by occurrences."""
    count = sum(word.occurrences for word in words)

    def mean(name: str) -> float:
        return float(sum(getattr(word, name) * word.occurrences for word in words)) / count

    return Purity(count, mean("purity"), mean("single"), mean("chance"))


def read_gold_senses(path: Path) -> dict[tuple[int, int, str], str]:
    """True senses by (line, occurrence in the line, word), as the synthetic corpus writes them.

    Raises:
        UserError: the file is missing, empty or has a line of another form.
    """
    gold: dict[tuple[int, int, str], str] = {}
    for number, row in enumerate(read_lines(path), start=1):
        fields = row.split("\t")
        if len(fields) != 4 or not (fields[0].isdigit() and fields[1].isdigit()):
            raise UserError(
                f"{path}, line {number}: expected line, occurrence, word and sense between tabs"
            )
        gold[int(fields[0]), int(fields[1]), fields[2]] = fields[3]
    if not gold:
        raise UserError(f"{path} is empty")
    return gold
