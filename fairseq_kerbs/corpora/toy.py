"""The embedded corpus: German-like sentences, their English, and the gold sense of ambiguous words.

Twelve English words (`AMBIGUOUS`) translate two to four German words each, in contexts that tell
which: *bank* is Bank or Ufer, *spring* Frühling, Feder or Quelle, *light* Licht, leicht, hell or
anzünden. The text is cased and has punctuation, so that tokenization has work to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from fairseq_kerbs.corpora.files import atomic_write, iter_lines
from fairseq_kerbs.corpora.toy_grammar import Composer, Sentence
from fairseq_kerbs.corpora.toy_lexicon import AMBIGUOUS as _AMBIGUOUS
from fairseq_kerbs.errors import UserError

SPLITS = ("test", "valid", "train")
LANGUAGES = ("de", "en")
AMBIGUOUS: dict[str, frozenset[str]] = {
    word: frozenset(lemmas) for word, lemmas in _AMBIGUOUS.items()
}
"""English word -> the German lemmas that it translates: its true senses."""

_PLAIN_CARDS = 20  # sentences in a deck without any demand for an ambiguous word
_FIRST_SENSE_CARDS = 3  # a word's first sense is this frequent, the others one less
_MAX_REDRAWS = 2000


@dataclass(frozen=True)
class GoldSense:
    """The true sense of one ambiguous word: a row of a ``.senses.tsv`` file."""

    line: int  # of the English file, from 0
    occurrence: int  # of this word form in the line, from 0
    word: str
    sense: str  # German lemma


def _deck() -> list[tuple[str, str] | None]:
    """How often each sense is asked for in one round: the same in every round and split."""
    cards: list[tuple[str, str] | None] = [None] * _PLAIN_CARDS
    for word, lemmas in _AMBIGUOUS.items():
        for rank, lemma in enumerate(lemmas):
            cards += [(word, lemma)] * (_FIRST_SENSE_CARDS - (rank > 0))
    return cards


def _demands(rng: Random) -> Iterator[tuple[str, str] | None]:
    """Shuffled decks without end, so that every sense comes at its rate in any run of lines."""
    while True:
        cards = _deck()
        while cards:
            yield cards.pop(int(rng.random() * len(cards)))


def generate_split(count: int, seed: int, taken: set[str] | None = None) -> Iterator[Sentence]:
    """`count` sentence pairs, whose German and English both differ from all that is in `taken`.

    `taken` grows by what is drawn. Deterministic in (`seed`, contents of `taken`) on every Python.

    Raises:
        UserError: the grammar cannot make so many different sentences.
    """
    taken = set() if taken is None else taken
    rng = Random(seed)
    composer = Composer(rng)
    demands = _demands(rng)
    for _ in range(count):
        demand = next(demands)
        for _ in range(_MAX_REDRAWS):
            sentence = composer.sentence(demand)
            if sentence.de not in taken and sentence.en not in taken:
                break
        else:
            raise UserError(
                f"the toy grammar cannot make {count} different pairs; ask for fewer (--train)"
            )
        taken.update((sentence.de, sentence.en))
        yield sentence


def write_toy_corpus(
    folder: Path | str, train: int = 20000, valid: int = 500, test: int = 500, seed: int = 1
) -> dict[str, int]:
    """Write ``{train,valid,test}.{de,en}`` and ``….senses.tsv``; return the pairs of each split.

    Test and validation sentences depend on `seed` and their own sizes alone, not on `train`. No
    sentence, German or English, occurs twice in the corpus. ``train.senses.tsv`` gets its name
    last: where it is, the corpus is whole.

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
        raise UserError(f"{folder} is a file; the toy corpus needs a folder")
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


def read_gold_senses(path: Path | str) -> list[GoldSense]:
    """The rows of a ``.senses.tsv`` file.

    Raises:
        UserError: the file is missing or a row has not the four fields.
    """
    rows = []
    for number, line in enumerate(iter_lines(path), start=1):
        fields = line.split("\t")
        if len(fields) != 4 or not (fields[0].isdecimal() and fields[1].isdecimal()):
            raise UserError(f"{path}, line {number}: not 'line, occurrence, word, sense'")
        rows.append(GoldSense(int(fields[0]), int(fields[1]), fields[2], fields[3]))
    return rows
