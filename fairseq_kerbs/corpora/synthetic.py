"""The synthetic corpus: German-like sentences, their English, the gold sense of ambiguous words.

Twelve English words (`AMBIGUOUS`) translate two to four German words each, in contexts that tell
which: *bank* is Bank or Ufer, *spring* Frühling, Feder or Quelle, *light* Licht, leicht, hell or
anzünden. The text is cased and has punctuation, so that tokenization has work to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

from fairseq_kerbs.corpora.synthetic_lexicon import AMBIGUOUS
from fairseq_kerbs.corpora.synthetic_sentences import Composer, Sentence
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import atomic_write

SPLITS = ("test", "valid", "train")

_PLAIN_DEMANDS = 20  # sentences in a round without any demand for an ambiguous word
_FIRST_SENSE_DEMANDS = 3  # a word's first sense is this frequent, the others one less
_MAX_REDRAWS = 2000


def _demands(rng: Random) -> Iterator[tuple[str, str] | None]:
    """Shuffled rounds without end: each sense comes at its rate in any run of lines."""
    one_round: list[tuple[str, str] | None] = [None] * _PLAIN_DEMANDS
    for word, lemmas in AMBIGUOUS.items():
        for rank, lemma in enumerate(lemmas):
            one_round += [(word, lemma)] * (_FIRST_SENSE_DEMANDS - (rank > 0))
    while True:
        left = one_round.copy()
        while left:
            yield left.pop(int(rng.random() * len(left)))


def generate_split(count: int, seed: int, taken: set[str]) -> Iterator[Sentence]:
    """`count` sentence pairs, whose German and English both differ from all that is in `taken`.

    `taken` grows by what is drawn. Deterministic in (`seed`, contents of `taken`) on every Python.

    Raises:
        UserError: the grammar cannot make so many different sentences.
    """
    rng = Random(seed)
    composer, demands = Composer(rng), _demands(rng)
    for _ in range(count):
        demand = next(demands)
        for _ in range(_MAX_REDRAWS):
            sentence = composer.sentence(demand)
            if sentence.de not in taken and sentence.en not in taken:
                break
        else:
            raise UserError(
                f"the synthetic grammar has no {count} different pairs; ask for fewer (--train)"
            )
        taken.update((sentence.de, sentence.en))
        yield sentence


def write_synthetic_corpus(
    folder: Path | str, train: int = 20000, valid: int = 500, test: int = 500, seed: int = 1
) -> dict[str, int]:
    """Write ``{train,valid,test}.{de,en}`` and ``….senses.tsv``; return the pairs of each split.

    A row of a ``.senses.tsv`` file holds, between tabs, the line of the English file (from 0), the
    occurrence of this word form in it (from 0), the word and its sense, a German lemma. Test and
    validation sentences depend on `seed` and their own sizes alone, not on `train`. No sentence,
    German or English, occurs twice in the corpus. ``train.senses.tsv`` gets its name last: where it
    is, the corpus is whole.

    Raises:
        UserError: a size below 1, a negative seed, or more pairs than the grammar has.
    """
    sizes = {"test": test, "valid": valid, "train": train}
    for split, size in sizes.items():
        if size < 1:
            raise UserError(f"--{split} must be at least 1, not {size}")
    if seed < 0:
        raise UserError(f"--seed must not be negative, not {seed}")
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; the synthetic corpus needs a folder")
    taken: set[str] = set()
    for index, split in enumerate(SPLITS):
        prefix = folder / split
        with (  # left from the last to the first
            atomic_write(f"{prefix}.senses.tsv") as senses,
            atomic_write(f"{prefix}.en") as english,
            atomic_write(f"{prefix}.de") as german,
        ):
            pairs = generate_split(sizes[split], len(SPLITS) * seed + index, taken)
            for line, sentence in enumerate(pairs):
                german.write(sentence.de + "\n")
                english.write(sentence.en + "\n")
                for word, occurrence, lemma in sentence.senses:
                    senses.write(f"{line}\t{occurrence}\t{word}\t{lemma}\n")
    return sizes
