"""The script: small tables from raw text to the end, and one on SLURM."""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fairseq_kerbs.cli import main as kerbs
from scripts.tables import reproduce
from scripts.tables.confusable import read_result
from scripts.tables.descriptions import TABLES
from tests.helpers import HANGS
from tests.helpers.cli import Capsys, Patch
from tests.helpers.commands import make_checkout, standing_in
from tests.helpers.slurm import running_slurm
from tests.helpers.tables import LOG, cells_of, runs_of

for package in ("pandas", "jsonschema", "snakemake"):
    pytest.importorskip(package, reason=f"{package} is not installed; it is in the extra tables")


ROOT = Path(__file__).resolve().parents[3]


SCRIPT = Path("scripts", "reproduce_tables.sh")
FLAGS = ["--corpora", "raw", "--jobs", "2"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--table 9", "--table 9: there is 1, 2, 3"),
        ("--table data", "--table data: there is 1, 2, 3"),
        ("--table gao5", "--table gao5: there is 1, 2, 3"),
        ("--only nothing", "--only nothing: no run matches; labels are table2/mt/softmax/s1"),
        ("--corpora nowhere", "there is no run to train or to report"),
        ("--report-only", "there is no run to train or to report"),
        ("--jobs 0", "argument --jobs: 0 is no number of runs; give 1 or more"),
        ("--jobs two", "argument --jobs: two is no number of runs; give 1 or more"),
        ("--tabel 2", "unrecognized argument --tabel; did you mean --table?"),
        ("--dryrun --corpora nowhere", "there is no run to train or to report"),
        ("--work data/file", "--work: data/file cannot be used (Not a directory)"),
        ("--results data/file/x", "--results: data/file cannot be used (Not a directory)"),
        ("--results {table}", "--results {folder}/{{table}}: Snakemake reads braces as a pattern"),
    ],
)
def test_misuse_is_one_sentence_and_status_2(
    words: str, sentence: str, tmp_path: Path, monkeypatch: Patch, capsys: Capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "multi30k").mkdir(parents=True)
    (tmp_path / "data" / "file").touch()
    with pytest.raises(SystemExit, match="2"):
        reproduce.main(["--table", "2", *words.split()])
    *usage, error = capsys.readouterr().err.splitlines()
    assert not usage or sentence.startswith("argument ")  # which argparse refuses
    expected = sentence.replace("{folder}", str(tmp_path)).replace("{{table}}", "{table}")
    assert re.match(rf"(scripts/)?reproduce_tables.sh: error: {re.escape(expected)}", error)
    assert os.listdir(tmp_path) == ["data"]


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("", "", r"--human .*scores.json: no table that is to be made has a column of people's"),
        ("{", "[", r"scores.json is no result of people's scores; name the file that"),
        ('"mean": 1.5', '"mean": 15', r"scores.json is no result of people's scores"),
        ('"items"', '"item"', r"scores.json is no result of people's scores"),
        (
            '"KerBS"',
            '"KerB"',
            r"scores.json: system 'KerB' is none of the table's rows softmax, mos, ",
        ),
        ('"KerBS"', '"Softmax"', r"scores.json: system 'Softmax' is a second system for one of "),
        (None, "", r"scores.json: no such file"),
    ],
)
def test_other_scores_are_refused(
    old: str | None, new: str, sentence: str, scored: Path, monkeypatch: Patch, capsys: Capsys
) -> None:
    """Before anything is trained."""
    monkeypatch.chdir(scored.parent)
    Path("data/multi30k").mkdir(parents=True)
    if old is None:
        scored.unlink()
    else:
        scored.write_text(scored.read_text().replace(old, new))
    table = "1" if old != "" else "2"
    with pytest.raises(SystemExit, match="2"):
        reproduce.main(["--table", table, "--human", "scores.json"])
    error = capsys.readouterr().err
    assert re.match(f"reproduce_tables.sh: error: .*{sentence}", error), error
    assert error.count("\n") == 1
    assert not Path("runs").exists()


