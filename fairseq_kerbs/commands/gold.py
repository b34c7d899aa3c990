"""``fairseq-kerbs gold-mlt`` and ``gold-coarsewsd``: files for ``fairseq-kerbs senses --gold``."""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_kerbs.commands import Subparsers, write_output


def add_gold_mlt(commands: Subparsers) -> None:
    """Gold senses from translations."""
    parser = commands.add_parser(
        "gold-mlt",
        help="gold senses of English words from a Multimodal Lexical Translation list",
        description="The German translation of an English word is its sense; inflected forms are "
        "joined.",
    )
    parser.add_argument("list", type=Path, metavar="LIST", help="such as ende_test2016.txt")
    text = "tokenized English text of the split: tok/test.en of a prepared folder"
    parser.add_argument("--text", type=Path, required=True, metavar="FILE", help=text)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="GOLD.tsv")
    parser.set_defaults(run=_run_mlt)


def _run_mlt(args: argparse.Namespace) -> int:
    from fairseq_kerbs.corpora.gold import gold_of_mlt, gold_text

    rows = gold_of_mlt(args.list, args.text)
    write_output(args.output, gold_text(rows), f"senses of {len(rows)} words in context")
    return 0


def add_gold_coarsewsd(commands: Subparsers) -> None:
    """Gold senses of CoarseWSD-20."""
    parser = commands.add_parser(
        "gold-coarsewsd",
        help="gold senses and text of CoarseWSD-20, for language models",
        description="Writes the sentences of all words to TEXT and their senses to GOLD.tsv. "
        "Binarize TEXT with the dictionary of the language model: fairseq-preprocess --only-source "
        "--srcdict DATA/dict.txt --testpref TEXT --destdir BIN.",
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="with a folder for each word")
    parser.add_argument("--part", default="train", choices=("train", "test"), help="[%(default)s]")
    parser.add_argument("--text", type=Path, required=True, metavar="TEXT")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="GOLD.tsv")
    parser.set_defaults(run=_run_coarsewsd)


def _run_coarsewsd(args: argparse.Namespace) -> int:
    from fairseq_kerbs.corpora.gold import gold_of_coarsewsd, gold_text

    sentences, rows = gold_of_coarsewsd(args.folder, args.part)
    text = "".join(f"{sentence}\n" for sentence in sentences)
    write_output(args.text, text, f"{len(sentences)} sentences")
    write_output(args.output, gold_text(rows), f"senses of {len(rows)} words in context")
    return 0
