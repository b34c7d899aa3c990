"""Inflection for the embedded corpus: German articles, adjectives, nouns and verbs; English verbs.

German cases are indices: 0 nominative, 1 accusative, 2 dative, 3 genitive. A *slot of agreement* is
m, f, n or p (plural of any gender).
"""

from __future__ import annotations

import re

from fairseq_kerbs.corpora.toy_lexicon import Noun, Verb

Endings = dict[str, tuple[str, str, str, str]]
"""Ending by agreement (m, f, n, p) and case."""

NOMINATIVE, ACCUSATIVE, DATIVE, GENITIVE = range(4)
CASE_INDEX = {"nom": NOMINATIVE, "acc": ACCUSATIVE, "dat": DATIVE, "gen": GENITIVE}

_DEFINITE = {
    "m": ("der", "den", "dem", "des"),
    "f": ("die", "die", "der", "der"),
    "n": ("das", "das", "dem", "des"),
    "p": ("die", "die", "den", "der"),
}
_LIKE_DIESER = {
    "m": ("er", "en", "em", "es"),
    "f": ("e", "e", "er", "er"),
    "n": ("es", "es", "em", "es"),
    "p": ("e", "e", "en", "er"),
}
_LIKE_EIN = {
    "m": ("", "en", "em", "es"),
    "f": ("e", "e", "er", "er"),
    "n": ("", "", "em", "es"),
    "p": ("e", "e", "en", "er"),
}
_WEAK = {
    "m": ("e", "en", "en", "en"),
    "f": ("e", "e", "en", "en"),
    "n": ("e", "e", "en", "en"),
    "p": ("en", "en", "en", "en"),
}
_MIXED = {
    "m": ("er", "en", "en", "en"),
    "f": ("e", "e", "en", "en"),
    "n": ("es", "es", "en", "en"),
    "p": ("en", "en", "en", "en"),
}
_STRONG = {
    "m": ("er", "en", "em", "en"),
    "f": ("e", "e", "er", "er"),
    "n": ("es", "es", "em", "en"),
    "p": ("e", "e", "en", "er"),
}
_CONTRACTIONS = {
    ("in", "dem"): "im",
    ("in", "das"): "ins",
    ("an", "dem"): "am",
    ("zu", "dem"): "zum",
    ("zu", "der"): "zur",
    ("von", "dem"): "vom",
    ("bei", "dem"): "beim",
}

# Person and number: 1s, 3s, 1p, 3p.
_SEIN = {
    "present": {"1s": "bin", "3s": "ist", "1p": "sind", "3p": "sind"},
    "past": {"1s": "war", "3s": "war", "1p": "waren", "3p": "waren"},
}
_HABEN = {"1s": "habe", "3s": "hat", "1p": "haben", "3p": "haben"}
_WERDEN = {"1s": "werde", "3s": "wird", "1p": "werden", "3p": "werden"}
_MODALS = {
    "können": ("kann", "konnte"),
    "müssen": ("muss", "musste"),
    "wollen": ("will", "wollte"),
    "sollen": ("soll", "sollte"),
}
_BE = {
    "present": {"1s": "am", "3s": "is", "1p": "are", "3p": "are"},
    "past": {"1s": "was", "3s": "was", "1p": "were", "3p": "were"},
}


def article(determiner: str, agreement: str, case: int) -> tuple[str, Endings]:
    """The German determiner's form and the table of adjective endings that follows it.

    `determiner` is der, dieser, ein, kein, a possessive stem (mein, sein, …), a name's genitive
    ("Annas"), a number word or "" for none.
    """
    if determiner == "der":
        return _DEFINITE[agreement][case], _WEAK
    if determiner == "dieser":
        return "dies" + _LIKE_DIESER[agreement][case], _WEAK
    if determiner in ("ein", "kein", "mein", "sein", "ihr", "unser"):
        return determiner + _LIKE_EIN[agreement][case], _MIXED
    return determiner, _STRONG


def adjective_form(lemma: str, ending: str) -> str:
    """'alt' + 'er', 'müde' + 'er' -> 'alter', 'müder'."""
    return (lemma[:-1] if lemma.endswith("e") else lemma) + ending


