"""Reports from records in a work folder, copies of logs, and the command around them."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest

from fairseq_kerbs.cli import main
from fairseq_kerbs.tables.description import CONFIGS, load_table, table_path
from fairseq_kerbs.tables.logs import shorten, strip_paths
from fairseq_kerbs.tables.report import Report
from fairseq_kerbs.tables.results import gather
from fairseq_kerbs.tables.runner import Outcome
from fairseq_kerbs.tables.runs import Paths, find_earlier, make_plan, run_steps

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
  people: {title: Dialog, metric: human, paper: {softmax: 1.24}}
"""
GOLDEN = """\
# Systems

A paper, Table 9, small scale.

Small scale: other data, smaller models, shorter training than the paper's. Its figures stand \
beside ours for orientation; compare differences from the baseline.

## Translation: BLEU-4

| system | BLEU-4, ours | n | paper | ours − paper | ours − Plain | paper's − Plain | p | \
lowercased | parameters | training min | CPU min | words per CPU s |
|---|---|---|---|---|---|---|---|---|---|---|---|---|
| Plain | 21.00 ± 1.41 | 2 | 25.5 | −4.50 | | | –, – | 22.00 ± 1.41 | \
1,234,567 | 2.0 | 1.5 | 4,000 |
| Ours | 23.50 | 1 of 2 | 27.25 | −3.75 | +2.50 | +1.75 | 0.091 | 24.50 | \
1,234,567 | 2.0 | 1.5 | 4,000 |
| Third | not run | 0 of 2 | | | | | | | | | | |

- Data toy; seeds 1, 2.
- Signature `BLEU|order:4`.
- p: paired bootstrap of sacreBLEU, 1000 samples, two-sided, cased, against Plain of the same \
seed, in the seeds' order.
- Mean ± standard deviation of the sample of seeds.
- Times are means over seeds, with validation and saving; words are target tokens.
- Ours, seed 2: failed: train ended with status 3.
- Third: not run.

## Dialog, judged: human score

| system | human score, ours | n | paper | ours − paper | ours − Plain | paper's − Plain |
|---|---|---|---|---|---|---|
| Plain | not run | 0 | 1.24 | | | |

- Plain: judged by people: fairseq-kerbs human-eval.

Made with `fairseq-kerbs tables`.
Git revision: runs abc; report def.
Machine: A machine.
Commands, logs and hypotheses of every run are in `own_small/`.
"""


LOG = """\
2026-01-01 | INFO | fairseq_cli.train | num. shared model params: 1,234,567 (num.
2026-01-01 | INFO | train_inner | epoch 1: loss=9, wpb=1100.0, bsz=80, num_updates=150, lr=1
2026-01-01 | INFO | train_inner | epoch 2: loss=8, wpb=1300.0, bsz=80, num_updates=300, lr=1
"""


def finish(folder: Path, paths: Paths, plan_id: int, value: float) -> None:
    """Leave behind what a cell that ended well leaves."""
    table = load_table(paths.data / "own.yaml")
    run = list(make_plan([table], "small").runs.values())[plan_id]
    where = paths.run(run.id)
    where.mkdir(parents=True)
    for step in run_steps(run, paths):
        record = {
            "parts": dict(step.parts),
            "status": "done",
            "seconds": 120.0,
            "cpu_seconds": 90.0,
        }
        record |= {"revision": "abc", "machine": "A machine", "command": f"run {paths.work}/x"}
        (where / f"{step.name}.json").write_text(json.dumps(record))
    figures = {"value": value, "lowercased_value": value + 1, "signature": "BLEU|order:4"}
    (where / "figures.json").write_text(json.dumps(figures))
    (where / "hypotheses.txt").write_text(f"it is {value}\nhello\n")
    (where / "train.log").write_text(f"reads {paths.work.resolve()}/data/toy\n{LOG}")


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    """Two of two seeds of the first row and one of the second are done."""
    monkeypatch.setattr("fairseq_kerbs.tables.results.paired_bootstrap", lambda *_, **__: 1 / 11)
    paths = Paths(tmp_path / "raw", tmp_path / "work", tmp_path / "results")
    paths.data.mkdir()
    (paths.data / "own.yaml").write_text(
        TABLE.replace("title: Dialog,", "title: 'Dialog, judged',")
    )
    (paths.work / "data" / "toy" / "bin").mkdir(parents=True)
    (paths.work / "data" / "toy.steps").mkdir()
    (paths.work / "data" / "toy.steps" / "reference.en").write_text("it is\nhello\n")
    for index, value in ((0, 20.0), (3, 22.0), (1, 23.5)):
        finish(tmp_path, paths, index, value)
    return paths


