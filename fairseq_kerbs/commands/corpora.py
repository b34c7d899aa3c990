"""``fairseq-kerbs toy``, ``prepare`` and ``prepare-lm``, and the released corpora: making data."""

from __future__ import annotations

import argparse
from dataclasses import fields
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairseq_kerbs.commands import Subparsers

_LOWERCASE = "lower-case all text"
_JOINED = "one dictionary for both languages"
_MAX_WORDS = (80, "drop training pairs with more words on a side")
_SOURCE = "archive of the release, or a folder of text [download]"


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
    _add_numbers(parser, train=(20000, "pairs"), valid=(500, "pairs"), test=(500, "pairs"))
    _add_numbers(parser, seed=(1, ""))
    parser.set_defaults(run=_run_toy)


def _run_toy(args: argparse.Namespace) -> int:
    from fairseq_kerbs.corpora.synthetic import write_synthetic_corpus

    sizes = write_synthetic_corpus(args.folder, args.train, args.valid, args.test, args.seed)
    listing = ", ".join(f"{split} {size}" for split, size in sizes.items())
    print(f"{args.folder}: {listing} pairs")
    return 0


def add_prepare(commands: Subparsers) -> None:
    """Raw parallel text to binarized data."""
    parser = _add_preparation(
        commands,
        ("prepare", "parallel.ParallelText"),
        "raw parallel text to fairseq data",
        "Tokenize raw parallel text (Moses), drop overlong training pairs, learn and apply BPE, "
        "and binarize into DEST/bin.",
    )
    text = parser.add_argument_group("text (PREFIX stands for PREFIX.de and PREFIX.en, say)")
    text.add_argument("--train", required=True, metavar="PREFIX")
    text.add_argument("--valid", required=True, metavar="PREFIX")
    text.add_argument(
        "--test", required=True, type=_several, dest="tests", metavar="PREFIX[,PREFIX...]"
    )
    text.add_argument("--source-lang", required=True, metavar="LANG")
    text.add_argument("--target-lang", required=True, metavar="LANG")
    tokens = parser.add_argument_group("tokens")
    for side in ("source", "target"):
        what = f"language of the Moses rules [--{side}-lang]"
        tokens.add_argument(f"--{side}-moses", default="", metavar="LANG", help=what)
    _add_switches(tokens, lowercase=_LOWERCASE, escape="write special characters as XML entities")
    _add_numbers(tokens, max_words=_MAX_WORDS)
    units = parser.add_argument_group("subwords and dictionaries")
    units.add_argument(
        "--bpe",
        choices=("joint", "separate", "none"),
        default="joint",
        help="merges learned on both languages together, or on each [%(default)s]",
    )
    rare = "joint BPE: split what a language's training text has less often; 0 = off"
    _add_numbers(units, merges=(10000, "BPE merges to learn"), vocabulary_threshold=(0, rare))
    _add_switches(units, joined_dictionary=_JOINED)


def add_prepare_lm(commands: Subparsers) -> None:
    """Tokenized text to binarized data for language models."""
    parser = _add_preparation(
        commands,
        ("prepare-lm", "language.LanguageText"),
        "tokenized text to fairseq data for language models",
        "Check tokenized text (one sentence or paragraph a line, words between spaces), drop blank "
        "lines, keep the most frequent words, and binarize into DEST/bin.",
    )
    text = parser.add_argument_group("text: a folder, or three files")
    holds = "holds one file each with train, valid (or dev) and test in its name"
    text.add_argument("folder", nargs="?", type=Path, help=holds)
    for split in ("train", "valid", "test"):
        text.add_argument(f"--{split}", type=Path, metavar="FILE")
    _add_numbers(parser, words=(None, "most frequent training words to keep [all]"))


def add_prepare_iwslt16(commands: Subparsers) -> None:
    """IWSLT'16 German-English."""
    parser = _add_preparation(
        commands,
        ("prepare-iwslt16", "iwslt16.Iwslt16"),
        "IWSLT'16 De-En of the WIT3 release to fairseq data",
        "Read IWSLT'16 German-English from the WIT3 release 2016-01 (its size, checksum and "
        "numbers of lines are checked) or from a folder, then as 'prepare'. SOURCE is "
        "2016-01.tgz, its de-en.tgz, that archive unpacked, or a folder of plain text with "
        "train*.de and IWSLT16.TED.SET.de-en.de, say. Text goes to DEST/raw, data to DEST/bin.",
    )
    parser.add_argument("source", nargs="?", type=Path, metavar="SOURCE", help=_SOURCE)
    parser.add_argument("--valid", default="tst2013", metavar="SET", help="[%(default)s]")
    parser.add_argument(
        "--test", default="tst2014", type=_several, dest="tests", metavar="SET[,SET...]",
        help="[%(default)s]",
    )  # fmt: skip
    _add_numbers(parser, merges=(10000, "joint BPE merges"), max_words=_MAX_WORDS)
    _add_switches(parser, joined_dictionary=_JOINED)


