"""Grammar of the synthetic corpus: inflection, and how a clause is said in both languages.

Agreement is m, f, n or p (plural of any gender); a person is 1s, 3s, 1p or 3p; a tense is present,
past, perfect, future or a modal verb with its tense, as "können past". Every rendering is a string
whose surplus blanks the finished sentence drops; English words of several senses carry theirs, as
"bank|Ufer".
"""

from __future__ import annotations

import re
from typing import NamedTuple

from fairseq_kerbs.corpora.synthetic_lexicon import (
    ADJECTIVES,
    AMBIGUOUS,
    ENDINGS,
    FINITE,
    Noun,
    Pair,
    Slot,
    Verb,
)

CASES = ("nom", "acc", "dat", "gen")
PERSONS = ("1s", "3s", "1p", "3p")
_CONTRACTIONS = {
    "in dem": "im", "in das": "ins", "an dem": "am", "zu dem": "zum", "zu der": "zur",
    "von dem": "vom", "bei dem": "beim",
}  # fmt: skip
_ENGLISH_MODALS = {
    "können present": "can",
    "können past": "could",
    "müssen present": "must",
    "sollen present": "should",
}


def determined(determiner: str, adjective: str, agreement: str, case: str) -> str:
    """German determiner and adjective ("" = none) in agreement: 'der alte', 'ein alter'.

    `determiner` is der, dieser, ein, kein or a possessive stem; anything else is not inflected.
    """
    stem, articles, adjectives = determiner, "", "strong"
    if determiner in ("der", "dieser"):
        stem, articles, adjectives = determiner.removesuffix("er"), determiner, "weak"
    elif determiner in ("ein", "kein", "mein", "sein", "ihr", "unser"):
        articles, adjectives = "ein", "mixed"
    index = 4 * "mfnp".index(agreement) + CASES.index(case)
    phrase = stem + (ENDINGS[articles][index] if articles else "")
    if adjective:
        phrase += f" {adjective.removesuffix('e')}{ENDINGS[adjectives][index]}"
    return phrase


def noun_form(noun: Noun, plural: bool, case: str) -> str:
    """The German noun in a number and case."""
    if plural:
        add_n = case == "dat" and not noun.de_plural.endswith(("n", "s"))
        return noun.de_plural + ("n" if add_n else "")
    if noun.oblique:
        return noun.de if case == "nom" else noun.oblique
    if case == "gen" and noun.gender != "f":
        syllables = len(re.findall("[aeiouyäöü]+", noun.de.lower()))
        sibilant = noun.de.endswith(("s", "ß", "z"))
        return noun.de + ("es" if sibilant or (syllables == 1 and noun.de[-1] != "e") else "s")
    return noun.de


def contract(phrase: str) -> str:
    """'in dem Wald' -> 'im Wald'."""
    preposition, article, *rest = phrase.split(" ", 2)
    joined = _CONTRACTIONS.get(f"{preposition} {article}")
    return " ".join([joined, *rest]) if joined else phrase


def german_verb(verb: Verb, tense: str, person: str) -> tuple[str, str, str]:
    """Finite form, the word that closes a main clause, and the finite form's separable prefix."""
    number = PERSONS.index(person)
    if tense in FINITE:  # a modal verb
        return FINITE[tense][number], verb.de, ""
    if tense == "future":
        return FINITE["werden"][number], verb.de, ""
    if tense == "perfect":
        return FINITE[verb.auxiliary][number], verb.participle, ""
    if tense == "past":
        plural = "n" if verb.past.endswith("e") else "en"
        return verb.past + (plural if person in ("1p", "3p") else ""), "", verb.prefix
    if verb.de == "sein":
        return FINITE["sein"][number], "", ""
    first = re.sub("eln$", "len", verb.stem)[:-1]
    first = first if first.endswith("e") else first + "e"
    return (first, verb.present, verb.stem, verb.stem)[number], "", verb.prefix


def marked(english: str, german: str) -> str:
    """The English form of a German lemma; an ambiguous word carries the lemma."""
    return f"{english}|{german}" if german in AMBIGUOUS.get(english, ()) else english


def english_verb(verb: Verb, tense: str, person: str, *, with_do: bool = False) -> tuple[str, str]:
    """The auxiliary (it inverts and takes *not*) and the words after it.

    A plain main verb has no auxiliary, but for *do* in questions and negation (`with_do`).
    """
    modal, _, when = tense.rpartition(" ")
    third = person == "3s"
    base = marked(verb.en, verb.de)
    if tense in _ENGLISH_MODALS:
        return _ENGLISH_MODALS[tense], base
    if when == "future":
        return "will", base
    if when == "perfect":
        return "has" if third else "have", verb.en_participle
    if verb.en == "be" and not modal:
        return FINITE[f"be {when}"][PERSONS.index(person)], ""
    forms = {
        "": (base, _third_person(verb.en), verb.en_past),
        "wollen": ("want", "wants", "wanted"),
        "müssen": ("have", "has", "had"),
    }[modal]
    infinitive = f" to {base}" if modal else ""
    form = 2 if when == "past" else int(third)
    if with_do:
        return ("do", "does", "did")[form], forms[0] + infinitive
    return "", forms[form] + infinitive


def _third_person(base: str) -> str:
    if base.endswith(("s", "x", "ch", "sh", "z")):
        return base + "es"
    if base.endswith("y") and base[-2] not in "aeiou":
        return base[:-1] + "ies"
    return base + "s"


