"""The main job with the real commands: corpus, training, translation, senses; and wrong input."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.helpers import HANGS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(sys.executable).parent
TINY = {
    "encoder-embed-dim": 32,
    "decoder-embed-dim": 32,
    "encoder-ffn-embed-dim": 64,
    "decoder-ffn-embed-dim": 64,
    "max-update": 40,
    "reallocation-interval": 10,
    "log-interval": 10,
    "num-workers": 0,
}


def run(*command: object, succeeds: bool = True) -> str:
    """Run a command away from the checkout; return all that it prints."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=ROOT.parent,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=HANGS,
        check=False,
    )
    assert (done.returncode == 0) == succeeds, done.stdout[-4000:]
    return done.stdout


def kerbs(*arguments: object, succeeds: bool = True) -> str:
    """Run ``fairseq-kerbs``."""
    return run(sys.executable, "-m", "fairseq_kerbs.cli", *arguments, succeeds=succeeds)


def train(data: Path, save_dir: Path, *flags: object, succeeds: bool = True) -> str:
    """Train the quickstart's configuration, made tiny."""
    tiny = [part for name, value in TINY.items() for part in (f"--{name}", value)]
    config = ROOT / "configs" / "toy.yaml"
    return run(
        ROOT / "scripts" / "train.sh", config, data, save_dir, *tiny, *flags, succeeds=succeeds
    )


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small toy corpus (text/), binarized (data/bin), and a model (model/)."""
    folder = tmp_path_factory.mktemp("work")
    text = folder / "text"
    kerbs("toy", text, "--train", 1500, "--valid", 60, "--test", 60)
    run(
        ROOT / "scripts" / "prepare_parallel.sh",
        *("--train", text / "train", "--valid", text / "valid", "--test", text / "test"),
        *("--source-lang", "de", "--target-lang", "en", "--merges", 2000),
        *("--dest", folder / "data", "--workers", 1),
    )
    log = train(folder / "data" / "bin", folder / "model", "--tensorboard-logdir", folder / "tb")
    (folder / "train.log").write_text(log, encoding="utf-8")
    return folder


def test_training_learns_and_moves_senses(work: Path) -> None:
    log = (work / "train.log").read_text(encoding="utf-8")
    losses = [float(value) for value in re.findall(r"train_inner.* loss=([0-9.]+)", log)]
    assert losses[-1] < losses[0] - 1.0
    assert "senses moved to" in log
    moved = re.findall(r"train_inner.* senses_moved=([0-9]+)", log)
    assert sum(int(value) for value in moved) > 0


def test_sense_statistics_reach_tensorboard(work: Path) -> None:
    events = EventAccumulator(str(work / "tb" / "train_inner"))
    events.Reload()
    names = events.Tags()["scalars"]
    expected = {"senses_moved", "theta_q05", "theta_q50", "theta_q95"}
    expected |= {f"words_with_{number}" for number in range(1, 5)}
    assert expected <= set(names)


def test_translation_gives_bleu_with_a_signature(work: Path) -> None:
    output = run(
        ROOT / "scripts" / "generate.sh",
        *(ROOT / "configs" / "toy.yaml", work / "data" / "bin", work / "model"),
        *("--reference", work / "text" / "test.en", "--max-len-b", 20),
    )
    assert re.search(r"BLEU\|nrefs:1\|case:mixed\|.*version:[0-9.]+ = [0-9.]+", output)


def test_senses_of_ambiguous_words_are_reported(work: Path) -> None:
    report = work / "senses.json"
    output = kerbs(
        *("senses", work / "model" / "checkpoint_best.pt", "--data", work / "data" / "bin"),
        *("--gold", work / "text" / "test.senses.tsv", "--json", report),
    )
    assert re.search(r"^all +\d+ +[0-9.]+% +[0-9.]+% +[0-9.]+%$", output, re.MULTILINE)
    words = {word["word"]: word for word in json.loads(report.read_text())["words"]}
    assert {"bank", "spring", "light", "match"} <= set(words)
    assert all(1 <= len(word["senses"]) <= 4 for word in words.values())


def test_training_goes_on_where_it_stopped(work: Path, tmp_path: Path) -> None:
    data = work / "data" / "bin"
    train(data, tmp_path, "--max-update", 15)
    log = train(data, tmp_path, "--max-update", 25)
    assert "Loaded checkpoint" in log
    assert re.findall(r"reallocation after (\d+) updates", log) == ["20"]


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--total-senses", 0.5], "--total-senses"),
        (["--total-senses", 5], "--total-senses"),
        (["--max-senses", 0], "--max-senses"),
        (["--kernel", "rfb"], "--kernel"),
    ],
)
def test_wrong_flags_end_with_one_sentence(
    work: Path, tmp_path: Path, flags: list[object], named: str
) -> None:
    output = train(work / "data" / "bin", tmp_path, *flags, succeeds=False)
    assert "Traceback" not in output
    assert named in output.splitlines()[-1]
    assert not list(tmp_path.glob("*.pt"))


def test_a_checkpoint_of_another_sense_count_is_refused(work: Path) -> None:
    output = train(
        *(work / "data" / "bin", work / "model", "--total-senses", 2, "--max-update", 50),
        succeeds=False,
    )
    assert "Traceback" not in output
    assert "--total-senses" in output.splitlines()[-1]


def test_generating_without_user_dir_says_so(work: Path) -> None:
    output = run(
        *(PROGRAMS / "fairseq-generate", work / "data" / "bin"),
        *("--path", work / "model" / "checkpoint_best.pt"),
        succeeds=False,
    )
    assert "Traceback" not in output
    assert "--user-dir" in output.splitlines()[-1]


@pytest.mark.parametrize("what", ["checkpoint", "data", "split", "gold"])
def test_senses_of_missing_files_end_with_one_sentence(work: Path, what: str) -> None:
    parts = {
        "checkpoint": work / "model" / "checkpoint_best.pt",
        "data": work / "data" / "bin",
        "split": "test",
        "gold": work / "text" / "test.senses.tsv",
    }
    parts[what] = "absent" if what == "split" else work / "absent"
    output = kerbs(
        *("senses", parts["checkpoint"], "--data", parts["data"]),
        *("--split", parts["split"], "--gold", parts["gold"]),
        succeeds=False,
    )
    assert "Traceback" not in output
    assert "absent" in output.splitlines()[-1]
