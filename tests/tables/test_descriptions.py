"""The descriptions of the papers' tables, and what a wrong one is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairseq_kerbs.cli import build_parser
from fairseq_kerbs.tables.description import (
    NAMES,
    SCALES,
    TABLES,
    Table,
    load_data,
    load_table,
    table_path,
)
from fairseq_kerbs.tables.experiments import load_experiment
from fairseq_kerbs.tables.runs import Paths, data_job, make_plan, run_steps
from fairseq_kerbs.utils.errors import UserError

# Typed from the papers, independently of the descriptions.
PUBLISHED = {
    ("1", "mt"): [25.91, 26.45, 27.28],
    ("1", "lm"): [103.12, 102.72, 102.17],
    ("1", "dialog"): [16.56, 13.73, 17.85],
    ("1", "human"): [1.24, 1.04, 1.40],
    ("2", "mt"): [29.61, 28.54, 30.90],
    ("2", "dialog"): [10.61, 9.81, 10.90],
    ("5", "mt"): [25.91, 27.28, 26.79, 26.80, 27.00],
    ("gao1", "lm"): [46.8, 103.0, 46.8, 47.3, 284.9, 49.9, 46.7, 122.6, 289.7],
    ("gao1", "mt"): [34.3, 0.4, 32.8, 31.7, 0.0, 34.6, 34.2, 0.3, 0.0],
    ("gao3", "lm"): [46.8, 47.8, 47.1, 46.6, 46.5, 47.3, 47.1, 46.7],
}
ORDER = {
    "1": ["softmax", "mos", "kerbs"],
    "2": ["softmax", "mos", "kerbs"],
    "5": ["softmax", "kerbs", "no_kernel", "single_sense", "no_reallocation"],
    "gao1": ["lin", "log", "pow", "pol", "rbf", "ssg", "mog", "hpb", "wav"],
    "gao3": ["lin", "mos", "mix_big", "mix_1", "mix_2", "mix_3", "mix_4", "mix_5"],
}


@pytest.fixture(scope="module")
def tables() -> dict[str, Table]:
    return {name: load_table(table_path(name)) for name in NAMES}


def test_published_figures(tables: dict[str, Table]) -> None:
    found = {
        (name, column_name): column.paper
        for name, table in tables.items()
        for column_name, column in table.columns.items()
        if column.paper
    }
    assert found == {
        (name, column): dict(zip(ORDER[name], figures, strict=True))
        for (name, column), figures in PUBLISHED.items()
    }
    for name in ORDER:
        assert list(tables[name].rows) == ORDER[name]


@pytest.mark.parametrize("scale", SCALES)
def test_runs_have_the_flags_of_their_rows(tables: dict[str, Table], scale: str) -> None:
    plan = make_plan(list(tables.values()), scale)
    for use in plan.references:
        train = {**load_experiment(use.run.config).train, **use.run.train}
        is_language_model = train.get("task") == "language_modeling"
        assert "arch" in train
        assert is_language_model == (use.run.metric == "perplexity")
        layer = train.get("output-layer")
        if use.table in ("table1", "table2", "table3", "table4"):
            assert layer == use.row
        if use.table == "gao1":
            assert train["kernel"] == use.row
        if use.table == "gao3" and use.row != "lin":
            mixed = str(train["mixture-kernels"]).split(",")
            expected = 9 if use.row in ("mos", "mix_big") else 4 + (use.row == "mix_1")
            assert (layer, len(mixed)) == ("mixture", expected)


def test_small_runs(tables: dict[str, Table]) -> None:
    plan = make_plan(list(tables.values()), "small")
    assert all(run.minutes is not None and run.minutes <= 30 for run in plan.runs.values())
    seeds = [use.run.seed for use in plan.references if use.table == "table2"]
    assert seeds == [1] * 3 + [2] * 3 + [3] * 3
    # Table 5 and the texts of Tables 3, 4 and 6 train nothing that Tables 1 and 2 have trained.
    figures = make_plan([tables["1"], tables["2"]], "small")
    texts = make_plan([tables["3"], tables["4"], tables["6"]], "small")
    assert set(texts.runs) <= set(figures.runs)
    ablations = make_plan([tables["5"]], "small")
    assert len(set(ablations.runs) - set(figures.runs)) == 3


def test_commands_are_ones_that_the_parser_takes(tmp_path: Path, tables: dict[str, Table]) -> None:
    paths = Paths(tmp_path / "raw", tmp_path / "work", tmp_path / "results")
    parser = build_parser()
    for data in load_data(TABLES / "table1.yaml").values():
        assert data.missing
        for step in data_job(data, paths).steps():
            if step.name == "prepare":
                args, extra = parser.parse_known_args(step.command[1:])
                assert not extra
                assert args.dest == paths.prepared(data)
    plan = make_plan([tables["1"]], "full")
    for run in plan.runs.values():
        for step in run_steps(run, paths):
            if step.command[0] == "fairseq-kerbs":
                args, extra = parser.parse_known_args(step.command[1:])
                assert args.config.exists()
                assert extra == (["--seed", str(run.seed)] if step.name == "train" else [])


OWN = """
title: own
rows: {a: A, b: B}
baseline: a
data:
  toy: {folders: [toy], prepare: [prepare]}
