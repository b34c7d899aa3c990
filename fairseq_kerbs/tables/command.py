"""What ``fairseq-kerbs tables`` does: plan, run what is missing, write reports."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from fairseq_kerbs.tables.description import NAMES, DataSet, Table, load_table, table_path
from fairseq_kerbs.tables.logs import copy_raw, known_folders, strip_paths
from fairseq_kerbs.tables.report import Report
from fairseq_kerbs.tables.results import gather
from fairseq_kerbs.tables.runner import Outcome, Runner, stopping_signals
from fairseq_kerbs.tables.runs import (
    Job,
    Paths,
    Plan,
    data_job,
    find_earlier,
    make_plan,
    run_job,
    statuses,
)
from fairseq_kerbs.tables.texts import examples_texts, words_job, words_texts
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import atomic_write
from fairseq_kerbs.utils.processes import quoted
from fairseq_kerbs.utils.steps import locked


def say(text: str) -> None:
    """A line of progress, at once and whole: several threads may speak."""
    print(f"{text}\n", end="", flush=True)


def run_tables(args: argparse.Namespace) -> int:
    """Run and report; 0 if every run asked for is there, else 1.

    Args:
        args: the flags of ``fairseq-kerbs tables``; `table` holds names or files, "all" stands for
            every table of the papers.

    Raises:
        UserError: a table or pattern is unknown, a description is wrong, or the work folder is in
            use.
    """
    if args.jobs < 1:
        raise UserError(f"--jobs must be at least 1, not {args.jobs}")
    given = args.table or ["all"]
    names = [name for one in given for name in (NAMES if one == "all" else (one,))]
    tables = [load_table(table_path(name)) for name in dict.fromkeys(names)]
    plan = make_plan(tables, args.scale, args.only)
    paths = find_earlier(plan, Paths(args.data, args.work, args.results))
    for name, earlier in paths.earlier.items():
        say(f"# {name} is in the folder of its earlier name, {paths.work / 'cells' / earlier}")
    if args.dry_run:
        _print_plan(plan, tables, paths, args.jobs)
        return 0
    if not args.report_only:
        _check_data_folder(plan, paths)
    command = ["fairseq-kerbs", "tables", *(part for one in given for part in ("--table", one))]
    command += ["--scale", args.scale]
    refusal = f"another run works in {args.work}; wait for its end, or name another with --work"
    with locked(args.work, refusal), stopping_signals():
        about = _about()
        outcomes = {} if args.report_only else _run(plan, tables, paths, args, about)
        for table in tables:
            columns = gather(table, plan, args.scale, paths, outcomes)
            shown = strip_paths(quoted(command), known_folders(paths))
            _write(Report(table, args.scale, columns, shown, about), paths)
    bad = {name: outcome for name, outcome in outcomes.items() if outcome.state != "done"}
    if bad:
        say(f"{len(bad)} of {len(outcomes)} not done:")
        for name, outcome in bad.items():
            say(f"  {name}: {outcome.state}: {outcome.reason}")
    return 1 if bad else 0


def _about() -> dict[str, Any]:
    """Versions, revision and machine of this run."""
    import torch

    from fairseq_kerbs.utils.machine import describe_machine, describe_versions

    machine = describe_machine("cpu")
    text = f"{machine['cpu']}, {machine['usable_cores']} cores, {machine['system']}"
    if torch.cuda.is_available():
        text += f", {torch.cuda.get_device_name(0)}"
    return {**describe_versions(), "machine": text}


def _data_sets(plan: Plan) -> list[DataSet]:
    found = (plan.runs[name].data for name in plan.wanted)
    return list({data.name: data for data in found}.values())


def _check_data_folder(plan: Plan, paths: Paths) -> None:
    """Raise a UserError if ``--data`` is needed but is no folder."""
    needed = [data.name for data in _data_sets(plan) if not paths.is_prepared(data)]
    if needed and not paths.data.is_dir():
        raise UserError(
            f"--data: there is no folder {paths.data}; it should hold the raw text of "
            f"{', '.join(needed)}, see configs/tables/data.yaml"
        )


def _run(
    plan: Plan,
    tables: Sequence[Table],
    paths: Paths,
    args: argparse.Namespace,
    about: Mapping[str, Any],
) -> dict[str, Outcome]:
    kept = {key: about[key] for key in ("revision", "machine")}
    kept["versions"] = {key: about[key] for key in ("python", "torch", "fairseq", "fairseq_kerbs")}
    runner = Runner(jobs=args.jobs, redo=args.redo, about=kept, say=say)
    jobs: list[Job] = []
    for data in _data_sets(plan):
        if paths.raw(data) is not None:
            jobs.append(data_job(data, paths))
        elif paths.is_prepared(data):
            runner.outcomes[f"data {data.name}"] = Outcome("done")
        else:
            say(f"data {data.name}: {paths.missing(data)}")
            runner.outcomes[f"data {data.name}"] = Outcome("missing", paths.missing(data))
    jobs += [run_job(plan.runs[name], paths) for name in plan.wanted]
    jobs += _words_jobs(plan, tables, paths)
    listed = ", ".join(table.name for table in tables)
    say(f"{len(plan.wanted)} runs of {listed}, {args.scale} scale")
    return runner.run(jobs)


def _words_jobs(plan: Plan, tables: Sequence[Table], paths: Paths) -> list[Job]:
    names = {table.name for table in tables if table.kind == "senses"}
    runs = [one.run for one in plan.references if one.table in names and one.run.id in plan.wanted]
    return [words_job(run, paths) for run in {run.id: run for run in runs}.values()]


def _write(report: Report, paths: Paths) -> None:
    """Write the three files of a table, and copies of what its figures come from."""
    table, folders = report.table, known_folders(paths)
    if table.kind == "figures":
        texts = {kind: strip_paths(text, folders) for kind, text in report.texts().items()}
    else:
        texts = (examples_texts if table.kind == "examples" else words_texts)(report, paths)
    files = {paths.results / f"{report.name}.{kind}": text for kind, text in texts.items()}
    for path, text in files.items():
        with atomic_write(path) as stream:
            stream.write(text)
    if table.kind == "figures":
        copy_raw(paths.results / report.name, report.columns, paths)
    say(f"{table.title}: {', '.join(map(str, files))}")


def _print_plan(plan: Plan, tables: Sequence[Table], paths: Paths, jobs: int) -> None:
    """Every command in order, with planned minutes and their total."""
    for data in _data_sets(plan):
        if paths.raw(data) is None and not paths.is_prepared(data):
            say(f"# data {data.name}: missing. {paths.missing(data)}")
        _print_job(data_job(data, paths))
    left: list[float | None] = []
    for name in plan.wanted:
        run = plan.runs[name]
        labels = ", ".join(one.label for one in plan.references if one.run.id == name)
        planned = "no estimate" if run.minutes is None else f"{run.minutes:g} min planned"
        if not _print_job(run_job(run, paths), f" ({labels}; {planned})"):
            left.append(run.minutes)
    for job in _words_jobs(plan, tables, paths):
        _print_job(job)
    known = [minutes for minutes in left if minutes is not None]
    text = f"# {len(plan.wanted)} runs, {len(plan.wanted) - len(left)} done, {len(left)} to run; "
    text += f"planned: {sum(known) / 60:.1f} h, one after the other"
    if jobs > 1:
        text += f" (--jobs {jobs}: each is slower, the whole takes about as long on the same cores)"
    if len(known) < len(left):
        text += f"; {len(left) - len(known)} runs have no estimate"
    say(text)


def _print_job(job: Job, remark: str = "") -> bool:
    """Print a job's state and commands; return whether it is done."""
    steps = job.steps()
    found = statuses(job.folder, steps)
    pending = [status for status in found if status.state != "done"]
    first = next((one for one in pending if one.state == "stale"), (pending or found)[0])
    reason = f" ({first.reason})" if first.reason else ""
    say(f"# {job.id}{remark}: {first.state}{reason}")
    for step, status in zip(steps, found, strict=True):
        if status.state != "done":
            say(quoted(step.command))
    return not pending
