"""fairseq-kerbs convert: the same predictions, decoding, training on, and what is refused; and with
data and real trainings of fairseq's own models."""

from __future__ import annotations

import functools
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.data import indexed_dataset
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor

from fairseq_kerbs.checkpoints import read_checkpoint
from fairseq_kerbs.cli import main
from tests.helpers import softmax_checkpoints as softmax
from tests.helpers.cli import Capsys, kerbs
from tests.helpers.fairseq_fixtures import make_batch
from tests.helpers.softmax_checkpoints import CASES
from tests.helpers.tiny_checkpoint import binarized_corpus, fairseq_train

MODELS = {
    "transformer_tiny": ["--share-decoder-input-output-embed"],
    "lstm": [
        *("--encoder-embed-dim", "16", "--decoder-embed-dim", "16"),
        *("--decoder-out-embed-dim", "16", "--encoder-bidirectional"),
    ],
}
PLAIN = ["--criterion", "cross_entropy", "--dropout", "0", "--lr", "0.01"]
SIZES = {"train": 300, "valid": 20, "test": 6}
OWNERS = "decoder.output.inventory.word_of_sense"
ROWS = "decoder.output.weight"
TRAINED = ["--max-update", 150, "--max-epoch", 150, "--max-tokens", 1000, "--lr", 0.004]


def batch(model: Any) -> tuple[dict[str, Tensor], Tensor]:
    """Input of a model as fairseq collates it, and targets [batch, len]."""
    made = make_batch((6, 5, 3), words=softmax.WORDS)
    inputs, target = made["net_input"], made["target"]
    if not hasattr(model, "encoder"):
        lengths = target.ne(1).sum(1)
        inputs = {"src_tokens": inputs["prev_output_tokens"], "src_lengths": lengths}
    return inputs, target


def log_probs(model: Any) -> Tensor:
    """Log-probabilities by teacher forcing where there is no padding, [positions, V]."""
    inputs, target = batch(model)
    with torch.no_grad():
        scores: Tensor = model.get_normalized_probs(model(**inputs), log_probs=True)
    return scores[target.ne(1)]


def translations(model: Any, dictionary: Any) -> list[dict[str, Any]]:
    """Hypotheses of all beams."""
    inputs, _ = batch(model)
    inputs.pop("prev_output_tokens")
    generator = SequenceGenerator([model], dictionary, beam_size=3, max_len_b=7)
    beams = generator.generate([model], {"net_input": inputs})
    return [hypothesis for beam in beams for hypothesis in beam]


@pytest.mark.parametrize("case", list(CASES))
def test_predictions_decoding_and_the_loss_of_training_on_are_the_same(
    case: str, tmp_path: Path, capsys: Capsys
) -> None:
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
    model = softmax.load(out, shlex.join(command[:-4]))
    inputs, target = batch(model)
    loss = model.decoder.output.nll(model(**inputs)[0], target, ignore_index=1)
    expected = -log_probs(stock).gather(1, target[target.ne(1)].unsqueeze(1)).sum()
    torch.testing.assert_close(loss.detach(), expected, rtol=1e-5, atol=1e-4)
    loss.backward()
    assert [key for key, value in model.named_parameters() if value.grad is None] == []


# ------------------------------------------------------------------- what is refused


def refusal(capsys: Capsys, *command: object) -> str:
    (line,) = kerbs(capsys, *command, status=2).splitlines()
    return line


@pytest.mark.parametrize(("flags", "says"), [
    (f"{CASES['transformer']} --adaptive-softmax-cutoff 10,20", "--adaptive-softmax-cutoff"),
    (f"{CASES['transformer_lm']} --adaptive-input --adaptive-input-cutoff 10,20",
     "--adaptive-input,"),
    (f"{CASES['gru_kerbs']} --output-layer mos", "--output-layer mos"),
    (f"{softmax.TRANSLATION} --arch transformer_align {softmax.TINY}",
     "architecture 'transformer_align'"),
])  # fmt: skip
def test_models_that_cannot_be_converted(
    flags: str, says: str, tmp_path: Path, capsys: Capsys
) -> None:
    softmax.write_softmax(tmp_path / "m.pt", flags)
    assert says in refusal(capsys, "convert", tmp_path / "m.pt", "-o", tmp_path / "out.pt")
    assert not (tmp_path / "out.pt").exists()


