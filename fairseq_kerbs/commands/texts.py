"""``fairseq-kerbs detokenize``, ``score``, ``examples`` and ``human-eval``: translations as text,
their scores, and answers for people to read or score."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_kerbs.commands import arg, command, nested, reading, say_written, write_output
from fairseq_kerbs.evaluation.texts import detokenize_lines, read_texts
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import STDIN, atomic_write, read_lines

if TYPE_CHECKING:
    from sacrebleu.significance import Result


@command(
    "detokenize",
    arg.file("input", "input file [standard input]", nargs="?", default="-"),
    arg.value("--lang", "language of the text", required=True),
    arg.switch("--unescape", "undo XML entities"),
    arg.output(),
)
def detokenize(args: argparse.Namespace) -> None:
    """raw text of fairseq-generate's output

    Join subwords and undo Moses tokenization: of fairseq-generate's output (best hypotheses, in the
    order of the corpus) or of tokenized text.
    """
    path = STDIN if str(args.input) == "-" else str(args.input)
    lines = read_lines(path)
    texts = detokenize_lines(lines, language=args.lang, name=path, unescape=args.unescape)
    write_output(args.output, "".join(text + "\n" for text in texts))


@command(
    "score",
    arg.file(
        "--hypotheses",
        "translations of one or several systems. The first is the baseline",
        required=True,
        nargs="+",
    ),
    arg.file("--reference", "reference translations, raw text", required=True, nargs="+"),
    arg.value("--lang", "language of the text [%(default)s]", default="en"),
    arg.either(
        arg.switch("--lowercase", "ignore case. TER always does"),
        arg.switch("--both-cases", "print cased and lowercased scores"),
    ),
    arg.number("--max-ngram-order", 4, "maximum n-gram order of BLEU. 1 is BLEU-1", 1),
    arg.value("--tokenize", "tokenizer of sacreBLEU [by language, usually 13a]", "NAME"),
    arg.switch("--unescape", "undo XML entities in hypotheses"),
    arg.choice("--format", "output format", "text", "json"),
)
def score(args: argparse.Namespace) -> None:
    """detokenized BLEU, chrF and TER with their signatures

    BLEU, chrF and TER by sacreBLEU of fairseq-generate's output (or tokenized text), detokenized,
    against raw references. Several systems are compared with the first by a paired bootstrap test
    (1,000 samples, seed 12345). BLEU's signature does not tell the order of n-grams: another order
    than 4 is printed beside it.
    """
    from fairseq_kerbs.evaluation import bleu

    how = {"language": args.lang, "unescape": args.unescape}
    systems, references = bleu.read_systems(args.hypotheses, args.reference, **how)
    for lowercase in (False, True) if args.both_cases else (args.lowercase,):
        metrics = bleu.all_metrics(
            args.max_ngram_order, language=args.lang, lowercase=lowercase, tokenize=args.tokenize
        )
        if len(systems) > 1:
            compared = bleu.paired_bootstrap(list(systems.values()), references, metrics)
            _print_comparison(args.format, list(systems), *compared)
            continue
        (texts,) = systems.values()
        scores = bleu.corpus_scores(texts, references, metrics)
        if args.format == "text":
            print(*(score.details for score in scores), sep="\n")
            continue
        fields = asdict(scores[0]) | {"max_ngram_order": args.max_ngram_order}
        shown = {"bleu": fields.pop("score"), **fields}
        for name, metric in zip(("chrf", "ter"), scores[1:]):
            shown |= {name: metric.score, f"{name}_signature": metric.signature}
        print(json.dumps(shown))


def _print_comparison(
    form: str, names: list[str], signatures: dict[str, str], results: dict[str, list[Result]]
) -> None:
    """sacreBLEU's table of systems with what its p-values mean, or one line of JSON."""
    from sacrebleu.utils import Color, print_results_table

    from fairseq_kerbs.evaluation.bleu import SAMPLES

    if form == "json":
        rows: list[dict[str, Any]] = [{"system": name} for name in names]
        for metric, of_systems in results.items():
            for row, result in zip(rows, of_systems):
                row[metric] = vars(result)
        print(json.dumps({"signatures": signatures, "systems": rows}, default=float))
        return
    Color.ENABLE_COLORS = sys.stdout.isatty()
    options = {"format": form, "width": 2, "paired_bs": True, "paired_bs_n": SAMPLES}
    table = {"System": [f"Baseline: {names[0]}", *names[1:]], **results}
    print_results_table(table, signatures, argparse.Namespace(**options))


# --- answers side by side, for people -------------------------------------------------------------

