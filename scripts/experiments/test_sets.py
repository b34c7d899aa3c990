#!/usr/bin/env python
"""BLEU of trained models on several test sets together, with a paired bootstrap test.

    scripts/experiments/test_sets.py DATA \
        --sets raw/test_2016_flickr raw/test_2017_flickr raw/test_2018_flickr \
        --system softmax multi30k/transformer_tuned runs/softmax-1 runs/softmax-2 runs/softmax-3 \
        --system senses multi30k/transformer_senses runs/senses-1 runs/senses-2 runs/senses-3 \
        --output test_sets.csv

DATA is the 'bin' folder of 'fairseq-kerbs prepare', which the models were trained on.
``raw/test_2016_flickr`` names ``raw/test_2016_flickr.de`` and ``.en``, with the languages of DATA:
raw text, a sentence per line. A system has a configuration and a folder of checkpoints for each
seed. The first system is the baseline: seed k of another one is compared with its seed k.

'fairseq-kerbs translate' translates all sets at once, so nothing is trained or prepared here.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# the checkout that this script belongs to, installed or not
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from pandas import DataFrame

from fairseq_kerbs.analysis.words import csv_of
from fairseq_kerbs.configurations import language_pair
from fairseq_kerbs.evaluation.bleu import bleu_metric, corpus_scores, paired_bootstrap
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import atomic_write, check_can_write, read_lines

CHECKOUT = Path(__file__).resolve().parents[2]
TOGETHER = "all"
Row = dict[str, Any]


@dataclass(frozen=True)
class System:
    """Trainings of one configuration, which differ in their seeds."""

    name: str
    configuration: str
    folders: list[str]  # of checkpoints, one for each seed


def read_sets(names: Sequence[str], language: str) -> dict[str, list[str]]:
    """Lines of each test set in a language, by its name without folders.

    Raises:
        UserError: a file is missing or empty, or two sets have the same name.
    """
    sets: dict[str, list[str]] = {}
    for name in names:
        file = Path(f"{name}.{language}")
        if not file.is_file():
            raise UserError(f"--sets {name}: there is no {file}; give the raw text of the set")
        if file.stem in sets:
            raise UserError(f"--sets names {file.stem} twice; leave one out")
        sets[file.stem] = read_lines(file)
        if not sets[file.stem]:
            raise UserError(f"--sets {name}: {file} is empty; give the raw text of the set")
    return sets


def read_systems(given: Sequence[Sequence[str]]) -> list[System]:
    """Systems of the command line.

    Raises:
        UserError: a name is there twice, or numbers of seeds differ.
    """
    systems = []
    for values in given:
        if len(values) < 3:
            raise UserError(f"--system {' '.join(values)}: give NAME CONFIG SAVE_DIR...")
        name, configuration, *folders = values
        systems.append(System(name, configuration, folders))
    names = [system.name for system in systems]
    if len({*names}) < len(names):
        raise UserError(f"--system names one of {', '.join(names)} twice; give other names")
    if len({len(system.folders) for system in systems}) > 1:
        raise UserError("--system: give as many folders for each system, one for each seed")
    return systems


def translate(configuration: str, data: str, folder: str, lines: Sequence[str]) -> list[str]:
    """Translations of raw lines by the model in a folder of checkpoints.

    Raises:
        UserError: the command fails, after what it has said.
    """
    command = [sys.executable, "-m", "fairseq_kerbs.cli", "translate", configuration, data, folder]
    text = "".join(f"{line}\n" for line in lines)
    paths = [str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        command, input=text.encode(), stdout=subprocess.PIPE, check=False, env=environment
    )
    if done.returncode != 0:
        raise UserError(f"{folder}: translate ended with status {done.returncode}; see above")
    found = done.stdout.decode("utf-8").removesuffix("\n").split("\n")
    if len(found) != len(lines):
        raise UserError(f"{folder}: {len(found)} translations of {len(lines)} lines")
    return found


def scores_of(
    hypotheses: Sequence[str], sets: dict[str, list[str]], language: str
) -> dict[str, Row]:
    """BLEU of each set, and of all together, by name. Hypotheses are those of all sets in order."""
    references = [line for lines in sets.values() for line in lines]
    parts = {TOGETHER: (list(hypotheses), references)}
    start = 0
    for name, lines in sets.items():
        parts[name] = (list(hypotheses[start : start + len(lines)]), lines)
        start += len(lines)
    metrics = {"BLEU": bleu_metric(language=language)}
    rows = {}
    for name, (texts, right) in parts.items():
        [found] = corpus_scores(texts, [right], metrics)
        rows[name] = {
            "set": name,
            "sentences": found.sentences,
            "bleu": found.score,
            "signature": found.signature,
        }
    return rows


def compare(
    systems: Sequence[System], data: str, sources: Sequence[str], sets: dict[str, list[str]]
) -> list[Row]:
    """Translate with every model: a row for each system, seed and set.

    ``p`` is that of the paired bootstrap test on all sets together against the first system.
    """
    _, target = language_pair(data)
    references = [line for lines in sets.values() for line in lines]
    metrics = {"BLEU": bleu_metric(language=target)}
    rows: list[Row] = []
    for number in range(len(systems[0].folders)):
        texts = [
            translate(system.configuration, data, system.folders[number], sources)
            for system in systems
        ]
        _, compared = paired_bootstrap(texts, [references], metrics)
        for system, hypotheses, result in zip(systems, texts, compared["BLEU"]):
            for name, row in scores_of(hypotheses, sets, target).items():
                p = result.p_value if name == TOGETHER else None
                seed = {"system": system.name, "folder": system.folders[number]}
                rows.append({**seed, **row, "p": p})
    return rows


def summary(rows: Sequence[Row]) -> DataFrame:
    """Mean and deviation of BLEU over seeds, for each system and set."""
    lines: list[Row] = []
    for system in dict.fromkeys(row["system"] for row in rows):
        for name in dict.fromkeys(row["set"] for row in rows):
            found = [row for row in rows if (row["system"], row["set"]) == (system, name)]
            values = [row["bleu"] for row in found]
            deviation = statistics.stdev(values) if len(values) > 1 else None
            sure = [f"{row['p']:.3f}" for row in found if row["p"] is not None]
            lines.append(
                {
                    "system": system,
                    "set": name,
                    "BLEU": round(statistics.fmean(values), 2),
                    "deviation": "" if deviation is None else f"{deviation:.2f}",
                    "p of each seed": " ".join(sure),
                }
            )
    return DataFrame(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments, translate, and write one row for each system, seed and set."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", help="'bin' folder that the models were trained on")
    parser.add_argument("--sets", nargs="+", required=True, help="raw test sets without suffix")
    parser.add_argument(
        "--system",
        nargs="+",
        action="append",
        required=True,
        metavar="NAME CONFIG SAVE_DIR",
        help="a system with the folders of its seeds; the first is the baseline",
    )
    parser.add_argument("--output", type=Path, help="CSV file of all scores")
    args = parser.parse_args(arguments)
    try:
        if args.output is not None:
            check_can_write(args.output, "--output")
        source, target = language_pair(args.data)
        systems = read_systems(args.system)
        sources = read_sets(args.sets, source)
        references = read_sets(args.sets, target)
        for name, lines in sources.items():
            if len(lines) != len(references[name]):
                raise UserError(
                    f"--sets {name}: {len(lines)} lines of {source} and {len(references[name])} of "
                    f"{target}; they must be parallel"
                )
        together = [line for lines in sources.values() for line in lines]
        rows = compare(systems, args.data, together, references)
    except UserError as error:
        parser.exit(2, f"test_sets.py: {error}\n")
    print(summary(rows).to_string(index=False))
    print(f"BLEU: {rows[0]['signature']}")
    if args.output is not None:
        with atomic_write(args.output) as stream:
            stream.write(csv_of(DataFrame(rows)))


if __name__ == "__main__":
    main()
