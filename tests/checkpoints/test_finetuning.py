"""The command that convert prints runs as printed, and trains as the softmax model was trained."""

import logging
import shlex
import shutil
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder
from fairseq.optim import OPTIMIZER_REGISTRY
from fairseq.optim.lr_scheduler import LR_SCHEDULER_REGISTRY

from fairseq_kerbs.checkpoints import finetuning, read_checkpoint
from fairseq_kerbs.utils.files import read_lines
from tests.checkpoints.conftest import TINY_LSTM
from tests.helpers import softmax_checkpoints
from tests.helpers.cli import Capsys, kerbs
from tests.helpers.commands import USER_DIR, run
from tests.helpers.fairseq_fixtures import dictionary
from tests.helpers.tiny_checkpoint import fairseq_train, fairseq_train_with

OPTIMIZERS: dict[str, list[object]] = {
    "adadelta": ["--adadelta-rho", 0.8, "--anneal-eps"],
    "adafactor": [
        "--scale-parameter",
        "--weight-decay",
        0.1,
        "--adafactor-eps",
        "(1e-20, 1e-2)",
    ],
    "adagrad": ["--weight-decay", 0.1],
    "adam": ["--adam-betas", "(0.8, 0.9)", "--adam-eps", 1e-6, "--use-old-adam"],
    "adamax": ["--adamax-betas", "(0.8, 0.9)", "--no-bias-correction"],
    "nag": ["--momentum", 0.5],
    "sgd": ["--momentum", 0.5, "--weight-decay", 0.1],
}
"""Flags of each optimizer that are not its defaults."""
NOT_HERE = {
    "cpu_adam": "needs deepspeed",
    "lamb": "needs apex",
    "composite": "its groups have no flags of fairseq-train",
}
SCHEDULES: dict[str, list[object]] = {
    "cosine": ["--lr-period-updates", 20, "--warmup-updates", 3, "--max-update", 2],
    "fixed": ["--force-anneal", 3, "--lr-shrink", 0.5],
    "inverse_sqrt": ["--warmup-updates", 3, "--warmup-init-lr", 1e-5],
    "manual": ["--update2lr", '{"1-4": 0.001}'],
    "polynomial_decay": ["--total-num-update", 50, "--power", 2, "--warmup-updates", 3],
    "reduce_lr_on_plateau": ["--lr-shrink", 0.5, "--lr-patience", 2],
    "step": ["--lr-deacy-period", 20, "--lr-decay", 0.9],
    "tri_stage": ["--phase-ratio", "(0.2, 0.3, 0.5)", "--max-update", 2],
    "triangular": ["--max-lr", 0.1, "--shrink-min"],
}
"""Flags of each schedule that are not its defaults."""
PAIRS = [*zip(cycle(OPTIMIZERS), SCHEDULES, strict=False)]
"""An optimizer for each schedule; there are fewer optimizers."""
WITHOUT_OPTIMIZER = {"pass_through": "needs the optimizer composite"}


def test_all_optimizers_and_schedules_of_fairseq_are_tried() -> None:
    assert {*OPTIMIZERS, *NOT_HERE} == {*OPTIMIZER_REGISTRY}
    assert {*SCHEDULES, *WITHOUT_OPTIMIZER} == {*LR_SCHEDULER_REGISTRY}
    assert {optimizer for optimizer, _ in PAIRS} == {*OPTIMIZERS}
    assert {schedule for _, schedule in PAIRS} == {*SCHEDULES}


def train_here(command: list[str]) -> None:
    """Run a printed command in this process, where the plugin has been imported."""
    program, *arguments = command
    assert program == "fairseq-train"
    at = arguments.index("--user-dir")
    assert arguments[at : at + 2] == [*map(str, USER_DIR)]
    del arguments[at : at + 2]
    fairseq_train_with(*arguments, "--cpu", "--num-workers", 0)


