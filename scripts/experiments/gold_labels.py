"""Gold senses from the lists of others: MLT, NOAD and CoarseWSD-20.

    python scripts/experiments/gold_labels.py mlt LIST --text FILE --source FILE -o GOLD.tsv
    python scripts/experiments/gold_labels.py noad LIST --text TEXT -o GOLD.tsv
    python scripts/experiments/gold_labels.py coarsewsd FOLDER --text TEXT -o GOLD.tsv

``fairseq-kerbs senses --gold GOLD.tsv`` compares the senses of a model with them.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

# the checkout that this script belongs to, installed or not
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import click

from fairseq_kerbs.cli.gold import (
    gold_option,
    least_count_option,
    least_share_option,
    several,
    stemmer_of,
    stemmer_option,
    text_option,
    write_senses,
)
from fairseq_kerbs.cli.output import write_output
from fairseq_kerbs.cli.parameters import FILE, Command
from fairseq_kerbs.cli.program import main as run
from fairseq_kerbs.data.gold import GoldRow, numbered, parallel, stemmer
from fairseq_kerbs.data.tokens import composed, lower
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import read_lines

sentences_option = click.option(
    "--text", type=FILE, metavar="TEXT", required=True, help="output file of sentences"
)


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
    for line, (english, other) in enumerate(parallel(text, source)):
        stems = [stem(word) for word in lower(composed(other), language).split()]
        for occurrence, word in numbered(english.split()):
            candidates = senses.get(word.lower(), ())
            present = [sense for sense in candidates if any(s.startswith(sense) for s in stems)]
            if len(present) == 1:
                rows.append((line, occurrence, word, present[0]))
    return rows


def gold_of_noad(path: Path) -> tuple[list[str], list[GoldRow]]:
    """Read sentences and gold senses of the New Oxford American Dictionary (Yuan et al. 2016).

    A line has source, tokens, and labels PLACE:SENSE between tabs. Places count from 0. A line of
    another form raises a UserError.
    """
    sentences: list[str] = []
    gold: list[GoldRow] = []
    for number, row in enumerate(read_lines(path), start=1):
        with _expecting("source, tokens and labels PLACE:SENSE between tabs", path, number):
            _, tokens, labels = row.split("\t")
            words = numbered(tokens.split())
            senses: dict[str, str] = {}
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
    sentences: list[str] = []
    gold: list[GoldRow] = []
    for data in sorted(folder.glob(f"*/{part}.data.txt")):
        with _expecting("a JSON object of senses", data.parent / "classes_map.txt"):
            names = json.loads((data.parent / "classes_map.txt").read_text("utf-8"))
        senses = read_lines(data.parent / f"{part}.gold.txt")
        for number, row in enumerate(read_lines(data)):
            form = "a place, a sentence, and a sense in the other files"
            with _expecting(form, data, number + 1):
                place, sentence = row.split("\t", 1)
                word = numbered(sentence.split())[int(place)]
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


@click.command("mlt", cls=Command)
@click.argument("path", type=FILE, metavar="LIST")
@text_option
@click.option(
    "--source",
    type=FILE,
    metavar="FILE",
    required=True,
    help="its tokenized source, such as tok/test.de",
)
@stemmer_option("--source")
@least_count_option(1)
@least_share_option(0.0)
@gold_option
def gold_mlt(
    path: Path,
    text: Path,
    source: Path,
    stemmer: str | None,
    least_count: int,
    least_share: float,
    output: Path,
) -> None:
    """Gold senses of English words by the translations in a list of MLT.

    The sense of an English word is the one of its translations in LIST, of Multimodal Lexical
    Translation such as ende_test2016.txt, whose stem is found in the source sentence.
    """
    rows = gold_of_mlt(path, text, source, stemmer_of(stemmer, "--source", source))
    write_senses(output, several(rows, least_count, least_share))


@click.command("coarsewsd", cls=Command)
@click.argument("folder", type=FILE)
@click.option(
    "--part", type=click.Choice(["train", "test"]), default="train", help="part of the data"
)
@sentences_option
@least_count_option(1)
@least_share_option(0.0)
@gold_option
def gold_coarsewsd(
    folder: Path, part: str, text: Path, least_count: int, least_share: float, output: Path
) -> None:
    """Gold senses and text of CoarseWSD-20, for language models.

    FOLDER is CoarseWSD-20, with a folder per word. Writes the sentences to TEXT, the senses of
    words to GOLD.tsv. Binarize TEXT with the dictionary of the language model: fairseq-preprocess
    --only-source --srcdict DATA/dict.txt --testpref TEXT --destdir BIN. Then: senses CHECKPOINT
    --data BIN --gold GOLD.tsv --train-data DATA.
    """
    sentences, labelled = gold_of_coarsewsd(folder, part)
    rows = several(labelled, least_count, least_share)
    _write_sentences(text, sentences)
    write_senses(output, rows)


@click.command("noad", cls=Command)
@click.argument("path", type=FILE, metavar="LIST")
@sentences_option
@least_count_option(1)
@least_share_option(0.0)
@gold_option
def gold_noad(path: Path, text: Path, least_count: int, least_share: float, output: Path) -> None:
    """Gold senses and text of words labelled by NOAD, for language models.

    LIST is a file with source, tokens and labels POSITION:SENSE per line, separated by tabs. Writes
    the sentences to TEXT, the senses of words to GOLD.tsv, to be used as those of coarsewsd.
    """
    sentences, labelled = gold_of_noad(path)
    rows = several(labelled, least_count, least_share)
    _write_sentences(text, sentences)
    write_senses(output, rows)


def _write_sentences(path: Path, sentences: Sequence[str]) -> None:
    """Write the text of the labels, one sentence per line."""
    text = "".join(f"{sentence}\n" for sentence in sentences)
    write_output(path, text, f"{len(sentences)} sentences")


@click.group("gold_labels.py", no_args_is_help=False, context_settings={"show_default": True})
def labels() -> None:
    """Gold senses from the lists of others, for fairseq-kerbs senses --gold."""


for converter in (gold_mlt, gold_noad, gold_coarsewsd):
    labels.add_command(converter)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a converter; return its exit status."""
    return run(argv, labels, "gold_labels.py")


if __name__ == "__main__":
    sys.exit(main())
