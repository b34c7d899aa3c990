"""The papers' tables: their descriptions, small ones made by the script, and one on SLURM."""

import os
import re
import shlex
import signal
import subprocess
import time
from dataclasses import fields
from itertools import product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
from fairseq import options
from sacrebleu.metrics.bleu import BLEU

from fairseq_kerbs.cli import build_parser
from fairseq_kerbs.cli import main as kerbs
from fairseq_kerbs.configurations import load_experiment
from fairseq_kerbs.evaluation import tables
from fairseq_kerbs.evaluation.confusable import read_result
from fairseq_kerbs.evaluation.tables import NAMES, Run, load_table, plan_runs, select_runs
from fairseq_kerbs.kernels import KERNELS, build_kernel
from fairseq_kerbs.models import PRESETS
from fairseq_kerbs.models.config import KerbsConfig
from fairseq_kerbs.utils.errors import UserError
from tests.helpers import HANGS
from tests.helpers.cli import Capsys, Patch
from tests.helpers.cli import kerbs as run_kerbs
from tests.helpers.slurm import running_slurm

ROOT = Path(__file__).resolve().parents[1]
CHOSEN = ("1", "256", "128")  # sizes of configs/wikitext2
SCRIPT = [str(ROOT / "scripts" / "reproduce_tables.sh"), "--corpora", "raw", "--jobs", "2"]
for package in ("pandas", "jsonschema", "snakemake"):
    pytest.importorskip(package, reason=f"{package} is not installed; it is in the extra tables")


def runs_of(*names: str, scale: str = "small") -> list[Run]:
    return [run for name in names for run in plan_runs(load_table(name), scale)]


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
            assert (experiment.senses is not None) == (run.row == "senses")
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
        args, extra = build_parser().parse_known_args(words)
        assert (program, extra, str(args.dest)) == ("fairseq-kerbs", [], run.prepared)
        assert run.data["missing"]
    run = next(run for run in runs_of("1") if run.metric == "perplexity")
    words = ["data", "--path", "model.pt", *shlex.split(run.evaluation)]
    args = options.parse_args_and_arch(options.get_eval_lm_parser(), words)
    assert (args.task, args.tokens_per_sample) == ("language_modeling", 35)


def test_every_kernel_has_as_many_tries_and_its_default_first() -> None:
    tries: dict[str, list[dict[str, float]]] = {}
    for run in runs_of("gao_grid"):
        if run.column == "lm":
            words = [word for word in shlex.split(run.flags) if word != "--kernel"]
            given = dict(zip(words[1::2], words[2::2]))
            changed = {name[9:]: float(v) for name, v in given.items() if "--kernel-" in name}
            tries.setdefault(words[0], []).append(changed)
    assert tries.keys() == {name for name, kind in KERNELS.items() if kind.options}
    for name, tried in tries.items():
        assert len(tried) == len({*map(str, tried)}) == 3
        assert all({*each} <= {*KERNELS[name].options} for each in tried)
        for option, value in tried[0].items():
            assert value == pytest.approx(getattr(KERNELS[name](), option), rel=1e-5)
        for each in tried:
            assert build_kernel(name, **each)


def test_hours_on_the_page_are_the_planned_ones() -> None:
    """A run that several tables share counts once in ``all``."""
    page = (ROOT / "configs" / "README.md").read_text()
    rows = re.findall(r"^\| (\w+) \|.*\|.*\| ([0-9.]+) \|.*\|$", page, re.MULTILINE)
    hours = {name: float(text) for name, text in rows}
    names = {"all": NAMES, **{name: (name,) for name in NAMES + tables.OTHERS}}
    assert hours.keys() == names.keys()
    for name, parts in names.items():
        minutes = {run.folder: run.minutes for run in runs_of(*parts)}
        assert hours[name] == pytest.approx(sum(minutes.values()) / 60, abs=0.06), name


