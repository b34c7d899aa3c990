"""Toy corpus of German-English sentence pairs, with gold senses of twelve ambiguous words.

Sentences are composed from the templates of clauses in toy.yaml. The order of random draws must not
change, as a seed must always give the same text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import yaml

from fairseq_kerbs.data.gold import gold_text
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import atomic_write, lock_folder

_TABLE: dict[str, Any] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
_ADJECTIVES = _TABLE["adjectives"] | _TABLE["fixed adjectives"]
_NOUNS = {
    name: [noun.split() for noun in text.split(", ")] for name, text in _TABLE["nouns"].items()
}
_NOUNS |= {noun[0].partition("+")[0]: [noun] for nouns in _NOUNS.values() for noun in nouns}
_CASES = "", "a", "d"  # nominative, accusative, dative, as templates name them
PLAIN: list[str] = _TABLE["plain"].split("; ")
SENSES: dict[str, list[str]] = {name: text.split("; ") for name, text in _TABLE["senses"].items()}
"""Templates by ambiguous English word and German lemma, such as "bank Ufer"."""


class Composer:
    """Composes random sentences. A tense is 0 (present) or 1 (past)."""

    def __init__(self, seed: int) -> None:
        self._rng = Random(seed)
        self._tense = 0

    def sentence(self, sense: str) -> tuple[str, str]:
        """German and English sentence with a sense's word, or for "" without ambiguous words."""
        self._tense = self._rng.randrange(2)
        german_frame, english_frame = self._fill(_draw(self._rng, _TABLE["frames"]))
        clauses = [self._clause(self._rng.choice(SENSES.get(sense, PLAIN)))]
        if "{b." in german_frame:
            clauses.append(self._clause(self._rng.choice(PLAIN)))
            self._rng.shuffle(clauses)
        german = german_frame.format(a=clauses[0], b=clauses[-1])
        english = english_frame.format(a=clauses[0], b=clauses[-1])
        for words, contracted in _TABLE["contractions"].items():
            german = re.sub(rf"\b{words}\b", contracted, german)
        return _written(german), _written(re.sub(r"\ba(?= [aeiou])", "an", english))

    def _clause(self, template: str) -> SimpleNamespace:
        """English clause, and the German one in three word orders."""
        german, english = self._fill(template)
        subject, verb, rest, end = [*german.split(" / "), "", ""][:4]
        time = ""
        when = ""
        first = False
        if self._rng.random() < 0.4:
            time, when = self._fill(_TABLE["time"])
            first = self._rng.random() < 0.4
        begin = f"{time} {verb} {subject}" if first else f"{subject} {verb} {time}"
        return SimpleNamespace(
            english=f"{when} {english}" if first else f"{english} {when}",
            main=f"{begin} {rest} {end.removesuffix('-')}",
            inverted=f"{verb} {subject} {time} {rest} {end.removesuffix('-')}",
            subordinate=f"{subject} {time} {rest} {end} {verb}".replace("- ", ""),
        )

    def _fill(self, template: str) -> tuple[str, str]:
        """German and English of a template, with random alternatives and filled slots."""
        german_side, english_side = template.split(" = ")
        options = re.findall(r"\[(.*?)\]", german_side)
        choices = [self._rng.randrange(option.count("/") + 1) for option in options]
        german = _chosen(german_side, choices, self._tense)
        english = _chosen(english_side, choices, self._tense)
        for slot in re.findall("<(.*?)>", german):
            phrase = self._phrase(slot)
            german = german.replace(f"<{slot}>", phrase[0], 1)
            english = english.replace("<>", phrase[1], 1)
        return german, english

    def _phrase(self, slot: str) -> tuple[str, str]:
        """German and English noun phrase for the content of <…> in a template."""
        *adjectives, slot = slot.split()
        classes, _, case = slot.partition(":")
        nouns = [noun for name in classes.split(",") for noun in _NOUNS[name]]
        german, gender, english = self._rng.choice(nouns)
        lemma, _, ending = german.partition("+")
        if gender == "-":
            return lemma, english
        if not adjectives and self._rng.random() < 0.25:
            adjectives = [self._rng.choice(list(_TABLE["adjectives"]))]
        article = _draw(self._rng, _TABLE["determiners"])
        # endings of the article in the three cases, then those of the adjectives
        endings = article[gender].replace("_", "").split(" ")
        number = _CASES.index(case)
        end = endings[number]
        weak_end = endings[len(_CASES) + number]
        words = [article["de"] + end, *(adjective + weak_end for adjective in adjectives)]
        words.append(lemma + ending if case else lemma)
        translated = [article["en"], *(_ADJECTIVES[adjective] for adjective in adjectives), english]
        return " ".join(words), " ".join(translated)


