"""fairseq-kerbs convert: the same predictions, decoding, training on, and what is refused."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor

from fairseq_kerbs.analysis.report import nearest_senses
from fairseq_kerbs.checkpoints import read_checkpoint
from fairseq_kerbs.cli import main
from fairseq_kerbs.configurations import flag_arguments, load_experiment
from fairseq_kerbs.conversion.sense_init import SPARE_SHARE, plan_senses
from fairseq_kerbs.reallocation import ReallocationSettings, propose_moves
from fairseq_kerbs.senses import SenseInventory
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
    stock, out = converted(tmp_path, case, "--total-senses", "2.3")
    model = load(out)
    layer = model.decoder.output
    assert (layer.vocab_size, layer.total_senses) == (WORDS, round(2.3 * WORDS))
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
    config = tmp_path / "flags.yaml"
    stock, out = converted(tmp_path, case, "--config", str(config))
    printed = capsys.readouterr().out.splitlines()[-1]
    command = shlex.split(printed.partition("--user-dir")[2])[1:]
    assert command[-4:] == ["--max-update", "N", "--save-dir", "SAVE_DIR"]
    experiment = load_experiment(config)
    assert experiment.train["finetune-from-model"] == str(out)
    assert experiment.train["lr"] == "0.002"
    assert flag_arguments(experiment.train) == command[:-4]
    model = load(out, shlex.join(command[:-4]))
    inputs, target = batch(model)
    layer = model.decoder.output
    loss = layer.nll(model(**inputs)[0], target, ignore_index=1)
    expected = -log_probs(stock).gather(1, target[target.ne(1)].unsqueeze(1)).sum()
    torch.testing.assert_close(loss.detach(), expected, rtol=1e-5, atol=1e-4)
    loss.backward()
    assert [key for key, value in model.named_parameters() if value.grad is None] == []


def test_a_dictionary_alone_gives_the_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "words.txt"
    path.write_text("".join(f"w{n} {n + 1}\n" for n in range(WORDS - 4)))
    _, out = converted(tmp_path, "lstm", "--dict", str(path), "--total-senses", "1.2")
    assert f"least frequent words by the counts of {path}" in capsys.readouterr().out
    senses = load(out).decoder.output.inventory.senses_per_word()
    assert senses[4] > 1
    assert senses[-1] == 1


def test_copies_have_the_same_neighbours_whatever_their_share(tmp_path: Path) -> None:
    """Biases of −14 would otherwise make all spare senses neighbours of each other."""
    _, out = converted(tmp_path, "lstm", "--total-senses", "2")
    layer = load(out).decoder.output
    word = int(layer.inventory.senses_per_word().argmax())
    own = layer.table.senses[word][layer.table.mask[word]].tolist()
    found = [dict(near) for near in nearest_senses(layer, own, layer.total_senses - 1)]
    assert len(own) == 2
    others = set(range(layer.total_senses)) - set(own)
    for sense in others:
        assert found[0][sense] == pytest.approx(found[1][sense], abs=1e-4)
    carrying = [sense for sense in others if layer.weight[sense, -1] > -10]
    assert len(carrying) == WORDS - 1
    spare = others - set(carrying)
    assert max(found[0][sense] for sense in carrying) > max(found[0][sense] for sense in spare)


# ------------------------------------------------------------------- which senses


def counted(words: int = 12) -> Tensor:
    return torch.tensor([1, 1, 1, 1, 3, 40, 0, 7, 40, 2, 9, 1])[:words]


def test_spare_senses_sit_beside_the_least_frequent_words() -> None:
    plan = plan_senses(12, 17, counted())
    assert plan.words == [6, 11, 9, 4, 7]
    assert plan.word_of_sense.tolist() == [*range(12), *plan.words]
    assert plan_senses(12, 17).words == [11, 10, 9, 8, 7]
    assert plan_senses(12, 32).word_of_sense.bincount().tolist() == [2] * 4 + [3] * 8
    assert plan.share[12:].tolist() == pytest.approx([1 - SPARE_SHARE] * 5, abs=1e-12)
    assert plan.usage[plan.words].eq(0).all()
    assert plan.usage[12:].gt(0).all()
    assert float(plan.usage.sum()) == pytest.approx(1.0)
    sums = torch.zeros(12).double().index_add(0, plan.word_of_sense, plan.share)
    torch.testing.assert_close(sums, torch.ones(12).double())


@pytest.mark.parametrize(
    ("policy", "extra"),
    [("paper", 5), ("paper", 20), ("released", 5), ("released", 20)],
)
@pytest.mark.parametrize("known", [True, False])
def test_reallocation_takes_spare_senses_first(policy: str, extra: int, known: bool) -> None:
    """Also from words that did not occur; the others are never touched while there are spares."""
    plan = plan_senses(12, 12 + extra, counted() if known else None)
    inventory = SenseInventory(12, 12 + extra, 4)
    state = inventory.state_dict() | {"word_of_sense": plan.word_of_sense, "usage": plan.usage}
    inventory.load_state_dict(state)
    seen, needy = torch.tensor([4, 5, 7, 8, 10]), torch.tensor([5, 8])
    carrying = torch.tensor([int((plan.word_of_sense == word).nonzero()[-1]) for word in seen])
    inventory.log_prob[needy] = -1e4
    inventory.interval_count[seen], inventory.interval_prob[seen] = 100.0, 90.0
    inventory.interval_usage[carrying] = 100.0
    moves = propose_moves(inventory, policy, ReallocationSettings(max_moves=1.0))
    assert len(moves) > 0
    assert plan.share[moves.senses].eq(SPARE_SHARE).all()


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


def test_settings_of_another_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.pt"
    write_softmax(path, CASES["transformer"])
    state = read_checkpoint(path)
    state["cfg"]["model"].decoder_layers = 3
    torch.save(state, path)
    capsys.readouterr()
    found = refusal(capsys, "convert", path, "-o", tmp_path / "out.pt")
    assert "has not the parameters of its settings" in found


def test_outputs_that_cannot_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m.pt"
    write_softmax(path, CASES["lstm"])
    before = path.read_bytes()
    capsys.readouterr()
    assert "is the checkpoint itself" in refusal(capsys, "convert", path, "-o", path)
    assert "Is a directory" in refusal(capsys, "convert", path, "-o", tmp_path)
    assert "cannot be written" in refusal(capsys, "convert", path, "-o", path / "x")
    (tmp_path / "dict.en.txt").write_text("one 1\n")
    others = ("-o", tmp_path / "k.pt", "--data", tmp_path)
    assert "is not the dictionary of 31 words" in refusal(capsys, "convert", path, *others)
    (tmp_path / "dict.en.txt").unlink()
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["m.pt"]
