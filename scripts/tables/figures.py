"""The figures of finished runs: scores, losses, sizes and times."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq_kerbs.evaluation.bleu import bleu_metric, corpus_scores, paired_bootstrap
from fairseq_kerbs.evaluation.texts import read_texts
from fairseq_kerbs.training.curve import updates_before
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import check_parallel, read_lines
from scripts.tables.descriptions import Run

ORDERS = {"bleu4": 4, "bleu1": 1}
"""Maximum length of the n-grams of a metric."""

_VALID = re.compile(r"\| valid \|.*?(?:\| nll_loss|\| loss(?!.*\| nll_loss)) ([0-9.]+) ")
_VARIANCE = re.compile(r"\| valid \|.*?\| nll_loss ([0-9.]+) .*\| mixture_variance ([0-9.e-]+)")
_PERPLEXITY = re.compile(r"Loss \(base 2\): .+, Perplexity: ([0-9.]+|inf|nan)")


def write_figures(runs: Sequence[Run], path: str) -> None:
    """Write the metric, cost and p-value of each run as CSV.

    p is by the paired bootstrap against the baseline of the same column and seed. An output without
    a figure, or with another number of lines than the reference, raises a UserError.
    """
    from pandas import DataFrame

    figures = [figures_of(run) for run in runs]
    baselines = {(run.column, run.seed): run for run in runs if run.row == run.table["baseline"]}
    for run, row in zip(runs, figures):
        baseline = baselines.get((run.column, run.seed))
        if run.metric in ORDERS and baseline is not None and run.row != baseline.row:
            systems = [texts_of(baseline), texts_of(run)]
            reference, bleu = reference_of(run)
            row["p"] = paired_bootstrap(systems, [reference], bleu)[1]["BLEU"][1].p_value
    DataFrame(figures).to_csv(path, index=False)


def texts_of(run: Run) -> list[str]:
    """Raw hypotheses of a run, one a line of the reference."""
    return read_texts(Path(run.output), "H", run.data.get("language", "en"))


def reference_of(run: Run) -> tuple[list[str], dict[str, Any]]:
    """Lines of a run's reference, and sacreBLEU's metric by its name."""
    bleu = bleu_metric(ORDERS.get(run.metric, 4), language=run.data.get("language", "en"))
    return read_lines(f"{run.prepared}/reference"), {"BLEU": bleu}


def figures_of(run: Run) -> dict[str, Any]:
    """Figures of a run from its logs and hypotheses, a row of the table.

    The value is that of the column's metric. A UserError is raised if the run has none.
    """
    log = Path(run.folder, "train.log").read_text("utf-8", "replace")
    last_part = _after_placement(log)
    walls = [int(text) for text in re.findall(r"\bwall[ =](\d+)", log)]  # restarts when resumed
    attempts = [now for now, later in zip(walls, [*walls[1:], 0]) if later < now]
    # the last, as a training with a placement of senses begins with a smaller softmax
    parameters = re.findall(r"num\. shared model params: ([\d,]+)", log)
    loss = min(map(float, _VALID.findall(last_part)), default=None)
    value = loss
    signature: str | None = None
    length_ratio: float | None = None
    if run.metric == "mixture_variance":
        # of the checkpoint that the other figures are about; none if the model is no mixture
        found = [(float(nll), float(variance)) for nll, variance in _VARIANCE.findall(last_part)]
        value = 100 * min(found)[1] if found else None
    elif run.metric == "perplexity":
        printed = _PERPLEXITY.findall(Path(run.output).read_text("utf-8"))
        value = float(printed[-1]) if printed else None
    elif run.metric in ORDERS:
        reference, bleu = reference_of(run)
        texts = texts_of(run)
        check_parallel({run.output: texts, f"{run.prepared}/reference": reference})
        (score,) = corpus_scores(texts, [reference], bleu)
        value = score.score
        signature = f"{score.signature}|order:{ORDERS[run.metric]}"
        length_ratio = score.length_ratio
    if value is None:
        raise UserError(f"{run.output} has no figure; see the logs beside it")
    return {name: getattr(run, name) for name in ("column", "row", "seed")} | {
        "value": value,
        "p": None,
        "signature": signature,
        "valid_loss": loss,
        "parameters": int(parameters[-1].replace(",", "")) if parameters else None,
        "minutes": sum(attempts) / 60,
        "processor_minutes": _processor_minutes(Path(run.folder, "processor_time.txt")),
        "length_ratio": length_ratio,
        "run": run.folder,
    }


def _after_placement(log: str) -> str:
    """The log of the model that is evaluated: after a placement of senses, not of its softmax."""
    lines = log.splitlines(keepends=True)
    # the line is there again where the last part was resumed
    begins = (number for number, line in enumerate(lines) if updates_before(line) is not None)
    return "".join(lines[next(begins, 0) :])


def _processor_minutes(path: Path) -> float | None:
    """Processor time of a training, or None if a part of it was not measured.

    ``scripts/tables/Snakefile`` writes a line at the start of every attempt, and the user and
    system time in seconds at its end. An attempt that was killed has no second line.
    """
    if not path.is_file():
        return None
    lines = read_lines(path)
    ended = [line for line in lines if line != "started"]
    if not ended or len(ended) != lines.count("started"):
        return None
    return sum(float(seconds) for line in ended for seconds in line.split()) / 60
