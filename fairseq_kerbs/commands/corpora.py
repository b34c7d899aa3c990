"""``fairseq-kerbs toy``, ``prepare`` and ``prepare-lm``, and the released corpora: making data."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairseq_kerbs.commands import Subparsers


def add_toy(commands: Subparsers) -> None:
    """The synthetic corpus."""
    parser = commands.add_parser(
        "toy",
        help="write the synthetic corpus with gold senses",
        description="Write the synthetic German-like to English-like corpus: "
        "{train,valid,test}.{de,en} and the gold senses of ambiguous English words "
        "in {train,valid,test}.senses.tsv (line, occurrence, word, German lemma).",
    )
    parser.add_argument("folder", type=Path, help="folder to write to")
    for split, size in (("train", 20000), ("valid", 500), ("test", 500)):
        parser.add_argument(
            f"--{split}", type=int, default=size, metavar="N", help="pairs [%(default)s]"
        )
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="[%(default)s]")
    parser.set_defaults(run=_run_toy)


def _run_toy(args: argparse.Namespace) -> int:
    from fairseq_kerbs.corpora.synthetic import write_synthetic_corpus

    sizes = write_synthetic_corpus(args.folder, args.train, args.valid, args.test, args.seed)
    listing = ", ".join(f"{split} {size}" for split, size in sizes.items())
    print(f"{args.folder}: {listing} pairs")
    return 0


def add_prepare(commands: Subparsers) -> None:
    """Raw parallel text to binarized data."""
    parser = commands.add_parser(
        "prepare",
        help="raw parallel text to fairseq data",
        description="Tokenize raw parallel text (Moses), drop overlong training pairs, learn and "
        "apply BPE, and binarize into DEST/bin. Finished steps are not repeated.",
    )
    text = parser.add_argument_group("text (PREFIX stands for PREFIX.de and PREFIX.en, say)")
    text.add_argument("--train", required=True, metavar="PREFIX")
    text.add_argument("--valid", required=True, metavar="PREFIX")
    text.add_argument("--test", required=True, metavar="PREFIX[,PREFIX...]")
    text.add_argument("--source-lang", required=True, metavar="LANG")
    text.add_argument("--target-lang", required=True, metavar="LANG")
    text.add_argument("--dest", required=True, type=Path, metavar="DIR", help="folder to work in")
    _add_token_flags(parser)
    _add_unit_flags(parser)
    parser.add_argument("--workers", type=int, metavar="N", help="processes [all cores]")
    parser.set_defaults(run=_run_prepare)


def _add_token_flags(parser: argparse.ArgumentParser) -> None:
    tokens = parser.add_argument_group("tokens")
    for side in ("source", "target"):
        tokens.add_argument(
            f"--{side}-moses",
            default="",
            metavar="LANG",
            help=f"language of the Moses rules [--{side}-lang]",
        )
    tokens.add_argument("--lowercase", action="store_true", help="lower-case all text")
    tokens.add_argument(
        "--escape", action="store_true", help="write special characters as XML entities"
    )
    tokens.add_argument(
        "--max-words",
        type=int,
        default=80,
        metavar="N",
        help="drop training pairs with more words on a side [%(default)s]",
    )


def _add_unit_flags(parser: argparse.ArgumentParser) -> None:
    units = parser.add_argument_group("subwords and dictionaries")
    units.add_argument(
        "--bpe",
        choices=("joint", "separate", "none"),
        default="joint",
        help="merges learned on both languages together, or on each [%(default)s]",
    )
    units.add_argument(
        "--merges", type=int, default=10000, metavar="N", help="BPE merges to learn [%(default)s]"
    )
    units.add_argument(
        "--vocabulary-threshold",
        type=int,
        default=0,
        metavar="N",
        help="joint BPE: split what a language's training text has less often [off]",
    )
    units.add_argument(
        "--joined-dictionary", action="store_true", help="one dictionary for both languages"
    )


def _run_prepare(args: argparse.Namespace) -> int:
    from fairseq_kerbs.corpora.parallel import PrepareSettings, prepare
    from fairseq_kerbs.utils.processes import usable_cores

    settings = PrepareSettings(
        train=args.train,
        valid=args.valid,
        tests=tuple(args.test.split(",")),
        source_lang=args.source_lang,
        target_lang=args.target_lang,
        dest=args.dest,
        source_moses=args.source_moses,
        target_moses=args.target_moses,
        lowercase=args.lowercase,
        escape=args.escape,
        max_words=args.max_words,
        bpe=args.bpe,
        merges=args.merges,
        vocabulary_threshold=args.vocabulary_threshold,
        joined_dictionary=args.joined_dictionary,
        workers=usable_cores() if args.workers is None else args.workers,
    )
    prepare(settings, report=partial(print, flush=True))  # a log shows each step as it starts
    return 0


def add_prepare_lm(commands: Subparsers) -> None:
    """Tokenized text to binarized data for language models."""
    parser = commands.add_parser(
        "prepare-lm",
        help="tokenized text to fairseq data for language models",
        description="Check tokenized text (one sentence or paragraph a line, words between "
        "spaces), drop blank lines, keep the most frequent words, and binarize into DEST/bin. "
        "Finished steps are not repeated.",
    )
    text = parser.add_argument_group("text: a folder, or three files")
    text.add_argument(
        "folder",
        nargs="?",
        type=Path,
        help="holds one file each with train, valid (or dev) and test in its name",
    )
    for split in ("train", "valid", "test"):
        text.add_argument(f"--{split}", type=Path, metavar="FILE")
    parser.add_argument("--dest", required=True, type=Path, metavar="DIR", help="folder to work in")
    parser.add_argument(
        "--words", type=int, metavar="N", help="most frequent training words to keep [all]"
    )
    parser.add_argument("--workers", type=int, metavar="N", help="processes [all cores]")
    parser.set_defaults(run=_run_prepare_lm)


def _run_prepare_lm(args: argparse.Namespace) -> int:
    from fairseq_kerbs.corpora.language import LanguageSettings, find_splits, prepare_language
    from fairseq_kerbs.utils.errors import UserError
    from fairseq_kerbs.utils.processes import usable_cores

    named = {split: getattr(args, split) for split in ("train", "valid", "test")}
    missing = [f"--{split}" for split, path in named.items() if path is None]
    if (args.folder is None) == bool(missing) or (args.folder and len(missing) < 3):
        raise UserError("name either a folder, or all of --train, --valid and --test")
    settings = LanguageSettings(
        files=named if args.folder is None else find_splits(args.folder),
        dest=args.dest,
        words=args.words,
        workers=usable_cores() if args.workers is None else args.workers,
    )
    prepare_language(settings, report=partial(print, flush=True))
    return 0


def _add_source(parser: argparse.ArgumentParser, archive: str) -> None:
    parser.add_argument(
        "source",
        nargs="?",
        type=Path,
        metavar="SOURCE",
        help=f"{archive}, or a folder of text [download]",
    )
    parser.add_argument("--dest", required=True, type=Path, metavar="DIR", help="folder to work in")
    parser.add_argument("--workers", type=int, metavar="N", help="processes [all cores]")


def _add_pair_flags(parser: argparse.ArgumentParser, merges: int) -> None:
    parser.add_argument(
        "--merges", type=int, default=merges, metavar="N", help="joint BPE merges [%(default)s]"
    )
    parser.add_argument(
        "--max-words",
        type=int,
        default=80,
        metavar="N",
        help="drop training pairs with more words on a side [%(default)s]",
    )


def _workers(args: argparse.Namespace) -> int:
    from fairseq_kerbs.utils.processes import usable_cores

    return usable_cores() if args.workers is None else int(args.workers)


def add_prepare_iwslt16(commands: Subparsers) -> None:
    """IWSLT'16 German-English."""
    parser = commands.add_parser(
        "prepare-iwslt16",
        help="IWSLT'16 De-En of the WIT3 release to fairseq data",
        description="Read IWSLT'16 German-English from the WIT3 release 2016-01 (its size, "
        "checksum and numbers of lines are checked) or from a folder, then as 'prepare'. SOURCE is "
        "2016-01.tgz, its de-en.tgz, that archive unpacked, or a folder of plain text with "
        "train*.de and IWSLT16.TED.SET.de-en.de, say. Text goes to DEST/raw, data to DEST/bin.",
    )
    _add_source(parser, "2016-01.tgz or de-en.tgz")
    parser.add_argument("--valid", default="tst2013", metavar="SET", help="[%(default)s]")
    parser.add_argument("--test", default="tst2014", metavar="SET[,SET...]", help="[%(default)s]")
    _add_pair_flags(parser, merges=10000)
    parser.add_argument(
        "--joined-dictionary", action="store_true", help="one dictionary for both languages"
    )
    parser.set_defaults(run=_run_prepare_iwslt16)


