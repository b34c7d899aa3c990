"""Words of the embedded corpus: small German and English lexica and the frames that join them.

Every table is plain text, one entry a line, read once at import. A *frame* says which subjects a
verb takes and with which complements; the frames under a heading ``= word: Lemma`` use that German
lemma, so that one ambiguous English word stands in a context that belongs to one of its senses.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairseq_kerbs.corpora import toy_tables as tables


@dataclass(frozen=True)
class Noun:
    """A noun; `oblique` is the singular outside the nominative ('' = as the nominative)."""

    de: str
    gender: str  # m, f, n
    de_plural: str  # "" = singular only
    en: str
    en_plural: str
    kind: str  # person, animal, thing, idea, body, place, mass, unique
    oblique: str = ""

    @property
    def living(self) -> bool:
        """Whether possessive pronouns may refer to it."""
        return self.kind in ("person", "animal")


@dataclass(frozen=True)
class Verb:
    """A verb: German forms without the separable prefix, the participle and infinitive with it."""

    de: str  # infinitive with prefix; the lemma
    stem_infinitive: str
    prefix: str
    present_3sg: str
    past_3sg: str
    participle: str
    auxiliary: str  # haben, sein
    en: str
    en_past: str
    en_participle: str
    particle: str  # "on" in "switch on"


@dataclass(frozen=True)
class Slot:
    """A complement of a verb: its German case, prepositions and the nouns that may fill it."""

    case: str  # acc, dat, pred
    de_preposition: str
    en_preposition: str
    nouns: tuple[str, ...]  # lemmas or class names; adjectives for pred
    adjective: str = ""  # a lemma that the noun phrase must have
    owners: tuple[str, ...] = ()  # nouns of a genitive attribute: "the bank of the river"


@dataclass(frozen=True)
class Frame:
    """A verb with the subjects and complements that make sense together."""

    subject: Slot
    verb: str
    slots: tuple[Slot, ...]
    infinitive: bool = False  # only tenses whose English has the verb's base form


def _english_forms(text: str) -> tuple[str, str, str]:
    """'write,wrote,written' or a regular 'open' -> base, past, participle."""
    forms = text.split(",")
    if len(forms) == 3:
        return forms[0], forms[1], forms[2]
    base = forms[0]
    if len(forms) == 2:
        return base, forms[1], forms[1]
    if base.endswith("e"):
        past = base + "d"
    elif base.endswith("y") and base[-2] not in "aeiou":
        past = base[:-1] + "ied"
    else:
        past = base + "ed"
    return base, past, past


def _weak_forms(infinitive: str, prefix: str) -> tuple[str, str, str]:
    """Present 3sg, past 3sg and participle (with prefix) of a regular German verb."""
    stem = infinitive[:-2] if infinitive.endswith("en") else infinitive[:-1]
    link = "e" if stem.endswith(("t", "d", "fn", "chn")) else ""
    inseparable = stem.startswith(("be", "er", "ver", "zer", "über", "unter", "ent"))
    ge = "" if inseparable or infinitive.endswith("ieren") else "ge"
    return f"{stem}{link}t", f"{stem}{link}te", f"{prefix}{ge}{stem}{link}t"


def _read_nouns() -> dict[str, Noun]:
    nouns: dict[str, Noun] = {}
    for row in tables.NOUNS.split("\n"):
        if not row.strip():
            continue
        kind, *words = row.split()
        for word in words:
            de, gender, de_plural, en, *rest = word.split(",")
            en_plural = rest[0] if rest else en + "s"
            no_plural = de_plural == "-" or gender.endswith("!")
            nouns[de] = Noun(
                de=de,
                gender=gender[0],
                de_plural="" if no_plural else de_plural,
                en=en.replace("_", " "),
                en_plural=en_plural.replace("_", " "),
                kind=kind,
                oblique=de_plural if gender.endswith(("*", "!")) else "",
            )
    return nouns


def _read_verbs() -> dict[str, Verb]:
    verbs: dict[str, Verb] = {}
    for row in tables.VERBS.split("\n"):
        if not row.strip():
            continue
        german, forms, auxiliary, english = row.split()
        prefix, _, stem = german.rpartition("|")
        if forms == "-":
            present, past, participle = _weak_forms(stem, prefix)
        else:
            present, past, participle = forms.split(",")
        english, _, particle = english.partition("/")
        base, en_past, en_participle = _english_forms(english)
        verbs[prefix + stem] = Verb(
            de=prefix + stem,
            stem_infinitive=stem,
            prefix=prefix,
            present_3sg=present,
            past_3sg=past,
            participle=participle,
            auxiliary={"h": "haben", "s": "sein"}[auxiliary],
            en=base,
            en_past=en_past,
            en_participle=en_participle,
            particle=particle,
        )
    return verbs


def _read_slot(text: str) -> Slot:
    """'in+dat=into [hell]Zimmer/Haus<Mann' -> Slot; see `toy_tables.FRAMES`."""
    head, _, filler = text.strip().partition(" ")
    head, _, english = head.partition("=")
    preposition, _, case = head.rpartition("+")
    if preposition and not english:
        english = tables.PREPOSITIONS[preposition]
    adjective = ""
    if filler.startswith("["):
        adjective, _, filler = filler[1:].partition("]")
    names, _, owners = filler.partition("<")
    return Slot(
        case=case,
        de_preposition=preposition,
        en_preposition=english.replace("_", " "),
        nouns=tuple(names.split("/")),
        adjective=adjective,
        owners=tuple(owners.split("/")) if owners else (),
    )


def _read_frame(text: str) -> Frame:
    subject, verb, *slots = text.split("|")
    verb = verb.strip()
    infinitive = verb.endswith("!")
    return Frame(
        subject=_read_slot("nom " + subject.strip()),
        verb=verb.rstrip("!"),
        slots=tuple(_read_slot(slot) for slot in slots),
        infinitive=infinitive,
    )


def _read_frames() -> tuple[tuple[Frame, ...], dict[tuple[str, str], tuple[Frame, ...]]]:
    """The frames without an ambiguous word, and those of each (English word, German lemma)."""
    groups: dict[tuple[str, str], list[Frame]] = {}
    key = ("", "")
    for row in tables.FRAMES.split("\n"):
        row = row.strip()
        if row.startswith("="):
            word, _, lemma = row[1:].partition(":")
            key = (word.strip(), lemma.strip())
        elif row:
            groups.setdefault(key, []).append(_read_frame(row))
    plain = tuple(groups.pop(("", "")))
    return plain, {name: tuple(frames) for name, frames in groups.items()}


NOUNS = _read_nouns()
VERBS = _read_verbs()
ADJECTIVES: dict[str, str] = dict(
    pair.split(",") for row in tables.ADJECTIVES.values() for pair in row.split()
)
USUAL_ADJECTIVES: dict[str, tuple[str, ...]] = {
    kind: tuple(pair.split(",")[0] for pair in row.split())
    for kind, row in tables.ADJECTIVES.items()
}
CLASSES: dict[str, tuple[str, ...]] = {
    name: tuple(row.split()) for name, row in tables.CLASSES.items()
}
PLAIN_FRAMES, SENSE_FRAMES = _read_frames()

AMBIGUOUS: dict[str, tuple[str, ...]] = {}
"""English word -> its German lemmas, the gold senses, in the order of the tables."""
for _word, _lemma in SENSE_FRAMES:
    AMBIGUOUS[_word] = (*AMBIGUOUS.get(_word, ()), _lemma)
