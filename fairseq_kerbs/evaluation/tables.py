"""Reproduce the papers' tables, for ``scripts/reproduce_tables.sh`` and ``scripts/Snakefile``.

A table consists of runs. ``configs/tables/schema.yaml`` describes the files in ``configs/tables``.
Paths of outputs are relative to the folder of ``--work``, where Snakemake runs.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import re
import shlex
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from fnmatch import fnmatch, fnmatchcase
from itertools import product
from pathlib import Path
from typing import IO, Any

from fairseq_kerbs import configurations
from fairseq_kerbs.configurations import CONFIGS, Flags, flag_arguments
from fairseq_kerbs.data.prepare import write_lines
from fairseq_kerbs.evaluation import confusable, examples
from fairseq_kerbs.evaluation.bleu import SAMPLES, bleu_metric, corpus_scores, paired_bootstrap
from fairseq_kerbs.evaluation.ratings import (
    agreement_sentence,
    ratings_by_row,
    read_ratings,
    significance_sentence,
)
from fairseq_kerbs.evaluation.texts import read_texts
from fairseq_kerbs.utils.errors import UserError, sentence_of
from fairseq_kerbs.utils.files import check_parallel, read_lines
from fairseq_kerbs.utils.machine import describe_machine, describe_versions
from fairseq_kerbs.utils.processes import PLUGIN_FOLDER, run_program, usable_cores

TABLES = CONFIGS / "tables"
NAMES = (
    "1",
    "2",
    "3",
    "4",
    "5",
    "6",
    "gao1",
    "gao2",
    "gao3",
    "gao4",
)
"""The papers' tables, which ``--table all`` makes."""

OTHERS = ("layers", "search", "gao_grid", "reallocation_grid", "lm_grid", "grid")
"""Our comparison of output layers, and searches on validation data."""

_OUTPUTS = {"senses": "words.md", "perplexity": "perplexity.txt"}
_OUTPUTS |= {"valid_loss": "trained", "mixture_variance": "trained"}  # figures of the log
_METRICS = {
    "bleu4": "BLEU-4",
    "bleu1": "BLEU-1",
    "perplexity": "perplexity (lower is better)",
    "valid_loss": "best validation loss (bits, lower is better)",
    "mixture_variance": "variance of the mixture weights (× 100)",
    "human": "human score",
}
_ORDERS = {"bleu4": 4, "bleu1": 1}
_VALID = re.compile(r"\| valid \|.*?(?:\| nll_loss|\| loss(?!.*\| nll_loss)) ([0-9.]+) ")
_VARIANCE = re.compile(r"\| valid \|.*?\| nll_loss ([0-9.]+) .*\| mixture_variance ([0-9.e-]+)")
_PERPLEXITY = re.compile(r"Loss \(base 2\): .+, Perplexity: ([0-9.]+|inf|nan)")
_SHARED = ("task", "sample-break-mode", "tokens-per-sample")  # flags of training and eval-lm


@dataclass(frozen=True)
class Run:
    """A training and its evaluation. Runs with equal training flags share a folder."""

    table: Mapping[str, Any]
    column: str
    row: str
    seed: int
    metric: str
    config: Path
    flags: str  # training flags of the row and the seed
    evaluation: str  # flags of fairseq-eval-lm
    generation: Flags
    folder: str
    output: str  # file for the table
    data: Mapping[str, Any]  # description of the data set
    prepared: str  # folder of the prepared data
    minutes: int  # estimated, 0 if unknown

    @property
    def label(self) -> str:
        """Name of the run for ``--only``."""
        return self._label_of(self.row)

    @property
    def baseline(self) -> str:
        """Label of the baseline's run of the same column and seed."""
        return self._label_of(self.table["baseline"])

    def _label_of(self, row: str) -> str:
        return f"{self.table['name']}/{self.column}/{row}/s{self.seed}"

    def raw(self, corpora: str) -> Path | None:
        """Path of the raw text in a folder of corpora, or None if it is missing."""
        return next(filter(Path.exists, (Path(corpora, f) for f in self.data["folders"])), None)

    def preparation(self, raw: Path) -> str:
        """Shell command that prepares the raw text."""
        text = self.data["prepare"].replace("{raw}", shlex.quote(str(raw)))
        return str(text.replace("{dest}", self.prepared))


