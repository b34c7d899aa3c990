"""What keeps a training and its checkpoints from harm: refusals, and the lock of a folder."""

import os
import random
import subprocess
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from fairseq.modules.transformer_layer import TransformerEncoderLayerBase
from torch import nn

from fairseq_kerbs.likelihood import compilation
from fairseq_kerbs.training import guards
from fairseq_kerbs.utils.checkpoint_files import check_whole
from tests.helpers import HANGS
from tests.helpers.cli import Log, Patch
from tests.helpers.commands import ENVIRONMENT, PROGRAMS
from tests.helpers.fairseq_fixtures import make_model
from tests.helpers.resumable_trainings import load, run
from tests.helpers.tiny_checkpoint import fairseq_train
from tests.helpers.training_runs import trainings

STATE = {"model": {"weight": torch.zeros(10_000)}, "args": None, "cfg": None}


@pytest.fixture
def copy(tiny_work: Path, tmp_path: Path) -> Path:
    """A copy of its checkpoint, in a folder that a training can go on in."""
    copy = tmp_path / "checkpoint_last.pt"
    copy.write_bytes((tiny_work / "model.pt").read_bytes())
    return copy


def resume(tiny_work: Path, copy: Path, *flags: object) -> None:
    fairseq_train(tiny_work / "bin", "--save-dir", copy.parent, "--max-update", 4, *flags)


def refusal(*arguments: Any) -> str:
    with pytest.raises(SystemExit) as refused:
        resume(*arguments)
    sentence = str(refused.value.code)
    assert sentence.startswith("fairseq_kerbs: error: ")
    assert "\n" not in sentence
    return sentence


