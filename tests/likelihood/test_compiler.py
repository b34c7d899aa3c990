"""Compiled passes are compiled at first use where the package has none, and only run if safe."""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fairseq_kerbs.likelihood import kerbs_log_probs
from fairseq_kerbs.likelihood.backends import compiler, cpu


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder of the test's own, and a package without a compiled library."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(cpu, "__file__", str(tmp_path / "cpu.py"))
    monkeypatch.delenv("CC", raising=False)
    cpu.library.cache_clear()
    yield tmp_path / "cache" / "fairseq_kerbs"
    cpu.library.cache_clear()


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Sources that are compiled at once."""
    folder = tmp_path / "csrc"
    folder.mkdir()
    (folder / "flags").write_text((compiler.CSRC / "flags").read_text())
    (folder / "passes.c").write_text("int answer(void) { return 42; }\n")
    monkeypatch.setattr(compiler, "CSRC", folder)
    return folder


def counting_compiler(folder: Path) -> Path:
    """A compiler that leaves a line for every call, and takes its time."""
    script = folder / "my cc"
    script.write_text(f"#!/bin/sh\necho called >> '{folder}/calls'\nsleep 0.3\nexec cc \"$@\"\n")
    script.chmod(0o755)
    return script


def test_passes_are_compiled_once_and_compute(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    inputs = torch.randn(5, 4), torch.randn(9, 4), torch.randn(9), torch.arange(9) % 4
    assert cpu.enabled()
    found = kerbs_log_probs(*inputs, vocab_size=4)
    (path,) = cache.glob("*.so")
    assert caplog.text.count(str(path)) == 1
    assert cache.stat().st_mode & 0o777 == path.stat().st_mode & 0o777 == 0o700
    monkeypatch.setenv("FAIRSEQ_KERBS_FUSED", "0")
    torch.testing.assert_close(found, kerbs_log_probs(*inputs, vocab_size=4))
    # the next process finds it, and needs no compiler
    monkeypatch.setenv("FAIRSEQ_KERBS_FUSED", "1")
    monkeypatch.setenv("CC", "no-such-compiler")
    cpu.library.cache_clear()
    again = cpu.library()
    assert again is not None
    assert again.path == path


@pytest.mark.usefixtures("small")
def test_processes_that_start_together_compile_once(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", f"'{counting_compiler(tmp_path)}'")
    start = multiprocessing.get_context("fork").Process
    processes = [start(target=compiler.cached_library) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert (tmp_path / "calls").read_text() == "called\n"
    (path,) = cache.glob("*.so")
    assert ctypes.CDLL(str(path)).answer() == 42
    assert not list(cache.glob(".partial*"))


def test_other_sources_and_flags_are_another_library(small: Path) -> None:
    paths = {compiler.cached_library()}
    (small / "passes.c").write_text("int answer(void) { return 43; }\n")
    paths.add(compiler.cached_library())
    (small / "flags").write_text("-O1")
    paths.add(compiler.cached_library())
    assert len(paths) == 3


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("no-such-compiler -m64", "(no C compiler no-such-compiler -m64)"),
        ("false", "exit status 1"),
        ("cc -include no-such-header.h", "no-such-header.h"),
        ("true", "No such file"),
    ],
)
@pytest.mark.usefixtures("small")
def test_a_broken_compiler_leaves_the_work_to_torch(
    command: str,
    said: str,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("CC", command)
    assert not cpu.enabled()
    assert not cpu.enabled()
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "compiled passes are not there" in record.message
    assert said in record.message
    assert not list(cache.glob("*passes*"))


@pytest.mark.usefixtures("small")
def test_no_compiler_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not cpu.enabled()
    assert "(no C compiler)" in caplog.text


@pytest.mark.usefixtures("small")
def test_a_cache_that_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert not cpu.enabled()
    assert str(tmp_path / "file") in caplog.text


@pytest.mark.parametrize("kind", ["folder", "file", "owner"])
@pytest.mark.usefixtures("small")
def test_what_others_could_have_written_is_not_run(
    kind: str, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = compiler.cached_library()
    if kind == "owner":
        monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    else:
        (cache if kind == "folder" else path).chmod(0o770)
    with pytest.raises(PermissionError, match="somebody else"):
        compiler.cached_library()
    assert not cpu.enabled()
    assert "compiled passes are not there" in caplog.text


@pytest.mark.usefixtures("small")
def test_nothing_is_compiled_into_a_folder_of_others(cache: Path) -> None:
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    with pytest.raises(PermissionError, match="somebody else"):
        compiler.cached_library()
    assert not list(cache.glob("*passes*"))


def test_a_damaged_library_of_the_package_is_said_and_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "_passes.so").write_text("not a library")
    assert cpu.enabled()
    assert "cannot be used" in caplog.text


def test_passes_that_are_not_wanted_are_not_compiled(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRSEQ_KERBS_FUSED", "0")
    assert not cpu.enabled()
    assert not cache.exists()


def test_a_relative_cache_folder_is_ignored(
    tmp_path: Path, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert compiler.cached_library().parent == tmp_path / ".cache" / "fairseq_kerbs"