def test_outputs_that_cannot_be_written(tmp_path: Path, capsys: Capsys) -> None:
    path = tmp_path / "m.pt"
    softmax.write_softmax(path, CASES["lstm"])
    before = path.read_bytes()
    assert "is the checkpoint itself" in refusal(capsys, "convert", path, "-o", path)
    assert "Is a directory" in refusal(capsys, "convert", path, "-o", tmp_path)
    assert "give --data" in refusal(capsys, "convert", path, "-o", tmp_path, "--total-senses", 2)
    assert "cannot be written" in refusal(capsys, "convert", path, "-o", path / "x")
    (tmp_path / "dict.en.txt").write_text("one 1\n")
    others = ("-o", tmp_path / "k.pt", "--data", tmp_path)
    assert "does not fit --data" in refusal(capsys, "convert", path, *others)
    (tmp_path / "dict.en.txt").unlink()
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["m.pt"]


# ------------------------------------------------------------------- with data


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The synthetic corpus, binarized, with a split of blank lines and one without lines."""
    data = binarized_corpus(tmp_path_factory.mktemp("clusters"), SIZES)
    for split, language in product(("blank", "empty"), ("de", "en")):
        prefix = str(data / f"{split}.de-en.{language}")
        builder = indexed_dataset.make_builder(f"{prefix}.bin", "mmap", vocab_size=99)
        for _ in range(3 if split == "blank" else 0):
            builder.add_item(torch.tensor([2]))  # the end of a sentence
        builder.finalize(f"{prefix}.idx")
    return data


@pytest.fixture(scope="module")
def trained(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Trains a model of fairseq's own, once."""

    @functools.cache
    def train(arch: str) -> Path:
        folder = tmp_path_factory.mktemp("trained")
        fairseq_train(data, "--save-dir", folder, "--arch", arch, *MODELS[arch], *PLAIN, *TRAINED)
        return folder / "checkpoint_last.pt"

    return train


def convert(checkpoint: Path, out: Path, data: Path, *flags: object) -> list[str]:
    """The command that gives senses on clusters."""
    command = ["convert", checkpoint, "-o", out, "--data", data]
    return [str(part) for part in (*command, *flags)]


@pytest.mark.parametrize("arch", MODELS)
def test_a_trained_model_gets_senses_at_an_unchanged_loss(
    arch: str, trained: Callable[[str], Path], data: Path, tmp_path: Path, capsys: Capsys
) -> None:
    out = tmp_path / "k" / "checkpoint_last.pt"
    printed = kerbs(capsys, *convert(trained(arch), out, data, "--total-senses", 1.6))
    found = re.search(r"loss of split valid: (\S+) bits a token before, (\S+) after", printed)
    assert found is not None, printed
    before, after = map(float, found.groups())
    assert after == pytest.approx(before, abs=0.06)  # of a corpus this small
    last = read_checkpoint(out)
    owners = last["model"][OWNERS]
    words = int(owners.max()) + 1
    assert words < len(owners) <= round(1.6 * words)
    assert (owners.bincount()[:4] == 1).all()
    assert last["cfg"]["model"].reallocation == "none"

    flags = ["--total-senses", len(owners) / words, "--sense-bias", "--reallocation", "none"]
    command = re.search(r"train on with: fairseq-train DATA (.*) --max-update N", printed)
    assert command is not None
    given = [part for part in command[1].split() if "user-dir" not in part]
    given = [part for part in given if not part.endswith("fairseq_kerbs")]
    assert all(str(flag) in given for flag in flags)
    fairseq_train(data, *given, "--save-dir", tmp_path / "on", *PLAIN[2:], "--max-update", 3,
                  "--max-epoch", 200, "--max-tokens", 1000)  # fmt: skip
    after_training = read_checkpoint(tmp_path / "on" / "checkpoint_last.pt")
    assert after_training["optimizer_history"][-1]["num_updates"] == 3
    assert torch.equal(after_training["model"][OWNERS], owners)


def test_gap_and_contexts_are_heeded(
    trained: Callable[[str], Path], data: Path, tmp_path: Path
) -> None:
    rows = []
    for flags in ([], ["--gap", 4], ["--contexts", 50], ["--split", "train"]):
        out = tmp_path / "k.pt"
        assert main(convert(trained("lstm"), out, data, *flags)) == 0
        rows.append(read_checkpoint(out)["model"][ROWS])
        out.unlink()
    assert torch.equal(rows[0], rows[3])
    for other in rows[1:3]:
        assert rows[0].shape != other.shape or not torch.equal(rows[0], other)


