"""``fairseq-kerbs report``: a page about the senses of a model, to be opened in a browser."""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_kerbs.commands import OutputPath, Subparsers, reading, write_output
from fairseq_kerbs.utils.errors import UserError


def add_report(commands: Subparsers) -> None:
    """Write the page."""
    parser = commands.add_parser(
        "report",
        help="all senses of a model as one HTML file",
        description="Write a single HTML file that opens with the words whose senses are clearest, "
        "and in which to search a word: what its senses translate and stand beside, contexts, "
        "theta and usage. It needs no network and no other file.",
    )
    reading.add_model_flags(parser, split="train")
    text = "the .html file to write"
    parser.add_argument("-o", "--output", type=OutputPath, required=True, metavar="FILE", help=text)
    parser.add_argument("--title", help="title of the page [name of the checkpoint]")
    text = "output of fairseq-train or its --tensorboard-logdir, for the history of training"
    parser.add_argument("--log", type=Path, metavar="LOG", help=text)
    reading.add_numbers(
        parser,
        ("--examples", 1, "contexts a sense"),
        ("--nearest", 0, "nearest senses of each by kernel; minutes for 60,000 senses"),
    )
    parser.set_defaults(run=_run_report)


def _run_report(args: argparse.Namespace) -> int:
    from fairseq_kerbs.analysis.history import read_history
    from fairseq_kerbs.analysis.html_report import html_page
    from fairseq_kerbs.analysis.sense_report import build_report
    from fairseq_kerbs.analysis.words import is_word

    reading.check_numbers(args, examples=0, nearest=0)
    if args.output.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--output: {args.output} must end in .html")
    history = None if args.log is None else read_history(args.log)
    layer, dictionary, model, task = reading.read_model(args)
    facts: dict[str, str | int] = {"checkpoint": str(args.checkpoint), "kernel": layer.kernel_name}
    facts |= {"entries of the dictionary": layer.vocab_size, "senses": layer.total_senses}
    names = None
    if task is not None:
        names = reading.read_names(model, task, args.split)
        facts |= {"data": f"{args.data}, split {args.split}"}
        facts |= {"sentences read": names.lines, "in all": len(task.dataset(args.split))}
    symbols, special = dictionary.symbols, dictionary.nspecial
    counts = [0] * special + dictionary.count[special:]
    clearest = names.clearest(0, special) if names else []
    words = [word for number, word in enumerate(symbols) if is_word(word, number, special)]
    report = build_report(
        *(names, layer, symbols),
        words=[*clearest, *words],
        examples=args.examples,
        counts=counts,
        special=special,
        nearest=args.nearest,
    )
    title = args.title or f"Senses of {args.checkpoint.name}"
    page = html_page(title, facts, report, layer, counts=counts, clearest=clearest, history=history)
    senses = sum(len(word["senses"]) for word in report["words"])
    write_output(args.output, page, f"{len(report['words'])} words, {senses} senses")
    return 0