def add_prepare_dailydialog(commands: Subparsers) -> None:
    """DailyDialog."""
    parser = _add_preparation(
        commands,
        ("prepare-dailydialog", "dialog.DailyDialog"),
        "DailyDialog to fairseq data",
        "Make pairs of adjacent utterances of DailyDialog, remove training pairs that also occur "
        "in validation or test, then as 'prepare' with one vocabulary. SOURCE is "
        "ijcnlp_dailydialog.zip or a folder with dialogues_{train,validation,test}.txt. Source "
        "and target are called context and en. Text goes to DEST/raw, data to DEST/bin.",
    )
    parser.add_argument("source", nargs="?", type=Path, metavar="SOURCE", help=_SOURCE)
    _add_switches(parser, lowercase=_LOWERCASE)
    _add_numbers(parser, merges=(5000, "joint BPE merges"), max_words=_MAX_WORDS)


def add_prepare_lm1b(commands: Subparsers) -> None:
    """Sentences of the One-Billion-Word benchmark."""
    parser = _add_preparation(
        commands,
        ("prepare-lm1b", "lm1b.Lm1b"),
        "sentences of the One-Billion-Word benchmark to fairseq data",
        "Draw sentences of the One-Billion-Word benchmark with a seed and without replacement, "
        "then as 'prepare-lm'. SOURCE is "
        "1-billion-word-language-modeling-benchmark-r13output.tar.gz, that archive unpacked, or a "
        "folder of files with train, dev or test in their names; without a training file all "
        "sentences are drawn from one pool. Text goes to DEST/raw, data to DEST/bin.",
    )
    parser.add_argument("source", nargs="?", type=Path, metavar="SOURCE", help=_SOURCE)
    what = "sentences"
    _add_numbers(parser, train=(300_000, what), valid=(10_000, what), test=(30_000, what))
    words = (20_000, "most frequent training words to keep; 0 keeps all")
    _add_numbers(parser, seed=(1, ""), words=words)


def _several(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _add_numbers(parser: Any, **flags: tuple[int | None, str]) -> None:
    """Flags with a whole number, from their default (None: as the help says) and help."""
    for name, (default, what) in flags.items():
        shown = what if default is None else f"{what} [%(default)s]".strip()
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, type=int, default=default, metavar="N", help=shown)


def _add_switches(parser: Any, **flags: str) -> None:
    for name, what in flags.items():
        parser.add_argument(f"--{name.replace('_', '-')}", action="store_true", help=what)


def _add_preparation(
    commands: Subparsers, name: tuple[str, str], what: str, description: str
) -> argparse.ArgumentParser:
    """A command, and the class of fairseq_kerbs.corpora that its flags are the fields of."""
    description += " Finished steps are not repeated."
    parser = commands.add_parser(name[0], help=what, description=description)
    parser.add_argument("--dest", required=True, type=Path, metavar="DIR", help="folder to work in")
    _add_numbers(parser, workers=(None, "processes [all cores]"))
    parser.set_defaults(run=_run_preparation, prepares=name[1])
    return parser


def _run_preparation(args: argparse.Namespace) -> int:
    module, name = args.prepares.split(".")
    kind = getattr(import_module(f"fairseq_kerbs.corpora.{module}"), name)
    if module == "language":
        args.raw = _language_files(args)
    values = {field.name: getattr(args, field.name) for field in fields(kind)}
    given = {name: value for name, value in values.items() if value is not None or name == "source"}
    kind(**given).prepare(partial(print, flush=True))  # a log shows each step as it starts
    return 0


def _language_files(args: argparse.Namespace) -> dict[str, Path]:
    """The text of each split for ``prepare-lm``: of the folder, or the three files."""
    from fairseq_kerbs.corpora.language import find_splits
    from fairseq_kerbs.utils.errors import UserError

    named = {split: getattr(args, split) for split in ("train", "valid", "test")}
    missing = [split for split, path in named.items() if path is None]
    if (args.folder is None) == bool(missing) or (args.folder and len(missing) < 3):
        raise UserError("name either a folder, or all of --train, --valid and --test")
    return named if args.folder is None else find_splits(args.folder)
