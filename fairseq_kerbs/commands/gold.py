"""``fairseq-kerbs gold-…``: files of gold senses, which ``senses --gold`` compares with."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from fairseq_kerbs.commands import OutputPath, Subparsers, write_output
from fairseq_kerbs.utils.errors import UserError


def add_gold_mlt(commands: Subparsers) -> None:
    """Gold senses from a list of translations."""
    parser = commands.add_parser(
        "gold-mlt",
        help="gold senses of English words by the translations in a list of MLT",
        description="The sense of an English word is the one of its German translations in a list "
        "of Multimodal Lexical Translation whose stem is found in the source sentence.",
    )
    parser.add_argument("list", type=Path, metavar="LIST", help="such as ende_test2016.txt")
    _add_text(parser)
    text = "its tokenized German source: clean/train.de, tok/test.de"
    parser.add_argument("--source", type=Path, required=True, metavar="FILE", help=text)
    _add_output(parser)
    parser.set_defaults(run=_run_mlt)


def _run_mlt(args: argparse.Namespace) -> int:
    from fairseq_kerbs.data.gold import gold_of_mlt

    return _write(args, gold_of_mlt(args.list, args.text, args.source))


def add_gold_translations(commands: Subparsers) -> None:
    """Gold senses from a parallel text."""
    parser = commands.add_parser(
        "gold-translations",
        help="gold senses of words by the words of another language aligned with them",
        description="The sense of a word is the word, or its stem, that IBM Model 1 aligns with it "
        "in a text of another language, which best the model has never seen.",
    )
    _add_text(parser)
    text = "the same lines in another language, tokenized or not"
    parser.add_argument("--other", type=Path, required=True, metavar="FILE", help=text)
    text = "join inflected forms of the other language by Snowball's stemmer, such as czech [none]"
    parser.add_argument("--stemmer", metavar="LANGUAGE", help=text)
    _add_output(parser, least_count=60, least_share=0.1)
    parser.set_defaults(run=_run_translations)


def _run_translations(args: argparse.Namespace) -> int:
    from fairseq_kerbs.analysis.alignment import align
    from fairseq_kerbs.data.gold import gold_of_translations, parallel_words

    lines, others = parallel_words(args.text, args.other, args.stemmer)
    for flag, path, text in (("--text", args.text, lines), ("--other", args.other, others)):
        if not any(text):
            raise UserError(f"{flag}: {path} has no words; give the tokenized text of a split")
    aligned = align([[word.lower() for word in words] for words in lines], others).best
    return _write(args, gold_of_translations(lines, others, aligned.tolist()))


def add_gold_coarsewsd(commands: Subparsers) -> None:
    """Gold senses of CoarseWSD-20."""
    parser = commands.add_parser(
        "gold-coarsewsd",
        help="gold senses and text of CoarseWSD-20, for language models",
        description=f"Writes the sentences to TEXT, the senses of words to GOLD.tsv. {_SPLIT}",
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="with a folder for each word")
    parser.add_argument("--part", default="train", choices=("train", "test"), help="[%(default)s]")
    parser.add_argument("--text", type=OutputPath, required=True, metavar="TEXT")
    _add_output(parser)
    parser.set_defaults(run=_run_coarsewsd)


def _run_coarsewsd(args: argparse.Namespace) -> int:
    from fairseq_kerbs.data.gold import gold_of_coarsewsd

    sentences, rows = gold_of_coarsewsd(args.folder, args.part)
    return _write(args, rows, sentences)


def add_gold_noad(commands: Subparsers) -> None:
    """Gold senses of the New Oxford American Dictionary."""
    parser = commands.add_parser(
        "gold-noad",
        help="gold senses and text of words labelled by NOAD, for language models",
        description=f"Writes the sentences to TEXT, the senses of words to GOLD.tsv. {_SPLIT}",
    )
    text = "lines of source, tokens and labels PLACE:SENSE between tabs, places from 0"
    parser.add_argument("list", type=Path, metavar="LIST", help=text)
    parser.add_argument("--text", type=OutputPath, required=True, metavar="TEXT")
    _add_output(parser)
    parser.set_defaults(run=_run_noad)


def _run_noad(args: argparse.Namespace) -> int:
    from fairseq_kerbs.data.gold import gold_of_noad

    sentences, rows = gold_of_noad(args.list)
    return _write(args, rows, sentences)


_SPLIT = (
    "Binarize TEXT with the dictionary of the language model: fairseq-preprocess --only-source "
    "--srcdict DATA/dict.txt --testpref TEXT --destdir BIN. Then: senses CHECKPOINT --data BIN "
    "--gold GOLD.tsv --train-data DATA."
)


def _add_text(parser: argparse.ArgumentParser) -> None:
    text = "tokenized text of the split, line by line: clean/train.en, tok/test.en of a prepared "
    parser.add_argument("--text", type=Path, required=True, metavar="FILE", help=text + "folder")


def _add_output(
    parser: argparse.ArgumentParser, least_count: int = 1, least_share: float = 0.0
) -> None:
    text = "labelled occurrences of a word, at least [%(default)s]"
    parser.add_argument("--least-count", type=int, default=least_count, metavar="N", help=text)
    text = "share of these that a sense must have to count [%(default)s]"
    parser.add_argument("--least-share", type=float, default=least_share, metavar="F", help=text)
    parser.add_argument("-o", "--output", type=OutputPath, required=True, metavar="GOLD.tsv")


def _write(
    args: argparse.Namespace,
    rows: Sequence[tuple[int, int, str, str]],
    sentences: Sequence[str] = (),
) -> int:
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
    return 0
