"""Words and grammar of the synthetic corpus: how a clause is said in both languages.

Words, and the *frames* that join them, are read from synthetic_grammar.yaml. A frame says which
subjects and complements a verb takes; those under a heading ``word Lemma`` use that German lemma,
so that one ambiguous English word stands in a context of one of its senses.

Agreement is m, f, n or p (plural of any gender); a person is 1s, 3s, 1p or 3p; a tense is present,
past, perfect, future or a modal verb with its tense, as "können past". Every rendering is a string
whose surplus blanks the finished sentence drops; English words of several senses carry theirs, as
"bank|Ufer".
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import yaml

Pair = tuple[str, str]
"""A German word or phrase and its English."""


class Noun(NamedTuple):
    """A noun of a kind: person, animal, thing, idea, body, place, mass, unique."""

    kind: str
    de: str
    oblique: str  # the singular outside the nominative; "" = as the nominative
    gender: str  # m, f, n
    de_plural: str  # "" = singular only
    en: str
    en_plural: str


class Verb(NamedTuple):
    """A verb; present and past are of the third person singular, without the separable prefix."""

    auxiliary: str  # haben, sein
    prefix: str
    stem: str  # the infinitive without the prefix
    present: str
    past: str
    participle: str  # with prefix
    en: str
    en_past: str
    en_participle: str
    particle: str  # "on" in "switch on"

    @property
    def de(self) -> str:
        """The infinitive, which is the lemma."""
        return self.prefix + self.stem


class Slot(NamedTuple):
    """A place beside a verb, and what may fill it; alternatives stand between slashes."""

    preposition: str
    case: str  # nom, acc, dat, gen; pred: a predicative adjective
    english: str  # preposition
    adjective: str  # a lemma that the noun phrase must have
    nouns: str  # lemmas or class names; adjectives for pred
    owners: str  # nouns of a genitive attribute: "the bank of the river"


class Frame(NamedTuple):
    """A verb with the subjects and complements that make sense together."""

    subject: Slot
    verb: str
    slots: list[Slot]
    base_form: bool  # only tenses whose English has the verb's base form


def _rows(entries: str) -> list[list[str]]:
    return [entry.replace("_", " ").split(",") for entry in entries.split()]


def _read_noun(kind: str, entry: list[str]) -> Noun:
    de, gender, plural, en, *en_plural = entry
    oblique = plural if gender[1:] else ""
    shown = "" if plural == "-" or "!" in gender else plural
    return Noun(kind, de, oblique, gender[0], shown, en, (*en_plural, en + "s")[0])


def _read_verb(auxiliary: str, entry: str) -> Verb:
    german, _, english = entry.partition("=")
    infinitive, *de_forms = german.split(",")
    prefix, _, stem = infinitive.rpartition("|")
    english, _, particle = english.partition("/")
    en, *en_forms = english.split(",")
    if not en_forms:
        en_forms = [re.sub("(?<=[^aeiou])y$", "i", en.removesuffix("e")) + "ed"]
    present, past, participle = de_forms or _weak_forms(stem, prefix)
    forms = (present, past, participle, en, en_forms[0], en_forms[-1], particle)
    return Verb(auxiliary, prefix, stem, *forms)


def _weak_forms(infinitive: str, prefix: str) -> tuple[str, str, str]:
    """Present, past and participle (with prefix) of a regular German verb."""
    stem = re.sub("e?n$", "", infinitive)
    link = "e" if stem.endswith(("t", "d", "fn", "chn")) else ""
    inseparable = stem.startswith(("be", "er", "ver", "zer", "über", "unter", "ent"))
    ge = "" if inseparable or infinitive.endswith("ieren") else "ge"
    return f"{stem}{link}t", f"{stem}{link}te", f"{prefix}{ge}{stem}{link}t"


def read_slots(text: str) -> list[Slot]:
    """Slots such as "dat PERSON acc [alt]Haus/Hof" or "auf+acc=onto Stamm<Baum"."""
    form = r"(?:(\w+)\+)?(\w+)(?:=(\w+))? (?:\[(\w+)\])?([\w/]+)(?:<([\w/]+))?"
    return [Slot(*match.groups("")) for match in re.finditer(form, text)]


def _read_frame(text: str) -> Frame:
    subject, verb, *complements = text.split(" ", 2)
    slots = read_slots(" ".join(complements))
    return Frame(read_slots(f"nom {subject}")[0], verb.rstrip("!"), slots, verb.endswith("!"))


_TABLES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
TENSES: dict[str, int] = _TABLES["tenses"]
CLASSES = {name: words for name, *words in _rows(_TABLES["classes"])}
ENDINGS = {name: endings for name, *endings in _rows(_TABLES["endings"])}
FINITE = {name: forms for name, *forms in _rows(_TABLES["finite"])}
POSSESSIVES = {owner: (de, en) for owner, de, en in _rows(_TABLES["possessives"])}
ENGLISH = dict(_rows(_TABLES["english"]))  # of prepositions and modal verbs
CONTRACTIONS = dict(_rows(_TABLES["contractions"]))
ADVERBS = {name: list(dict(_rows(row)).items()) for name, row in _TABLES["adverbs"].items()}
USUAL_ADJECTIVES = {kind: dict(_rows(row)) for kind, row in _TABLES["adjectives"].items()}
ADJECTIVES = {de: en for row in USUAL_ADJECTIVES.values() for de, en in row.items()}
NOUNS = {e[0]: _read_noun(kind, e) for kind, r in _TABLES["nouns"].items() for e in _rows(r)}
_VERBS = [_read_verb(aux, entry) for aux, r in _TABLES["verbs"].items() for entry in r.split()]
VERBS = {verb.de: verb for verb in _VERBS}
SENSE_FRAMES = {
    tuple(heading.split()): [_read_frame(frame) for frame in row.split("; ")]
    for heading, row in _TABLES["frames"].items()
}
"""Frames of each (English word, German lemma)."""
PLAIN_FRAMES = SENSE_FRAMES.pop(("plain",))
AMBIGUOUS = {
    word: tuple(lemma for other, lemma in SENSE_FRAMES if other == word) for word, _ in SENSE_FRAMES
}
"""English word -> the German lemmas that it translates, its true senses."""


def marked(english: str, german: str) -> str:
    """The English form of a German lemma; an ambiguous word carries the lemma."""
    return f"{english}|{german}" if german in AMBIGUOUS.get(english, ()) else english


def german_noun(noun: Noun, plural: bool, case: str) -> str:
    """The German noun in a number and case."""
    if plural:
        ending = "n" if case == "dat" and not noun.de_plural.endswith(("n", "s")) else ""
        return noun.de_plural + ending
    if noun.oblique:
        return noun.de if case == "nom" else noun.oblique
    if case != "gen" or noun.gender == "f":
        return noun.de
    one_syllable = len(re.findall("[aeiouyäöü]+", noun.de.lower())) == 1 and noun.de[-1] != "e"
    return noun.de + ("es" if one_syllable or noun.de.endswith(("s", "ß", "z")) else "s")


def german_verb(verb: Verb, tense: str, person: str) -> tuple[str, str, str]:
    """Finite form, the word that closes a main clause, and the finite form's separable prefix."""
    number = ("1s", "3s", "1p", "3p").index(person)
    finite = {"future": "werden", "perfect": verb.auxiliary}.get(tense, tense)
    if finite in FINITE:
        return FINITE[finite][number], verb.participle if tense == "perfect" else verb.de, ""
    if tense == "past":
        plural = "" if number < 2 else "n" if verb.past.endswith("e") else "en"
        return verb.past + plural, "", verb.prefix
    if verb.de == "sein":
        return FINITE["sein"][number], "", ""
    first = re.sub("eln$", "len", verb.stem)[:-1].removesuffix("e") + "e"
    return (first, verb.present, verb.stem, verb.stem)[number], "", verb.prefix