def noun_form(noun: Noun, plural: bool, case: int) -> str:
    """The German noun in a number and case."""
    if plural:
        form = noun.de_plural
        return form + "n" if case == DATIVE and not form.endswith(("n", "s")) else form
    if noun.oblique:
        return noun.oblique if case != NOMINATIVE else noun.de
    if case == GENITIVE and noun.gender != "f":
        syllables = len(re.findall("[aeiouyäöü]+", noun.de.lower()))
        sibilant = noun.de.endswith(("s", "ß", "z"))
        return noun.de + ("es" if sibilant or (syllables == 1 and noun.de[-1] != "e") else "s")
    return noun.de


def contract(preposition: str, words: list[str]) -> list[str]:
    """'in', ['dem', 'Wald'] -> ['im', 'Wald']."""
    joined = _CONTRACTIONS.get((preposition, words[0]))
    return [joined, *words[1:]] if joined else [preposition, *words]


def _present(verb: Verb, person: str) -> str:
    if verb.de == "sein":
        return _SEIN["present"][person]
    if person == "3s":
        return verb.present_3sg
    if person == "1s":
        stem = verb.stem_infinitive
        if stem.endswith("eln"):
            return stem[:-3] + "le"
        return stem[:-1] if stem.endswith("en") else stem[:-1] + "e"
    return verb.stem_infinitive


def _past(verb: Verb, person: str) -> str:
    form = verb.past_3sg
    if person in ("1s", "3s"):
        return form
    return form + ("n" if form.endswith("e") else "en")


def german_verb(verb: Verb, tense: str, person: str) -> tuple[str, list[str], str]:
    """Finite form, the words that close a main clause, and the separable prefix of the finite form.

    `tense` is present, past, perfect, future or a modal with its tense, as "können past".
    """
    infinitive = verb.prefix + verb.stem_infinitive
    if tense == "present":
        return _present(verb, person), [], verb.prefix
    if tense == "past":
        return _past(verb, person), [], verb.prefix
    if tense == "perfect":
        forms = _SEIN["present"] if verb.auxiliary == "sein" else _HABEN
        return forms[person], [verb.participle], ""
    if tense == "future":
        return _WERDEN[person], [infinitive], ""
    modal, _, when = tense.partition(" ")
    present, past = _MODALS[modal]
    form = past if when == "past" else present
    if person in ("1p", "3p"):
        form = modal if form == present else past + "n"
    return form, [infinitive], ""


def german_zu_infinitive(verb: Verb) -> list[str]:
    """['zu', 'lesen'] or, with a separable prefix, ['anzuzünden']."""
    if verb.prefix:
        return [f"{verb.prefix}zu{verb.stem_infinitive}"]
    return ["zu", verb.stem_infinitive]


def english_third_person(base: str) -> str:
    """'catch', 'carry', 'open' -> 'catches', 'carries', 'opens'."""
    if base.endswith(("s", "x", "ch", "sh", "z")):
        return base + "es"
    if base.endswith("y") and base[-2] not in "aeiou":
        return base[:-1] + "ies"
    return base + "s"


def english_verb(verb: Verb, tense: str, person: str) -> tuple[list[str], list[str]]:
    """Auxiliaries (the first inverts and takes 'not') and the words after them.

    No auxiliary means a plain main verb, which needs *do* in questions and negation.
    """
    third = person == "3s"
    if verb.en == "be" and tense in ("present", "past"):
        return [_BE[tense][person]], []
    if tense == "present":
        return [], [english_third_person(verb.en) if third else verb.en]
    if tense == "past":
        return [], [verb.en_past]
    if tense == "perfect":
        return ["has" if third else "have"], [verb.en_participle]
    if tense == "future":
        return ["will"], [verb.en]
    modal, _, when = tense.partition(" ")
    if modal == "wollen":
        want = "wanted" if when == "past" else ("wants" if third else "want")
        return [], [want, "to", verb.en]
    if modal == "müssen" and when == "past":
        return [], ["had", "to", verb.en]
    present, past = {"können": ("can", "could"), "müssen": ("must", ""), "sollen": ("should",) * 2}[
        modal
    ]
    return [past if when == "past" else present], [verb.en]


def english_with_do(verb: Verb, tense: str, person: str) -> tuple[list[str], list[str]]:
    """As `english_verb`, with *do* where a plain main verb stands in a question or negation."""
    auxiliaries, rest = english_verb(verb, tense, person)
    if auxiliaries:
        return auxiliaries, rest
    past = tense.endswith("past")
    do = "did" if past else ("does" if person == "3s" else "do")
    base = {"want": "want", "wants": "want", "wanted": "want", "had": "have"}.get(rest[0], verb.en)
    return [do], [base, *rest[1:]]
