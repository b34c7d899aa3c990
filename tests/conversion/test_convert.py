"""fairseq-kerbs convert: the same predictions, decoding, training on, and what is refused."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor

from fairseq_kerbs.cli import main
from tests.helpers.softmax_checkpoints import (
    CASES,
    SOURCE_WORDS,
    TINY,
    TRANSLATION,
    WORDS,
    load,
    write_softmax,
)


def batch(model: Any, seed: int = 1) -> tuple[dict[str, Tensor], Tensor]:
    """Input of a model as fairseq collates it, and targets [batch, len]."""
    generator = torch.Generator().manual_seed(seed)
    lengths = (6, 5, 3)
    sizes = (SOURCE_WORDS if hasattr(model, "encoder") else WORDS, WORDS)
    source, target = (torch.full((len(lengths), max(lengths)), 1) for _ in range(2))
    previous = target.clone()
    for row, length in enumerate(lengths):
        words = torch.randint(4, sizes[0], (length,), generator=generator)
        source[row, -length:] = words
        target[row, :length] = torch.randint(4, sizes[1], (length,), generator=generator)
        previous[row, 0], previous[row, 1:length] = 2, target[row, : length - 1]
    if not hasattr(model, "encoder"):
        return {"src_tokens": previous, "src_lengths": torch.tensor(lengths)}, target
    inputs = {"src_tokens": source, "src_lengths": torch.tensor(lengths)}
    return inputs | {"prev_output_tokens": previous}, target


def log_probs(model: Any) -> Tensor:
    """Log-probabilities by teacher forcing where there is no padding, [positions, V]."""
    inputs, target = batch(model)
    with torch.no_grad():
        scores: Tensor = model.get_normalized_probs(model(**inputs), log_probs=True)
    return scores[target.ne(1)]


def converted(tmp_path: Path, case: str, *flags: str, **stock: Any) -> tuple[Any, Path]:
    """The softmax model of a case, and the file that it was converted to."""
    model = write_softmax(tmp_path / "softmax.pt", CASES[case], **stock)
    out = tmp_path / "kerbs.pt"
    assert main(["convert", str(tmp_path / "softmax.pt"), "-o", str(out), *flags]) == 0
    return model, out


@pytest.mark.parametrize("case", list(CASES))
def test_predictions_and_decoding_are_the_same(case: str, tmp_path: Path) -> None:
    stock, out = converted(tmp_path, case)
    model = load(out)
    layer = model.decoder.output
    assert (layer.vocab_size, layer.total_senses) == (WORDS, WORDS)
    assert layer.theta.eq(0).all()
    torch.testing.assert_close(log_probs(model), log_probs(stock), rtol=1e-5, atol=1e-5)
    if not hasattr(model, "encoder"):
        return
    dictionary, sample = stock.decoder.dictionary, {"net_input": batch(stock)[0]}
    sample["net_input"].pop("prev_output_tokens")
    found = []
    for one in (stock, model):
        generator = SequenceGenerator([one], dictionary, beam_size=3, max_len_b=7)
        found.append([hypothesis for beam in generator.generate([one], sample)
                      for hypothesis in beam])  # fmt: skip
    for mine, theirs in zip(*found, strict=True):
        assert mine["tokens"].tolist() == theirs["tokens"].tolist()
        torch.testing.assert_close(mine["score"], theirs["score"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("case", list(CASES))
def test_training_on_starts_from_the_same_loss(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the flags that the command prints, as --finetune-from-model reads them."""
    stock, out = converted(tmp_path, case)
    printed = capsys.readouterr().out.splitlines()[-1]
    command = shlex.split(printed.partition("--user-dir")[2])[1:]
    assert command[-4:] == ["--max-update", "N", "--save-dir", "SAVE_DIR"]
    assert f"--finetune-from-model {out} " in printed
    assert "--lr 0.002 " in printed
    model = load(out, shlex.join(command[:-4]))
    inputs, target = batch(model)
    layer = model.decoder.output
    loss = layer.nll(model(**inputs)[0], target, ignore_index=1)
    expected = -log_probs(stock).gather(1, target[target.ne(1)].unsqueeze(1)).sum()
    torch.testing.assert_close(loss.detach(), expected, rtol=1e-5, atol=1e-4)
    loss.backward()
    assert [key for key, value in model.named_parameters() if value.grad is None] == []


# ------------------------------------------------------------------- what is refused


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main([str(argument) for argument in arguments]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    return lines[0]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (f"{CASES['transformer']} --adaptive-softmax-cutoff 10,20", "--adaptive-softmax-cutoff"),
        (f"{CASES['lstm']} --criterion adaptive_loss --adaptive-softmax-cutoff 10,20",
         "--adaptive-softmax-cutoff"),
        (f"{CASES['transformer_lm']} --adaptive-input --adaptive-input-cutoff 10,20",
         "--adaptive-input,"),
        (f"{CASES['gru_kerbs']} --output-layer kerbs", "is a KerBS model already"),
        (f"{CASES['gru_kerbs']} --output-layer mos", "--output-layer mos"),
        (f"{TRANSLATION} --arch transformer_align {TINY}", "architecture 'transformer_align'"),
    ],
)  # fmt: skip
def test_models_that_cannot_be_converted(
    flags: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_softmax(tmp_path / "m.pt", flags)
    capsys.readouterr()
    assert says in refusal(capsys, "convert", tmp_path / "m.pt", "-o", tmp_path / "out.pt")
    assert not (tmp_path / "out.pt").exists()


def test_outputs_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.pt"
    write_softmax(path, CASES["lstm"])
    before = path.read_bytes()
    capsys.readouterr()
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
