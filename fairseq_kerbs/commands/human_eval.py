"""``fairseq-kerbs human-eval`` and ``examples``: answers for people to read or score."""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path

from fairseq_kerbs.commands import (
    OutputPath,
    Subparsers,
    reading,
    say_written,
    whole_number,
    write_output,
)
from fairseq_kerbs.utils.errors import UserError


def add_human_eval(commands: Subparsers) -> None:
    """Human evaluation."""
    parser = commands.add_parser(
        "human-eval",
        help="blinded sheets for human raters, and their scores",
        description="Human evaluation as in Section 5 of the paper: people score the answers of "
        "several systems without knowing which is whose.",
    )
    steps = parser.add_subparsers(required=True, metavar="STEP")
    _add_export(steps)
    _add_score(steps)


def _add_text_flags(parser: argparse.ArgumentParser) -> None:
    """Where sources and answers come from."""
    add = parser.add_argument_group(
        "text", "Raw text with one sentence a line, or fairseq-generate's output."
    ).add_argument
    add("--source", required=True, type=Path, metavar="FILE", help="inputs")
    add("--system", required=True, action="append", metavar="NAME=FILE",
        help="a system's answers; repeat it for every system")  # fmt: skip
    add("--lang", default="en", help="fairseq-generate: language of the answers [%(default)s]")
    add("--source-lang", metavar="LANG", help="fairseq-generate: that of the inputs [--lang]")
    add("--unescape", action="store_true", help="fairseq-generate: undo XML entities")


def _read_answers(args: argparse.Namespace) -> tuple[list[str], dict[str, list[str]]]:
    """Sources, and each system's answers by name."""
    from fairseq_kerbs.evaluation.texts import read_texts

    paths: dict[str, Path] = {}
    for option in args.system:
        name, _, file = option.partition("=")
        if not (name and file):
            raise UserError(f"--system {option}: write NAME=FILE")
        if name in paths:
            raise UserError(f"--system {name} is there twice; names must differ")
        paths[name] = Path(file)
    sources = read_texts(args.source, "S", args.source_lang or args.lang, args.unescape)
    systems = {n: read_texts(path, "H", args.lang, args.unescape) for n, path in paths.items()}
    return sources, systems


def _add_export(steps: Subparsers) -> None:
    parser = steps.add_parser(
        "export",
        allow_abbrev=False,
        help="draw items and write a sheet for each rater",
        description="Draw items, give the systems' answers letters in an order shuffled for each "
        "item, and write DIR/rater1.csv … with the scoring standard at the head, and the key. Keep "
        "the key from the raters.",
    )
    _add_text_flags(parser)
    add = parser.add_argument
    add("--sheets", required=True, type=Path, metavar="DIR", help="for the raters")
    add("--key", required=True, type=OutputPath, metavar="FILE", help="JSON file outside DIR")
    for flag, default in (("--items", 50), ("--raters", 3), ("--seed", 1)):
        kind = int if flag == "--seed" else whole_number(1)
        add(flag, type=kind, default=default, metavar="N", help="[%(default)s]")
    add("--delimiter", choices=("comma", "semicolon", "tab"), default="comma",
        help="semicolon for spreadsheet programs with a decimal comma [%(default)s]")  # fmt: skip
    add("--force", action="store_true", help="replace files that are there")
    parser.set_defaults(run=_run_export)


