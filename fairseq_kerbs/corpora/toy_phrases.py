"""Noun phrases and clauses of the embedded corpus, and how each is said in both languages."""

from __future__ import annotations

from dataclasses import dataclass, field

from fairseq_kerbs.corpora.toy_lexicon import ADJECTIVES, AMBIGUOUS, Noun, Slot, Verb
from fairseq_kerbs.corpora.toy_morphology import (
    ACCUSATIVE,
    CASE_INDEX,
    GENITIVE,
    NOMINATIVE,
    adjective_form,
    article,
    contract,
    english_verb,
    english_with_do,
    german_verb,
    german_zu_infinitive,
    noun_form,
)


@dataclass(frozen=True)
class Word:
    """An English word; `sense` is the German lemma if the word is one of the ambiguous ones."""

    text: str
    sense: str = ""


def words(text: str) -> list[Word]:
    """The words of an English phrase none of which is ambiguous."""
    return [Word(part) for part in text.split()]


def _content_words(text: str, lemma: str) -> list[Word]:
    if lemma in AMBIGUOUS.get(text, ()):
        return [Word(text, lemma)]
    return words(text)


@dataclass(frozen=True)
class NounPhrase:
    """Determiner, adjective, noun and genitive attribute; or a pronoun or name (`noun` is None)."""

    noun: Noun | None = None
    plural: bool = False
    determiner: str = ""
    en_determiner: str = ""
    adjective: str = ""
    owner: NounPhrase | None = None
    relative: Clause | None = None
    pronoun: tuple[str, str] = ("", "")  # German nominative, English subject form
    person: str = "3s"
    gender: str = ""  # of a pronoun or name: m, f or "" (none)

    def german(self, case: int) -> list[str]:
        """The phrase in a case, with its relative clause between commas."""
        if self.noun is None:
            return [self.pronoun[0]]
        agreement = "p" if self.plural else self.noun.gender
        determiner, endings = article(self.determiner, agreement, case)
        phrase = [determiner] if determiner else []
        if self.adjective:
            phrase.append(adjective_form(self.adjective, endings[agreement][case]))
        phrase.append(noun_form(self.noun, self.plural, case))
        if self.owner is not None:
            phrase += self.owner.german(GENITIVE)
        if self.relative is not None:
            pronoun, _ = article("der", agreement, NOMINATIVE)
            phrase += [",", pronoun, *self.relative.german_verb_last(with_subject=False), ","]
        return phrase

    def english(self) -> list[Word]:
        """The phrase, with 'a' or 'an' as the next word asks."""
        if self.noun is None:
            return words(self.pronoun[1])
        phrase: list[Word] = []
        if self.adjective:
            phrase += _content_words(ADJECTIVES[self.adjective], self.adjective)
        phrase += _content_words(self.noun.en_plural if self.plural else self.noun.en, self.noun.de)
        determiner = self.en_determiner
        if determiner == "a" and phrase[0].text[0] in "aeiou":
            determiner = "an"
        phrase = words(determiner) + phrase
        if self.owner is not None:
            phrase += [Word("of"), *self.owner.english()]
        if self.relative is not None:
            who = "who" if self.noun.kind == "person" else "that"
            phrase += [Word(who), *self.relative.english_predicate()]
        return phrase


@dataclass(frozen=True)
class Complement:
    """A filled slot of a verb: a noun phrase, or (case 'pred') an adjective."""

    slot: Slot
    phrase: NounPhrase | None = None
    adjective: str = ""

    def german(self) -> list[str]:
        if self.phrase is None:
            return [self.adjective]
        phrase = self.phrase.german(CASE_INDEX[self.slot.case])
        return contract(self.slot.de_preposition, phrase) if self.slot.de_preposition else phrase

    def english(self) -> list[Word]:
        if self.phrase is None:
            return _content_words(ADJECTIVES[self.adjective], self.adjective)
        return words(self.slot.en_preposition) + self.phrase.english()


@dataclass(frozen=True)
class Adverbs:
    """Adverbs of a clause as (German, English) pairs; ('', '') where there is none."""

    time: tuple[str, str] = ("", "")
    frequency: tuple[str, str] = ("", "")
    manner: tuple[str, str] = ("", "")


