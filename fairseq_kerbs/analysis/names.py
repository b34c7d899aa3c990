"""Names of senses: what each sense of a word translates, and which words stand beside it.

One teacher-forced pass over a split finds the most probable sense of every word that is a single
token. Where the data have a source side, IBM Model 1 says which source word each one translates.
The neighbours of a sense are the words before and after it, by how much more often they stand
there than with the word's other senses: z-scores of log odds (Monroe et al. 2008, "Fightin'
Words", Section 3.3.1).
In dialog, where both sides are in one language, the words of the turn before count in the same way,
and nothing is aligned.

How clear a word's senses are is the mutual information of sense and source word, or of sense and
neighbour, less that of permuted senses, in nats.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS
from sklearn.metrics import mutual_info_score

from fairseq_kerbs.analysis.alignment import align
from fairseq_kerbs.analysis.occurrences import batches, real_tokens
from fairseq_kerbs.analysis.words import joined_words
from fairseq_kerbs.utils.errors import UserError

LEAST_OCCURRENCES = 40  # of a word that can be among the clearest
LEAST_SHARE = 0.05  # of a sense's occurrences that a source word has to have
LEAST_TIMES = 2  # that a source word or a neighbour has to be met: one is chance
LEAST_Z = 1.96
MOST = 3  # source words, neighbours and words of the turn before, of each sense
PERMUTATIONS = 5
SAME_LANGUAGE = 0.5  # share of the target's words that the source has, too, from which on it is one
TOKENS = 250_000  # of a split that are read, about; of a longer one every second, third … batch
COMMON = 0.25  # share of all tokens that the most frequent words make up, and so are no content

Numbers = NDArray[np.int64]


class SenseName(NamedTuple):
    """What sets a sense apart."""

    times: int  # occurrences in which it is the most probable sense of its word
    share: float  # of the word's occurrences
    sources: list[tuple[str, int]]  # source words that it translates, and how often
    neighbours: list[str]  # such as "street light", the word itself among them
    turn: list[str]  # words of the turn before

    @property
    def translates(self) -> str:
        """Source words, each with how often."""
        return ", ".join(f"{word} {times}" for word, times in self.sources)

    @property
    def beside(self) -> str:
        """Neighbours, and words of the turn before behind an arrow."""
        return ", ".join([*self.neighbours, *(f"← {word}" for word in self.turn)])

    @property
    def short(self) -> str:
        """Source words alone, or neighbours where it has none."""
        return ", ".join(word for word, _ in self.sources) or self.beside


NO_NAME = SenseName(0, 0.0, [], [], [])
"""That of a sense without occurrences."""


class Text(NamedTuple):
    """A split, and the sense that predicted each of its N words that are a single token."""

    words: list[list[str]]  # of each line, pieces joined
    source: list[list[str]] | None  # those of the source side
    line: Numbers  # [N]
    place: Numbers  # [N] in the line's words
    entry: Numbers  # [N] number of the word in the dictionary
    sense: Numbers  # [N] row of the most probable sense
    posterior: NDArray[np.float64]  # [N] its share of the word (Eq. 7)


@torch.no_grad()
def read_text(model: Any, task: Any, split: str) -> Text:
    """Words and senses of a split, of about :data:`TOKENS` tokens. Raises what
    :func:`.occurrences.batches` raises; a UserError if there is no word in them."""
    layer, dictionary = model.decoder.output, task.target_dictionary
    read = getattr(task, "source_dictionary", None)
    two_sided = hasattr(model, "encoder")
    lines: dict[int, tuple[list[str], list[str]]] = {}
    parts, shares = [], []
    for batch in batches(task, split, most=TOKENS):
        target = batch["target"]  # [batch, len]
        posterior = layer.posterior(layer.look_up(target), model(**batch["net_input"])[0])
        share, slot = posterior.max(-1, keepdim=True)
        sense = layer.table.senses[target].gather(-1, slot).squeeze(-1)  # [batch, len]
        sources = batch["net_input"]["src_tokens"]
        for row, line in enumerate(batch["id"].tolist()):
            columns, tokens = real_tokens(target[row], dictionary)
            words, positions = joined_words(tokens)
            source = joined_words(real_tokens(sources[row], read)[1])[0] if two_sided else []
            lines[line] = words, source
            single = [(place, columns[at]) for place, at in enumerate(positions) if at is not None]
            if single:
                places, at = torch.tensor(single).t()
                of_line = torch.full_like(places, line)
                parts.append(torch.stack([of_line, places, target[row, at], sense[row, at]]))
                shares.append(share[row, at, 0].double())
    if not parts:
        raise UserError(f"--split {split}: there is no word in it; name another split")
    line, place, entry, senses = torch.cat(parts, 1).numpy()
    order = sorted(lines)  # perhaps with gaps
    line = np.searchsorted(order, line)
    sides = [lines[number] for number in order]
    source_side = [source for _, source in sides] if two_sided else None
    posterior, text = torch.cat(shares).numpy(), [words for words, _ in sides]
    return Text(text, source_side, line, place, entry, senses, posterior)


class Example(NamedTuple):
    """A context of a sense."""

    posterior: float  # of the sense (Eq. 7)
    words: list[str]  # of the line
    place: int  # of the word among them


class Association(NamedTuple):
    """A word that sets a sense apart."""

    score: float  # z-score
    word: str
    text: str  # how it is shown


def is_function_word(word: str) -> bool:
    """Whether a word has no letter, or is on scikit-learn's list of English function words."""
    return not any(map(str.isalpha, word)) or word.lower() in ENGLISH_STOP_WORDS


