"""Words and grammar of the synthetic corpus: how a clause is said in both languages.

Words, and the *frames* that join them, are read from synthetic_lexicon.txt. A frame says which
subjects a verb takes and with which complements; those under a heading ``word Lemma`` use that
German lemma, so that one ambiguous English word stands in a context of one of its senses.

Agreement is m, f, n or p (plural of any gender); a person is 1s, 3s, 1p or 3p; a tense is present,
past, perfect, future or a modal verb with its tense, as "können past". Every rendering is a string
whose surplus blanks the finished sentence drops; English words of several senses carry theirs, as
"bank|Ufer".
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

Pair = tuple[str, str]
"""A German word or phrase and its English."""


class Noun(NamedTuple):
    """A noun; `oblique` is the singular outside the nominative ("" = as the nominative)."""

    de: str
    gender: str  # m, f, n
    de_plural: str  # "" = singular only
    en: str
    en_plural: str
    kind: str  # person, animal, thing, idea, body, place, mass, unique
    oblique: str


class Verb(NamedTuple):
    """A verb; present and past are of the third person singular, without the separable prefix."""

    de: str  # infinitive with prefix; the lemma
    stem: str  # infinitive without prefix
    prefix: str
    present: str
    past: str
    participle: str  # with prefix
    auxiliary: str  # haben, sein
    en: str
    en_past: str
    en_participle: str
    particle: str  # "on" in "switch on"


class Slot(NamedTuple):
    """A place beside a verb: German case, prepositions and the nouns that may fill it."""

    case: str  # nom, acc, dat, gen; pred: a predicative adjective
    preposition: str = ""
    en_preposition: str = ""
    nouns: tuple[str, ...] = ()  # lemmas or class names; adjectives for pred
    adjective: str = ""  # a lemma that the noun phrase must have
    owners: tuple[str, ...] = ()  # nouns of a genitive attribute: "the bank of the river"


class Frame(NamedTuple):
    """A verb with the subjects and complements that make sense together."""

    subject: Slot
    verb: str
    slots: tuple[Slot, ...]
    base_form: bool  # only tenses whose English has the verb's base form


def _read_tables() -> dict[str, dict[str, list[str]]]:
    """Section -> heading -> entries."""
    tables: dict[str, dict[str, list[str]]] = {}
    for line in Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines():
        heading, _, entries = line.partition(": ")
        if line.startswith("["):
            section = tables.setdefault(line.strip("[]"), {})
        elif line and not line.startswith("#"):
            section.setdefault(heading, []).extend(entries.split())
    return tables


def _pairs(entries: list[str]) -> list[Pair]:
    pairs = (entry.replace("_", " ").partition(",") for entry in entries)
    return [(german, english) for german, _, english in pairs]


def _read_noun(kind: str, entry: str) -> Noun:
    de, gender, plural, en, *en_plural = entry.replace("_", " ").split(",")
    shown = "" if plural == "-" or "!" in gender else plural
    oblique = plural if gender[1:] else ""
    return Noun(de, gender[0], shown, en, (*en_plural, en + "s")[0], kind, oblique)


def _read_verb(auxiliary: str, entry: str) -> Verb:
    german, _, english = entry.partition("=")
    infinitive, *de_forms = german.split(",")
    prefix, _, stem = infinitive.rpartition("|")
    english, _, particle = english.partition("/")
    en, *en_forms = english.split(",")
    if not en_forms:
        en_forms = [re.sub("(?<=[^aeiou])y$", "i", en.removesuffix("e")) + "ed"]
    present, past, participle = de_forms or _weak_forms(stem, prefix)
    german_part = (prefix + stem, stem, prefix, present, past, participle, auxiliary)
    return Verb(*german_part, en, en_forms[0], en_forms[-1], particle)


def _weak_forms(infinitive: str, prefix: str) -> tuple[str, str, str]:
    """Present, past and participle (with prefix) of a regular German verb."""
    stem = infinitive[:-2] if infinitive.endswith("en") else infinitive[:-1]
    link = "e" if stem.endswith(("t", "d", "fn", "chn")) else ""
    inseparable = stem.startswith(("be", "er", "ver", "zer", "über", "unter", "ent"))
    ge = "" if inseparable or infinitive.endswith("ieren") else "ge"
    return f"{stem}{link}t", f"{stem}{link}te", f"{prefix}{ge}{stem}{link}t"


def _read_frame(text: str) -> Frame:
    subject, verb, *rest = text.split(" ")
    slots = tuple(map(_read_slot, rest[::2], rest[1::2]))
    return Frame(_read_slot("nom", subject), verb.rstrip("!"), slots, verb.endswith("!"))


def _read_slot(head: str, fillers: str) -> Slot:
    head, _, english = head.partition("=")
    preposition, _, case = head.rpartition("+")
    adjective, _, fillers = fillers.removeprefix("[").rpartition("]")
    names, _, owners = fillers.partition("<")
    english = english.replace("_", " ") or PREPOSITIONS.get(preposition, "")
    nouns, owned = names.split("/"), owners.split("/") if owners else []
    return Slot(case, preposition, english, tuple(nouns), adjective, tuple(owned))


_TABLES = _read_tables()
CLASSES = _TABLES["classes"]
ENDINGS = {name: [e.strip("-") for e in row] for name, row in _TABLES["endings"].items()}
FINITE = _TABLES["finite"]
PREPOSITIONS = dict(_pairs(_TABLES["prepositions"]["all"]))
CONTRACTIONS = dict(_pairs(_TABLES["prepositions"]["contracted"]))
ENGLISH_MODALS = dict(_pairs(_TABLES["modals"]["all"]))
ADVERBS = {name: _pairs(row) for name, row in _TABLES["adverbs"].items()}
USUAL_ADJECTIVES = {kind: [de for de, _ in _pairs(r)] for kind, r in _TABLES["adjectives"].items()}
ADJECTIVES = {de: en for row in _TABLES["adjectives"].values() for de, en in _pairs(row)}
NOUNS = {n.de: n for kind, r in _TABLES["nouns"].items() for n in (_read_noun(kind, e) for e in r)}
VERBS = {v.de: v for aux, r in _TABLES["verbs"].items() for v in (_read_verb(aux, e) for e in r)}

_FRAMES = {
    heading: [_read_frame(frame) for frame in " ".join(entries).split("; ")]
    for heading, entries in _TABLES["frames"].items()
}
PLAIN_FRAMES = _FRAMES.pop("plain")
SENSE_FRAMES = {tuple(heading.split()): frames for heading, frames in _FRAMES.items()}
"""Frames of each (English word, German lemma)."""
AMBIGUOUS = {
    word: tuple(lemma for other, lemma in SENSE_FRAMES if other == word) for word, _ in SENSE_FRAMES
}
"""English word -> the German lemmas that it translates, its true senses."""

CASES = ("nom", "acc", "dat", "gen")
PERSONS = ("1s", "3s", "1p", "3p")


def determined(determiner: str, adjective: str, agreement: str, case: str) -> str:
    """German determiner and adjective ("" = none) in agreement: 'der alte', 'ein alter'.

    `determiner` is der, dieser, ein, kein or a possessive stem; anything else is not inflected.
    """
    index = 4 * "mfnp".index(agreement) + CASES.index(case)
    phrase, adjectives = determiner, "strong"
    if determiner in ("der", "dieser"):
        phrase, adjectives = determiner[:-2] + ENDINGS[determiner][index], "weak"
    elif determiner in ("ein", "kein", "mein", "sein", "ihr", "unser"):
        phrase, adjectives = determiner + ENDINGS["ein"][index], "mixed"
    ending = ENDINGS[adjectives][index]
    return f"{phrase} {adjective.removesuffix('e')}{ending}" if adjective else phrase


def noun_form(noun: Noun, plural: bool, case: str) -> str:
    """The German noun in a number and case."""
    if plural:
        ending = "n" if case == "dat" and not noun.de_plural.endswith(("n", "s")) else ""
        return noun.de_plural + ending
    if noun.oblique:
        return noun.de if case == "nom" else noun.oblique
    if case == "gen" and noun.gender != "f":
        syllables = len(re.findall("[aeiouyäöü]+", noun.de.lower()))
        sibilant = noun.de.endswith(("s", "ß", "z"))
        return noun.de + ("es" if sibilant or (syllables == 1 and noun.de[-1] != "e") else "s")
    return noun.de


def german_verb(verb: Verb, tense: str, person: str) -> tuple[str, str, str]:
    """Finite form, the word that closes a main clause, and the finite form's separable prefix."""
    number = PERSONS.index(person)
    if tense in FINITE or tense == "future":  # a modal verb, or werden
        return FINITE["werden" if tense == "future" else tense][number], verb.de, ""
    if tense == "perfect":
        return FINITE[verb.auxiliary][number], verb.participle, ""
    if tense == "past":
        plural = "n" if verb.past.endswith("e") else "en"
        return verb.past + (plural if person in ("1p", "3p") else ""), "", verb.prefix
    if verb.de == "sein":
        return FINITE["sein"][number], "", ""
    first = re.sub("eln$", "len", verb.stem)[:-1].removesuffix("e") + "e"
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
    if tense in ENGLISH_MODALS:
        return ENGLISH_MODALS[tense], base
    if when == "future":
        return "will", base
    if when == "perfect":
        return "has" if third else "have", verb.en_participle
    if verb.en == "be" and not modal:
        return FINITE[f"be {when}"][PERSONS.index(person)], ""
    third_person = verb.en + ("es" if verb.en.endswith(("s", "x", "ch", "sh", "z")) else "s")
    if re.search("[^aeiou]y$", verb.en):
        third_person = verb.en[:-1] + "ies"
    forms = {
        "": (base, third_person, verb.en_past),
        "wollen": ("want", "wants", "wanted"),
        "müssen": ("have", "has", "had"),
    }[modal]
    infinitive = f" to {base}" if modal else ""
    form = 2 if when == "past" else int(third)
    if with_do:
        return ("do", "does", "did")[form], forms[0] + infinitive
    return "", forms[form] + infinitive


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
            phrase += f", {who} {self.relative.german('relative')},"
        return phrase

    def english(self) -> str:
        """The phrase, with 'a' or 'an' as the next word asks."""
        if self.noun is None:
            return marked(self.word[1], self.word[0])
        phrase = marked(self.noun.en_plural if self.plural else self.noun.en, self.noun.de)
        if self.adjective:
            phrase = f"{marked(ADJECTIVES[self.adjective], self.adjective)} {phrase}"
        phrase = re.sub("^a (?=[aeiou])", "an ", f"{self.determiner[1]} {phrase}")
        if self.owner is not None:
            phrase += f" of {self.owner.english()}"
        if self.relative is not None:
            who = "who" if self.noun.kind == "person" else "that"
            phrase += f" {who} {self.relative.english('relative')}"
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

    def german(self, order: str) -> str:
        """Rendered as main clause, ``inverted`` (verb first), ``subordinate`` (verb last), …

        ``relative`` is the latter without the subject, ``infinitive`` with *zu*.
        """
        fields = {"dat": "", "acc": "", "rest": ""}
        for slot, phrase in self.complements:
            words = f"{slot.preposition} {phrase.german(slot.case)}"
            for apart, joined in CONTRACTIONS.items():  # in dem Wald -> im Wald
                words = re.sub(f"^{apart} ", joined + " ", words)
            fields[slot.case if slot.case in fields and not slot.preposition else "rest"] += (
                f" {words}"
            )
        middle = (
            f"{fields['dat']} {self.time[0]} {self.frequency[0]} {fields['acc']} "
            f"{'nicht' if self.negated else ''} {self.manner[0]} {fields['rest']}"
        )
        finite, closing, prefix = german_verb(self.verb, self.tense, self.subject.person)
        subject = self.subject.german("nom")
        zu = f"{self.verb.prefix}zu" if self.verb.prefix else "zu "
        return {
            "main": f"{subject} {finite} {middle} {closing} {prefix}",
            "inverted": f"{finite} {subject} {middle} {closing} {prefix}",
            "subordinate": f"{subject} {middle} {closing} {prefix}{finite}",
            "relative": f"{middle} {closing} {prefix}{finite}",
            "infinitive": f"{middle} {zu}{self.verb.stem}",
        }[order]

    def english(self, order: str = "main") -> str:
        """Rendered as main or subordinate clause, ``relative``, ``question`` or ``infinitive``."""
        fields = {"indirect": "", "direct": "", "object": "", "rest": ""}
        for slot, phrase in self.complements:
            place = "object" if slot.en_preposition else "direct"
            if slot.case == "dat":
                place = "rest" if slot.en_preposition else "indirect"
            place = "rest" if slot.preposition else place
            fields[place] += f" {slot.en_preposition} {phrase.english()}"
        rest = (
            f"{fields['indirect']} {fields['direct']} {self.verb.particle} {fields['object']} "
            f"{fields['rest']} {self.manner[1]} {self.time[1]}"
        )
        with_do = self.negated or order == "question"
        auxiliary, verb = english_verb(self.verb, self.tense, self.subject.person, with_do=with_do)
        if self.negated:
            auxiliary = "cannot" if auxiliary == "can" else f"{auxiliary} not"
        subject, often = self.subject.english(), self.frequency[1]
        return {
            "main": f"{subject} {auxiliary} {often} {verb} {rest}",
            "relative": f"{auxiliary} {often} {verb} {rest}",
            "question": f"{auxiliary} {subject} {often} {verb} {rest}",
            "infinitive": f"to {marked(self.verb.en, self.verb.de)} {rest}",
        }[order]