def train_on(
    data: Path, folder: Path, capsys: Capsys, *flags: object, trust: bool = False
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train a softmax for an update, convert it, and run the printed command for four more.

    Returns the configurations of both trainings.
    """
    tiny = ("--arch", "lstm", *TINY_LSTM, "--criterion", "cross_entropy", "--max-tokens", 1000)
    softmax = folder / "softmax"
    fairseq_train(data, "--save-dir", softmax, *tiny, "--max-update", 1, *flags)
    trained = softmax / "checkpoint_last.pt"
    trusted = ["--trust-checkpoint"] * trust
    printed = kerbs(capsys, "convert", trained, "-o", folder / "kerbs.pt", *trusted)
    line = printed.splitlines()[-1].removeprefix("train on with: ")
    program, *arguments = shlex.split(line)
    assert arguments[0] == "DATA"
    assert arguments[-4:] == ["--max-update", "N", "--save-dir", "SAVE_DIR"]
    arguments[0] = str(data)
    arguments[-3] = "4"  # tri_stage with shares needs an update for one of its stages
    arguments[-1] = str(folder / "on")
    train_here([program, *arguments])
    after = read_checkpoint(folder / "on" / "checkpoint_last.pt", trust)
    assert after["optimizer_history"][-1]["num_updates"] == 4
    return read_checkpoint(trained, trust)["cfg"], after["cfg"]


def same_settings(before: Any, after: Any, ignored: set[str]) -> None:
    """Compare a section of two configurations."""
    if not isinstance(before, dict):  # of an optimizer or schedule without a dataclass
        assert before._name == after._name
        return
    assert before.keys() == after.keys()
    for name in before.keys() - ignored:
        assert before[name] == after[name], name


@pytest.mark.parametrize("section", ["optimizer", "lr_scheduler"])
def test_what_fairseq_does_not_have_is_one_sentence(
    section: str, tmp_path: Path, capsys: Capsys
) -> None:
    path = tmp_path / "softmax.pt"
    softmax_checkpoints.write_softmax(path, softmax_checkpoints.CASES["lstm"])
    state = torch.load(path, weights_only=False)
    state["cfg"][section]["_name"] = "newest"
    torch.save(state, path)
    (error,) = kerbs(capsys, "convert", path, "-o", tmp_path / "k.pt", status=2).splitlines()
    assert f"fairseq has no {section} newest" in error
    assert not (tmp_path / "k.pt").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("optimizer", "schedule"), PAIRS)
def test_optimizers_and_schedules_are_kept(
    optimizer: str, schedule: str, corpus: Path, tmp_path: Path, capsys: Capsys
) -> None:
    flags: list[object] = ["--optimizer", optimizer, "--clip-norm", 2.5, *OPTIMIZERS[optimizer]]
    flags += ["--lr-scheduler", schedule, *SCHEDULES[schedule]]
    before, after = train_on(corpus, tmp_path, capsys, *flags)
    same_settings(before["optimizer"], after["optimizer"], set())
    for name in ("lr", "clip_norm", "update_freq"):
        assert before["optimization"][name] == after["optimization"][name]
    if optimizer == "sgd":
        assert after["optimizer"].momentum == 0.5
        assert after["optimizer"].weight_decay == 0.1
    same_settings(before["lr_scheduler"], after["lr_scheduler"], {"max_update"})
    if schedule == "manual":
        assert after["lr_scheduler"].update2lr == '{"1-4": 0.001}'


@pytest.mark.slow
def test_settings_of_the_task_are_kept(corpus: Path, tmp_path: Path, capsys: Capsys) -> None:
    """One of them turns a switch off that is on by default."""
    flags: list[object] = ["--left-pad-source", "--truncate-source"]
    flags += ["--max-source-positions", 77, "--upsample-primary", 2]
    before, after = train_on(corpus, tmp_path, capsys, *flags)
    assert before["task"]["left_pad_source"] is False
    ignored = {"data", "train_subset"}
    same_settings(before["task"], after["task"], ignored)


@pytest.fixture(scope="module")
def joint(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus with one dictionary of both languages, as a multilingual task needs it."""
    folder = tmp_path_factory.mktemp("joint")
    dictionary = Dictionary.load(str(corpus / "dict.de.txt"))
    dictionary.update(Dictionary.load(str(corpus / "dict.en.txt")))
    dictionary.finalize(padding_factor=1)
    for language in ("de", "en"):
        dictionary.save(str(folder / f"dict.{language}.txt"))
        for split in ("train", "valid"):
            prefix = str(folder / f"{split}.de-en.{language}")
            builder = MMapIndexedDatasetBuilder(f"{prefix}.bin")
            for line in read_lines(corpus.parent / "text" / f"{split}.{language}"):
                builder.add_item(dictionary.encode_line(line, add_if_not_exist=False).int())
            builder.finalize(f"{prefix}.idx")
    return folder


@pytest.mark.slow
def test_a_multilingual_model_trains_on_but_its_data_are_refused(
    joint: Path, tmp_path: Path, capsys: Capsys
) -> None:
    task = "translation_multi_simple_epoch"
    flags = ["--task", task, "--langs", "de,en", "--lang-pairs", "de-en", "--decoder-langtok"]
    _, after = train_on(joint, tmp_path, capsys, *flags, trust=True)
    assert after["task"].lang_pairs == ["de-en"]
    assert after["task"].decoder_langtok
    convert = ["convert", tmp_path / "softmax" / "checkpoint_last.pt", "-o", tmp_path / "k.pt"]
    for trusted in ([], ["--trust-checkpoint"]):
        (error,) = kerbs(capsys, *convert, "--data", joint, *trusted, status=2).splitlines()
        assert f"was trained with --task {task}, whose data cannot be read" in error
        assert "--trust-checkpoint" not in error
    assert not (tmp_path / "k.pt").exists()


@pytest.fixture(scope="module")
def made_up(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data with as many words as the models of `softmax_checkpoints`, in a folder to be quoted."""
    folder = tmp_path_factory.mktemp("it's data")
    sizes = {"de": softmax_checkpoints.SOURCE_WORDS, "en": softmax_checkpoints.WORDS}
    for name, words in {**sizes, "": softmax_checkpoints.WORDS}.items():
        ending = f".{name}" if name else ""
        dictionary(words).save(str(folder / f"dict{ending}.txt"))
        for split in ("train", "valid"):
            pair = f".de-en{ending}" if name else ""
            prefix = str(folder / f"{split}{pair}")
            builder = MMapIndexedDatasetBuilder(f"{prefix}.bin")
            for length in (5, 3, 7, 4):
                sentence = torch.randint(4, words, (length,))
                builder.add_item(torch.cat([sentence, torch.tensor([2])]).int())
            builder.finalize(f"{prefix}.idx")
    return folder


@pytest.fixture(scope="module")
def joined(made_up: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with one dictionary for both languages."""
    folder = shutil.copytree(made_up, tmp_path_factory.mktemp("joined") / "data")
    shutil.copy(folder / "dict.en.txt", folder / "dict.de.txt")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", softmax_checkpoints.CASES)
def test_the_printed_command_runs_for_every_architecture(
    kind: str,
    made_up: Path,
    joined: Path,
    tmp_path: Path,
    capsys: Capsys,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As the shell reads it, with names of files that have spaces and quotes."""
    data = joined if "shared" in kind else made_up
    softmax = tmp_path / 'a "softmax" model.pt'
    kerbs_model = tmp_path / "it's $HOME.pt"
    softmax_checkpoints.write_softmax(softmax, softmax_checkpoints.CASES[kind])
    line = kerbs(capsys, "convert", softmax, "-o", kerbs_model).splitlines()[-1]
    command = line.removeprefix("train on with: ").replace(" DATA ", f" {shlex.quote(str(data))} ")
    command = command.replace("--max-update N", "--max-update 2")
    command = command.replace("SAVE_DIR", shlex.quote(str(tmp_path / "on")))
    for needed, value in (("--max-tokens", "200"), ("--criterion", "kerbs_cross_entropy")):
        if needed not in command:
            command += f" {needed} {value}"
    _, *arguments = shlex.split(command)
    if kind in ("transformer", "lstm_lm"):  # a process with nothing but --user-dir
        log = run("fairseq-train", *arguments, "--cpu")
    else:
        caplog.set_level(logging.INFO, "fairseq")
        train_here(["fairseq-train", *arguments])
        log = caplog.text
    assert "loading pretrained model from" in log
    after = read_checkpoint(tmp_path / "on" / "checkpoint_last.pt")
    assert after["optimizer_history"][-1]["num_updates"] == 2
    assert vars(after["cfg"]["model"])["output_layer"] == "kerbs"


@pytest.mark.parametrize(
    ("value", "other", "same"),
    [
        (2, 2.0, True),
        (None, False, True),
        (0, None, False),
        (1, True, False),
        ([1, 2], "1,2", True),
        ("a", "b", False),
    ],
)
def test_values_that_are_the_same(value: Any, other: Any, same: bool) -> None:
    assert finetuning._same(value, other) == finetuning._same(other, value) == same