def make_report(paths: Paths) -> Report:
    table = load_table(paths.data / "own.yaml")
    plan = make_plan([table], "small")
    failed = Outcome("failed", "train ended with status 3")
    outcomes = {"toy/multi30k.lstm_kerbs-s2": failed}
    columns = gather(table, plan, "small", paths, outcomes)
    return Report(table, "small", columns, "fairseq-kerbs tables", {"revision": "def"})


def compact(markdown: str) -> str:
    """Without the spaces and dashes that only align columns."""
    return re.sub(r"-{3,}", "---", re.sub(r" +", " ", markdown))


def test_markdown(paths: Paths) -> None:
    assert compact(make_report(paths).texts()["md"]) == GOLDEN


def test_csv_and_json(paths: Paths) -> None:
    report = make_report(paths).texts()
    rows = list(csv.DictReader(io.StringIO(report["csv"])))
    assert [row["row"] for row in rows] == ["softmax", "kerbs", "third", "softmax"]
    assert float(rows[0]["deviation"]) == pytest.approx(2**0.5)
    chosen = (
        "planned",
        "n",
        "mean",
        "deviation",
        "paper",
        "difference",
        "against_baseline",
        "p_values",
    )
    assert [rows[1][key] for key in chosen] == [
        "2", "1", "23.5", "", "27.25", "-3.75", "2.5", str(1 / 11),
    ]  # fmt: skip
    assert rows[1]["configuration"] == "configs/multi30k/lstm_kerbs.yaml"
    assert rows[1]["state"] == "failed: train ended with status 3"
    content = json.loads(report["json"])
    (first, second, _), _ = (column["rows"] for column in content["columns"])
    assert [run["figures"]["value"] for run in first["runs"]] == [20.0, 22.0]
    assert [run["state"] for run in second["runs"]] == ["done", "failed: train ended with status 3"]
    assert second["runs"][0]["steps"]["train"]["revision"] == "abc"


def test_change_of_the_data_makes_figures_stale(paths: Paths) -> None:
    (paths.work / "data" / "toy" / "bin" / "train.bin").write_bytes(b"other")
    entry = make_report(paths).columns["mt"][0]
    assert entry.done == []
    assert entry.states == ["stale: data changed since train"]


@pytest.mark.parametrize("part", ["configuration", "generation flags"])
def test_a_run_is_found_under_its_earlier_name(paths: Paths, part: str) -> None:
    plan = make_plan([load_table(paths.data / "own.yaml")], "small")
    new, old = "toy/multi30k.lstm_kerbs-s1", "toy/multi30k_lstm_kerbs-s1"
    cells = paths.work / "cells"
    (cells / new).rename(cells / old)
    (cells / old / "checkpoints").mkdir()
    (cells / old / "checkpoints" / "checkpoint_best.pt").touch()
    found = find_earlier(plan, paths)
    assert found.earlier == {new: old}
    assert found.run(new) == cells / old
    for record in (cells / old).glob("*.json"):
        record.write_text(record.read_text().replace(f'"{part}": "', f'"{part}": "0'))
    assert find_earlier(plan, paths).earlier == {}


