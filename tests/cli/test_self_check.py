"""``fairseq-kerbs self-check`` on this machine, and what it says of errors."""

import re
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from fairseq_kerbs.cli import self_check
from fairseq_kerbs.evaluation.numerics import make_inputs
from fairseq_kerbs.kernels import KerbsKernel
from fairseq_kerbs.likelihood import compilation
from fairseq_kerbs.likelihood.logsumexp import LogSumExp
from tests.helpers.cli import Capsys, Patch, kerbs


@pytest.fixture(autouse=True)
def _small(monkeypatch: Patch) -> None:
    monkeypatch.setitem(self_check.SIZES["larger"], "vocab", 500)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    make_inputs.cache_clear()


def lines(shown: str) -> dict[str, tuple[str, str]]:
    """What was found and the verdict, by line."""
    found = re.findall(r"(.{40}) (.{42}) (.{13}) (ok|WRONG)$", shown, re.MULTILINE)
    return {what.strip(): (value.strip(), verdict) for what, value, _, verdict in found}


@pytest.mark.slow
@pytest.mark.usefixtures("standing_in")
def test_this_machine_is_in_order(capsys: Capsys) -> None:
    shown = kerbs(capsys, "self-check", "--quick")
    found = lines(shown)
    assert {verdict for _, verdict in found.values()} == {"ok"}
    assert found["likelihood, larger, bfloat16, eager"]
    assert re.search(r"[1-9]\d* senses moved", found["training, 20 updates"][0])
    assert found["training, 10 + 10 updates"][0].startswith("0 of ")
    assert shown.startswith("Python")
    assert shown.endswith("all is as it should be\n")
    assert "time: " not in shown


def test_a_wrong_gradient_is_named(monkeypatch: Patch, capsys: Capsys) -> None:
    for name in ("_train", "_resume"):
        monkeypatch.setattr(self_check, name, lambda *_, **__: self_check.Outcome(""))
    stock = KerbsKernel.partials

    def partials(*arguments: Any) -> Any:
        found = stock(*arguments)
        return found._replace(theta=1.001 * found.theta)

    monkeypatch.setattr(KerbsKernel, "partials", partials)
    shown = kerbs(capsys, "self-check", "--quick", status=1)
    found = lines(shown)
    for size in ("small", "larger"):
        assert found[f"likelihood, {size}, float32, eager"] == ("1.0e-03 of dθ", "WRONG")
    assert shown.endswith("WRONG: 2\n")  # float16 and bfloat16 round more coarsely


def test_an_error_is_a_line_and_the_others_follow(monkeypatch: Patch, capsys: Capsys) -> None:
    monkeypatch.setattr(self_check, "_train", mock.Mock(side_effect=RuntimeError("two\nlines")))
    for name in ("_likelihood", "_resume"):
        monkeypatch.setattr(self_check, name, lambda *_: self_check.Outcome(""))
    monkeypatch.setattr(self_check, "_time", lambda *_: self_check.Outcome("1 s"))
    shown = kerbs(capsys, "self-check", status=1)
    assert lines(shown)["training, 20 updates"] == ("RuntimeError: two lines", "WRONG")
    assert "training, 10 + 10" in shown
    assert len(re.findall("^time: .* 1 s", shown, re.MULTILINE)) == 1


def test_compiled_passes_are_compared(monkeypatch: Patch) -> None:
    """A wrong result of what is compiled is seen, and a compiler that fails."""
    inputs = {**self_check.SIZES["small"], "dtype": "float32", "device": "cpu", "seed": 1}
    monkeypatch.setenv(compilation.SWITCH, "0")
    assert self_check._likelihood(inputs, True).right is None
    monkeypatch.delenv(compilation.SWITCH)
    monkeypatch.setattr(compilation, "_works", True)
    monkeypatch.setattr(compilation, "_seconds", {})
    monkeypatch.setattr(compilation, "_compiled", lambda function: function)
    assert self_check._likelihood(inputs, True).right

    def doubled(function: Any) -> Any:
        if "logsumexp" not in str(function):
            return function
        return lambda logits: LogSumExp(torch.zeros_like(logits[0]), torch.zeros_like(logits[0]))

    monkeypatch.setattr(compilation, "_compiled", doubled)
    assert self_check._likelihood(inputs, True).right is False
    monkeypatch.setattr(compilation, "_seconds", {})
    monkeypatch.setattr(compilation, "_compiled", mock.Mock(side_effect=OSError("no compiler")))
    assert self_check._likelihood(inputs, True).value == "torch.compile failed"
    assert self_check._likelihood(inputs, True).right is None


@pytest.mark.parametrize("apart", [0.0, 1e-7])
def test_resuming_gives_the_same_bits(apart: float, monkeypatch: Patch, tmp_path: Path) -> None:
    def train(folder: Path, device: str, name: str, updates: int = 20) -> None:
        values = torch.ones(3, dtype=torch.float64) + apart * (name == "resumed")
        state = {"state": {0: {"exp_avg": values, "step": 20}}}
        (folder / name).mkdir(exist_ok=True)
        saved = {"model": {"x._float_tensor": torch.rand(1)}, "last_optimizer_state": state}
        torch.save(saved, folder / name / "checkpoint_last.pt")

    train(tmp_path, "cpu", "straight")
    monkeypatch.setattr(self_check, "_train", train)
    differ = int(apart > 0)
    assert self_check._resume(tmp_path, "cpu").right == (not differ)
    found = self_check._resume(tmp_path, "cuda")
    assert (found.right, found.value) == (True, f"{differ} of 1 tensors differ, by {apart:.1e}")
