"""A tiny trained model, its data and its training log, made once for all tests of this folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pandas import DataFrame

from fairseq_kerbs.analysis.occurrences import Text
from fairseq_kerbs.cli import main
from fairseq_kerbs.data.toy import write_toy_corpus
from tests.helpers import commands

SIZES = """--encoder-layers 1 --decoder-layers 1 --encoder-embed-dim 16 --decoder-embed-dim 16
    --encoder-ffn-embed-dim 16 --decoder-ffn-embed-dim 16 --encoder-attention-heads 2
    --decoder-attention-heads 2"""
TRAINING = """--optimizer adam --lr 3e-3 --max-tokens 1000 --max-update 12 --cpu --seed 1
    --num-workers 0 --no-epoch-checkpoints --log-format simple --log-interval 2 --no-progress-bar"""
Lines = list[list[str]]
KERBS = """--arch transformer_kerbs --criterion kerbs_cross_entropy --reallocation-interval 4
    --reallocation paper --log-prob-threshold -3"""


@dataclass(frozen=True)
class Trained:
    data: Path  # binarized toy corpus, with BPE
    kerbs: Path  # checkpoint of transformer_kerbs
    softmax: Path  # checkpoint of fairseq's own transformer
    log: Path  # what fairseq-train logged of the first


def text_of(lines: Lines, tokens: object, source: Lines | None = None, **more: Any) -> Text:
    """A text with tokens of line, place, entry and row of the sense, all as sure."""
    table = DataFrame(np.array(tokens), columns=["line", "place", "entry", "sense"])
    return Text(lines, source, table.assign(posterior=0.9), **more)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("trained")
    write_toy_corpus(folder / "text", train=250, valid=10, test=30)
    splits = [f"--{name}={folder / 'text' / name}" for name in ("train", "valid", "test")]
    languages = ["--source-lang", "de", "--target-lang", "en"]
    prepared = ["--merges", "300", "--dest", str(folder / "data"), "--workers", "1"]
    assert main(["prepare", *splits, *languages, *prepared]) == 0
    data = folder / "data" / "bin"
    models = {"kerbs": KERBS, "softmax": "--arch transformer"}
    for name, flags in models.items():
        given = [*SIZES.split(), *TRAINING.split(), *commands.USER_DIR, *flags.split()]
        log = commands.run("fairseq-train", data, "--save-dir", folder / name, *given)
        (folder / f"{name}.log").write_text(log, encoding="utf-8")
    ours, stock = (folder / name / "checkpoint_last.pt" for name in models)
    return Trained(data, ours, stock, folder / "kerbs.log")