@pytest.mark.parametrize("name", ["1", "2", "5", "gao1"])
def test_raw_results_come_to_the_figures_reported(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the logs, records and hypotheses in results/tables; p-values need the reference."""
    monkeypatch.setattr("fairseq_kerbs.tables.results.paired_bootstrap", lambda *_, **__: 0.5)
    table, paths = load_table(table_path(name)), Paths(tmp_path, tmp_path, tmp_path)
    raw = CONFIGS.parent / "results" / "tables" / f"{table.name}_small"
    plan = make_plan([table], "small")
    for one in plan.references:
        paths.records(one.run.data).mkdir(parents=True, exist_ok=True)
        paths.reference(one.run.data).touch()
    for one in plan.references:
        folder = paths.run(one.run.id)
        folder.mkdir(parents=True)
        prefix = f"{one.column}_{one.row}_s{one.run.seed}"
        records = json.loads((raw / f"{prefix}.steps.json").read_text())
        for step in run_steps(one.run, paths):
            record = {**records[step.name], "parts": dict(step.parts)}
            (folder / f"{step.name}.json").write_text(json.dumps(record))
        copies = {"train.log": "train.log", "figures.json": "figures.json"}
        copies |= {"evaluate.log": "evaluate.log", "hyp.en": "hypotheses.txt"}
        for source, target in copies.items():
            if (raw / f"{prefix}.{source}").exists():
                (folder / target).write_text((raw / f"{prefix}.{source}").read_text())
    report = Report(table, "small", gather(table, plan, "small", paths, {}), "", {})
    made = list(csv.DictReader(io.StringIO(report.texts()["csv"])))
    reported = list(csv.DictReader(raw.with_suffix(".csv").open()))
    for rows in (made, reported):
        for row in rows:
            del row["p_values"], row["configuration"]
    assert made == reported


def test_command_reports_and_copies(
    paths: Paths, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["tables", "--table", str(paths.data / "own.yaml")]
    for name in ("data", "work", "results"):
        arguments += [f"--{name}", str(getattr(paths, name))]
    assert main([*arguments, "--report-only"]) == 0
    text = (paths.results / "own_small.md").read_text()
    assert "| Ours | 23.50 | 1 of 2 |" in compact(text)
    copied = {path.name for path in (paths.results / "own_small").iterdir()}
    names = {"train.log", "hyp.en", "figures.json", "steps.json"}
    prefixes = ("mt_softmax_s1", "mt_softmax_s2", "mt_kerbs_s1")
    assert copied == {f"{prefix}.{name}" for prefix in prefixes for name in names}
    log = paths.results / "own_small" / "mt_kerbs_s1.train.log"
    assert log.read_text() == f"reads runs/tables/data/toy\n{LOG}"
    for path in paths.results.rglob("*"):
        assert path.is_dir() or str(tmp_path) not in path.read_text()
    capsys.readouterr()
    assert main([*arguments, "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == (
        "# 6 runs, 3 done, 3 to run; planned: 0.1 h, one after the other; 2 runs have no estimate"
    )
    state = next(line for line in lines if line.startswith("# toy/multi30k.lstm_kerbs-s2"))
    assert state.endswith("(own/mt/kerbs/s2; 6 min planned): to do")
    commands = [line for line in lines if "multi30k.lstm_kerbs-s2" in line and line[0] != "#"]
    assert [line.split()[:2] for line in commands] == [
        ["fairseq-kerbs", "train"], ["fairseq-kerbs", "generate"], ["python", "-m"],
    ]  # fmt: skip
    assert not any("multi30k.lstm_kerbs-s1" in line for line in lines if line[0] != "#")


def test_missing_data_are_said_in_a_sentence(
    paths: Paths, capsys: pytest.CaptureFixture[str]
) -> None:
    (paths.work / "data" / "toy.steps" / "reference.en").unlink()
    arguments = ["tables", "--table", str(paths.data / "own.yaml"), "--data", str(paths.data)]
    arguments += ["--work", str(paths.work), "--results", str(paths.results)]
    assert main(arguments) == 1
    assert f"data toy: {paths.data} has no toy or toy.tgz. Make it." in capsys.readouterr().out
    assert "Third: blocked: data toy: DATA has no toy" in (
        paths.results / "own_small.md"
    ).read_text().replace(str(paths.data), "DATA")


def test_paths_are_stripped() -> None:
    folders = {"/home/me/kerbs": "", "/home/me/kerbs/runs": "runs/tables", "/home/me": "~"}
    for text, expected in {
        "/home/me/kerbs/runs/cells/a/x.pt": "runs/tables/cells/a/x.pt",
        "--user-dir /home/me/kerbs/fairseq_kerbs x": "--user-dir fairseq_kerbs x",
        "in /home/me/kerbs, and": "in ., and",
        "'/home/me/other/x'": "'~/other/x'",
        "/home/me/kerbs2/x": "~/kerbs2/x",
        "File /usr/lib/python3/torch/nn.py, line 3": "File …/nn.py, line 3",
        "see https://github.com/a/b and a/b/c or 3/4/5": (
            "see https://github.com/a/b and a/b/c or 3/4/5"
        ),
        "and / or /x stay": "and / or /x stay",
    }.items():
        assert strip_paths(text, folders) == expected


def test_long_logs_lose_their_middle() -> None:
    text = "".join(f"line {number}\n" for number in range(100))
    assert shorten(text) == text
    short = shorten(text, 100)
    lines = short.splitlines()
    assert (lines[0], lines[-1]) == ("line 0", "line 99")
    assert "[… 87 lines left out …]" in lines
    assert len(lines) == 14


def test_missing_data_folder_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--data", str(tmp_path / "none"), "--work", str(tmp_path / "work")]
    arguments += ["--results", str(tmp_path / "results")]
    assert main(["tables", "--table", "2", *arguments]) == 2
    assert "there is no folder" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
