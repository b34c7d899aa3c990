"""Versions of Python and torch: which are refused, and what is asked of those that are older."""

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from fairseq_kerbs import torch_compat
from fairseq_kerbs.utils.errors import UserError
from tests.helpers.cli import Patch
from tests.helpers.commands import ROOT, run_program
from tests.helpers.tiny_checkpoint import ARCHITECTURE, FLAGS, binarized_corpus

# what extras of ours bring, fairseq does not, and torch does not import
FOREIGN = {
    "sklearn",
    "scipy",
    "sacremoses",
    "subword_nmt",
    "pooch",
    "matplotlib",
    "snowballstemmer",
    "pandas",
    "jsonschema",
    "snakemake",
}


def compat(monkeypatch: Patch, version: str) -> dict[str, Any]:
    """The module's names under another version of torch."""
    monkeypatch.setattr(torch, "__version__", version)
    return runpy.run_path(str(torch_compat.__file__))


def test_an_older_version_is_refused_in_one_sentence(monkeypatch: Patch) -> None:
    with pytest.raises(UserError, match=r"torch 1\.11 is older than 1\.12") as ended:
        compat(monkeypatch, "1.11.0+cu113")
    assert "\n" not in str(ended.value)
    monkeypatch.setattr(sys, "version_info", (3, 8, 18))
    with pytest.raises(UserError, match=r"Python 3\.8 is older than 3\.9"):
        compat(monkeypatch, "1.12.1")


@pytest.mark.parametrize("version", ["1.12.1", "1.13.1", "2.1.2", "2.5.1", "2.13.0"])
def test_the_dtype_of_autocast(monkeypatch: Patch, version: str) -> None:
    autocast_dtype = compat(monkeypatch, version)["autocast_dtype"]
    assert autocast_dtype("cpu") is None
    with torch.autocast("cpu", torch.bfloat16):
        assert autocast_dtype("cpu") == torch.bfloat16


@pytest.mark.parametrize(("version", "known"), [("1.12.1", 0), ("1.13.1", 1), ("2.1.2", 2)])
def test_options_of_load(monkeypatch: Patch, tmp_path: Path, version: str, known: int) -> None:
    given: dict[str, Any] = {}
    monkeypatch.setattr(torch, "load", lambda path, map_location, **options: given.update(options))
    compat(monkeypatch, version)["load"](tmp_path / "file", weights_only=False, mmap=True)
    assert set(given) == {*("weights_only", "mmap")[:known]}


def test_before_2_5_no_file_is_read_without_trust(monkeypatch: Patch, tmp_path: Path) -> None:
    torch.save({"model": {}}, path := tmp_path / "model.pt")
    with pytest.raises(UserError, match="--trust-checkpoint"):
        compat(monkeypatch, "2.4.1")["load_plain"](path, [])
    assert compat(monkeypatch, "2.5.1")["load_plain"](path, [(dict, "some.name")]) == {"model": {}}


@pytest.mark.slow
def test_training_needs_what_fairseq_brings(tmp_path: Path) -> None:
    data = binarized_corpus(tmp_path, {"train": 200, "valid": 6, "test": 6})
    code = "import sys; from fairseq_cli.train import cli_main; cli_main(); print(*sys.modules)"
    flags = ("--user-dir", ROOT / "fairseq_kerbs", "--save-dir", tmp_path / "save")
    placing = ("--reallocation", "clusters", "--reallocation-interval", 3, "--reallocation-at", 3)
    said = run_program(
        sys.executable,
        "-c",
        code,
        data,
        *FLAGS,
        *ARCHITECTURE,
        *flags,
        *placing,
        "--max-update",
        4,
        "--log-format",
        "simple",
        cwd=tmp_path,
        PYTHONPATH="",
    )
    assert "senses placed on clusters" in said
    loaded = {name.partition(".")[0] for name in said.splitlines()[-1].split()}
    assert {"fairseq_kerbs", "torch"} <= loaded
    assert loaded & FOREIGN == set()
