"""``fairseq-kerbs detokenize`` and ``score``: from fairseq-generate's output to text and scores."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_kerbs.commands import OutputPath, Subparsers, whole_number, write_output

if TYPE_CHECKING:
    from sacrebleu.significance import Result


def add_detokenize(commands: Subparsers) -> None:
    """Raw text of generated or tokenized text."""
    parser = commands.add_parser(
        "detokenize",
        help="raw text of fairseq-generate's output",
        description="Join subwords and undo Moses tokenization: of fairseq-generate's output (best "
        "hypotheses, in the order of the corpus) or of tokenized text.",
    )
    parser.add_argument("input", nargs="?", type=Path, default="-", metavar="FILE",
                        help="file to read [standard input]")  # fmt: skip
    parser.add_argument("--lang", required=True, help="language of the text")
    parser.add_argument("--unescape", action="store_true", help="undo XML entities")
    parser.add_argument(
        "-o", "--output", type=OutputPath, metavar="FILE", help="file [standard output]"
    )
    parser.set_defaults(run=_run_detokenize)


def _run_detokenize(args: argparse.Namespace) -> int:
    from fairseq_kerbs.evaluation.texts import detokenize_lines
    from fairseq_kerbs.utils.files import read_lines

    path = "/dev/stdin" if str(args.input) == "-" else str(args.input)
    lines = read_lines(path)
    texts = detokenize_lines(lines, language=args.lang, name=path, unescape=args.unescape)
    write_output(args.output, "".join(text + "\n" for text in texts))
    return 0


def add_score(commands: Subparsers) -> None:
    """Detokenized BLEU, chrF and TER, and whether systems differ."""
    parser = commands.add_parser(
        "score",
        help="detokenized BLEU, chrF and TER with their signatures",
        description="BLEU, chrF and TER by sacreBLEU of fairseq-generate's output (or tokenized "
        "text), detokenized, against raw references. Several systems are compared with the first "
        "by a paired bootstrap test (1,000 samples, seed 12345). BLEU's signature does not tell "
        "the order of n-grams: another order than 4 is printed beside it.",
    )
    text = "a system's translations; of several, the first is the baseline"
    parser.add_argument("--hypotheses", required=True, type=Path, nargs="+", metavar="FILE",
                        help=text)  # fmt: skip
    parser.add_argument("--reference", required=True, type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--lang", default="en", help="language of the text [%(default)s]")
    case = parser.add_mutually_exclusive_group()
    case.add_argument("--lowercase", action="store_true", help="ignore case, as TER always does")
    case.add_argument("--both-cases", action="store_true",
                      help="one score with case, and one without")  # fmt: skip
    parser.add_argument("--max-ngram-order", type=whole_number(1), default=4, metavar="N",
                        help="longest n-grams: 1 gives BLEU-1 [%(default)s]")  # fmt: skip
    parser.add_argument("--tokenize", metavar="NAME",
                        help="sacreBLEU's tokenizer [by language; 13a for most]")  # fmt: skip
    parser.add_argument("--unescape", action="store_true", help="undo XML entities in hypotheses")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.set_defaults(run=_run_score)


def _run_score(args: argparse.Namespace) -> int:
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
        for name, score in zip(("chrf", "ter"), scores[1:]):
            shown |= {name: score.score, f"{name}_signature": score.signature}
        print(json.dumps(shown))
    return 0


def _print_comparison(
    form: str, names: list[str], signatures: dict[str, str], results: dict[str, list[Result]]
) -> None:
    """sacreBLEU's table of systems with what its p-values mean, or one line of JSON."""
    from sacrebleu.utils import Color, print_results_table

    from fairseq_kerbs.evaluation.bleu import SAMPLES

    if form == "json":
        rows: list[dict[str, Any]] = [{"system": name} for name in names]
        for metric, found in results.items():
            for row, result in zip(rows, found):
                row[metric] = vars(result)
        print(json.dumps({"signatures": signatures, "systems": rows}, default=float))
        return
    Color.ENABLE_COLORS = sys.stdout.isatty()
    options = {"format": form, "width": 2, "paired_bs": True, "paired_bs_n": SAMPLES}
    table = {"System": [f"Baseline: {names[0]}", *names[1:]], **results}
    print_results_table(table, signatures, argparse.Namespace(**options))
