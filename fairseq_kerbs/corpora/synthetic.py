"""The synthetic corpus: German-like sentences, their English, the gold sense of ambiguous words.

Twelve English words (`AMBIGUOUS`) translate two to four German words each, in contexts that tell
which: *bank* is Bank or Ufer, *spring* Frühling, Feder or Quelle, *light* Licht, leicht, hell or
anzünden. The text is cased and has punctuation, so that tokenization has work to do.

The order of the draws is part of the corpus: a seed gives the same text for ever.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from random import Random
from typing import TypeVar

from fairseq_kerbs.corpora import synthetic_grammar as grammar
from fairseq_kerbs.corpora.synthetic_grammar import Clause, Frame, Noun, NounPhrase, Pair, Slot
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import atomic_write

T = TypeVar("T")

PERSON, SEEN = grammar.read_slots("nom PERSON acc PERSON")
PERSON_FRAMES = [frame for frame in grammar.PLAIN_FRAMES if "PERSON" in frame.subject.nouns]
NONE, THE = ("", ""), ("der", "the")
_SENSE = re.compile(r"(\w+)\|(\w+)")  # a word and the German lemma that it stands for


class Composer:
    """Draws clauses and sentences from one random stream; a sentence is German and English."""

    def __init__(self, rng: Random) -> None:
        self._rng = rng

    def chance(self, probability: float) -> bool:
        return self._rng.random() < probability

    def pick(self, items: Sequence[T] | dict[T, int]) -> T:
        """One of the items, by their weights if they have any."""
        weights = list(items.values()) if isinstance(items, dict) else None
        return self._rng.choices(list(items), weights)[0]

    def _when(self) -> str:
        return "past" if self.chance(0.5) else "present"

    def _determiner(self, noun: Noun, plural: bool, role: str, subject: NounPhrase | None) -> Pair:
        """Of a noun in the role subject, object or oblique."""
        if noun.kind == "unique":
            return THE
        if noun.kind == "mass":
            return NONE if role == "object" and self.chance(0.7) else THE
        if role != "subject" and subject and self.chance(0.12) and subject.possessive:
            return subject.possessive
        if role != "oblique" and self.chance(0.04):
            name = self.pick(grammar.NAMES).word[0]
            return name + "s", name + "'s"
        choices = {THE: 50, ("dieser", "these" if plural else "this"): 8, ("mein", "my"): 6}
        if plural:
            choices |= {("zwei", "two"): 12, ("drei", "three"): 8, NONE: 12}
        else:
            choices |= {("ein", "a"): 12 if role == "oblique" else 30}
            choices |= {("kein", "no"): 3} if role == "object" else {}
        return self.pick(choices)

    def noun_phrase(self, slot: Slot, role: str, subject: NounPhrase | None = None) -> NounPhrase:
        """A phrase for a slot; persons may be names, as subjects also pronouns."""
        nouns = slot.nouns.split("/")
        if slot.case == "pred":
            adjective = self.pick(nouns)
            return NounPhrase(word=(adjective, grammar.ADJECTIVES[adjective]))
        generic = "PERSON" in nouns and not slot.adjective and not slot.owners and role != "owner"
        if generic and role == "subject" and self.chance(0.3):
            return self.pick(grammar.PRONOUNS)
        if generic and role != "oblique" and self.chance(0.12):
            return self.pick([name for name in grammar.NAMES if name != subject])
        lemmas = [lemma for name in nouns for lemma in grammar.CLASSES.get(name, [name])]
        noun = grammar.NOUNS[self.pick(lemmas)]
        plural = bool(noun.de_plural) and self.chance(0.28)
        owner, determiner = None, THE
        if slot.owners:
            owner = self.noun_phrase(Slot("", "gen", "", "", slot.owners, ""), "owner")
        elif role != "owner":
            determiner = self._determiner(noun, plural, role, subject)
        adjective, usual = slot.adjective, grammar.USUAL_ADJECTIVES.get(noun.kind)
        if not adjective and usual and self.chance(0.12 if owner else 0.25):
            adjective = self.pick(list(usual))
        agreement, person = ("p", "3p") if plural else (noun.gender, "3s")
        return NounPhrase(noun, agreement, determiner, adjective, owner, person=person)

    def clause(self, frame: Frame, when: str = "", subject: NounPhrase | None = None) -> Clause:
        """A clause from a frame; `when` restricts its tenses to 'present' or 'past'."""
        subject = subject or self.noun_phrase(frame.subject, "subject")
        tense = self._tense(frame, when, subject.acts)
        complements = [
            (slot, self.noun_phrase(slot, "oblique" if slot.preposition else "object", subject))
            for slot in frame.slots
        ]
        has_no = any(phrase.determiner[0] == "kein" for _, phrase in complements)
        negated = not has_no and not tense.startswith("müssen") and self.chance(0.1)
        time = self.pick(grammar.ADVERBS[_time_of(tense)]) if self.chance(0.3) else NONE
        affirms = not negated and not has_no
        often = affirms and tense in ("present", "past", "perfect") and self.chance(0.12)
        frequency = self.pick(grammar.ADVERBS["frequency"]) if often else NONE
        does = any(slot.case == "acc" and not slot.preposition for slot in frame.slots)
        skilled = subject.acts and does and affirms and self.chance(0.15)
        manner = self.pick(grammar.ADVERBS["manner"]) if skilled else NONE
        verb = grammar.VERBS[frame.verb]
        return Clause(subject, verb, complements, tense, negated, time, frequency, manner)

    def _tense(self, frame: Frame, when: str, acts: bool) -> str:
        def fits(tense: str) -> bool:
            modal, time = " " in tense, _time_of(tense)
            if modal and not acts and not tense.startswith("können"):
                return False  # things can, but neither want nor should
            if frame.base_form and not modal and tense != "future":
                return False
            return when in ("", time) or (when, time) == ("present", "future")

        choices = {"present": 6, "past": 4} if frame.verb == "sein" else grammar.TENSES
        return self.pick({tense: n for tense, n in choices.items() if fits(tense)})

    def sentence(self, sense: tuple[str, ...] | None) -> Pair:
        """A sentence that contains the ambiguous word with that German lemma (None: no demand)."""
        frame = self.pick(grammar.PLAIN_FRAMES if sense is None else grammar.SENSE_FRAMES[sense])
        kinds = {
            self._simple: 42, self._with_subordinate: 22, self._coordinated: 10,
            self._reported: 8, self._question: 8, self._with_relative: 6, self._attempt: 4,
            self._quoted: 3,
        }  # fmt: skip
        return _finish(self.pick(kinds)(frame))

    def _simple(self, frame: Frame) -> Pair:
        clause = self.clause(frame)
        if clause.time != NONE and self.chance(0.5):
            return _join(clause.time, clause._replace(time=NONE).said("inverted"))
        return clause.said()

    def _two_clauses(self, frame: Frame, when: str = "") -> tuple[Clause, Clause]:
        """The clause of the frame and a plain one, in random order; at most one time adverb."""
        clause = self.clause(frame, when)
        other = self.clause(self.pick(grammar.PLAIN_FRAMES), when)._replace(time=NONE)
        return (clause, other) if self.chance(0.5) else (other, clause)

    def _with_subordinate(self, frame: Frame) -> Pair:
        when = self._when()
        first, second = self._two_clauses(frame, when)
        conjunction = self.pick(grammar.ADVERBS[f"with {when}"])
        subordinate = _join(conjunction, second.said("subordinate"))
        if self.chance(0.35):
            return _join(subordinate, (",", ","), first.said("inverted"))
        return _join(first.said(), (",", ""), subordinate)

    def _coordinated(self, frame: Frame) -> Pair:
        first, second = self._two_clauses(frame)
        conjunction = ("und", "and") if self.chance(0.6) else (", aber", ", but")
        return _join(first.said(), conjunction, second.said())

    def _reported(self, frame: Frame) -> Pair:
        tense, speaker = self._when(), self.noun_phrase(PERSON, "subject")
        verb = grammar.VERBS[self.pick(("sagen", "glauben", "hoffen"))]
        report, clause = Clause(speaker, verb, [], tense), self.clause(frame)
        return _join(report.said(), (", dass", "that"), clause.said("subordinate"))

    def _question(self, frame: Frame) -> Pair:
        clause = self.clause(frame)._replace(negated=False)
        word = self.pick((NONE, NONE, ("warum", "why"), ("wann", "when")))
        if word[1] == "when":
            clause = clause._replace(time=NONE)
        return _join(word, clause.said("question"), ("?", "?"))

    def _with_relative(self, frame: Frame) -> Pair:
        clause = self.clause(frame)
        noun = clause.subject.noun
        if noun is None or clause.subject.owner is not None:
            return self._coordinated(frame)
        who = {"m": "der", "f": "die", "n": "das", "p": "die"}[clause.subject.agreement]
        pronoun = (who, "who" if noun.kind == "person" else "that")
        relative = clause._replace(subject=clause.subject._replace(noun=None, word=pronoun))
        subject = clause.subject._replace(relative=relative)
        if noun.kind == "person" and self.chance(0.5):
            return self.clause(self.pick(PERSON_FRAMES), subject=subject).said()
        tense, speaker = self._when(), self.noun_phrase(PERSON, "subject")
        return Clause(speaker, grammar.VERBS["sehen"], [(SEEN, subject)], tense).said()

    def _attempt(self, frame: Frame) -> Pair:
        clause = self.clause(frame)
        if not clause.subject.acts:
            return self._coordinated(frame)
        attempt = Clause(clause.subject, grammar.VERBS["versuchen"], [], self._when())
        if frame.verb == "sein":
            return self._reported(frame)
        clause = clause._replace(negated=False, time=NONE, frequency=NONE)
        return _join(attempt.said(), (",", ""), clause.said("infinitive"))

    def _quoted(self, frame: Frame) -> Pair:
        name, tense = self.pick(grammar.NAMES), "present" if self.chance(0.5) else "past"
        report = Clause(name, grammar.VERBS["sagen"], [], tense)
        german, english = _finish(self._simple(frame))
        return _join(report.said(), (f': "{german}"', f': "{english}"'))


def _join(*parts: Pair) -> Pair:
    """Rendered parts of a sentence side by side, in both languages."""
    return " ".join(part[0] for part in parts), " ".join(part[1] for part in parts)


def _finish(rendered: Pair) -> Pair:
    """Rendered German and English as sentences: blanks, commas, capitals, full stops."""
    texts = []
    for clause in rendered:
        text = re.sub(" (?=[,:?])", "", " ".join(clause.split())).rstrip(",")
        text += "" if text[-1] in '?"' else "."
        texts.append(text[0].upper() + text[1:])
    return texts[0], texts[1]


def _time_of(tense: str) -> str:
    modal, _, when = tense.rpartition(" ")
    return "future" if modal and when == "present" else when


def _demands(rng: Random) -> Iterator[tuple[str, str] | None]:
    """Shuffled rounds without end: each sense comes at its rate in any run of lines."""
    one_round: list[tuple[str, str] | None] = [None] * 20  # without any demand
    for word, lemmas in grammar.AMBIGUOUS.items():
        for rank, lemma in enumerate(lemmas):  # a word's first sense is more frequent
            one_round += [(word, lemma)] * (2 if rank else 3)
    while True:
        left = one_round.copy()
        while left:
            yield left.pop(int(rng.random() * len(left)))


def generate_split(count: int, seed: int, taken: set[str]) -> Iterator[Pair]:
    """`count` sentence pairs, whose German and English both differ from all that is in `taken`,
    which grows by them; a UserError if the grammar cannot make so many. In the English, an
    ambiguous word carries its sense, as "bank|Ufer"."""
    rng = Random(seed)
    composer, demands = Composer(rng), _demands(rng)
    for demand in islice(demands, count):
        for _ in range(2000):
            german, english = composer.sentence(demand)
            texts = {german, _SENSE.sub(r"\1", english)}
            if taken.isdisjoint(texts):
                break
        else:
            raise UserError(f"the grammar has no {count} different pairs; ask for fewer (--train)")
        taken |= texts
        yield german, english


def write_synthetic_corpus(
    folder: Path | str, train: int = 20000, valid: int = 500, test: int = 500, seed: int = 1
) -> None:
    """Write ``{train,valid,test}.{de,en}`` and ``….senses.tsv``.

    Files of senses are as in `.gold`, with German lemmas. Test and validation sentences depend on
    `seed` and their own sizes alone, not on `train`. No sentence, German or English, occurs twice.
    ``train.senses.tsv`` gets its name last: where it is, the corpus is whole.
    """
    folder, taken = Path(folder), set[str]()
    for index, (split, size) in enumerate({"test": test, "valid": valid, "train": train}.items()):
        with (  # left from the last to the first
            atomic_write(folder / f"{split}.senses.tsv") as senses,
            atomic_write(folder / f"{split}.en") as english,
            atomic_write(folder / f"{split}.de") as german,
        ):
            for line, (de, en) in enumerate(generate_split(size, 3 * seed + index, taken)):
                german.write(de + "\n")
                english.write(_SENSE.sub(r"\1", en) + "\n")
                found = _SENSE.findall(en)
                words = [word for word, _ in found]
                for i, (word, lemma) in enumerate(found):
                    senses.write(f"{line}\t{words[:i].count(word)}\t{word}\t{lemma}\n")
