"""A binarized corpus, and softmax models trained on it, made once for all tests of this folder."""

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers import softmax_checkpoints as softmax
from tests.helpers.tiny_checkpoint import binarized_corpus, fairseq_train

Train = Callable[[str], Path]

TINY_LSTM = [
    "--encoder-embed-dim",
    "16",
    "--decoder-embed-dim",
    "16",
    "--decoder-out-embed-dim",
    "16",
    "--encoder-bidirectional",
]
ARCHITECTURES = {"transformer_tiny": [softmax.TIED], "lstm": TINY_LSTM}
"""fairseq's architectures that are trained, with their flags."""
LENGTH = ["--max-update", 150, "--max-epoch", 150, "--max-tokens", 1000, "--lr", 0.004]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The synthetic corpus in words, with enough contexts of some words for several senses."""
    sizes = {"train": 300, "valid": 20, "test": 6}
    return binarized_corpus(tmp_path_factory.mktemp("corpus"), sizes)


@pytest.fixture(scope="session")
def trained_softmax(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Checkpoint of a trained model of one of `ARCHITECTURES`."""

    @functools.cache
    def train(arch: str) -> Path:
        folder = tmp_path_factory.mktemp(arch)
        plain = ("--criterion", "cross_entropy", "--dropout", "0")
        fairseq_train(
            corpus, "--save-dir", folder, "--arch", arch, *ARCHITECTURES[arch], *plain, *LENGTH
        )
        return folder / "checkpoint_last.pt"

    return train
