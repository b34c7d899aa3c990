"""What ``fairseq-kerbs tables`` does: plan, run what is missing, write reports."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq_kerbs.tables.cells import (
    Cell,
    Places,
    Plan,
    cell_job,
    data_job,
    find_raw,
    is_prepared,
    make_plan,
    missing_sentence,
)
from fairseq_kerbs.tables.description import NAMES, DataSet, Table, load_table, table_path
from fairseq_kerbs.tables.extras import examples_texts, words_job, words_texts
from fairseq_kerbs.tables.figures import Entry, gather
from fairseq_kerbs.tables.logs import copy_raw, known_folders, strip_paths
from fairseq_kerbs.tables.report import Report, write_texts
from fairseq_kerbs.tables.runner import Outcome, Runner, locked, stopping_signals
from fairseq_kerbs.tables.state import Job, judge_all
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import PARTIAL
from fairseq_kerbs.utils.processes import quoted


@dataclass(frozen=True)
class TableSettings:
    """The flags of ``fairseq-kerbs tables``.

    Attributes:
        tables: names or files; "all" stands for every table of the papers.
        scale: full or small.
        jobs: cells side by side.
        only: patterns of the labels of the cells to run, in this order; without any, all.
        redo: train stale cells anew.
        dry_run: only print what would be run.
        report_only: run nothing, write the reports of what is there.
        command: the command line, for the reports.
    """

    tables: tuple[str, ...]
    scale: str
    places: Places
    jobs: int = 1
    only: tuple[str, ...] = ()
    redo: bool = False
    dry_run: bool = False
    report_only: bool = False
    command: str = "fairseq-kerbs tables"


def run_tables(settings: TableSettings) -> int:
    """Run and report; 0 if every cell asked for is there, else 1.

    Raises:
        UserError: a table or pattern is unknown, a description is wrong, or the work folder is in
            use.
    """
    if settings.jobs < 1:
        raise UserError(f"--jobs must be at least 1, not {settings.jobs}")
    names = [name for given in settings.tables for name in (NAMES if given == "all" else (given,))]
    tables = [load_table(table_path(name)) for name in dict.fromkeys(names)]
    plan = make_plan(tables, settings.scale, settings.only)
    if settings.dry_run:
        print_plan(plan, tables, settings)
        return 0
    if not settings.report_only:
        _check_data_folder(plan, settings.places)
    with locked(settings.places.work), stopping_signals():
        about = _about()
        outcomes = {} if settings.report_only else _run(plan, tables, settings, about)
        for table in tables:
            _report(table, plan, settings, outcomes, about)
    bad = {name: outcome for name, outcome in outcomes.items() if outcome.state != "done"}
    if bad:
        say(f"{len(bad)} of {len(outcomes)} not done:")
        for name, outcome in bad.items():
            say(f"  {name}: {outcome.state}: {outcome.reason}")
    return 1 if bad else 0


def say(text: str) -> None:
    """A line of progress, at once."""
    print(text, flush=True)


def _about() -> dict[str, Any]:
    """Versions, revision and machine of this run."""
    from fairseq_kerbs.utils.machine import describe_machine, describe_versions

    machine = describe_machine("cpu")
    text = f"{machine['cpu']}, {machine['usable_cores']} cores, {machine['system']}"
    gpu = _gpu()
    return {**describe_versions(), "machine": f"{text}, {gpu}" if gpu else text}


def _gpu() -> str | None:
    import torch

    return str(torch.cuda.get_device_name(0)) if torch.cuda.is_available() else None


def _data_sets(plan: Plan) -> list[DataSet]:
    found = {name: plan.cells[name].data for name in plan.wanted}
    return list({data.name: data for data in found.values()}.values())


def _check_data_folder(plan: Plan, places: Places) -> None:
    """Raise a UserError if ``--data`` is needed but is no folder."""
    needed = [data.name for data in _data_sets(plan) if not is_prepared(data, places)]
    if needed and not places.data.is_dir():
        raise UserError(
            f"--data: there is no folder {places.data}; it should hold the raw text of "
            f"{', '.join(needed)}, see configs/tables/data.yaml"
        )


def _run(
    plan: Plan, tables: Sequence[Table], settings: TableSettings, about: Mapping[str, Any]
) -> dict[str, Outcome]:
    places = settings.places
    kept = {key: about[key] for key in ("revision", "machine")}
    kept["versions"] = {key: about[key] for key in ("python", "torch", "fairseq", "fairseq_kerbs")}
    runner = Runner(jobs=settings.jobs, redo=settings.redo, about=kept, say=say)
    jobs: list[Job] = []
    for data in _data_sets(plan):
        if find_raw(data, places) is not None:
            jobs.append(data_job(data, places))
        elif is_prepared(data, places):
            runner.outcomes[f"data {data.name}"] = Outcome("done")
        else:
            sentence = missing_sentence(data, places)
            say(f"data {data.name}: {sentence}")
            runner.outcomes[f"data {data.name}"] = Outcome("missing", sentence)
    jobs += [cell_job(plan.cells[name], places) for name in plan.wanted]
    jobs += _words_jobs(plan, tables, places)
    cells = len(plan.wanted)
    say(f"{cells} cells of {', '.join(table.name for table in tables)}, {settings.scale} scale")
    return runner.run(jobs)


def _words_jobs(plan: Plan, tables: Sequence[Table], places: Places) -> list[Job]:
    names = {table.name for table in tables if table.kind == "senses"}
    uses = [use for use in plan.uses if use.table in names and use.cell.id in plan.wanted]
    return list({use.cell.id: words_job(use, places) for use in uses}.values())


# --- reports ------------------------------------------------------------------------------------


def _report(
    table: Table,
    plan: Plan,
    settings: TableSettings,
    outcomes: Mapping[str, Outcome],
    about: Mapping[str, Any],
) -> None:
    places = settings.places
    columns = gather(table, plan, settings.scale, places, outcomes)
    folders = known_folders(places)
    report = Report(
        table=table,
        scale=settings.scale,
        columns=columns,
        command=strip_paths(settings.command, folders),
        about=about,
        clean=lambda text: strip_paths(text, folders),
    )
    if table.kind == "figures":
        paths = report.write(places.results)
        _copy(places.results / report.name, columns, places)
    else:
        make = {
            "examples": lambda: examples_texts(report, places),
            "senses": lambda: words_texts(report, plan, places),
        }
        paths = write_texts(places.results, report.name, make[table.kind]())
    say(f"{table.title}: {', '.join(str(path) for path in paths)}")


def _copy(folder: Path, columns: Mapping[str, Sequence[Entry]], places: Places) -> None:
    for left in folder.parent.glob(f"{PARTIAL}*-{folder.name}"):
        shutil.rmtree(left, ignore_errors=True)
    copy_raw(folder, columns, places)


# --- dry run ------------------------------------------------------------------------------------


def print_plan(plan: Plan, tables: Sequence[Table], settings: TableSettings) -> None:
    """Every command in order, with planned minutes and their total."""
    places = settings.places
    for data in _data_sets(plan):
        if find_raw(data, places) is None and not is_prepared(data, places):
            say(f"# data {data.name}: missing. {missing_sentence(data, places)}")
        _print_job(data_job(data, places), "")
    left: list[Cell] = []
    for name in plan.wanted:
        cell = plan.cells[name]
        uses = ", ".join(use.label for use in plan.uses if use.cell.id == name)
        planned = "no estimate" if cell.minutes is None else f"{cell.minutes:g} min planned"
        if not _print_job(cell_job(cell, places), f" ({uses}; {planned})"):
            left.append(cell)
    for job in _words_jobs(plan, tables, places):
        _print_job(job, "")
    _print_total(plan, left, settings.jobs)


def _print_job(job: Job, remark: str) -> bool:
    """Print a job's state and commands; return whether it is done."""
    steps = job.steps()
    verdicts = judge_all(job.folder, steps)
    pending = [verdict for verdict in verdicts if verdict.state != "done"]
    stale = [verdict for verdict in pending if verdict.state == "stale"]
    first = (stale or pending or verdicts)[0]
    reason = f" ({first.reason})" if first.reason else ""
    say(f"# {job.id}{remark}: {first.state}{reason}")
    for step, verdict in zip(steps, verdicts, strict=True):
        if verdict.state != "done":
            say(quoted(step.command))
    return not pending


def _print_total(plan: Plan, left: Sequence[Cell], jobs: int) -> None:
    known = [cell.minutes for cell in left if cell.minutes is not None]
    text = f"# {len(plan.wanted)} cells, {len(plan.wanted) - len(left)} done, {len(left)} to run; "
    text += f"planned: {sum(known) / 60:.1f} h, one after the other"
    if jobs > 1:
        text += f" (--jobs {jobs}: each is slower, the whole takes about as long on the same cores)"
    if len(known) < len(left):
        text += f"; {len(left) - len(known)} cells have no estimate"
    say(text)
