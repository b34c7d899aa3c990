"""The scripts in unusual surroundings: an exported CDPATH, a checkout that was moved."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from fairseq_kerbs.utils import processes as host
from fairseq_kerbs.utils.errors import UserError

ROOT = Path(__file__).resolve().parents[2]


def copy_scripts(checkout: Path) -> Path:
    """A checkout of scripts alone."""
    checkout.mkdir(parents=True)
    shutil.copytree(ROOT / "scripts", checkout / "scripts")
    (checkout / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", checkout / ".ci" / "run")
    return checkout


def run(
    command: list[str], cwd: Path, status: int, **environment: str
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert done.returncode == status, done.stderr
    return done


def test_an_exported_cdpath_leads_no_script_astray(tmp_path: Path) -> None:
    """Started as scripts/NAME.sh, with a folder of that name elsewhere that CDPATH leads to."""
    checkout = copy_scripts(tmp_path / "checkout")
    other = copy_scripts(tmp_path / "other")
    for place in (checkout, other):
        (place / "scripts" / "install.sh").rename(place / "scripts" / "real.sh")
        (place / "scripts" / "install.sh").write_text(f"echo in {place}; exit 7\n")
    for script in (["scripts/test.sh"], [".ci/run"], ["scripts/quickstart.sh", "result"]):
        done = run(["bash", *script], checkout, 7, CDPATH=str(other))
        assert f"in {checkout}\n" in done.stdout
        assert str(other) not in done.stdout
    assert (checkout / "result").is_dir()
    (other / ".venv").mkdir()
    (other / ".venv" / "bin").mkdir()
    (other / ".venv" / "bin" / "activate").write_text("VIRTUAL_ENV=/elsewhere\n")
    done = run(["bash", "scripts/real.sh", "--python", "no-python"], checkout, 1, CDPATH=str(other))
    assert done.stderr == "[install] there is no program no-python\n"


@pytest.mark.parametrize("how", ["moved", "copied"])
def test_the_environment_of_a_moved_checkout_is_one_sentence(tmp_path: Path, how: str) -> None:
    old, new = copy_scripts(tmp_path / "old place"), tmp_path / "new place"
    venv.create(old / ".venv", symlinks=True, with_pip=False)
    run(["bash", "scripts/install.sh", "--python", "no-python"], old, 1)  # nothing wrong with it
    (shutil.move if how == "moved" else shutil.copytree)(old, new)
    before = sorted(new.rglob("*"))
    done = run(["bash", "scripts/install.sh", "--python", "no-python"], new, 1)
    assert done.stderr == (
        f"[install] .venv was made as {old}/.venv, and its programs do not run where it is now: "
        f"remove {new}/.venv and run scripts/install.sh again\n"
    )
    assert sorted(new.rglob("*")) == before


@pytest.mark.parametrize(
    "head", ["#!{}/bin/python3.11\n", "#!/bin/sh\n'''exec' \"{}/bin/python\" \"$0\"\n"]
)
def test_programs_of_a_moved_environment_are_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: str
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    (new / "bin").mkdir(parents=True)
    script = new / "bin" / "fairseq-train"
    monkeypatch.setattr(sys, "executable", str(new / "bin" / "python"))
    monkeypatch.setattr(sys, "prefix", str(new))
    for made in (old, None):
        script.write_text(head.format(old) + "import sys\n")
        with pytest.raises(
            UserError, match=f"{new} was made as {old}, .* remove it and run scripts"
        ):
            host.find_program("fairseq-train")
        if made is not None:
            (old / "bin").mkdir(parents=True)  # still there: the checkout was copied
    for right in (head.format(new), "#!/usr/bin/env python3\n", "\x7fELF"):
        script.write_text(right)
        assert host.find_program("fairseq-train") == str(script)
    (tmp_path / "link").symlink_to(new)
    script.write_text(head.format(tmp_path / "link"))
    assert host.find_program("fairseq-train") == str(script)
