"""Descriptions of the machine and the versions of a measurement."""

import subprocess
from pathlib import Path

import pytest

from fairseq_kerbs.utils.machine import revision_of


def git(folder: Path, *command: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    done = subprocess.run(
        ["git", "-C", str(folder), *who, *command], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_the_revision_is_that_of_the_files(tmp_path: Path) -> None:
    """A virtual environment inside of another project has not the revision of that project."""
    package = tmp_path / "package"
    environment = tmp_path / ".venv" / "package"
    for folder in (package, environment):
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
    assert revision_of(package) is None
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", "package")
    git(tmp_path, "commit", "--quiet", "--message", "one")
    assert revision_of(package) == git(tmp_path, "rev-parse", "HEAD")
    assert revision_of(environment) is None
    (package / "__init__.py").write_text("changed = True")
    assert revision_of(package) == git(tmp_path, "rev-parse", "HEAD") + "+changes"


def test_without_git_there_is_no_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert revision_of(tmp_path) is None