def _draw(rng: Random, table: Sequence[Sequence[Any]]) -> Any:
    """Draw an entry of a table, which has pairs of an entry and its weight."""
    entries = [entry for entry, _ in table]
    weights = [weight for _, weight in table]
    return rng.choices(entries, weights)[0]


def _chosen(side: str, choices: list[int], tense: int) -> str:
    """One side of a template with the chosen alternatives, in a tense."""

    def form(forms: str) -> str:
        present, *past = forms.split("|")
        return past[0] if past and tense else present

    parts = re.split(r"\[(.*?)\]", side)
    for index, choice in enumerate(choices):
        parts[2 * index + 1] = form(parts[2 * index + 1].split("/")[choice])
    return re.sub(r"\S+\|\S+", lambda forms: form(forms[0]), "".join(parts))


def _written(text: str) -> str:
    """A sentence with single spaces and capitals."""
    text = re.sub(" (?=[,.?])", "", " ".join(text.split()))
    return re.sub(r'(^|: ")\w', lambda start: start[0].upper(), text)


def toy_pairs(count: int, seed: int, taken: set[str]) -> Iterator[tuple[str, str, str]]:
    """Generate pairs of German and English sentences, with their sense or "".

    Sentences in ``taken`` are not repeated, and new ones are added to it. A UserError is raised if
    the templates have too few sentences.
    """
    composer = Composer(seed)
    rng = Random(seed)
    for sense in rng.choices(["", *SENSES], [7, *[1] * len(SENSES)], k=count):
        for _ in range(2000):
            german, english = composer.sentence(sense)
            if taken.isdisjoint((german, english)):
                break
        else:
            raise UserError(
                f"the templates have fewer than {count} different pairs; reduce --train, --valid "
                "or --test"
            )
        taken |= {german, english}
        yield german, english, sense


def write_toy_corpus(
    folder: Path | str, train: int = 20000, valid: int = 500, test: int = 500, seed: int = 1
) -> None:
    """Write ``{train,valid,test}.{de,en}``, and gold senses ``….senses.tsv`` (see :mod:`.gold`).

    No sentence occurs twice. Test and validation sentences do not depend on the size of the
    training set. ``train.senses.tsv`` is written last and marks a complete corpus. A UserError is
    raised if another run writes to the folder, it has texts of another corpus, or the templates
    have too few sentences.
    """
    folder = Path(folder)
    for split in ("test", "valid", "train"):
        for suffix in ("de", "en"):
            file = folder / f"{split}.{suffix}"
            if file.exists() and not (folder / f"{split}.senses.tsv").exists():
                raise UserError(
                    f"{file} is no text of 'fairseq-kerbs toy', and would be overwritten; name "
                    "another folder"
                )
    taken = set[str]()
    with lock_folder(folder, f"another run is writing to {folder}; wait for its end"):
        for index, (split, size) in enumerate((("test", test), ("valid", valid), ("train", train))):
            pairs = list(toy_pairs(size, 3 * seed + index, taken))
            senses = [(line, sense.split()) for line, (*_, sense) in enumerate(pairs) if sense]
            gold = gold_text((line, 0, word, lemma) for line, (word, lemma) in senses)
            german = "".join(f"{side}\n" for side, _, _ in pairs)
            english = "".join(f"{side}\n" for _, side, _ in pairs)
            for suffix, text in (("de", german), ("en", english), ("senses.tsv", gold)):
                with atomic_write(folder / f"{split}.{suffix}") as stream:
                    stream.write(text)
