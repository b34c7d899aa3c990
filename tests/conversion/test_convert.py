"""fairseq-kerbs convert: same predictions, training on, refusals; with data and real trainings."""

import functools
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor

from fairseq_kerbs.checkpoints import read_checkpoint
from tests.helpers import softmax_checkpoints as softmax
from tests.helpers.cli import Capsys, kerbs
from tests.helpers.commands import run
from tests.helpers.fairseq_fixtures import make_batch, teacher_forced
from tests.helpers.softmax_checkpoints import CASES
from tests.helpers.tiny_checkpoint import binarized_corpus, fairseq_train

Train = Callable[[str], Path]
LSTM = " ".join(f"--{part}-embed-dim 16" for part in ("encoder", "decoder", "decoder-out"))
MODELS = {"transformer_tiny": softmax.TIED, "lstm": f"{LSTM} --encoder-bidirectional"}
PLAIN = ["--criterion", "cross_entropy", "--dropout", "0", "--lr", "0.01"]
SIZES = {"train": 300, "valid": 20, "test": 6}
OWNERS, ROWS = "decoder.output.inventory.word_of_sense", "decoder.output.weight"
TRAINED = ["--max-update", 150, "--max-epoch", 150, "--max-tokens", 1000, "--lr", 0.004]


def batch(model: Any) -> dict[str, Any]:
    made = make_batch((6, 5, 3), words=softmax.WORDS)
    if not hasattr(model, "encoder"):
        made["net_input"] = {"src_tokens": made["net_input"]["prev_output_tokens"]}
    return made


@torch.no_grad()
def log_probs(model: Any) -> Tensor:
    """Log-probabilities by teacher forcing where there is no padding, [positions, V]."""
    return teacher_forced(model, batch(model))[batch(model)["target"].ne(1)]


def translations(model: Any, dictionary: Any) -> list[dict[str, Any]]:
    generator = SequenceGenerator([model], dictionary, beam_size=3, max_len_b=7)
    return [hypothesis for beam in generator.generate([model], batch(model)) for hypothesis in beam]


@pytest.mark.parametrize("case", list(CASES))
def test_predictions_and_losses_are_the_same(case: str, tmp_path: Path, capsys: Capsys) -> None:
    """Of training on by the flags that the command prints, as --finetune-from-model reads them."""
    stock, out = softmax.write_softmax(tmp_path / "softmax.pt", CASES[case]), tmp_path / "kerbs.pt"
    printed = kerbs(capsys, "convert", tmp_path / "softmax.pt", "-o", out).splitlines()[-1]
    model = softmax.load(out)
    layer = model.decoder.output
    assert (layer.vocab_size, layer.total_senses) == (softmax.WORDS, softmax.WORDS)
    assert layer.theta.eq(0).all()
    torch.testing.assert_close(log_probs(model), log_probs(stock), rtol=1e-5, atol=1e-5)
    if hasattr(model, "encoder"):
        found = (translations(one, stock.decoder.dictionary) for one in (model, stock))
        for mine, theirs in zip(*found, strict=True):
            assert mine["tokens"].tolist() == theirs["tokens"].tolist()
            torch.testing.assert_close(mine["score"], theirs["score"], rtol=1e-4, atol=1e-5)
    command = shlex.split(printed.partition("--user-dir")[2])[1:]
    assert command[-4:] == ["--max-update", "N", "--save-dir", "SAVE_DIR"]
    assert f"--finetune-from-model {out} " in printed
    assert "--lr 0.002 " in printed
    for flag in ("--optimizer adafactor", "--weight-decay 0.1"):
        assert (flag in CASES[case]) == (flag in printed)
    model = softmax.load(out, shlex.join(command[:-4]))
    inputs, target = batch(model)["net_input"], batch(model)["target"]
    loss = model.decoder.output.nll(model(**inputs)[0], target, ignore_index=1)
    expected = -log_probs(stock).gather(1, target[target.ne(1)].unsqueeze(1)).sum()
    torch.testing.assert_close(loss.detach(), expected, rtol=1e-5, atol=1e-4)
    loss.backward()
    assert [key for key, value in model.named_parameters() if value.grad is None] == []