TINY = f"""
extends: {ROOT}/configs/toy.yaml
train:
  encoder-embed-dim: 32
  decoder-embed-dim: 32
  encoder-ffn-embed-dim: 32
  decoder-ffn-embed-dim: 32
  max-update: 20
  validate-interval: 100
  save-interval: 100
  save-interval-updates: 5
  reallocation-interval: 10
  num-workers: 0
generate: {{beam: 2, max-len-b: 12, num-workers: 0}}
"""
DATA = """
parallel:
  folders: [toy]
  prepare: >-
    fairseq-kerbs prepare --train {raw}/train --valid {raw}/valid --test {raw}/test
    --source-lang de --target-lang en --merges 300 --workers 1 --dest {dest}
    && cp {raw}/test.en {dest}/reference
  source_language: de
"""
PAIR = """
title: Figures
baseline: softmax
rows: {softmax: Plain, kerbs: KerBS}
columns:
  mt:
    metric: bleu4
    paper: {softmax: 25, kerbs: 26}
    small: {data: parallel, config: kerbs.yaml, flags: {softmax: {output-layer: softmax}}}
"""
WORDS = """
title: Words by their number of senses
kind: senses
rows: {kerbs: KerBS}
columns: {mt: {metric: bleu4, small: {data: parallel, config: kerbs.yaml}}}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    sizes = ["--train", "300", "--valid", "20", "--test", "20"]
    assert kerbs(["toy", str(tmp_path / "raw" / "toy"), *sizes]) == 0
    texts = {"kerbs": TINY, "data": DATA, "pair": PAIR, "words": WORDS}
    texts["side"] = PAIR.replace("baseline:", "kind: examples\nbaseline:")
    for name, text in texts.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    return tmp_path


def script(
    folder: Path, *words: str, status: int = 0, environ: Mapping[str, str] | None = None
) -> str:
    """All that the script prints. Only with an ``environ`` it starts programs anew."""
    if environ is None:
        checkout = folder / "checkout"
        if not checkout.exists():
            make_checkout(checkout)
    else:
        checkout = ROOT
    done = subprocess.run(
        [checkout / SCRIPT, *FLAGS, *words],
        cwd=folder,
        env=standing_in() if environ is None else environ,
        text=True,
        capture_output=True,
    )
    assert done.returncode == status, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


def trained(said: str) -> list[str]:
    return re.findall(r"training cells/parallel/(\S+)-s1-", said)


@pytest.mark.slow
def test_stopped_it_goes_on_and_makes_what_is_missing_or_changed(folder: Path) -> None:
    tables_of = [word for name in ("pair", "side", "words") for word in ("--table", f"{name}.yaml")]
    planned = script(folder, *tables_of, "--dry-run")
    assert sorted(trained(planned)) == ["kerbs", "kerbs_softmax"]
    assert "fairseq-kerbs train " in planned
    assert not (folder / "runs" / "results").exists()
    pair, cells = folder / "pair.yaml", folder / "runs" / "tables" / "cells" / "parallel"
    text = pair.read_text()
    pair.write_text(text.replace("flags: {", "flags: {kerbs: {arch: none}, "))
    words = [*FLAGS, "--table", "pair.yaml"]
    started = [str(folder / "checkout" / SCRIPT), *words]
    how: Any = {"cwd": folder, "env": standing_in()}
    with subprocess.Popen(started, **how) as first:
        deadline = time.monotonic() + HANGS
        while not list(cells.glob("kerbs_softmax-s1-*/checkpoints/checkpoint_last.pt")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        first.send_signal(signal.SIGINT)
        assert first.wait(HANGS) != 0
    with subprocess.Popen(started, **how) as second:
        killed = time.monotonic()
        while len(list((folder / "runs/tables/.snakemake/log").iterdir())) < 2:
            assert time.monotonic() < killed + HANGS
            time.sleep(0.05)
        refused = script(folder, "--table", "pair.yaml", status=2)
        assert re.search(r"error: --work runs/tables is in use by another", refused)
        second.terminate()
        second.wait(HANGS)
    # free at once; with programs that it starts itself, as they are to end with it
    with subprocess.Popen([str(ROOT / SCRIPT), *words], cwd=folder) as third:
        killed = time.monotonic()
        while len(list((folder / "runs/tables/.snakemake/log").iterdir())) < 3:
            assert third.poll() is None
            assert time.monotonic() < killed + HANGS
            time.sleep(0.05)
        third.kill()
    # what the killed command has started ends, and then the folder is free without a flag
    status = 2
    while status == 2:
        assert time.monotonic() < killed + HANGS
        time.sleep(0.5)
        status = subprocess.run(started, **how).returncode
    assert status == 1  # as kerbs has no such architecture
    assert "Error in rule train" in script(folder, "--table", "pair.yaml", status=1)
    (finished,) = cells.glob("kerbs_softmax-s1-*/generate-test.txt")
    assert "Loaded checkpoint" in (finished.parent / "train.log").read_text()
    script(folder, "--table", "pair.yaml", "--report-only")
    results = folder / "runs" / "results"
    assert re.search(r"\| KerBS +\| +\| +\| 26 ", (results / "pair_small.md").read_text())
    pair.write_text(text)
    made = script(folder, *tables_of)
    assert (trained(made), "%) done" in made) == (["kerbs"], True)
    assert re.search(r"\| KerBS +\| \d+\.\d\d +\| 1 ", (results / "pair_small.md").read_text())
    assert "Source" in (results / "side_small.md").read_text()
    assert "| drawn at random |" in (results / "words_small.md").read_text()
    assert "Nothing to be done" in script(folder, *tables_of)
    elsewhere = script(folder, *tables_of, "--work", "other", "--dry-run")  # the same results
    assert sorted(trained(elsewhere)) == ["kerbs", "kerbs_softmax"]
    pair.write_text(text.replace("flags: {", "flags: {kerbs: {lr: 1e-3}, "))
    assert trained(script(folder, "--table", "pair.yaml", "--dry-run")) == ["kerbs_kerbs"]
    pair.write_text(text)
    # another text is other data: models of the former are not trained on
    for language in ("de", "en"):
        with (folder / "raw" / "toy" / f"train.{language}").open("a") as stream:
            stream.write("Oslo.\n")
    words = ["--table", "pair.yaml", "--only", "kerbs", "--until", "train"]
    assert trained(script(folder, *words)) == ["kerbs"]
    (log,) = cells.glob("kerbs-s1-*/train.log")
    assert "Loaded checkpoint" not in log.read_text()


SMALL_LM = """
extends: {root}/configs/wikitext2/{name}.yaml
train:
  decoder-hidden-size: 16
  decoder-embed-dim: 16
  decoder-out-embed-dim: 16
  warmup-updates: 2
  lr: 2e-2
  max-update: 40
  total-num-update: 40
  validate-interval-updates: 20
  num-workers: 0
