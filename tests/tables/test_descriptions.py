"""The descriptions of the papers' tables, and what a wrong one is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairseq_kerbs.cli import build_parser
from fairseq_kerbs.configurations import CONFIGS, load_experiment
from fairseq_kerbs.models import PRESETS
from fairseq_kerbs.tables.description import NAMES, SCALES, Metric, Table, load_table
from fairseq_kerbs.tables.runs import Paths, data_job, plan_runs, run_job
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
    return {name: load_table(name) for name in NAMES}


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
    for use in plan_runs(list(tables.values()), scale)[0]:
        train = {**load_experiment(use.config).train, **use.flags}
        is_language_model = train.get("task") == "language_modeling"
        assert "arch" in train
        assert is_language_model == (use.metric is Metric.perplexity)
        layer = train.get("output-layer")
        if use.table in ("table1", "table2", "table3", "table4"):
            assert layer == use.row
        if use.table == "gao1":
            assert train["kernel"] == use.row
        if use.table == "gao3" and use.row != "lin":
            mixed = str(train["mixture-kernels"]).split(",")
            expected = 9 if use.row in ("mos", "mix_big") else 4 + (use.row == "mix_1")
            assert (layer, len(mixed)) == ("mixture", expected)


@pytest.mark.parametrize("scale", SCALES)
def test_reproductions_have_the_papers_setting(tables: dict[str, Table], scale: str) -> None:
    """Whatever the defaults of flags are; but for what a row leaves out."""
    preset = load_experiment(CONFIGS / "paper.yaml").train
    own = [table for name, table in tables.items() if name.isdigit()]
    for run in plan_runs(own, scale)[0]:
        assert preset.items() <= load_experiment(run.config).train.items()
    others = [table for name, table in tables.items() if name.startswith("gao")]
    for run in plan_runs(others, scale)[0]:
        train = load_experiment(run.config).train
        model, presets = next(
            (m, p[train["arch"]]) for m, p in PRESETS.items() if train["arch"] in p
        )
        default = presets.get("init_scale", model.flags().init_scale)
        assert float(train.get("init-scale", default)) == 1.0, run.config


def test_small_runs(tables: dict[str, Table]) -> None:
    runs, _ = plan_runs(list(tables.values()), "small")
    longest = {run.table: 90 if run.table == "layers" else 30 for run in runs}
    assert all(run.minutes is not None and run.minutes <= longest[run.table] for run in runs)
    seeds = [run.seed for run in runs if run.table == "table2"]
    assert seeds == [1] * 3 + [2] * 3 + [3] * 3
    # Table 5 and the texts of Tables 3, 4 and 6 train nothing that Tables 1 and 2 have trained.
    _, figures = plan_runs([tables["1"], tables["2"]], "small")
    _, texts = plan_runs([tables["3"], tables["4"], tables["6"]], "small")
    assert set(texts) <= set(figures)
    _, ablations = plan_runs([tables["5"]], "small")
    assert len(set(ablations) - set(figures)) == 3


def test_words_are_drawn_of_a_run_that_figures_share(tables: dict[str, Table]) -> None:
    for order in ("16", "61"):
        _, wanted = plan_runs([tables[name] for name in order], "small")
        run = wanted["multi30k/multi30k.lstm_kerbs-s1"]
        names = [step.name for step in run_job(run, Paths(*[Path("x")] * 3)).steps]
        assert names == ["train", "generate", "words"]


def test_commands_are_ones_that_the_parser_takes(tmp_path: Path, tables: dict[str, Table]) -> None:
    paths = Paths(tmp_path / "raw", tmp_path / "work", tmp_path / "results")
    parser = build_parser()
    for data in tables["1"].data.values():
        assert data.missing
        (step,) = data_job(data, paths).steps
        args, extra = parser.parse_known_args(step.command[1:])
        assert not extra
        assert args.dest == paths.prepared(data)
    for run in plan_runs([tables["1"], tables["6"]], "full")[1].values():
        for step in run_job(run, paths).steps:
            if step.command[0] == "fairseq-kerbs":
                args, extra = parser.parse_known_args(step.command[1:])
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
        ("title: own", "titel: own", r"titel: Key 'titel' not in 'Table'"),
        ("title: own", "title: own\ntitle: x", r"key 'title' is there twice"),
        ("title: own", "source: x", r"title: .*missing mandatory value: title"),
        ("baseline: a", "baseline: c", r"'c' is none of the rows a, b"),
        ("baseline: a", "kind: plot", r"kind: Invalid value 'plot', expected one of \[figures"),
        ("bleu4", "bleu5", r"columns.mt.metric: Invalid value 'bleu5', expected one of"),
        ("data: toy", "data: tyo", r"mt: unknown data set 'tyo'; there is toy"),
        ("{a: toy.yaml,", "{c: toy.yaml,", r"'c' is none of the rows a, b"),
        ("{a: toy.yaml,", "{a: nowhere.yaml,", r"there is no configuration nowhere.yaml"),
        ("data: toy", "data: toy\n      seeds: [1.5]", r"seeds\[0\]: Value '1.5' .*Integer"),
        ("data: toy", "dato: toy\n      data: toy", r"mt.small.dato: Key 'dato' not in 'Scale'"),
        ("  toy: {", "  ../../toy: {", r"'../../toy': a name may have letters"),
        ("  toy: {", '  "..": {', r"'\.\.': a name may have letters"),
        ("  toy: {", '  "toy\\n": {', r"'toy.n': a name may have letters"),
        ("prepare]", "prepare], language: /en", r"'/en': a name may"),
        ("rows: {", "rows: {../c: C, ", r"'../c': a name may have letters"),
        ("  mt:", "  m/t:", r"'m/t': a name may have letters"),
        ("columns:", "columns: []\nx:", r"list is not a subclass of Dict\[str, Column\]"),
        ("rows: {", "rows: [", r"line \d+: not valid YAML"),
        ("data:", "flags: {a: {fp16: false}}\ndata:", r"flags: a: no command line takes fp16 away"),
        ("data: toy", "flags: {b: {lr: null}}\n      data: toy", r"mt: flags: b: no command line"),
        ("data:", "flags: {a: {--lr: 1}}\ndata:", r"flags: a: --lr: write the flag without"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(OWN)
    assert load_table(str(path)).baseline == "a"
    path.write_text(OWN.replace(old, new, 1))
    with pytest.raises(UserError, match=message) as caught:
        load_table(str(path))
    assert "\n" not in str(caught.value)


def test_patterns(tables: dict[str, Table]) -> None:
    def wanted(*only: str) -> list[str]:
        return list(plan_runs([tables["2"]], "small", only)[1])

    assert wanted("kerbs/s2") == ["multi30k/multi30k.transformer_kerbs-s2"]
    assert len(wanted("*/mos/*")) == 3
    assert [run[-2:] for run in wanted("s3", "*/mos/*")] == ["s3", "s3", "s3", "s1", "s2"]
    with pytest.raises(UserError, match=r"--only nothing: no run matches; .*table2/mt/softmax/s1"):
        wanted("kerbs", "nothing")
    with pytest.raises(UserError, match="--table 7: there is 1, 2"):
        load_table("7")


def test_rows_by_pattern(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    flags = 'flags: {"?": {lr: 1}, "[!a]": {fp16: true}}\ndata:'
    own = """      configs: {"*": toy.yaml, "b*": multi30k/lstm_kerbs.yaml, c: ""}
      flags: {b: {lr: 2}, "*": {cpu: true}}
      minutes: {"*": 5, a: 3}
"""
    text = OWN.replace("b: B}", "b: B, c: C}").replace("data:", flags, 1)
    path.write_text(text.replace("      configs: {a: toy.yaml, b: toy.yaml}\n", own))
    first, second = plan_runs([load_table(str(path))], "small")[0]  # c is left out
    assert (first.flags, first.minutes) == ({"lr": "1", "cpu": True}, 3)
    assert second.config.stem == "lstm_kerbs"
    assert (second.flags, second.minutes) == ({"lr": "2", "fp16": True, "cpu": True}, 5)
    path.write_text(path.read_text().replace("[!a]", "d*"))
    with pytest.raises(UserError, match=r"'d\*' is none of the rows a, b, c"):
        load_table(str(path))


def test_flags_of_a_row_are_a_run_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(OWN.replace("data:", "flags: {b: {max-update: 010, cpu: true}}\ndata:", 1))
    _, wanted = plan_runs([load_table(str(path))], "small")
    assert list(wanted) == ["toy/toy-s1", "toy/toy_b-s1"]
    step = run_job(wanted["toy/toy_b-s1"], Paths(tmp_path, tmp_path, tmp_path)).steps[0]
    assert step.command[-5:] == ("--max-update", "010", "--cpu", "--seed", "1")
