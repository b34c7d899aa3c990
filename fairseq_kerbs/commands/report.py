"""``fairseq-kerbs report``: a page about the senses of a model, to be opened in a browser."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_kerbs.commands.senses import add_checkpoint_flags, check_checkpoint_flags

if TYPE_CHECKING:
    from fairseq_kerbs.commands import Subparsers


def add_report(commands: Subparsers) -> None:
    """Write the page."""
    parser = commands.add_parser(
        "report",
        help="all senses of a model as one HTML file",
        description="Write a single HTML file in which to search a word and see its senses, their "
        "theta, usage, nearest senses, contexts and plots. It needs no network and no other file.",
    )
    add_checkpoint_flags(parser)
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FILE", help="the .html file to write"
    )
    parser.add_argument("--title", help="title of the page [name of the checkpoint]")
    parser.add_argument(
        "--log",
        type=Path,
        metavar="LOG",
        help="output of fairseq-train or its --tensorboard-logdir, for the history of training",
    )
    parser.add_argument(
        "--examples", type=int, default=3, metavar="N", help="contexts a sense [%(default)s]"
    )
    parser.add_argument(
        "--nearest",
        type=int,
        default=5,
        metavar="N",
        help="nearest senses of each; 0 saves the time, minutes for 60,000 senses [%(default)s]",
    )
    parser.set_defaults(run=_run_report)


def _run_report(args: argparse.Namespace) -> int:
    from fairseq_kerbs.analysis.history import read_history
    from fairseq_kerbs.analysis.html_report import html_page
    from fairseq_kerbs.analysis.occurrences import load_model, occurrences
    from fairseq_kerbs.analysis.page_data import page_data
    from fairseq_kerbs.analysis.saved_layer import load_layer
    from fairseq_kerbs.corpora.files import atomic_write

    _check_flags(args)
    history = None if args.log is None else read_history(args.log)
    found = contexts = None
    facts: dict[str, str | int] = {"checkpoint": str(args.checkpoint)}
    if args.data is None:
        layer, dictionary = load_layer(args.checkpoint, args.dict, args.trust_checkpoint)
    else:
        model, task = load_model(args.checkpoint, args.data, args.trust_checkpoint)
        layer, dictionary = model.decoder.output, task.target_dictionary
        found = occurrences(model, task, args.split, pieces=True)
        contexts = _contexts(model, task, args.split)
        facts |= {"data": f"{args.data}, split {args.split}"}
        facts |= {"sentences": len(task.dataset(args.split))}
    _check_finite(args.checkpoint, layer)
    facts |= {"kernel": layer.kernel.name, "entries of the dictionary": layer.vocab_size}
    facts |= {"senses": layer.total_senses}
    data = page_data(
        *(layer, dictionary.symbols, dictionary.count, dictionary.nspecial),
        facts=facts,
        found=found,
        contexts=contexts,
        examples=args.examples,
        nearest=args.nearest,
        history=history,
    )
    with atomic_write(args.output) as stream:
        stream.write(html_page(args.title or f"Senses of {args.checkpoint.name}", data))
    print(f"{args.output}: {len(data['words'])} words, {len(data['sense'])} senses")
    return 0


def _contexts(model: Any, task: Any, split: str) -> Any:
    """Context vectors of the words that have several senses."""
    from fairseq_kerbs.analysis.context_vectors import context_vectors
    from fairseq_kerbs.analysis.page_data import MOST_POINTS

    numbers = model.decoder.output.inventory.senses_per_word()
    several = (numbers > 1).nonzero().flatten().tolist()
    return context_vectors(model, task, split, several, MOST_POINTS)


def _check_flags(args: argparse.Namespace) -> None:
    from fairseq_kerbs.errors import UserError

    check_checkpoint_flags(args)
    if args.output.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"--output: {args.output} must end in .html")
    for flag in ("examples", "nearest"):
        if getattr(args, flag) < 0:
            raise UserError(f"--{flag} is {getattr(args, flag)}, but must be 0 or more")


def _check_finite(checkpoint: Path, layer: Any) -> None:
    from fairseq_kerbs.errors import UserError

    for name in ("weight", "theta", "inventory.usage", "inventory.log_prob"):
        if not layer.state_dict().get(name, layer.weight).isfinite().all():
            raise UserError(
                f"{checkpoint}: {name} of its output layer holds values that are not finite, so "
                "its training diverged; take an earlier checkpoint"
            )
