"""The papers' tables: what ``scripts/reproduce_tables.sh`` and ``scripts/Snakefile`` call.

A table is made of runs, by its description in ``configs/tables``; ``schema.yaml`` there explains
it. Paths of what is made are relative to the folder of ``--work``, in which Snakemake runs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch, fnmatchcase
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_kerbs import configurations
from fairseq_kerbs.configurations import CONFIGS, Flags, flag_arguments
from fairseq_kerbs.evaluation import examples
from fairseq_kerbs.evaluation.bleu import SAMPLES, bleu_metric, corpus_scores, paired_bootstrap
from fairseq_kerbs.evaluation.texts import read_texts
from fairseq_kerbs.utils.errors import UserError, sentence_of
from fairseq_kerbs.utils.files import atomic_write, read_lines
from fairseq_kerbs.utils.machine import describe_machine, describe_versions
from fairseq_kerbs.utils.processes import PLUGIN_FOLDER, run_program, usable_cores

if TYPE_CHECKING:
    from pandas import DataFrame, Series
    from sacrebleu.metrics.bleu import BLEU

TABLES = CONFIGS / "tables"
NAMES = ("1", "2", "3", "4", "5", "6", "gao1", "gao3", "layers")
"""What ``--table all`` stands for."""

_OUTPUTS = {"senses": "words.md", "perplexity": "perplexity.txt", "valid_loss": "trained"}
_SHARED = ("task", "sample-break-mode", "tokens-per-sample")  # flags of training and eval-lm


@dataclass(frozen=True)
class Run:
    """A training and what is made of it, at its place in a table.

    Its folder is named by what is trained: tables share it, and a changed description has another.
    """

    table: Mapping[str, Any]
    column: str
    row: str
    seed: int
    metric: str
    config: Path
    flags: str  # what the row and the seed add to the command line of the training
    evaluation: str  # flags of fairseq-eval-lm that the training has, too
    generation: Flags
    folder: str
    output: str  # the file that the table needs
    data: Mapping[str, Any]
    prepared: str  # the folder of the data
    minutes: int  # planned, 0 if unknown

    @property
    def label(self) -> str:
        """What ``--only`` is matched against."""
        return f"{self.table['name']}/{self.column}/{self.row}/s{self.seed}"

    def raw(self, corpora: str) -> Path | None:
        """The raw text of the data, None if it is not there."""
        places = (Path(corpora, folder) for folder in self.data["folders"])
        return next((place for place in places if place.exists()), None)

    def preparation(self, raw: Path) -> str:
        """The command that prepares the data."""
        text = self.data["prepare"].replace("{raw}", shlex.quote(str(raw)))
        return str(text.replace("{dest}", self.prepared))


def load_table(name: str) -> dict[str, Any]:
    """The description of a name in ``configs/tables``, or of a path that ends in .yaml. Raises a
    UserError if there is none, or it does not fit the schema or names what is not there."""
    import jsonschema

    path = TABLES / (f"table{name}.yaml" if name.isdigit() else f"{name}.yaml")
    if name.endswith(".yaml"):
        path = Path(name)
    elif not path.is_file() or name in ("data", "schema"):
        raise UserError(f"--table {name}: there is {', '.join(NAMES)}, all, or a FILE.yaml")
    table, shared = configurations.read_yaml(path), path.parent / "data.yaml"
    known = configurations.read_yaml(shared) if shared.is_file() else {}
    table["data"] = {**known, **table.get("data", {})}
    try:
        jsonschema.validate(table, configurations.read_yaml(TABLES / "schema.yaml"))
    except jsonschema.ValidationError as error:
        raise UserError(f"{path}: {error.json_path}: {error.message}") from None
    rows = [*table.get("flags", ()), *filter(None, [table.get("baseline")])]
    for column in table["columns"].values():
        rows += column.get("paper", ())
        for scale in (column[each] for each in ("full", "small") if each in column):
            rows += [row for key in ("configs", "flags", "minutes") for row in scale.get(key, ())]
            if scale["data"] not in table["data"]:
                raise UserError(f"{path}: unknown data set {scale['data']!r}")
    for row in rows:
        if not any(fnmatchcase(each, row) for each in table["rows"]):
            raise UserError(f"{path}: {row!r} is none of the rows {', '.join(table['rows'])}")
    defaults = {"kind": "figures", "baseline": "", "source": "Own table"}
    return {**defaults, **table, "file": path, "name": path.stem}


def plan_runs(table: Mapping[str, Any], scale_name: str) -> Iterator[Run]:
    """The runs of a table at a scale, all rows of a seed before the next; a UserError if a
    configuration or flag cannot be."""
    for name, column in table["columns"].items():
        scale = column.get(scale_name, {})
        for seed, row in product(scale.get("seeds", ["1"]), table["rows"] if scale else ()):
            files = [scale.get("config"), *_fitting(row, scale.get("configs", {}))]
            if files[-1]:
                yield _plan_run(table, name, row, int(seed), scale, files[-1])


def _fitting(row: str, values: Mapping[str, Any]) -> list[Any]:
    """The values whose keys are a row, or patterns that it fits, in their order."""
    return [value for pattern, value in values.items() if fnmatchcase(row, pattern)]


def _plan_run(
    table: Mapping[str, Any], column: str, row: str, seed: int, scale: Mapping[str, Any], file: str
) -> Run:
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
        *(table, column, row, seed, metric, config),
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
    tables: Sequence[str], scale: str, corpora: str, work: str,
    only: Sequence[str] = (), finished: str = "",
) -> tuple[list[Run], list[str]]:  # fmt: skip
    """The runs of tables that `only` selects and whose data are there or can be prepared, with
    `finished` only those that have been made; and a sentence on each data set that is missing.

    Raises a UserError if a table or pattern is unknown, or a description is wrong.
    """
    runs = [run for table in map(load_table, tables) for run in plan_runs(table, scale)]
    labels, wanted = [run.label for run in runs], set[str]()
    for pattern in only or ["*"]:
        matching = [label for label in labels if pattern in label or fnmatch(label, pattern)]
        if not matching:
            called = ", ".join(labels[:4])
            raise UserError(f"--only {pattern}: no run matches; they are called {called}, …")
        wanted.update(matching)
    missing, there = dict[str, str](), list[Run]()
    for run in (run for run in runs if run.label in wanted):
        if run.raw(corpora) is None and not Path(work, run.prepared, "bin").is_dir():
            folders = " or ".join(run.data["folders"])
            text = f"{run.prepared}: {corpora} has no {folders}. {run.data.get('missing', '')}"
            missing[run.prepared] = " ".join(text.split())
        elif not finished or Path(work, run.output).exists():
            there.append(run)
    return there, list(missing.values())


# ------------------------------------------------------------------ figures and tables

_METRICS = {
    "bleu4": "BLEU-4",
    "bleu1": "BLEU-1",
    "perplexity": "perplexity (lower is better)",
    "valid_loss": "best validation loss (bits, lower is better)",
    "human": "human score",
}
_ORDERS = {"bleu4": 4, "bleu1": 1}
_PARAMETERS = re.compile(r"num\. shared model params: ([\d,]+)")
_VALID = re.compile(r"\| valid \|.*?(?:\| nll_loss|\| loss(?!.*\| nll_loss)) ([0-9.]+) ")
_WALL = re.compile(r"\bwall[ =](\d+)")
_PERPLEXITY = re.compile(r"Loss \(base 2\): .+, Perplexity: ([0-9.]+|inf|nan)")


def write_figures(runs: Sequence[Run], path: str) -> None:
    """Figures of a table's runs as CSV: the metric as ``value`` with its ``signature``; ``p`` of
    the paired bootstrap against the baseline of the same column and seed; and what the training
    took. Raises a UserError if an output has no figure, or not one hypothesis a reference."""
    from pandas import DataFrame

    figures = [_figures(run) for run in runs]
    for (run, row), base in product(zip(runs, figures), runs):
        same = (base.column, base.seed) == (run.column, run.seed)
        if same and run.metric in _ORDERS and base.row == run.table["baseline"] != run.row:
            systems, metrics = [_texts(base), _texts(run)], {"BLEU": _bleu(run)}
            row["p"] = paired_bootstrap(systems, [_reference(run)], metrics)[1]["BLEU"][1].p_value
    DataFrame(figures).to_csv(path, index=False)


def _texts(run: Run) -> list[str]:
    return read_texts(Path(run.output), "H", run.data.get("language", "en"))


def _reference(run: Run) -> list[str]:
    return read_lines(f"{run.prepared}/reference")


def _bleu(run: Run) -> BLEU:
    return bleu_metric(_ORDERS[run.metric], language=run.data.get("language", "en"))


def _figures(run: Run) -> dict[str, Any]:
    log = Path(run.folder, "train.log").read_text("utf-8", "replace")
    walls = [int(seconds) for seconds in _WALL.findall(log)]  # falls where an attempt begins
    attempts = [now for now, later in zip(walls, [*walls[1:], 0]) if later < now]
    parameters, loss = _PARAMETERS.search(log), min(map(float, _VALID.findall(log)), default=None)
    value, signature = loss, None
    if run.metric == "perplexity":
        printed = _PERPLEXITY.findall(Path(run.output).read_text("utf-8"))
        value = float(printed[-1]) if printed else None
    elif run.metric in _ORDERS:
        (score,) = corpus_scores(_texts(run), [_reference(run)], {"BLEU": _bleu(run)})
        value, signature = score.score, f"{score.signature}|order:{_ORDERS[run.metric]}"
    if value is None:
        raise UserError(f"{run.output} has no figure; see the logs beside it")
    return {
        "column": run.column,
        "row": run.row,
        "seed": run.seed,
        "value": value,
        "p": None,
        "signature": signature,
        "valid_loss": loss,
        "parameters": int(parameters[1].replace(",", "")) if parameters else None,
        "minutes": sum(attempts) / 60,
        "run": run.folder,
    }


def write_table(runs: Sequence[Run], scale: str, figures: str, path: str) -> None:
    """The table of runs as Markdown: of their figures in a CSV file or, by its kind, of texts."""
    from pandas import read_csv

    table = runs[0].table
    lines = [f"# {table['title']}", "", f"{table['source']}, {scale} scale.", ""]
    for name, column in table["columns"].items():
        shown = [run for run in runs if run.column == name]
        title = column.get("title", name)
        if table["kind"] == "figures":
            lines += [f"## {title}: {_METRICS[column['metric']]}", ""]
            of_column = read_csv(figures).query("column == @name")
            lines += [*_section(table, column, column.get(scale), of_column), ""]
        elif table["kind"] == "senses":
            for run in shown:
                lines += [f"## {title}, {table['rows'][run.row]}, seed {run.seed}", ""]
                lines += [Path(run.output).read_text("utf-8")]
        elif shown:
            lines += [f"## {title}", "", *_examples(shown)]
    own_file, name = table["file"].parent != TABLES, table["name"].removeprefix("table")
    given = table["file"].name if own_file else name
    lines.append(f"Made with `scripts/reproduce_tables.sh --table {given} --scale {scale}`")
    cpu, revision = describe_machine("cpu"), describe_versions()["revision"]
    lines.append(f"at git revision {revision}, on {cpu['usable_cores']} cores of {cpu['cpu']}.")
    with atomic_write(path) as stream:
        stream.write("\n".join(lines) + "\n")


def _section(
    table: Mapping[str, Any], column: Mapping[str, Any], scale: Any, figures: DataFrame
) -> list[str]:
    """A column as a table, with how it was made below."""
    from pandas import DataFrame, Series

    rows, base, metric = table["rows"], table["baseline"], column["metric"]
    groups, form = figures.groupby("row"), ".3f" if metric == "valid_loss" else ".2f"
    paper = Series(column.get("paper", {}), dtype=float)

    def spread(key: str, form: str) -> Series[str]:
        def text(values: Series[float]) -> str:
            deviation = f" ± {values.std():{form}}" if len(values) > 1 else ""
            return f"{values.mean():{form}}{deviation}"

        return groups[key].agg(text)

    def gain(values: Series[float]) -> Series[str]:
        others = values.drop(base, errors="ignore") - values.get(base, math.nan)
        return others.dropna().map(f"{{:+{form}}}".format)

    cells = {"system": Series(rows), f"{_METRICS[metric]}, ours": spread("value", form)}
    cells["n"] = groups.size().map(str)
    if len(paper):
        cells["paper"] = paper.map("{:g}".format)
    if base:
        cells[f"ours − {rows[base]}"] = gain(groups["value"].mean())
        cells |= {f"paper's − {rows[base]}": gain(paper)} if len(paper) else {}
    if metric in _ORDERS:
        cells["p"] = groups["p"].agg(lambda ps: ", ".join(f"{p:.3f}" for p in ps.dropna()))
    if scale:
        cells["best valid nll (bits)"] = spread("valid_loss", ".3f")
        cells["parameters"] = groups["parameters"].first().map("{:,.0f}".format)
        cells["training min"] = groups["minutes"].mean().map("{:.1f}".format)
    shown = DataFrame(cells).reindex(rows)
    shown = shown[shown.index.isin([*figures["row"], *paper.index])].fillna("")
    notes = [column.get("note", ""), "" if scale else "Not trained at this scale."]
    if scale:
        seeds = ", ".join(scale.get("seeds", ["1"]))
        notes.append(f"Data {scale['data']}; seeds {seeds}. {scale.get('note', '')}".rstrip())
    notes += [f"Signature `{each}`." for each in figures["signature"].dropna().unique()]
    if figures["p"].notna().any():
        notes.append(
            f"p: paired bootstrap of sacreBLEU, {SAMPLES} samples, two-sided, against {rows[base]} "
            "of the same seed, in the order of the seeds."
        )
    text = shown.to_markdown(index=False, disable_numparse=True)
    return [text, "", *(f"- {note}" for note in notes if note)]


def _examples(runs: Sequence[Run]) -> list[str]:
    """Translations of the first seed side by side, as two rules choose them: drawn from the lines
    where the systems differ most, and the largest gains of the last system over the baseline."""
    first, table = runs[0], runs[0].table
    answers = {table["rows"][run.row]: _texts(run) for run in runs if run.seed == first.seed}
    language = first.data.get("source_language", "en")
    texts = read_texts(Path(first.output), "S", language), _reference(first), answers
    base, lines = table["rows"].get(table["baseline"]), list[str]()
    rules: tuple[examples.Choice, ...] = ("differing", "best")
    for rule in rules if len(answers) > 1 else ():
        chosen = examples.side_by_side(*texts, rule, 5, first.seed, baseline=base)
        lines += [examples.rule_text(chosen, len(texts[0]), rule, first.seed), ""]
        lines.append(examples.as_markdown(chosen))
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """``scripts/reproduce_tables.sh``: run Snakemake; its status, or 1 if data are missing."""
    parser = argparse.ArgumentParser(
        prog="scripts/reproduce_tables.sh",
        description="Reproduce the papers' tables with Snakemake: prepare data, train, generate, "
        "score and write the tables. Finished steps are not repeated. A failed run does not stop "
        "the others.",
        epilog="Other flags are passed to Snakemake: --profile configs/snakemake/slurm submits "
        "jobs to a cluster, --forcerun generate repeats a step, --unlock is for use after a crash.",
    )
    add = parser.add_argument
    text = "table, or file with a description. Repeat the flag for several tables [all]"
    add("--table", action="append", metavar="1|2|3|4|5|6|gao1|gao3|layers|all|FILE", help=text)
    text = "full: the papers' sizes. small: runs of at most 90 minutes on two cores [%(default)s]"
    add("--scale", choices=("full", "small"), default="small", help=text)
    for name, folder, text in (
        ("--corpora", "data", "folder of raw corpora, see configs/tables/data.yaml"),
        ("--work", "runs/tables", "folder of prepared data, checkpoints and logs"),
        ("--results", "results/tables", "output folder of the tables"),
    ):
        add(name, type=Path, default=Path(folder), metavar="DIR", help=f"{text} [%(default)s]")
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
    names = [n for given in args.table or ["all"] for n in (NAMES if given == "all" else [given])]
    selection = {
        "tables": [str(Path(n).absolute()) if n.endswith(".yaml") else n for n in names],
        "scale": args.scale,
        "corpora": str(args.corpora.absolute()),
        "work": str(args.work.absolute()),
        "only": args.only,
        "finished": "yes" if args.report_only else "",
    }
    runs, missing = select_runs(**selection)
    planned = {r.folder: r.minutes for r in runs if not (args.work / r.folder / "trained").exists()}
    print(
        *missing,
        f"{len({run.folder for run in runs})} runs, {len(planned)} to train; planned: "
        f"{sum(planned.values()) / 60:.1f} h, one after the other",
        sep="\n",
        flush=True,
    )
    if not runs:
        raise UserError("there is no run to make or to show")
    jobs, cores = args.jobs or 1, usable_cores()
    config = {"selection": json.dumps(selection), "results": args.results.absolute()}
    config |= {"threads": max(1, cores // jobs)}
    command = [sys.executable, "-P", "-m", "snakemake", "--quiet", "host"]
    command += ["--snakefile", str(PLUGIN_FOLDER.parent / "scripts" / "Snakefile")]
    command += ["--directory", str(args.work), "--keep-going", "--rerun-incomplete"]
    command += ["--rerun-triggers", "mtime", "input", "params", "--scheduler", "greedy"]
    command += ["--config", *(f"{key}={value}" for key, value in config.items())]
    if not any(word.startswith(("--profile", "--executor", "-e")) for word in extra):
        command += ["--cores", str(max(cores, jobs))]
    elif args.jobs:
        command += ["--jobs", str(jobs)]
    command += ["--dry-run", "--printshellcmds"] * args.dry_run
    command += ["--allowed-rules", "all", "score", "table"] * args.report_only
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return run_program([*command, *extra]) or int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