def english_verb(verb: Verb, tense: str, person: str, with_do: bool) -> tuple[str, str]:
    """The auxiliary (it inverts and takes *not*) and the words after it. A plain main verb has no
    auxiliary, but for *do* in questions and negation (`with_do`)."""
    modal, _, when = tense.rpartition(" ")
    base, form = marked(verb.en, verb.de), 2 if when == "past" else int(person == "3s")
    if tense in ENGLISH:
        return ENGLISH[tense], base
    if when == "perfect":
        return ("have", "has")[form], verb.en_participle
    if verb.en == "be" and not modal:
        forms = {"1s": ("am", "was"), "3s": ("is", "was")}.get(person, ("are", "were"))
        return forms[when == "past"], ""
    third = re.sub("(s|x|ch|sh|z)$", r"\1e", re.sub("(?<=[^aeiou])y$", "ie", verb.en)) + "s"
    words = {
        "": (base, third, verb.en_past),
        "wollen": ("want", "wants", "wanted"),
        "müssen": ("have", "has", "had"),
    }[modal]
    infinitive = f" to {base}" if modal else ""
    if with_do:
        return ("do", "does", "did")[form], words[0] + infinitive
    return "", words[form] + infinitive


class NounPhrase(NamedTuple):
    """Determiner, adjective, noun, genitive attribute and relative clause.

    Without a noun, one fixed word (`word`): a pronoun, a name or a predicative adjective.
    """

    noun: Noun | None = None
    agreement: str = ""  # of a pronoun or name: m, f or "" (none)
    determiner: Pair = ("", "")
    adjective: str = ""
    owner: NounPhrase | None = None
    relative: Clause | None = None
    word: Pair = ("", "")
    person: str = "3s"

    @property
    def acts(self) -> bool:
        """Whether it is a person or an animal."""
        return self.noun is None or self.noun.kind in ("person", "animal")

    @property
    def possessive(self) -> Pair | None:
        """'sein'/'his', 'ihr'/'her', … for what belongs to one who acts."""
        animal = "animal " if self.noun and self.noun.kind == "animal" else ""
        fitting = POSSESSIVES.get(self.person) or POSSESSIVES.get(animal + self.agreement)
        return fitting if self.acts else None

    def german(self, case: str) -> str:
        """The phrase in a case, with its relative clause between commas."""
        if self.noun is None:
            return self.word[0]
        index = 4 * "mfnp".index(self.agreement) + ("nom", "acc", "dat", "gen").index(case)
        phrase, adjectives = self.determiner[0], "strong"
        if phrase in ("der", "dieser"):
            phrase, adjectives = phrase[:-2] + ENDINGS[phrase][index], "weak"
        elif phrase in ("ein", "kein", "mein", "sein", "ihr", "unser"):
            phrase, adjectives = phrase + ENDINGS["ein"][index], "mixed"
        if self.adjective:
            phrase += f" {self.adjective.removesuffix('e')}{ENDINGS[adjectives][index]}"
        phrase += " " + german_noun(self.noun, self.agreement == "p", case)
        if self.owner is not None:
            phrase += " " + self.owner.german("gen")
        if self.relative is not None:
            phrase += f", {self.relative.german('subordinate')},"
        return phrase

    def english(self) -> str:
        """The phrase, with 'a' or 'an' as the next word asks."""
        if self.noun is None:
            return marked(self.word[1], self.word[0])
        noun = self.noun.en_plural if self.agreement == "p" else self.noun.en
        adjective = marked(ADJECTIVES.get(self.adjective, ""), self.adjective)
        phrase = " ".join(f"{self.determiner[1]} {adjective} {marked(noun, self.noun.de)}".split())
        phrase = re.sub("^a (?=[aeiou])", "an ", phrase)
        if self.owner is not None:
            phrase += f" of {self.owner.english()}"
        if self.relative is not None:
            phrase += f" {self.relative.english('main')}"
        return phrase


