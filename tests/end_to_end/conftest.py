"""Parallel text and models for all tests of fairseq's commands."""

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.commands import run
from tests.helpers.tiny_trainings import TEST_PAIRS, Trained, sources, training, write_lines

Train = Callable[[str], Trained]


@pytest.fixture(scope="session")
def parallel_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Binarized parallel text: each target word is its source word in capitals."""
    folder = tmp_path_factory.mktemp("parallel")
    lines = sources()
    splits = {"train": lines[:-40], "valid": lines[-40:-20], "test": lines[-TEST_PAIRS:]}
    for split, part in splits.items():
        write_lines(folder / f"{split}.de", part)
        write_lines(folder / f"{split}.en", [line.upper() for line in part])
    flags = [f"--{split}pref={folder / split}" for split in splits]
    output = run(
        "fairseq-preprocess",
        "-s",
        "de",
        "-t",
        "en",
        *flags,
        "--destdir",
        folder / "bin",
        "--workers",
        "2",
    )
    assert f"test.en: {TEST_PAIRS} sents" in output
    return folder / "bin"


@pytest.fixture(scope="session")
def trained(parallel_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Train:
    @functools.cache
    def train(arch: str) -> Trained:
        folder = tmp_path_factory.mktemp(arch)
        flags = (*training(parallel_data, arch, folder), "--tensorboard-logdir", folder / "log")
        return Trained(folder, folder / "checkpoint_last.pt", run("fairseq-train", *flags))

    return train