class NounPhrase(NamedTuple):
    """Determiner, adjective, noun and genitive attribute; without a noun, one fixed word.

    The fixed word (`word`) is a pronoun, a name or a predicative adjective.
    """

    noun: Noun | None = None
    plural: bool = False
    determiner: Pair = ("", "")
    adjective: str = ""
    owner: NounPhrase | None = None
    relative: Clause | None = None
    word: Pair = ("", "")
    person: str = "3s"
    gender: str = ""  # of a pronoun or name: m, f or "" (none)

    @property
    def acts(self) -> bool:
        """Whether it is a person or an animal."""
        return self.noun is None or self.noun.kind in ("person", "animal")

    def german(self, case: str) -> str:
        """The phrase in a case, with its relative clause between commas."""
        if self.noun is None:
            return self.word[0]
        agreement = "p" if self.plural else self.noun.gender
        phrase = determined(self.determiner[0], self.adjective, agreement, case)
        phrase += " " + noun_form(self.noun, self.plural, case)
        if self.owner is not None:
            phrase += " " + self.owner.german("gen")
        if self.relative is not None:
            who = determined("der", "", agreement, "nom")
            phrase += f", {who} {self.relative.german_verb_last(subject=False)},"
        return phrase

    def english(self) -> str:
        """The phrase, with 'a' or 'an' as the next word asks."""
        if self.noun is None:
            return marked(self.word[1], self.word[0])
        phrase = marked(self.noun.en_plural if self.plural else self.noun.en, self.noun.de)
        if self.adjective:
            phrase = f"{marked(ADJECTIVES[self.adjective], self.adjective)} {phrase}"
        determiner = self.determiner[1]
        if determiner == "a" and phrase[0] in "aeiou":
            determiner = "an"
        phrase = f"{determiner} {phrase}"
        if self.owner is not None:
            phrase += f" of {self.owner.english()}"
        if self.relative is not None:
            who = "who" if self.noun.kind == "person" else "that"
            phrase += f" {who} {self.relative.english_predicate()}"
        return phrase


class Clause(NamedTuple):
    """Who does what to whom, when and how; knows every word order of both languages."""

    subject: NounPhrase
    verb: Verb
    complements: tuple[tuple[Slot, NounPhrase], ...]
    tense: str
    negated: bool = False
    time: Pair = ("", "")
    frequency: Pair = ("", "")
    manner: Pair = ("", "")

    def _german_middle(self, *, time: bool = True) -> str:
        """What stands between the finite verb (or subject) and the closing words."""
        fields = {"dat": "", "acc": "", "rest": ""}
        for slot, phrase in self.complements:
            bare = not slot.preposition and slot.case != "pred"
            words = f"{slot.preposition} {phrase.german(slot.case)}"
            fields[slot.case if bare else "rest"] += " " + contract(words)
        when = self.time[0] if time else ""
        not_ = "nicht" if self.negated else ""
        return (
            f"{fields['dat']} {when} {self.frequency[0]} {fields['acc']} {not_} {self.manner[0]} "
            f"{fields['rest']}"
        )

    def german_main(self, *, time_first: bool = False, inverted: bool = False) -> str:
        """Verb-second order; with `inverted` the finite verb comes first (after something else)."""
        finite, closing, prefix = german_verb(self.verb, self.tense, self.subject.person)
        subject, middle = self.subject.german("nom"), self._german_middle(time=not time_first)
        if time_first:
            opening = f"{self.time[0]} {finite} {subject}"
        else:
            opening = f"{finite} {subject}" if inverted else f"{subject} {finite}"
        return f"{opening} {middle} {closing} {prefix}"

    def german_verb_last(self, *, subject: bool = True) -> str:
        """Subordinate order: the finite verb closes the clause."""
        finite, closing, prefix = german_verb(self.verb, self.tense, self.subject.person)
        opening = self.subject.german("nom") if subject else ""
        return f"{opening} {self._german_middle()} {closing} {prefix}{finite}"

    def german_infinitive(self) -> str:
        """The clause as an infinitive with *zu*."""
        prefix, stem = self.verb.prefix, self.verb.stem
        return f"{self._german_middle()} {f'{prefix}zu' if prefix else 'zu '}{stem}"

    def _english_rest(self, *, time: bool = True) -> str:
        """What follows the verb: persons, objects, then everything with a preposition."""
        dative = direct = object_ = rest = ""
        for slot, phrase in self.complements:
            words = f" {slot.en_preposition} {phrase.english()}"
            if slot.preposition or (slot.case == "dat" and slot.en_preposition):
                rest += words
            elif slot.case == "dat":
                dative += words
            elif slot.en_preposition:
                object_ += words
            else:
                direct += words
        when = self.time[1] if time else ""
        return f"{dative} {direct} {self.verb.particle} {object_} {rest} {self.manner[1]} {when}"

    def english_predicate(self, *, time: bool = True) -> str:
        """Verb group and everything after it."""
        auxiliary, verb = english_verb(
            self.verb, self.tense, self.subject.person, with_do=self.negated
        )
        if self.negated:
            auxiliary = "cannot" if auxiliary == "can" else f"{auxiliary} not"
        return f"{auxiliary} {self.frequency[1]} {verb} {self._english_rest(time=time)}"

    def english_main(self, *, time_first: bool = False) -> str:
        """Subject, verb, rest; the adverb of time may come first."""
        front = self.time[1] if time_first else ""
        return f"{front} {self.subject.english()} {self.english_predicate(time=not time_first)}"

    def english_question(self) -> str:
        """Auxiliary (or *do*) before the subject."""
        auxiliary, verb = english_verb(self.verb, self.tense, self.subject.person, with_do=True)
        subject = self.subject.english()
        return f"{auxiliary} {subject} {self.frequency[1]} {verb} {self._english_rest()}"

    def english_infinitive(self) -> str:
        """'to' and the verb's base form."""
        return f"to {marked(self.verb.en, self.verb.de)} {self._english_rest()}"