OWN = """
title: own
rows: {a: A, b: B}
baseline: a
data:
  toy: {folders: [toy], prepare: echo}
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


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--table 9", "--table 9: there is 1, 2, 3"),
        ("--table data", "--table data: there is 1, 2, 3"),
        ("--table gao5", "--table gao5: there is 1, 2, 3"),
        ("--only nothing", "--only nothing: no run matches; labels are table2/mt/softmax/s1"),
        ("--corpora nowhere", "there is no run to train or to report"),
        ("--report-only", "there is no run to train or to report"),
    ],
)
def test_misuse_is_one_sentence_and_status_2(
    words: str, sentence: str, tmp_path: Path, monkeypatch: Patch, capsys: Capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data" / "multi30k").mkdir(parents=True)
    with pytest.raises(SystemExit, match="2"):
        tables.main(["--table", "2", *words.split()])
    error = capsys.readouterr().err
    assert error.startswith(f"reproduce_tables.sh: error: {sentence}")
    assert error.count("\n") == 1
    assert os.listdir(tmp_path) == ["data"]


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
    given = ["gao4"], "small", str(tmp_path), str(tmp_path)
    runs, _ = select_runs(*given, only=["gao4/lm/mix_big/s1"])
    lin, mixture = runs
    assert (lin.row, mixture.row) == ("lin", "mix_big")
    assert mixture.output == f"{mixture.folder}/neighbours_{Path(lin.folder).name}.json"


LOG = """\
2026 | INFO | fairseq_cli.train | num. shared model params: 1,234,567 (num.
2026 | INFO | train_inner | epoch 1: loss=9, num_updates=150, train_wall=99, wall=60
2026 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 4.5 | nll_loss 3.165 | ppl 9
2026 | INFO | train_inner | epoch 1: loss=9, num_updates=150, train_wall=99, wall=20
2026 | INFO | valid | epoch 002 | valid on 'valid' subset | loss 4.4 | nll_loss 3.2 | ppl 9
2026 | INFO | valid | epoch 003 | valid on 'valid' subset | loss nan | nll_loss nan | ppl nan
2026 | INFO | train | epoch 3 | loss 5.5 | train_wall 29 | wall 90
"""
TEXTS = {
    ("a", 1): ["it is a dog", "hello world"],
    ("b", 1): ["it is a dog", "hello world to you"],
    ("a", 2): ["it is", "hello world to you"],
    ("b", 2): ["is it", "you to hello world"],
}
TIMES = {
    ("a", 1): "started\n50.5 9.5\n",
    ("b", 1): "started\n80 10\n",
    ("a", 2): "started\nstarted\n10 1\n",  # a part was killed, so it is not measured
    ("b", 2): "started\n20 0\nstarted\n60 10\n",
}


def test_means_deviations_and_bootstrap(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    paper = "metric: bleu1\n    title: Words\n    paper: {a: 25, b: 26.5}"
    content = OWN.replace("metric: bleu4", paper) + "      seeds: [1, 2]\n"
    content += "      flags: {b: {lr: 1}}\n  people: {metric: human, paper: {a: 1.24}}\n"
    Path("own.yaml").write_text(content)
    Path("data/toy").mkdir(parents=True)
    reference = ["it is a dog", "hello world to you"] * 20
    Path("data/toy/reference").write_text("\n".join(reference))
    runs, scores = runs_of(str(tmp_path / "own.yaml")), dict[str, list[float]]()
    for run in runs:
        Path(run.folder).mkdir(parents=True)
        Path(run.folder, "train.log").write_text(LOG)
        texts = TEXTS[run.row, run.seed] * 20
        lines = (f"H-{number}\t-1\t{text}\n" for number, text in enumerate(texts))
        Path(run.output).write_text("".join(lines))
        Path(run.folder, "processor_time.txt").write_text(TIMES[run.row, run.seed])
        score = BLEU(max_ngram_order=1).corpus_score(texts, [reference])
        scores.setdefault(run.row, []).append(score.score)
    tables.write_figures(runs, "own.csv")
    tables.write_table(runs, "small", "own.csv", "own.md")
    written = Path("own.md").read_text()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in written.splitlines()]
    rows = {line[0]: line[1:] for line in cells if len(line) == 12}
    means = {row: fmean(values) for row, values in scores.items()}
    ours = {row: f"{means[row]:.2f} ± {stdev(scores[row]):.2f}" for row in "ab"}
    trained = ["3.165 ± 0.000", "1,234,567", "2.5"]  # 60 and 90 seconds
    # time ÷ A by the runs that were measured, and 6 of 8 tokens with both seeds
    assert rows["A"] == [ours["a"], "2", "25", "", "", "", *trained, "1.00", "0.75 ± 0.00"]
    gain, p = f"{means['b'] - means['a']:+.2f}", rows["B"][5].split(", ")
    assert rows["B"] == [
        ours["b"],
        "2",
        "26.5",
        gain,
        "+1.50",
        ", ".join(p),
        *trained,
        "1.50",
        "0.88 ± 0.18",
    ]
    assert (0 < float(p[0]) < 0.05, p[1]) == (True, "1.000")  # of seed 2, all resamples are equal
    assert "Nobody has scored answers" in written
    assert "|order:1`" in written
    Path(runs[0].output).write_text("H-0\t-1\tit is\n")
    with pytest.raises(UserError, match="has 1 lines"):
        tables.write_figures(runs, "own.csv")


SHEET_SCORES = {"SOFTMAX": [1, 1, 1, 1], "KerBS": [2, 1, 1, 2]}  # of two raters, item by item


@pytest.fixture
def scored(tmp_path: Path, capsys: Capsys) -> Path:
    """The result of real sheets that two raters filled."""
    pytest.importorskip("scipy", reason="scipy is not installed; it is in the extra analysis")
    for name in ("source", *SHEET_SCORES):
        (tmp_path / name).write_text("".join(f"{name} {line}\n" for line in range(4)))
    export = ["human-eval", "export", "--source", tmp_path / "source", "--items", 4, "--raters", 2]
    export += [f"--system={name}={tmp_path / name}" for name in SHEET_SCORES]
    run_kerbs(capsys, *export, "--sheets", tmp_path / "sheets", "--key", tmp_path / "key.json")
    for sheet in (tmp_path / "sheets").iterdir():
        lines = sheet.read_text("utf-8-sig").splitlines()
        for number, line in enumerate(lines):
            if found := re.search(r"\[(\w+) (\d)\],$", line):
                lines[number] += str(SHEET_SCORES[found[1]][int(found[2])])
        sheet.write_text("\n".join(lines))
    score = ["human-eval", "score", "--key", tmp_path / "key.json", "--baseline", "SOFTMAX"]
    result = tmp_path / "scores.json"
    run_kerbs(capsys, *score, *(tmp_path / "sheets").iterdir(), "--json", result)
    return result


def cells_of(written: str, start: str) -> list[str]:
    """Cells of the row of the last table that begins so."""
    rows = [line for line in written.splitlines() if line.startswith(f"| {start} ")]
    return [cell.strip() for cell in rows[-1].split("|")[2:-1]]


def test_scores_of_people_are_the_human_row_of_table_1(
    scored: Path, tmp_path: Path, monkeypatch: Patch
) -> None:
    """Systems have the names or titles of rows, in any case; MoS was not scored."""
    monkeypatch.chdir(tmp_path)
    runs = [run for run in runs_of("1") if run.column == "mt"]
    for run in runs:
        Path(run.folder).mkdir(parents=True)
        Path(run.folder, "train.log").write_text(LOG)
        Path(run.output).write_text("H-0\t-1\tit is a dog\n")
    Path("data/multi30k").mkdir(parents=True)
    Path("data/multi30k/reference").write_text("it is a dog\n")
    tables.write_figures(runs, "1.csv")
    tables.write_table(runs, "small", "1.csv", "1.md", str(scored))
    written = Path("1.md").read_text().partition("judged by people")[2]
    assert cells_of(written, "softmax") == ["1.00", "0.00", "8", "1.24", "", "", ""]
    assert cells_of(written, "MoS") == ["", "", "", "1.04", "", "-0.20", ""]
    from scipy.stats import ttest_1samp

    p = ttest_1samp([2, 0, 0, 2], 0, alternative="greater").pvalue
    assert cells_of(written, "KerBS") == ["1.50", "0.53", "8", "1.4", "+0.50", "+0.16", f"{p:.4f}"]
    assert "- 4 items, 2 of 2 raters; Fleiss' kappa 1.000, Krippendorff's alpha" in written
    assert "- p: one-tailed paired t-test over items, system better than SOFTMAX." in written
    assert "- Without scores: MoS." in written
    assert "--table 1 --scale small --human scores.json`" in written
    tables.write_table(runs, "small", "1.csv", "1.md")
    assert cells_of(Path("1.md").read_text(), "KerBS") == ["", "", "", "1.4", "", "+0.16", ""]


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
        tables.main(["--table", table, "--human", "scores.json"])
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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    sizes = ["--train", "300", "--valid", "20", "--test", "20"]
    assert kerbs(["toy", str(tmp_path / "raw" / "toy"), *sizes]) == 0
    texts = {"kerbs": TINY, "data": DATA, "pair": PAIR}
    texts["side"] = PAIR.replace("baseline:", "kind: examples\nbaseline:")
    texts["words"] = PAIR.replace("baseline:", "kind: senses\nbaseline:")
    for name, text in texts.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    return tmp_path


def script(folder: Path, *words: str, status: int = 0, environ: Any = os.environ) -> str:
    how: Any = {"cwd": folder, "env": environ, "text": True, "capture_output": True}
    done = subprocess.run([*SCRIPT, *words], **how)
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
    assert not (folder / "results").exists()
    pair, cells = folder / "pair.yaml", folder / "runs" / "tables" / "cells" / "parallel"
    text = pair.read_text()
    pair.write_text(text.replace("flags: {", "flags: {kerbs: {arch: none}, "))
    with subprocess.Popen([*SCRIPT, "--table", "pair.yaml"], cwd=folder) as first:
        deadline = time.monotonic() + HANGS
        while not list(cells.glob("kerbs_softmax-s1-*/checkpoints/checkpoint_last.pt")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        first.send_signal(signal.SIGINT)
        assert first.wait(HANGS) != 0
    with subprocess.Popen([*SCRIPT, "--table", "pair.yaml"], cwd=folder) as second:
        killed = time.monotonic()
        while len(list((folder / "runs/tables/.snakemake/log").iterdir())) < 2:
            assert time.monotonic() < killed + HANGS
            time.sleep(0.05)
        refused = script(folder, "--table", "pair.yaml", status=2)
        assert re.search(r"error: --work runs/tables is in use by another", refused)
        second.kill()
    # what the killed command has started ends, and then the folder is free without a flag
    while (
        refused := subprocess.run([*SCRIPT, "--table", "pair.yaml"], cwd=folder)
    ).returncode == 2:
        assert time.monotonic() < killed + HANGS
        time.sleep(0.5)
    assert refused.returncode == 1  # as kerbs has no such architecture
    assert "Error in rule train" in script(folder, "--table", "pair.yaml", status=1)
    (finished,) = cells.glob("kerbs_softmax-s1-*/generate-test.txt")
    assert "Loaded checkpoint" in (finished.parent / "train.log").read_text()
    script(folder, "--table", "pair.yaml", "--report-only")
    results = folder / "results" / "tables"
    assert re.search(r"\| KerBS +\| +\| +\| 26 ", (results / "pair_small.md").read_text())
    pair.write_text(text)
    made = script(folder, *tables_of)
    assert (trained(made), "%) done" in made) == (["kerbs"], True)
    assert re.search(r"\| KerBS +\| \d+\.\d\d +\| 1 ", (results / "pair_small.md").read_text())
    assert "Source" in (results / "side_small.md").read_text()
    assert "| drawn at random |" in (results / "words_small.md").read_text()
    assert "Nothing to be done" in script(folder, *tables_of)
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
        text = (tables.TABLES / f"{name}.yaml").read_text() + TEXT
        text = re.sub(r"wikitext2/(kernel|mixture)\.yaml", r"small_\1.yaml", text)
        (folder / f"{name}.yaml").write_text(text.replace("data: wikitext2", "data: toy_text"))
    words = ["--table", "gao2.yaml", "--table", "gao4.yaml"]
    words += [word for row in ("mos", "rho_1") for word in ("--only", f"gao?/*/{row}/s1")]
    said = script(folder, *words)
    assert len(re.findall(r"training cells/toy_text/", said)) == 3  # lin comes with mos
    work, results = folder / "runs" / "tables", folder / "results" / "tables"

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
    (file,) = work.glob("cells/toy_text/small_mixture_mos-s1-*/neighbours_small_kernel-s1-*.json")
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
    people = "columns:\n  people: {metric: human, paper: {softmax: 1.2, kerbs: 1.4}}"
    pair = PAIR.replace("columns:", people).replace("metric: bleu4", "metric: bleu1")
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
        table = (tmp_path / "results" / "tables" / "pair_small.md").read_text()
        return table.partition("## people: human score")[2].partition("## mt")[0]

    assert cells_of(written("--human", "scores.json"), "KerBS")[:4] == ["1.50", "0.53", "8", "1.4"]
    scored.write_text(scored.read_text().replace('"mean": 1.5', '"mean": 1.25'))
    assert cells_of(written("--human", "scores.json"), "KerBS")[0] == "1.25"
    assert cells_of(written(), "KerBS")[:4] == ["", "", "", "1.4"]
    results = tmp_path / "results" / "tables"
    sheets = list((results / "sheets_small").iterdir())
    assert sorted(sheet.name for sheet in sheets) == ["rater1.csv", "rater2.csv", "rater3.csv"]
    shown = sheets[0].read_text("utf-8-sig")
    assert len(re.findall(r"softmax \d", shown)) == len(re.findall(r"kerbs \d", shown)) == 50
    assert (results / "sheets_small_key.json").is_file()


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
    assert "| KerBS" in (folder / "results" / "tables" / "pair_small.md").read_text()
    states = re.findall(r"JobName=(\w+) .*JobState=(\w+)", jobs)
    done = {"generate": 2, "prepare": 1, "train": 2}
    assert sorted(states) == [(job, "COMPLETED") for job, n in done.items() for _ in range(n)]
    asked = next(job for job in jobs.splitlines() if "JobName=train" in job)
    for part in ("gres:gpu:1", "MinMemoryNode=32000M", "TimeLimit=1-00:00:00"):
        assert part in asked
    assert unknown.stdout == "failed\n"


def test_progress_corrects_the_plan_by_what_was_measured(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    clock = [1000.0]
    monkeypatch.setattr(tables.time, "monotonic", lambda: clock[0])
    runs = [run for run in runs_of("2") if run.column == "mt" and run.seed == 1]
    planned = {run.row: run.minutes for run in runs}

    def train(row: str) -> None:
        folder = tmp_path / next(run.folder for run in runs if run.row == row)
        folder.mkdir(parents=True)
        (folder / "trained").touch()

    train("widened")  # earlier, so it says nothing about the speed of today
    progress = tables.Progress(runs, tmp_path, jobs=2)
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
