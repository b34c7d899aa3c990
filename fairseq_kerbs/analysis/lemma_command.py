"""The command line of ``scripts/simulate_lemmas.py``: tables, and a JSON or CSV file."""

from __future__ import annotations

import argparse
import csv
import dataclasses
import io
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from fairseq_kerbs.analysis.lemmas import (
    UNSURE,
    Allocation,
    Training,
    learn_senses,
    learn_theta,
    theta_correlations,
)
from fairseq_kerbs.corpora.files import atomic_write
from fairseq_kerbs.errors import UserError

VARIANTS = (("none", "keep"), ("paper", "keep"), ("released", "keep"), ("balanced", "keep"))
BEST = ("balanced", "context")
WIDTHS = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4)
Row = dict[str, Any]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the experiments; return the exit status (2 for wrong input, with one sentence)."""
    parser = argparse.ArgumentParser(
        prog="simulate_lemmas.py",
        description="Lemmas 4.1 and 4.2 of the KerBS paper on contexts whose clusters are known: "
        "do words get as many senses as they have clusters, and does theta grow with their width?",
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write .json or .csv")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1], help="seeds [%(default)s]")
    parser.add_argument("--steps", type=int, default=800, help="updates of each run [%(default)s]")
    parser.add_argument("--dim", type=int, default=12, help="size of contexts [%(default)s]")
    parser.add_argument("--width", type=float, default=0.6, help="of 4.1's clusters [%(default)s]")
    parser.add_argument("--norm", type=float, help="4.2: hold sense vectors at this norm")
    args = parser.parse_args(argv)
    try:
        _check(args)
        training = Training(dim=args.dim, steps=args.steps)
        rows = [*_senses(args, training), *_theta(args, training)]
        if args.output is not None:
            with atomic_write(args.output) as stream:
                stream.write(_serialized(args, rows))
    except (UserError, ValueError) as error:
        print(f"simulate_lemmas.py: error: {error}", file=sys.stderr)
        return 2
    return 0


def _check(args: argparse.Namespace) -> None:
    if args.output is not None and args.output.suffix not in (".json", ".csv"):
        raise UserError(f"--output {args.output} must end with .json or .csv")
    for name in ("steps", "dim", "width", "norm"):
        value = getattr(args, name)
        if value is not None and not value > 0:
            raise UserError(f"--{name} is {value}, but it must be greater than 0")


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _senses(args: argparse.Namespace, training: Training) -> list[Row]:
    print(
        "Lemma 4.1: senses of words with 1, 2, 3, 4 clusters (means over words and "
        f"{len(args.seeds)} seeds)\n"
    )
    print(
        f"{'reallocation':<18}{'1':>6}{'2':>6}{'3':>6}{'4':>6}{'exact':>8}{'rank corr.':>12}"
        f"{'covered':>9}{'distinct':>10}{'placed':>8}{'moves':>7}{'late':>6}"
    )
    rows: list[Row] = []
    for policy, new_sense in (*VARIANTS, BEST):
        name = policy if new_sense == "keep" else f"{policy}, {new_sense}"
        allocation = Allocation(policy, new_sense)
        runs = [
            learn_senses(allocation, training, width=args.width, seed=seed) for seed in args.seeds
        ]
        for seed, run in zip(args.seeds, runs, strict=True):
            values = dataclasses.asdict(run)
            counts = {f"senses_{k}": n for k, n in enumerate(values.pop("senses"), 1)}
            settings = {"policy": policy, "new_sense": new_sense, "seed": seed}
            rows.append({"lemma": "4.1", **settings, **counts, **values})
        senses = "".join(f"{_mean([run.senses[k] for run in runs]):>6.2f}" for k in range(4))
        print(
            f"{name:<18}{senses}{_mean([run.exact for run in runs]):>8.0%}"
            f"{_mean([run.correlation for run in runs]):>12.2f}"
            f"{_mean([run.covered for run in runs]):>9.0%}"
            f"{_mean([run.distinct for run in runs]):>10.0%}"
            f"{_mean([run.placed for run in runs]):>8.0%}"
            f"{_mean([run.moves for run in runs]):>7.1f}"
            f"{_mean([run.late_moves for run in runs]):>6.1f}",
            flush=True,
        )
    print(
        "\nexact: words with as many senses as clusters. covered: clusters with a sense of their "
        "word on them.\ndistinct: with one that is on no other cluster. placed: senses on a "
        "cluster. late: moves in the last fifth of reallocations.\n"
    )
    return rows


def _theta(args: argparse.Namespace, training: Training) -> list[Row]:
    held = "free" if args.norm is None else f"held at {args.norm:g}"
    print(f"Lemma 4.2: theta (Eq. 9) by the width of a word's one cluster; |w| {held}\n")
    print(f"{'width':>6}{'theta':>9}{'|theta|':>9}{'|w|':>7}{'cos(w, c)':>11}{'1 - P(y)':>10}")
    runs = [
        learn_theta(WIDTHS, training, norm=args.norm, words_each=3, seed=seed)
        for seed in args.seeds
    ]
    rows = [
        {"lemma": "4.2", "seed": seed, **dataclasses.asdict(one)}
        for seed, run in zip(args.seeds, runs, strict=True)
        for one in run
    ]
    for number, width in enumerate(WIDTHS):
        part = [run[number] for run in runs]
        theta = _mean([one.theta for one in part])
        print(
            f"{width:>6.1f}{theta:>9.2f}{abs(theta):>9.2f}{_mean([one.norm for one in part]):>7.2f}"
            f"{_mean([one.cosine for one in part]):>11.3f}"
            f"{_mean([one.unsure for one in part]):>10.4f}"
        )
    every, unsure = zip(*(theta_correlations(run) for run in runs), strict=True)
    print(
        f"\nSpearman between width and theta: {_mean(every):.2f}; among widths with 1 - P(y) of "
        f"{UNSURE} and more: {_mean(unsure):.2f}.\nWhere clusters are told apart without doubt, "
        "theta has no gradient and stays where training has left it."
    )
    return rows


def _serialized(args: argparse.Namespace, rows: list[Row]) -> str:
    if args.output.suffix == ".json":
        settings = {name: value for name, value in vars(args).items() if name != "output"}
        document = {"settings": settings, "torch": torch.__version__, "rows": rows}
        return json.dumps(document, indent=1) + "\n"
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