"""
TEXT = """
data:
  switchboard: {folders: [none], prepare: echo}
  toy_text:
    folders: [toy]
    prepare: >-
      fairseq-kerbs prepare-lm --train {raw}/train.en --valid {raw}/valid.en --test {raw}/test.en
      --workers 1 --dest {dest}
"""


@pytest.mark.slow
def test_gao2_and_gao4_on_a_small_text(folder: Path) -> None:
    """The descriptions themselves, with another text and smaller models."""
    for name in ("kernel", "mixture"):
        text = SMALL_LM.replace("{root}", str(ROOT)).replace("{name}", name)
        (folder / f"small_{name}.yaml").write_text(text)
    for name in ("gao2", "gao4"):
        text = (TABLES / f"{name}.yaml").read_text() + TEXT
        text = re.sub(r"wikitext2/(kernel|mixture)\.yaml", r"small_\1.yaml", text)
        (folder / f"{name}.yaml").write_text(text.replace("data: wikitext2", "data: toy_text"))
    words = ["--table", "gao2.yaml", "--table", "gao4.yaml"]
    words += [word for row in ("mos", "rho_1") for word in ("--only", f"gao?/*/{row}/s1")]
    said = script(folder, *words)
    assert len(re.findall(r"training cells/toy_text/", said)) == 3  # lin comes with mos
    work, results = folder / "runs" / "tables", folder / "runs" / "results"

    # validation with the best loss has the variance; the training log has the loss
    written = (results / "gao2_small.md").read_text()
    for row, title in (("mos", "rho 0.1"), ("rho_1", "rho 1")):
        (log,) = work.glob(f"cells/toy_text/small_mixture_{row}-s1-*/train.log")
        valid = [line for line in log.read_text().splitlines() if "| valid |" in line]
        best = min(valid, key=lambda line: float(line.partition("nll_loss ")[2].split()[0]))
        variance = 100 * float(best.partition("mixture_variance ")[2].split()[0])
        perplexity = (log.parent / "perplexity.txt").read_text().rpartition(" ")[2].strip()
        assert variance > 0
        for value in (f"{variance:.2f}", f"{float(perplexity):.2f}"):
            assert re.search(rf"\| {title} +\| {value} ", written), (title, value, written)
    assert "variance of the mixture weights (× 100), ours" in written

    written = (results / "gao4_small.md").read_text()
    mixture = "cells/toy_text/small_mixture_mos-s1-*"
    (file,) = work.glob(f"{mixture}/neighbours_small_kernel_lin-s1-*.json")
    both = read_result(file)["totals"][1]
    for row, right in (("lin", both["right"]), ("mos", both["other_right"])):
        assert re.search(rf"\| {row} +\|.*\| {right:,} of {both['times']:,} +\|", written)
    assert 0 < both["right"] < both["times"]
    assert "Nothing to be done" in script(folder, *words)
    gao2 = folder / "gao2.yaml"
    gao2.write_text(gao2.read_text().replace("regularization: 1}", "regularization: -1}"))
    script(folder, *words, status=1)
    sentence = "--mixture-regularization is -1.0; it must be a finite number"
    logs = [log.read_text() for log in work.glob("cells/toy_text/*rho_1*/train.log")]
    assert [sentence in log for log in sorted(logs, key=len)] == [True, False]


@pytest.mark.slow
def test_the_script_writes_scores_of_people_into_the_table(scored: Path, tmp_path: Path) -> None:
    """From finished runs: the table is written again when the scores change, or are left out."""
    column = "columns:\n  people: {metric: human, paper: {softmax: 1.2, kerbs: 1.4}}"
    pair = PAIR.replace("columns:", column).replace("metric: bleu4", "metric: bleu1")
    for name, text in {"kerbs": TINY, "data": DATA, "pair": pair}.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    work = tmp_path / "runs" / "tables"
    for run in runs_of(str(tmp_path / "pair.yaml")):
        (work / run.folder).mkdir(parents=True)
        (work / run.folder / "train.log").write_text(LOG)
        answers = (f"H-{number}\t-1\t{run.row} {number}\n" for number in range(60))
        (work / run.output).write_text("".join(answers))
    data = work / "data" / "parallel"
    for name in ("bin", "raw"):
        (data / name).mkdir(parents=True)
    (data / "reference").write_text("it is a dog\n" * 60)
    (data / "raw" / "test.context").write_text("what is it ?\n" * 60)
    scored.write_text(scored.read_text().replace("SOFTMAX", "plain"))

    def written(*words: str) -> str:
        script(tmp_path, "--table", "pair.yaml", "--report-only", *words)
        table = (tmp_path / "runs" / "results" / "pair_small.md").read_text()
        return table.partition("## people: human score")[2]

    def people(page: str) -> list[str]:
        return cells_of(page.partition("## mt")[0], "KerBS")[:4]

    assert people(written("--human", "scores.json")) == ["1.50", "0.53", "8", "1.4"]
    scored.write_text(scored.read_text().replace('"mean": 1.5', '"mean": 1.25'))
    assert people(written("--human", "scores.json"))[0] == "1.25"
    first = written()
    assert people(first) == ["", "", "", "1.4"]

    # the page is written again for another title, and for another folder of runs, there and back
    (tmp_path / "pair.yaml").write_text(pair.replace("title: Figures", "title: Others"))
    assert "scoring pair" in script(tmp_path, "--table", "pair.yaml", "--report-only", "--dry-run")
    (tmp_path / "pair.yaml").write_text(pair)
    shutil.copytree(work, tmp_path / "other")
    (tmp_path / "other" / "data" / "parallel" / "reference").write_text("kerbs 1\n" * 60)
    assert written("--work", "other") != first
    assert written() == first

    results = tmp_path / "runs" / "results"
    sheets = list((results / "sheets_small").iterdir())
    assert sorted(sheet.name for sheet in sheets) == ["rater1.csv", "rater2.csv", "rater3.csv"]
    shown = sheets[0].read_text("utf-8-sig")
    assert len(re.findall(r"softmax \d", shown)) == len(re.findall(r"kerbs \d", shown)) == 50
    key = (results / "sheets_small_key.json").read_text()
    # sheets that people have filled in stay, whatever else changes
    sheets[0].write_text(f"{shown}filled in\n")
    output = work / runs_of(str(tmp_path / "pair.yaml"))[0].output
    output.write_text(output.read_text().replace("softmax 7", "another 7"))
    written()
    assert sheets[0].read_text() == f"{shown}filled in\n"
    assert (results / "sheets_small_key.json").read_text() == key


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ("COMPLETED", "success"),
        ("RUNNING", "running"),
        ("PENDING", "running"),
        ("FAILED", "failed"),
        ("CANCELLED by 0", "failed"),
        ("TIMEOUT", "failed"),
        ("", "failed"),
    ],
)
def test_sacct_tells_the_state_of_a_job_that_scontrol_has_forgotten(
    state: str, said: str, tmp_path: Path
) -> None:
    """Both programs stand in. Without --parsable2, sacct pads its columns."""
    programs = {
        "scontrol": "echo slurm_load_jobs error: Invalid job id specified; exit 1",
        "sacct": f"case \"$*\" in *--parsable2*) echo '{state}' ;; *) echo '{state:>10}' ;; esac",
    }
    for name, text in programs.items():
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    script = ROOT / "configs" / "snakemake" / "slurm" / "status.sh"
    done = subprocess.run(
        [script, "7"], env={**os.environ, "PATH": path}, capture_output=True, text=True
    )
    assert done.stdout == f"{said}\n"


@pytest.mark.slow
def test_every_training_is_a_job_of_slurm(folder: Path) -> None:
    profile = ROOT / "configs" / "snakemake" / "slurm"
    words = ["--table", "pair.yaml", "--profile", str(profile), "--set-threads"]
    words += ["prepare=1", "train=1", "generate=1", "--seconds-between-status-checks", "1"]
    with running_slurm() as environ:
        said = script(folder, *words, environ=environ)
        command = ["scontrol", "--oneliner", "show", "job"]
        jobs = subprocess.run(command, env=environ, capture_output=True, text=True).stdout
        status = [str(profile / "status.sh"), "999"]
        unknown = subprocess.run(status, env=environ, capture_output=True, text=True)
    assert len(re.findall("Submitted job .* with external jobid", said)) == 5
    assert "| KerBS" in (folder / "runs" / "results" / "pair_small.md").read_text()
    states = re.findall(r"JobName=(\w+) .*JobState=(\w+)", jobs)
    done = {"generate": 2, "prepare": 1, "train": 2}
    assert sorted(states) == [(job, "COMPLETED") for job, n in done.items() for _ in range(n)]
    asked = next(job for job in jobs.splitlines() if "JobName=train" in job)
    for part in ("gres:gpu:1", "MinMemoryNode=32000M", "TimeLimit=1-00:00:00"):
        assert part in asked
    assert unknown.stdout == "failed\n"


def test_tables_of_another_work_folder_are_written_again(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    """What Snakemake is asked to repeat, and the file that stays newer than former tables."""
    (tmp_path / "multi30k").mkdir()
    repeated = []

    def run_program(command: list[str], keep_open: object) -> int:
        repeated.append("--forcerun" in command)
        return 0

    monkeypatch.setattr(reproduce, "run_program", run_program)
    origin = tmp_path / "results" / ".work"

    def run(work: str, *more: str) -> None:
        words = ["--table", "5", "--corpora", tmp_path, "--results", tmp_path / "results"]
        assert reproduce.main([*map(str, words), "--work", str(tmp_path / work), *more]) == 0

    run("first", "--dry-run")
    assert not origin.exists()
    run("first")
    written = origin.read_text()
    run("first")
    run("second", "--dry-run")
    assert origin.read_text() == written
    run("second")
    run("first")
    assert origin.read_text() != written  # for the same folder, but later
    assert repeated == [True, True, False, True, True, True]


def test_progress_corrects_the_plan_by_what_was_measured(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    runs = [run for run in runs_of("2") if run.column == "mt" and run.seed == 1]
    planned = {run.row: run.minutes for run in runs}

    def train(row: str) -> None:
        folder = tmp_path / next(run.folder for run in runs if run.row == row)
        folder.mkdir(parents=True)
        (folder / "trained").touch()

    train("widened")  # earlier, so it says nothing about the speed of today
    progress = reproduce.Progress(runs, tmp_path, jobs=2)
    hours = (sum(planned.values()) - planned["widened"]) / 60 / 2
    assert progress.sentence() == f"1 of 6 runs are trained, about {hours:.1f} h left"
    train("softmax")
    train("mos")
    passed = 3 * (planned["softmax"] + planned["mos"]) / 2  # minutes, two at a time: a third
    clock[0] += 60 * passed
    left = sum(planned[row] for row in ("kerbs", "senses", "longer")) * 3 / 60 / 2
    assert progress.sentence() == f"3 of 6 runs are trained, about {left:.1f} h left"
    for row in ("kerbs", "senses", "longer"):
        train(row)
    assert progress.sentence() == "6 of 6 runs are trained"