columns:
  mt:
    metric: bleu4
    small:
      data: toy
      configs: {a: toy.yaml, b: toy.yaml}
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("title: own", "titel: own", r"the top level: unknown key 'titel'; there is title"),
        ("title: own", "title: own\ntitle: x", r"key 'title' is there twice"),
        ("baseline: a", "baseline: c", r"baseline 'c' is none of the rows"),
        ("baseline: a", "kind: plot", r"kind must be one of figures, examples, senses, not plot"),
        ("bleu4", "bleu5", r"column 'mt': metric must be one of"),
        ("data: toy", "data: tyo", r"unknown data set 'tyo'; there is toy"),
        ("{a: toy.yaml,", "{c: toy.yaml,", r"small: 'c' is none of the rows a, b"),
        ("{a: toy.yaml,", "{a: nowhere.yaml,", r"there is no configuration nowhere.yaml"),
        (
            "data: toy",
            "data: toy\n      seeds: [x]",
            r"small.seeds\[0\]: Value 'x' of type 'str' could not be converted to Int",
        ),
        (
            "data: toy",
            "dato: toy\n      data: toy",
            r"mt.small: unknown key 'dato'; there is data",
        ),
        ("data: toy", "data: toy\n      train: {lr: 1}", r"give what changes .* 'variant'"),
        ("data: toy", "data: toy\n      seeds: [1.5]", r"seeds\[0\]: Value '1.5' .*Integer"),
        ("data: toy", "data: toy\n      seeds: [inf]", r"seeds\[0\]: Value 'inf' .*Integer"),
        ("data: toy", "data: toy\n      seeds: [../1]", r"seeds\[0\]: Value '../1' .*Integer"),
        ("data: toy", "data: toy\n      variant: ../../x", r"small: variant '../../x': a name may"),
        ("  toy: {", "  ../../toy: {", r"data set '../../toy': a name may have letters"),
        ("  toy: {", '  "..": {', r"data set '\.\.': a name may have letters"),
        ("  toy: {", '  "toy\\n": {', r"data set 'toy.n': a name may have letters"),
        ("prepare]", "prepare], language: /en", r"data set 'toy': language '/en': a name may"),
        ("[toy]", "[]", r"data set 'toy': folders names none"),
        ("rows: {", "rows: {../c: C, ", r"row '../c': a name may have letters"),
        ("  mt:", "  m/t:", r"column 'm/t': a name may have letters"),
        ("columns:", "columns: []\nx:", r"list is not a subclass of Dict\[str, Column\]"),
        ("rows: {", "rows: [", r"line \d+: not valid YAML"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(OWN)
    assert load_table(path).baseline == "a"
    path.write_text(OWN.replace(old, new, 1))
    with pytest.raises(UserError, match=message) as caught:
        load_table(path)
    assert "\n" not in str(caught.value)


def test_patterns_and_conflicts(tmp_path: Path, tables: dict[str, Table]) -> None:
    plan = make_plan([tables["2"]], "small", ["kerbs/s2"])
    assert plan.wanted == ("multi30k/multi30k.transformer_kerbs-s2",)
    assert len(plan.runs) == 9
    assert len(make_plan([tables["2"]], "small", ["*/mos/*"]).wanted) == 3
    order = make_plan([tables["2"]], "small", ["s3", "*/mos/*"]).wanted
    assert [run[-2:] for run in order] == ["s3", "s3", "s3", "s1", "s2"]
    with pytest.raises(UserError, match=r"--only nothing: no run matches; .*table2/mt/softmax/s1"):
        make_plan([tables["2"]], "small", ["kerbs", "nothing"])
    with pytest.raises(UserError, match="--table 7: there is 1, 2"):
        table_path("7")
    path = tmp_path / "own.yaml"
    path.write_text(OWN)
    other = OWN.replace("bleu4", "bleu1").replace("  mt:", "  dialog:")
    (tmp_path / "other.yaml").write_text(other)
    with pytest.raises(UserError, match="two columns want run toy/toy-s1"):
        make_plan([load_table(path), load_table(tmp_path / "other.yaml")], "small")


def test_overrides_are_a_run_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    flags = "      variant: short\n      train: {max-update: 010, cpu: true}\n      seeds: [4]\n"
    path.write_text(OWN + flags)
    plan = make_plan([load_table(path)], "small")
    (run,) = plan.runs.values()
    assert run.id == "toy/toy-short-s4"
    step = run_steps(run, Paths(tmp_path, tmp_path, tmp_path))[0]
    assert step.command[-5:] == ("--max-update", "010", "--cpu", "--seed", "4")
