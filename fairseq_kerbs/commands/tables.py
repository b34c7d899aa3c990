"""``fairseq-kerbs tables``: the papers' tables, from data to reports."""

from __future__ import annotations

import argparse
from pathlib import Path

from fairseq_kerbs.commands import Subparsers


def add_tables(commands: Subparsers) -> None:
    """Tables of the papers."""
    parser = commands.add_parser(
        "tables",
        aliases=["reproduce-tables"],
        help="reproduce the papers' tables",
        description="Prepare data, train what is missing, generate, score, and write Markdown and "
        "JSON with the papers' figures beside ours. Interrupted, it goes on where it stopped; a "
        "failed run does not stop the others. The status is 1 if a run asked for is not there.",
    )
    add = parser.add_argument
    text = "a table (several times for several), or a description of your own [all]"
    add("--table", action="append", metavar="1|2|3|4|5|6|gao1|gao3|layers|all|FILE", help=text)
    text = "the paper's sizes, or runs of at most 30 minutes (layers: 90) on 2 cores [%(default)s]"
    add("--scale", choices=("full", "small"), default="small", help=text)
    for flags, folder, text in (
        (("--corpora", "--data"), "data", "raw corpora, see configs/tables/data.yaml"),
        (("--work",), "runs/tables", "prepared data, checkpoints, logs"),
        (("--results",), "results/tables", "where reports are written"),
    ):
        add(*flags, type=Path, default=Path(folder), metavar="DIR", help=f"{text} [%(default)s]")
    text = "runs side by side, each with cores/N threads unless OMP_NUM_THREADS is set [1]"
    add("--jobs", type=int, default=1, metavar="N", help=text)
    text = "only what has a label that (as table2/mt/kerbs/s1) contains or, with *, fits this; "
    text += "several times for several, in this order"
    add("--only", action="append", default=[], metavar="PATTERN", help=text)
    text = "remove and repeat what was made with another configuration or other data"
    add("--redo", action="store_true", help=text)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--dry-run", action="store_true", help="print every command and planned time")
    what.add_argument("--report-only", action="store_true", help="write reports of what is there")
    parser.set_defaults(run=_run_tables)


def _run_tables(args: argparse.Namespace) -> int:
    from fairseq_kerbs.tables.command import run_tables

    return run_tables(args)
