"""Words of the synthetic corpus and the frames that join them, read from synthetic_lexicon.txt.

A *frame* says which subjects a verb takes and with which complements. The frames under a heading
``word Lemma`` use that German lemma, so that one ambiguous English word stands in a context that
belongs to one of its senses.
"""

from __future__ import annotations

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
        consonant_y = en.endswith("y") and en[-2] not in "aeiou"
        en_forms = [en[:-1] + "ied" if consonant_y else en + ("d" if en.endswith("e") else "ed")]
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
AMBIGUOUS: dict[str, tuple[str, ...]] = {}
"""English word -> the German lemmas that it translates, its true senses."""
for _word, _lemma in SENSE_FRAMES:
    AMBIGUOUS[_word] = (*AMBIGUOUS.get(_word, ()), _lemma)
