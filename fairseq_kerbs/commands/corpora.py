"""``fairseq-kerbs toy``, ``prepare`` and ``prepare-lm``, and the released corpora: making data."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable
from typing import Any

from fairseq_kerbs.commands import Part, command, file, flag, number, say_written, switch
from fairseq_kerbs.data import prepare, released
from fairseq_kerbs.utils.processes import usable_cores


def _several(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _text(name: str, what: str, metavar: str, **options: Any) -> Part:
    return flag(name, help=what, metavar=metavar, **options)


def _words(default: int) -> Part:
    return number("--words", default, "most frequent training words to keep; 0 keeps all")


def _merges(default: int) -> Part:
    return number("--merges", default, "joint BPE merges", 1)


_LOWERCASE = switch("--lowercase", "lower-case all text")
_LONGEST = number("--max-words", 80, "drop training pairs with more words on a side", 1)
_JOINED = switch("--joined-dictionary", "one dictionary for both languages")
_SOURCE = file("source", "archive of the release, or a folder of text [download]", "SOURCE",
               nargs="?")  # fmt: skip


@command(
    "toy",
    file("folder", "folder to write to", metavar=None),
    *(number(f"--{name}", pairs, "pairs", 1) for name, pairs in (("train", 20000), ("valid", 500))),
    number("--test", 500, "pairs", 1),
    number("--seed", 1, "of the draws"),
)
def toy(args: argparse.Namespace) -> None:
    """write the synthetic corpus with gold senses

    Write the synthetic German-like to English-like corpus: {train,valid,test}.{de,en} and the gold
    senses of ambiguous English words in {train,valid,test}.senses.tsv (line, occurrence, word,
    German lemma).
    """
    from fairseq_kerbs.data.toy import write_toy_corpus

    write_toy_corpus(args.folder, args.train, args.valid, args.test, args.seed)
    say_written(args.folder, f"train {args.train}, valid {args.valid}, test {args.test} pairs")


def _preparation(name: str, prepare: Callable[..., None], *parts: Part, **options: Any) -> Part:
    """A command that calls a function with its flags; the function's docstring is the help."""
    parts = (
        file("--dest", "folder to work in", "DIR", required=True),
        number("--workers", usable_cores(), "processes", 1),
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
        "prepare",
        prepare.prepare_parallel,
        _text("--train", "training text", "PREFIX", required=True),
        _text("--valid", "validation text", "PREFIX", required=True),
        _text("--test", "test text", "PREFIX[,PREFIX...]", type=_several, required=True),
        _text("--source-lang", "how the names of source files end", "LANG", required=True),
        _text("--target-lang", "how the names of target files end", "LANG", required=True),
        _text("--source-moses", "language of the Moses rules [--source-lang]", "LANG", default=""),
        _text("--target-moses", "language of the Moses rules [--target-lang]", "LANG", default=""),
        _LOWERCASE,
        switch("--escape", "write special characters as XML entities"),
        _LONGEST,
        flag("--bpe", choices=("joint", "separate", "none"), default="joint",
             help="merges learned on both languages together, or on each [%(default)s]"),
        number("--merges", 10000, "BPE merges to learn", 1),
        number("--vocabulary-threshold", 0,
               "joint BPE: split what a language's training text has less often; 0 = off"),
        _JOINED,
        aliases=["prepare-parallel"],  # the name of its script
    ),
    _preparation(
        "prepare-lm",
        prepare.prepare_language,
        file("folder", "folder of the text", metavar=None, nargs="?"),
        file("--train", "training text"),
        file("--valid", "validation text"),
        file("--test", "test text"),
        _words(0),
    ),
    _preparation(
        "prepare-iwslt16",
        released.prepare_iwslt16,
        _SOURCE,
        _text("--valid", "[%(default)s]", "SET", default="tst2013"),
        _text("--test", "[tst2014]", "SET[,SET...]", default=("tst2014",), type=_several),
        _merges(10000),
        _LONGEST,
        _JOINED,
    ),
    _preparation(
        *("prepare-dailydialog", released.prepare_dailydialog),
        *(_SOURCE, _LOWERCASE, _merges(5000), _LONGEST),
    ),
    _preparation(
        "prepare-lm1b",
        released.prepare_lm1b,
        _SOURCE,
        number("--train", 300_000, "sentences", 1),
        number("--valid", 10_000, "sentences", 1),
        number("--test", 30_000, "sentences", 1),
        number("--seed", 1, "of the draw"),
        _words(20_000),
    ),
    _preparation("prepare-multi30k", released.prepare_multi30k, _SOURCE, _merges(3000)),
    _preparation("prepare-wikitext2", released.prepare_wikitext2, _SOURCE, _words(10_000)),
)  # fmt: skip
