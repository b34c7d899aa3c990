"""Gold senses of words: rows of line number, occurrence, word and sense, in files with tabs.

Lines and occurrences count from 0. An occurrence counts the same word form in a line of tokens.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import regex
import snowballstemmer

from fairseq_kerbs.data.tokens import composed, lower
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import check_parallel, read_lines

GoldRow = tuple[int, int, str, str]

# combining marks and joiners are parts of words
_TOKEN = regex.compile(r"[\w\p{M}\u200c\u200d]+|[^\w\s]")
_LETTERS = regex.compile(r"[\p{L}\p{M}\u200c\u200d]+")

_CODES = "ar ca cs da de el en es et fi fr hi hu hy id it lt nl no pl pt ro ru sr sv ta tr yi"
_NAMES = (
    "arabic catalan czech danish german greek english spanish estonian finnish french hindi "
    "hungarian armenian indonesian italian lithuanian dutch norwegian polish portuguese romanian "
    "russian serbian swedish tamil turkish yiddish"
)
STEMMERS = dict(zip(_CODES.split(), _NAMES.split()))
"""Snowball's stemmers, by the suffix of a text."""


def gold_of_mlt(lists: Path, text: Path, source: Path, language: str = "german") -> list[GoldRow]:
    """Gold senses of English text with its source, from translations of ambiguous words.

    The sense of a word is the stem of its translation. It must be a prefix of the stem of a
    source word (which includes compounds), and the only one among the word's translations.

    Args:
        lists: a list of Multimodal Lexical Translation (Lala and Specia 2018). A line has English
            word | translation | English sentence | its translation | image.
        text, source: tokenized text, such as ``clean/train.en`` and ``clean/train.de`` of a
            prepared folder.
        language: Snowball's stemmer of the source.

    Raises:
        UserError: the texts differ in length, or a line of the list has another form.
    """
    stem = stemmer(language)
    senses: defaultdict[str, set[str]] = defaultdict(set)
    for number, row in enumerate(read_lines(lists), start=1):
        with _expecting("five fields between vertical bars", lists, number):
            english, other, *context = (field.strip() for field in row.split("|"))
            if not english or not other or len(context) != 3:
                raise ValueError
            senses[english.lower()].add(stem(lower(composed(other), language)))
    rows = []
    for line, (english, other) in enumerate(_parallel(text, source)):
        stems = [stem(word) for word in lower(composed(other), language).split()]
        for occurrence, word in _numbered(english.split()):
            candidates = senses.get(word.lower(), ())
            present = [sense for sense in candidates if any(s.startswith(sense) for s in stems)]
            if len(present) == 1:
                rows.append((line, occurrence, word, present[0]))
    return rows


def parallel_words(
    text: Path, other: Path, language: str = "none"
) -> tuple[list[list[str]], list[list[str]]]:
    """Words of a tokenized text, and lower-cased words of the same lines in another language.

    The other text is split at punctuation, and stemmed unless its ``language`` is "none". A
    UserError is raised if the texts differ in length, or Snowball has no such stemmer.
    """
    stem = stemmer(language)
    pairs = _parallel(text, other)
    plain = (lower(composed(line), language) for _, line in pairs)
    others = [[stem(word) for word in _TOKEN.findall(line)] for line in plain]
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
    places = ((line, *word) for line, words in enumerate(lines) for word in _numbered(words))
    return [
        (*place, senses[number])
        for place, number in zip(places, aligned)
        if number >= 0 and _LETTERS.fullmatch(senses[number]) and any(map(str.isalpha, place[2]))
    ]


