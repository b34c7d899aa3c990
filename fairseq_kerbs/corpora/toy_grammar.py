"""Draws random sentence pairs of the embedded corpus.

Everything random comes from ``random.Random.random()``, the one method whose values Python promises
never to change for a given seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import TypeVar

from fairseq_kerbs.corpora.toy_lexicon import (
    CLASSES,
    NOUNS,
    PLAIN_FRAMES,
    SENSE_FRAMES,
    USUAL_ADJECTIVES,
    VERBS,
    Frame,
    Noun,
    Slot,
)
from fairseq_kerbs.corpora.toy_phrases import Adverbs, Clause, Complement, NounPhrase, Word, words

T = TypeVar("T")

TENSES = {
    "present": 36,
    "past": 24,
    "perfect": 16,
    "future": 8,
    "können present": 5,
    "müssen present": 4,
    "wollen present": 4,
    "können past": 1,
    "müssen past": 1,
    "wollen past": 1,
    "sollen present": 2,
}
TIMES = {
    "present": "heute,today jetzt,now am_Sonntag,on_Sunday am_Morgen,in_the_morning "
    "nachts,at_night",
    "past": "gestern,yesterday am_Montag,on_Monday letzte_Woche,last_week am_Abend,in_the_evening "
    "im_Jahr_1998,in_1998 im_Jahr_2007,in_2007 im_Jahr_2015,in_2015",
    "perfect": "heute,today diese_Woche,this_week dieses_Jahr,this_year",
    "future": "morgen,tomorrow bald,soon nächste_Woche,next_week am_Sonntag,on_Sunday",
}
FREQUENCIES = "oft,often immer,always nie,never manchmal,sometimes selten,rarely"
MANNERS = "schnell,quickly langsam,slowly vorsichtig,carefully leise,quietly gern,gladly"
PRONOUNS = (
    NounPhrase(pronoun=("er", "he"), gender="m"),
    NounPhrase(pronoun=("sie", "she"), gender="f"),
    NounPhrase(pronoun=("ich", "I"), person="1s"),
    NounPhrase(pronoun=("wir", "we"), person="1p"),
    NounPhrase(pronoun=("sie", "they"), person="3p"),
)
NAMES = (
    *(NounPhrase(pronoun=(name, name), gender="f") for name in ("Anna", "Maria", "Lena")),
    *(NounPhrase(pronoun=(name, name), gender="m") for name in ("Peter", "Karl", "Paul")),
)
SUBORDINATORS = {
    "present": "weil,because obwohl,although wenn,when",
    "past": "weil,because obwohl,although bevor,before als,when",
}
PERSON_FRAMES = tuple(frame for frame in PLAIN_FRAMES if "PERSON" in frame.subject.nouns)
REPORTS = ("sagen", "glauben", "hoffen")


@dataclass(frozen=True)
class Sentence:
    """One sentence pair: raw German, raw English, and (word, occurrence, lemma) of gold senses."""

    de: str
    en: str
    senses: tuple[tuple[str, int, str], ...]


def _pairs(text: str) -> list[tuple[str, str]]:
    out = []
    for item in text.split():
        de, _, en = item.replace("_", " ").partition(",")
        out.append((de, en))
    return out


class Composer:
    """Draws clauses and sentences from one random stream."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def chance(self, probability: float) -> bool:
        return self._rng.random() < probability

    def pick(self, items: Sequence[T]) -> T:
        return items[int(self._rng.random() * len(items))]

    def weighted(self, weights: dict[T, int]) -> T:
        point = self._rng.random() * sum(weights.values())
        for item, weight in weights.items():
            point -= weight
            if point < 0:
                return item
        return item

    # --- noun phrases ---------------------------------------------------------------------------

    def _noun(self, names: Sequence[str]) -> Noun:
        pool = [lemma for name in names for lemma in CLASSES.get(name, (name,))]
        return NOUNS[self.pick(pool)]

    def _determiner(
        self, noun: Noun, plural: bool, role: str, subject: NounPhrase | None
    ) -> tuple[str, str]:
        """(German, English) of a noun in the role subject, object, oblique or owner."""
        if noun.kind == "unique":
            return "der", "the"
        if noun.kind == "mass":
            return ("", "") if role == "object" and self.chance(0.7) else ("der", "the")
        if role in ("object", "oblique") and subject is not None and self.chance(0.12):
            possessive = _possessive(subject)
            if possessive is not None:
                return possessive
        if role in ("object", "subject") and self.chance(0.04):
            name = self.pick(NAMES).pronoun[0]
            return name + "s", name + "'s"
        choices: dict[tuple[str, str], int] = {("der", "the"): 50}
        if role == "owner":
            return "der", "the"
        choices[("dieser", "these" if plural else "this")] = 8
        choices[("mein", "my")] = 6
        if plural:
            choices |= {("zwei", "two"): 12, ("drei", "three"): 8, ("", ""): 12}
        else:
            choices[("ein", "a")] = 30 if role != "oblique" else 12
            if role == "object":
                choices[("kein", "no")] = 3
        return self.weighted(choices)

    def noun_phrase(self, slot: Slot, role: str, subject: NounPhrase | None = None) -> NounPhrase:
        """A phrase for a slot; persons as subjects may be pronouns or names."""
        generic = "PERSON" in slot.nouns and not slot.adjective and not slot.owners
        if generic and role == "subject" and self.chance(0.3):
            return self.pick(PRONOUNS)
        if generic and role in ("subject", "object") and self.chance(0.12):
            return self.pick([name for name in NAMES if name != subject])
        noun = self._noun(slot.nouns)
        plural = bool(noun.de_plural) and self.chance(0.28)
        owner = None
        if slot.owners:
            owner = self.noun_phrase(Slot("gen", "", "", slot.owners), "owner")
            determiner = ("der", "the")
        else:
            determiner = self._determiner(noun, plural, role, subject)
        adjective = slot.adjective
        usual = USUAL_ADJECTIVES[noun.kind]
        if not adjective and usual and self.chance(0.12 if owner else 0.25):
            adjective = self.pick(usual)
        return NounPhrase(
            noun=noun,
            plural=plural,
            determiner=determiner[0],
            en_determiner=determiner[1],
            adjective=adjective,
            owner=owner,
            person="3p" if plural else "3s",
        )

    # --- clauses --------------------------------------------------------------------------------

    def clause(self, frame: Frame, when: str = "", subject: NounPhrase | None = None) -> Clause:
        """A clause from a frame; `when` restricts its tenses to 'present' or 'past'."""
        subject = subject or self.noun_phrase(frame.subject, "subject")
        tense = self._tense(frame, when, subject.noun is None or subject.noun.living)
        complements = []
        for slot in frame.slots:
            if slot.case == "pred":
                complements.append(Complement(slot, adjective=self.pick(slot.nouns)))
                continue
            role = "oblique" if slot.de_preposition else "object"
            phrase = self.noun_phrase(slot, role, subject)
            complements.append(Complement(slot, phrase))
        has_no = any(c.phrase is not None and c.phrase.determiner == "kein" for c in complements)
        can_negate = not has_no and not tense.startswith("müssen")
        negated = can_negate and self.chance(0.1)
        return Clause(
            subject=subject,
            verb=VERBS[frame.verb],
            complements=tuple(complements),
            tense=tense,
            negated=negated,
            adverbs=self._adverbs(frame, subject, tense, negated or has_no),
        )

    def _tense(self, frame: Frame, when: str, living: bool) -> str:
        choices = TENSES
        if not living:  # things can, but neither want nor should
            choices = {t: w for t, w in choices.items() if t.startswith("können") or " " not in t}
        if frame.verb == "sein":
            choices = {"present": 6, "past": 4}
        elif frame.infinitive:
            choices = {t: w for t, w in choices.items() if " " in t or t == "future"}
        if when:
            times = {"past": ("past",), "present": ("present", "future")}[when]
            choices = {t: w for t, w in choices.items() if _time_of(t) in times}
        return self.weighted(choices)

    def _adverbs(self, frame: Frame, subject: NounPhrase, tense: str, negative: bool) -> Adverbs:
        none = ("", "")
        acts = subject.noun is None or subject.noun.living
        does = acts and any(slot.case == "acc" and not slot.de_preposition for slot in frame.slots)
        time = self.pick(_pairs(TIMES[_time_of(tense)])) if self.chance(0.3) else none
        often = not negative and tense in ("present", "past", "perfect") and self.chance(0.12)
        frequency = self.pick(_pairs(FREQUENCIES)) if often else none
        manner = does and not negative and self.chance(0.15)
        return Adverbs(time, frequency, self.pick(_pairs(MANNERS)) if manner else none)

    # --- sentences ------------------------------------------------------------------------------

    def sentence(self, sense: tuple[str, str] | None) -> Sentence:
        """A sentence that contains the ambiguous word with that German lemma (None: no demand)."""
        frame = self.pick(PLAIN_FRAMES if sense is None else SENSE_FRAMES[sense])
        build = self.weighted(
            {
                self._simple: 42,
                self._with_subordinate: 22,
                self._coordinated: 10,
                self._reported: 8,
                self._question: 8,
                self._with_relative: 6,
                self._attempt: 4,
                self._quoted: 3,
            }
        )
        return build(frame)

    def _simple(self, frame: Frame) -> Sentence:
        clause = self.clause(frame)
        front = bool(clause.adverbs.time[0]) and self.chance(0.5)
        return _finish(clause.german_main(front_time=front), clause.english_main(front_time=front))

    def _with_subordinate(self, frame: Frame) -> Sentence:
        when = "past" if self.chance(0.5) else "present"
        first, second = self._two_clauses(frame, when)
        de, en = self.pick(_pairs(SUBORDINATORS[when]))
        if self.chance(0.35):
            return _finish(
                [de, *second.german_verb_last(), ",", *first.german_main(inverted=True)],
                [Word(en), *second.english_main(), Word(","), *first.english_main()],
            )
        return _finish(
            [*first.german_main(), ",", de, *second.german_verb_last()],
            [*first.english_main(), Word(en), *second.english_main()],
        )

    def _two_clauses(self, frame: Frame, when: str) -> tuple[Clause, Clause]:
        """The clause of the frame and a plain one, in random order; at most one time adverb."""
        clause = self.clause(frame, when)
        other = self.clause(self.pick(PLAIN_FRAMES), when)
        other = replace(other, adverbs=replace(other.adverbs, time=("", "")))
        return (clause, other) if self.chance(0.5) else (other, clause)

    def _coordinated(self, frame: Frame) -> Sentence:
        first, second = self._two_clauses(frame, "")
        if self.chance(0.6):
            return _finish(
                [*first.german_main(), "und", *second.german_main()],
                [*first.english_main(), Word("and"), *second.english_main()],
            )
        return _finish(
            [*first.german_main(), ",", "aber", *second.german_main()],
            [*first.english_main(), Word(","), Word("but"), *second.english_main()],
        )

    def _speaker(self) -> NounPhrase:
        return self.noun_phrase(Slot("nom", "", "", ("PERSON",)), "subject")

    def _reported(self, frame: Frame) -> Sentence:
        tense = "past" if self.chance(0.5) else "present"
        report = Clause(self._speaker(), VERBS[self.pick(REPORTS)], (), tense)
        clause = self.clause(frame)
        return _finish(
            [*report.german_main(), ",", "dass", *clause.german_verb_last()],
            [*report.english_main(), Word("that"), *clause.english_main()],
        )

    def _question(self, frame: Frame) -> Sentence:
        clause = replace(self.clause(frame), negated=False)
        de, en = self.pick((("", ""), ("", ""), ("warum", "why"), ("wann", "when")))
        if en == "when":
            clause = replace(clause, adverbs=replace(clause.adverbs, time=("", "")))
        german = [*de.split(), *clause.german_main(inverted=True)]
        return _finish(german, [*words(en), *clause.english_question()], "?")

    def _with_relative(self, frame: Frame) -> Sentence:
        clause = self.clause(frame)
        if clause.subject.noun is None or clause.subject.owner is not None:
            return self._coordinated(frame)
        subject = replace(clause.subject, relative=clause)
        if clause.subject.noun.kind == "person" and self.chance(0.5):
            main = self.clause(self.pick(PERSON_FRAMES), subject=subject)
        else:
            seen = Complement(Slot("acc", "", "", ()), subject)
            tense = "past" if self.chance(0.5) else "present"
            main = Clause(self._speaker(), VERBS["sehen"], (seen,), tense)
        return _finish(main.german_main(), main.english_main())

    def _attempt(self, frame: Frame) -> Sentence:
        clause = replace(self.clause(frame), negated=False)
        if clause.subject.noun is not None and not clause.subject.noun.living:
            return self._coordinated(frame)
        tense = "past" if self.chance(0.5) else "present"
        if clause.verb.de == "sein":
            return self._reported(frame)
        clause = replace(clause, adverbs=Adverbs(manner=clause.adverbs.manner))
        attempt = Clause(clause.subject, VERBS["versuchen"], (), tense)
        return _finish(
            [*attempt.german_main(), ",", *clause.german_infinitive()],
            [*attempt.english_main(), *clause.english_infinitive()],
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


def _possessive(subject: NounPhrase) -> tuple[str, str] | None:
    """'sein'/'his', 'ihr'/'her', … for what belongs to the subject; None where nothing fits."""
    if subject.person == "1s":
        return "mein", "my"
    if subject.person == "1p":
        return "unser", "our"
    if subject.noun is not None and not subject.noun.living:
        return None
    if subject.person == "3p":
        return "ihr", "their"
    if subject.noun is None:
        return ("ihr", "her") if subject.gender == "f" else ("sein", "his")
    if subject.noun.gender == "f":
        return "ihr", "her" if subject.noun.kind == "person" else "its"
    if subject.noun.kind == "person" and subject.noun.gender == "n":
        return None
    return "sein", "his" if subject.noun.kind == "person" else "its"


def _join(parts: Sequence[str], end: str) -> str:
    """Words to a raw sentence: punctuation attached, first letter a capital."""
    text = " ".join(parts).replace(" ,", ",")
    text = text.rstrip(",") + end
    return text[0].upper() + text[1:]


def _finish(german: Sequence[str], english: Sequence[Word], end: str = ".") -> Sentence:
    senses: list[tuple[str, int, str]] = []
    seen: dict[str, int] = {}
    for word in english:
        if word.sense:
            senses.append((word.text, seen.get(word.text, 0), word.sense))
            seen[word.text] = seen.get(word.text, 0) + 1
    return Sentence(_join(german, end), _join([w.text for w in english], end), tuple(senses))
