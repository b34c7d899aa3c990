"""Gold senses of words: rows of line number, occurrence, word and sense, in files with tabs.

Lines and occurrences count from 0. An occurrence counts the same word form in a line of tokens.
"""

from __future__ import annotations

import html
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from itertools import takewhile
from pathlib import Path

import regex

from fairseq_kerbs.data.languages import language_of
from fairseq_kerbs.data.tokens import composed, lower
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import check_parallel, read_lines

Occurrence = tuple[int, int, str]
"""Line, number of the same word before it in the line (both from 0), and word."""

GoldSenses = Mapping[Occurrence, str]
"""Gold senses of occurrences."""

GoldRow = tuple[int, int, str, str]
"""An occurrence and its gold sense."""

# combining marks and joiners are parts of words, and so is the dot of Catalan col·lecció
_WORD = r"[\w\p{M}\u200c\u200d·]+"
_TOKEN = regex.compile(rf"{_WORD}|[^\w\s]")
_APOSTROPHES = "'’\"״׳"
_TOKEN_WITH_APOSTROPHES = regex.compile(rf"{_WORD}(?:[{_APOSTROPHES}]{_WORD})*|[^\w\s]")
_APOSTROPHE_IS_A_LETTER = ("be", "gn", "he", "sm", "uk", "uz")  # п'ять. In others it is an elision
_SUBWORD = regex.compile(r"\w@@(?: |$)|^▁")
_LETTERS = regex.compile(
    rf"[\p{{L}}\p{{M}}\u200c\u200d]+(?:[{_APOSTROPHES}·][\p{{L}}\p{{M}}\u200c\u200d]+)*"
)

STEMMERS = {
    "ar": "arabic",
    "ca": "catalan",
    "cs": "czech",
    "da": "danish",
    "de": "german",
    "el": "greek",
    "en": "english",
    "es": "spanish",
    "et": "estonian",
    "fi": "finnish",
    "fr": "french",
    "hi": "hindi",
    "hu": "hungarian",
    "hy": "armenian",
    "id": "indonesian",
    "it": "italian",
    "lt": "lithuanian",
    "nl": "dutch",
    "no": "norwegian",
    "pl": "polish",
    "pt": "portuguese",
    "ro": "romanian",
    "ru": "russian",
    "sr": "serbian",
    "sv": "swedish",
    "ta": "tamil",
    "tr": "turkish",
    "yi": "yiddish",
}
"""Snowball's stemmers, by the suffix of a text."""

LEAST_BEGINNING = 3
"""Minimum length of the common beginning of two forms of one word, accents aside."""
SHARE_OF_BEGINNING = 2 / 3
"""Minimum share of the shorter form that the common beginning has. The rule of :mod:`.forms` takes
less: there a wrong pair changes what is said of a split, and here it would join two gold senses."""


def parallel_words(
    text: Path, other: Path, language: str = "none"
) -> tuple[list[list[str]], list[list[str]]]:
    """Words of a tokenized text, and lower-cased words of the same lines in another language.

    The other text is split at punctuation, and stemmed unless its ``language`` is "none". If it is
    named .uk, say, where an apostrophe is a letter, it is not split there. A UserError is raised if
    the texts differ in length or have subwords, or Snowball has no such stemmer.
    """
    stem = stemmer(language)
    pairs = parallel(text, other)
    for path, lines in zip((text, other), zip(*pairs)):
        marked = next((n for n, line in enumerate(lines, 1) if _SUBWORD.search(line)), None)
        if marked:
            raise UserError(
                f"{path}, line {marked} has subwords (@@ or ▁), which are no words; give the text "
                "before BPE, such as clean/train.en or tok/test.en of 'prepare'"
            )
    written_in = language_of(other) if language == "none" else language
    plain = [lower(composed(html.unescape(line)), written_in) for _, line in pairs]
    token = _TOKEN
    if language_of(other) in _APOSTROPHE_IS_A_LETTER:
        token = _TOKEN_WITH_APOSTROPHES
    others = [[stem(word) for word in token.findall(line)] for line in plain]
    return [line.split() for line, _ in pairs], others


def gold_of_translations(
    lines: Sequence[Sequence[str]], others: Sequence[Sequence[str]], aligned: Iterable[int]
) -> list[GoldRow]:
    """Gold senses of words, from the words that they are aligned with.

    Args:
        lines: words of each line.
        others: words of each line in another language, the senses.
        aligned: for each word, the index of its aligned word in the concatenated ``others``, or a
            negative number.
    """
    senses = [word for words in others for word in words]
    places = ((line, *word) for line, words in enumerate(lines) for word in numbered(words))
    return [
        (*place, senses[number])
        for place, number in zip(places, aligned)
        if number >= 0 and _LETTERS.fullmatch(senses[number]) and _has_letter(place[2])
    ]


def _has_letter(word: str) -> bool:
    """Whether a word has a letter, where an XML entity is the sign that it stands for."""
    return any(map(str.isalpha, html.unescape(word)))


def with_several_senses(
    rows: Sequence[GoldRow], least_count: int = 1, least_share: float = 0.0
) -> list[GoldRow]:
    """Select the gold senses that are frequent, of words with several such senses.

    Args:
        least_count: minimum number of rows of a word.
        least_share: minimum share of a sense among the rows of its word.
    """
    words = Counter(row[2] for row in rows)
    senses = Counter(row[2:] for row in rows)
    frequent = {
        (word, sense)
        for (word, sense), count in senses.items()
        if words[word] >= least_count and count >= least_share * words[word]
    }
    several = Counter(word for word, _ in frequent)
    return [row for row in rows if row[2:] in frequent and several[row[2]] > 1]


