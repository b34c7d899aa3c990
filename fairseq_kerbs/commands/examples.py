"""``fairseq-kerbs examples``: answers of several systems side by side."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_kerbs.commands.human_eval import add_text_flags

if TYPE_CHECKING:
    from fairseq_kerbs.commands import Subparsers


def add_examples(commands: Subparsers) -> None:
    """Examples for a table."""
    parser = commands.add_parser(
        "examples",
        help="answers of several systems side by side",
        description="Choose lines of a test set by a rule and print source, reference and every "
        "system's answer, as in Tables 3 and 4 of the paper.",
    )
    add_text_flags(parser)
    parser.add_argument("--reference", type=Path, metavar="FILE", help="references, as --source")
    parser.add_argument(
        "--choose",
        choices=("differing", "best", "random"),
        default="differing",
        help="drawn from the lines with the most different answers, where one system gains most "
        "over the baseline, or drawn from all [%(default)s]",
    )
    parser.add_argument("--number", type=int, default=5, metavar="N", help="lines [%(default)s]")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="[%(default)s]")
    best = parser.add_argument_group("--choose best")
    best.add_argument("--of", metavar="NAME", help="system whose gain counts [the last]")
    best.add_argument("--baseline", metavar="NAME", help="what it is compared with [the first]")
    best.add_argument(
        "--metric", choices=("chrf", "bleu"), default="chrf", help="sentence score [%(default)s]"
    )
    parser.add_argument("--format", choices=("text", "markdown", "csv"), default="text")
    parser.add_argument("--output", type=Path, metavar="FILE", help="file [standard output]")
    parser.set_defaults(run=_run_examples)


def _run_examples(args: argparse.Namespace) -> int:
    from fairseq_kerbs.corpora.files import atomic_write
    from fairseq_kerbs.evaluation import examples
    from fairseq_kerbs.evaluation.texts import check_lengths, named_files, read_texts

    paths = named_files(args.system)
    sources = read_texts(args.source, "S", args.source_lang or args.lang, args.unescape)
    systems = {n: read_texts(path, "H", args.lang, args.unescape) for n, path in paths.items()}
    loaded = zip(paths.values(), systems.values(), strict=True)
    files = {str(args.source): sources} | {str(path): texts for path, texts in loaded}
    references = None
    if args.reference is not None:
        references = read_texts(args.reference, "T", args.lang, args.unescape)
        files[str(args.reference)] = references
    check_lengths(files)
    chosen = examples.side_by_side(
        *(sources, references, systems, args.choose, args.number, args.seed),
        system=args.of,
        baseline=args.baseline,
        metric=args.metric,
    )
    rule = examples.rule_text(chosen, len(sources), args.choose, args.seed, args.metric)
    if args.format == "csv":
        content = examples.as_csv(chosen)
        print(rule, file=sys.stderr)
    else:
        write = examples.as_markdown if args.format == "markdown" else examples.as_text
        content = f"{rule}\n\n{write(chosen)}"
    if args.output is None:
        sys.stdout.write(content)
    else:
        with atomic_write(args.output) as stream:
            stream.write(content)
    return 0
