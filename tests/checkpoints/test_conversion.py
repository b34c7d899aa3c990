"""fairseq-kerbs convert: same predictions, training on, refusals; with data and real trainings."""

import re
import shlex
import shutil
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor

from fairseq_kerbs.checkpoints import read_checkpoint
from fairseq_kerbs.checkpoints.conversion import describe_budget
from tests.checkpoints.conftest import ARCHITECTURES, LENGTH, Train
from tests.helpers import softmax_checkpoints as softmax
from tests.helpers.cli import Capsys, kerbs
from tests.helpers.commands import USER_DIR, run
from tests.helpers.fairseq_fixtures import make_batch, teacher_forced
from tests.helpers.softmax_checkpoints import CASES
from tests.helpers.tiny_checkpoint import fairseq_train

WORD_OF_SENSE = "decoder.output.inventory.word_of_sense"
SENSE_EMBEDDINGS = "decoder.output.weight"


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


# ------------------------------------------------------------------ one sense per word


@pytest.mark.parametrize("case", list(CASES))
def test_predictions_and_losses_are_the_same(case: str, tmp_path: Path, capsys: Capsys) -> None:
    """Of training on by the flags that the command prints, as --finetune-from-model reads them."""
    out = tmp_path / "kerbs.pt"
    stock = softmax.write_softmax(tmp_path / "softmax.pt", CASES[case])
    printed = kerbs(capsys, "convert", tmp_path / "softmax.pt", "-o", out).splitlines()[-1]

    model = softmax.load(out)
    layer = model.decoder.output
    assert layer.vocab_size == softmax.WORDS
    assert layer.total_senses == softmax.WORDS
    assert layer.theta.eq(0).all()
    torch.testing.assert_close(log_probs(model), log_probs(stock), rtol=1e-5, atol=1e-5)
    if hasattr(model, "encoder"):
        ours = translations(model, stock.decoder.dictionary)
        theirs = translations(stock, stock.decoder.dictionary)
        for mine, other in zip(ours, theirs, strict=True):
            assert mine["tokens"].tolist() == other["tokens"].tolist()
            torch.testing.assert_close(mine["score"], other["score"], rtol=1e-4, atol=1e-5)

    command = shlex.split(printed.partition("--user-dir")[2])[1:]
    assert command[-4:] == ["--max-update", "N", "--save-dir", "SAVE_DIR"]
    assert f"--finetune-from-model {out} " in printed
    assert "--lr 0.002 " in printed
    for flag in ("--optimizer adafactor", "--weight-decay 0.1"):
        assert (flag in CASES[case]) == (flag in printed)

    model = softmax.load(out, shlex.join(command[:-4]))
    inputs = batch(model)["net_input"]
    target = batch(model)["target"]
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
    path = tmp_path / "m.pt"
    softmax.write_softmax(path, CASES["lstm"])
    (tmp_path / "dict.en.txt").write_text("one 1\n")
    before = path.read_bytes()
    for says, *flags in (
        ("is read by this command", path),
        ("is a folder; name a file in it", tmp_path),
        ("m.pt cannot be used", path / "x"),
        ("read only with --data; give that", tmp_path / "k.pt", "--total-senses", 2),
        ("does not fit --data", tmp_path / "k.pt", "--data", tmp_path),
    ):
        assert says in refusal(capsys, "convert", path, "-o", *flags)
    assert path.read_bytes() == before
    assert {one.name for one in tmp_path.iterdir()} == {"m.pt", "dict.en.txt"}


# ------------------------------------------------------------------ senses on clusters


def convert(checkpoint: Path, out: Path, data: Path, *flags: object) -> list[object]:
    """The command for many senses, since a tiny corpus gives evidence for few."""
    given = ["--number-of-senses", "distortion", *flags]
    return ["convert", checkpoint, "-o", out, "--data", data, *given]


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_a_trained_model_gets_senses_at_an_unchanged_loss(
    arch: str, trained_softmax: Train, corpus: Path, tmp_path: Path, capsys: Capsys
) -> None:
    out = tmp_path / "k" / "checkpoint_last.pt"
    printed = kerbs(capsys, *convert(trained_softmax(arch), out, corpus, "--total-senses", 1.6))
    losses = re.search(r"loss of split valid: (\S+) bits a token before, (\S+) after", printed)
    assert losses is not None, printed
    before, after = map(float, losses.groups())
    assert after == pytest.approx(before, abs=0.06)  # of a corpus this small

    converted = read_checkpoint(out)
    word_of_sense = converted["model"][WORD_OF_SENSE]
    words = int(word_of_sense.max()) + 1
    assert words < len(word_of_sense) <= round(1.6 * words)
    average = len(word_of_sense) / words
    assert f"\n{average:.2f} senses a word; " in printed
    assert (word_of_sense.bincount()[:4] == 1).all()
    assert converted["cfg"]["model"].reallocation == "none"

    command = re.search(r"train on with: fairseq-train DATA (.*) --max-update N", printed)
    assert command is not None
    given = [part for part in command[1].split() if not part.endswith(("-dir", "fairseq_kerbs"))]
    flags = ["--total-senses", len(word_of_sense) / words, "--sense-bias", "--reallocation", "none"]
    assert {*map(str, flags)} <= {*given}
    save = tmp_path / "on"
    others = ("--dropout", "0", "--lr", "0.01", "--max-epoch", 200, "--max-tokens", 1000)
    fairseq_train(corpus, *given, "--save-dir", save, "--max-update", 3, *others)
    after_training = read_checkpoint(save / "checkpoint_last.pt")
    assert after_training["optimizer_history"][-1]["num_updates"] == 3
    assert torch.equal(after_training["model"][WORD_OF_SENSE], word_of_sense)


