"""A training in three steps: softmax, placement of senses, KerBS."""

import functools
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder

from fairseq_kerbs.analysis.plots import read_history
from fairseq_kerbs.checkpoints import read_checkpoint
from fairseq_kerbs.configurations import Flags, StagedPlacement
from fairseq_kerbs.programs import TRAIN, read_call
from fairseq_kerbs.training.staged import Training, check_text, train_and_place
from fairseq_kerbs.utils.errors import UserError
from tests.helpers.cli import Capsys, kerbs
from tests.helpers.commands import run, run_forked
from tests.helpers.tiny_checkpoint import binarized_corpus

WORD_OF_SENSE = "decoder.output.inventory.word_of_sense"
SENSE_EMBEDDINGS = "decoder.output.weight"

CONFIGURATION = """
placement:
  at: 0.4  # at update 10 of 25
  total: 1.5
  train: {lr: 0.002}
train:
  arch: lstm_kerbs
  hidden-size: 16
  embed-dim: 16
  criterion: kerbs_cross_entropy
  optimizer: adam
  lr: 0.01
  max-tokens: 1000
  max-update: 25
  cpu: true
  num-workers: 0
  total-senses: null
  log-interval: 1
"""


@pytest.mark.slow
def test_one_command_trains_softmax_and_senses(tmp_path: Path, capsys: Capsys) -> None:
    data = binarized_corpus(tmp_path / "corpus", {"train": 300, "valid": 20, "test": 6})
    configuration = tmp_path / "staged.yaml"
    configuration.write_text(CONFIGURATION)
    save = tmp_path / "save"
    events = tmp_path / "events"
    command = ["train", configuration, data, save, "--tensorboard-logdir", events]
    train = functools.partial(run_forked, "fairseq-kerbs", *command)

    printed = train()
    assert "loss of split valid" in printed
    log = tmp_path / "log"
    log.write_text(printed)
    for history in map(read_history, (log, events)):  # one curve, of both parts
        assert history["nll_loss"].dropna().index.tolist() == [*range(1, 26)]
        assert history["words_with_1"].dropna().index.tolist() == [*range(11, 26)]
    first = read_checkpoint(save / "softmax" / "checkpoint_last.pt")
    last = read_checkpoint(save / "checkpoint_last.pt")
    history = last["optimizer_history"][-1]
    assert first["optimizer_history"][-1]["num_updates"] == 10
    assert history["num_updates"] == 15
    assert first["cfg"]["optimization"]["lr"] == [0.01]
    assert last["cfg"]["optimization"]["lr"] == [0.002]
    assert len(last["model"][WORD_OF_SENSE]) > len(first["model"][SENSE_EMBEDDINGS])

    # once more: what is done stays
    assert "loss of split" not in train()
    assert read_checkpoint(save / "checkpoint_last.pt")["optimizer_history"][-1] == history

    # ended before the placement: only the softmax stays as it is
    placed = save / "softmax" / "senses_1.5_4.pt"
    for path in (placed, *save.glob("checkpoint*")):
        path.unlink()
    assert "loss of split valid" in train()
    resumed = read_checkpoint(save / "checkpoint_last.pt")["model"]
    assert all(torch.equal(value, resumed[name]) for name, value in last["model"].items())

    assert "senses_1.5_4.pt, with another" in kerbs(capsys, *command, "--max-senses", 3, status=2)
    for most, at in ((50, 20), (20, 8)):
        refused = kerbs(capsys, *command, "--max-update", most, status=2)
        assert f"has 10 updates, but senses are to be placed after {at}" in refused
        assert refused.endswith("or the former length, --max-update 25\n")
        placed.unlink(missing_ok=True)
    assert not placed.exists()


@pytest.mark.slow
def test_the_printed_commands_run(tmp_path: Path, capsys: Capsys) -> None:
    """Two of them as first printed, the last one as printed after these."""
    data = binarized_corpus(tmp_path / "it's a corpus", {"train": 300, "valid": 20, "test": 6})
    configuration = tmp_path / "staged.yaml"
    configuration.write_text(CONFIGURATION)
    save = tmp_path / "save dir"
    command = ["train", configuration, data, save, "--lr-scheduler", "inverse_sqrt", "--dry-run"]

    def printed() -> list[list[str]]:
        lines = kerbs(capsys, *command).splitlines()
        assert any("--total-senses of the last command" in line for line in lines)
        return [shlex.split(line) for line in lines if not line.startswith("#")]

    first, second, _ = printed()
    run("fairseq-train", *first[1:])
    run("fairseq-kerbs", *second[second.index("fairseq_kerbs.cli") + 1 :])
    run("fairseq-train", *printed()[-1][1:])
    last = read_checkpoint(save / "checkpoint_last.pt")
    assert last["optimizer_history"][-1]["num_updates"] == 15
    assert last["cfg"]["lr_scheduler"]["_name"] == "inverse_sqrt"


