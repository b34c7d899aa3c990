"""The figures of a table, gathered from the work folder: what the reports are written from."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fairseq_kerbs.evaluation.bleu import SAMPLES, bleu_metric, corpus_bleu, paired_bootstrap
from fairseq_kerbs.evaluation.texts import detokenize_lines
from fairseq_kerbs.tables.description import Metric
from fairseq_kerbs.tables.runs import HYPOTHESES, Paths, Run, run_job
from fairseq_kerbs.utils import steps
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import atomic_write, read_lines

NOT_RUN = "not run"
ORDERS = {Metric.bleu4: 4, Metric.bleu1: 1}
_PARAMETERS = re.compile(r"num\. shared model params: ([\d,]+)")
_UPDATE = re.compile(r"\| train_inner \|.* wpb=([\d.]+),.* num_updates=(\d+)")
_VALID = re.compile(r"\| valid \|.*?(?:\| nll_loss|\| loss(?!.*\| nll_loss)) ([0-9.]+|nan|inf) ")
_PERPLEXITY = re.compile(r"Loss \(base 2\): .+, Perplexity: ([0-9.]+|inf|nan)")


@dataclass(frozen=True)
class Result:
    """What became of a run.

    ``figures`` has the metric as ``value`` with its ``signature`` (see `score`), what the training
    took (see `read_training`), and ``p_value``: of the paired bootstrap against the baseline of the
    same seed, with ``p_holm`` corrected for the number of those of the column. ``kept`` is what the
    report has of the run, if that is shown, or is stale and there is no newer.
    """

    run: Run
    state: str  # "done", or why there is no figure
    figures: dict[str, Any] = field(default_factory=dict)  # empty if there is none
    records: dict[str, Any] = field(default_factory=dict)  # of each step, by name
    kept: dict[str, Any] = field(default_factory=dict)

    def file(self, name: str, paths: Paths) -> Path:
        """A file of the run, in the work folder or as the report keeps it."""
        return paths.kept(self.run, name) if self.kept else paths.run(self.run.id) / name


def gather(
    runs: Sequence[Run], baseline: str, paths: Paths, failed: Mapping[str, str]
) -> list[Result]:
    """What became of a table's runs, compared with those of its row `baseline`.

    `failed` says why runs ended without success, by their ids; others are judged by their records.
    """
    results = [read_result(run, paths, failed.get(run.id, "")) for run in runs]
    done = [one for one in results if one.figures]
    base = {(one.run.column, one.run.seed): one for one in done if one.run.row == baseline}
    for result in done:
        run, other = result.run, base.get((result.run.column, result.run.seed))
        known, _ = (result.figures.pop(key, None) for key in ("p_value", "p_holm"))  # kept ones
        if other and run.row != baseline and run.metric in ORDERS:
            there = paths.reference(run.data).is_file()
            result.figures["p_value"] = compare(result, other, paths) if there else known
    for column in {run.column for run in runs}:
        tested = [one.figures for one in done if one.run.column == column]
        tested = [figures for figures in tested if figures.get("p_value") is not None]
        for figures, value in zip(tested, holm([one["p_value"] for one in tested]), strict=True):
            figures["p_holm"] = value
    return results


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values corrected for their number m by Holm (1979), in the same order.

    The k-th smallest is multiplied by m − k + 1; none is below that of a smaller one, or above 1.
    """
    corrected, least, left = [1.0] * len(p_values), 0.0, len(p_values)
    for index in sorted(range(len(p_values)), key=p_values.__getitem__):
        least = corrected[index] = min(1.0, max(least, left * p_values[index]))
        left -= 1
    return corrected


def read_result(run: Run, paths: Paths, failure: str = "") -> Result:
    """What became of a run, by the work folder, or by the report where that has no figures."""
    made = _read_work(run, paths, failure)
    kept = None if made.figures else read_kept(run, paths)
    unscored = made.state.startswith("failed: ") and not failure  # it ended well, and is told
    if kept is None or (kept.figures and not unscored):
        return kept or made
    if made.records:  # begun anew; what is stale is kept until that is done
        return replace(made, kept=kept.kept)
    return replace(kept, state=failure or kept.state)


def _read_work(run: Run, paths: Paths, failure: str) -> Result:
    """What became of a run, by its records, its log and what it generated."""
    job, folder = run_job(run, paths), paths.run(run.id)
    found = {step.name: steps.read_object(folder / f"{step.name}.json") for step in job.steps}
    records = {name: record for name, record in found.items() if record}
    pending = [status for status in job.statuses() if status.state != "done"]
    if pending:
        stale = f"stale: {pending[0].reason}" if pending[0].state == "stale" else NOT_RUN
        return Result(run, failure or stale, records=records)
    file = folder / "train.log"
    log = file.read_text(encoding="utf-8", errors="replace") if file.is_file() else ""
    training = read_training(log, records["train"])
    try:
        figures = score(run, paths, training["valid_loss"])
    except UserError as error:
        return Result(run, f"failed: {error}", records=records)
    return Result(run, "done", {**training, **figures}, records)


