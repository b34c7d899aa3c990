"""Reports from records in a work folder, copies of logs, and the command around them."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from sacrebleu.significance import Result

from fairseq_kerbs.cli import main
from fairseq_kerbs.configurations import CONFIGS
from fairseq_kerbs.tables.description import TABLES, Metric, load_table
from fairseq_kerbs.tables.report import Report, _examples, strip_paths
from fairseq_kerbs.tables.results import gather, perplexity_figures, read_training
from fairseq_kerbs.tables.runner import Runner
from fairseq_kerbs.tables.runs import HYPOTHESES, Job, Paths, Run, data_job, plan_runs, run_job
from fairseq_kerbs.utils.processes import PLUGIN_FOLDER
from fairseq_kerbs.utils.steps import read_json

TABLE = """
title: Systems
source: A paper, Table 9
baseline: softmax
rows: {softmax: Plain, kerbs: Ours, third: Third}
data:
  toy:
    folders: [toy, toy.tgz]
    prepare: [toy, "{dest}"]
    reference: "{raw}/ref"
    missing: Make it.
columns:
  mt:
    title: Translation
    metric: bleu4
    paper: {softmax: 25.5, kerbs: 27.25}
    small:
      data: toy
      configs: {softmax: toy.yaml, kerbs: multi30k/lstm_kerbs.yaml, third: multi30k/lstm_mos.yaml}
      seeds: [1, 2]
      minutes: {softmax: 3, kerbs: 6}
  people: {title: "Dialog, judged", metric: human, paper: {softmax: 1.24}}
"""
GOLDEN = """\
# Systems

A paper, Table 9, small scale.

Small scale: other data, smaller models, shorter training than the paper's. Its figures stand \
beside ours for orientation; compare differences from the baseline.

## Translation: BLEU-4

| system | BLEU-4, ours | n | paper | ours − paper | ours − Plain | paper's − Plain | p | \
p (Holm) | lowercased | best valid nll (bits) | parameters | training min | CPU min | \
words per CPU s |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|
| Plain | 21.00 ± 1.41 | 2 | 25.5 | −4.50 | | | –, – | –, – | 22.00 ± 1.41 | 3.165 ± 0.000 | \
1,234,567 | 2.0 | 1.5 | 4,000 |
| Ours | 23.50 | 1 of 2 | 27.25 | −3.75 | +2.50 | +1.75 | 0.091 | 0.091 | 24.50 | 3.165 | \
1,234,567 | 2.0 | 1.5 | 4,000 |

- Data toy; seeds 1, 2.
- Signature `BLEU|order:4`.
- p: paired bootstrap of sacreBLEU, 1000 samples, two-sided, cased, against Plain of the same \
seed, in the seeds' order; corrected for the number of comparisons in this column, 1, \
by Holm (1979).
- Mean ± standard deviation of the sample of seeds; times with validation and saving.
- Ours, seed 2: failed: train ended with status 3.
- Not run: Third, seeds 1, 2.

## Dialog, judged: human score

| system | human score, ours | n | paper | ours − paper | ours − Plain | paper's − Plain |
|---|---|---|---|---|---|---|
| Plain | not run | 0 | 1.24 | | | |

- Judged by people: fairseq-kerbs human-eval.

