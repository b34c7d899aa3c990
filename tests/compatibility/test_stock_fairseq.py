"""The plugin beside an untouched fairseq 0.12.2: what README promises, by fairseq's own commands.

``make compatibility`` runs these tests, and nothing else does: see the head of ``conftest.py``.
"""

import re
from functools import cache
from pathlib import Path

import pytest

from fairseq_kerbs.utils.processes import PLUGIN_FOLDER
from tests.compatibility.conftest import TINY, Environment

SIZES = [
    f"--{side}-{size}"
    for size in ("embed-dim=64", "ffn-embed-dim=128", "layers=2", "attention-heads=4")
    for side in ("encoder", "decoder")
]
TRANSFORMER = ("--arch", "transformer_kerbs", *SIZES, "--total-senses", 1.25)
RECURRENT = ("--hidden-size", 64, "--embed-dim", 64, "--total-senses", 1.25)
MODELS = {
    "transformer": TRANSFORMER,
    "lstm": ("--arch", "lstm_kerbs", *RECURRENT),
    "gru": ("--arch", "gru_kerbs", *RECURRENT),
}
CLUSTERS = ("--reallocation-interval", 5, "--reallocation-at", 6)
PAPER = ("--reallocation", "paper", "--reallocation-interval", 6, "--log-prob-threshold", -1)
Reference = tuple[Path, list[str], list[float]]
LANGUAGE = ("--task", "language_modeling", "--tokens-per-sample", 64, *PAPER)


# fairseq-train, which prints each loss before it is rounded to three digits
EXACT = """
from fairseq.logging import metrics
from fairseq_cli.train import cli_main
log = metrics.log_scalar
def log_scalar(name, value, *args, **kwargs):
    if name == "loss":
        print("exact", float(value))
    log(name, value, *args, **kwargs)
metrics.log_scalar = log_scalar
cli_main()
"""


def go_on(where: Environment, checkpoint: Path) -> list[float]:
    """Losses of 20 updates from a checkpoint, without dropout, whose draws differ, and with an ε
    of Adam that does not make the rounding of tiny gradients as large as others."""
    fresh = [f"--reset-{part}" for part in ("optimizer", "meters", "dataloader", "lr-scheduler")]
    flags = (
        "--restore-file",
        checkpoint,
        *fresh,
        "--dropout",
        0,
        "--max-update",
        20,
        "--no-save",
        "--disable-validation",
        "--reallocation-at",
        100,
        "--adam-eps",
        1e-4,
    )
    command = ("-c", EXACT, "bin", *TINY, *TRANSFORMER, *flags, "--user-dir", PLUGIN_FOLDER)
    said = where.run("python", *command)
    losses = [float(line[6:]) for line in said.splitlines() if line.startswith("exact ")]
    assert len(losses) == 20
    return losses


@pytest.fixture(scope="session")
def reference(ours: Environment) -> Reference:
    """A model trained with our own wheel, what it translates, and how its training goes on."""
    ours.train("model", *TRANSFORMER, "--max-update", 600, "--dropout", 0.1)
    checkpoint = ours.folder / "model" / "checkpoint_best.pt"
    return checkpoint, ours.translate(checkpoint), go_on(ours, checkpoint)


@cache
def _train(stock: Environment, model: str) -> Path:
    """The checkpoint of a training that moves senses, and was interrupted once."""
    flags = (*MODELS[model], *(PAPER if model == "gru" else CLUSTERS))
    first = stock.train(model, *flags, "--max-update", 8)
    second = stock.train(model, *flags, "--max-update", 12)
    assert (len(first), len(second)) == (8, 4)
    assert first[0] > second[-1]
    return stock.folder / model / "checkpoint_last.pt"


@pytest.mark.parametrize("model", MODELS)
def test_trains_moves_resumes_validates_and_translates(stock: Environment, model: str) -> None:
    trained = _train(stock, model)
    flags = ("--task", "translation", "--path", trained, "--batch-size", 100)
    assert "| loss " in stock.run("fairseq-validate", "bin", *flags)
    assert len(stock.translate(trained)) == 500