@dataclass(frozen=True)
class Clause:
    """Who does what to whom, when and how; knows every word order of both languages."""

    subject: NounPhrase
    verb: Verb
    complements: tuple[Complement, ...]
    tense: str
    negated: bool = False
    adverbs: Adverbs = field(default_factory=Adverbs)

    def _german_middle(self, *, with_time: bool = True) -> list[str]:
        """What stands between the finite verb (or subject) and the closing words."""
        bare = [c for c in self.complements if not c.slot.de_preposition and c.slot.case != "pred"]
        rest = [c for c in self.complements if c.slot.de_preposition or c.slot.case == "pred"]
        middle = [word for c in bare if c.slot.case == "dat" for word in c.german()]
        if with_time:
            middle += self.adverbs.time[0].split()
        middle += self.adverbs.frequency[0].split()
        middle += [word for c in bare if c.slot.case == "acc" for word in c.german()]
        middle += ["nicht"] if self.negated else []
        middle += self.adverbs.manner[0].split()
        return middle + [word for c in rest for word in c.german()]

    def german_main(self, *, front_time: bool = False, inverted: bool = False) -> list[str]:
        """Verb-second order; with `inverted` the finite verb comes first (after something else)."""
        finite, closing, prefix = german_verb(self.verb, self.tense, self.subject.person)
        subject = self.subject.german(NOMINATIVE)
        tail = [*closing, prefix] if prefix else closing
        if front_time:
            middle = self._german_middle(with_time=False)
            return [*self.adverbs.time[0].split(), finite, *subject, *middle, *tail]
        opening = [finite, *subject] if inverted else [*subject, finite]
        return [*opening, *self._german_middle(), *tail]

    def german_verb_last(self, *, with_subject: bool = True) -> list[str]:
        """Subordinate order: the finite verb closes the clause."""
        finite, closing, prefix = german_verb(self.verb, self.tense, self.subject.person)
        subject = self.subject.german(NOMINATIVE) if with_subject else []
        return [*subject, *self._german_middle(), *closing, prefix + finite]

    def german_infinitive(self) -> list[str]:
        """The clause as an infinitive with *zu*."""
        return [*self._german_middle(), *german_zu_infinitive(self.verb)]

    def _english_after_verb(self, *, with_time: bool = True) -> list[Word]:
        def is_plain(c: Complement) -> bool:
            return not c.slot.de_preposition and not c.slot.en_preposition

        first = [c for c in self.complements if is_plain(c) and c.slot.case == "dat"]
        first += [c for c in self.complements if c.slot.case in ("acc", "pred") and is_plain(c)]
        out = [word for c in first for word in c.english()]
        out += words(self.verb.particle)
        objects = [c for c in self.complements if c not in first]
        objects.sort(key=lambda c: c.slot.case != "acc" or bool(c.slot.de_preposition))
        out += [word for c in objects for word in c.english()]
        out += words(self.adverbs.manner[1])
        return out + words(self.adverbs.time[1]) if with_time else out

    def _mark(self, verb_words: list[str]) -> list[Word]:
        base = self.verb.en
        return [_content_words(w, self.verb.de)[0] if w == base else Word(w) for w in verb_words]

    def english_predicate(self, *, with_time: bool = True) -> list[Word]:
        """Verb group and everything after it."""
        if self.negated:
            auxiliaries, rest = english_with_do(self.verb, self.tense, self.subject.person)
            if auxiliaries[0] == "can":
                auxiliaries = ["cannot", *auxiliaries[1:]]
            else:
                auxiliaries = [auxiliaries[0], "not", *auxiliaries[1:]]
        else:
            auxiliaries, rest = english_verb(self.verb, self.tense, self.subject.person)
        group = words(" ".join(auxiliaries)) + words(self.adverbs.frequency[1]) + self._mark(rest)
        return group + self._english_after_verb(with_time=with_time)

    def english_main(self, *, front_time: bool = False) -> list[Word]:
        """Subject, verb, rest; the adverb of time may come first."""
        front = words(self.adverbs.time[1]) if front_time else []
        return front + self.subject.english() + self.english_predicate(with_time=not front_time)

    def english_question(self) -> list[Word]:
        """Auxiliary (or *do*) before the subject."""
        auxiliaries, rest = english_with_do(self.verb, self.tense, self.subject.person)
        inverted = [Word(auxiliaries[0]), *self.subject.english()]
        inverted += words(" ".join(auxiliaries[1:])) + words(self.adverbs.frequency[1])
        return inverted + self._mark(rest) + self._english_after_verb()

    def english_infinitive(self) -> list[Word]:
        """'to' and the verb's base form."""
        return [Word("to"), *self._mark([self.verb.en]), *self._english_after_verb()]


__all__ = ["ACCUSATIVE", "Adverbs", "Clause", "Complement", "NounPhrase", "Word", "words"]