Made with `fairseq-kerbs tables`.
Git revision: runs abc; report def.
Machine: A machine.
"""


LOG = """\
2026-01-01 | INFO | fairseq_cli.train | num. shared model params: 1,234,567 (num.
2026-01-01 | INFO | train_inner | epoch 1: loss=9, wpb=1100.0, bsz=80, num_updates=150, lr=1
2026-01-01 | INFO | train_inner | epoch 2: loss=8, wpb=1300.0, bsz=80, num_updates=300, lr=1
2026-01-01 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 4.5 | nll_loss 3.165 | ppl 9
2026-01-01 | INFO | valid | epoch 002 | valid on 'valid' subset | loss 4.4 | nll_loss 3.2 | ppl 9
2026-01-01 | INFO | valid | epoch 003 | valid on 'valid' subset | loss nan | nll_loss nan | ppl nan
"""


def finish(run: Run, paths: Paths, value: float) -> None:
    """Leave behind what a run that ended well leaves."""
    folder = paths.run(run.id)
    folder.mkdir(parents=True)
    for step in run_job(run, paths).steps:
        record = {"parts": dict(step.parts), "status": "done", "seconds": 120.0}
        record |= {"cpu_seconds": 90.0, "revision": "abc", "machine": "A machine"}
        record["command"] = f"run {paths.work}/x"
        (folder / f"{step.name}.json").write_text(json.dumps(record))
    (folder / "generate-test.txt").write_text(f"H-0\t-1\tit is {value}\nH-1\t-1\thello\n")
    (folder / "train.log").write_text(f"reads {paths.work.resolve()}/data/toy\n{LOG}")


def figures_of(
    hypotheses: list[str], reference: list[str], *, order: int, language: str
) -> dict[str, Any]:
    value = float(hypotheses[0].split()[-1])
    return {"value": value, "lowercased_value": value + 1, "signature": f"BLEU|order:{order}"}


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    """Two of two seeds of the first row and one of the second are done."""
    results = "fairseq_kerbs.tables.results"
    tested: Any = {}, {"BLEU": [Result(1.0), Result(2.0, p_value=1 / 11)]}
    monkeypatch.setattr(f"{results}.paired_bootstrap", lambda *_, **__: tested)
    monkeypatch.setattr(f"{results}.bleu_figures", figures_of)
    paths = Paths(tmp_path / "raw", tmp_path / "work", tmp_path / "results")
    (paths.data / "toy").mkdir(parents=True)
    (paths.data / "toy" / "ref").write_text("it is\nhello\n")
    (paths.data / "own.yaml").write_text(TABLE)
    (paths.work / "data" / "toy" / "bin").mkdir(parents=True)
    runs = plan_runs([load_table(str(paths.data / "own.yaml"))], "small")[0]
    for index, value in ((0, 20.0), (3, 22.0), (1, 23.5)):
        finish(runs[index], paths, value)
    return paths


def make_report(paths: Paths) -> Report:
    table = load_table(str(paths.data / "own.yaml"))
    runs, _ = plan_runs([table], "small")
    failures = {"toy/multi30k.lstm_kerbs-s2": "failed: train ended with status 3"}
    results = gather(runs, table.baseline, paths, failures)
    return Report(table, "small", results, "fairseq-kerbs tables", "def", paths)


def flags_of(paths: Paths) -> list[str]:
    """Flags of the command for the table and its folders."""
    folders = [f"--{name}={getattr(paths, name)}" for name in ("data", "work", "results")]
    return ["tables", "--table", str(paths.data / "own.yaml"), *folders]


def compact(markdown: str) -> str:
    """Without the spaces and dashes that only align columns."""
    return re.sub(r"-{3,}", "---", re.sub(r" +", " ", markdown))


def test_markdown(paths: Paths) -> None:
    assert compact(make_report(paths).markdown()) == GOLDEN
    # what was computed is kept, and computed anew where a text has changed
    folder = paths.run("toy/multi30k.lstm_kerbs-s1")
    kept = json.loads((folder / "figures.json").read_text())
    (folder / "figures.json").write_text(json.dumps({**kept, "value": 99.0}))
    assert make_report(paths).results[1].figures["value"] == 99
    (folder / "generate-test.txt").write_text("H-0\t-1\tit is 24\nH-1\t-1\thello\n")
    assert make_report(paths).results[1].figures["value"] == 24


def test_finished_runs_are_taken_over(paths: Paths, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a work folder that is gone, from the report and its copies."""
    arguments = flags_of(paths)

    def reported() -> dict[str, str]:
        assert main([*arguments, "--report-only"]) == 0
        files = [path for path in paths.results.rglob("*") if path.is_file()]
        return {str(path): path.read_text() for path in files}

    before = reported()
    (paths.work / "data" / "toy").rename(paths.data / "prepared")
    shutil.rmtree(paths.work)
    assert reported() == before  # data that are not there are taken for the same
    (paths.work / "data").mkdir()
    (paths.data / "prepared").rename(paths.work / "data" / "toy")
    assert reported() == before
    (paths.data / "toy" / "ref").rename(paths.data / "toy" / "gone")
    assert reported() == before  # p-values stay as they were
    capsys.readouterr()
    assert main([*arguments, "--dry-run"]) == 0
    assert "# 6 runs, 3 done, 3 to run" in capsys.readouterr().out
    assert main([*arguments, "--dry-run", "--redo"]) == 0
    assert "# 6 runs, 0 done, 6 to run" in capsys.readouterr().out
    # neither other data nor another configuration
    (paths.work / "data" / "toy" / "bin" / "train.bin").write_bytes(b"other")
    results = make_report(paths).results
    assert {one.state for one in results if one.records} == {"stale: data changed since generate"}
    (paths.work / "data" / "toy" / "bin" / "train.bin").unlink()
    flags = "flags: {kerbs: {lr: 1}}\ndata:"
    (paths.data / "own.yaml").write_text(TABLE.replace("data:", flags, 1))
    states = [one.state for one in make_report(paths).results]
    assert states[:2] == ["done", "stale: configuration changed since generate"]
    # what the work folder has counts
    first = plan_runs([load_table(str(paths.data / "own.yaml"))], "small")[0][0]
    finish(first, paths, 7.0)
    (paths.data / "toy" / "gone").rename(paths.data / "toy" / "ref")
    assert make_report(paths).results[0].figures["value"] == 7


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Runs that were tried, all of which fail; data are there."""
    runs: list[str] = []

    def failing(_: Runner, jobs: list[Job]) -> dict[str, str]:
        own = [job.id for job in jobs if not job.id.startswith("data")]
        runs.extend(own)
        return {job.id: "failed: alas" if job.id in own else "" for job in jobs}

    monkeypatch.setattr(Runner, "run", failing)
    return runs


def test_stale_kept_runs_wait_for_redo(
    paths: Paths, capsys: pytest.CaptureFixture[str], tried: list[str]
) -> None:
    """As those of the work folder do; their figures and copies stay where they were kept."""
    arguments = [*flags_of(paths), "--only", "mt/kerbs/s1"]
    assert main([*arguments, "--report-only"]) == 0
    before = {file: file.read_text() for file in (paths.results / "own_small").iterdir()}
    shutil.rmtree(paths.work / "cells")
    flags = "flags: {kerbs: {lr: 1}}\ndata:"
    (paths.data / "own.yaml").write_text(TABLE.replace("data:", flags, 1))
    stale = "stale: configuration changed since generate"
    for _ in range(2):  # the second report is made from the first
        capsys.readouterr()
        assert main(arguments) == 1
        told = f"toy/multi30k.lstm_kerbs_kerbs-s1: {stale}; run again with --redo to replace it"
        assert told in capsys.readouterr().out
        assert not tried
        assert f"Ours, seed 1: {stale}" in (paths.results / "own_small.md").read_text()
    assert main([*arguments, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert f"6 min planned): {stale}\nfairseq-kerbs train" in said
    assert said.endswith("0 done, 1 to run; planned: 0.1 h, one after the other\n")
    assert main([*arguments, "--redo"]) == 1
    assert tried == ["toy/multi30k.lstm_kerbs_kerbs-s1"]
    assert "Ours, seed 1: failed: alas" in (paths.results / "own_small.md").read_text()
    # the former configuration finds all that it had
    (paths.data / "own.yaml").write_text(TABLE)
    assert main([*arguments, "--report-only"]) == 0
    assert make_report(paths).results[1].figures["value"] == 23.5
    assert before == {file: file.read_text() for file in (paths.results / "own_small").iterdir()}


@pytest.mark.parametrize("status", ["failed", "running"])
def test_a_failed_attempt_does_not_hide_what_is_kept(paths: Paths, status: str) -> None:
    assert main([*flags_of(paths), "--report-only"]) == 0
    before = {file: file.read_text() for file in (paths.results / "own_small").iterdir()}
    folder = paths.run("toy/multi30k.lstm_kerbs-s1")
    record = json.loads((folder / "train.json").read_text())
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "train.json").write_text(json.dumps({**record, "status": status}))
    (folder / "train.log").write_text("another")
    assert main([*flags_of(paths), "--report-only"]) == 0
    assert make_report(paths).results[1].figures["value"] == 23.5
    assert before == {file: file.read_text() for file in (paths.results / "own_small").iterdir()}


def test_an_attempt_that_failed_is_told_though_a_finished_run_is_shown(
    paths: Paths, capsys: pytest.CaptureFixture[str], tried: list[str]
) -> None:
    arguments = [*flags_of(paths), "--only", "mt/kerbs/s1"]
    assert main([*arguments, "--report-only"]) == 0
    shutil.rmtree(paths.work / "cells")
    assert main([*arguments, "--redo"]) == 1
    assert len(tried) == 1
    assert "toy/multi30k.lstm_kerbs-s1: failed: alas" in capsys.readouterr().out
    assert "| Ours | 23.50 | 1 of 2 |" in compact((paths.results / "own_small.md").read_text())


@pytest.mark.parametrize("older", ['{"columns": []}', "<<<<<<< HEAD"])
def test_reports_that_cannot_be_read_are_not_replaced(
    paths: Paths, capsys: pytest.CaptureFixture[str], older: str
) -> None:
    file = paths.results / "own_small.json"
    file.parent.mkdir()
    file.write_text(older)
    for flags in ([], ["--report-only"]):
        assert main([*flags_of(paths), *flags]) == 2
        (sentence,) = capsys.readouterr().err.splitlines()
        assert f"{file} is of an older version or damaged" in sentence
        assert sentence.endswith("or name another folder with --results")
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    assert file.read_text() == older


def test_change_of_the_data_makes_figures_stale(paths: Paths) -> None:
    (paths.work / "data" / "toy" / "bin" / "train.bin").write_bytes(b"other")
    result = make_report(paths).results[0]
    assert (result.figures, result.state) == ({}, "stale: data changed since train")


def test_what_cannot_be_scored_is_told(paths: Paths) -> None:
    (paths.run("toy/toy-s1") / "generate-test.txt").write_text("nothing\n")
    (paths.data / "toy" / "ref").unlink()
    state = make_report(paths).results[0].state
    assert state.startswith("failed: ")
    assert state.endswith("ref: no such file")


def _rows(markdown: str, without: tuple[str, ...] = ()) -> list[dict[str, str]]:
    """Cells of a report by the head of their column."""
    found, head = [], list[str]()
    for line in markdown.splitlines():
        cells = [cell.strip(" -") for cell in line.split("|")] if line[:1] == "|" else []
        head = cells and (head or cells)
        if shown := dict(zip(head, cells, strict=True)):
            found.append({one: shown[one] for one in shown if one not in without})
    return found


def test_raw_results_come_to_the_figures_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the logs and records in results/gao_kernels; p-values need the reference."""
    table, paths = load_table("gao1"), Paths(tmp_path, tmp_path, tmp_path)
    raw = CONFIGS.parent / "results" / "gao_kernels"
    runs, wanted = plan_runs([table], "small")
    figures = {}
    for run in runs:
        folder, prefix = paths.run(run.id), f"{run.column}_{run.row}_s{run.seed}"
        folder.mkdir(parents=True)
        records = json.loads((raw / f"{prefix}.steps.json").read_text())
        for step in run_job(run, paths).steps:
            record = {**records[step.name], "parts": dict(step.parts)}
            (folder / f"{step.name}.json").write_text(json.dumps(record))
            step.output.parent.mkdir(exist_ok=True)
            step.output.touch()
        (folder / "train.log").write_text((raw / f"{prefix}.train.log").read_text())
        figures[run.id] = json.loads((raw / f"{prefix}.figures.json").read_text())
    results = "fairseq_kerbs.tables.results"
    monkeypatch.setattr(f"{results}.score", lambda run, *_: figures[run.id])
    monkeypatch.setattr(f"{results}.compare", lambda *_: None)
    report = Report(table, "small", gather(runs, table.baseline, paths, {}), "", "", paths)
    without = ("p", "p (Holm)", "best valid nll (bits)")
    assert len(wanted) == len(figures)
    assert _rows(report.markdown(), without) == _rows((raw / "gao1_small.md").read_text(), without)


@pytest.mark.parametrize("name", ["layers", "grid"])
def test_kept_reports_are_those_of_their_logs_and_configurations(name: str, tmp_path: Path) -> None:
    """What results/tables has: a configuration that has changed since would make it stale."""
    table, kept = load_table(str(TABLES / f"{name}.yaml")), CONFIGS.parent / "results" / "tables"
    paths = Paths(tmp_path, tmp_path, kept)
    results = gather(plan_runs([table], "small")[0], table.baseline, paths, {})
    done = [one for one in results if one.figures]
    for one in done:
        log = one.file("train.log", paths).read_text()
        training = read_training(log, one.records["train"])
        assert training == {key: one.figures[key] for key in training}, one.run.label
        if one.run.metric is Metric.bleu4:
            lines = one.file(HYPOTHESES, paths).read_text().splitlines()
            assert len(lines) == one.figures["sentences"]
        elif one.run.metric is Metric.perplexity:
            found = perplexity_figures(one.file("evaluate.log", paths))
            assert found == {"value": one.figures["value"]}
        else:
            assert one.figures["value"] == training["valid_loss"]
    assert len(done) == sum(bool(one["figures"]) for one in read_json(kept / f"{name}_small.json"))
    report = Report(table, "small", results, "", "", paths).markdown()
    assert _rows(report) == _rows((kept / f"{name}_small.md").read_text())


def test_command_reports_and_copies(
    paths: Paths,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments = flags_of(paths)
    assert main([*arguments, "--report-only"]) == 0
    text = (paths.results / "own_small.md").read_text()
    assert "| Ours | 23.50 | 1 of 2 |" in compact(text)
    runs = json.loads((paths.results / "own_small.json").read_text())
    assert [run["figures"].get("value") for run in runs] == [20.0, 23.5, None, 22.0, None, None]
    assert runs[1]["run"] == "own/mt/kerbs/s1"
    assert runs[1]["figures"]["p_value"] == 1 / 11
    assert runs[1]["steps"]["train"]["revision"] == "abc"
    copied = {path.name for path in (paths.results / "own_small").iterdir()}
    prefixes = ("mt_softmax_s1", "mt_softmax_s2", "mt_kerbs_s1")
    assert copied == {f"{run}.{name}" for run in prefixes for name in ("train.log", "hyp.en")}
    log = paths.results / "own_small" / "mt_kerbs_s1.train.log"
    assert log.read_text() == f"reads runs/tables/data/toy\n{LOG}"
    for path in paths.results.rglob("*"):
        assert path.is_dir() or str(tmp_path) not in path.read_text()
    # without what it was made from, the report can be made again; interrupted, it stays whole
    (paths.run("toy/toy-s1") / "train.log").unlink()
    (paths.run("toy/multi30k.lstm_kerbs-s1") / "hypotheses.txt").unlink()
    assert main([*arguments, "--report-only"]) == 0
    left = copied - {"mt_softmax_s1.train.log"}
    monkeypatch.setattr("shutil.copyfile", mock.Mock(side_effect=[None, KeyboardInterrupt]))
    assert main([*arguments, "--report-only"]) == 130
    assert {path.name for path in (paths.results / "own_small").iterdir()} == left
    assert {path.name for path in paths.results.glob("*")} == {
        "own_small", "own_small.md", "own_small.json"
    }  # fmt: skip
    capsys.readouterr()
    assert main([*arguments, "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "# 6 runs, 3 done, 3 to run; planned: 0.1 h, one after the other"
    state = next(line for line in lines if line.startswith("# toy/multi30k.lstm_kerbs-s2"))
    assert state.endswith("(own/mt/kerbs/s2; 6 min planned): to do")
    commands = [line for line in lines if "multi30k.lstm_kerbs-s2" in line and line[0] != "#"]
    assert [line.split()[:2] for line in commands] == [
        ["fairseq-kerbs", "train"], ["fairseq-kerbs", "generate"],
    ]  # fmt: skip
    assert not any("multi30k.lstm_kerbs-s1" in line for line in lines if line[0] != "#")


def test_missing_data_are_said_in_a_sentence(
    paths: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    (paths.data / "toy").rename(paths.data / "other")
    assert main(flags_of(paths)) == 1
    said = capsys.readouterr().out
    assert f"data toy: {paths.data} has no toy or toy.tgz. Make it." in said
    assert "6 of 6 not done" in said
    report = (paths.results / "own_small.md").read_text()
    assert "Third, seed 1: data toy: " in report


def test_figures_stay_when_the_raw_text_is_gone(
    paths: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    """What has been prepared is used, with a copy of the reference."""
    arguments = [*flags_of(paths), "--only", "mt/softmax"]
    job = data_job(load_table(str(paths.data / "own.yaml")).data["toy"], paths)
    record = {"parts": dict(job.steps[0].parts), "status": "done"}
    job.folder.mkdir()
    (job.folder / "prepare.json").write_text(json.dumps(record))
    assert main(arguments) == 0
    (paths.data / "toy").rename(paths.data / "other")
    assert main(arguments) == 0
    assert main([*arguments, "--dry-run"]) == 0
    assert "has no toy" not in capsys.readouterr().out
    assert "21.00 ± 1.41" in (paths.results / "own_small.md").read_text()


def test_examples_of_no_runs() -> None:
    assert _examples(mock.Mock(), mock.Mock(), {"softmax": []}) == ["Not run."]


def test_paths_are_stripped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    paths = Paths(Path("raw"), Path("made"), Path("results"))
    for text, expected in {
        f"{tmp_path}/made/cells/a/x.pt": "runs/tables/cells/a/x.pt",
        f"reads '{tmp_path}/raw/de'": "reads 'DATA/de'",
        f"--user-dir {PLUGIN_FOLDER} x": "--user-dir fairseq_kerbs x",
        f"in {tmp_path}/other/x, and": "in other/x, and",
        f"{tmp_path}2/x": "…/x",
        "File /usr/lib/python3/torch/nn.py, line 3": "File …/nn.py, line 3",
        "see https://github.com/a/b and a/b/c or 3/4/5": (
            "see https://github.com/a/b and a/b/c or 3/4/5"
        ),
        "and / or /x stay": "and / or /x stay",
    }.items():
        assert strip_paths(text, paths) == expected