def test_what_became_of_the_budget() -> None:
    """Five words, of which two have contexts for several senses."""
    senses_per_word = torch.tensor([1, 1, 3, 2, 1])
    enough = torch.tensor([False, False, True, True, False])
    for by_evidence, of_others in (
        (True, "evidence tells no more senses of the others apart"),
        (False, "contexts of the others have no more clusters"),
    ):
        line = describe_budget(senses_per_word, 3.0, enough, by_evidence=by_evidence)
        assert line == (
            "--total-senses 3 allows more, but 3 of 5 words have fewer than 40 contexts, and "
            f"{of_others}"
        )
    for allowed in (1.6, 1.65):  # 8 senses, if rounded
        line = describe_budget(senses_per_word, allowed, enough, by_evidence=True)
        assert line == f"these are all that --total-senses {allowed:g} allows"


def test_the_default_budget_is_that_of_the_architectures(
    trained_softmax: Train, corpus: Path, tmp_path: Path, capsys: Capsys
) -> None:
    """Three senses a word, or --max-senses if that is less."""
    converted = [("default", []), ("three", ["--total-senses", 3])]
    numbers = {}
    for name, flags in converted:
        out = tmp_path / f"{name}.pt"
        kerbs(capsys, *convert(trained_softmax("lstm"), out, corpus, *flags))
        numbers[name] = read_checkpoint(out)["model"][WORD_OF_SENSE].tolist()
    assert numbers["default"] == numbers["three"]
    printed = kerbs(
        capsys,
        *convert(trained_softmax("lstm"), tmp_path / "two.pt", corpus, "--max-senses", 2),
    )
    assert "\n--total-senses 2 allows more, but " in printed


def test_gap_and_contexts(
    trained_softmax: Train, corpus: Path, tmp_path: Path, capsys: Capsys
) -> None:
    rows: list[Tensor] = []
    for flags in ([], ["--gap", 4], ["--contexts", 50], ["--split", "train"]):
        out = tmp_path / f"{len(rows)}.pt"
        kerbs(capsys, *convert(trained_softmax("lstm"), out, corpus, *flags))
        rows.append(read_checkpoint(out)["model"][SENSE_EMBEDDINGS])
    assert not torch.equal(rows[0], rows[1])
    assert not torch.equal(rows[0], rows[2])
    assert torch.equal(rows[0], rows[3])


@pytest.mark.slow
def test_a_converted_model_refuses_another_dictionary(
    trained_softmax: Train, corpus: Path, tmp_path: Path, capsys: Capsys
) -> None:
    """In generation. fairseq's own checkpoints do not say with which one they were trained."""
    out = tmp_path / "k.pt"
    kerbs(capsys, *convert(trained_softmax("lstm"), out, corpus))
    turned = shutil.copytree(corpus, tmp_path / "turned")
    file = turned / "dict.en.txt"
    words = file.read_text().splitlines()
    file.write_text("\n".join([words[1], words[0], *words[2:]]) + "\n")
    beam = ("--beam", 1, "--max-len-b", 9)
    generate = (*USER_DIR, "--path", out, *beam, "--cpu", "--gen-subset", "valid")
    run("fairseq-generate", corpus, *generate)
    said = run("fairseq-generate", turned, *generate, status=1)
    assert "the checkpoint has a target dictionary of" in said
    assert "Traceback" not in said


def test_our_biased_softmax_gets_senses(corpus: Path, tmp_path: Path, capsys: Capsys) -> None:
    """Its context vectors end with a 1, which is no part of the clusters."""
    flags = ["--output-layer", "softmax", "--sense-bias", "--hidden-size", 16, "--embed-dim", 16]
    flags += ["--reallocation-at", 0.2, 0.9, *LENGTH, "--max-update", 25]
    fairseq_train(corpus, "--save-dir", tmp_path / "save", *flags)
    out = tmp_path / "k.pt"
    printed = kerbs(capsys, *convert(tmp_path / "save" / "checkpoint_last.pt", out, corpus))
    assert "--reallocation none" in printed
    converted = read_checkpoint(out)["model"]
    rows = converted[SENSE_EMBEDDINGS]
    assert rows.shape[1] == 17
    assert len(rows) > int(converted[WORD_OF_SENSE].max()) + 1