def best_words(associations: Iterable[Association]) -> list[str]:
    """The :data:`MOST` surest, words without a letter left out and function words last."""
    ranked = sorted(
        (is_function_word(found.word), -found.score, found.text)
        for found in associations
        if any(map(str.isalpha, found.word))
    )
    return [text for _, _, text in ranked[:MOST]]


def numbered(lines: Sequence[Sequence[str]]) -> tuple[list[str], Numbers]:
    """The kinds of words in lines, sorted, and the number of the kind of each word, [N]."""
    kinds = sorted({word for words in lines for word in words})
    numbers = {word: number for number, word in enumerate(kinds)}
    return kinds, np.array([numbers[word] for words in lines for word in words], np.int64)


class SenseNames:
    """Names of the senses in a text.

    Args:
        text: what :func:`read_text` gives.
        symbols: [V] entries of the target dictionary.
    """

    def __init__(self, text: Text, symbols: Sequence[str]) -> None:
        self._text, self._symbols = text, symbols
        order = np.argsort(text.entry, kind="stable")
        entries, starts = np.unique(text.entry[order], return_index=True)
        self._where = dict(zip(entries.tolist(), np.split(order, starts[1:])))  # [n] of each word
        lengths = np.array([len(words) for words in text.words])
        at = (np.cumsum(lengths) - lengths)[text.line] + text.place  # [N] in all words
        self._kinds, flat = numbered(text.words)
        first, last = text.place == 0, text.place == lengths[text.line] - 1
        # numbers of words before and after, [N]; −1 where there is none
        self._before = np.where(first, -1, flat[at - 1])
        self._after = np.where(last, -1, flat[(at + 1) % max(1, len(flat))])
        self._causes: list[str] = []
        self._cause: Numbers | None = None  # [N] number of the source word; −1 for none
        self._turns: list[list[str]] | None = None
        if text.source is None or not any(text.source):
            return
        causes, numbers = numbered(text.source)
        if len({*causes}.intersection(self._kinds)) > SAME_LANGUAGE * len(self._kinds):
            self._turns = text.source
            return
        best = align(text.words, text.source).best[at]
        letters = np.array([any(map(str.isalpha, cause)) for cause in causes])
        known = (best >= 0) & letters[numbers[best]]  # punctuation names nothing
        self._causes, self._cause = causes, np.where(known, numbers[best], -1)

    @property
    def lines(self) -> int:
        """Lines that were read."""
        return len(self._text.words)

    def clearest(self, most: int, special: int = 0) -> list[str]:
        """The words whose senses differ most surely: ``most`` of them, or all with 0. Words without
        a letter and function words come last."""
        frequent = self._common()
        clear = {}
        for entry, where in self._where.items():
            word = self._symbols[entry]
            if entry >= special and len(where) >= LEAST_OCCURRENCES:
                empty = entry in frequent or is_function_word(word)
                if (value := self.clarity(entry)) > 0:
                    clear[word] = (empty, -value, word)
        return sorted(clear, key=clear.__getitem__)[: most or None]

    def _common(self) -> set[int]:
        """The most frequent entries, which together make up :data:`COMMON` of the tokens."""
        by_count = sorted(self._where, key=lambda entry: -len(self._where[entry]))
        shares = np.cumsum([len(self._where[entry]) for entry in by_count])
        return {
            entry for entry, share in zip(by_count, shares)
            if share <= COMMON * len(self._text.entry)
        }  # fmt: skip

    def clarity(self, entry: int) -> float:
        """Mutual information of a word's senses and their source words, or else of senses and
        neighbours, in nats, above that of permuted senses; 0 with one sense."""
        where = self._where.get(entry)
        if where is None:
            return 0.0
        senses = np.unique(self._text.sense[where], return_inverse=True)[1]
        if not senses.any():
            return 0.0
        features = [self._before, self._after] if self._cause is None else [self._cause]
        draw = np.random.default_rng(entry)
        excess = []
        for feature in features:
            kinds = np.unique(feature[where], return_inverse=True)[1]
            partitions = [senses, *(draw.permutation(senses) for _ in range(PERMUTATIONS))]
            tables = (contingency(each, kinds, int(senses.max()) + 1) for each in partitions)
            own, *chance = (mutual_info_score(None, None, contingency=each) for each in tables)
            excess.append(own - float(np.mean(chance)))
        return max(0.0, *excess)

    def names(self, entry: int) -> dict[int, SenseName]:
        """Names of a word's senses that occur, by row."""
        where = self._where.get(entry)
        if where is None:
            return {}
        rows, senses = np.unique(self._text.sense[where], return_inverse=True)
        word, counts = self._symbols[entry], np.bincount(senses)
        before = self._apart(senses, self._before[where], ("", f" {word}"))
        after = self._apart(senses, self._after[where], (f"{word} ", ""))
        turns = self._turn_words(senses, where)
        found = {}
        for number, row in enumerate(rows.tolist()):
            sources = []
            if self._cause is not None:
                causes = self._cause[where[senses == number]]
                kinds, met = np.unique(causes[causes >= 0], return_counts=True)
                for best in np.argsort(-met, kind="stable")[:MOST]:
                    if met[best] >= max(LEAST_TIMES, LEAST_SHARE * counts[number]):
                        sources.append((self._causes[kinds[best]], int(met[best])))
            neighbours = best_words([*before[number], *after[number]])
            turn = best_words(turns[number])
            times = int(counts[number])
            found[row] = SenseName(times, times / len(where), sources, neighbours, turn)
        return found

    def examples(self, row: int, entry: int, most: int) -> list[Example]:
        """The surest contexts of a sense of a word, at most ``most``, the surest first."""
        where = self._where.get(entry, np.empty(0, np.int64))
        where = where[self._text.sense[where] == row]
        best = where[np.argsort(-self._text.posterior[where], kind="stable")[:most]]
        return [
            Example(
                float(self._text.posterior[at]),
                self._text.words[self._text.line[at]],
                int(self._text.place[at]),
            )
            for at in best
        ]

    def _apart(
        self, senses: Numbers, feature: Numbers, form: tuple[str, str]
    ) -> list[list[Association]]:
        """Of each sense the words that set it apart, shown between the two texts of a form."""
        there = feature >= 0
        kinds, kind = np.unique(feature[there], return_inverse=True)
        table = contingency(senses[there], kind, int(senses.max()) + 1)
        return [
            [
                Association(float(z[at]), word, word.join(form))
                for at in np.flatnonzero(z > LEAST_Z)
                for word in [str(self._kinds[kinds[at]])]
            ]
            for z in log_odds(table)
        ]

    def _turn_words(self, senses: Numbers, where: Numbers) -> list[list[Association]]:
        """Of each sense the words of the turn before that set it apart."""
        count = int(senses.max()) + 1
        if self._turns is None:
            return [[] for _ in range(count)]
        pairs = [
            (sense, word)
            for sense, line in zip(senses.tolist(), self._text.line[where].tolist())
            for word in set(self._turns[line])
        ]
        if not pairs:
            return [[] for _ in range(count)]
        kinds, kind = np.unique([word for _, word in pairs], return_inverse=True)
        table = contingency(np.array([sense for sense, _ in pairs]), kind, count)
        return [
            [
                Association(float(z[at]), str(kinds[at]), str(kinds[at]))
                for at in np.flatnonzero(z > LEAST_Z)
            ]
            for z in log_odds(table)
        ]


def contingency(rows: Numbers, columns: Numbers, count: int) -> NDArray[np.float64]:
    """How often each of ``count`` rows meets each column, [count, C], of pairs [n] and [n]."""
    width = int(columns.max(initial=-1)) + 1
    table = np.bincount(rows * width + columns, minlength=count * width)
    return table.reshape(count, width).astype(float)


def log_odds(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """z-scores of log odds of columns in each row against all other rows, [R, C]."""
    other = table.sum(0) - table
    own_rest = table.sum(1, keepdims=True) - table
    other_rest = other.sum(1, keepdims=True) - other
    odds = np.log((table + 0.5) / (own_rest + 0.5)) - np.log((other + 0.5) / (other_rest + 0.5))
    scores: NDArray[np.float64] = odds / np.sqrt(1 / (table + 0.5) + 1 / (other + 0.5))
    return np.where(table >= LEAST_TIMES, scores, 0.0)
