"""The table of fairseq's options: it has every option, and a sample of it comes out the same."""

import argparse
import csv
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

from scripts.experiments import options
from scripts.experiments.options import Case, Row, chosen_options, counts, values_of
from tests.helpers.commands import ROOT, run_program

TABLE = ROOT / "results" / "options" / "options.csv"
EVERY = 170


def table(path: Path = TABLE) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.parametrize(
    ("program", "model"),
    [(program.name, model) for program in options.PROGRAMS.values() for model in program.models],
)
def test_every_option_of_the_parsers_is_in_the_table(program: str, model: str) -> None:
    rows = {row["option"] for row in table() if (row["program"], row["model"]) == (program, model)}
    there = {options._long(action) for action in chosen_options(program, model)}
    assert there <= rows, "run scripts/experiments/options.py again"
    named = {case.option for case in options.all_cases(program, model)}
    assert named == rows


def test_no_option_fails_with_the_plugin_alone() -> None:
    found = Counter(row["outcome"] for row in table())
    assert set(found) == {"works", "refused", "fails in stock", "not run"}
    assert all(row["sentence"] for row in table() if row["outcome"] != "works")


def test_the_page_has_the_counts_of_the_table() -> None:
    page = (TABLE.parent / "README.md").read_text(encoding="utf-8")
    rows = [[row[column] for column in options.COLUMNS] for row in table()]
    for line in counts(rows):
        assert line in page


@pytest.mark.slow
def test_a_sample_of_the_table_comes_out_the_same(tmp_path: Path) -> None:
    """Outcomes of every 170th case, of all programs and models."""
    script = ROOT / "scripts" / "experiments" / "options.py"
    run_program(sys.executable, script, tmp_path, "--every", EVERY, FAIRSEQ_KERBS_COMPILE="0")
    before = {tuple(row[name] for name in options.COLUMNS[:5]): row for row in table()}
    found = table(tmp_path / "options.csv")
    assert len(found) > 5
    for row in found:
        recorded = before[tuple(row[name] for name in options.COLUMNS[:5])]
        assert row["outcome"] == recorded["outcome"], row


@pytest.mark.slow
def test_options_that_do_not_work_come_out_the_same(tmp_path: Path) -> None:
    """One of each other outcome."""
    outcomes = {
        "--store-ema": "refused",
        "--relative-step": "fails in stock",
        "--wandb-project": "not run",
    }
    flags = ["--program", "fairseq-train", "--model", "transformer_kerbs"]
    for option in outcomes:
        flags += ["--option", option.removeprefix("--")]
    script = ROOT / "scripts" / "experiments" / "options.py"
    run_program(sys.executable, script, tmp_path, *flags, FAIRSEQ_KERBS_COMPILE="0")
    found = table(tmp_path / "options.csv")
    assert {row["option"]: row["outcome"] for row in found} == outcomes
    recorded = table()
    assert all(row in recorded for row in found)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--option", "lrr"], "--option lrr: the chosen programs and models have no such option"),
        (["--option", "lr"], "options.csv exists, and these are not all cases"),
        (["--every", "50"], "options.csv exists, and these are not all cases"),
    ],
)
def test_a_part_of_the_cases_does_not_replace_the_table(
    words: list[str], sentence: str, tmp_path: Path
) -> None:
    (tmp_path / "options.csv").write_text("all\n")
    with pytest.raises(SystemExit, match=sentence):
        options.main([str(tmp_path), *words])
    assert (tmp_path / "options.csv").read_text() == "all\n"


def option(*names: str, **how: object) -> argparse.Action:
    return argparse.ArgumentParser().add_argument(*names, **how)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("action", "values"),
    [
        (option("--x-switch", action="store_true"), [None]),
        (option("--x-whole", type=int, default=3), ["4"]),
        (option("--x-number", type=float, default=0.5), ["0.6"]),
        (option("--x-none", type=int), ["1"]),
        (option("--x-choice", choices=["a", "b", "c"], default="b"), ["a", "c"]),
        (option("--x-maybe", nargs="?", choices=["a"]), [None, "a"]),
        (option("--lr"), ["0.002", "0.002,0.001"]),
        (option("--tpu", action="store_true"), [None]),
    ],
)
def test_values_that_are_tried(action: argparse.Action, values: list[str | None]) -> None:
    assert values_of(action) == values


def test_an_option_without_a_value_to_try_is_an_error() -> None:
    with pytest.raises(KeyError, match="has no value for --x-text"):
        values_of(option("--x-text", type=str))


REFUSAL = "fairseq_kerbs: error: --x does not go with --y: leave it out."


@pytest.mark.parametrize(
    ("statuses", "text", "fault", "sentence"),
    [
        ([0], "… done …", "", ""),
        ([0, 0], "done", "", ""),
        ([0], "nothing", "fails", "ended with status 0 without doing its work"),
        ([None], "done", "fails", "did not end within 120 seconds"),
        ([1], f"a\n{REFUSAL}\n", "refused", REFUSAL.removeprefix("fairseq_kerbs: error: ")),
        ([0, 1], "done\na.b.SomeError: why\n    at: 3\n", "fails", "a.b.SomeError: why"),
        ([2], "usage\nfairseq-train: error: no x\n", "fails", "fairseq-train: error: no x"),
        ([1], "no sentence", "fails", "no sentence"),
    ],
)
def test_how_a_try_is_judged(
    statuses: list[int | None], text: str, fault: str, sentence: str
) -> None:
    ended = options._judge(statuses, text, "done", "$ command\n")
    assert (ended.fault, ended.sentence) == (fault, sentence)
    assert ended.log == f"$ command\n{text}"


def test_rows_are_kept_but_for_failures(tmp_path: Path) -> None:
    case = Case("fairseq-train", "lstm_kerbs", "--lr", "0.1", ("--optimizer", "sgd"))
    other = Case("fairseq-train", "lstm_kerbs", "--seed", "7")
    rows = [Row(case, "works", "", {"ours": "log"}), Row(other, "fails in stock", "why")]
    (tmp_path / "rows").write_text("".join(f"{row.as_json()}\n" for row in rows))
    assert options.read_rows(tmp_path / "rows") == {case: rows[0]}
    with (tmp_path / "rows").open("a") as stream:
        stream.write(f"{rows[0].as_json()[:40]}")  # a row that was not written to its end
    assert options.read_rows(tmp_path / "rows") == {case: rows[0]}
    options._cut_to_whole_lines(tmp_path / "rows")
    third = Row(Case("fairseq-train", "lstm_kerbs", "--seed", "8"), "works", "")
    with (tmp_path / "rows").open("a") as stream:
        stream.write(f"{third.as_json()}\n")
    assert options.read_rows(tmp_path / "rows") == {case: rows[0], third.case: third}
    assert options.read_rows(tmp_path / "none") == {}
    options.write_table(rows, tmp_path)
    assert table(tmp_path / "options.csv")[0]["with"] == "--optimizer sgd"
    log = (tmp_path / "raw" / "fairseq-train_lstm_kerbs.log").read_text()
    assert re.fullmatch(r"=== --optimizer sgd --lr 0.1 \(ours\): works\nlog\n", log)
