"""``fairseq-kerbs toy``, ``prepare`` and ``prepare-lm``, and the released corpora: making data."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable
from typing import Any

from fairseq_kerbs.commands import arg, command, say_written
from fairseq_kerbs.data import prepare, released
from fairseq_kerbs.utils.processes import usable_cores

LOWERCASE = arg.switch("--lowercase", "lower-case all text")
LONGEST = arg.number("--max-words", 80, "drop training pairs with more words on a side", 1)
JOINED = arg.switch("--joined-dictionary", "one dictionary for both languages")
ARCHIVE = "archive of the release, or a folder of text [download]"
SOURCE = arg.file("source", ARCHIVE, "SOURCE", nargs="?")
SPLITS = ("train", "valid", "test")


def _merges(default: int) -> arg.Part:
    return arg.number("--merges", default, "number of joint BPE merges", 1)


def _words(default: int) -> arg.Part:
    return arg.number(
        "--words", default, "vocabulary size, the most frequent training words. 0 keeps all"
    )


def _pairs(what: str, *numbers: int) -> list[arg.Part]:
    return [arg.number(f"--{split}", number, what, 1) for split, number in zip(SPLITS, numbers)]


def _several(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


@command(
    "toy",
    arg.file("folder", "output folder", None),
    *_pairs("number of sentence pairs", 20000, 500, 500),
    arg.number("--seed", 1, "random seed"),
)
def toy(args: argparse.Namespace) -> None:
    """write the synthetic corpus with gold senses

    Write a synthetic parallel corpus with ambiguous English words: {train,valid,test}.{de,en}, and
    their gold senses {train,valid,test}.senses.tsv (line, occurrence, word, German lemma).
    """
    from fairseq_kerbs.data.toy import write_toy_corpus

    write_toy_corpus(args.folder, args.train, args.valid, args.test, args.seed)
    say_written(args.folder, f"train {args.train}, valid {args.valid}, test {args.test} pairs")


def _preparation(
    name: str, prepare: Callable[..., None], *parts: arg.Part, **options: Any
) -> arg.Part:
    """A command that calls a function with its flags; the function's docstring is the help."""
    parts = (
        arg.file("--dest", "output folder", "DIR", required=True),
        arg.number("--workers", usable_cores(), "number of processes", 1),
        *parts,
    )
    parser = argparse.ArgumentParser(add_help=False)
    for part in parts:
        part(parser)
    names = [action.dest for action in parser._actions]

    def run(args: argparse.Namespace) -> None:
        prepare(**{name: getattr(args, name) for name in names})

    text, description = (inspect.getdoc(prepare) or "").split("\n\n")[:2]
    run.__doc__ = f"{text}\n\n{description} Finished steps are not repeated."
    return command(name, *parts, **options)(run)


PREPARATIONS = (
    _preparation(
        *("prepare", prepare.prepare_parallel),
        arg.value("--train", "training text", "PREFIX", required=True),
        arg.value("--valid", "validation text", "PREFIX", required=True),
        arg.value("--test", "test text", "PREFIX[,PREFIX...]", type=_several, required=True),
        arg.value("--source-lang", "source language and file suffix", "LANG", required=True),
        arg.value("--target-lang", "target language and file suffix", "LANG", required=True),
        arg.value("--source-moses", "Moses rules, source [--source-lang]", "LANG", default=""),
        arg.value("--target-moses", "Moses rules, target [--target-lang]", "LANG", default=""),
        *(LOWERCASE, arg.switch("--escape", "write special characters as XML entities"), LONGEST),
        arg.choice("--bpe", "learn BPE on both languages together, on each, or not at all",
                   "joint", "separate", "none"),
        arg.number("--merges", 10000, "number of BPE merges", 1),
        arg.number("--vocabulary-threshold", 0,
                   "for joint BPE: minimum frequency of a subword in a language. 0 turns it off"),
        JOINED,
        aliases=["prepare-parallel"],  # the name of its script
    ),
    _preparation(
        *("prepare-lm", prepare.prepare_language),
        arg.file("folder", "folder with the text", None, nargs="?"),
        arg.file("--train", "training text"),
        arg.file("--valid", "validation text"),
        *(arg.file("--test", "test text"), _words(0)),
    ),
    _preparation(
        *("prepare-iwslt16", released.prepare_iwslt16, SOURCE),
        arg.value("--valid", "validation set [%(default)s]", "SET", default="tst2013"),
        arg.value("--test", "test sets [tst2014]", "SET[,SET...]", default=("tst2014",),
                  type=_several),
        *(_merges(10000), LONGEST, JOINED),
    ),
    _preparation(
        *("prepare-dailydialog", released.prepare_dailydialog, SOURCE),
        *(LOWERCASE, _merges(5000), LONGEST),
    ),
    _preparation(
        *("prepare-lm1b", released.prepare_lm1b, SOURCE),
        *_pairs("number of sentences", 300_000, 10_000, 30_000),
        *(arg.number("--seed", 1, "random seed"), _words(20_000)),
    ),
    _preparation("prepare-multi30k", released.prepare_multi30k, SOURCE, _merges(3000)),
    _preparation("prepare-wikitext2", released.prepare_wikitext2, SOURCE, _words(10_000)),
)  # fmt: skip