def _run_export(args: argparse.Namespace) -> int:
    from fairseq_kerbs.evaluation.human import DELIMITERS, make_key, sheet_text
    from fairseq_kerbs.utils.files import atomic_write

    sources, systems = _read_answers(args)
    key = make_key(sources, systems, items=args.items, raters=args.raters, seed=args.seed)
    contents = {
        args.sheets / f"rater{rater}.csv": sheet_text(key, rater, DELIMITERS[args.delimiter])
        for rater in range(1, args.raters + 1)
    }
    contents[args.key] = key.as_json()
    if args.key.resolve().is_relative_to(args.sheets.resolve()):
        raise UserError(f"--key: {args.key} lies in --sheets; put it where raters do not see it")
    there = [str(path) for path in contents if path.exists()]
    if there and not args.force:
        raise UserError(f"{', '.join(there)} exist already; use --force to replace them")
    with ExitStack() as files_to_be:  # sheets without their key would be of no use
        for path, content in contents.items():
            files_to_be.enter_context(atomic_write(path)).write(content)
    what = f"{args.raters} sheets, {args.items} of {len(sources)} lines, {len(systems)} systems"
    say_written(args.sheets, what)
    say_written(args.key, "the key, to be kept from the raters")
    return 0


def _add_score(steps: Subparsers) -> None:
    parser = steps.add_parser(
        "score",
        allow_abbrev=False,
        help="means, agreement and tests from filled sheets",
        description="Check the sheets against the key and print each system's mean score, the "
        "raters' agreement, and with --baseline a one-tailed paired t-test of every other system.",
    )
    parser.add_argument("--key", required=True, type=Path, metavar="FILE", help="as exported")
    parser.add_argument("sheets", nargs="+", type=Path, metavar="SHEET", help="filled sheets")
    parser.add_argument("--baseline", metavar="NAME", help="system to test the others against")
    reading.add_files(parser)
    parser.set_defaults(run=_run_score)


def _run_score(args: argparse.Namespace) -> int:
    from fairseq_kerbs.evaluation.human import as_csv, as_text, evaluate, read_key, read_sheet

    key = read_key(args.key)
    result = evaluate(key, [read_sheet(path, key) for path in args.sheets], args.baseline)
    print(as_text(result))
    reading.write_files(args, result, as_csv(result))
    return 0


def add_examples(commands: Subparsers) -> None:
    """Examples for a table."""
    parser = commands.add_parser(
        "examples",
        help="answers of several systems side by side",
        description="Choose lines of a test set by a rule and print source, reference and every "
        "system's answer, as in Tables 3 and 4 of the paper.",
    )
    _add_text_flags(parser)
    add = parser.add_argument
    add("--reference", type=Path, metavar="FILE", help="references, as --source")
    add("--choose", choices=("differing", "best", "random"), default="differing",
        help="drawn from the lines with the most different answers, where one system gains most "
        "over the baseline, or drawn from all [%(default)s]")  # fmt: skip
    add("--number", type=whole_number(1), default=5, metavar="N", help="lines [%(default)s]")
    add("--seed", type=int, default=1, metavar="S", help="[%(default)s]")
    best = parser.add_argument_group("--choose best")
    best.add_argument("--of", metavar="NAME", help="system whose gain counts [the last]")
    best.add_argument("--baseline", metavar="NAME", help="what it is compared with [the first]")
    best.add_argument("--metric", choices=("chrf", "bleu"), default="chrf", help="[%(default)s]")
    add("--format", choices=("text", "markdown", "csv"), default="text", help="[%(default)s]")
    add("-o", "--output", type=OutputPath, metavar="FILE", help="file [standard output]")
    parser.set_defaults(run=_run_examples)


def _run_examples(args: argparse.Namespace) -> int:
    from fairseq_kerbs.evaluation import examples
    from fairseq_kerbs.evaluation.texts import read_texts

    sources, systems = _read_answers(args)
    references = args.reference and read_texts(args.reference, "T", args.lang, args.unescape)
    chosen = examples.side_by_side(
        *(sources, references, systems, args.choose, args.number, args.seed),
        system=args.of,
        baseline=args.baseline,
        metric=args.metric,
    )
    rule = examples.rule_text(chosen, len(sources), args.choose, args.seed, args.metric)
    if args.format == "csv":
        print(rule, file=sys.stderr)
        write_output(args.output, examples.as_csv(chosen))
    else:
        write = examples.as_markdown if args.format == "markdown" else examples.as_text
        write_output(args.output, f"{rule}\n\n{write(chosen)}")
    return 0