def steps_of(training: Training, placement: StagedPlacement) -> tuple[list[str], ...]:
    """Arguments of the three commands, without running one."""
    commands: list[list[str]] = []

    def show(command: Sequence[str]) -> None:
        commands.append(list(command))

    rest = train_and_place(training, placement, show, dry_run=True)
    softmax, convert = commands
    return softmax, convert, rest.arguments()


def value(arguments: Sequence[str], flag: str) -> str:
    """Value of a flag: the last one, as argparse reads it."""
    place = len(arguments) - 1 - list(reversed(arguments)).index(flag)
    return arguments[place + 1]


def polynomial(save_dir: Path) -> Flags:
    schedule: Flags = {"lr-scheduler": "polynomial_decay", "max-update": "100"}
    return {"save-dir": str(save_dir), **schedule}


def test_updates_and_schedule_are_divided(tmp_path: Path) -> None:
    flags: Flags = {
        "save-dir": str(tmp_path),
        "lr-scheduler": "polynomial_decay",
        "max-update": "100",
    }
    placement = StagedPlacement(0.3, 2.0, {"lr": "0.002"})
    training = Training("data", str(tmp_path), {**flags, "lr": "0.01"}, ("--seed", "7"))
    softmax, convert, kerbs_model = steps_of(training, placement)

    assert value(softmax, "--output-layer") == "softmax"
    assert value(softmax, "--save-dir") == str(tmp_path / "softmax")
    assert value(softmax, "--max-update") == "30"
    assert value(softmax, "--total-num-update") == "100"  # that of the whole training
    assert value(softmax, "--lr") == "0.01"
    assert value(softmax, "--seed") == "7"

    placed = str(tmp_path / "softmax" / "senses_2.0_4.pt")
    assert value(convert, "-o") == placed
    assert value(convert, "--total-senses") == "2.0"
    assert value(convert, "--max-senses") == "4"

    assert value(kerbs_model, "--output-layer") == "kerbs"
    assert value(kerbs_model, "--save-dir") == str(tmp_path)
    assert value(kerbs_model, "--finetune-from-model") == placed
    assert value(kerbs_model, "--max-update") == "70"
    assert value(kerbs_model, "--total-num-update") == "70"
    assert value(kerbs_model, "--total-senses") == "2.0"
    assert value(kerbs_model, "--reallocation") == "none"
    assert "--sense-bias" in kerbs_model
    assert value(kerbs_model, "--lr") == "0.002"
    assert value(kerbs_model, "--seed") == "7"


def test_a_given_length_of_the_schedule_stays_that_of_the_softmax(tmp_path: Path) -> None:
    flags: Flags = {
        "save-dir": str(tmp_path),
        "lr-scheduler": "polynomial_decay",
        "max-update": "100",
    }
    training = Training("data", str(tmp_path), flags, ("--total-num-update", "500"))
    softmax, _, kerbs_model = steps_of(training, StagedPlacement(0.3, 2.0, {}))
    assert softmax.count("--total-num-update") == 1
    assert value(softmax, "--total-num-update") == "500"
    assert value(kerbs_model, "--total-num-update") == "70"


def test_splits_of_the_training_are_those_of_the_placement(tmp_path: Path) -> None:
    flags: Flags = {"save-dir": str(tmp_path), "max-update": "100"}
    extra = ("--train-subset", "train,more", "--valid-subset", "dev", "--max-senses", "3")
    training = Training("data", str(tmp_path), flags, extra)
    softmax, convert, kerbs_model = steps_of(training, StagedPlacement(0.3, 2.0, {}))
    assert value(convert, "--data") == "data"
    assert value(convert, "--split") == "train"
    assert value(convert, "--valid-split") == "dev"
    assert value(convert, "--max-senses") == "3"
    assert "--trust-checkpoint" in convert
    assert "--total-num-update" not in softmax
    assert "--total-num-update" not in kerbs_model


@pytest.mark.parametrize(("at", "updates"), [(0.99, 40), (0.9, 4), (0.01, 10), (0.5, 2)])
def test_every_step_has_an_update(at: float, updates: int, tmp_path: Path) -> None:
    """As ``--max-update 0`` is no limit."""
    flags: Flags = {"save-dir": str(tmp_path), "max-update": str(updates)}
    training = Training("data", str(tmp_path), flags)
    softmax, _, kerbs_model = steps_of(training, StagedPlacement(at, 2.0, {}))
    lengths = [int(value(step, "--max-update")) for step in (softmax, kerbs_model)]
    assert min(lengths) >= 1
    assert sum(lengths) == updates


def test_what_would_be_lost_is_refused(tmp_path: Path) -> None:
    flags: Flags = {"save-dir": str(tmp_path), "max-update": "10"}
    placement = StagedPlacement(0.5, 2.0, {})
    stock = Training("data", str(tmp_path), {**flags, "arch": "transformer"})
    with pytest.raises(UserError, match=r"--arch transformer has no senses"):
        steps_of(stock, placement)
    (tmp_path / "checkpoint_last.pt").touch()
    with pytest.raises(UserError, match=r"checkpoint_last.pt is of a training without this plac"):
        steps_of(Training("data", str(tmp_path), flags), placement)


