"""``fairseq-kerbs detokenize`` and ``score``: from fairseq-generate's output to text and BLEU."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_kerbs.commands import write_output

if TYPE_CHECKING:
    from fairseq_kerbs.commands import Subparsers


def add_detokenize(commands: Subparsers) -> None:
    """Raw text of generated or tokenized text."""
    parser = commands.add_parser(
        "detokenize",
        help="raw text of fairseq-generate's output",
        description="Join subwords and undo Moses tokenization: of fairseq-generate's output (best "
        "hypotheses, in the order of the corpus) or of tokenized text.",
    )
    parser.add_argument("input", nargs="?", default="-", help="file to read [standard input]")
    parser.add_argument("--lang", required=True, help="language of the text")
    parser.add_argument("--unescape", action="store_true", help="undo XML entities")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="file [standard output]")
    parser.set_defaults(run=_run_detokenize)


def _run_detokenize(args: argparse.Namespace) -> int:
    from fairseq_kerbs.evaluation.texts import detokenize_lines
    from fairseq_kerbs.utils.files import read_lines

    path = "/dev/stdin" if args.input == "-" else args.input
    lines = read_lines(path)
    texts = detokenize_lines(lines, language=args.lang, name=path, unescape=args.unescape)
    write_output(args.output, "".join(text + "\n" for text in texts))
    return 0


def add_score(commands: Subparsers) -> None:
    """Detokenized BLEU."""
    parser = commands.add_parser(
        "score",
        help="detokenized BLEU with its signature",
        description="sacreBLEU of fairseq-generate's output (or tokenized text), detokenized, "
        "against raw references. The signature does not tell the order of n-grams: another order "
        "than 4 is printed beside it.",
    )
    parser.add_argument("--hypotheses", required=True, type=Path, metavar="FILE")
    parser.add_argument("--reference", required=True, type=Path, nargs="+", metavar="FILE")
    parser.add_argument("--lang", default="en", help="language of the text [%(default)s]")
    case = parser.add_mutually_exclusive_group()
    case.add_argument("--lowercase", action="store_true", help="compare without case")
    case.add_argument("--both-cases", action="store_true",
                      help="one score with case, and one without")  # fmt: skip
    parser.add_argument("--max-ngram-order", type=int, default=4, metavar="N",
                        help="longest n-grams: 1 gives BLEU-1 [%(default)s]")  # fmt: skip
    parser.add_argument("--tokenize", metavar="NAME",
                        help="sacreBLEU's tokenizer [by language; 13a for most]")  # fmt: skip
    parser.add_argument("--unescape", action="store_true", help="undo XML entities in hypotheses")
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.set_defaults(run=_run_score)


def _run_score(args: argparse.Namespace) -> int:
    from fairseq_kerbs.evaluation.bleu import score_file

    for lowercase in (False, True) if args.both_cases else (args.lowercase,):
        result = score_file(
            args.hypotheses,
            args.reference,
            language=args.lang,
            lowercase=lowercase,
            tokenize=args.tokenize,
            unescape=args.unescape,
            max_ngram_order=args.max_ngram_order,
        )
        fields = asdict(result)
        shown = json.dumps({"bleu": fields.pop("score"), **fields})
        print(shown if args.format == "json" else result.details)
    return 0
