"""A gradient that is not finite ends every training with one sentence; nothing is lost."""

from __future__ import annotations

import re
from argparse import Namespace
from pathlib import Path

import pytest
import torch
from fairseq.dataclass.configs import FairseqConfig
from fairseq.optim.amp_optimizer import AMPOptimizer
from fairseq.trainer import Trainer
from omegaconf import OmegaConf

import fairseq_kerbs.models  # noqa: F401  (makes the changes)
from tests.fairseq_patches.test_resume import load, run
from tests.helpers.training_runs import binarize, trainings
from tests.training.test_processes import two

pytestmark = pytest.mark.slow

# the first update makes parameters of such a size that the second has no gradient
FLAGS = ["--lr", "1e30", "--clip-norm", "0", "--max-update", "5", "--save-interval-updates", "1"]
FLAGS += ["--disable-validation", "--lr-scheduler", "fixed"]
RUNS = {
    "transformer": ("transformer_kerbs", ["--update-freq", "2", "--clip-norm", "1"]),
    "recurrent": ("lstm_kerbs", ["--update-freq", "1"]),  # with --amp, which a CPU does not scale
}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nan")
    data = binarize(tmp_path_factory.mktemp("data"))
    runs = [run(data, folder / name, arch, *FLAGS, *flags) for name, (arch, flags) in RUNS.items()]
    runs += two(data, folder / "two", *FLAGS)
    statuses = trainings(runs)  # a process that waits for ever ends here
    text = "\n".join(log.read_text()[-2000:] for log in folder.glob("*.log"))
    assert statuses == [1] * len(runs), text
    return folder


@pytest.mark.parametrize("name", [*RUNS, "two"])
def test_one_sentence(name: str, done: Path) -> None:
    text = (done / f"{name}.log").read_text()
    assert "Traceback" not in text
    sentences = re.findall(r"^fairseq_kerbs: error: update 2 was not made: (.*)", text, re.M)
    assert len(sentences) == (2 if name == "two" else 1), text[-3000:]
    for sentence in sentences:
        assert sentence.startswith("its gradient is not finite (NaN or infinity); try a lower --lr")
        assert str(done / name) in sentence
    last = load(done / name / "checkpoint_last.pt")
    assert last["optimizer_history"][-1]["num_updates"] == 1
    assert all(value.isfinite().all() for value in last["model"].values())


@pytest.mark.parametrize("name", ["transformer", "recurrent"])
def test_the_log_names_where_it_began(name: str, done: Path) -> None:
    text = (done / f"{name}.log").read_text()
    assert re.search(r"(NaN|Inf) detected in output of \w+\.", text)
    assert "gradients: {" not in text


def test_an_overflow_of_mixed_precision_is_no_error() -> None:
    """Its scaler takes back the update, until it has no smaller scale."""
    trainer = Trainer.__new__(Trainer)
    trainer.cfg = FairseqConfig()
    trainer._optimizer = Namespace(
        scaler=Namespace(is_enabled=lambda: True),  # there is none without a GPU
        clip_grad_norm=lambda *_, **__: torch.tensor(float("inf")),
    )
    trainer.cfg.common.amp = True
    assert trainer.clip_grad_norm(1.0) == float("inf")
    trainer.cfg.common.amp = False
    with pytest.raises(FloatingPointError, match="not finite"):
        trainer.clip_grad_norm(1.0)


def test_amp_divides_gradients_by_the_scale_of_the_loss_once() -> None:
    """And not before clipping and again after it."""
    weight = torch.nn.Parameter(torch.ones(3))
    sgd = {"_name": "sgd", "momentum": 0.0, "weight_decay": 0.0, "lr": [0.5]}
    config = OmegaConf.create({"optimizer": sgd, "common": vars(FairseqConfig().common)})
    optimizer = AMPOptimizer.build_optimizer(config, [weight])
    optimizer._grad_scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
    optimizer.backward((weight * torch.tensor([1.0, 2.0, 4.0])).sum())
    assert float(optimizer.clip_grad_norm(0.0)) == pytest.approx(21.0**0.5)
    optimizer.step()
    assert weight.tolist() == [0.5, 0.0, -1.0]
