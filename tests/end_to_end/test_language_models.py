"""Language models with the real commands: data, training, perplexity."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq_cli import eval_lm

import fairseq_kerbs.criterions
import fairseq_kerbs.models  # noqa: F401  (registers)
from fairseq_kerbs.data.toy import write_toy_corpus
from tests.helpers.commands import ROOT, USER_DIR, run, run_program

pytestmark = pytest.mark.slow

BLOCK = 12
TASK = ("--task", "language_modeling", "--tokens-per-sample", BLOCK, "--cpu", "--num-workers", 0)
TRAINING = (
    *("--criterion", "kerbs_cross_entropy", "--optimizer", "adam", "--lr", 0.01),
    *("--batch-size", 16, "--max-update", 30, "--reallocation-interval", 10, "--seed", 2),
    *("--embed-dim", 16, "--hidden-size", 24, "--no-epoch-checkpoints", "--log-interval", 10),
    *("--log-format", "simple"),
)


def fairseq(program: str, data: Path, *flags: object) -> str:
    return run(f"fairseq-{program}", data, *USER_DIR, *TASK, *flags)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sentences of the toy corpus, binarized (bin), and a model."""
    folder = tmp_path_factory.mktemp("work")
    write_toy_corpus(folder, train=400, valid=30, test=25)
    (folder / "text").mkdir()
    for split in ("train", "valid", "test"):
        (folder / f"{split}.en").rename(folder / "text" / f"toy.{split}.tokens")
    flags = ("--dest", folder / "data", "--words", 22, "--workers", 1)
    run_program(ROOT / "scripts" / "prepare_lm.sh", folder / "text", *flags)
    kept = (folder / "data" / "bin" / "dict.txt").read_text().split()[::2]
    assert len([word for word in kept if not word.startswith("madeupword")]) == 22
    training = ("--arch", "gru_lm_kerbs", *TRAINING, "--save-dir", folder / "gru")
    log = fairseq("train", folder / "data" / "bin", *training)
    losses = [float(value) for value in re.findall(r"train_inner.* loss=([0-9.]+)", log)]
    assert losses[-1] < losses[0] - 0.2
    assert sum(map(int, re.findall(r"train_inner.* senses_moved=([0-9]+)", log))) > 0
    return folder


def evaluate(work: Path, *flags: object) -> float:
    """What fairseq-eval-lm finds, in bits for each word; in this process, with all its digits."""
    parser = options.get_eval_lm_parser()
    words = (*TASK, "--path", work / "gru" / "checkpoint_best.pt", *flags)
    arguments = [str(work / "data" / "bin"), *map(str, words)]
    parsed = options.parse_args_and_arch(parser, input_args=arguments)
    results: dict[str, Any] = eval_lm.main(convert_namespace_to_omegaconf(parsed))
    return float(results["loss"])


def test_perplexity_is_that_of_validation(work: Path) -> None:
    path = ("--path", work / "gru" / "checkpoint_best.pt", "--batch-size", 5)
    validated = fairseq("validate", work / "data" / "bin", *path, "--valid-subset", "test")
    evaluated = fairseq("eval-lm", work / "data" / "bin", *path, "--gen-subset", "test")
    nll = float(re.findall(r"nll_loss ([0-9.]+)", validated)[-1])
    (loss, perplexity), *_ = re.findall(r"2\): ([0-9.]+), Perplexity: ([0-9.]+)", evaluated)
    assert abs(float(loss) - nll) < 1e-3
    assert abs(float(perplexity) - 2**nll) < 0.02


def test_context_window_gives_every_word_its_whole_past(work: Path) -> None:
    """Small blocks with a window over the whole text, in batches, are as good as one block."""
    whole = evaluate(work, "--tokens-per-sample", 400)
    blocks = ("--tokens-per-sample", 420, "--context-window", 400, "--batch-size", 3)
    assert evaluate(work, *blocks, "--softmax-batch", 10) == pytest.approx(whole, rel=1e-5)
    alone = evaluate(work, "--tokens-per-sample", 4, "--batch-size", 3)
    assert abs(alone - whole) > 1e-3
