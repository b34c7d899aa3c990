"""The scripts around the commands, with stand-ins for all that they start, and the wheel."""

import shutil
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
import yaml

import fairseq_kerbs
from fairseq_kerbs.cli.commands import root
from fairseq_kerbs.configurations import CONFIGS
from tests.helpers.commands import ROOT, run_program

FAKE_PYTHON = r"""#!/usr/bin/env bash
# Stands for the commands of the package: what they print, and much that nobody wants to see.
[ "$1" = -m ] || exit 0
[ "$3" = senses ] || echo "much of $3"
case $3 in
  toy) echo "wrote text: 9 pairs" ;;
  train)
    echo "… | train_inner | epoch 001:  100 / 171 loss=8.3, nll_loss=8.2, num_updates=100, lr=1"
    echo "… | valid | epoch 001 | valid on 'valid' subset | loss 4.8 | ppl 9 | num_updates 171"
    echo "… | train_inner | epoch 002:  29 / 171 loss=5.6, nll_loss=5.5, num_updates=200, lr=1" ;;
  convert)
    echo "1.11 senses a word; 8% of the words with 40 contexts have several"
    echo "loss of split valid: 0.029 bits a token before, 0.029 after" ;;
  generate) echo "BLEU|nrefs:1 = 94.74" ;;
  senses) printf 'wrote x\nbank: 2 senses\n  bank#1\n\nbat: 3 senses\n\nword  n  gold\nall 26\n' ;;
esac
"""


def test_quickstart_shows_what_matters_and_logs_all(tmp_path: Path) -> None:
    """Also where an exported CDPATH leads to another folder of that name."""
    checkout = tmp_path / "a checkout"
    shutil.copytree(ROOT / "scripts", checkout / "scripts")
    (tmp_path / "scripts").mkdir()
    install = "echo much >>\"$INSTALL_LOG\"; echo '[install]'\n"
    (checkout / "scripts" / "install.sh").write_text(install)
    python = checkout / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(FAKE_PYTHON)
    python.chmod(0o755)
    said = run_program("bash", "scripts/quickstart.sh", cwd=checkout, CDPATH=str(tmp_path))
    folder = checkout / "quickstart"
    assert [line for line in said.splitlines() if not line.startswith("[quickstart] ")] == [
        "[install]",
        "much of toy",
        "wrote text: 9 pairs",
        "171 updates: validation loss 4.8",
        "200 updates: loss 5.6",
        "1.11 senses a word; 8% of the words with 40 contexts have several",
        "loss of split valid: 0.029 bits a token before, 0.029 after",
        "BLEU|nrefs:1 = 94.74",
        "bank: 2 senses",
        "  bank#1",
        "",
        "word  n  gold",
        "all 26",
        "",
    ]
    assert str(folder / "steps.log") in said.splitlines()[0]
    assert said.count("[quickstart] ") == 9
    logs = [(folder / name).read_text() for name in ("steps.log", "train.log", "senses.txt")]
    assert logs[0] == (
        "much\nmuch of toy\nwrote text: 9 pairs\nmuch of prepare\nmuch of convert\n"
        "1.11 senses a word; 8% of the words with 40 contexts have several\n"
        "loss of split valid: 0.029 bits a token before, 0.029 after\nmuch of generate\n"
        "BLEU|nrefs:1 = 94.74\n"
    )
    assert logs[1].startswith("much of train\n")
    assert "bat: 3 senses" in logs[2]

    link = tmp_path / "elsewhere"
    link.symlink_to("a checkout/scripts/generate.sh")
    assert "BLEU|nrefs:1 = 94.74\n" in run_program("bash", link, cwd=Path("/"))


def test_scripts_are_commands() -> None:
    paths = [path for path in (ROOT / "scripts").glob("*.sh") if "\nkerbs " in path.read_text()]
    for path in paths:
        command = path.stem.replace("_", "-").replace("prepare-parallel", "prepare")
        assert path.read_text().endswith(f'\nkerbs {command} "$@"\n')
        assert command in root.commands
    assert len(paths) == 10


