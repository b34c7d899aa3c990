"""Draws random sentence pairs of the synthetic corpus.

Everything random comes from ``random.Random.random()``, the one method whose values Python promises
never to change for a given seed; the order of the draws is part of the corpus.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import NamedTuple, TypeVar

from fairseq_kerbs.corpora.synthetic_grammar import Clause, NounPhrase
from fairseq_kerbs.corpora.synthetic_lexicon import (
    ADJECTIVES,
    ADVERBS,
    CLASSES,
    NOUNS,
    PLAIN_FRAMES,
    SENSE_FRAMES,
    USUAL_ADJECTIVES,
    VERBS,
    Frame,
    Noun,
    Pair,
    Slot,
)

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
PERSON = Slot("nom", nouns=("PERSON",))
PERSON_FRAMES = [frame for frame in PLAIN_FRAMES if "PERSON" in frame.subject.nouns]
NONE, THE = ("", ""), ("der", "the")


class Sentence(NamedTuple):
    """One sentence pair: raw German, raw English, and (word, occurrence, lemma) of gold senses."""

    de: str
    en: str
    senses: tuple[tuple[str, int, str], ...]


def _finish(german: str, english: str, end: str = ".") -> Sentence:
    """Rendered clauses to a sentence pair: blanks, commas, capitals, and the senses read off."""

    def raw(text: str) -> str:
        text = " ".join(text.split()).replace(" ,", ",").rstrip(",") + end
        return text[0].upper() + text[1:]

    seen: Counter[str] = Counter()
    senses = []
    for word, lemma in re.findall(r"(\w+)\|(\w+)", english):
        senses.append((word, seen[word], lemma))
        seen[word] += 1
    return Sentence(raw(german), raw(re.sub(r"\|\w+", "", english)), tuple(senses))


class Composer:
    """Draws clauses and sentences from one random stream."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def chance(self, probability: float) -> bool:
        return self._rng.random() < probability

    def pick(self, items: Sequence[T]) -> T:
        return items[int(self._rng.random() * len(items))]

    def weighted(self, weights: Mapping[T, int]) -> T:
        point = self._rng.random() * sum(weights.values())
        for item, weight in weights.items():
            point -= weight
            if point < 0:
                return item
        return item

    def _when(self) -> str:
        return "past" if self.chance(0.5) else "present"

    # --- noun phrases ---------------------------------------------------------------------------

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
            return NounPhrase(word=(adjective, ADJECTIVES[adjective]))
        generic = "PERSON" in slot.nouns and not slot.adjective and not slot.owners
        if generic and role == "subject" and self.chance(0.3):
            return self.pick(PRONOUNS)
        if generic and role in ("subject", "object") and self.chance(0.12):
            return self.pick([name for name in NAMES if name != subject])
        noun = NOUNS[self.pick([n for name in slot.nouns for n in CLASSES.get(name, (name,))])]
        plural = bool(noun.de_plural) and self.chance(0.28)
        owner, determiner = None, THE
        if slot.owners:
            owner = self.noun_phrase(Slot("gen", nouns=slot.owners), "owner")
        else:
            determiner = self._determiner(noun, plural, role, subject)
        adjective, usual = slot.adjective, USUAL_ADJECTIVES.get(noun.kind)
        if not adjective and usual and self.chance(0.12 if owner else 0.25):
            adjective = self.pick(usual)
        person = "3p" if plural else "3s"
        return NounPhrase(noun, plural, determiner, adjective, owner, person=person)

    # --- clauses --------------------------------------------------------------------------------

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
        time = self.pick(ADVERBS[_time_of(tense)]) if self.chance(0.3) else NONE
        affirms = not negated and not has_no
        often = affirms and tense in ("present", "past", "perfect") and self.chance(0.12)
        frequency = self.pick(ADVERBS["frequency"]) if often else NONE
        does = any(slot.case == "acc" and not slot.preposition for slot in frame.slots)
        skilled = subject.acts and does and affirms and self.chance(0.15)
        manner = self.pick(ADVERBS["manner"]) if skilled else NONE
        return Clause(
            subject, VERBS[frame.verb], complements, tense, negated, time, frequency, manner
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

    # --- sentences ------------------------------------------------------------------------------

    def sentence(self, sense: tuple[str, str] | None) -> Sentence:
        """A sentence that contains the ambiguous word with that German lemma (None: no demand)."""
        frame = self.pick(PLAIN_FRAMES if sense is None else SENSE_FRAMES[sense])
        kinds = {
            self._simple: 42, self._with_subordinate: 22, self._coordinated: 10,
            self._reported: 8, self._question: 8, self._with_relative: 6, self._attempt: 4,
            self._quoted: 3,
        }  # fmt: skip
        return self.weighted(kinds)(frame)

    def _simple(self, frame: Frame) -> Sentence:
        clause = self.clause(frame)
        front = clause.time != NONE and self.chance(0.5)
        return _finish(clause.german_main(time_first=front), clause.english_main(time_first=front))

    def _two_clauses(self, frame: Frame, when: str = "") -> tuple[Clause, Clause]:
        """The clause of the frame and a plain one, in random order; at most one time adverb."""
        clause = self.clause(frame, when)
        other = self.clause(self.pick(PLAIN_FRAMES), when)._replace(time=NONE)
        return (clause, other) if self.chance(0.5) else (other, clause)

    def _with_subordinate(self, frame: Frame) -> Sentence:
        when = self._when()
        first, second = self._two_clauses(frame, when)
        de, en = self.pick(ADVERBS[f"with {when}"])
        if self.chance(0.35):
            return _finish(
                f"{de} {second.german_verb_last()}, {first.german_main(inverted=True)}",
                f"{en} {second.english_main()}, {first.english_main()}",
            )
        return _finish(
            f"{first.german_main()}, {de} {second.german_verb_last()}",
            f"{first.english_main()} {en} {second.english_main()}",
        )

    def _coordinated(self, frame: Frame) -> Sentence:
        first, second = self._two_clauses(frame)
        de, en = (" und", " and") if self.chance(0.6) else (", aber", ", but")
        return _finish(
            f"{first.german_main()}{de} {second.german_main()}",
            f"{first.english_main()}{en} {second.english_main()}",
        )

    def _reported(self, frame: Frame) -> Sentence:
        tense = self._when()
        speaker = self.noun_phrase(PERSON, "subject")
        report = Clause(speaker, VERBS[self.pick(("sagen", "glauben", "hoffen"))], (), tense)
        clause = self.clause(frame)
        return _finish(
            f"{report.german_main()}, dass {clause.german_verb_last()}",
            f"{report.english_main()} that {clause.english_main()}",
        )

    def _question(self, frame: Frame) -> Sentence:
        clause = self.clause(frame)._replace(negated=False)
        de, en = self.pick((NONE, NONE, ("warum", "why"), ("wann", "when")))
        if en == "when":
            clause = clause._replace(time=NONE)
        german, english = clause.german_main(inverted=True), clause.english_question()
        return _finish(f"{de} {german}", f"{en} {english}", "?")

    def _with_relative(self, frame: Frame) -> Sentence:
        clause = self.clause(frame)
        noun = clause.subject.noun
        if noun is None or clause.subject.owner is not None:
            return self._coordinated(frame)
        subject = clause.subject._replace(relative=clause)
        if noun.kind == "person" and self.chance(0.5):
            main = self.clause(self.pick(PERSON_FRAMES), subject=subject)
        else:
            tense = self._when()
            speaker = self.noun_phrase(PERSON, "subject")
            main = Clause(speaker, VERBS["sehen"], ((Slot("acc"), subject),), tense)
        return _finish(main.german_main(), main.english_main())

    def _attempt(self, frame: Frame) -> Sentence:
        clause = self.clause(frame)
        if not clause.subject.acts:
            return self._coordinated(frame)
        tense = self._when()
        if frame.verb == "sein":
            return self._reported(frame)
        clause = clause._replace(negated=False, time=NONE, frequency=NONE)
        attempt = Clause(clause.subject, VERBS["versuchen"], (), tense)
        return _finish(
            f"{attempt.german_main()}, {clause.german_infinitive()}",
            f"{attempt.english_main()} {clause.english_infinitive()}",
        )

    def _quoted(self, frame: Frame) -> Sentence:
        name = self.pick(NAMES)
        report = Clause(name, VERBS["sagen"], (), "present" if self.chance(0.5) else "past")
        inner = self._simple(frame)
        outer = _finish(report.german_main(), report.english_main(), ":")
        return Sentence(f'{outer.de} "{inner.de}"', f'{outer.en} "{inner.en}"', inner.senses)


def _time_of(tense: str) -> str:
    if tense in ("present", "past", "perfect"):
        return tense
    return "past" if tense.endswith(" past") else "future"


def _possessive(subject: NounPhrase) -> Pair | None:
    """'sein'/'his', 'ihr'/'her', … for what belongs to the subject; None where nothing fits."""
    if subject.person in ("1s", "1p"):
        return ("mein", "my") if subject.person == "1s" else ("unser", "our")
    if not subject.acts:
        return None
    if subject.person == "3p":
        return "ihr", "their"
    noun = subject.noun
    animal = noun is not None and noun.kind == "animal"
    gender = subject.gender if noun is None else noun.gender
    if gender == "f":
        return "ihr", "its" if animal else "her"
    if gender == "n" and not animal:
        return None
    return "sein", "its" if animal else "his"
