"""Nothing becomes NaN or infinite, from extreme starts and in every precision that fairseq has."""

import os
import re
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.optim.fp16_optimizer import FP16Optimizer, MemoryEfficientFP16Optimizer
from torch import Tensor

from fairseq_kerbs.criterions import KerbsCrossEntropyCriterion
from fairseq_kerbs.reallocation import POLICIES
from fairseq_kerbs.training.sense_updates import kerbs_layers
from tests.helpers.cli import Patch
from tests.helpers.commands import PROGRAMS, USER_DIR, run_program
from tests.helpers.fairseq_fixtures import make_batch, make_model, make_task
from tests.helpers.hook_updates import PlainOptimizer, move
from tests.helpers.policies import TurnedAlgorithm1
from tests.helpers.tiny_trainings import FLAGS as TINY

FLAGS = {"reallocation_interval": 10, "log_prob_threshold": -5.0, "sense_decay": 1e-3}
ADAM = (
    "data --arch lstm --optimizer adam --use-old-adam --adam-betas (0.9,0.98) --lr 1e-3 "
    "--fp16-no-flatten-grads --fp16-init-scale 4 --fp16-scale-window 128"
)


def make_extreme(state: dict[str, Tensor], scale: float = 1e3) -> None:
    """Steep kernels of both signs, long sense vectors, zero vectors of words and of senses."""
    weight = state["decoder.output.weight"]
    theta = state["decoder.output.theta"]
    theta[0::3], theta[1::3] = 50.0, -50.0
    weight[0::5] *= scale
    weight[1::7] = 0.0
    state["encoder.embed_tokens.weight"][5:9] = 0.0


def extreme_model(name: str, task: Any, scale: float = 1e3, **flags: Any) -> Any:
    model = make_model(name, task, **(FLAGS | flags)).train()
    with torch.no_grad():
        make_extreme(model.state_dict(), scale)
    return model


def assert_finite(parameters: dict[str, Any], moments: dict[Any, dict[str, Any]]) -> None:
    for state in (parameters, *moments.values()):
        for name, value in state.items():
            if torch.is_tensor(value) and not name.endswith("._float_tensor"):
                assert value.isfinite().all(), name


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "amp"])
def test_150_updates_from_an_extreme_start(precision: str) -> None:
    """amp: the forward pass under autocast to bfloat16, as --amp has it on a GPU."""
    task = make_task()
    model = extreme_model("transformer", task, encoder_layers=1, decoder_layers=1)
    criterion = KerbsCrossEntropyCriterion(task, False, 0.1)
    optimizer = PlainOptimizer(model, lr=3e-3)
    (layer,) = kerbs_layers(model)
    losses = []
    moved = 0
    for update in range(150):
        before = layer.inventory.word_of_sense.clone()
        move((task, model, criterion, optimizer), update)
        moved += int((layer.inventory.word_of_sense != before).sum())
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "amp"):
            loss, size, _ = criterion(model, make_batch((4, 2), seed=update % 7))
        optimizer.optimizer.zero_grad()
        (loss / size).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        assert loss.isfinite(), update
        assert norm.isfinite(), update  # fairseq ends the training otherwise
        task.optimizer_step(optimizer, model=model, update_num=update)
        losses.append(float(loss.detach() / size))
    assert_finite(model.state_dict(), optimizer.optimizer.state)
    assert moved > 20
    # and it has learned, although moved senses bring their long vectors along
    assert statistics.median(losses[-21:]) < 0.5 * statistics.median(losses[:7])


