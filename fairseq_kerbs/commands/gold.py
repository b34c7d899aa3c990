"""``fairseq-kerbs gold-…``: files of gold senses, which ``senses --gold`` compares with."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from fairseq_kerbs.commands import arg, command, write_output
from fairseq_kerbs.utils.errors import UserError

TEXT = "tokenized text of the split, line by line: clean/train.en, tok/test.en of a prepared folder"
LABELLED = "lines of source, tokens and labels PLACE:SENSE between tabs, places from 0"
SENTENCES = arg.flag("--text", type=arg.OutputPath, required=True, metavar="TEXT")


def _output(least_count: int = 1, least_share: float = 0.0) -> tuple[arg.Part, ...]:
    text = "share of these that a sense must have to count"
    return (
        arg.number("--least-count", least_count, "labelled occurrences of a word, at least"),
        arg.number("--least-share", least_share, text, metavar="F"),
        arg.output("file for the senses", "GOLD.tsv", required=True),
    )


@command(
    "gold-mlt",
    arg.file("list", "such as ende_test2016.txt", "LIST"),
    arg.file("--text", TEXT, required=True),
    arg.file("--source", "its tokenized German source: clean/train.de, tok/test.de", required=True),
    *_output(),
)
def mlt(args: argparse.Namespace) -> None:
    """gold senses of English words by the translations in a list of MLT

    The sense of an English word is the one of its German translations in a list of Multimodal
    Lexical Translation whose stem is found in the source sentence.
    """
    from fairseq_kerbs.data.gold import gold_of_mlt

    _write(args, gold_of_mlt(args.list, args.text, args.source))


@command(
    "gold-translations",
    arg.file("--text", TEXT, required=True),
    arg.file("--other", "the same lines in another language, tokenized or not", required=True),
    arg.value("--stemmer", "join inflected forms of the other language by Snowball's stemmer, such "
              "as czech [none]", "LANGUAGE"),
    *_output(least_count=60, least_share=0.1),
)  # fmt: skip
def translations(args: argparse.Namespace) -> None:
    """gold senses of words by the words of another language aligned with them

    The sense of a word is the word, or its stem, that IBM Model 1 aligns with it in a text of
    another language, which best the model has never seen.
    """
    from fairseq_kerbs.analysis.alignment import align
    from fairseq_kerbs.data.gold import gold_of_translations, parallel_words

    lines, others = parallel_words(args.text, args.other, args.stemmer)
    for name, path, text in (("--text", args.text, lines), ("--other", args.other, others)):
        if not any(text):
            raise UserError(f"{name}: {path} has no words; give the tokenized text of a split")
    aligned = align([[word.lower() for word in words] for words in lines], others)
    _write(args, gold_of_translations(lines, others, aligned.tolist()))


@command(
    "gold-coarsewsd",
    arg.file("folder", "with a folder for each word", "FOLDER"),
    arg.choice("--part", "", "train", "test"),
    SENTENCES,
    *_output(),
)
def coarsewsd(args: argparse.Namespace) -> None:
    """gold senses and text of CoarseWSD-20, for language models

    Writes the sentences to TEXT, the senses of words to GOLD.tsv. Binarize TEXT with the dictionary
    of the language model: fairseq-preprocess --only-source --srcdict DATA/dict.txt --testpref TEXT
    --destdir BIN. Then: senses CHECKPOINT --data BIN --gold GOLD.tsv --train-data DATA.
    """
    from fairseq_kerbs.data.gold import gold_of_coarsewsd

    sentences, rows = gold_of_coarsewsd(args.folder, args.part)
    _write(args, rows, sentences)


@command("gold-noad", arg.file("list", LABELLED, "LIST"), SENTENCES, *_output())
def noad(args: argparse.Namespace) -> None:
    """gold senses and text of words labelled by NOAD, for language models

    Writes the sentences to TEXT, the senses of words to GOLD.tsv, to be used as those of
    gold-coarsewsd.
    """
    from fairseq_kerbs.data.gold import gold_of_noad

    sentences, rows = gold_of_noad(args.list)
    _write(args, rows, sentences)


def _write(
    args: argparse.Namespace,
    rows: Sequence[tuple[int, int, str, str]],
    sentences: Sequence[str] = (),
) -> None:
    """Write the gold senses of words that have several, and the sentences they are in."""
    from fairseq_kerbs.data.gold import gold_text, with_several_senses

    rows = with_several_senses(rows, args.least_count, args.least_share)
    if not rows:
        raise UserError(
            f"no word has two senses of --least-share {args.least_share:g} among --least-count "
            f"{args.least_count} labels; lower these, or see that the files belong together"
        )
    if sentences:
        text = "".join(f"{sentence}\n" for sentence in sentences)
        write_output(args.text, text, f"{len(sentences)} sentences")
    words = len({word for _, _, word, _ in rows})
    write_output(args.output, gold_text(rows), f"senses of {words} words, {len(rows)} occurrences")


COMMANDS = (mlt, translations, coarsewsd, noad)