def load_table(name: str) -> dict[str, Any]:
    """Read a table's description by its name or path. An invalid one raises a UserError."""
    import jsonschema

    path = TABLES / (f"table{name}.yaml" if name.isdigit() else f"{name}.yaml")
    if name.endswith(".yaml"):
        path = Path(name)
    elif not path.is_file() or name in ("data", "schema"):
        raise UserError(
            f"--table {name}: there is {', '.join(NAMES + OTHERS)}, all, or a FILE.yaml"
        )
    table, shared = configurations.read_yaml(path), path.parent / "data.yaml"
    data = configurations.read_yaml(shared) if shared.is_file() else {}
    table["data"] = data | table.get("data", {})
    try:
        jsonschema.validate(table, configurations.read_yaml(TABLES / "schema.yaml"))
    except jsonschema.ValidationError as error:
        raise UserError(f"{path}: {error.json_path}: {error.message}") from None
    rows = [*table.get("flags", ()), *filter(None, [table.get("baseline")])]
    rows += table.get("controls", ())
    for column in table["columns"].values():
        rows += column.get("paper", ())
        for scale in (column[name] for name in ("full", "small") if name in column):
            rows += [row for key in ("configs", "flags", "minutes") for row in scale.get(key, ())]
            if scale["data"] not in table["data"]:
                raise UserError(f"{path}: unknown data set {scale['data']!r}")
    for row in rows:
        if not any(fnmatchcase(name, row) for name in table["rows"]):
            raise UserError(f"{path}: {row!r} is none of the rows {', '.join(table['rows'])}")
    defaults = {"kind": "figures", "baseline": "", "source": "Own table", "controls": []}
    return {**defaults, **table, "file": path, "name": path.stem}


def plan_runs(table: Mapping[str, Any], scale_name: str) -> Iterator[Run]:
    """Runs of a table at a scale, ordered by seed. Invalid configurations raise a UserError."""
    for name, column in table["columns"].items():
        scale, runs = column.get(scale_name, {}), list[Run]()
        for seed, row in product(scale.get("seeds", ["1"]), table["rows"] if scale else ()):
            files = [scale.get("config"), *_fitting(row, scale.get("configs", {}))]
            if files[-1]:
                file = files[-1].replace("{row}", row)
                runs.append(_plan_run(table, name, row, int(seed), scale, file))
        if table["kind"] == "neighbours":
            runs = [_beside_baseline(run, runs) for run in runs]
        yield from runs


def _beside_baseline(run: Run, runs: Sequence[Run]) -> Run:
    """A run whose output names the run of the baseline that it is compared with."""
    base = next((each for each in runs if each.label == run.baseline), None)
    if base is None:
        where = run.table["file"]
        raise UserError(f"{where}: kind neighbours needs a baseline that has a configuration")
    output = f"{run.folder}/neighbours_{Path(base.folder).name}.json"
    return replace(run, output=output)


def _fitting(row: str, values: Mapping[str, Any]) -> list[Any]:
    """Values whose keys are patterns that match a row, in order."""
    return [value for pattern, value in values.items() if fnmatchcase(row, pattern)]


