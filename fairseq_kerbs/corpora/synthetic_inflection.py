"""Inflection for the synthetic corpus: German articles, adjectives, nouns and verbs; English verbs.

Agreement is m, f, n or p (plural of any gender); a person is 1s, 3s, 1p or 3p; a tense is present,
past, perfect, future or a modal verb with its tense, as "können past". Words of the English text
that are ambiguous carry their German lemma: "bank|Ufer".
"""

from __future__ import annotations

import re

from fairseq_kerbs.corpora.synthetic_lexicon import AMBIGUOUS, Noun, Verb

CASES = ("nom", "acc", "dat", "gen")
PERSONS = ("1s", "3s", "1p", "3p")
# four cases each of m, f, n and p ("-" = no ending): articles, then the adjectives after them
_ENDINGS = {
    name: row.replace("-", "").split(" ")
    for name, row in {
        "der": "er en em es ie ie er er as as em es ie ie en er",
        "dieser": "er en em es e e er er es es em es e e en er",
        "ein": "- en em es e e er er - - em es e e en er",
        "weak": "e en en en e e en en e e en en en en en en",
        "mixed": "er en en en e e en en es es en en en en en en",
        "strong": "er en em en e e er er es es em en e e en er",
    }.items()
}
_CONTRACTIONS = {
    "in dem": "im", "in das": "ins", "an dem": "am", "zu dem": "zum", "zu der": "zur",
    "von dem": "vom", "bei dem": "beim",
}  # fmt: skip
_FINITE = {
    name: forms.split()
    for name, forms in {
        "sein": "bin ist sind sind",
        "haben": "habe hat haben haben",
        "werden": "werde wird werden werden",
        "können present": "kann kann können können",
        "können past": "konnte konnte konnten konnten",
        "müssen present": "muss muss müssen müssen",
        "müssen past": "musste musste mussten mussten",
        "wollen present": "will will wollen wollen",
        "wollen past": "wollte wollte wollten wollten",
        "sollen present": "soll soll sollen sollen",
        "be present": "am is are are",
        "be past": "was was were were",
    }.items()
}
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
    phrase = stem + (_ENDINGS[articles][index] if articles else "")
    if adjective:
        phrase += f" {adjective.removesuffix('e')}{_ENDINGS[adjectives][index]}"
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
    if tense in _FINITE:  # a modal verb
        return _FINITE[tense][number], verb.de, ""
    if tense == "future":
        return _FINITE["werden"][number], verb.de, ""
    if tense == "perfect":
        return _FINITE[verb.auxiliary][number], verb.participle, ""
    if tense == "past":
        plural = "n" if verb.past.endswith("e") else "en"
        return verb.past + (plural if person in ("1p", "3p") else ""), "", verb.prefix
    if verb.de == "sein":
        return _FINITE["sein"][number], "", ""
    first = re.sub("eln$", "len", verb.stem)[:-1]
    first = first if first.endswith("e") else first + "e"
    return (first, verb.present, verb.stem, verb.stem)[number], "", verb.prefix


def german_zu_infinitive(verb: Verb) -> str:
    """'zu lesen' or, with a separable prefix, 'anzuzünden'."""
    return f"{verb.prefix}zu{verb.stem}" if verb.prefix else f"zu {verb.stem}"


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
        return _FINITE[f"be {when}"][PERSONS.index(person)], ""
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