@pytest.mark.parametrize(
    "flag",
    [
        "--total-senses 2",
        "--output-layer kerbs",
        "--restore-file other.pt",
        "--finetune-from-model other.pt",
        "--continue-once other.pt",
        "--max-epoch 3",
        "--stop-time-hours 2",
        "--patience 3",
        "--stop-min-lr 0.001",
        "--no-save",
        "--no-last-checkpoints",
        "--checkpoint-suffix _b",
        "--reset-optimizer",
    ],
)
def test_flags_of_the_steps_are_refused(flag: str, tmp_path: Path) -> None:
    flags: Flags = {"save-dir": str(tmp_path), "max-update": "10"}
    training = Training("data", str(tmp_path), flags, tuple(flag.split()))
    refusal = f"^{flag.split()[0]} does not go with a configuration that has a placement"
    with pytest.raises(UserError, match=refusal):
        steps_of(training, StagedPlacement(0.5, 2.0, {}))


@pytest.mark.parametrize("schedule", ["cosine", "tri_stage"])
def test_a_schedule_by_the_number_of_updates_is_refused(schedule: str, tmp_path: Path) -> None:
    flags: Flags = {"save-dir": str(tmp_path), "max-update": "10", "lr-scheduler": schedule}
    with pytest.raises(UserError, match=f"^--lr-scheduler {schedule} goes by --max-update"):
        steps_of(Training("data", str(tmp_path), flags), StagedPlacement(0.5, 2.0, {}))


def test_two_folders_of_data_are_refused(tmp_path: Path) -> None:
    flags: Flags = {"save-dir": str(tmp_path), "max-update": "10"}
    with pytest.raises(UserError, match=r"^a:b: .* takes one folder of data"):
        steps_of(Training("a:b", str(tmp_path), flags), StagedPlacement(0.5, 2.0, {}))


@pytest.mark.parametrize("content", [{"model": {}}, {"optimizer_history": []}, [1, 2]])
def test_a_checkpoint_of_another_program_is_one_sentence(content: object, tmp_path: Path) -> None:
    flags: Flags = {"save-dir": str(tmp_path), "max-update": "10"}
    last = tmp_path / "softmax" / "checkpoint_last.pt"
    last.parent.mkdir()
    torch.save(content, last)
    with pytest.raises(UserError, match=r"checkpoint_last.pt is of no training with this config"):
        steps_of(Training("data", str(tmp_path), flags), StagedPlacement(0.5, 2.0, {}))


@pytest.mark.parametrize("below", ["", "all"])
def test_events_are_not_copied_into_themselves(below: str, tmp_path: Path) -> None:
    flags: Flags = {"save-dir": str(tmp_path), "max-update": "10"}
    placement = StagedPlacement(0.5, 2.0, {})
    logs = str(tmp_path / "tensorboard" / below)
    training = Training("data", str(tmp_path), flags, ("--tensorboard-logdir", logs))
    with pytest.raises(UserError, match="is for the events of the third step"):
        steps_of(training, placement)
    other = ("--tensorboard-logdir", str(tmp_path / "events"))
    assert steps_of(Training("data", str(tmp_path), flags, other), placement)


def test_a_file_that_is_no_dictionary_is_one_sentence(tmp_path: Path) -> None:
    for language in ("de", "en"):
        (tmp_path / f"dict.{language}.txt").write_text("word\n")
    (tmp_path / "train.de-en.de.idx").touch()
    call = read_call(TRAIN, str(tmp_path), {"arch": "lstm_kerbs", "optimizer": "adam"})
    with pytest.raises(UserError, match=r"dict.en.txt is no dictionary of fairseq \(Incorrect"):
        check_text(call, str(tmp_path))


@pytest.mark.parametrize("ends", [(".de-en.de", ".de-en.en"), ("",)])
def test_all_parts_of_the_training_text_are_counted(ends: tuple[str, ...], tmp_path: Path) -> None:
    """Of a translation and of a language model, as fairseq joins train, train1 and so on."""
    for end in ends:
        (tmp_path / f"dict{end[-3:]}.txt").write_text("word 60\n")
        for split, length in (("train", 30), ("train1", 40)):
            builder = MMapIndexedDatasetBuilder(str(tmp_path / f"{split}{end}.bin"))
            builder.add_item(torch.full((length,), 4))
            builder.finalize(str(tmp_path / f"{split}{end}.idx"))
    call = read_call(TRAIN, str(tmp_path), {"arch": "lstm_kerbs", "optimizer": "adam"})
    check_text(call, str(tmp_path))
    for path in tmp_path.glob("train1*"):
        path.unlink()
    with pytest.raises(UserError, match="no word of the training text occurs 40 times"):
        check_text(call, str(tmp_path))
