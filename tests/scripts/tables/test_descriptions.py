"""The descriptions of the papers' tables, and the runs that they plan."""

import re
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import fields
from itertools import product
from pathlib import Path

import pytest
from fairseq import options

from fairseq_kerbs.configurations import load_experiment
from fairseq_kerbs.kernels import KERNELS, build_kernel
from fairseq_kerbs.models import PRESETS
from fairseq_kerbs.models.config import KerbsConfig
from fairseq_kerbs.utils.errors import UserError
from scripts.tables.descriptions import NAMES, OTHERS, TABLES, Run, load_table, select_runs
from tests.helpers.cli import parsed
from tests.helpers.commands import standing_in
from tests.helpers.gao_reference import NINE
from tests.helpers.tables import OWN, runs_of

for package in ("pandas", "jsonschema", "snakemake"):
    pytest.importorskip(package, reason=f"{package} is not installed; it is in the extra tables")


ROOT = Path(__file__).resolve().parents[3]
CHOSEN = ("1", "256", "128")  # sizes of configs/wikitext2


@pytest.mark.parametrize("scale", ["full", "small"])
def test_runs_have_the_flags_of_their_rows(scale: str) -> None:
    for run in runs_of(*NAMES, scale=scale):
        experiment, table = load_experiment(run.config), run.table["name"]
        train = experiment.train
        is_language_model = train.get("task") == "language_modeling"
        if run.metric != "valid_loss":
            assert is_language_model == (run.metric in ("perplexity", "mixture_variance"))
        if table in ("table1", "table2", "table3", "table4"):
            ours = ("senses", "widened", "longer")  # rows that the paper lacks, at small scale
            assert train["output-layer"] == ("softmax" if run.row in ours else run.row)
            assert (experiment.placement is not None) == (run.row == "senses")
            assert scale == "small" or run.row not in ours
        if table.startswith("table"):  # the paper's setting, but for what a row leaves out
            own = {"init-scale", "mixture-tanh-scale"}  # by validation
            layer = {item.name.replace("_", "-") for item in fields(KerbsConfig)} - own
            assert not layer - {"output-layer"} & train.keys()
        if table.startswith("gao"):
            arch = train["arch"]
            model, presets = next((m, p[arch]) for m, p in PRESETS.items() if arch in p)
            default = presets.get("init_scale", model.flags().init_scale)
            assert float(train.get("init-scale", default)) == 1.0, run.config
            kernel = run.row.partition("_")[0]  # in gao_grid with options
            mixed = train["output-layer"] == "mixture"
            assert mixed or kernel == "lin" or f"--kernel {kernel} " in run.flags
        words = shlex.split(run.flags)
        flags = {**train, **dict(zip([word[2:] for word in words[::2]], words[1::2]))}
        if flags.get("lr-scheduler") == "polynomial_decay":  # to 0 at the end
            assert flags["total-num-update"] == flags["max-update"], run.label
        if scale == "small":
            assert 0 < run.minutes <= 95


def test_tables_share_trainings() -> None:
    figures = {run.folder for run in runs_of("1", "2")}
    assert {run.folder for run in runs_of("3", "4", "6")} <= figures
    left_out = ("no_kernel", "single_sense", "no_reallocation")
    own = {(run.row, run.seed) for run in runs_of("5") if run.folder not in figures}
    assert own == {*product(left_out, (1, 2, 3))}
    for name in ("1", "2", "5"):
        column = [run for run in runs_of(name) if run.column == "mt"]
        rows = len(load_table(name)["rows"])
        assert [run.seed for run in column] == [1] * rows + [2] * rows + [3] * rows
    similar = {run.folder for run in runs_of("gao4")}
    assert similar == {run.folder for run in runs_of("gao1", "gao3") if run.column == "lm"}
    weights, perplexities = (
        [run.folder for run in runs_of("gao2") if run.column == column]
        for column in ("variance", "lm")
    )
    assert weights == perplexities
    assert len({*weights} & similar) == 1  # mos
    (kerbs_6,) = runs_of("6")
    assert kerbs_6.output.endswith("/words.md")
    measured = {run.column: Path(run.output).name for run in runs_of("1")}
    assert measured["lm"] == measured["lm_half"] == "perplexity.txt"
    assert measured["mt"] == measured["dialog"] == "generate-test.txt"


