"""The figures of a table, gathered from the work folder: what the reports are written from."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sacrebleu.significance import PairedTest

from fairseq_kerbs.evaluation.bleu import bleu_metric
from fairseq_kerbs.tables.description import Column, Table
from fairseq_kerbs.tables.experiments import flag_arguments
from fairseq_kerbs.tables.runner import Outcome
from fairseq_kerbs.tables.runs import ORDERS, Paths, Plan, Run, run_steps, statuses
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import read_lines, sha256_of
from fairseq_kerbs.utils.processes import PLUGIN_FOLDER, quoted
from fairseq_kerbs.utils.steps import digest, read_object, read_record, write_json

NOT_RUN = "not run"
SAMPLES = 1000  # of the bootstrap
_PARAMETERS = re.compile(r"num\. shared model params: ([\d,]+)")
_UPDATE = re.compile(r"\| train_inner \|.* wpb=([\d.]+),.* num_updates=(\d+)")


@dataclass(frozen=True)
class Result:
    """What became of a run.

    Attributes:
        state: "done", or why there is no figure.
        p_value: of the paired bootstrap against the baseline of the same seed; None if there is
            nothing to compare.
        training: what its log and its record tell, see `read_training`.
        details: all that scoring wrote, the metric as ``value``; empty if it did not.
        records: record of each step, by name.
    """

    run: Run
    state: str
    p_value: float | None = None
    training: Mapping[str, float | None] = field(default_factory=dict)
    details: Mapping[str, Any] = field(default_factory=dict)
    records: Mapping[str, Any] = field(default_factory=dict)

    @property
    def configuration(self) -> str:
        """The configuration as it stands in the checkout, and the flags that the row changes."""
        path, checkout = self.run.config, PLUGIN_FOLDER.parent
        name = str(path.relative_to(checkout)) if path.is_relative_to(checkout) else path.name
        return quoted([name, *flag_arguments(self.run.train)])


@dataclass(frozen=True)
class Entry:
    """A row of a column: a result for every seed, and what they come to.

    Attributes:
        figures: ``n``, and by the names that reports give them, None where unknown: mean and sample
            deviation (over n − 1) of the metric, cased and lowercased; the paper's figure; ours
            less the paper's, ours and the paper's less the baseline's; means of the training.
        reason: why there are no results, if there are none.
    """

    row: str
    title: str
    results: Sequence[Result]
    figures: Mapping[str, Any]
    reason: str

    @property
    def done(self) -> list[Result]:
        """Results that have a figure."""
        return [result for result in self.results if result.details]

    @property
    def states(self) -> list[str]:
        """Why figures are missing, each reason once."""
        missing = [one.state for one in self.results if not one.details]
        return list(dict.fromkeys(missing if self.results else [self.reason]))


def gather(
    table: Table, plan: Plan, scale: str, paths: Paths, outcomes: Mapping[str, Outcome]
) -> dict[str, list[Entry]]:
    """The entries of every column, in the order of the rows.

    `outcomes` are those of this run; one that was not part of it is judged by its records.
    """
    columns = {}
    for name, column in table.columns.items():
        found: dict[str, list[Result]] = {row: [] for row in table.rows}
        for one in plan.references:
            if (one.table, one.column) == (table.name, name):
                found[one.row].append(_result(one.run, paths, outcomes.get(one.run.id)))
        base = {result.run.seed: result for result in found.get(table.baseline, ())}
        for row in found:
            if row != table.baseline:
                found[row] = [_tested(one, base.get(one.run.seed), paths) for one in found[row]]
        reason = NOT_RUN if column.scale(scale) else f"no {scale} scale"
        if column.metric == "human":
            reason = "judged by people: fairseq-kerbs human-eval"
        columns[name] = [
            Entry(row, title, found[row], _figures(row, found, column, table.baseline), reason)
            for row, title in table.rows.items()
            if found[row] or row in column.paper
        ]
    return columns


def _figures(
    row: str, found: Mapping[str, Sequence[Result]], column: Column, baseline: str
) -> dict[str, Any]:
    paper, theirs = column.paper.get(row), column.paper.get(baseline)
    done = [one for one in found[row] if one.details]
    mean, deviation = summarize(one.details["value"] for one in done)
    base, _ = summarize(one.details.get("value") for one in found.get(baseline, ()))
    lowercased = summarize(one.details.get("lowercased_value") for one in done)

    def training(key: str, unit: float = 1) -> float | None:
        known = [one.training[key] for one in done]
        return summarize(value / unit for value in known if value is not None)[0]

    return {
        "n": len(done),
        "mean": mean,
        "deviation": deviation,
        "lowercased_mean": lowercased[0],
        "lowercased_deviation": lowercased[1],
        "paper": paper,
        "difference": _minus(mean, paper),
        "against_baseline": _minus(mean, base),
        "paper_against_baseline": _minus(paper, theirs),
        "parameters": next((one.training["parameters"] for one in done), None),
        "minutes": training("seconds", 60),
        "cpu_minutes": training("cpu_seconds", 60),
        "words_per_cpu_second": training("words_per_cpu_second"),
    }


def _minus(left: float | None, right: float | None) -> float | None:
    return None if left is None or right is None else left - right


def summarize(values: Iterable[float | None]) -> tuple[float | None, float | None]:
    """Mean and standard deviation of the sample (over n − 1) of the values that are known.

    The mean is None without any, the deviation for fewer than two; one that is not finite makes
    both so.
    """
    known = [value for value in values if value is not None]
    if not all(map(math.isfinite, known)):
        return sum(known), math.nan
    deviation = statistics.stdev(known) if len(known) > 1 else None
    return (statistics.fmean(known) if known else None), deviation


def _result(run: Run, paths: Paths, outcome: Outcome | None) -> Result:
    folder, steps = paths.run(run.id), run_steps(run, paths)
    found = {step.name: read_record(folder / f"{step.name}.json") for step in steps}
    result = Result(run, "done", records={name: one for name, one in found.items() if one})
    spent = {key: result.records.get("train", {}).get(key) for key in ("seconds", "cpu_seconds")}
    pending = [status for status in statuses(folder, steps) if status.state != "done"]
    if not pending:
        log = folder / "train.log"
        text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
        training = read_training(text, spent["cpu_seconds"])
        details = json.loads((folder / "figures.json").read_text(encoding="utf-8"))
        return replace(result, training={**spent, **training}, details=details)
    stale = f"stale: {pending[0].reason}" if pending[0].state == "stale" else NOT_RUN
    failed = outcome is not None and outcome.state != "done"
    state = f"{outcome.state}: {outcome.reason}" if outcome is not None and failed else stale
    return replace(result, state=state, training=spent)


def read_training(log: str, cpu_seconds: float | None = None) -> dict[str, float | None]:
    """Parameters, updates, and target tokens a second of processor time, None where not known.

    Args:
        log: of fairseq-train, of all attempts. Tokens are the mean size of the batches in it times
            the updates.
        cpu_seconds: processor time of the training.
    """
    parameters, lines = _PARAMETERS.search(log), _UPDATE.findall(log)
    updates = max((int(number) for _, number in lines), default=None)
    speed = None
    if updates is not None and cpu_seconds:
        speed = statistics.fmean(float(words) for words, _ in lines) * updates / cpu_seconds
    return {
        "parameters": int(parameters[1].replace(",", "")) if parameters else None,
        "updates": updates,
        "words_per_cpu_second": speed,
    }


def _tested(result: Result, baseline: Result | None, paths: Paths) -> Result:
    """The result, compared with the baseline of the same seed where both have hypotheses.

    The test takes seconds, so its result is kept beside the run, under a digest of the texts.
    """
    run = result.run
    if baseline is None or not (result.details and baseline.details) or run.metric not in ORDERS:
        return result
    files = [paths.run(one.id) / "hypotheses.txt" for one in (run, baseline.run)]
    files.append(paths.reference(run.data))
    order, language = ORDERS[run.metric], run.data.language
    key = digest([*map(sha256_of, files), order, language, SAMPLES])
    kept = paths.run(run.id) / "bootstrap.json"
    known = read_object(kept)
    if known.get("key") != key:
        ours, theirs, reference = map(read_lines, files)
        p_value = paired_bootstrap(ours, theirs, reference, order=order, language=language)
        known = {"key": key, "p_value": p_value, "baseline": baseline.run.id, "samples": SAMPLES}
        write_json(kept, known)
    return replace(result, p_value=known["p_value"])


def paired_bootstrap(
    hypotheses: Sequence[str],
    baseline: Sequence[str],
    reference: Sequence[str],
    *,
    order: int = 4,
    language: str = "en",
    samples: int = SAMPLES,
) -> float:
    """p-value of sacreBLEU's paired bootstrap test between a system and a baseline, cased.

    It is two-sided: how often, over resampled test sets, the difference strays from its own mean by
    more than the observed difference. sacreBLEU draws the same samples each time (its seed is
    12345 unless SACREBLEU_SEED says otherwise). Of equal texts it would make a small p, because no
    difference exceeds another; they have 1.

    Raises:
        UserError: the texts differ in length.
    """
    if not len(hypotheses) == len(baseline) == len(reference):
        raise UserError(
            f"paired bootstrap of {len(hypotheses)} and {len(baseline)} hypotheses and "
            f"{len(reference)} references; all must come from the same test set"
        )
    if list(hypotheses) == list(baseline):
        return 1.0
    test = PairedTest(
        [("baseline", list(baseline)), ("system", list(hypotheses))],
        {"BLEU": bleu_metric(order, language=language)},
        [list(reference)],
        test_type="bs",
        n_samples=samples,
    )
    result: Any = test()[1]["BLEU"][1]
    return float(result.p_value)


def signatures(entries: Sequence[Entry]) -> list[str]:
    """The signatures that the figures of a column have, each once; more than one is a warning."""
    found = {result.details.get("signature") for entry in entries for result in entry.done}
    return sorted(signature for signature in found if signature)
