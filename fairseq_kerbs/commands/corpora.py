"""``fairseq-kerbs toy``, ``prepare`` and ``prepare-lm``, and the released corpora: making data."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from fairseq_kerbs.commands import Subparsers, say_written, whole_number
from fairseq_kerbs.data import prepare, released
from fairseq_kerbs.utils.processes import usable_cores


def _number(what: str, default: int, least: int = 1) -> dict[str, Any]:
    kind = whole_number(least)
    return {"type": kind, "default": default, "metavar": "N", "help": f"{what} [%(default)s]"}


def _switch(what: str) -> dict[str, Any]:
    return {"action": "store_true", "help": what}


def _text(what: str, metavar: str, **options: Any) -> dict[str, Any]:
    return {"help": what, "metavar": metavar, **options}


def _several(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


_LOWERCASE = _switch("lower-case all text")
_LONGEST = _number("drop training pairs with more words on a side", 80)
_JOINED = _switch("one dictionary for both languages")
_WORDS = "most frequent training words to keep; 0 keeps all"
_MERGES = "joint BPE merges"
_SOURCE = _text("archive of the release, or a folder of text [download]", "SOURCE")
_SOURCE |= {"nargs": "?", "type": Path}
_RULES = "language of the Moses rules [--{}-lang]"

_FLAGS: dict[str, tuple[Callable[..., None], dict[str, dict[str, Any]]]] = {
    "prepare": (prepare.prepare_parallel, {
        "--train": _text("training text", "PREFIX", required=True),
        "--valid": _text("validation text", "PREFIX", required=True),
        "--test": _text("test text", "PREFIX[,PREFIX...]", type=_several, required=True),
        "--source-lang": _text("how the names of source files end", "LANG", required=True),
        "--target-lang": _text("how the names of target files end", "LANG", required=True),
        "--source-moses": _text(_RULES.format("source"), "LANG", default=""),
        "--target-moses": _text(_RULES.format("target"), "LANG", default=""),
        "--lowercase": _LOWERCASE,
        "--escape": _switch("write special characters as XML entities"),
        "--max-words": _LONGEST,
        "--bpe": {
            "choices": ("joint", "separate", "none"),
            "default": "joint",
            "help": "merges learned on both languages together, or on each [%(default)s]",
        },
        "--merges": _number("BPE merges to learn", 10000),
        "--vocabulary-threshold": _number(
            "joint BPE: split what a language's training text has less often; 0 = off", 0, least=0
        ),
        "--joined-dictionary": _JOINED,
    }),
    "prepare-lm": (prepare.prepare_language, {
        "folder": {"nargs": "?", "type": Path, "help": "folder of the text"},
        "--train": _text("training text", "FILE", type=Path),
        "--valid": _text("validation text", "FILE", type=Path),
        "--test": _text("test text", "FILE", type=Path),
        "--words": _number(_WORDS, 0, least=0),
    }),
    "prepare-iwslt16": (released.prepare_iwslt16, {
        "source": _SOURCE,
        "--valid": _text("[%(default)s]", "SET", default="tst2013"),
        "--test": _text("[tst2014]", "SET[,SET...]", default=("tst2014",), type=_several),
        "--merges": _number(_MERGES, 10000),
        "--max-words": _LONGEST,
        "--joined-dictionary": _JOINED,
    }),
    "prepare-dailydialog": (released.prepare_dailydialog, {
        "source": _SOURCE,
        "--lowercase": _LOWERCASE,
        "--merges": _number(_MERGES, 5000),
        "--max-words": _LONGEST,
    }),
    "prepare-lm1b": (released.prepare_lm1b, {
        "source": _SOURCE,
        "--train": _number("sentences", 300_000),
        "--valid": _number("sentences", 10_000),
        "--test": _number("sentences", 30_000),
        "--seed": _number("of the draw", 1, least=0),
        "--words": _number(_WORDS, 20_000, least=0),
    }),
    "prepare-multi30k": (released.prepare_multi30k, {
        "source": _SOURCE, "--merges": _number(_MERGES, 3000),
    }),
    "prepare-wikitext2": (released.prepare_wikitext2, {
        "source": _SOURCE, "--words": _number(_WORDS, 10_000, least=0),
    }),
}  # fmt: skip
"""What every command calls, and its flags besides --dest and --workers."""


def add_toy(commands: Subparsers) -> None:
    """The toy corpus."""
    parser = commands.add_parser(
        "toy",
        help="write the synthetic corpus with gold senses",
        description="Write the synthetic German-like to English-like corpus: "
        "{train,valid,test}.{de,en} and the gold senses of ambiguous English words "
        "in {train,valid,test}.senses.tsv (line, occurrence, word, German lemma).",
    )
    parser.add_argument("folder", type=Path, help="folder to write to")
    for name, default in {"train": 20000, "valid": 500, "test": 500}.items():
        parser.add_argument(f"--{name}", **_number("pairs", default))
    parser.add_argument("--seed", **_number("of the draws", 1, least=0))
    parser.set_defaults(run=_run_toy)


def _run_toy(args: argparse.Namespace) -> int:
    from fairseq_kerbs.data.toy import write_toy_corpus

    write_toy_corpus(args.folder, args.train, args.valid, args.test, args.seed)
    say_written(args.folder, f"train {args.train}, valid {args.valid}, test {args.test} pairs")
    return 0


def add_preparations(commands: Subparsers) -> None:
    """Text to data for fairseq: the help is the docstring of a function."""
    for name, (run, flags) in _FLAGS.items():
        what, description = (inspect.getdoc(run) or "").split("\n\n")[:2]
        description += " Finished steps are not repeated."
        aliases = ["prepare-parallel"] if name == "prepare" else []  # the name of its script
        parser = commands.add_parser(name, aliases=aliases, help=what, description=description)
        parser.add_argument("--dest", **_text("folder to work in", "DIR", type=Path, required=True))
        parser.add_argument("--workers", **_number("processes", usable_cores()))
        actions = [parser.add_argument(flag, **options) for flag, options in flags.items()]
        names = ["dest", "workers", *(action.dest for action in actions)]
        parser.set_defaults(run=partial(_run, run, names))


def _run(run: Callable[..., None], names: Sequence[str], args: argparse.Namespace) -> int:
    run(**{name: getattr(args, name) for name in names})
    return 0