def test_grid_of_language_models_has_every_size_once_with_a_softmax() -> None:
    grid, runs = load_table("lm_grid"), runs_of("lm_grid")
    sizes = list[tuple[str, ...]]()
    for run in runs:
        words = shlex.split(run.flags)
        flags = dict(zip(words[::2], words[1::2], strict=True))
        sizes.append(tuple(flags[name] for name in ("--layers", "--hidden-size", "--embed-dim")))
        assert grid["rows"][run.row].startswith("{} layer".format(*sizes[-1]))
        assert grid["rows"][run.row].endswith("hidden size {1}, embedding {2}".format(*sizes[-1]))
        train = load_experiment(run.config).train
        assert (train["output-layer"], run.metric) == ("softmax", "valid_loss")  # not the test set
        assert flags["--max-update"] == flags["--total-num-update"]  # the rate falls to 0
    assert sizes == list(product("12", ("128", "256", "512"), ("64", "128", "256")))
    assert grid["baseline"] == next(run.row for run, size in zip(runs, sizes) if size == CHOSEN)
    assert not runs_of("lm_grid", scale="full")  # the paper prints no sizes


def test_commands_are_ones_that_the_parsers_take(tmp_path: Path) -> None:
    for run in runs_of("1", scale="full"):
        program, *words = shlex.split(run.preparation(tmp_path).partition(" && ")[0])
        given = parsed(*words)
        assert program == "fairseq-kerbs"
        assert given.args == []
        assert str(given.params["dest"]) == run.prepared
        assert run.data["missing"]
    run = next(run for run in runs_of("1") if run.metric == "perplexity")
    words = ["data", "--path", "model.pt", *shlex.split(run.evaluation)]
    args = options.parse_args_and_arch(options.get_eval_lm_parser(), words)
    assert (args.task, args.tokens_per_sample) == ("language_modeling", 35)


@pytest.mark.slow
def test_half_of_a_held_out_text_is_prepared(tmp_path: Path) -> None:
    raw = tmp_path / "raw text"
    raw.mkdir()
    for split, lines in (("dev", 1003), ("test", 2)):
        text = "".join(f"{split} {number} .\n" for number in range(lines))
        (raw / f"1b_benchmark.{split}.tokens").write_text(text)
    run = next(run for run in runs_of("1") if run.column == "lm_half")
    command = ["bash", "-euc", run.preparation(raw)]
    subprocess.run(command, cwd=tmp_path, check=True, env=standing_in())
    parts = tmp_path / f"{run.prepared}.text"
    assert (parts / "train.txt").read_text() == "dev 0 .\ndev 1 .\ndev 2 .\n"
    assert (parts / "valid.txt").read_text().startswith("dev 3 .\n")
    assert {"train.idx", "valid.idx", "test.idx"} <= {
        path.name for path in (tmp_path / run.prepared / "bin").iterdir()
    }


def test_every_kernel_has_as_many_tries_and_its_default_first() -> None:
    tries: dict[str, list[dict[str, float]]] = {}
    for run in runs_of("gao_grid"):
        if run.column == "mt":
            words = [word for word in shlex.split(run.flags) if word != "--kernel"]
            given = dict(zip(words[1::2], words[2::2]))
            changed = {name[9:]: float(v) for name, v in given.items() if "--kernel-" in name}
            tries.setdefault(words[0], []).append(changed)
    bounded = {"rbf", "wav"}  # whose logits are within [-1, 1], whatever their options
    assert tries.keys() == {name for name in NINE if KERNELS[name].options} - bounded
    for name, tried in tries.items():
        assert len(tried) == len({*map(str, tried)}) == 3
        assert all({*each} <= {*KERNELS[name].options} for each in tried)
        for option, value in tried[0].items():
            assert value == pytest.approx(getattr(KERNELS[name](), option), rel=1e-5)
        for each in tried:
            assert build_kernel(name, **each)


def test_hours_on_the_page_are_the_planned_ones() -> None:
    """A run that several tables share counts once in ``all``."""
    page = (ROOT / "docs" / "experiments.md").read_text()
    rows = re.findall(r"^\| (\w+) \|.*\|.*\| ([0-9.]+) \|.*\|$", page, re.MULTILINE)
    hours = {name: float(text) for name, text in rows}
    names = {"all": NAMES, **{name: (name,) for name in NAMES + OTHERS}}
    assert hours.keys() == names.keys()
    for name, parts in names.items():
        minutes = {run.folder: run.minutes for run in runs_of(*parts)}
        assert hours[name] == pytest.approx(sum(minutes.values()) / 60, abs=0.06), name


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("title: own", "titel: own", r"'titel' was unexpected|'title' is a required"),
        ("baseline: a", "baseline: c", r"'c' is none of the rows a, b"),
        ("baseline: a", "kind: plot", r"\$\.kind: 'plot' is not one of"),
        ("baseline: a", "kind: neighbours", r"own.yaml: kind neighbours needs a baseline"),
        ("data: toy", "data: tyo", r"unknown data set 'tyo'"),
        ("{a: toy.yaml,", "{c: toy.yaml,", r"'c' is none of the rows a, b"),
        ("{a: toy.yaml,", "{a: nowhere.yaml,", r"there is no configuration nowhere.yaml"),
        ("  toy: {", "  ../../toy: {", r"'../../toy' does not match"),
        ("prepare:", "language: /en, prepare:", r"'/en' does not match"),
        ("data:", "flags: {a: {fp16: false}}\ndata:", r"flags: a: no command line takes fp16 away"),
        ("data:", "flags: {a: {--lr: 1}}\ndata:", r"flags: a: --lr: write the flag without"),
    ],
)
def test_mistakes_are_one_sentence(tmp_path: Path, old: str, new: str, message: str) -> None:
    (path := tmp_path / "own.yaml").write_text(OWN)
    assert len(runs_of(str(path))) == 2
    path.write_text(OWN.replace(old, new, 1))
    with pytest.raises(UserError, match=message) as caught:
        runs_of(str(path))
    assert "\n" not in str(caught.value)