def test_scripts_without_fairseq_say_what_to_run(tmp_path: Path) -> None:
    """A copy of the scripts without .venv, under a Python without fairseq."""
    scripts = shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in ("bash", "basename", "dirname", "readlink", "sed"):
        (tools / tool).symlink_to(f"/usr/bin/{tool}")
    python = tools / "python3"
    python.write_text(f'#!/bin/sh\nexec {sys.base_prefix}/bin/python3 -S "$@"\n')
    python.chmod(0o755)
    said = run_program(scripts / "train.sh", "x", cwd=tmp_path, status=1, PATH=str(tools))
    assert said == f"train.sh: no fairseq found; run {tmp_path}/scripts/install.sh first\n"


def git(folder: Path, *words: str) -> None:
    name = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    run_program("git", *name, *words, cwd=folder)


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A committed checkout that has only what 'release.sh --check' reads."""
    checkout = tmp_path / "a checkout"
    for name in ("scripts/release.sh", "scripts/environment.sh", "fairseq_kerbs/__init__.py"):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, checkout / name)
    for name in ("CITATION.cff", "CHANGELOG.md"):
        shutil.copy(ROOT / name, checkout / name)
    git(checkout, "init", "--quiet")
    git(checkout, "add", "--all")
    git(checkout, "commit", "--quiet", "--message", "all")
    return checkout


def check_of_release(checkout: Path, status: int = 0) -> str:
    return run_program("bash", "scripts/release.sh", "--check", cwd=checkout, status=status)


def test_a_commit_can_be_released(release: Path) -> None:
    said = check_of_release(release)
    date = yaml.safe_load((release / "CITATION.cff").read_text())["date-released"]
    assert said == f"[release] version {fairseq_kerbs.__version__} of {date} can be released\n"


@pytest.mark.parametrize(
    ("file", "before", "after", "said"),
    [
        ("CITATION.cff", "version: 0", "version: 9", "CITATION.cff has version 9"),
        ("CITATION.cff", 'released: "2', 'released: "1', "CHANGELOG.md has no heading '## "),
        ("CHANGELOG.md", "(2", "(1", "CHANGELOG.md has no heading '## "),
        ("CHANGELOG.md", "# Change", "# A change", "1 files differ from the commit, first CHANGE"),
    ],
)
def test_what_cannot_be_released_is_refused_in_one_sentence(
    release: Path, file: str, before: str, after: str, said: str
) -> None:
    path = release / file
    text = path.read_text()
    path.write_text(text.replace(before, after, 1))
    refusal = check_of_release(release, status=1)
    assert refusal.startswith(f"[release] {said}")
    assert refusal.count("\n") == 1


def test_a_file_that_is_not_committed_is_no_release(release: Path) -> None:
    (release / "notes.txt").write_text("mine")
    said = check_of_release(release, status=1)
    assert said.startswith("[release] 1 files differ from the commit, first notes.txt: commit")
    shutil.rmtree(release / ".git")
    said = check_of_release(release, status=1)
    assert said.endswith(" is no git checkout: a release is made from a commit\n")


@pytest.mark.slow
def test_an_installed_package_has_the_configurations_and_the_page(tmp_path: Path) -> None:
    source = tmp_path / "source"
    installed = tmp_path / "installed"
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
    code = (
        "import sys; from fairseq_kerbs.cli import main\n"
        "for name in sys.argv[1:]:\n"
        "    status = main(['train', name, '.', 'save', '--dry-run'])\n"
        "    print('status', status)\n"
    )
    said = run_program(
        sys.executable,
        "-P",
        "-c",
        code,
        "multi30k/lstm_kerbs",
        "configs/multi30k/lstm_kerbs.yaml",
        cwd=tmp_path,
        PYTHONPATH=str(installed),
    )
    parts = ("multi30k/lstm_kerbs.yaml", "multi30k/base.yaml", "base.yaml")
    files = ", ".join(f"{inside}/{name}" for name in parts)
    *printed, end = said.split("status 0\n")
    assert (len(printed), end) == (2, "")
    for shown in printed:
        assert shown.splitlines()[0] == f"# flags: {files}; command line"
        assert f"--user-dir {installed}/fairseq_kerbs " in shown