def _plan_run(table: Any, column: str, row: str, seed: int, scale: Any, file: str) -> Run:
    where, metric = table["file"], table["columns"][column]["metric"]
    config = next((c for c in (CONFIGS / file, where.parent / file) if c.is_file()), None)
    if config is None:
        raise UserError(f"{where}: there is no configuration {file} below {CONFIGS}")
    changes = [*_fitting(row, table.get("flags", {})), *_fitting(row, scale.get("flags", {}))]
    flags = {flag: value for change in changes for flag, value in change.items()}
    flags = configurations.check_flags(f"{where}: flags: {row}", flags)
    if off := [flag for flag, value in flags.items() if value is None or value is False]:
        raise UserError(f"{where}: flags: {row}: no command line takes {off[0]} away")
    experiment = configurations.load_experiment(config)
    train = {**experiment.train, **flags}
    trained = json.dumps([train, experiment.senses], sort_keys=True).encode()
    name = str(config.relative_to(CONFIGS) if config.is_relative_to(CONFIGS) else config.name)
    name = re.sub(r"[^\w.-]", ".", name.removesuffix(".yaml")) + (f"_{row}" if flags else "")
    folder = f"cells/{scale['data']}/{name}-s{seed}-{hashlib.sha256(trained).hexdigest()[:6]}"
    output = _OUTPUTS.get(table["kind"]) or _OUTPUTS.get(metric, "generate-test.txt")
    return Run(
        table,
        column,
        row,
        seed,
        metric,
        config,
        flags=shlex.join(flag_arguments({**flags, "seed": str(seed)})),
        evaluation=shlex.join(flag_arguments({f: train[f] for f in _SHARED if f in train})),
        generation=experiment.generate,
        folder=folder,
        output=f"{folder}/{output}",
        data=table["data"][scale["data"]],
        prepared=f"data/{scale['data']}",
        minutes=round(float([0, *_fitting(row, scale.get("minutes", {}))][-1])),
    )


def select_runs(
    tables: Sequence[str],
    scale: str,
    corpora: str,
    work: str,
    only: Sequence[str] = (),
    finished: str = "",
) -> tuple[list[Run], list[str]]:
    """Select runs whose data exist, by the flags of ``scripts/reproduce_tables.sh``.

    With ``finished`` (not empty) only runs with an output are selected. Returns the runs, and a
    sentence about each missing data set. Unknown tables and patterns raise a UserError.
    """
    runs = [run for table in map(load_table, tables) for run in plan_runs(table, scale)]
    if not runs:
        raise UserError(f"{', '.join(tables)} has no --scale {scale}: give the other one")
    labels, wanted = [run.label for run in runs], set[str]()
    for pattern in only or ["*"]:
        matching = [label for label in labels if pattern in label or fnmatch(label, pattern)]
        if not matching:
            raise UserError(
                f"--only {pattern}: no run matches; labels are {', '.join(labels[:4])}, …"
            )
        wanted.update(matching)
    # what is counted beside the baseline needs its run
    wanted |= {r.baseline for r in runs if r.table["kind"] == "neighbours" and r.label in wanted}
    missing, selected = dict[str, str](), list[Run]()
    for run in (run for run in runs if run.label in wanted):
        if run.raw(corpora) is None and not Path(work, run.prepared, "bin").is_dir():
            folders = " or ".join(run.data["folders"])
            text = f"{run.prepared}: {corpora} has no {folders}. {run.data.get('missing', '')}"
            missing[run.prepared] = " ".join(text.split())
        elif not finished or Path(work, run.output).exists():
            selected.append(run)
    return selected, list(missing.values())


def write_figures(runs: Sequence[Run], path: str) -> None:
    """Write the metric, cost and p-value of each run as CSV.

    p is by the paired bootstrap against the baseline of the same column and seed. An output without
    a figure, or with another number of lines than the reference, raises a UserError.
    """
    from pandas import DataFrame

    figures = [_figures(run) for run in runs]
    for (run, row), base in product(zip(runs, figures), runs):
        same = (base.column, base.seed) == (run.column, run.seed)
        if same and run.metric in _ORDERS and base.row == run.table["baseline"] != run.row:
            systems, reference, bleu = [_texts(base), _texts(run)], *_reference(run)
            row["p"] = paired_bootstrap(systems, [reference], bleu)[1]["BLEU"][1].p_value
    DataFrame(figures).to_csv(path, index=False)


def _texts(run: Run) -> list[str]:
    return read_texts(Path(run.output), "H", run.data.get("language", "en"))