def test_patterns_select_rows_and_runs(tmp_path: Path) -> None:
    def labels(*only: str, table: str = "2") -> list[str]:
        (tmp_path / "multi30k").mkdir(exist_ok=True)
        runs, _ = select_runs([table], "small", str(tmp_path), str(tmp_path), only)
        return [run.label for run in runs]

    assert labels("kerbs/s2") == ["table2/mt/kerbs/s2"]
    found = ["mos/s1", "mos/s2"]
    found += [f"{row}/s3" for row in load_table("2")["rows"]]
    assert labels("s3", "*/mos/*") == [f"table2/mt/{each}" for each in found]
    path = tmp_path / "own.yaml"
    wild = "      flags: {'[!a]': {lr: 2, cpu: true}}\n      minutes: {'*': 3, b: 5}\n"
    path.write_text(OWN.replace("data:", "flags: {'*': {lr: 1}}\ndata:", 1) + wild)
    first, second = runs_of(str(path))
    assert (first.flags, first.minutes) == ("--lr 1 --seed 1", 3)
    assert (second.flags, second.minutes) == ("--lr 2 --cpu --seed 1", 5)
    assert re.fullmatch(r"cells/toy/toy_b-s1-[0-9a-f]{6}", second.folder)
    path.write_text(path.read_text().replace("lr: 2", "lr: 3"))
    changed = [run.folder for run in runs_of(str(path))]
    assert (changed[0] == first.folder, changed[1] == second.folder) == (True, False)


def test_runs_beside_a_baseline_have_it_with_them(tmp_path: Path) -> None:
    (tmp_path / "wikitext2").mkdir()

    def selected(only: Sequence[str] = (), finished: str = "") -> tuple[list[Run], list[str]]:
        folder = str(tmp_path)
        return select_runs(["gao4"], "small", folder, folder, only=only, finished=finished)

    runs, _ = selected(only=["gao4/lm/mix_big/s1"])
    lin, mixture = runs
    assert (lin.row, mixture.row) == ("lin", "mix_big")
    assert mixture.output == f"{mixture.folder}/neighbours_{Path(lin.folder).name}.json"

    # what is counted beside an unfinished baseline is left out of a report
    output = tmp_path / mixture.output
    output.parent.mkdir(parents=True)
    output.touch()
    assert selected(finished="yes") == ([], [])
    (tmp_path / lin.output).parent.mkdir(parents=True)
    (tmp_path / lin.output).touch()
    runs, missing = selected(finished="yes")
    assert [run.row for run in runs] == ["lin", "mix_big"]
    assert missing == []


def test_a_table_that_is_named_twice_counts_once(tmp_path: Path) -> None:
    (tmp_path / "multi30k").mkdir()

    def labels(*tables: str) -> list[str]:
        runs, _ = select_runs(tables, "small", str(tmp_path), str(tmp_path))
        return [run.label for run in runs]

    once = labels("2")
    assert once
    assert labels("2", "2") == once
    assert labels("2", "table2") == once
    assert labels("2", str(TABLES / "table2.yaml")) == once
    other = tmp_path / "table2.yaml"
    other.write_text(OWN)
    with pytest.raises(UserError, match="have the same name"):
        labels("2", str(other))


def test_a_part_of_the_text_is_not_taken_for_the_whole(tmp_path: Path) -> None:
    """The folder with a tenth of IWSLT'16 is no source of the tables of full size."""
    (tmp_path / "iwslt16-de-en").mkdir()
    runs, missing = select_runs(["2"], "full", str(tmp_path), str(tmp_path))
    assert [run for run in runs if run.column == "mt"] == []
    assert any("2016-01.tgz" in sentence for sentence in missing)
    runs, _ = select_runs(["layers"], "small", str(tmp_path), str(tmp_path))
    assert {run.column for run in runs} == {"iwslt"}
