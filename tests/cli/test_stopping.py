"""Ctrl-C and SIGTERM during ``fairseq-kerbs train``; threads of the programs that it starts."""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fairseq_kerbs.checkpoints import read_checkpoint
from fairseq_kerbs.cli.experiments import choose_threads
from fairseq_kerbs.cli.stopping import where_it_goes_on
from fairseq_kerbs.utils import threads
from fairseq_kerbs.utils.checkpoint_files import LAST
from tests.helpers import HANGS
from tests.helpers.cli import Patch
from tests.helpers.commands import ROOT
from tests.helpers.tiny_checkpoint import binarized_corpus


def call_of(folder: Path, restore_file: str = LAST, suffix: str = "") -> Any:
    values = argparse.Namespace(
        save_dir=str(folder), restore_file=restore_file, checkpoint_suffix=suffix
    )
    return SimpleNamespace(values=values)


def test_where_a_stopped_training_goes_on(tiny_work: Path, tmp_path: Path) -> None:
    said = where_it_goes_on(call_of(tmp_path))
    assert said.startswith(f"no checkpoint yet in {tmp_path}, so that the same command begins anew")

    for at, name in enumerate(("checkpoint_1_8.pt", "checkpoint_best.pt", "checkpoint_1_4.pt")):
        (tmp_path / name).touch()  # of --no-last-checkpoints
        os.utime(tmp_path / name, (at, at))
    assert where_it_goes_on(call_of(tmp_path)) == (
        f"{tmp_path} has no checkpoint_last.pt, so that the same command begins anew; to go on, "
        f"add --restore-file {tmp_path}/checkpoint_1_4.pt"
    )
    for file in tmp_path.glob("*.pt"):
        file.unlink()

    first = tmp_path / "softmax" / "checkpoint_last.pt"
    first.parent.mkdir()
    shutil.copy(tiny_work / "model.pt", first)  # of two updates
    assert where_it_goes_on(call_of(tmp_path)).endswith(f"goes on from {first} at 2 updates")
    assert where_it_goes_on(call_of(tmp_path, suffix="-x")).startswith("no checkpoint yet")

    last = tmp_path / "checkpoint_last.pt"
    state = read_checkpoint(first)
    state["optimizer_history"][-1]["num_updates"] = 77
    torch.save(state, last)
    assert where_it_goes_on(call_of(tmp_path)) == (
        f"the same command goes on from {last} at 77 updates"
    )
    assert where_it_goes_on(call_of(tmp_path, "other.pt")) == (
        f"to go on from {last} at 77 updates, leave --restore-file out"
    )
    # what could run code is not read, and fairseq-train goes on from it all the same
    torch.save(state | {"extra_state": {"object": tiny_work}}, last)
    assert where_it_goes_on(call_of(tmp_path)) == f"the same command goes on from {last}"
    os.truncate(last, 3000)
    assert f"{last} is damaged; to go on from another" in where_it_goes_on(call_of(tmp_path))


CONFIGURATION = """
placement: {at: 0.5, total: 2.0}
train:
  arch: lstm_kerbs
  hidden-size: 6
  embed-dim: 4
  criterion: kerbs_cross_entropy
  optimizer: adam
  max-tokens: 400
  max-update: 1000000
  save-interval: 9999999
  save-interval-updates: 3
  disable-validation: true
  cpu: true
  num-workers: 0
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return binarized_corpus(tmp_path_factory.mktemp("stopped"))


def _until(done: Any, process: subprocess.Popen[str]) -> None:
    """Wait for something that a process does."""
    end = time.monotonic() + HANGS
    while not done():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.slow
def test_a_stopped_training(data: Path, tmp_path: Path) -> None:
    """By Ctrl-C before the first checkpoint; by a kill after one of the first of three steps."""
    configuration = tmp_path / "staged.yaml"
    configuration.write_text(CONFIGURATION)
    save = tmp_path / "save"
    last = save / "softmax" / "checkpoint_last.pt"
    command = [sys.executable, "-c"]
    # a shell's background jobs inherit that SIGINT is ignored
    command.append(
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from fairseq_kerbs.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    command += ["train", str(configuration), str(data), str(save)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    environment.pop(threads.NUMBER, None)

    def stopped(how: signal.Signals, done: Any, *flags: str) -> str:
        with (tmp_path / "log").open("w") as log:
            process = subprocess.Popen(
                [*command, *flags], stdout=log, stderr=log, text=True, env=environment
            )
            try:
                _until(done, process)
                process.send_signal(how)
                assert process.wait(HANGS) == 128 + how
            finally:
                process.kill()
                process.wait()
        printed = (tmp_path / "log").read_text()
        assert "Traceback" not in printed
        assert "threads: 1, as the model is small (its decoder is 6 wide)" in printed
        (said,) = [line for line in printed.splitlines() if line.startswith("fairseq-kerbs: stop")]
        return said

    def training() -> bool:
        return "Start iterating" in (tmp_path / "log").read_text()

    said = stopped(signal.SIGINT, training, "--save-interval-updates", "0")
    assert said.startswith(f"fairseq-kerbs: stopped; no checkpoint yet in {save}")
    said = stopped(signal.SIGTERM, last.is_file)
    updates = read_checkpoint(last)["optimizer_history"][-1]["num_updates"]
    assert updates >= 3
    assert (
        said == f"fairseq-kerbs: stopped; the same command goes on from {last} at {updates} updates"
    )


# ------------------------------------------------------------------ threads


@pytest.fixture
def said(monkeypatch: Patch, capsys: pytest.CaptureFixture[str]) -> Any:
    """What choosing the number of threads prints, on a machine of four cores that are free."""
    monkeypatch.setattr(threads, "usable_cores", lambda: 4)
    monkeypatch.setattr(threads, "free_cores", lambda: 4)

    def choose(gpu: bool = False, **values: Any) -> str:
        monkeypatch.setenv(threads.NUMBER, "")
        monkeypatch.delenv(threads.NUMBER)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
        choose_threads(argparse.Namespace(**{"cpu": False, **values}))
        return f"{os.environ[threads.NUMBER]}: {capsys.readouterr().err}"

    return choose


def test_small_models_on_a_cpu_have_one_thread(said: Any) -> None:
    assert said(decoder_embed_dim=256).startswith("1: fairseq-kerbs: threads: 1, as the model is")
    assert said(decoder_embed_dim=257).startswith("4: fairseq-kerbs: threads: 4, as 4 of 4 cores")
    # of recurrent models, ours and fairseq's
    assert said(hidden_size=300, embed_dim=64).startswith("4:")
    assert said(hidden_size=200, embed_dim=64).startswith("1:")
    assert said(decoder_embed_dim=128, decoder_hidden_size="512").startswith("4:")
    # a model on a GPU, unless it is not used; and of which nothing is known
    assert said(gpu=True, decoder_embed_dim=64).startswith("4:")
    assert said(gpu=True, cpu=True, decoder_embed_dim=64).startswith("1:")
    assert said(arch=None).startswith("4:")