def _reference(run: Run) -> tuple[list[str], dict[str, Any]]:
    bleu = bleu_metric(_ORDERS.get(run.metric, 4), language=run.data.get("language", "en"))
    return read_lines(f"{run.prepared}/reference"), {"BLEU": bleu}


def _figures(run: Run) -> dict[str, Any]:
    log = Path(run.folder, "train.log").read_text("utf-8", "replace")
    walls = [int(text) for text in re.findall(r"\bwall[ =](\d+)", log)]  # restarts when resumed
    attempts = [now for now, later in zip(walls, [*walls[1:], 0]) if later < now]
    parameters = re.search(r"num\. shared model params: ([\d,]+)", log)
    loss = min(map(float, _VALID.findall(log)), default=None)
    value, signature, length_ratio = loss, None, None
    if run.metric == "mixture_variance":
        # of the checkpoint that the other figures are about; none if the model is no mixture
        found = [(float(nll), float(variance)) for nll, variance in _VARIANCE.findall(log)]
        value = 100 * min(found)[1] if found else None
    elif run.metric == "perplexity":
        printed = _PERPLEXITY.findall(Path(run.output).read_text("utf-8"))
        value = float(printed[-1]) if printed else None
    elif run.metric in _ORDERS:
        (reference, bleu), texts = _reference(run), _texts(run)
        check_parallel({run.output: texts, f"{run.prepared}/reference": reference})
        (score,) = corpus_scores(texts, [reference], bleu)
        value, signature = score.score, f"{score.signature}|order:{_ORDERS[run.metric]}"
        length_ratio = score.length_ratio
    if value is None:
        raise UserError(f"{run.output} has no figure; see the logs beside it")
    return {name: getattr(run, name) for name in ("column", "row", "seed")} | {
        "value": value,
        "p": None,
        "signature": signature,
        "valid_loss": loss,
        "parameters": int(parameters[1].replace(",", "")) if parameters else None,
        "minutes": sum(attempts) / 60,
        "processor_minutes": _processor_minutes(Path(run.folder, "processor_time.txt")),
        "length_ratio": length_ratio,
        "run": run.folder,
    }


def _processor_minutes(path: Path) -> float | None:
    """Processor time of a training, or None if a part of it was not measured.

    ``scripts/Snakefile`` writes a line at the start of every attempt, and the user and system time
    in seconds at its end. An attempt that was killed has no second line.
    """
    if not path.is_file():
        return None
    lines = read_lines(path)
    ended = [line for line in lines if line != "started"]
    if not ended or len(ended) != lines.count("started"):
        return None
    return sum(float(seconds) for line in ended for seconds in line.split()) / 60


def has_ratings(table: Mapping[str, Any]) -> bool:
    """Whether a table has a column of people's scores."""
    return any(column["metric"] == "human" for column in table["columns"].values())


def rated_rows(table: Mapping[str, Any]) -> list[str]:
    """Rows whose answers people judged in the paper."""
    columns = table["columns"].values()
    judged = [row for c in columns if c["metric"] == "human" for row in c.get("paper", ())]
    return list(dict.fromkeys(judged))


def check_ratings(path: Path, tables: Sequence[Mapping[str, Any]]) -> None:
    """Raise a UserError unless a file has people's scores of systems that are rows of a table."""
    rated = [table for table in tables if has_ratings(table)]
    if not rated:
        raise UserError(
            f"--human {path}: no table that is to be made has a column of people's scores; add "
            "--table 1, and see which files are missing in --corpora"
        )
    result = read_ratings(path)
    for table in rated:
        ratings_by_row(path, result, table["rows"])