def gold_of_noad(path: Path) -> tuple[list[str], list[GoldRow]]:
    """Read sentences and gold senses of the New Oxford American Dictionary (Yuan et al. 2016).

    A line has source, tokens, and labels PLACE:SENSE between tabs. Places count from 0. A line of
    another form raises a UserError.
    """
    sentences, gold = list[str](), list[GoldRow]()
    for number, row in enumerate(read_lines(path), start=1):
        with _expecting("source, tokens and labels PLACE:SENSE between tabs", path, number):
            _, tokens, labels = row.split("\t")
            words, senses = _numbered(tokens.split()), dict[str, str]()
            for place, sense in (label.split(":", 1) for label in labels.split()):
                if int(place) < 0 or not sense or senses.setdefault(place, sense) != sense:
                    raise ValueError
                gold.append((len(sentences), *words[int(place)], sense))
            sentences.append(" ".join(word for _, word in words))
    return sentences, gold


def gold_of_coarsewsd(folder: Path, part: str = "train") -> tuple[list[str], list[GoldRow]]:
    """Read tokenized, lower-cased sentences and gold senses of CoarseWSD-20 (Loureiro et al. 2020).

    The folder has ``WORD/{PART.data,PART.gold,classes_map}.txt``, where PART is "train" or "test".
    Missing or inconsistent files raise a UserError.
    """
    sentences, gold = list[str](), list[GoldRow]()
    for data in sorted(folder.glob(f"*/{part}.data.txt")):
        with _expecting("a JSON object of senses", data.parent / "classes_map.txt"):
            names = json.loads((data.parent / "classes_map.txt").read_text("utf-8"))
        senses = read_lines(data.parent / f"{part}.gold.txt")
        for number, row in enumerate(read_lines(data)):
            form = "a place, a sentence, and a sense in the other files"
            with _expecting(form, data, number + 1):
                place, sentence = row.split("\t", 1)
                word = _numbered(sentence.split())[int(place)]
                sense = " ".join(str(names[senses[number].strip()]).split())
                if int(place) < 0 or not sense:
                    raise ValueError
                gold.append((len(sentences), *word, sense))
                sentences.append(sentence)
    if not sentences:
        raise UserError(f"{folder} has no WORD/{part}.data.txt; name the folder of CoarseWSD-20")
    return sentences, gold


@contextmanager
def _expecting(form: str, path: Path, number: int | None = None) -> Iterator[None]:
    """Raise a UserError with file and line if its content has another form."""
    try:
        yield
    except (OSError, ValueError, LookupError, TypeError):
        line = f", line {number}" if number else ""
        raise UserError(f"{path}{line}: expected {form}") from None


def with_several_senses(
    rows: Sequence[GoldRow], least_count: int = 1, least_share: float = 0.0
) -> list[GoldRow]:
    """Select the gold senses that are frequent, of words with several such senses.

    Args:
        least_count: minimum number of rows of a word.
        least_share: minimum share of a sense among the rows of its word.
    """
    words, senses = Counter(row[2] for row in rows), Counter(row[2:] for row in rows)
    frequent = {
        (word, sense)
        for (word, sense), count in senses.items()
        if words[word] >= least_count and count >= least_share * words[word]
    }
    several = Counter(word for word, _ in frequent)
    return [row for row in rows if row[2:] in frequent and several[row[2]] > 1]


def gold_text(rows: Iterable[GoldRow]) -> str:
    """Text of a file of gold senses, sorted by line."""
    return "".join("\t".join(map(str, row)) + "\n" for row in sorted(rows))


def stemmer(language: str) -> Callable[[str], str]:
    """Snowball's stemmer for a language, or "none". An unknown language raises a UserError."""
    if language == "none":
        return str
    if language not in snowballstemmer.algorithms():
        known = ", ".join(snowballstemmer.algorithms())
        raise UserError(f"Snowball has no stemmer for {language!r}; choose one of {known}")
    return cache(snowballstemmer.stemmer(language).stemWord)


def _parallel(*paths: Path) -> list[tuple[str, ...]]:
    texts = [read_lines(path) for path in paths]
    check_parallel(dict(zip(map(str, paths), texts)))
    return list(zip(*texts))


def _numbered(words: Sequence[str]) -> list[tuple[int, str]]:
    """Words, each with its number of earlier occurrences."""
    return [(words[:place].count(word), word) for place, word in enumerate(words)]
