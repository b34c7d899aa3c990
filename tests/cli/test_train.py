"""``fairseq-kerbs train``: its help, and the command that it runs."""

import functools
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fairseq_kerbs.configurations import CONFIGS
from fairseq_kerbs.models.config import FLAGS
from fairseq_kerbs.utils.processes import find_program
from tests.helpers.cli import Capsys, kerbs
from tests.helpers.commands import ROOT, run, run_forked


def test_train_help_has_every_flag_of_the_plugin_with_its_default() -> None:
    shown = run("fairseq-kerbs", "train", "--help")
    pattern = r"^  (--[a-z-]+)[^-]*?(?: |\n)(.*?)(?=\n  --|\n\n)"
    flags = dict(re.findall(pattern, shown, re.S | re.M))
    assert set(FLAGS.values()) - {"---name"} <= flags.keys()
    for flag, default in (("--total-senses", "3.0"), ("--reallocation", "paper")):
        assert flags[flag].rstrip().endswith(f"[{default}]")
    assert shown.count("\n  --kernel ") == 1
    assert re.search(r"--label-smoothing.*smoothing \[0\.0\]", shown, re.S)
    assert "multi30k/lstm_kerbs," in shown.split()
    assert shown.lower().count("usage:") == 1


def test_dry_run_prints_the_command_and_its_sources(tmp_path: Path, capsys: Capsys) -> None:
    """The command line is put over the configuration."""
    base = tmp_path / "base.yaml"
    base.write_text("train:\n  adam-betas: (0.9, 0.98)\n  lr: 1\n")
    config = tmp_path / "a.yaml"
    config.write_text("extends: base.yaml\ntrain: {reallocation-at: 0.5, total-senses: 1.25}\n")
    (tmp_path / "dict.en.txt").touch()
    arguments = ["train", config, tmp_path, "save dir", "--dry-run"]
    source, command = kerbs(capsys, *arguments, "--seed", 2).splitlines()
    assert source == f"# flags: {config}, {base}; command line"
    assert shlex.split(command) == [
        find_program("fairseq-train"),
        str(tmp_path),
        "--user-dir",
        str(ROOT / "fairseq_kerbs"),
        "--save-dir",
        "save dir",
        "--adam-betas",
        "(0.9, 0.98)",
        "--lr",
        "1",
        "--reallocation-at",
        "0.5",
        "--total-senses",
        "1.25",
        "--seed",
        "2",
    ]
    command = kerbs(capsys, *arguments, "--total-senses", 2).splitlines()[1]
    assert command.endswith(" --total-senses 2")
    assert command.count("--total-senses ") == 1
    assert kerbs(capsys, "generate", *arguments[1:]).endswith(" > 'save dir/generate-test.txt'\n")


TINY = (
    "train: {arch: lstm_kerbs, hidden-size: 6, embed-dim: 4, criterion: kerbs_cross_entropy, "
    "optimizer: adam, max-tokens: 400, max-update: 1, cpu: true, num-workers: 0}\n"
)


@pytest.mark.slow
def test_what_the_plugin_refuses_in_fairseq_is_status_2(tiny_work: Path, tmp_path: Path) -> None:
    """Python ends fairseq-train with 1, as for its failures."""
    config = tmp_path / "tiny.yaml"
    config.write_text(TINY)
    train = functools.partial(
        run_forked, "fairseq-kerbs", "train", config, tiny_work / "bin", tmp_path / "save"
    )
    train()
    before = (tmp_path / "save" / "checkpoint_last.pt").read_bytes()
    said = train("--max-update", 2, "--kernel", "kerbs_released", status=2)
    assert "was trained with --kernel kerbs, not kerbs_released: give --kernel kerbs." in said
    assert "Traceback" not in said
    assert (tmp_path / "save" / "checkpoint_last.pt").read_bytes() == before
    train("--max-update", 2, "--kernel", "kerbs")


@pytest.mark.slow
def test_what_fairseq_cannot_serve_is_one_sentence(tiny_work: Path, tmp_path: Path) -> None:
    """It names the flag. The traceback is in a file."""
    config = tmp_path / "tiny.yaml"
    config.write_text(TINY)
    save = tmp_path / "save"
    train = functools.partial(run_forked, "fairseq-kerbs", "train", config, tiny_work / "bin", save)
    said = train("--optimizer", "lamb", status=2)  # without apex
    assert said.splitlines()[-1] == (
        "fairseq-kerbs: error: fairseq-train cannot serve --optimizer lamb here (ImportError: "
        f"Please install apex to use LAMB optimizer); leave it out, or give what it "
        f"needs: see {save}/traceback.txt"
    )
    assert "Traceback" not in said
    written = (save / "traceback.txt").read_text()
    assert written.startswith("Traceback (most recent call last):\n")
    assert written.endswith("ImportError: Please install apex to use LAMB optimizer\n")


def test_a_damaged_checkpoint_is_refused_before_the_training(
    tiny_work: Path, tmp_path: Path, capsys: Capsys
) -> None:
    last = tmp_path / "checkpoint_last.pt"
    last.write_bytes(b"PK damaged")
    refused = kerbs(capsys, "train", "toy", tiny_work / "bin", tmp_path, "--dry-run", status=2)
    assert f"{last} is damaged; to go on from another" in refused


@pytest.mark.parametrize("file", ["train.de-en.de.bin", "train.de-en.de.idx", "valid.de-en.en.bin"])
@pytest.mark.parametrize("lost", [lambda path: path.unlink(), lambda path: path.write_bytes(b"")])
def test_a_split_without_one_of_its_files_is_refused_before_the_training(
    file: str, lost: Callable[[Path], object], tiny_work: Path, tmp_path: Path, capsys: Capsys
) -> None:
    data = shutil.copytree(tiny_work / "bin", tmp_path / "bin")
    lost(data / file)
    refused = kerbs(capsys, "train", "toy", data, tmp_path / "save", status=2)
    assert re.match(rf"fairseq-kerbs: error: {data / file} is (empty|missing)", refused)
    assert not (tmp_path / "save").exists()


def test_a_translation_needs_both_sides_of_a_split(
    tiny_work: Path, tmp_path: Path, capsys: Capsys
) -> None:
    data = shutil.copytree(tiny_work / "bin", tmp_path / "bin")
    for suffix in ("bin", "idx"):
        (data / f"valid.de-en.en.{suffix}").unlink()
    refused = kerbs(capsys, "train", "toy", data, tmp_path / "save", status=2)
    missing = data / "valid.de-en.en.idx"
    assert f"{missing} is missing, while valid has other files; copy it as well" in refused


def test_the_folder_of_a_training_is_the_argument(
    tiny_work: Path, tmp_path: Path, capsys: Capsys
) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("extends: [toy.yaml]\ntrain: {save-dir: elsewhere}\n")
    (tmp_path / "toy.yaml").symlink_to(CONFIGS / "toy.yaml")
    flag = ["--save-dir", "elsewhere"]
    for command in (
        ["toy", tiny_work / "bin", tmp_path, *flag],
        [own, tiny_work / "bin", tmp_path],
    ):
        refused = kerbs(capsys, "train", *command, "--dry-run", status=2)
        assert "--save-dir elsewhere: the folder is this command's argument SAVE_DIR" in refused