def write_table(
    runs: Sequence[Run], scale: str, figures: str, path: str, ratings: str = ""
) -> None:
    """Write the table of the runs as Markdown.

    Args:
        runs: runs of the table.
        scale: "full" or "small".
        figures: CSV file of :func:`write_figures`. Not read for a table of texts.
        path: file to write.
        ratings: JSON file of people's scores, if there is one.
    """
    from pandas import read_csv

    table = runs[0].table
    lines = [f"# {table['title']}", "", f"{table['source']}, {scale} scale.", ""]
    for name, column in table["columns"].items():
        of_column = [run for run in runs if run.column == name]
        title = column.get("title", name)
        if column["metric"] == "human":
            lines += [f"## {title}: {_METRICS['human']}", ""]
            lines += [*_ratings_section(table, column, ratings), ""]
        elif table["kind"] == "figures":
            lines += [f"## {title}: {_METRICS[column['metric']]}", ""]
            values = read_csv(figures).query("column == @name")
            lines += [*_section(table, column, column.get(scale), values), ""]
        elif table["kind"] == "senses":
            for run in of_column:
                lines += [f"## {title}, {table['rows'][run.row]}, seed {run.seed}", ""]
                lines += [Path(run.output).read_text("utf-8")]
        elif table["kind"] == "neighbours" and of_column:
            for seed in sorted({run.seed for run in of_column}):
                of_seed = [run for run in of_column if run.seed == seed]
                lines += [f"## {title}, seed {seed}", "", *_confusions(of_seed), ""]
            notes = column.get("note", ""), _data_and_seeds(column[scale])
            lines += [*(f"- {note}" for note in notes if note), ""]
        elif of_column:
            lines += [f"## {title}", "", *_examples(of_column)]
    file, name = table["file"], table["name"].removeprefix("table")
    name = name if file.parent == TABLES else file.name
    command = f"scripts/reproduce_tables.sh --table {name} --scale {scale}"
    if ratings and has_ratings(table):
        command += f" --human {Path(ratings).name}"
    lines.append(f"Made with `{command}`")
    cpu, revision = describe_machine("cpu"), describe_versions()["revision"]
    lines.append(f"at git revision {revision}, on {cpu['usable_cores']} cores of {cpu['cpu']}.")
    write_lines(Path(path), lines)


def _section(table: Any, column: Any, scale: Any, figures: Any) -> list[str]:
    """Table of a column, with notes."""
    from pandas import DataFrame, Series

    rows, base, metric = table["rows"], table["baseline"], column["metric"]
    groups, form = figures.groupby("row"), ".3f" if metric == "valid_loss" else ".2f"
    paper = Series(column.get("paper", {}), dtype=float)

    def mean_and_deviation(key: str, form: str) -> Any:
        return groups[key].agg(
            lambda v: f"{v.mean():{form}}" + (f" ± {v.std():{form}}" if len(v) > 1 else "")
        )

    def gain(values: Any) -> Any:
        others = values.drop(base, errors="ignore") - values.get(base, float("nan"))
        return others.dropna().map(f"{{:+{form}}}".format)

    cells = {"system": Series(rows), f"{_METRICS[metric]}, ours": mean_and_deviation("value", form)}
    cells["n"] = groups.size().map(str)
    if len(paper):
        cells["paper"] = paper.map("{:g}".format)
    if base:
        cells[f"ours − {rows[base]}"] = gain(groups["value"].mean())
        cells |= {f"paper's − {rows[base]}": gain(paper)} if len(paper) else {}
    if metric in _ORDERS:
        cells["p"] = groups["p"].agg(lambda ps: ", ".join(f"{p:.3f}" for p in ps.dropna()))
    notes = [column.get("note", ""), "" if scale else "Not trained at this scale."]
    if scale:
        cells["best valid nll (bits)"] = mean_and_deviation("valid_loss", ".3f")
        cells["parameters"] = groups["parameters"].first().map("{:,.0f}".format)
        cells["training min"] = groups["minutes"].mean().map("{:.1f}".format)
        if base:
            cells["time ÷ " + rows[base]] = _time_ratios(figures, base)
        notes.append(_data_and_seeds(scale))
    if metric == "bleu1":
        cells["length ÷ reference"] = mean_and_deviation("length_ratio", ".2f")
    frame = DataFrame(cells).reindex(rows)
    frame = frame[frame.index.isin([*figures["row"], *paper.index])].fillna("")
    controls = frame.index.isin(table["controls"])
    notes += [f"Signature `{text}`." for text in figures["signature"].dropna().unique()]
    if figures["p"].notna().any():
        notes.append(
            f"p: paired bootstrap of sacreBLEU, {SAMPLES} samples, two-sided, against {rows[base]} "
            "of the same seed, in the order of the seeds."
        )
    if base and figures["processor_minutes"].notna().any():
        notes.append(
            f"Time ÷ {rows[base]}: processor time of the training, mean over the seeds that were "
            "trained without an interruption."
        )
    markdown = frame[~controls].to_markdown(index=False, disable_numparse=True)
    lines = [markdown, ""]
    if controls.any():
        below = frame[controls].drop(columns=["paper", f"paper's − {rows[base]}"], errors="ignore")
        lines += ["Controls, which the paper does not have:", ""]
        lines += [below.to_markdown(index=False, disable_numparse=True), ""]
    return [*lines, *(f"- {note}" for note in notes if note)]