_ANSWERS = arg.group(
    "text",
    arg.file("--source", "source text", required=True),
    arg.value(
        "--system",
        "output of a system. Repeat the flag for every system",
        "NAME=FILE",
        required=True,
        action="append",
    ),
    arg.value("--lang", "language of fairseq-generate's output [%(default)s]", default="en"),
    arg.value("--source-lang", "language of fairseq-generate's source [--lang]", "LANG"),
    arg.switch("--unescape", "undo XML entities in fairseq-generate's output"),
    description="Raw text with one sentence per line, or output of fairseq-generate.",
)


def _read_answers(args: argparse.Namespace) -> tuple[list[str], dict[str, list[str]]]:
    """Sources, and each system's answers by name."""
    paths: dict[str, Path] = {}
    for option in args.system:
        name, _, path = option.partition("=")
        if not (name and path):
            raise UserError(f"--system {option}: write NAME=FILE")
        if name in paths:
            raise UserError(f"--system {name} is there twice; names must differ")
        paths[name] = Path(path)
    sources = read_texts(args.source, "S", args.source_lang or args.lang, args.unescape)
    systems = {n: read_texts(path, "H", args.lang, args.unescape) for n, path in paths.items()}
    return sources, systems


@command(
    "export",
    _ANSWERS,
    arg.file("--sheets", "output folder of the sheets", "DIR", required=True),
    arg.file("--key", "output file of the key, JSON, outside DIR", required=True),
    arg.number("--items", 50, "number of items", 1),
    arg.number("--raters", 3, "number of raters", 1),
    arg.number("--seed", 1, "random seed"),
    arg.choice(
        "--delimiter",
        "column delimiter. With a decimal comma use semicolon",
        "comma",
        "semicolon",
        "tab",
    ),
    arg.switch("--force", "replace existing files"),
)
def export(args: argparse.Namespace) -> None:
    """draw items and write a sheet for each rater

    Draw items, give the systems' answers letters in an order shuffled for each item, and write
    DIR/rater1.csv … with the scoring standard at the head, and the key. Keep the key from the
    raters.
    """
    from fairseq_kerbs.evaluation.human import DELIMITERS, make_key, sheet_text

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


@command(
    "score",
    arg.file("--key", "key file of the export", required=True),
    arg.file("sheets", "filled sheets", "SHEET", nargs="+"),
    arg.value("--baseline", "system that the others are compared with", "NAME"),
    *reading.FILES,
)
def score_sheets(args: argparse.Namespace) -> None:
    """means, agreement and tests from filled sheets

    Check the sheets against the key and print each system's mean score, the raters' agreement, and
    with --baseline a one-tailed paired t-test of every other system.
    """
    from fairseq_kerbs.evaluation.human import as_csv, as_text, evaluate, read_key, read_sheet

    key = read_key(args.key)
    result = evaluate(key, [read_sheet(path, key) for path in args.sheets], args.baseline)
    print(as_text(result))
    reading.write_files(args, result, as_csv(result))


human_eval = nested(
    "human-eval",
    "blinded sheets for human raters, and their scores",
    "Human evaluation as in Section 5 of the paper: people score the answers of several systems "
    "without knowing which is whose.",
    "STEP",
    export,
    score_sheets,
)


@command(
    "examples",
    _ANSWERS,
    arg.file("--reference", "reference translations"),
    arg.choice(
        "--choose",
        "choose random lines among those with the most different outputs, or "
        "the lines with the largest gain in chrF of the last system over the baseline",
        "differing",
        "best",
    ),
    arg.number("--number", 5, "number of lines", 1),
    arg.number("--seed", 1, "random seed", metavar="S"),
    arg.value("--baseline", "baseline of '--choose best' [the first system]", "NAME"),
    arg.choice("--format", "output format", "text", "markdown"),
    arg.output(),
)
def examples(args: argparse.Namespace) -> None:
    """answers of several systems side by side

    Choose lines of a test set by a rule and print source, reference and every system's answer, as
    in Tables 3 and 4 of the paper.
    """
    from fairseq_kerbs.evaluation import examples

    sources, systems = _read_answers(args)
    references = args.reference and read_texts(args.reference, "T", args.lang, args.unescape)
    chosen = examples.side_by_side(
        sources, references, systems, args.choose, args.number, args.seed, args.baseline
    )
    rule = examples.rule_text(chosen, len(sources), args.choose, args.seed)
    write = examples.as_markdown if args.format == "markdown" else examples.as_text
    write_output(args.output, f"{rule}\n\n{write(chosen)}")
