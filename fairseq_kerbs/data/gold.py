"""Files of gold senses: lines of number of the line, occurrence, word and sense between tabs.

Both numbers count from 0; the occurrence is that of the same word form in the line of tokens.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import snowballstemmer

from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import read_lines

GoldRow = tuple[int, int, str, str]

_TOKEN = re.compile(r"\w+|[^\w\s]")


def gold_of_mlt(lists: Path, text: Path, source: Path) -> list[GoldRow]:
    """Gold senses by the German words of a list of Multimodal Lexical Translation (Lala and Specia
    2018), for any English text with its German source.

    A line of the list is: English word | its German translation | English sentence | German
    sentence | image. The stem of a German translation is the sense where it begins the stem of a
    word of the source, compounds too, and no other translation of the English word does so.

    Args:
        text, source: tokenized, such as ``clean/train.en`` and ``clean/train.de`` of a prepared
            folder. A UserError if these differ in length, or a line of the list has another form.
    """
    stem = stemmer("german")
    senses: defaultdict[str, set[str]] = defaultdict(set)
    for number, row in enumerate(read_lines(lists), start=1):
        with _expecting("five fields between vertical bars", lists, number):
            english, german, *_ = (field.strip().lower() for field in row.split("|"))
            senses[english].add(stem(german))
    rows = []
    for line, (english, german) in enumerate(_parallel(text, source)):
        stems = [stem(word.lower()) for word in german.split()]
        for occurrence, word in _numbered(english.split()):
            known = senses.get(word.lower(), ())
            present = [sense for sense in known if any(s.startswith(sense) for s in stems)]
            if len(present) == 1:
                rows.append((line, occurrence, word, present[0]))
    return rows


def parallel_words(
    text: Path, other: Path, language: str | None = None
) -> tuple[list[list[str]], list[list[str]]]:
    """Words of a tokenized text, and of the same lines in another language, split at punctuation
    and lower-cased, which Snowball's stemmer reduces to stems if it is named by its ``language``.
    A UserError if the texts differ in length."""
    stem = stemmer(language) if language else str
    pairs = _parallel(text, other)
    others = [[stem(word) for word in _TOKEN.findall(line.lower())] for _, line in pairs]
    return [line.split() for line, _ in pairs], others


def gold_of_translations(
    lines: Sequence[Sequence[str]], others: Sequence[Sequence[str]], aligned: Iterable[int]
) -> list[GoldRow]:
    """Gold senses of the words of ``lines`` by the words of ``others`` that they are ``aligned``
    with: numbers of these through all lines, negative for a word without one."""
    senses = [word for words in others for word in words]
    places = ((line, *word) for line, words in enumerate(lines) for word in _numbered(words))
    return [
        (*place, senses[number])
        for place, number in zip(places, aligned)
        if number >= 0 and senses[number].isalpha() and any(map(str.isalpha, place[2]))
    ]


def gold_of_noad(path: Path) -> tuple[list[str], list[GoldRow]]:
    """Sentences and gold senses of the words that the New Oxford American Dictionary labels (Yuan
    et al. 2016), from lines of source, tokens, and labels PLACE:SENSE, between tabs; places count
    from 0. A UserError if a line has another form."""
    sentences: list[str] = []
    gold: list[GoldRow] = []
    for number, row in enumerate(read_lines(path), start=1):
        with _expecting("source, tokens and labels PLACE:SENSE between tabs", path, number):
            _, tokens, labels = row.split("\t")
            words = _numbered(tokens.split())
            for place, sense in (label.split(":", 1) for label in labels.split()):
                gold.append((len(sentences), *words[int(place)], sense))
            sentences.append(" ".join(word for _, word in words))
    return sentences, gold


def gold_of_coarsewsd(folder: Path, part: str = "train") -> tuple[list[str], list[GoldRow]]:
    """Sentences and gold senses of CoarseWSD-20 (Loureiro et al. 2020), all words in one text.

    ``folder`` has a folder for each word, with ``PART.data.txt``, ``PART.gold.txt`` (``part``:
    "train" or "test") and ``classes_map.txt``; a UserError if these are missing or do not fit each
    other. Sentences are lower-cased and tokenized there; gold senses have numbers of these lines.
    """
    sentences: list[str] = []
    gold: list[GoldRow] = []
    for data in sorted(folder.glob(f"*/{part}.data.txt")):
        with _expecting("a JSON object of senses", data.parent / "classes_map.txt"):
            names = json.loads((data.parent / "classes_map.txt").read_text("utf-8"))
        senses = read_lines(data.parent / f"{part}.gold.txt")
        for number, row in enumerate(read_lines(data)):
            with _expecting(
                "a place, a sentence, and a sense in the other files", data, number + 1
            ):
                place, sentence = row.split("\t", 1)
                word = _numbered(sentence.split())[int(place)]
                gold.append((len(sentences), *word, names[senses[number].strip()]))
                sentences.append(sentence)
    if not sentences:
        raise UserError(f"{folder} has no WORD/{part}.data.txt; name the folder of CoarseWSD-20")
    return sentences, gold


@contextmanager
def _expecting(form: str, path: Path, number: int | None = None) -> Iterator[None]:
    """Name the file, and the line of it, whose content has another form."""
    try:
        yield
    except (OSError, ValueError, LookupError, TypeError):
        where = f"{path}, line {number}" if number else f"{path}"
        raise UserError(f"{where}: expected {form}") from None


def with_several_senses(
    rows: Iterable[GoldRow], least_count: int = 1, least_share: float = 0.0
) -> list[GoldRow]:
    """The rows of words with at least ``least_count`` rows and several senses, where a sense counts
    that has at least ``least_share`` of them."""
    senses: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for _, _, word, sense in rows:
        senses[word][sense] += 1
    chosen: dict[str, set[str]] = {}
    for word, counts in senses.items():
        total = sum(counts.values())
        frequent = {sense for sense, count in counts.items() if count >= least_share * total}
        if total >= least_count and len(frequent) > 1:
            chosen[word] = frequent
    return [row for row in rows if row[3] in chosen.get(row[2], ())]


def gold_text(rows: Iterable[GoldRow]) -> str:
    """A file of gold senses, by line."""
    return "".join("\t".join(map(str, row)) + "\n" for row in sorted(rows))


def stemmer(language: str) -> Callable[[str], str]:
    """Snowball's stemmer of a language; a UserError if it has none."""
    if language not in snowballstemmer.algorithms():
        known = ", ".join(snowballstemmer.algorithms())
        raise UserError(f"Snowball has no stemmer for {language!r}, but for {known}")
    return cache(snowballstemmer.stemmer(language).stemWord)


def _parallel(text: Path, other: Path) -> list[tuple[str, str]]:
    lines, others = read_lines(text), read_lines(other)
    if len(lines) != len(others):
        raise UserError(
            f"{text} has {len(lines)} lines, {other} {len(others)}; give texts that are parallel "
            "line by line"
        )
    return list(zip(lines, others))


def _numbered(words: Sequence[str]) -> list[tuple[int, str]]:
    """Words, each with how often it stands before."""
    seen: Counter[str] = Counter()
    numbered = []
    for word in words:
        numbered.append((seen[word], word))
        seen[word] += 1
    return numbered
