"""A tiny trained model, its data and its training log, made once for all tests of this folder."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fairseq.data import LanguagePairDataset
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from fairseq_kerbs.cli import main
from fairseq_kerbs.data.toy import write_toy_corpus
from tests.helpers.fairseq_fixtures import dictionary, make_batch

Refused = Callable[..., str]

SIZES = """--encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 16 --decoder-embed-dim 16
    --encoder-ffn-embed-dim 16 --decoder-ffn-embed-dim 16 --encoder-attention-heads 2
    --decoder-attention-heads 2"""
TRAINING = """--optimizer adam --lr 3e-3 --max-tokens 1000 --max-update 12 --cpu --seed 1
    --num-workers 0 --no-epoch-checkpoints --log-format simple --log-interval 2 --no-progress-bar"""
KERBS = """--arch transformer_kerbs --criterion kerbs_cross_entropy --reallocation-interval 4
    --reallocation paper --log-prob-threshold -3"""


@dataclass(frozen=True)
class Trained:
    """What a user has after training."""

    data: Path  # binarized toy corpus, with BPE
    kerbs: Path  # checkpoint of transformer_kerbs
    softmax: Path  # checkpoint of fairseq's own transformer
    log: Path  # what fairseq-train logged of the first

    @property
    def dictionary(self) -> Path:
        """Dictionary of the target language."""
        return self.data / "dict.en.txt"


def _train(data: Path, folder: Path, flags: str) -> Path:
    """fairseq-train in this process, which has imported everything already."""
    from fairseq_cli.train import cli_main

    import fairseq_kerbs.criterions
    import fairseq_kerbs.models  # noqa: F401  (both register)

    arguments = [str(data), "--save-dir", str(folder), *SIZES.split(), *TRAINING.split()]
    # as the program itself logs, were pytest's handlers not there before
    handler = logging.FileHandler(folder.with_suffix(".log"), encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s | %(levelname)s | %(name)s | %(message)s"))
    # commands that ran in this process before have told fairseq to be quiet
    root, fairseq = logging.getLogger(), logging.getLogger("fairseq")
    levels = [(logger, logger.level) for logger in (root, fairseq)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["fairseq-train", *arguments, *flags.split()])
        root.addHandler(handler)
        for logger, _ in levels:
            logger.setLevel(logging.INFO)
        try:
            cli_main()
        finally:
            for logger, level in levels:
                logger.setLevel(level)
            root.removeHandler(handler)
            handler.close()
    return folder / "checkpoint_last.pt"


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Two models after a few updates."""
    folder = tmp_path_factory.mktemp("trained")
    write_toy_corpus(folder / "text", train=250, valid=10, test=30)
    splits = [f"--{name}={folder / 'text' / name}" for name in ("train", "valid", "test")]
    languages = ["--source-lang", "de", "--target-lang", "en"]
    prepared = ["--merges", "300", "--dest", str(folder / "data"), "--workers", "1"]
    assert main(["prepare", *splits, *languages, *prepared]) == 0
    data = folder / "data" / "bin"
    return Trained(
        data,
        _train(data, folder / "kerbs", KERBS),
        _train(data, folder / "softmax", "--arch transformer"),
        folder / "kerbs.log",
    )


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    """Run a command that must end with one sentence, which is returned."""

    def run(message: str, *command: object) -> str:
        capsys.readouterr()
        try:
            status: object = main([str(part) for part in command])
        except SystemExit as ended:  # of argparse, which shows the usage first
            status = ended.code
        *_, error = capsys.readouterr().err.splitlines()
        assert (status, message in error) == (2, True), error
        return error

    return run


class BatchTask(TranslationTask):
    """A translation task whose sets are a batch in memory."""

    def __init__(self, *splits: str, left_pad_target: bool = False) -> None:
        super().__init__(TranslationConfig(), dictionary(19), dictionary(23))
        self.splits, self.batch, self.left_pad_target = splits, make_batch(), left_pad_target

    def load_dataset(self, split: str, *args: Any, **kwargs: Any) -> None:
        if split not in self.splits:
            raise FileNotFoundError(f"Dataset not found: {split}")
        source = [row[row.ne(1)] for row in self.batch["net_input"]["src_tokens"]]
        target = [row[row.ne(1)] for row in self.batch["target"]]
        sizes = [len(row) for row in source], [len(row) for row in target]
        self.datasets[split] = LanguagePairDataset(
            *(source, sizes[0], self.src_dict, target, sizes[1], self.tgt_dict),
            left_pad_target=self.left_pad_target,
        )