def test_source_words_and_neighbours_tell_how_many_senses_there_are(
    trained_softmax: Train, corpus: Path, tmp_path: Path, capsys: Capsys
) -> None:
    """The synthetic corpus has twelve ambiguous words. Others never need a second sense."""
    numbers = {}
    calls: list[tuple[str, list[object]]] = [
        ("default", []),
        ("evidence", ["--number-of-senses", "evidence", "--total-senses", 4]),
        ("strict", ["--least-information", 1, "--total-senses", 4]),
        ("distortion", ["--number-of-senses", "distortion", "--total-senses", 4]),
        ("limit", ["--total-senses", 1]),
    ]
    for name, flags in calls:
        out = tmp_path / f"{name}.pt"
        command = ["convert", trained_softmax("transformer_tiny"), "-o", out, "--data", corpus]
        printed = kerbs(capsys, *command, *flags)
        numbers[name] = read_checkpoint(out)["model"][WORD_OF_SENSE].bincount()
        said = re.search(r"(\S+) senses a word; (\d+)% of the words with 40 contexts", printed)
        assert said is not None, printed
        assert float(said[1]) == pytest.approx(float(numbers[name].double().mean()), abs=0.006)
        by_evidence = name != "distortion"
        assert ("by evidence of source words and neighbours" in printed) == by_evidence
        assert ("by distortion, for further training" in printed) != by_evidence
    symbols = [row.split()[0] for row in (corpus / "dict.en.txt").read_text().splitlines()]
    named = {
        name: {symbols[word - 4] for word in (of_word > 1).nonzero().flatten().tolist()}
        for name, of_word in numbers.items()
    }
    assert "of" in named["evidence"]  # von, aus and others
    assert "the" in named["distortion"] - named["evidence"]
    assert (numbers["default"] <= numbers["evidence"]).all()
    assert 1 < numbers["evidence"].max() <= 4
    assert numbers["evidence"].sum() < numbers["distortion"].sum()
    assert numbers["strict"].max() == numbers["limit"].max() == 1


def test_numbers_of_senses_that_cannot_be_decided(
    trained_softmax: Train, corpus: Path, tmp_path: Path, capsys: Capsys
) -> None:
    path = trained_softmax("lstm")
    command = ["convert", path, "-o", tmp_path / "k.pt"]
    data = ["--data", corpus]
    refused: dict[str, list[object]] = {
        "'--total-senses': 0.9 is not in the range x>=1": [*data, "--total-senses", 0.9],
        "'--least-information': 1.1 is not in the range": [*data, "--least-information", 1.1],
        "'--least-information': nan": [*data, "--least-information", "nan"],
        "--least-information is read only with --data; give that": ["--least-information", 0.1],
        "--number-of-senses is read only with --data": ["--number-of-senses", "evidence"],
        "no word occurs 40 times, so none can have several": [*data, "--split", "test"],
        "--least-information is for --number-of-senses evidence": [
            *data,
            "--least-information",
            0.1,
            "--number-of-senses",
            "distortion",
        ],
    }
    for says, wrong in refused.items():
        assert says in refusal(capsys, *command, *wrong)
    assert not (tmp_path / "k.pt").exists()


def test_a_language_model_has_no_source_words(corpus: Path, tmp_path: Path, capsys: Capsys) -> None:
    data = tmp_path / "bin"
    data.mkdir()
    shutil.copy(corpus / "dict.en.txt", data / "dict.txt")
    for path in corpus.glob("*.de-en.en.*"):
        shutil.copy(path, data / path.name.replace(".de-en.en", ""))
    flags = {
        "--task": "language_modeling",
        "--arch": "lstm_lm",
        "--criterion": "cross_entropy",
        "--decoder-layers": 1,
        "--decoder-embed-dim": 8,
        "--decoder-hidden-size": 8,
        "--decoder-out-embed-dim": 8,
        "--sample-break-mode": "eos",
        "--tokens-per-sample": 50,
    }
    fairseq_train(data, "--save-dir", tmp_path / "save", *chain(*flags.items()))
    path = tmp_path / "save" / "checkpoint_last.pt"
    command = ["convert", path, "-o", tmp_path / "k.pt", "--data", data]
    needed = refusal(capsys, *command, "--number-of-senses", "evidence")
    assert "split train has no source side in another language" in needed
    assert "--number-of-senses distortion" in needed
    assert not (tmp_path / "k.pt").exists()
    assert "by distortion, for further training" in kerbs(capsys, *command)