class Clause(NamedTuple):
    """Who does what to whom, when and how.

    Its order is main, inverted (verb first), subordinate (verb last), question or infinitive;
    *inverted* and *subordinate* make a difference in German alone.
    """

    subject: NounPhrase
    verb: Verb
    complements: list[tuple[Slot, NounPhrase]]
    tense: str
    negated: bool = False
    time: Pair = ("", "")
    frequency: Pair = ("", "")
    manner: Pair = ("", "")

    def said(self, order: str = "main") -> Pair:
        """The clause in both languages."""
        return self.german(order), self.english(order)

    def german(self, order: str) -> str:
        fields = {"dat": "", "acc": "", "rest": ""}
        for slot, phrase in self.complements:
            words = f"{slot.preposition} {phrase.german(slot.case)}"
            for apart, joined in CONTRACTIONS.items():  # in dem Wald -> im Wald
                words = re.sub(f"^{apart} ", joined + " ", words)
            place = slot.case if slot.case in fields and not slot.preposition else "rest"
            fields[place] += f" {words}"
        middle = (
            f"{fields['dat']} {self.time[0]} {self.frequency[0]} {fields['acc']} "
            f"{'nicht' if self.negated else ''} {self.manner[0]} {fields['rest']}"
        )
        finite, closing, prefix = german_verb(self.verb, self.tense, self.subject.person)
        subject = self.subject.german("nom")
        if order == "infinitive":
            return f"{middle} {self.verb.prefix}zu{'' if self.verb.prefix else ' '}{self.verb.stem}"
        if order == "subordinate":
            return f"{subject} {middle} {closing} {prefix}{finite}"
        begin = f"{subject} {finite}" if order == "main" else f"{finite} {subject}"
        return f"{begin} {middle} {closing} {prefix}"

    def english(self, order: str) -> str:
        fields = {"indirect": "", "direct": "", "object": "", "rest": ""}
        for slot, phrase in self.complements:
            place = "object" if slot.english else "indirect" if slot.case == "dat" else "direct"
            if slot.preposition or (slot.english and slot.case == "dat"):
                place = "rest"
            preposition = slot.english.replace("_", " ") or ENGLISH.get(slot.preposition, "")
            fields[place] += f" {preposition} {phrase.english()}"
        rest = (
            f"{fields['indirect']} {fields['direct']} {self.verb.particle} {fields['object']} "
            f"{fields['rest']} {self.manner[1]} {self.time[1]}"
        )
        if order == "infinitive":
            return f"to {marked(self.verb.en, self.verb.de)} {rest}"
        with_do = self.negated or order == "question"
        auxiliary, verb = english_verb(self.verb, self.tense, self.subject.person, with_do)
        if self.negated:
            auxiliary = "cannot" if auxiliary == "can" else f"{auxiliary} not"
        subject = self.subject.english()
        begin = f"{auxiliary} {subject}" if order == "question" else f"{subject} {auxiliary}"
        return f"{begin} {self.frequency[1]} {verb} {rest}"


PRONOUNS, NAMES = (
    [NounPhrase(agreement=g, word=(de, en), person=p) for de, en, p, g in _rows(_TABLES[name])]
    for name in ("pronouns", "names")
)
