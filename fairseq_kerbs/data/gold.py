"""Files of gold senses: lines of number of the line, occurrence, word and sense between tabs.

Both numbers count from 0; the occurrence is that of the same word form in the line of tokens.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

from snowballstemmer import stemmer

from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import read_lines

GoldRow = tuple[int, int, str, str]


def gold_of_mlt(lists: Path, tokenized: Path) -> list[GoldRow]:
    """Gold senses from a list of Multimodal Lexical Translation (Lala and Specia 2018).

    A line of it is: English word | its German translation | English sentence | German sentence |
    image. The German word is the sense; inflected forms are joined by Snowball's stemmer. A word
    that stands in its sentence twice is left out, since the list does not say which is meant.
    ``tokenized`` is the English side of the split (``tok/test.en`` of a prepared folder); a
    UserError if no sentence of the list is in it, or a line of the list has another form.
    """
    tokens = [line.split() for line in read_lines(tokenized)]
    lines = {_letters(" ".join(words)): number for number, words in enumerate(tokens)}
    stem = stemmer("german").stemWord
    found: defaultdict[tuple[int, str], set[str]] = defaultdict(set)
    for number, row in enumerate(read_lines(lists), start=1):
        fields = [field.strip() for field in row.split("|")]
        if len(fields) < 4:
            raise UserError(f"{lists}, line {number}: expected five fields between vertical bars")
        line = lines.get(_letters(fields[2]))
        if line is None:
            continue
        forms = [word for word in tokens[line] if word.lower() == fields[0].lower()]
        if len(forms) == 1:
            found[line, forms[0]].add(stem(fields[1].lower()))
    if not found:
        raise UserError(
            f"no sentence of {lists} is in {tokenized}; give the tokenized English text of the "
            "split that the list was made from"
        )
    return [
        (line, 0, word, senses.pop())
        for (line, word), senses in sorted(found.items())
        if len(senses) == 1
    ]


def gold_of_coarsewsd(folder: Path, part: str = "train") -> tuple[list[str], list[GoldRow]]:
    """Sentences and gold senses of CoarseWSD-20 (Loureiro et al. 2020), all words in one text.

    ``folder`` has a folder for each word, with ``PART.data.txt``, ``PART.gold.txt`` (``part``:
    "train" or "test") and ``classes_map.txt``; a UserError if these are missing or do not fit each
    other. Sentences are lower-cased and tokenized there; gold senses have numbers of these lines.
    """
    sentences: list[str] = []
    gold: list[GoldRow] = []
    for data in sorted(folder.glob(f"*/{part}.data.txt")):
        classes = data.parent / "classes_map.txt"
        try:
            names = dict(json.loads("\n".join(read_lines(classes))))
        except (TypeError, ValueError):
            raise UserError(f"{classes} is no JSON object of senses") from None
        rows, senses = read_lines(data), read_lines(data.parent / f"{part}.gold.txt")
        if len(rows) != len(senses):
            raise UserError(f"{data} has {len(rows)} lines, its {part}.gold.txt {len(senses)}")
        for number, (row, sense) in enumerate(zip(rows, senses, strict=True), start=1):
            place, _, sentence = row.partition("\t")
            words, sense = sentence.split(), sense.strip()
            if not (place.isdecimal() and int(place) < len(words) and sense in names):
                raise UserError(
                    f"{data}, line {number}: the word number {place!r} is not in its sentence, or "
                    f"its sense {sense!r} not in {classes.name}"
                )
            word = words[int(place)]
            occurrence = words[: int(place)].count(word)
            gold.append((len(sentences), occurrence, word, names[sense]))
            sentences.append(sentence)
    if not sentences:
        raise UserError(f"{folder} has no WORD/{part}.data.txt; name the folder of CoarseWSD-20")
    return sentences, gold


def gold_text(rows: Iterable[GoldRow]) -> str:
    """A file of gold senses, by line."""
    return "".join("\t".join(map(str, row)) + "\n" for row in sorted(rows))


def _letters(sentence: str) -> str:
    """What two tokenizations of a sentence have in common."""
    return re.sub(r"\W|_", "", sentence.lower())