def merge_forms(counts: Mapping[str, int], beginning: int = LEAST_BEGINNING) -> dict[str, str]:
    """Join translations of one word that are forms of each other, by a rule for any language.

    Two are forms of one word if they begin alike, accents aside, by at least ``beginning`` letters
    and :data:`SHARE_OF_BEGINNING` of the shorter one. This joins what stemmers leave apart, such as
    Czech *kamen* and *kámen*, and also derived words and compounds, such as German *Straße* and
    *Straßenrand*.

    Args:
        counts: how often each translation occurs.
        beginning: minimum length of the common beginning.

    Returns:
        for each translation its most frequent form.
    """
    plain = {word: without_accents(word) for word in counts}

    def begin_alike(word: str, head: str) -> bool:
        shared = common_beginning(plain[word], plain[head])
        shorter = min(len(plain[word]), len(plain[head]))
        return plain[word] == plain[head] or shared >= max(beginning, SHARE_OF_BEGINNING * shorter)

    return merge_alike(counts, begin_alike)


def merge_alike(counts: Mapping[str, int], alike: Callable[[str, str], bool]) -> dict[str, str]:
    """Join words to the most frequent one that is like them.

    Args:
        counts: how often each word occurs.
        alike: whether a word is like a more frequent one.

    Returns:
        for each word the most frequent one that it is like, or itself.
    """
    heads: list[str] = []
    form = {}
    for word in sorted(counts, key=lambda word: (-counts[word], word)):
        form[word] = next((head for head in heads if alike(word, head)), word)
        if form[word] == word:
            heads.append(word)
    return form


def common_beginning(one: str, other: str) -> int:
    """Number of letters with which two words begin alike."""
    pairs = zip(one, other)
    return len([*takewhile(lambda pair: pair[0] == pair[1], pairs)])


def with_merged_forms(rows: Sequence[GoldRow]) -> list[GoldRow]:
    """Rows whose senses are the most frequent forms of their words' translations."""
    counts: dict[str, Counter[str]] = {}
    for _, _, word, sense in rows:
        counts.setdefault(word, Counter())[sense] += 1
    forms = {word: merge_forms(of_word) for word, of_word in counts.items()}
    return [(line, number, word, forms[word][sense]) for line, number, word, sense in rows]


def without_accents(word: str) -> str:
    """A word without accents and vowel points: *Männer* becomes *Manner*.

    Marks that make another letter stay: the voicing of Japanese, tones and vowels of Thai and Lao,
    nuktas and viramas.
    """
    parts = unicodedata.normalize("NFD", word)
    kept = "".join(part for part in parts if not _is_accent(part))
    return unicodedata.normalize("NFC", kept)  # syllables of Korean are one character again


def _is_accent(character: str) -> bool:
    """Whether a character is an accent above or below a letter, or a Hebrew or Arabic point."""
    combining = unicodedata.combining(character)
    return combining >= 200 or 10 <= combining <= 36


def frequent_senses(
    rows: Sequence[GoldRow], least_count: int = 1, least_share: float = 0.0
) -> list[GoldRow]:
    """Select the gold senses that are frequent, also of words with one such sense.

    Args:
        least_count: minimum number of the selected rows of a word.
        least_share: minimum share of a sense among all rows of its word. A rarer one is mostly an
            error of the alignment.
    """
    words = Counter(row[2] for row in rows)
    senses = Counter(row[2:] for row in rows)
    kept = [row for row in rows if senses[row[2:]] >= least_share * words[row[2]]]
    left = Counter(row[2] for row in kept)
    return [row for row in kept if left[row[2]] >= least_count]


def gold_text(rows: Iterable[GoldRow]) -> str:
    """Text of a file of gold senses, sorted by line."""
    return "".join("\t".join(map(str, row)) + "\n" for row in sorted(rows))


def stemmer(language: str) -> Callable[[str], str]:
    """Snowball's stemmer for a language, or "none". An unknown language raises a UserError."""
    import snowballstemmer  # of the extra "analysis", which the toy corpus does not need

    if language == "none":
        return str
    if language not in snowballstemmer.algorithms():
        known = ", ".join(snowballstemmer.algorithms())
        raise UserError(f"Snowball has no stemmer for {language!r}; choose one of {known}")
    return cache(snowballstemmer.stemmer(language).stemWord)


def parallel(*paths: Path) -> list[tuple[str, ...]]:
    """Lines of parallel texts side by side. A UserError is raised if their numbers differ."""
    texts = [read_lines(path) for path in paths]
    check_parallel(dict(zip(map(str, paths), texts)))
    return list(zip(*texts))


def numbered(words: Sequence[str]) -> list[tuple[int, str]]:
    """Words, each with its number of earlier occurrences."""
    return [occurrence_of(0, words, place)[1:] for place in range(len(words))]


def occurrence_of(line: int, words: Sequence[str], place: int) -> Occurrence:
    """The occurrence at a place of a line with these words.

    >>> occurrence_of(7, ["the", "bank", "of", "the", "river"], 3)
    (7, 1, 'the')
    """
    return line, words[:place].count(words[place]), words[place]
