"""Tables as Markdown: figures, examples, words by number of senses, and people's scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq_kerbs.data.prepare import write_lines
from fairseq_kerbs.evaluation import examples
from fairseq_kerbs.evaluation.bleu import SAMPLES
from fairseq_kerbs.evaluation.ratings import (
    agreement_sentence,
    ratings_by_row,
    read_ratings,
    significance_sentence,
)
from fairseq_kerbs.evaluation.texts import read_texts
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.machine import cpu_name, revision_of
from fairseq_kerbs.utils.processes import PLUGIN_FOLDER, usable_cores
from scripts.tables import confusable
from scripts.tables.descriptions import TABLES, Run, has_ratings
from scripts.tables.figures import ORDERS, reference_of, texts_of

_METRICS = {
    "bleu4": "BLEU-4",
    "bleu1": "BLEU-1",
    "perplexity": "perplexity (lower is better)",
    "valid_loss": "best validation loss (bits, lower is better)",
    "mixture_variance": "variance of the mixture weights (× 100)",
    "human": "human score",
}


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
        elif table["kind"] == "figures" and scale in column:
            lines += [f"## {title}: {_METRICS[column['metric']]}", ""]
            values = read_csv(figures).query("column == @name")
            lines += [*_section(table, column, column[scale], values), ""]
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
    file = table["file"]
    name = table["name"].removeprefix("table")
    name = name if file.parent == TABLES else file.name
    command = f"scripts/reproduce_tables.sh --table {name} --scale {scale}"
    if ratings and has_ratings(table):
        command += f" --human {Path(ratings).name}"
    lines.append(f"Made with `{command}`")
    revision = revision_of(PLUGIN_FOLDER)
    lines.append(f"at git revision {revision}, on {usable_cores()} cores of {cpu_name()}.")
    write_lines(Path(path), lines)


def _section(table: Any, column: Any, scale: Any, figures: Any) -> list[str]:
    """Table of a column, with notes.

    Args:
        table: description of the table.
        column: that of the column.
        scale: that of the column at the scale of the runs.
        figures: figures of the runs, with a row for each.
    """
    from pandas import DataFrame

    frame = DataFrame(_cells(table, column, figures)).reindex(table["rows"])
    shown = [*figures["row"], *column.get("paper", {})]
    frame = frame[frame.index.isin(shown)].fillna("")
    controls = frame.index.isin(table["controls"])
    lines = [frame[~controls].to_markdown(index=False, disable_numparse=True), ""]
    if controls.any():
        of_paper = [name for name in frame if name.startswith("paper")]
        below = frame[controls].drop(columns=of_paper)
        lines += ["Controls, which the paper does not have:", ""]
        lines += [below.to_markdown(index=False, disable_numparse=True), ""]
    return [*lines, *(f"- {note}" for note in _notes(table, column, scale, figures) if note)]


def _cells(table: Any, column: Any, figures: Any) -> dict[str, Any]:
    """Cells of a column's table as text, by their titles and rows."""
    from pandas import Series

    base = table["baseline"]
    base_title = table["rows"].get(base)
    metric = column["metric"]
    form = ".3f" if metric == "valid_loss" else ".2f"
    paper = Series(column.get("paper", {}), dtype=float)
    groups = figures.groupby("row")
    values = groups["value"]
    cells = {
        "system": Series(table["rows"]),
        f"{_METRICS[metric]}, ours": _mean_and_deviation(values, form),
        "n": groups.size().map(str),
    }
    if len(paper):
        cells["paper"] = paper.map("{:g}".format)
    if base:
        cells[f"ours − {base_title}"] = _gains(values.mean(), base, form)
    if base and len(paper):
        cells[f"paper's − {base_title}"] = _gains(paper, base, form)
    if metric in ORDERS:
        cells["p"] = groups["p"].agg(lambda ps: ", ".join(f"{p:.3f}" for p in ps.dropna()))
    cells["best valid nll (bits)"] = _mean_and_deviation(groups["valid_loss"], ".3f")
    cells["parameters"] = groups["parameters"].first().map("{:,.0f}".format)
    cells["training min"] = groups["minutes"].mean().map("{:.1f}".format)
    if base:
        cells[f"time ÷ {base_title}"] = _time_ratios(figures, base)
    if metric == "bleu1":
        cells["length ÷ reference"] = _mean_and_deviation(groups["length_ratio"], ".2f")
    return cells


def _mean_and_deviation(groups: Any, form: str) -> Any:
    """Mean of each row and, over several seeds, standard deviation, as text."""

    def written(values: Any) -> str:
        deviation = f" ± {values.std():{form}}" if len(values) > 1 else ""
        return f"{values.mean():{form}}{deviation}"

    return groups.agg(written)


def _gains(values: Any, baseline: str, form: str) -> Any:
    """Differences of rows from the baseline, as text."""
    others = values.drop(baseline, errors="ignore") - values.get(baseline, float("nan"))
    return others.dropna().map(f"{{:+{form}}}".format)


def _notes(table: Any, column: Any, scale: Any, figures: Any) -> list[str]:
    """Notes below a column's table, some of them empty."""
    base = table["baseline"]
    notes = [column.get("note", ""), _data_and_seeds(scale)]
    notes += [f"Signature `{text}`." for text in figures["signature"].dropna().unique()]
    if figures["p"].notna().any():
        notes.append(
            f"p: paired bootstrap of sacreBLEU, {SAMPLES} samples, against {table['rows'][base]} "
            "of the same seed, in the order of the seeds. Of systems that are equally good, about "
            "11 % have p < 0.05."
        )
    if base and figures["processor_minutes"].notna().any():
        notes.append(
            f"Time ÷ {table['rows'][base]}: processor time of the training, mean over the seeds "
            "that were trained without an interruption."
        )
    return notes


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

    rows = table["rows"]
    base = table["baseline"]
    paper = column.get("paper", {})
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
        missing = [rows[row] for row in scores if row not in means]
        if missing:
            notes.append(f"Without scores: {', '.join(missing)}.")
    markdown = frame.to_markdown(index=False, disable_numparse=True)
    return [markdown, "", *(f"- {note}" for note in notes if note)]


def _examples(runs: Sequence[Run]) -> list[str]:
    """Outputs of the first seed, for lines where systems differ and for the largest gains."""
    first = runs[0]
    table = runs[0].table
    answers = {table["rows"][run.row]: texts_of(run) for run in runs if run.seed == first.seed}
    language = first.data.get("source_language", "en")
    sources = read_texts(Path(first.output), "S", language)
    references = reference_of(first)[0]
    base = table["rows"].get(table["baseline"])
    lines = list[str]()
    rules: list[examples.Choice] = []
    if len(answers) > 1:
        rules = ["differing", "best"]
    for rule in rules:
        chosen = examples.side_by_side(
            sources, references, answers, rule, 5, first.seed, baseline=base
        )
        lines += [examples.rule_text(chosen, len(sources), rule, first.seed), ""]
        lines.append(examples.as_markdown(chosen))
    return lines