@pytest.mark.parametrize(("flags", "says"), [
    (["--split", "nothing"], "error: --split: Dataset not found"),
    (["--valid-split", "nothing"], "error: --valid-split: Dataset not found"),
    (["--split", "blank"], "--split blank: it has no words"),
    (["--split", "empty"], "--split empty: it has no words"),
    (["--split", "test"], "--split test: no word occurs 40 times"),
    (["--memory", "1e-9"], "--memory 1e-09: 1e-09 GB are not enough"),
    (["--gap", 0], "--gap: must be"),
    (["--total-senses", 9], "--total-senses is 9.0, more than --max-senses"),
])  # fmt: skip
def test_wrong_flags_are_one_sentence_and_nothing_is_written(
    flags: list[object], says: str, trained: Callable[[str], Path], data: Path, tmp_path: Path,
    capsys: Capsys,
) -> None:  # fmt: skip
    try:
        status: object = main(convert(trained("lstm"), tmp_path / "k.pt", data, *flags))
    except SystemExit as ending:  # of argparse
        status = ending.code
    assert status == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert says in error
    assert not list(tmp_path.iterdir())


def test_a_softmax_of_ours_with_biases_gets_senses(
    data: Path, tmp_path: Path, capsys: Capsys
) -> None:
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


# --------------------------------------------------------------------- senses within one training


RECIPE = """
senses: {at: 0.4, total: 1.5, train: {lr: 0.002}}  # at update 10 of 25
train: {arch: lstm_kerbs, hidden-size: 16, embed-dim: 16, criterion: kerbs_cross_entropy,
        optimizer: adam, lr: 0.01, max-tokens: 1000, max-update: 25, cpu: true, num-workers: 0}
"""


def test_one_command_trains_a_softmax_and_goes_on_with_senses(
    data: Path, tmp_path: Path, capsys: Capsys
) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    command = [sys.executable, "-m", "fairseq_kerbs.cli", "train", str(tmp_path / "recipe.yaml")]
    command += [str(data), str(save := tmp_path / "save")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "loss of split valid" in done.stdout
    first, last = (read_checkpoint(save / name / "checkpoint_last.pt") for name in ("softmax", ""))
    history = last["optimizer_history"][-1]
    updates = [state["optimizer_history"][-1]["num_updates"] for state in (first, last)]
    assert updates == [10, 15]
    assert [state["cfg"]["optimization"]["lr"] for state in (first, last)] == [[0.01], [0.002]]
    assert len(last["model"][OWNERS]) > len(first["model"][ROWS])
    # once more: what is done stays
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 0
    assert "loss of split" not in again.stdout
    assert read_checkpoint(save / "checkpoint_last.pt")["optimizer_history"][-1] == history
    # ended before the placement: only the softmax stays as it is
    for path in (save / "softmax" / "senses.pt", *save.glob("checkpoint*")):
        path.unlink()
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "loss of split valid" in again.stdout
    resumed = read_checkpoint(save / "checkpoint_last.pt")["model"]
    assert all(torch.equal(value, resumed[name]) for name, value in last["model"].items())
    refused = kerbs(capsys, *command[3:], "--max-update", 50, status=2)
    assert "has 10 updates, but senses are to be placed after 20" in refused


CLASH = "--max-epoch, --patience, --reset-optimizer, --restore-file, --total-senses does not go"


@pytest.mark.parametrize(("section", "extra", "says"), [
    ("{at: 2, total: 3}", "", "at must be between 0 and 1"),
    ("{at: half, total: 3}", "", "senses must have two numbers"),
    ("0.2", "", "senses must have two numbers"),
    ("{at: 0.2, total: 3, train: {--lr: 1}}", "", "write the flag without leading dashes"),
    ("{at: 0.2, total: 3}", "--total-senses 2 --restore-file x --max-epoch 3 --patience 3 "
     "--reset-optimizer", CLASH),
    ("{at: 0.2, total: 3}", "--max-update x", "needs --max-update"),
    ("{at: 0.2, total: 3}", "--max-update=0", "needs --max-update"),
    ("{at: 0.2, total: 5}", "", "total is 5.0, more than --max-senses 4"),
    ("{at: 0.2, total: 3}", "--max-senses 2", "more than --max-senses 2"),
    ("{at: 0.2, total: 3}", "--lr-scheduler cosine", "take polynomial_decay"),
])  # fmt: skip
def test_wrong_recipes_are_one_sentence(
    section: str, extra: str, says: str, data: Path, tmp_path: Path, capsys: Capsys
) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(f"senses: {section}\ntrain: {{max-update: 25}}\n")
    assert says in kerbs(capsys, "train", path, data, tmp_path / "save", *extra.split(), status=2)
    assert not (tmp_path / "save").exists()
