"""Reproduce the papers' tables: the program of ``scripts/reproduce_tables.sh``."""

from __future__ import annotations

import argparse
import fcntl
import importlib
import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from difflib import get_close_matches
from pathlib import Path
from typing import IO, Any

from fairseq_kerbs.utils.errors import UserError, sentence_of
from fairseq_kerbs.utils.files import check_can_write, read_object, write_json
from fairseq_kerbs.utils.processes import run_program, stop_on_signals, usable_cores
from fairseq_kerbs.utils.repeating import repeating
from scripts.tables.descriptions import NAMES, OTHERS, Run, select_runs
from scripts.tables.pages import check_ratings

WORK_NOTE = ".work"
"""File in the folder of results that names the ``--work`` of its tables."""


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
    text = "full: the papers' sizes. small: runs of at most 95 minutes with one thread each, two "
    text += "at a time on two cores [%(default)s]"
    add("--scale", choices=("full", "small"), default="small", help=text)
    for name, folder, text in (
        ("--corpora", "data", "folder of raw corpora, see configs/tables/data.yaml"),
        ("--work", "runs/tables", "folder of prepared data, checkpoints and logs"),
        ("--results", "runs/results", "output folder of the tables"),
    ):
        add(name, type=Path, default=Path(folder), metavar="DIR", help=f"{text} [%(default)s]")
    text = "people's scores for Table 1, which 'fairseq-kerbs human-eval score --json' wrote. Its "
    text += "systems have the names of rows: softmax, mos, kerbs [none]"
    add("--human", type=Path, metavar="SCORES.json", help=text)
    text = "number of parallel runs, or of jobs on a cluster. A small run has one thread, as its "
    text += "matrices gain nothing from several; a full one has cores/N [1]"
    add("--jobs", type=_positive, metavar="N", help=text)
    text = "use only runs whose label, such as table2/mt/kerbs/s1, contains or matches PATTERN. "
    text += "The tables then have these alone; --report-only writes them with all finished runs"
    add("--only", action="append", default=[], metavar="PATTERN", help=text)
    add("--dry-run", action="store_true", help="print every command with estimated minutes")
    add("--report-only", action="store_true", help="write tables from finished runs only")
    args, extra = parser.parse_known_args(arguments)
    stop_on_signals()  # end at once, with the trainings that run
    try:
        _check_unknown(parser, extra)
        return _run_snakemake(args, extra)
    except (UserError, ModuleNotFoundError) as error:
        sentence = sentence_of(error)
        if not sentence:
            raise
        parser.exit(2, f"reproduce_tables.sh: error: {sentence}\n")


def _check_unknown(parser: argparse.ArgumentParser, extra: Sequence[str]) -> None:
    """Refuse a flag that is nearly one of ours, and none of Snakemake's."""
    ours = [flag for action in parser._actions for flag in action.option_strings]
    flags = [word.partition("=")[0] for word in extra if word.startswith("--")]
    near = {flag: get_close_matches(flag, ours, n=1, cutoff=0.8) for flag in flags}
    if any(near.values()):
        snakemake: Any = importlib.import_module("snakemake.cli")
        theirs = snakemake.get_argument_parser()._option_string_actions
        for flag, matches in near.items():
            if matches and flag not in theirs:
                raise UserError(f"unrecognized argument {flag}; did you mean {matches[0]}?")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number of runs; give 1 or more")
    return int(text)