def read_kept(run: Run, paths: Paths) -> Result | None:
    """What the report below ``--results`` has of a run that was finished; None if nothing.

    Without figures if configuration, seed, data or flags of generation have changed since; data
    that are not prepared here count as those of the report.
    """
    if run.metric in ORDERS and not paths.kept(run, HYPOTHESES).is_file():
        return None
    content = steps.read_json(paths.report(run.table, run.scale).with_suffix(".json"))
    for one in content if isinstance(content, list) else ():
        if one["run"] == run.label and one["figures"] and one.get("metric") == run.metric.name:
            last = run_job(run, paths).steps[-1]
            record, parts = one["steps"][last.name], dict(last.parts)
            if not (paths.prepared(run.data) / "bin").exists():
                parts["data"] = record["parts"]["data"]
            status = steps.step_status(last.name, record, parts, {})
            if status.state == "done":
                return Result(run, "done", one["figures"], one["steps"], one)
            return Result(run, f"stale: {status.reason}", records=one["steps"], kept=one)
    return None


def read_training(log: str, record: Mapping[str, Any]) -> dict[str, float | None]:
    """Parameters, best validation loss (nll, bits a token), minutes, and target tokens a second of
    processor time, None where not known.

    By the log and record of all attempts; tokens are mean size of logged batches × updates.
    """
    parameters, lines = _PARAMETERS.search(log), _UPDATE.findall(log)
    seconds, cpu = record.get("seconds"), record.get("cpu_seconds")
    speed = None
    if lines and cpu:
        updates = max(int(number) for _, number in lines)
        speed = statistics.fmean(float(words) for words, _ in lines) * updates / cpu
    return {
        "parameters": int(parameters[1].replace(",", "")) if parameters else None,
        "valid_loss": min(filter(math.isfinite, map(float, _VALID.findall(log))), default=None),
        "minutes": None if seconds is None else seconds / 60,
        "cpu_minutes": None if cpu is None else cpu / 60,
        "words_per_cpu_second": speed,
    }


def score(run: Run, paths: Paths, valid_loss: float | None) -> dict[str, Any]:
    """Figures of what a run has generated or evaluated, or its best validation loss.

    Those of BLEU are kept in ``figures.json``, detokenized hypotheses in ``hypotheses.txt``. Raises
    a UserError if there is no validation loss or perplexity, or hypotheses do not fit the
    reference.
    """
    folder, language = paths.run(run.id), run.data.language
    if run.metric is Metric.valid_loss:
        if valid_loss is None:
            raise UserError(f"{folder / 'train.log'} has no finite validation loss")
        return {"value": valid_loss}
    if run.metric is Metric.perplexity:
        return perplexity_figures(folder / "evaluate.log")
    generated, reference = folder / "generate-test.txt", paths.reference(run.data)
    order = ORDERS[run.metric]

    def bleu() -> dict[str, Any]:
        lines = read_lines(generated)
        texts = detokenize_lines(lines, language=language, name=str(generated))
        with atomic_write(folder / HYPOTHESES) as stream:
            stream.write("".join(text + "\n" for text in texts))
        return bleu_figures(texts, read_lines(reference), order=order, language=language)

    figures = folder / "figures.json"
    if not (folder / HYPOTHESES).is_file():
        figures.unlink(missing_ok=True)
    return _kept(figures, [generated, reference, order, language], bleu)


def _kept(file: Path, parts: list[Any], make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `make` returns, kept in a file under the digest of its parts; of a path, the content."""
    contents = (steps.fingerprint(one) if isinstance(one, Path) else one for one in parts)
    key = steps.digest(list(contents))
    known = steps.read_object(file)
    if known.get("key") != key:
        known = {**make(), "key": key}
        steps.write_json(file, known)
    return known


def bleu_figures(
    hypotheses: Sequence[str], reference: Sequence[str], *, order: int, language: str
) -> dict[str, Any]:
    """BLEU of cased and of lowercased text, with signatures that name the order of n-grams; raises
    what :func:`.corpus_bleu` raises."""
    figures: dict[str, Any] = {"sentences": len(hypotheses)}
    for prefix, lowercase in (("", False), ("lowercased_", True)):
        how: dict[str, Any] = {"target_lang": language, "max_ngram_order": order}
        result = corpus_bleu(hypotheses, [reference], lowercase=lowercase, **how)
        figures[f"{prefix}signature"] = f"{result.signature}|order:{order}"
        figures[f"{prefix}value"] = result.score
        figures[f"{prefix}details"] = result.details
    return figures


def perplexity_figures(log: Path) -> dict[str, Any]:
    """Perplexity by the last such line of fairseq-eval-lm in a log; a UserError if it has none."""
    found = _PERPLEXITY.findall(log.read_text(encoding="utf-8", errors="replace"))
    if not found:
        raise UserError(f"{log} has no line with a perplexity; did fairseq-eval-lm end well?")
    return {"value": float(found[-1])}


def compare(result: Result, baseline: Result, paths: Paths) -> float:
    """p-value of a run's translations against another's; it takes seconds, and is kept."""
    run, files = result.run, [one.file(HYPOTHESES, paths) for one in (result, baseline)]
    files.append(paths.reference(run.data))
    order, language = ORDERS[run.metric], run.data.language

    def test() -> dict[str, Any]:
        system, base, reference = map(read_lines, files)
        metrics = {"BLEU": bleu_metric(order, language=language)}
        _, results = paired_bootstrap([base, system], [reference], metrics)
        p_value = results["BLEU"][1].p_value
        return {"p_value": p_value, "baseline": baseline.run.id, "samples": SAMPLES}

    kept = paths.run(run.id) / "bootstrap.json"
    return _kept(kept, [*files, order, language, SAMPLES], test)["p_value"]