def _time_ratios(figures: Any, baseline: str) -> Any:
    """Processor time of the rows in units of the baseline's, as text."""
    minutes = figures.dropna(subset="processor_minutes").groupby("row")["processor_minutes"].mean()
    if baseline not in minutes:
        return minutes.iloc[:0].astype(str)
    return (minutes / minutes[baseline]).map("{:.2f}".format)


def _data_and_seeds(scale: Any) -> str:
    seeds = ", ".join(scale.get("seeds", ["1"]))
    return f"Data {scale['data']}; seeds {seeds}. {scale.get('note', '')}".rstrip()


def _confusions(runs: Sequence[Run]) -> list[str]:
    """What the systems of a column predict in clusters of similar words, for one seed."""
    table = runs[0].table
    results = {table["rows"][run.row]: confusable.read_result(Path(run.output)) for run in runs}
    return confusable.confusable_words(results, table["rows"][table["baseline"]])


def _ratings_section(table: Any, column: Any, ratings: str) -> list[str]:
    """Table of people's scores beside the paper's, with notes."""
    from pandas import DataFrame, Series

    rows, base, paper = table["rows"], table["baseline"], column.get("paper", {})
    result = read_ratings(Path(ratings)) if ratings else None
    figures = ratings_by_row(Path(ratings), result, rows) if result else {}

    def cells(key: str, form: str) -> Any:
        values = {row: system[key] for row, system in figures.items() if system[key] is not None}
        return Series({row: f"{value:{form}}" for row, value in values.items()}, dtype=object)

    def gain(values: Mapping[str, float]) -> Any:
        others = [row for row in values if row != base and base in values]
        return Series({row: f"{values[row] - values[base]:+.2f}" for row in others}, dtype=object)

    means = {row: system["mean"] for row, system in figures.items()}
    scores = {row: float(value) for row, value in paper.items()}
    frame = DataFrame(
        {
            "system": Series(rows),
            f"{_METRICS['human']}, ours": cells("mean", ".2f"),
            "deviation": cells("deviation", ".2f"),
            "scores": cells("n", "d"),
            "paper": Series({row: f"{score:g}" for row, score in scores.items()}, dtype=object),
            f"ours − {rows.get(base, base)}": gain(means),
            f"paper's − {rows.get(base, base)}": gain(scores),
            "p": cells("p", ".4f"),
        }
    )
    frame = frame.reindex(row for row in rows if row in means or row in scores).fillna("")
    notes = [column.get("note", "")]
    if result is None:
        notes.append(
            "Nobody has scored answers: --human takes what 'fairseq-kerbs human-eval score --json' "
            "writes."
        )
    else:
        notes += [f"{agreement_sentence(result)}.", f"{significance_sentence(result)}."]
        if missing := [rows[row] for row in scores if row not in means]:
            notes.append(f"Without scores: {', '.join(missing)}.")
    markdown = frame.to_markdown(index=False, disable_numparse=True)
    return [markdown, "", *(f"- {note}" for note in notes if note)]