@pytest.mark.parametrize("seed", range(2))
def test_a_flipped_bit_is_refused_or_means_nothing(tmp_path: Path, seed: int) -> None:
    """Wherever it is: in numbers, settings, the archive's contents, or between all these."""
    path = tmp_path / "checkpoint_last.pt"
    weights = {f"w{number}": torch.randn(50) for number in range(5)}
    torch.save({**STATE, "model": weights}, path)
    whole = path.read_bytes()
    chance = random.Random(seed)
    refused = harmless = 0
    command = ["fairseq-generate", "DATA", "--path", str(path)]
    for _ in range(250):
        flipped = bytearray(whole)
        flipped[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        path.write_bytes(flipped)
        try:
            with mock.patch("sys.argv", command):
                guards.check_named_checkpoints()
            found = load(path)["model"]
        except SystemExit as ended:
            refused += f"{path} is no whole checkpoint" in str(ended)
        except RuntimeError as error:  # torch finds some of what zipfile does not
            refused += "PytorchStreamReader" in str(error)
        else:
            harmless += all(torch.equal(found[name], weights[name]) for name in weights)
    assert refused + harmless == 250
    assert refused > 100


@pytest.mark.parametrize(
    ("command", "refused"),
    [
        ("fairseq-generate data --path whole.pt:flipped.pt", "flipped.pt"),
        ("fairseq-generate data --path whole.pt --checkpoint-suffix _x", "whole_x.pt"),
        ("/usr/lib/fairseq_cli/generate.py data --path flipped.pt", "flipped.pt"),
    ],
)
def test_every_file_of_a_path_is_checked(
    command: str, refused: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    """By each of fairseq's programs, also as a module of Python."""
    monkeypatch.chdir(tmp_path)
    torch.save(STATE, "whole.pt")
    content = bytearray(Path("whole.pt").read_bytes())
    content[len(content) // 2] ^= 1
    Path(refused).write_bytes(content)
    monkeypatch.setattr("sys.argv", command.split())
    with pytest.raises(SystemExit, match=f"^{refused} is no whole checkpoint"):
        guards.check_named_checkpoints()
    torch.save(STATE, refused)
    guards.check_named_checkpoints()


@pytest.mark.parametrize(
    "flag", [[], ["--restore-file"], ["--finetune-from-model"], ["--continue-once"]]
)
def test_a_training_does_not_go_on_from_flipped_bits(
    flag: list[str], tiny_work: Path, copy: Path, monkeypatch: Patch
) -> None:
    content = bytearray(copy.read_bytes())
    state = load(copy)["last_optimizer_state"]["state"].values()
    moments = next(each["exp_avg"] for each in state if each["exp_avg"].all())
    content[content.index(moments.numpy().tobytes()[:16]) + 1] ^= 1
    copy.write_bytes(content)
    if flag:
        monkeypatch.chdir(copy.parent)
        copy = copy.rename("other.pt")
        flag = [*flag, copy.name, "--save-dir", "save"]
    assert f"{copy.name} is no whole checkpoint" in refusal(tiny_work, copy, *flag)
    assert copy.read_bytes() == content


def test_parameters_that_are_not_finite_are_refused(tiny_work: Path, copy: Path) -> None:
    state = load(copy)
    name = "decoder.output.weight"
    state["model"][name][3] = torch.nan
    torch.save(state, copy)
    assert f"{name} of the checkpoint is not finite" in refusal(tiny_work, copy)


MIXTURE = "--output-layer mixture --mixture-kernels"
RBF = "--kernel rbf --kernel-gamma"
MOS = "--output-layer mos --mixture-tanh-scale"


@pytest.mark.parametrize(
    ("first", "then", "trained"),
    [
        ("--reallocation paper", "--kernel kerbs_released", "kernel kerbs"),
        (f"{MIXTURE} lin,rbf", f"{MIXTURE} lin,lin", "mixture-kernels lin,rbf"),
        (f"{RBF} 0.5", f"{RBF} 0.25", "kernel-gamma 0.5"),
        (f"{MOS} 4", f"{MOS} 2", "mixture-tanh-scale 4.0"),
        (f"{MOS} 4", "--output-layer mos", "mixture-tanh-scale 4.0"),
    ],
)
def test_scores_of_another_kind_are_refused(
    first: str, then: str, trained: str, tiny_work: Path, tmp_path: Path
) -> None:
    """Kernels, mixtures and their tanh scale, whose parameters have the same names and shapes."""
    fairseq_train(tiny_work / "bin", "--save-dir", tmp_path, *first.split())
    sentence = refusal(tiny_work, tmp_path / "checkpoint_last.pt", *then.split())
    assert f"was trained with --{trained}, " in sentence


@pytest.mark.parametrize(
    ("former", "then", "refused"),
    [
        ("released", "", "was trained with --reallocation released, not paper"),
        ("clusters", "--sense-bias", "was trained with --reallocation clusters, not paper"),
        ("paper", "--reallocation released", "was trained with --reallocation paper, not released"),
        ("none", "", "not paper: give --reallocation none."),
        ("paper", "--reallocation none", ""),
        ("released", "--reallocation paper --reset-optimizer", ""),
    ],
)
def test_a_training_does_not_go_on_under_another_policy(
    former: str, then: str, refused: str, tiny_work: Path, tmp_path: Path
) -> None:
    """But for no moves at all, and for a training that starts anew from its parameters."""
    save = ("--save-dir", tmp_path)
    fairseq_train(tiny_work / "bin", *save, "--reallocation", former)
    checkpoint = tmp_path / "checkpoint_last.pt"
    if refused:
        assert refused in refusal(tiny_work, checkpoint, *then.split())
    else:
        resume(tiny_work, checkpoint, *then.split())


def test_a_value_where_the_training_had_the_default_is_refused(
    tiny_work: Path, tmp_path: Path
) -> None:
    fairseq_train(tiny_work / "bin", "--save-dir", tmp_path, "--output-layer", "mos")
    sentence = refusal(tiny_work, tmp_path / "checkpoint_last.pt", *MOS.split(), 4)
    assert "was trained without --mixture-tanh-scale: leave it out" in sentence


def test_a_start_without_the_optimizer_is_said(tiny_work: Path, copy: Path, caplog: Log) -> None:
    resume(tiny_work, copy, "--reset-optimizer")
    assert "no state of the optimizer" not in caplog.text
    resume(tiny_work, copy, "--max-update", 5, "--no-save-optimizer-state")
    resume(tiny_work, copy, "--max-update", 3)
    assert f"{copy} has no state of the optimizer (--no-save-optimizer-state)" in caplog.text
    assert "the number of updates (5)" in caplog.text
    assert load(copy)["optimizer_history"][-1]["num_updates"] == 3


def test_a_finished_training_makes_no_update(tiny_work: Path, copy: Path, caplog: Log) -> None:
    with pytest.raises(SystemExit) as ended, caplog.at_level("INFO"):
        resume(tiny_work, copy, "--max-update", 2)
    assert ended.value.code == 0
    assert "nothing to do: 2 updates are done and --max-update is 2" in caplog.text
    resume(tiny_work, copy, "--max-update", 2, "--checkpoint-suffix", "_b")  # another training
    assert load(copy.with_name("checkpoint_last_b.pt"))["optimizer_history"][-1]["num_updates"] == 2
    assert copy.read_bytes() == (tiny_work / "model.pt").read_bytes()


@pytest.mark.parametrize("flag", ["--reset-optimizer", "--finetune-from-model"])
def test_updates_that_do_not_count_are_made_again(flag: str, tiny_work: Path, copy: Path) -> None:
    values = []
    if flag == "--finetune-from-model":
        copy.unlink()
        values = [tiny_work / "model.pt"]
    resume(tiny_work, copy, "--max-update", 2, flag, *values)
    made = load(copy)
    assert made["optimizer_history"][-1]["num_updates"] == 2
    assert made["model"].keys() == load(tiny_work / "model.pt")["model"].keys()
    assert float(made["last_optimizer_state"]["state"][0]["step"]) == 2


@pytest.mark.slow
def test_one_training_has_the_folder_until_it_is_killed(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "save"
    log = tmp_path / "second.log"
    last = folder / "checkpoint_last.pt"
    flags = ["--save-interval-updates", "1", "--keep-interval-updates", "1", "--disable-validation"]
    unsaved = ["--no-save", "--max-update", "1", "--restore-file", "none"]
    first = run(data, folder, "lstm_kerbs", *flags, "--max-update", "1000000")["arguments"]
    silent: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    command = [PROGRAMS / "fairseq-train", *first]
    holder = subprocess.Popen(command, env=os.environ | ENVIRONMENT, **silent)
    try:
        end = time.monotonic() + HANGS
        while not last.exists():
            assert holder.poll() is None
            assert time.monotonic() < end
            time.sleep(0.05)
        second = run(data, folder, "lstm_kerbs", *flags, log=str(log))
        assert trainings([second, run(data, folder, "lstm_kerbs", *flags, *unsaved)]) == [1, 0]
        assert holder.poll() is None
    finally:
        holder.kill()
        holder.wait()
    said = log.read_text().splitlines()[-1]
    assert said.startswith(f"fairseq_kerbs: error: --save-dir {folder} is in use by another")
    check_whole(last)
    flags += ["--max-update", str(load(last)["optimizer_history"][-1]["num_updates"] + 1)]
    assert trainings([run(data, folder, "lstm_kerbs", *flags)]) == [0]


def test_the_encoder_of_an_unedited_fairseq_has_no_copies() -> None:
    class Unedited(TransformerEncoderLayerBase):
        """With what the released layer has besides, and how it loads."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            self.load_to_BT = False
            for name in ("in_proj_weight", "fc1_bias"):
                setattr(self, name, nn.Parameter(torch.zeros(3)))

        def _load_from_state_dict(self, *_: Any) -> None:
            self.load_to_BT = True

    with mock.patch("fairseq.modules.transformer_layer.TransformerEncoderLayerBase", Unedited):
        model = make_model("transformer", seed=1)
    expected = make_model("transformer", seed=1)
    assert any(isinstance(module, Unedited) for module in model.modules())
    assert model.state_dict().keys() == expected.state_dict().keys()
    model.load_state_dict(expected.state_dict())
    assert not any(getattr(module, "load_to_BT", False) for module in model.modules())


@pytest.mark.parametrize(("layer", "lines"), [("kerbs", 1), ("softmax", 1), ("mos", 0)])
def test_the_log_says_whether_the_likelihood_is_compiled(
    layer: str, lines: int, caplog: Log
) -> None:
    """Nothing of a mixture is compiled, whatever its size."""
    caplog.set_level("INFO")
    model = make_model("transformer", output_layer=layer)
    guards.expect_updates(model, 10**7)
    guards.expect_updates(nn.Linear(1, 1), 0)  # of unknown length again
    assert caplog.text.count("the likelihood is ") == lines


def test_a_training_says_how_long_it_is(
    tiny_work: Path, tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(compilation, "_updates", None)
    fairseq_train(tiny_work / "bin", "--save-dir", tmp_path, "--max-update", 2)
    assert compilation._updates == 2


def test_a_training_of_unknown_length_compiles_many_senses(monkeypatch: Patch) -> None:
    monkeypatch.delenv(compilation.SWITCH, raising=False)
    monkeypatch.setattr(compilation, "_updates", 7)
    guards.expect_updates(nn.Linear(1, 1), 0)
    assert compilation._updates is None
    assert compilation.worthwhile(5000, 5000)
