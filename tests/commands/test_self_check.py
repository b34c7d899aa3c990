"""``fairseq-kerbs self-check`` finds nothing here, and names what is off."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fairseq_kerbs.cli import main
from fairseq_kerbs.commands import self_check
from fairseq_kerbs.likelihood import kerbs_nll


@pytest.mark.slow
def test_this_machine_is_as_it_should_be(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["self-check", "--quick"]) == 0, capsys.readouterr().out
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "all is as it should be"
    assert sum(line.endswith(" ok") for line in lines) >= 6  # eager, resumed; more with a compiler
    assert not any(line.startswith("time of") for line in lines)


def test_a_wrong_gradient_is_off(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(h: Any, *given: Any, **options: Any) -> Any:
        return kerbs_nll(h, *given, **options) + 0.01 * (h - h.detach()).sum()

    def likelihoods(device: str, *_: Any) -> Any:
        for size in ("small", "larger"):
            check = lambda size=size: self_check._check_likelihood(  # noqa: E731
                self_check.SIZES[size], "float32", device, False
            )
            yield size, check

    monkeypatch.setattr(self_check, "_checks", likelihoods)
    assert main(["self-check"]) == 0
    monkeypatch.setattr("fairseq_kerbs.likelihood.kerbs_nll", wrong)
    assert main(["self-check"]) == 1
    *_, small, larger, end = capsys.readouterr().out.splitlines()
    assert small.endswith("OFF")
    assert "of dh" in small
    assert larger.startswith("larger")
    assert end == "2 lines are OFF"


def test_an_error_is_a_line_and_not_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> Any:
        raise torch.OutOfMemoryError("no memory\non the card")

    monkeypatch.setattr(self_check, "_checks", lambda *_: [("first", fails), ("second", fails)])
    assert main(["self-check", "--quick"]) == 1
    first, second, end = capsys.readouterr().out.splitlines()
    assert first.startswith("first")
    assert "OutOfMemoryError: no memory" in second
    assert end == "2 lines are OFF"