def _examples(runs: Sequence[Run]) -> list[str]:
    """Outputs of the first seed, for lines where systems differ and for the largest gains."""
    first, table = runs[0], runs[0].table
    answers = {table["rows"][run.row]: _texts(run) for run in runs if run.seed == first.seed}
    language = first.data.get("source_language", "en")
    texts = read_texts(Path(first.output), "S", language), _reference(first)[0], answers
    base, lines = table["rows"].get(table["baseline"]), list[str]()
    rules: tuple[examples.Choice, ...] = ("differing", "best")
    for rule in rules if len(answers) > 1 else ():
        chosen = examples.side_by_side(*texts, rule, 5, first.seed, baseline=base)
        lines += [examples.rule_text(chosen, len(texts[0]), rule, first.seed), ""]
        lines.append(examples.as_markdown(chosen))
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Run Snakemake, and return its status, or 1 if data are missing."""
    parser = argparse.ArgumentParser(
        prog="scripts/reproduce_tables.sh",
        description="Reproduce the papers' tables with Snakemake, from data to tables. Finished "
        "steps are not repeated. A failed run does not stop the others.",
        epilog="Other flags are passed to Snakemake: --profile configs/snakemake/slurm submits "
        "jobs to a cluster, --forcerun generate repeats a step.",
    )
    add = parser.add_argument
    text = (
        f"{', '.join(NAMES)}, or all of these; our comparison of output layers and searches on "
        f"validation data, {', '.join(OTHERS)}; "
        "or a file with a description. Repeat the flag for several tables [all]"
    )
    add("--table", action="append", metavar="TABLE", help=text)
    text = "full: the papers' sizes. small: runs of at most 95 minutes on one core [%(default)s]"
    add("--scale", choices=("full", "small"), default="small", help=text)
    for name, folder, text in (
        ("--corpora", "data", "folder of raw corpora, see configs/tables/data.yaml"),
        ("--work", "runs/tables", "folder of prepared data, checkpoints and logs"),
        ("--results", "results/tables", "output folder of the tables"),
    ):
        add(name, type=Path, default=Path(folder), metavar="DIR", help=f"{text} [%(default)s]")
    text = "people's scores for Table 1, which 'fairseq-kerbs human-eval score --json' wrote. Its "
    text += "systems have the names of rows: softmax, mos, kerbs [none]"
    add("--human", type=Path, metavar="SCORES.json", help=text)
    text = "number of parallel runs with cores/N threads each, or of jobs on a cluster [1]"
    add("--jobs", type=int, metavar="N", help=text)
    text = "use only runs whose label, such as table2/mt/kerbs/s1, contains or matches PATTERN"
    add("--only", action="append", default=[], metavar="PATTERN", help=text)
    add("--dry-run", action="store_true", help="print every command with estimated minutes")
    add("--report-only", action="store_true", help="write tables from finished runs only")
    args, extra = parser.parse_known_args(arguments)
    try:
        return _run_snakemake(args, extra)
    except (UserError, ModuleNotFoundError) as error:
        if not (sentence := sentence_of(error)):
            raise
        parser.exit(2, f"reproduce_tables.sh: error: {sentence}\n")


def _run_snakemake(args: argparse.Namespace, extra: Sequence[str]) -> int:
    names = [n for name in args.table or ["all"] for n in (NAMES if name == "all" else [name])]
    tables = [str(Path(n).absolute()) if n.endswith(".yaml") else n for n in names]
    selection: dict[str, Any] = {"tables": tables, "scale": args.scale, "only": args.only}
    selection |= {name: str(getattr(args, name).absolute()) for name in ("corpora", "work")}
    selection["finished"] = "yes" if args.report_only else ""
    runs, missing = select_runs(**selection)
    if args.human is not None:
        check_ratings(args.human, [run.table for run in runs])
    planned = {r.folder: r.minutes for r in runs if not (args.work / r.folder / "trained").exists()}
    count, hours = len({run.folder for run in runs}), sum(planned.values()) / 60
    unknown = list(planned.values()).count(0)
    text = f"{count} runs, {len(planned)} to train, estimated {hours:.1f} h in sequence"
    text += f" without {unknown} of unknown length" if unknown else ""
    print(*missing, text, sep="\n", flush=True)
    if not runs:
        raise UserError("there is no run to train or to report")
    jobs, cores = args.jobs or 1, usable_cores()
    lock = None if args.dry_run else lock_folder(args.work)
    command = [sys.executable, "-P", "-m", "snakemake", "--quiet", "host"]
    command += ["--snakefile", str(PLUGIN_FOLDER.parent / "scripts" / "Snakefile")]
    command += ["--directory", str(args.work), "--keep-going", "--rerun-incomplete"]
    command += ["--rerun-triggers", "mtime", "input", "params", "--scheduler", "greedy"]
    config = [f"selection={json.dumps(selection)}", f"threads={max(1, cores // jobs)}"]
    if args.human is not None:
        config.append(f"human={json.dumps(str(args.human.absolute()))}")
    command += ["--config", *config, f"results={args.results.absolute()}"]
    if not any(word.startswith(("--profile", "--executor", "-e")) for word in extra):
        command += ["--cores", str(max(cores, jobs))]
    elif args.jobs:
        command += ["--jobs", str(jobs)]
    command += ["--dry-run", "--printshellcmds"] * args.dry_run
    command += ["--allowed-rules", "all", "score", "sheets", "table"] * args.report_only
    # the folder has a lock of ours, which does not outlive a killed run, as Snakemake's does
    command += ["--nolock"]
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with lock or nullcontext(), Progress(runs, args.work, jobs, shown=lock is not None):
        return run_program([*command, *extra], keep_open=lock) or int(bool(missing))


def lock_folder(work: Path) -> IO[str]:
    """Lock the folder of ``--work`` as long as this process or one that inherits the file runs.

    A UserError is raised if another run has it. The lock ends with its processes, also if these
    were killed.
    """
    work.mkdir(parents=True, exist_ok=True)
    file = (work / "lock").open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise UserError(
            f"--work {work} is in use by another reproduce_tables.sh; wait until it has ended, or "
            "name another folder. After a kill it first ends the trainings that have begun"
        ) from None
    return file


class Progress:
    """Prints how many runs are trained, and about how long the others will take.

    The planned minutes are corrected by those of the runs that ended since this one began.
    """

    EVERY = 5.0  # seconds between two looks at the folder

    def __init__(self, runs: Sequence[Run], work: Path, jobs: int, shown: bool = True) -> None:
        self.minutes = {run.folder: run.minutes for run in runs}
        self.work, self.jobs = work, jobs
        self.started = time.monotonic()
        self.before = self._trained()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True) if shown else None

    def __enter__(self) -> None:
        if self._thread is not None:
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def sentence(self) -> str:
        """The number of trained runs, and the time that the others will take."""
        trained = self._trained()
        left = self.minutes.keys() - trained
        hours = sum(self.minutes[folder] for folder in left) / 60
        planned = sum(self.minutes[folder] for folder in trained - self.before) / 60
        if planned:
            passed = (time.monotonic() - self.started) / 3600
            hours *= self.jobs * passed / planned
        count = f"{len(trained)} of {len(self.minutes)} runs are trained"
        return f"{count}, about {hours / self.jobs:.1f} h left" if left else count

    def _trained(self) -> set[str]:
        return {folder for folder in self.minutes if (self.work / folder / "trained").exists()}

    def _watch(self) -> None:
        count = len(self.before)
        while not self._ended.wait(self.EVERY):
            if len(self._trained()) != count:
                count = len(self._trained())
                print(self.sentence(), flush=True)


if __name__ == "__main__":
    sys.exit(main())