def _run_prepare_iwslt16(args: argparse.Namespace) -> int:
    from fairseq_kerbs.corpora.iwslt16 import Iwslt16Settings, prepare_iwslt16

    settings = Iwslt16Settings(
        source=args.source,
        dest=args.dest,
        valid=args.valid,
        tests=tuple(args.test.split(",")),
        merges=args.merges,
        joined_dictionary=args.joined_dictionary,
        max_words=args.max_words,
        workers=_workers(args),
    )
    prepare_iwslt16(settings, report=partial(print, flush=True))
    return 0


def add_prepare_dailydialog(commands: Subparsers) -> None:
    """DailyDialog."""
    parser = commands.add_parser(
        "prepare-dailydialog",
        help="DailyDialog to fairseq data",
        description="Make pairs of adjacent utterances of DailyDialog, remove training pairs that "
        "also occur in validation or test, then as 'prepare' with one vocabulary. SOURCE is "
        "ijcnlp_dailydialog.zip or a folder with dialogues_{train,validation,test}.txt. Source "
        "and target are called context and en. Text goes to DEST/raw, data to DEST/bin.",
    )
    _add_source(parser, "ijcnlp_dailydialog.zip")
    parser.add_argument("--lowercase", action="store_true", help="lower-case all text")
    _add_pair_flags(parser, merges=5000)
    parser.set_defaults(run=_run_prepare_dailydialog)


