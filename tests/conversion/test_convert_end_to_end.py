"""fairseq-kerbs convert with real trainings: translations before and after, and training on."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import re
from pathlib import Path

import pytest
import torch
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq_cli import generate

from fairseq_kerbs.checkpoints import read_checkpoint
from fairseq_kerbs.cli import main
from fairseq_kerbs.configurations import flag_arguments, load_experiment
from fairseq_kerbs.conversion.sense_init import SPARE_SHARE
from tests.helpers.tiny_checkpoint import SIZES, binarized_corpus, fairseq_train

pytestmark = pytest.mark.slow

MODELS = {
    "transformer_tiny": ["--share-decoder-input-output-embed"],
    "lstm": [
        *("--encoder-embed-dim", "16", "--decoder-embed-dim", "16"),
        *("--decoder-out-embed-dim", "16", "--encoder-bidirectional"),
    ],
}
PLAIN = ["--criterion", "cross_entropy", "--dropout", "0", "--lr", "0.01"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The synthetic corpus, binarized."""
    return binarized_corpus(tmp_path_factory.mktemp("convert"))


def translations(data: Path, checkpoint: Path) -> list[tuple[str, float]]:
    """Hypotheses of fairseq-generate, with their scores."""
    flags = ["--beam", "2", "--max-len-b", "12", "--cpu", "--num-workers", "0"]
    command = [data, "--path", checkpoint, *flags]
    args = options.parse_args_and_arch(options.get_generation_parser(), [str(x) for x in command])
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        generate.main(convert_namespace_to_omegaconf(args))
    found = re.findall(r"^H-\d+\t(\S+)\t(.*)$", printed.getvalue(), re.MULTILINE)
    return [(text, float(score)) for score, text in found]


def losses(caplog: pytest.LogCaptureFixture, *arguments: object, updates: int = 2) -> list[float]:
    """Train; losses in bits of every update."""
    caplog.set_level(logging.INFO, logger="fairseq")  # commands that read a model quiet it
    caplog.clear()
    fairseq_train(*arguments, "--log-format", "json", "--log-interval", 1,
                  "--max-update", updates)  # fmt: skip
    lines = [one.getMessage() for one in caplog.records if one.name == "train_inner"]
    return [float(json.loads(line)["loss"]) for line in lines]


@pytest.mark.parametrize("arch", list(MODELS))
def test_a_trained_model_goes_on_as_kerbs(
    arch: str, data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fairseq_train(data, "--save-dir", tmp_path, "--arch", arch, *MODELS[arch], *PLAIN,
                  "--max-update", 12, "--max-epoch", 9)  # fmt: skip
    trained, out, config = (tmp_path / name for name in ("checkpoint_last.pt", "k.pt", "k.yaml"))
    command = ["convert", trained, "-o", out, "--data", data, "--config", config]
    assert main([str(part) for part in command]) == 0

    before, after = translations(data, trained), translations(data, out)
    assert len(before) == SIZES["test"]
    for (text, score), (same, other) in zip(before, after, strict=True):
        assert text == same
        assert other == pytest.approx(score, abs=2e-4)  # printed with four digits

    softmax = losses(caplog, data, "--save-dir", tmp_path / "softmax", "--finetune-from-model",
                     trained, "--arch", arch, *MODELS[arch], *PLAIN)  # fmt: skip
    flags = flag_arguments(load_experiment(config).train)
    moving = ["--reallocation-interval", 2, "--log-prob-threshold", "-30", "--sense-decay", 1e-3]
    kerbs = losses(caplog, data, "--save-dir", tmp_path / "kerbs", *flags, "--dropout", 0, *moving,
                   updates=3)  # fmt: skip
    assert (len(softmax), len(kerbs)) == (2, 3)
    assert kerbs[0] == pytest.approx(softmax[0], abs=1e-3)  # printed with three digits

    first, last = (read_checkpoint(path)["model"] for path in
                   (out, tmp_path / "kerbs" / "checkpoint_last.pt"))  # fmt: skip
    owners = "decoder.output.inventory.word_of_sense"
    moved = (first[owners] != last[owners]).nonzero().flatten()
    assert 0 < len(moved) < 131
    # all that moved were spare: their share of their first word was next to nothing
    carrying = torch.tensor([int((first[owners] == word).nonzero()[-1]) for word in
                             first[owners][moved].tolist()])  # fmt: skip
    bias = first["decoder.output.weight"][:, -1].double()
    expected = torch.tensor(SPARE_SHARE).log().double().expand(len(moved))
    torch.testing.assert_close(bias[moved] - bias[carrying], expected, rtol=0, atol=1e-4)