@pytest.mark.parametrize("kind", [FP16Optimizer, MemoryEfficientFP16Optimizer])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["lstm", "lstm_luong"])
def test_models_in_low_precision_under_fairseqs_optimizers(
    kind: Any, dtype: torch.dtype, name: str, monkeypatch: Patch
) -> None:
    """--fp16, --memory-efficient-fp16, --bf16 and both, as far as a CPU can run them."""
    task = make_task()
    monkeypatch.setitem(POLICIES, "turned_paper", TurnedAlgorithm1)
    model = extreme_model(name, task, scale=30.0, reallocation="turned_paper").to(dtype)
    (layer,) = kerbs_layers(model)
    command = [*ADAM.split(), "--bf16" if dtype == torch.bfloat16 else "--fp16"]
    args = options.parse_args_and_arch(options.get_training_parser(), command)
    optimizer = kind.build_optimizer(convert_namespace_to_omegaconf(args), list(model.parameters()))
    criterion = KerbsCrossEntropyCriterion(task, False, 0.1)
    moved = torch.zeros(layer.total_senses, dtype=torch.bool)
    update = 0
    for number in range(45):
        before = layer.inventory.word_of_sense.clone()
        weight = layer.weight.detach().clone()
        move((task, model, criterion, optimizer), update)
        now = layer.inventory.word_of_sense != before
        if now.any():
            assert update % 10 == 0
            check_moved_rows(optimizer, layer, now, weight)
        moved |= now
        optimizer.zero_grad()
        loss, size, _ = criterion(model, make_batch((4, 2), seed=number % 7))
        assert loss.isfinite(), number
        optimizer.backward(loss)
        optimizer.multiply_grads(1.0 / size)
        try:
            optimizer.clip_grad_norm(5.0)
        except OverflowError:  # the trainer skips this update, with a smaller loss scale
            continue
        task.optimizer_step(optimizer, model=model, update_num=update)
        update += 1
    assert update >= 30
    assert moved.sum() > 10
    assert_finite(model.state_dict(), optimizer.optimizer.state)
    for buffer, value in layer.inventory.named_buffers():
        assert value.dtype in (torch.float32, torch.int64), buffer


def check_moved_rows(optimizer: Any, layer: Any, moved: Tensor, weight: Tensor) -> None:
    """They begin anew where the optimizer keeps them, and their moments are gone."""
    masters = getattr(optimizer, "fp32_params", None)
    for parameter in (layer.weight, layer.theta):
        kept = parameter
        if masters is not None:
            pairs = zip(optimizer.fp16_params, masters, strict=True)
            kept = next(master for own, master in pairs if own is parameter)
            torch.testing.assert_close(kept.data[moved].to(parameter.dtype), parameter.data[moved])
        for name in ("exp_avg", "exp_avg_sq"):
            moment = optimizer.optimizer.state[kept][name]
            assert moment.dtype == torch.float32
            assert moment[moved].abs().sum() == 0
            assert moment[~moved].abs().sum() > 0
        if parameter is layer.theta:  # float16 has no 1e-8, its kernel is that of theta = 0
            assert float((kept.detach()[moved].float() - 1e-8).abs().max()) < 2e-8
        else:  # the policy puts them elsewhere
            assert float((kept.detach().float() - weight.float())[moved].abs().amax()) > 0.05


@pytest.mark.slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="fairseq has these flags for GPUs only")
@pytest.mark.parametrize(
    "flags", ["--fp16", "--memory-efficient-fp16", "--bf16", "--memory-efficient-bf16", "--amp", ""]
)
@pytest.mark.parametrize("arch", ["transformer_kerbs", "lstm_kerbs"])
def test_500_updates_on_a_gpu(arch: str, flags: str, data: Path, tmp_path: Path) -> None:
    devices = os.environ.get("CUDA_VISIBLE_DEVICES", "0")  # which the commands of others do not see

    def train(folder: Path, *more: object) -> str:
        return run_program(
            PROGRAMS / "fairseq-train",
            data,
            *USER_DIR,
            "--arch",
            arch,
            *TINY[arch],
            "--num-workers",
            0,
            "--criterion",
            "kerbs_cross_entropy",
            "--optimizer",
            "adam",
            "--lr",
            3e-3,
            "--clip-norm",
            5.0,
            "--max-tokens",
            100,
            "--no-epoch-checkpoints",
            "--reallocation",
            "paper",
            "--reallocation-interval",
            10,
            "--log-prob-threshold",
            -5,
            "--save-dir",
            folder,
            *more,
            CUDA_VISIBLE_DEVICES=devices,
        )

    train(tmp_path / "start", "--max-update", "1")
    start = tmp_path / "start" / "checkpoint_last.pt"
    state = torch.load(start, weights_only=False)
    make_extreme(state["model"], scale=30.0)
    torch.save(state, start)
    end = ("--max-update", "500", "--finetune-from-model", start)
    log = train(tmp_path / "run", *flags.split(), *end)
    assert re.findall(r"num_updates (\d+)", log)[-1] == "500"
    assert len(re.findall(r"reallocation after \d+ updates", log)) > 5
    final = torch.load(tmp_path / "run" / "checkpoint_last.pt", weights_only=False)
    assert_finite(final["model"], final["last_optimizer_state"]["state"])
