"""What ``fairseq-kerbs tables`` does: plan, run what is missing, write reports."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from fairseq_kerbs.tables.description import NAMES, load_table
from fairseq_kerbs.tables.report import Report
from fairseq_kerbs.tables.results import gather, read_kept
from fairseq_kerbs.tables.runner import Runner
from fairseq_kerbs.tables.runs import Job, Paths, Run, data_job, plan_runs, run_job
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.processes import quoted
from fairseq_kerbs.utils.steps import locked, read_json


def say(text: str) -> None:
    """A line of progress, at once and whole: several threads may speak."""
    print(f"{text}\n", end="", flush=True)


def run_tables(args: argparse.Namespace) -> int:
    """Run and report as the flags say; 0 if every run that was asked for is there, else 1. Raises a
    UserError if a table or pattern is unknown, a description is wrong, the work folder is in use,
    or a report of an older version would be replaced."""
    if args.jobs < 1:
        raise UserError(f"--jobs must be at least 1, not {args.jobs}")
    if args.corpora.exists() and not args.corpora.is_dir():
        raise UserError(f"--corpora {args.corpora} is no folder; name the one with the corpora")
    given = args.table or ["all"]
    names = [name for one in given for name in (NAMES if one == "all" else (one,))]
    tables = [load_table(name) for name in dict.fromkeys(names)]
    runs, planned = plan_runs(tables, args.scale, args.only)
    wanted, paths = list(planned.values()), Paths(args.corpora, args.work, args.results)
    if args.dry_run:
        _print_plan(runs, wanted, paths, args.redo)
        return 0
    for table in tables:
        kept = paths.report(table.name, args.scale).with_suffix(".json")
        if kept.exists() and not isinstance(read_json(kept), list):
            raise UserError(
                f"{kept} is of an older version or damaged, and would be lost; move it away with "
                f"{kept.stem}.md and {kept.stem}/, or name another folder with --results"
            )
    command = ["fairseq-kerbs", "tables", *(part for one in given for part in ("--table", one))]
    shown = quoted([*command, "--scale", args.scale])
    refusal = f"another run works in {args.work}; wait for its end, or name another with --work"
    with locked(args.work, refusal):
        about, failures, bad = _about(), dict[str, str](), dict[str, str]()
        if not args.report_only:
            runner = Runner(args.jobs, args.redo, about, say)
            failures = _run(runs, wanted, paths, runner, args.redo)
        for table in tables:
            own = [run for run in runs if run.table == table.name]
            results = gather(own, table.baseline, paths, failures)
            report = Report(table, args.scale, results, shown, str(about["revision"]), paths)
            say(f"wrote {report.write()}: {table.title}")
            for one in results:
                failure = failures.get(one.run.id)  # None if it was not asked for
                if failure or (failure is not None and not one.figures):
                    bad[one.run.id] = failure or one.state
    if bad:
        lines = (f"\n  {name}: {failure}" for name, failure in bad.items())
        say(f"{len(bad)} of {len(wanted)} not done:{''.join(lines)}")
    return 1 if bad else 0


def _about() -> dict[str, Any]:
    """Versions, revision and machine of this run."""
    import torch

    from fairseq_kerbs.utils.machine import describe_machine, describe_versions

    machine, versions = describe_machine("cpu"), describe_versions()
    text = f"{machine['cpu']}, {machine['usable_cores']} cores, {machine['system']}"
    if torch.cuda.is_available():
        text += f", {torch.cuda.get_device_name(0)}"
    return {"revision": versions.pop("revision"), "machine": text, "versions": versions}


def _kept(run: Run, runs: Sequence[Run], paths: Paths) -> str:
    """State of a run that is not done in the work folder, by the reports of its tables.

    "done" if all of them keep it finished, "stale: …" if one is stale and it was not begun anew.
    """
    job = run_job(run, paths)
    if all(status.state == "done" for status in job.statuses()):
        return ""
    kept = [read_kept(one, paths) for one in runs if one.id == run.id]
    states = [one.state if one else "" for one in kept]
    if set(states) == {"done"}:
        return "done"
    begun = (job.folder / "train.json").exists()
    return "" if begun else next((one for one in states if one not in ("", "done")), "")


def _run(
    runs: Sequence[Run], wanted: Sequence[Run], paths: Paths, runner: Runner, redo: bool
) -> dict[str, str]:
    """Why runs are not done, by id; empty for those that are."""
    data_sets = {run.data.name: run.data for run in wanted}.values()
    there = [data for data in data_sets if paths.raw(data)]
    failed = {f"data {data.name}": paths.missing(data) for data in data_sets}
    for name in filter(failed.get, failed):
        say(f"{name}: {failed[name]}")
    failed |= runner.run([data_job(data, paths) for data in there])
    for data in there:
        if not failed[f"data {data.name}"]:
            paths.keep_reference(data)
    say(f"{len(wanted)} runs")
    failures, jobs = {}, []
    for run in wanted:
        source, kept = f"data {run.data.name}", "" if redo else _kept(run, runs, paths)
        if kept == "done":
            say(f"{run.id}: kept in {paths.results}")
        elif failed[source]:
            failures[run.id] = f"{source}: {failed[source]}"
        elif kept:
            failures[run.id] = f"{kept}; run again with --redo to replace it"
        else:
            jobs.append(run_job(run, paths))
    return failures | runner.run(jobs)


def _print_plan(runs: Sequence[Run], wanted: Sequence[Run], paths: Paths, redo: bool) -> None:
    """Every command in order, with planned minutes and their total."""
    for data in {run.data.name: run.data for run in wanted}.values():
        missing = paths.missing(data)
        if missing:
            say(f"# data {data.name}: {missing}")
        if missing or paths.raw(data):
            _print_job(data_job(data, paths), "")
    left = []
    for run in wanted:
        job, kept = run_job(run, paths), "" if redo else _kept(run, runs, paths)
        labels = ", ".join(one.label for one in runs if one.id == run.id)
        planned = "no estimate" if run.minutes is None else f"{run.minutes:g} min planned"
        if kept == "done":
            say(f"# {run.id} ({labels}): done, kept in {paths.results}")
        elif not _print_job(job, f" ({labels}; {planned})", kept):
            left.append(run.minutes or 0)
    say(
        f"# {len(wanted)} runs, {len(wanted) - len(left)} done, {len(left)} to run; "
        f"planned: {sum(left) / 60:.1f} h, one after the other"
    )


def _print_job(job: Job, remark: str, state: str = "") -> bool:
    """Print a job's state, or another, and commands that are due; return whether it is done."""
    found = job.statuses()
    due = [status for status in found if status.state != "done"]
    reason = f" ({due[0].reason})" if due and due[0].reason else ""
    say(f"# {job.id}{remark}: {state or (due[0].state if due else 'done') + reason}")
    for step, status in zip(job.steps, found, strict=True):
        if status in due:
            say(quoted(step.command))
    return not due
