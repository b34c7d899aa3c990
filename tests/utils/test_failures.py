"""What a failed program leaves: its error, and the words of the lines in fairseq that failed."""

import sys
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fairseq_kerbs.utils import failures
from fairseq_kerbs.utils.failures import (
    FAILURE,
    REPORTS,
    Failure,
    failure_of,
    read_failure,
    report_failures,
)
from tests.helpers.cli import Capsys, Patch


def failed(error: Exception) -> Failure:
    try:
        raise error
    except Exception as raised:
        return failure_of(raised, traceback.format_exc())


def within_fairseq(folder: Path, code: str, **names: Any) -> Failure:
    """The failure of code that lies in a folder of fairseq's name."""
    file = folder / "fairseq" / "part.py"
    file.parent.mkdir()
    file.write_text(code)
    try:
        exec(compile(code, str(file), "exec"), names)
    except Exception as raised:
        return failure_of(raised, traceback.format_exc())
    raise AssertionError


CODE = """
def outer():
    unrelated = 1
    inner(cfg.outer_flag)

def inner(value):
    if cfg.print_step:
        if value:
            print("I", {}["steps"])
    else:
        pass

outer()
"""


def test_lines_with_their_conditions_the_innermost_first(tmp_path: Path) -> None:
    cfg = SimpleNamespace(outer_flag=True, print_step=True)
    found = within_fairseq(tmp_path, CODE, cfg=cfg)
    assert found.error == "KeyError: 'steps'"
    assert found.at_start
    assert not found.of_system
    sentence, inner, outer, _ = found.places
    assert sentence == ["steps"]
    assert inner == ["part", "print", "i", "steps", "cfg", "print_step", "value"]
    assert outer == ["part", "inner", "cfg", "outer_flag"]
    assert found.text.startswith("Traceback")


def test_another_branch_is_no_condition(tmp_path: Path) -> None:
    code = "if cfg.quiet:\n    pass\nelse:\n    {}[1]\n"
    found = within_fairseq(tmp_path, code, cfg=SimpleNamespace(quiet=False))
    assert found.places == [["1"], ["part", "1"]]


def test_a_batch_that_was_being_computed(tmp_path: Path) -> None:
    """The first one is the start, too."""
    step = "def train_step():\n    {}[1]\n"
    loop = "def train():\n    i = {}\n    train_step()\ntrain()\n"
    for number, at_start in ((1, False), (0, True)):
        folder = tmp_path / str(number)
        folder.mkdir()
        found = within_fairseq(folder, step + loop.replace("{}", str(number)))
        assert found.at_start == at_start


def test_after_an_update_it_is_not_the_start(tmp_path: Path, monkeypatch: Patch) -> None:
    """Such as the first batch of the second epoch, or a checkpoint that cannot be written."""
    monkeypatch.setenv(failures.REPORTS, str(tmp_path))
    monkeypatch.setattr(failures, "_noted", False)
    (tmp_path / "before").mkdir()
    assert within_fairseq(tmp_path / "before", "{}[1]\n").at_start
    failures.note_update()
    (tmp_path / "after").mkdir()
    assert not within_fairseq(tmp_path / "after", "{}[1]\n").at_start


def test_a_report_that_was_not_written_to_its_end_is_none(tmp_path: Path) -> None:
    for content in ("", "{", "[1]", '{"error": 1}'):
        (tmp_path / failures.FAILURE).write_text(content)
        assert failures.read_failure(tmp_path) is None


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (ValueError("a\n b"), "ValueError: a"),
        (RuntimeError("Errors in loading:\n\tMissing key"), "RuntimeError: Missing key"),
        (ValueError("x" * 400), f"ValueError: {'x' * 287}…"),
        (AssertionError(), "AssertionError: raise error"),
        (
            RuntimeError("process 0\nTraceback (most recent call last):\n  File\nOSError: full"),
            "OSError: full",
        ),
    ],
)
def test_the_sentence(error: Exception, sentence: str) -> None:
    assert failed(error).error == sentence


def test_words_of_flags() -> None:
    words = failed(ValueError("--fp16-adam-stats needs FusedAdamV1")).places[0]
    assert words == ["fp16_adam_stats", "fp16", "adam", "stats", "needs", "fusedadamv1"]


@pytest.mark.parametrize(
    ("error", "of_system"),
    [
        (MemoryError(), True),
        (RuntimeError("CUDA out of memory. Tried to"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (OSError(28, "No space left on device"), True),
        (RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"), True),
        (RuntimeError("DataLoader worker (pid 3) is killed by signal: Killed."), True),
        (FloatingPointError("Minimum loss scale reached (0.0001)."), True),
        (FileNotFoundError(2, "No such file"), False),
        (IsADirectoryError(21, "Is a directory"), False),
        (OSError("of another library"), False),
        (ValueError("x"), False),
    ],
)
def test_failures_of_the_system(error: Exception, of_system: bool) -> None:
    assert failed(error).of_system == of_system


def test_the_traceback_is_replaced_by_a_file(
    tmp_path: Path, monkeypatch: Patch, capsys: Capsys
) -> None:
    """Without a command of ours, and where the file cannot be written, Python prints it."""
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    monkeypatch.delenv(REPORTS, raising=False)
    report_failures()
    assert sys.excepthook is sys.__excepthook__
    assert read_failure(tmp_path) is None

    def end_with(error: BaseException) -> str:
        sys.excepthook(type(error), error, None)
        return capsys.readouterr().err

    monkeypatch.setenv(REPORTS, str(tmp_path))
    report_failures()
    assert end_with(ValueError("why")) == ""
    found = read_failure(tmp_path)
    assert found is not None
    assert found.error == "ValueError: why"
    (tmp_path / FAILURE).unlink()
    assert end_with(KeyboardInterrupt()) == "KeyboardInterrupt\n"
    assert read_failure(tmp_path) is None
    monkeypatch.setenv(REPORTS, str(tmp_path / "absent"))
    report_failures()
    assert end_with(ValueError("why")) == "ValueError: why\n"