def _run_prepare_dailydialog(args: argparse.Namespace) -> int:
    from fairseq_kerbs.corpora.dialog import DailyDialogSettings, prepare_dailydialog

    settings = DailyDialogSettings(
        source=args.source,
        dest=args.dest,
        lowercase=args.lowercase,
        merges=args.merges,
        max_words=args.max_words,
        workers=_workers(args),
    )
    prepare_dailydialog(settings, report=partial(print, flush=True))
    return 0


def add_prepare_lm1b(commands: Subparsers) -> None:
    """Sentences of the One-Billion-Word benchmark."""
    parser = commands.add_parser(
        "prepare-lm1b",
        help="sentences of the One-Billion-Word benchmark to fairseq data",
        description="Draw sentences of the One-Billion-Word benchmark with a seed and without "
        "replacement, then as 'prepare-lm'. SOURCE is the archive of the release, that archive "
        "unpacked, or a folder of files with train, dev or test in their names; without a training "
        "file all sentences are drawn from one pool. Text goes to DEST/raw, data to DEST/bin.",
    )
    _add_source(parser, "1-billion-word-language-modeling-benchmark-r13output.tar.gz")
    for split, size in (("train", 300_000), ("valid", 10_000), ("test", 30_000)):
        parser.add_argument(
            f"--{split}", type=int, default=size, metavar="N", help="sentences [%(default)s]"
        )
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="[%(default)s]")
    parser.add_argument(
        "--words",
        type=int,
        default=20_000,
        metavar="N",
        help="most frequent training words to keep; 0 keeps all [%(default)s]",
    )
    parser.set_defaults(run=_run_prepare_lm1b)


def _run_prepare_lm1b(args: argparse.Namespace) -> int:
    from fairseq_kerbs.corpora.lm1b import Lm1bSettings, prepare_lm1b

    settings = Lm1bSettings(
        source=args.source,
        dest=args.dest,
        train=args.train,
        valid=args.valid,
        test=args.test,
        seed=args.seed,
        words=args.words or None,
        workers=_workers(args),
    )
    prepare_lm1b(settings, report=partial(print, flush=True))
    return 0
