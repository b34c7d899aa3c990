"""The synthetic corpus: German-like sentences, their English, the gold sense of ambiguous words.

Twelve English words (`AMBIGUOUS`) translate two to four German words each, in contexts that tell
which: *bank* is Bank or Ufer, *spring* Frühling, Feder or Quelle, *light* Licht, leicht, hell or
anzünden. The text is cased and has punctuation, so that tokenization has work to do.

Everything random comes from ``random.Random.random()``, the one method whose values Python promises
never to change for a given seed; the order of the draws is part of the corpus.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple, TypeVar

from fairseq_kerbs.corpora import synthetic_grammar as grammar
from fairseq_kerbs.corpora.binarize import check_numbers
from fairseq_kerbs.corpora.synthetic_grammar import Clause, Frame, Noun, NounPhrase, Pair, Slot
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import atomic_write

T = TypeVar("T")

TENSES = {
    "present": 36, "past": 24, "perfect": 16, "future": 8, "können present": 5,
    "müssen present": 4, "wollen present": 4, "können past": 1, "müssen past": 1, "wollen past": 1,
    "sollen present": 2,
}  # fmt: skip
PRONOUNS = [
    NounPhrase(word=(german, english), person=person, gender=gender)
    for german, english, person, gender in (
        ("er", "he", "3s", "m"), ("sie", "she", "3s", "f"), ("ich", "I", "1s", ""),
        ("wir", "we", "1p", ""), ("sie", "they", "3p", ""),
    )
]  # fmt: skip
NAMES = [
    NounPhrase(word=(name, name), gender=gender)
    for gender, names in {"f": "Anna Maria Lena", "m": "Peter Karl Paul"}.items()
    for name in names.split()
]
POSSESSIVES = {  # by person, else by gender
    "1s": ("mein", "my"), "1p": ("unser", "our"), "3p": ("ihr", "their"), "f": ("ihr", "her"),
    "m": ("sein", "his"), "animal f": ("ihr", "its"), "animal m": ("sein", "its"),
    "animal n": ("sein", "its"),
}  # fmt: skip
PERSON = Slot("nom", nouns=("PERSON",))
PERSON_FRAMES = [frame for frame in grammar.PLAIN_FRAMES if "PERSON" in frame.subject.nouns]
NONE, THE = ("", ""), ("der", "the")


class Sentence(NamedTuple):
    """One sentence pair: raw German, raw English, and (word, occurrence, lemma) of gold senses."""

    de: str
    en: str
    senses: tuple[tuple[str, int, str], ...]


def _finish(german: str, english: str, end: str = ".") -> Sentence:
    """Rendered clauses to a sentence pair: blanks, commas, capitals, and the senses read off."""
    texts = []
    for rendered in (german, re.sub(r"\|\w+", "", english)):
        text = " ".join(rendered.split()).replace(" ,", ",").rstrip(",") + end
        texts.append(text[0].upper() + text[1:])
    found = re.findall(r"(\w+)\|(\w+)", english)
    words = [word for word, _ in found]
    senses = ((word, words[:i].count(word), lemma) for i, (word, lemma) in enumerate(found))
    return Sentence(texts[0], texts[1], tuple(senses))


class Composer:
    """Draws clauses and sentences from one random stream."""

    def __init__(self, rng: Random) -> None:
        self._random = rng.random

    def chance(self, probability: float) -> bool:
        return self._random() < probability

    def pick(self, items: Sequence[T]) -> T:
        return items[int(self._random() * len(items))]

    def weighted(self, weights: Mapping[T, int]) -> T:
        point = self._random() * sum(weights.values())
        for item, weight in weights.items():
            point -= weight
            if point < 0:
                return item
        return item

    def _when(self) -> str:
        return "past" if self.chance(0.5) else "present"

    def _determiner(self, noun: Noun, plural: bool, role: str, subject: NounPhrase | None) -> Pair:
        """Of a noun in the role subject, object, oblique or owner."""
        if noun.kind == "unique":
            return THE
        if noun.kind == "mass":
            return NONE if role == "object" and self.chance(0.7) else THE
        if role in ("object", "oblique") and subject is not None and self.chance(0.12):
            possessive = _possessive(subject)
            if possessive is not None:
                return possessive
        if role in ("object", "subject") and self.chance(0.04):
            name = self.pick(NAMES).word[0]
            return name + "s", name + "'s"
        if role == "owner":
            return THE
        choices = {THE: 50, ("dieser", "these" if plural else "this"): 8, ("mein", "my"): 6}
        if plural:
            choices |= {("zwei", "two"): 12, ("drei", "three"): 8, NONE: 12}
        else:
            choices |= {("ein", "a"): 12 if role == "oblique" else 30}
            choices |= {("kein", "no"): 3} if role == "object" else {}
        return self.weighted(choices)

    def noun_phrase(self, slot: Slot, role: str, subject: NounPhrase | None = None) -> NounPhrase:
        """A phrase for a slot; persons may be names, as subjects also pronouns."""
        if slot.case == "pred":
            adjective = self.pick(slot.nouns)
            return NounPhrase(word=(adjective, grammar.ADJECTIVES[adjective]))
        generic = "PERSON" in slot.nouns and not slot.adjective and not slot.owners
        if generic and role == "subject" and self.chance(0.3):
            return self.pick(PRONOUNS)
        if generic and role in ("subject", "object") and self.chance(0.12):
            return self.pick([name for name in NAMES if name != subject])
        lemmas = [n for name in slot.nouns for n in grammar.CLASSES.get(name, (name,))]
        noun = grammar.NOUNS[self.pick(lemmas)]
        plural = bool(noun.de_plural) and self.chance(0.28)
        owner, determiner = None, THE
        if slot.owners:
            owner = self.noun_phrase(Slot("gen", nouns=slot.owners), "owner")
        else:
            determiner = self._determiner(noun, plural, role, subject)
        adjective, usual = slot.adjective, grammar.USUAL_ADJECTIVES.get(noun.kind)
        if not adjective and usual and self.chance(0.12 if owner else 0.25):
            adjective = self.pick(usual)
        person = "3p" if plural else "3s"
        return NounPhrase(noun, plural, determiner, adjective, owner, person=person)

    def clause(self, frame: Frame, when: str = "", subject: NounPhrase | None = None) -> Clause:
        """A clause from a frame; `when` restricts its tenses to 'present' or 'past'."""
        subject = subject or self.noun_phrase(frame.subject, "subject")
        tense = self._tense(frame, when, subject.acts)
        complements = tuple(
            (slot, self.noun_phrase(slot, "oblique" if slot.preposition else "object", subject))
            for slot in frame.slots
        )
        has_no = any(phrase.determiner[0] == "kein" for _, phrase in complements)
        negated = not has_no and not tense.startswith("müssen") and self.chance(0.1)
        time = self.pick(grammar.ADVERBS[_time_of(tense)]) if self.chance(0.3) else NONE
        affirms = not negated and not has_no
        often = affirms and tense in ("present", "past", "perfect") and self.chance(0.12)
        frequency = self.pick(grammar.ADVERBS["frequency"]) if often else NONE
        does = any(slot.case == "acc" and not slot.preposition for slot in frame.slots)
        skilled = subject.acts and does and affirms and self.chance(0.15)
        manner = self.pick(grammar.ADVERBS["manner"]) if skilled else NONE
        return Clause(
            subject, grammar.VERBS[frame.verb], complements, tense, negated, time, frequency, manner
        )

    def _tense(self, frame: Frame, when: str, acts: bool) -> str:
        def fits(tense: str) -> bool:
            modal = " " in tense
            if modal and not acts and not tense.startswith("können"):
                return False  # things can, but neither want nor should
            if frame.base_form and not modal and tense != "future":
                return False
            return when in ("", _time_of(tense)) or (when, _time_of(tense)) == ("present", "future")

        choices = {"present": 6, "past": 4} if frame.verb == "sein" else TENSES
        return self.weighted({tense: n for tense, n in choices.items() if fits(tense)})

    def sentence(self, sense: tuple[str, str] | None) -> Sentence:
        """A sentence that contains the ambiguous word with that German lemma (None: no demand)."""
        frame = self.pick(grammar.PLAIN_FRAMES if sense is None else grammar.SENSE_FRAMES[sense])
        kinds = {
            self._simple: 42, self._with_subordinate: 22, self._coordinated: 10,
            self._reported: 8, self._question: 8, self._with_relative: 6, self._attempt: 4,
            self._quoted: 3,
        }  # fmt: skip
        return self.weighted(kinds)(frame)

    def _simple(self, frame: Frame) -> Sentence:
        clause = self.clause(frame)
        (de, en), rest = clause.time, clause._replace(time=NONE)
        if clause.time != NONE and self.chance(0.5):
            return _finish(f"{de} {rest.german('inverted')}", f"{en} {rest.english()}")
        return _finish(clause.german("main"), clause.english())

    def _two_clauses(self, frame: Frame, when: str = "") -> tuple[Clause, Clause]:
        """The clause of the frame and a plain one, in random order; at most one time adverb."""
        clause = self.clause(frame, when)
        other = self.clause(self.pick(grammar.PLAIN_FRAMES), when)._replace(time=NONE)
        return (clause, other) if self.chance(0.5) else (other, clause)

    def _with_subordinate(self, frame: Frame) -> Sentence:
        when = self._when()
        first, second = self._two_clauses(frame, when)
        de, en = self.pick(grammar.ADVERBS[f"with {when}"])
        german, english = f"{de} {second.german('subordinate')}", f"{en} {second.english()}"
        if self.chance(0.35):
            return _finish(f"{german}, {first.german('inverted')}", f"{english}, {first.english()}")
        return _finish(f"{first.german('main')}, {german}", f"{first.english()} {english}")

    def _coordinated(self, frame: Frame) -> Sentence:
        first, second = self._two_clauses(frame)
        de, en = (" und", " and") if self.chance(0.6) else (", aber", ", but")
        return _finish(
            f"{first.german('main')}{de} {second.german('main')}",
            f"{first.english()}{en} {second.english()}",
        )

    def _reported(self, frame: Frame) -> Sentence:
        tense, speaker = self._when(), self.noun_phrase(PERSON, "subject")
        verb = grammar.VERBS[self.pick(("sagen", "glauben", "hoffen"))]
        report, clause = Clause(speaker, verb, (), tense), self.clause(frame)
        return _finish(
            f"{report.german('main')}, dass {clause.german('subordinate')}",
            f"{report.english()} that {clause.english()}",
        )

    def _question(self, frame: Frame) -> Sentence:
        clause = self.clause(frame)._replace(negated=False)
        de, en = self.pick((NONE, NONE, ("warum", "why"), ("wann", "when")))
        if en == "when":
            clause = clause._replace(time=NONE)
        return _finish(
            f"{de} {clause.german('inverted')}", f"{en} {clause.english('question')}", "?"
        )

    def _with_relative(self, frame: Frame) -> Sentence:
        clause = self.clause(frame)
        noun = clause.subject.noun
        if noun is None or clause.subject.owner is not None:
            return self._coordinated(frame)
        subject = clause.subject._replace(relative=clause)
        if noun.kind == "person" and self.chance(0.5):
            main = self.clause(self.pick(PERSON_FRAMES), subject=subject)
        else:
            tense, speaker = self._when(), self.noun_phrase(PERSON, "subject")
            main = Clause(speaker, grammar.VERBS["sehen"], ((Slot("acc"), subject),), tense)
        return _finish(main.german("main"), main.english())

    def _attempt(self, frame: Frame) -> Sentence:
        clause = self.clause(frame)
        if not clause.subject.acts:
            return self._coordinated(frame)
        attempt = Clause(clause.subject, grammar.VERBS["versuchen"], (), self._when())
        if frame.verb == "sein":
            return self._reported(frame)
        clause = clause._replace(negated=False, time=NONE, frequency=NONE)
        return _finish(
            f"{attempt.german('main')}, {clause.german('infinitive')}",
            f"{attempt.english()} {clause.english('infinitive')}",
        )

    def _quoted(self, frame: Frame) -> Sentence:
        name, tense = self.pick(NAMES), "present" if self.chance(0.5) else "past"
        report = Clause(name, grammar.VERBS["sagen"], (), tense)
        outer, inner = _finish(report.german("main"), report.english(), ":"), self._simple(frame)
        return Sentence(f'{outer.de} "{inner.de}"', f'{outer.en} "{inner.en}"', inner.senses)


def _time_of(tense: str) -> str:
    if " " in tense:  # a modal verb
        return "past" if tense.endswith("past") else "future"
    return tense


def _possessive(subject: NounPhrase) -> Pair | None:
    """'sein'/'his', 'ihr'/'her', … for what belongs to the subject; None where nothing fits."""
    if not subject.acts:
        return None
    animal = "animal " if subject.noun and subject.noun.kind == "animal" else ""
    gender = subject.noun.gender if subject.noun else subject.gender
    return POSSESSIVES.get(subject.person) or POSSESSIVES.get(animal + gender)


def _demands(rng: Random) -> Iterator[tuple[str, str] | None]:
    """Shuffled rounds without end: each sense comes at its rate in any run of lines."""
    one_round: list[tuple[str, str] | None] = [None] * 20  # without any demand
    for word, lemmas in grammar.AMBIGUOUS.items():
        for rank, lemma in enumerate(lemmas):  # a word's first sense is more frequent
            one_round += [(word, lemma)] * (2 if rank else 3)
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
        for _ in range(2000):
            sentence = composer.sentence(demand)
            if taken.isdisjoint(sentence[:2]):
                break
        else:
            raise UserError(
                f"the synthetic grammar has no {count} different pairs; ask for fewer (--train)"
            )
        taken.update(sentence[:2])
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
    folder = Path(folder)
    check_numbers(**sizes)
    if seed < 0:
        raise UserError(f"--seed must not be negative, not {seed}")
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; the synthetic corpus needs a folder")
    taken: set[str] = set()
    for index, (split, size) in enumerate(sizes.items()):
        with (  # left from the last to the first
            atomic_write(folder / f"{split}.senses.tsv") as senses,
            atomic_write(folder / f"{split}.en") as english,
            atomic_write(folder / f"{split}.de") as german,
        ):
            pairs = generate_split(size, len(sizes) * seed + index, taken)
            for line, sentence in enumerate(pairs):
                german.write(sentence.de + "\n")
                english.write(sentence.en + "\n")
                for word, occurrence, lemma in sentence.senses:
                    senses.write(f"{line}\t{occurrence}\t{word}\t{lemma}\n")
    return sizes
