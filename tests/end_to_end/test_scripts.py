"""The scripts in unusual surroundings: an exported CDPATH, a checkout that was moved."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
import venv
from pathlib import Path

import pytest

from tests.helpers import HANGS

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


FAKE_PYTHON = r"""#!/usr/bin/env bash
# Stands for the commands of the package: what they print, and much that nobody wants to see.
[ "$1" = -m ] || exit 0
[ "$3" = senses ] || echo "much of $3"
[ "$3" != "${FAILS:-}" ] || { echo "the reason" >&2; exit 3; }
case $3 in
  toy) echo "wrote text: 9 pairs" ;;
  train)
    echo "… | train_inner | epoch 001:  100 / 171 loss=8.3, nll_loss=8.2, num_updates=100, lr=1"
    echo "… | valid | epoch 001 | valid on 'valid' subset | loss 4.8 | ppl 9 | num_updates 171"
    echo "… | train_inner | epoch 002:  29 / 171 loss=5.6, nll_loss=5.5, num_updates=200, lr=1"
    [ -z "${WAITS:-}" ] || { echo $$ >"$WAITS"; exec sleep 300; } ;;
  generate) echo "BLEU|nrefs:1 = 94.74" ;;
  senses) printf 'wrote x\nbank: 2 senses\n  bank#1\n\nbat: 3 senses\n\nword  n  gold\nall 26\n' ;;
esac
"""


@pytest.fixture
def fake_checkout(tmp_path: Path) -> Path:
    """A checkout with all that quickstart.sh starts in its place."""
    checkout = copy_scripts(tmp_path / "a checkout")
    install = "echo much >>\"$INSTALL_LOG\"; echo '[install]'\n"
    (checkout / "scripts" / "install.sh").write_text(install)
    python = checkout / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(FAKE_PYTHON)
    python.chmod(0o755)
    return checkout


def test_quickstart_shows_what_matters_and_logs_all(fake_checkout: Path, tmp_path: Path) -> None:
    done = run(["bash", str(fake_checkout / "scripts" / "quickstart.sh")], tmp_path, 0)
    folder = fake_checkout / "quickstart"
    lines = [line for line in done.stdout.splitlines() if not line.startswith("[quickstart] ")]
    assert lines == [
        *("[install]", "much of toy", "wrote text: 9 pairs", "171 updates: validation loss 4.8"),
        *("200 updates: loss 5.6", "BLEU|nrefs:1 = 94.74", "bank: 2 senses", "  bank#1", ""),
        *("word  n  gold", "all 26", ""),
    ]
    assert str(folder / "steps.log") in done.stdout.splitlines()[0]
    assert done.stdout.count("[quickstart] ") == 8
    logs = [(folder / name).read_text() for name in ("steps.log", "train.log", "senses.txt")]
    assert logs[0] == (
        "much\nmuch of toy\nwrote text: 9 pairs\nmuch of prepare\nmuch of generate\n"
        "BLEU|nrefs:1 = 94.74\n"
    )
    assert logs[1].startswith("much of train\n")
    assert "bat: 3 senses" in logs[2]
    assert done.stderr == ""


@pytest.mark.parametrize("whole_group", [False, True])
def test_quickstart_is_stopped_with_all_that_it_has_started(
    fake_checkout: Path, tmp_path: Path, whole_group: bool
) -> None:
    waits = tmp_path / "waits"
    with subprocess.Popen(
        ["bash", str(fake_checkout / "scripts" / "quickstart.sh")],
        env={**os.environ, "WAITS": str(waits)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # a shell's background jobs inherit that SIGINT is ignored
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as script:
        deadline = time.monotonic() + HANGS
        while not (waits.exists() and waits.read_text()) and time.monotonic() < deadline:
            time.sleep(0.05)
        (os.killpg if whole_group else os.kill)(script.pid, signal.SIGINT)
        _, error = script.communicate(timeout=HANGS)
    assert script.returncode == 130
    assert error == "[quickstart] interrupted; run the same command again to go on from step 4/6\n"
    assert not Path("/proc", waits.read_text().strip()).exists()