def refusal(capsys: Capsys, *command: object) -> str:
    (line,) = kerbs(capsys, *command, status=2).splitlines()
    return line


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (f"{CASES['transformer']} --adaptive-softmax-cutoff 10,20", "--adaptive-softmax-cutoff"),
        (
            f"{CASES['transformer_lm']} --adaptive-input --adaptive-input-cutoff 10,20",
            "--adaptive-input,",
        ),
        (f"{CASES['gru_kerbs']} --output-layer mos", "--output-layer mos"),
    ],
)
def test_models_that_are_refused(flags: str, says: str, tmp_path: Path, capsys: Capsys) -> None:
    softmax.write_softmax(tmp_path / "m.pt", flags)
    assert says in refusal(capsys, "convert", tmp_path / "m.pt", "-o", tmp_path / "out.pt")
    assert not (tmp_path / "out.pt").exists()


def test_outputs_that_cannot_be_written(tmp_path: Path, capsys: Capsys) -> None:
    softmax.write_softmax(path := tmp_path / "m.pt", CASES["lstm"])
    (tmp_path / "dict.en.txt").write_text("one 1\n")
    before = path.read_bytes()
    for says, *flags in (
        ("is the checkpoint itself", path),
        ("Is a directory", tmp_path),
        ("m.pt cannot be used", path / "x"),
        ("give --data", tmp_path, "--total-senses", 2),
        ("does not fit --data", tmp_path / "k.pt", "--data", tmp_path),
    ):
        assert says in refusal(capsys, "convert", path, "-o", *flags)
    assert path.read_bytes() == before
    assert {one.name for one in tmp_path.iterdir()} == {"m.pt", "dict.en.txt"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return binarized_corpus(tmp_path_factory.mktemp("clusters"), SIZES)


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Train:
    @functools.cache
    def train(arch: str) -> Path:
        folder = tmp_path_factory.mktemp("trained")
        flags = ("--arch", arch, *MODELS[arch].split(), *PLAIN, *TRAINED)
        fairseq_train(data, "--save-dir", folder, *flags)
        return folder / "checkpoint_last.pt"

    return train


def convert(checkpoint: Path, out: Path, data: Path, *flags: object) -> list[object]:
    return ["convert", checkpoint, "-o", out, "--data", data, *flags]


@pytest.mark.parametrize("arch", MODELS)
def test_a_trained_model_gets_senses_at_an_unchanged_loss(
    arch: str, trained: Train, data: Path, tmp_path: Path, capsys: Capsys
) -> None:
    out = tmp_path / "k" / "checkpoint_last.pt"
    printed = kerbs(capsys, *convert(trained(arch), out, data, "--total-senses", 1.6))
    losses = re.search(r"loss of split valid: (\S+) bits a token before, (\S+) after", printed)
    assert losses is not None, printed
    before, after = map(float, losses.groups())
    assert after == pytest.approx(before, abs=0.06)  # of a corpus this small
    last = read_checkpoint(out)
    owners = last["model"][OWNERS]
    words = int(owners.max()) + 1
    assert words < len(owners) <= round(1.6 * words)
    assert (owners.bincount()[:4] == 1).all()
    assert last["cfg"]["model"].reallocation == "none"
    command = re.search(r"train on with: fairseq-train DATA (.*) --max-update N", printed)
    assert command is not None
    given = [part for part in command[1].split() if not part.endswith(("-dir", "fairseq_kerbs"))]
    flags = ["--total-senses", len(owners) / words, "--sense-bias", "--reallocation", "none"]
    assert {*map(str, flags)} <= {*given}
    fairseq_train(
        data,
        *given,
        "--save-dir",
        tmp_path / "on",
        *PLAIN[2:],
        "--max-update",
        3,
        "--max-epoch",
        200,
        "--max-tokens",
        1000,
    )
    after_training = read_checkpoint(tmp_path / "on" / "checkpoint_last.pt")
    assert after_training["optimizer_history"][-1]["num_updates"] == 3
    assert torch.equal(after_training["model"][OWNERS], owners)


def test_gap_and_contexts(trained: Train, data: Path, tmp_path: Path, capsys: Capsys) -> None:
    rows: list[Tensor] = []
    for flags in ([], ["--gap", 4], ["--contexts", 50], ["--split", "train"]):
        out = tmp_path / f"{len(rows)}.pt"
        kerbs(capsys, *convert(trained("lstm"), out, data, *flags))
        rows.append(read_checkpoint(out)["model"][ROWS])
    assert [torch.equal(rows[0], other) for other in rows[1:]] == [False, False, True]


def test_our_biased_softmax_gets_senses(data: Path, tmp_path: Path, capsys: Capsys) -> None:
    """Its context vectors end with a 1, which is no part of the clusters."""
    flags = ["--output-layer", "softmax", "--sense-bias", "--hidden-size", 16, "--embed-dim", 16]
    flags += ["--reallocation-at", 0.2, 0.9, *TRAINED, "--max-update", 25]
    fairseq_train(data, "--save-dir", tmp_path / "save", *flags)
    out = tmp_path / "k.pt"
    printed = kerbs(capsys, *convert(tmp_path / "save" / "checkpoint_last.pt", out, data))
    assert "--reallocation none" in printed
    rows = read_checkpoint(out)["model"][ROWS]
    assert rows.shape[1] == 17
    assert len(rows) > int(read_checkpoint(out)["model"][OWNERS].max()) + 1


RECIPE = """
senses: {at: 0.4, total: 1.5, train: {lr: 0.002}}  # at update 10 of 25
train: {arch: lstm_kerbs, hidden-size: 16, embed-dim: 16, criterion: kerbs_cross_entropy,
        optimizer: adam, lr: 0.01, max-tokens: 1000, max-update: 25, cpu: true, num-workers: 0,
        total-senses: null}
"""


@pytest.mark.slow
def test_one_command_trains_softmax_and_senses(data: Path, tmp_path: Path, capsys: Capsys) -> None:
    recipe, save = tmp_path / "recipe.yaml", tmp_path / "save"
    recipe.write_text(RECIPE)
    command = ["train", recipe, data, save]
    train = functools.partial(run, "fairseq-kerbs", *command)
    assert "loss of split valid" in train()
    first, last = (read_checkpoint(save / name / "checkpoint_last.pt") for name in ("softmax", ""))
    history = last["optimizer_history"][-1]
    assert [state["optimizer_history"][-1]["num_updates"] for state in (first, last)] == [10, 15]
    assert [state["cfg"]["optimization"]["lr"] for state in (first, last)] == [[0.01], [0.002]]
    assert len(last["model"][OWNERS]) > len(first["model"][ROWS])
    # once more: what is done stays
    assert "loss of split" not in train()
    assert read_checkpoint(save / "checkpoint_last.pt")["optimizer_history"][-1] == history
    # ended before the placement: only the softmax stays as it is
    for path in (placed := save / "softmax" / "senses_1.5_4.pt", *save.glob("checkpoint*")):
        path.unlink()
    assert "loss of split valid" in train()
    resumed = read_checkpoint(save / "checkpoint_last.pt")["model"]
    assert all(torch.equal(value, resumed[name]) for name, value in last["model"].items())
    assert "senses_1.5_4.pt, with another" in kerbs(capsys, *command, "--max-senses", 3, status=2)
    for most, at in ((50, 20), (20, 8)):
        refused = kerbs(capsys, *command, "--max-update", most, status=2)
        assert f"has 10 updates, but senses are to be placed after {at}" in refused
        placed.unlink(missing_ok=True)
    assert not placed.exists()