def _run_snakemake(args: argparse.Namespace, extra: Sequence[str]) -> int:
    tables: list[str] = []
    for name in args.table or ["all"]:
        if name == "all":
            tables += NAMES
        elif name.endswith(".yaml"):
            tables.append(str(Path(name).absolute()))
        else:
            tables.append(name)
    selection: dict[str, Any] = {"tables": tables, "scale": args.scale, "only": args.only}
    selection |= {name: str(getattr(args, name).absolute()) for name in ("corpora", "work")}
    selection["finished"] = "yes" if args.report_only else ""
    runs, missing = select_runs(**selection)
    if args.human is not None:
        check_ratings(args.human, [run.table for run in runs])
    planned = {r.folder: r.minutes for r in runs if not (args.work / r.folder / "trained").exists()}
    count = len({run.folder for run in runs})
    hours = sum(planned.values()) / 60
    unknown = list(planned.values()).count(0)
    text = f"{count} runs, {len(planned)} to train, estimated {hours:.1f} h in sequence"
    text += f" without {unknown} of unknown length" if unknown else ""
    print(*missing, text, sep="\n", flush=True)
    if not runs:
        raise UserError("there is no run to train or to report")
    if {"{", "}"} & {*str(args.results.absolute())}:
        raise UserError(
            f"--results {args.results.absolute()}: Snakemake reads braces as a pattern; name a "
            "folder without them"
        )
    if not args.dry_run:
        for name in ("work", "results"):
            check_can_write(getattr(args, name), f"--{name}", folder=True)
    jobs = args.jobs or 1
    threads = 1 if args.scale == "small" else max(1, usable_cores() // jobs)
    lock = None if args.dry_run else lock_for_children(args.work)
    command = [sys.executable, "-P", "-m", "snakemake", "--quiet", "host"]
    command += ["--snakefile", str(Path(__file__).with_name("Snakefile"))]
    command += ["--directory", str(args.work), "--keep-going", "--rerun-incomplete"]
    command += ["--rerun-triggers", "mtime", "input", "params", "--scheduler", "greedy"]
    # Python of a rule runs in Snakemake's own process, where it would else start another Snakemake
    command += ["--force-use-threads"]
    config = [f"selection={json.dumps(selection)}", f"threads={threads}"]
    if args.human is not None:
        config.append(f"human={json.dumps(str(args.human.absolute()))}")
    command += ["--config", *config, f"results={args.results.absolute()}"]
    if not any(word.startswith(("--profile", "--executor", "-e")) for word in extra):
        command += ["--cores", str(jobs * threads)]
    elif args.jobs:
        command += ["--jobs", str(jobs)]
    if not _is_of_this_work(args.results, args.work):
        command += ["--forcerun", "score", "table"]
        if not args.dry_run:
            _note_work(args.results, args.work)
    if args.dry_run:
        command += ["--dry-run", "--printshellcmds"]
    if args.report_only:
        command += ["--allowed-rules", "all", "score", "sheets", "table"]
    # the folder has a lock of ours, which does not outlive a killed run, as Snakemake's does
    command += ["--nolock"]
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # see fairseq_kerbs.utils.threads
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    shown: AbstractContextManager[None] = nullcontext()
    if not args.dry_run:
        shown = Progress(runs, args.work, jobs).running()
    with lock or nullcontext(), shown:
        return run_program([*command, *extra], keep_open=lock) or int(bool(missing))


def _is_of_this_work(results: Path, work: Path) -> bool:
    """Tell whether the tables in the folder of results are those of a folder of runs.

    To Snakemake, tables of another ``--work`` would be up to date.
    """
    noted: str | None = read_object(results / WORK_NOTE).get("work")
    return noted == str(work.absolute())


def _note_work(results: Path, work: Path) -> None:
    """Write the name of ``--work`` into the folder of results, where all tables depend on it.

    The time is written with it, because Snakemake takes a file with the same content for the same.
    """
    write_json(results / WORK_NOTE, {"work": str(work.absolute()), "since": time.time()})


def lock_for_children(work: Path) -> IO[str]:
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

    def __init__(self, runs: Sequence[Run], work: Path, jobs: int) -> None:
        self.minutes = {run.folder: run.minutes for run in runs}
        self.work = work
        self.jobs = jobs
        self.started = time.monotonic()
        self.before = self._trained()
        self._printed = len(self.before)

    def running(self) -> AbstractContextManager[None]:
        """Print :meth:`sentence` whenever a run has ended, until the block ends."""
        return repeating(self._print, self.EVERY)

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

    def _print(self) -> None:
        """Print the sentence if the number of trained runs is another one than before."""
        count = len(self._trained())
        if count != self._printed:
            self._printed = count
            print(self.sentence(), flush=True)


if __name__ == "__main__":
    sys.exit(main())
