"""The wheel of this package, away from its checkout."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from fairseq_kerbs.configurations import CONFIGS
from tests.helpers.commands import ROOT, run_program


@pytest.mark.slow
def test_an_installed_package_has_the_configurations_and_the_page(tmp_path: Path) -> None:
    source, installed = tmp_path / "source", tmp_path / "installed"
    source.mkdir()
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in ("configs", "fairseq_kerbs"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    build = "from setuptools import build_meta; build_meta.build_wheel('.')"
    run_program(sys.executable, "-c", build, cwd=source)
    (wheel,) = source.glob("*.whl")
    with ZipFile(wheel) as archive:
        archive.extractall(installed)
    assert (installed / "fairseq_kerbs" / "analysis" / "report.html").is_file()
    inside = installed / "fairseq_kerbs" / "configs"
    names = {path.relative_to(inside) for path in inside.rglob("*.yaml")}
    ours = {path.relative_to(CONFIGS) for path in CONFIGS.rglob("*.yaml")}
    assert names == {path for path in ours if path.parts[0] != "snakemake"}  # goes with scripts/
    (tmp_path / "dict.en.txt").touch()
    program = (sys.executable, "-P", "-m", "fairseq_kerbs.cli")
    for name in ("multi30k/lstm_kerbs", "configs/multi30k/lstm_kerbs.yaml"):
        command = (*program, "train", name, ".", "save", "--dry-run")
        said = run_program(*command, cwd=tmp_path, PYTHONPATH=str(installed))
        parts = ("multi30k/lstm_kerbs.yaml", "multi30k/base.yaml", "paper.yaml")
        files = ", ".join(f"{inside}/{name}" for name in parts)
        assert said.splitlines()[0] == f"# flags: {files}; command line"
        assert f"--user-dir {installed}/fairseq_kerbs " in said