@pytest.mark.parametrize("arch", ["gru_lm_kerbs_small", "transformer_lm_kerbs_small"])
def test_language_models(stock: Environment, arch: str) -> None:
    losses = stock.train(arch, "--arch", arch, *LANGUAGE, "--max-update", 8, data="lm")
    assert losses[-1] < losses[0]
    flags = ("--path", f"{arch}/checkpoint_best.pt", "--tokens-per-sample", 64, "--batch-size", 32)
    assert "Perplexity: " in stock.run("fairseq-eval-lm", "lm", "--gen-subset", "valid", *flags)


def test_sampling_ensembles_interactive_and_eval_bleu(stock: Environment) -> None:
    models = _train(stock, "transformer"), _train(stock, "lstm")
    sampling = ("--beam", 2, "--nbest", 2, "--sampling", "--sampling-topk", 5)
    assert len(stock.translate(models[0], *sampling)) == 1000
    assert len(stock.translate(Path(f"{models[0]}:{models[1]}"))) == 500
    said = stock.run("fairseq-interactive", "bin", "--path", models[0], stdin="der mann\n")
    assert re.search(r"^H-0\t", said, re.MULTILINE)
    bleu = ("--eval-bleu", "--eval-bleu-remove-bpe", "--best-checkpoint-metric", "bleu")
    stock.train("bleu", *TRANSFORMER, *bleu, "--reallocation", "none", "--max-update", 2)


def test_our_checkpoint_there(stock: Environment, reference: Reference) -> None:
    checkpoint, translations, losses = reference
    assert stock.translate(checkpoint) == translations
    assert go_on(stock, checkpoint) == pytest.approx(losses, abs=1e-6)


def test_their_checkpoint_here(stock: Environment, ours: Environment) -> None:
    checkpoint = _train(stock, "transformer")
    pairs = zip(ours.translate(checkpoint), stock.translate(checkpoint))
    # after 12 updates words are all but tied, and rounding may choose
    assert sum(here != there for here, there in pairs) <= 5
    flags = ("--restore-file", checkpoint, *CLUSTERS, "--max-update", 14)
    assert len(ours.train(f"on-{stock.name}", *TRANSFORMER, *flags)) == 2


def test_converts_a_model_of_fairseq(stock: Environment) -> None:
    plain = (*SIZES, "--criterion", "cross_entropy", "--share-decoder-input-output-embed")
    stock.train("plain", "--arch", "transformer", *plain, "--max-update", 12)
    flags = ("--data", "bin", "--total-senses", 1.25, "--trust-checkpoint")
    printed = stock.kerbs("convert", "plain/checkpoint_last.pt", "-o", "senses.pt", *flags)
    losses = re.search(r"([\d.]+) bits a token before, ([\d.]+) after", printed)
    assert losses
    before, after = map(float, losses.groups())
    assert after == pytest.approx(before, abs=0.05)
    assert len(stock.translate(stock.folder / "senses.pt")) == 500


def test_senses_of_the_output_and_what_is_missing(stock: Environment) -> None:
    checkpoint = _train(stock, "transformer")
    said = stock.run("fairseq-generate", "bin", "--path", checkpoint, "--batch-size", 100)
    (stock.folder / "out").write_text(said)
    told = stock.kerbs("print-senses", checkpoint, "out", "--data", "bin", "--trust-checkpoint")
    assert re.search(r"^K-0\t\S+#1:[01]\.\d{4} ", told, re.MULTILINE)
    for side in ("de", "en"):
        (stock.folder / f"a.{side}").write_text("a b\n" * 9)
    text = ("--train", "a", "--valid", "a", "--test", "a", "--source-lang", "de")
    told = stock.kerbs("prepare", *text, "--target-lang", "en", "--dest", "d", succeeds=False)
    assert "pip install 'fairseq_kerbs[" in told
    assert "Traceback" not in told
