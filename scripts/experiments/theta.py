#!/usr/bin/env python
"""Figure 3 of the KerBS paper as a count: do words for broader concepts have a larger θ?

    scripts/experiments/theta.py runs/kerbs-1/checkpoint_best.pt runs/kerbs-2/checkpoint_best.pt \
        --dict DATA/dict.en.txt --output theta.csv

The paper draws θ of three sets of nouns, and finds that bigger concepts have a larger θ. It does
not say how it chose them. Here θ is compared for pairs of a narrow and a broad word, which
``theta_pairs.txt`` beside this script lists. These were chosen from the dictionary of Multi30k
with 3,000 joint BPE merges, before θ of any model of these tables was read.

θ of a word is the mean over its senses, weighted by usage (Eq. 13).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

# the checkout that this script belongs to, installed or not
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
from pandas import DataFrame
from scipy.stats import spearmanr

from fairseq_kerbs.analysis.report import training_counts
from fairseq_kerbs.analysis.words import (
    csv_of,
    has_letter,
    sense_numbers,
    usage_shares,
    word_numbers,
)
from fairseq_kerbs.checkpoints import load_layer
from fairseq_kerbs.output_layers import KerbsOutputLayer
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import atomic_write, check_can_write, read_lines

PAIRS = Path(__file__).with_name("theta_pairs.txt")
Row = dict[str, Any]


def read_pairs(path: Path) -> list[tuple[str, str]]:
    """Pairs of a narrow and a broad word, one a line.

    Raises:
        UserError: a line has not two words, or there is no line.
    """
    pairs = []
    for number, line in enumerate(read_lines(path), start=1):
        words = line.split()
        if len(words) != 2:
            raise UserError(f"--pairs {path}, line {number}: give a narrow and a broad word")
        pairs.append((words[0], words[1]))
    if not pairs:
        raise UserError(f"--pairs {path} is empty; give a narrow and a broad word on each line")
    return pairs


def theta_of_words(checkpoint: Path, dictionary: Path | None) -> tuple[Any, list[float], list[int]]:
    """fairseq's dictionary of a model, with θ and the number of occurrences of each entry.

    Raises:
        UserError: the model has no θ.
    """
    layer, entries, *_ = load_layer(checkpoint, dictionary)
    if not isinstance(layer, KerbsOutputLayer) or not layer.has_theta:
        raise UserError(f"{checkpoint} has no theta; name a model with --kernel kerbs")
    of_senses = layer.kernel.theta_of(layer.theta.detach())
    thetas = []
    for word in range(len(entries)):
        senses = sense_numbers(layer, word)
        thetas.append(float(of_senses[senses] @ usage_shares(layer, senses).type_as(of_senses)))
    return entries, thetas, training_counts(entries)


def compare(
    checkpoint: Path, dictionary: Path | None, pairs: Sequence[tuple[str, str]]
) -> tuple[list[Row], Row]:
    """θ of both words of each pair, and a summary of a model.

    The summary has the number of pairs in which the broad word has the larger θ. Of the pairs whose
    words differ in frequency, it has the number in which the more frequent word has the larger θ.
    It also has the rank correlation of θ with frequency, over all entries that end a word and have
    been trained on: whole words, and last pieces of BPE. There is no p, because words stand in
    several pairs.
    """
    entries, thetas, counts = theta_of_words(checkpoint, dictionary)
    rows: list[Row] = []
    for narrow, broad in pairs:
        first, second = word_numbers(entries, [narrow, broad])
        rows.append(
            {
                "checkpoint": str(checkpoint),
                "narrow": narrow,
                "broad": broad,
                "theta_narrow": thetas[first],
                "theta_broad": thetas[second],
                "count_narrow": counts[first],
                "count_broad": counts[second],
            }
        )
    larger = sum(row["theta_broad"] > row["theta_narrow"] for row in rows)
    unlike = [row for row in rows if row["count_broad"] != row["count_narrow"]]
    more_frequent = sum(
        (row["theta_broad"] > row["theta_narrow"]) == (row["count_broad"] > row["count_narrow"])
        for row in unlike
    )
    ends = [
        number
        for number, word in enumerate(entries.symbols)
        if counts[number] and has_letter(word) and not word.endswith("@@")
    ]
    frequency = spearmanr(np.asarray(thetas)[ends], np.asarray(counts)[ends])
    summary = {
        "checkpoint": str(checkpoint),
        "pairs": len(rows),
        "broad word has the larger theta": larger,
        "pairs of different frequency": len(unlike),
        "more frequent word has the larger theta": more_frequent,
        "words": len(ends),
        "mean theta": float(np.mean(np.asarray(thetas)[ends])),
        "deviation": float(np.std(np.asarray(thetas)[ends], ddof=1)),
        "correlation with frequency": float(frequency.statistic),
    }
    return rows, summary


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare the words of each model, and print a line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", nargs="+", type=Path, help="models of 'fairseq-train'")
    parser.add_argument("--dict", type=Path, help="target dictionary [that of their data]")
    parser.add_argument(
        "--pairs", type=Path, default=PAIRS, help="a narrow and a broad word on each line"
    )
    parser.add_argument("--output", type=Path, help="CSV file of both words of each pair")
    parser.add_argument("--summary", type=Path, help="CSV file of what is printed")
    args = parser.parse_args(arguments)
    rows: list[Row] = []
    summaries: list[Row] = []
    try:
        for flag, path in (("--output", args.output), ("--summary", args.summary)):
            if path is not None:
                check_can_write(path, flag)
        pairs = read_pairs(args.pairs)
        for checkpoint in args.checkpoint:
            of_model, summary = compare(checkpoint, args.dict, pairs)
            rows += of_model
            summaries.append(summary)
    except UserError as error:
        parser.exit(2, f"theta.py: {error}\n")
    for summary in summaries:
        print(", ".join(f"{name} {value}" for name, value in summary.items()))
    if args.output is not None:
        _write(args.output, rows)
    if args.summary is not None:
        _write(args.summary, summaries)


def _write(path: Path, rows: Sequence[Row]) -> None:
    """Write rows as CSV."""
    with atomic_write(path) as stream:
        stream.write(csv_of(DataFrame(rows)))


if __name__ == "__main__":
    main()
