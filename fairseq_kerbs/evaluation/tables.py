"""The papers' tables: what ``scripts/reproduce_tables.sh`` and ``scripts/Snakefile`` call."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq_kerbs.evaluation import examples
from fairseq_kerbs.evaluation.bleu import SAMPLES, bleu_metric, corpus_scores, paired_bootstrap
from fairseq_kerbs.evaluation.runs import NAMES, TABLES, Run, select_runs
from fairseq_kerbs.evaluation.texts import read_texts
from fairseq_kerbs.utils.errors import UserError, sentence_of
from fairseq_kerbs.utils.files import atomic_write, read_lines
from fairseq_kerbs.utils.machine import describe_machine, describe_versions
from fairseq_kerbs.utils.processes import PLUGIN_FOLDER, run_program, usable_cores

if TYPE_CHECKING:
    from pandas import DataFrame, Series
    from sacrebleu.metrics.bleu import BLEU

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
