"""Wrong input to every command ends with one sentence, a non-zero exit and nothing half-written."""

from __future__ import annotations

import copy
import importlib
import io
import os
import pickle
import resource
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from fairseq_kerbs.checkpoints import read_checkpoint
from fairseq_kerbs.cli import main
from fairseq_kerbs.utils.errors import UserError
from tests.helpers import tiny_checkpoint
from tests.helpers.bad_input_table import (
    CONVERSION,
    CORPORA,
    EVALUATION,
    EXPERIMENTS,
    EXPORT,
    LACKING,
    LANGUAGE,
    MODEL,
    MODELS,
    PREPARE,
    SENSES,
    SUBCOMMANDS,
    TEXT,
    TRAINING,
    Misuse,
)

ROOT = Path(__file__).resolve().parents[2]
FILES = {
    "two": b"one two\nthree .\n",
    "generate-test.txt": b"one\n",
    "empty": b"",
    "empty.pt": b"",
    "pad": b"a <pad>\n",
    "bad.de": b"fine\nbad \xff\n",
    "bad.en": b"fine\nfine\n",
    "unequal.de": b"a\nb\n",
    "unequal.en": b"a\n",
    "none.de": b"",
    "none.en": b"",
    "blank.de": b"a\n\n",
    "blank.en": b"a\nb\n",
    "long.de": b"a " * 100_000 + b"\n",
    "long.en": b"a\n",
    "endless.de": b"a\n" + b"ab." * 400_000 + b"\n",
    "endless.en": b"a\nb\n",
    "cut.tgz": b"\x1f\x8b\x08",
    "text.pt": b"not a checkpoint\n",
    **{f"dialogs/dialogues_{part}.txt": b"a b\n" for part in ("train", "validation", "test")},
    **{
        f"endless_dialogs/dialogues_{part}.txt": b"a b __eou__\n"
        for part in ("train", "validation")
    },
    "endless_dialogs/dialogues_test.txt": b"ab." * 400_000 + b" __eou__ a __eou__\n",
    "good.yaml": b"train:\n  arch: lstm_kerbs\n",
    "key.yaml": b"trian:\n  arch: lstm_kerbs\n",
    "dashes.yaml": b"train:\n  --arch: lstm_kerbs\n",
    "cut.yaml": b"train:\n  adam-betas: [0.9\n",
    "bad.yaml": b"train: \xff\n",
    "code.yaml": b"train: !!python/object/apply:os.system ['touch ran']\n",
}
CHANGED = ("senses", "stock", "task", "turned", "nan", "negative")


def _settings(state: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {"cfg": {**state["cfg"], **changes}}


SPOILT: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "no_tensors": lambda state: {"model": {}},
    "numbers": lambda state: {"model": dict.fromkeys(state["model"], 1)},
    "bare": lambda state: {"cfg": {"model": state["cfg"]["model"]}},
    "no_task": lambda state: _settings(state, task=None),
    "no_settings": lambda state: _settings(state, model=None),
    "word": lambda state: _settings(state, model="lstm_kerbs"),
    "list_cfg": lambda state: {"cfg": [1]},
    "number": lambda state: {"cfg": None, "args": 5},
    "no_history": lambda state: {"optimizer_history": [], "extra_state": None},
    "part": lambda state: {"model": {"decoder.output.inventory.word_of_sense": torch.arange(9)}},
}
"""Checkpoints that lack what every one of fairseq-train has, by their names."""


class Code:
    """A pickle of this makes a file when it is loaded."""

    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {shlex.quote(str(self.made))}",)


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Toy data, a tiny model trained on it, and all kinds of broken files."""
    importlib.import_module("matplotlib.font_manager")  # its first time logs that it lists fonts
    folder = tiny_checkpoint.make_work(tmp_path_factory.mktemp("bad") / "work")
    for name, content in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
    _spoil_data(folder)
    _spoil_checkpoints(folder)
    return folder


def _spoil_data(folder: Path) -> None:
    for name in ("other_de", "other_en", "damaged", "long"):
        shutil.copytree(folder / "bin", folder / name)
    for language in ("de", "en"):
        with (folder / f"other_{language}" / f"dict.{language}.txt").open("a") as stream:
            stream.write("another 1\n")
        turned = shutil.copytree(folder / "bin", folder / f"turned_{language}")
        words = (turned / f"dict.{language}.txt").read_text().splitlines()
        words[:2] = words[1::-1]
        (turned / f"dict.{language}.txt").write_text("\n".join(words) + "\n")
    os.truncate(folder / "damaged" / "test.de-en.en.bin", 20)
    tiny_checkpoint.write_binary(folder / "long", "test", "en", ["a " * 100_000] * 6)


def _spoil_checkpoints(folder: Path) -> None:
    content = (folder / "model.pt").read_bytes()
    (folder / "cut.pt").write_bytes(content[: len(content) // 2])
    flipped = bytearray(content)
    flipped[len(content) * 3 // 4] ^= 255
    (folder / "flipped.pt").write_bytes(flipped)
    state = read_checkpoint(folder / "model.pt")
    weights = state["model"]["decoder.output.weight"].numpy().tobytes()
    flipped = bytearray(content)
    flipped[content.index(weights) + len(weights) // 2] ^= 1
    (folder / "bit.pt").write_bytes(flipped)
    spoilt = {name: copy.deepcopy(state) for name in CHANGED}
    spoilt["senses"]["cfg"]["model"].total_senses = 2.0
    vars(spoilt["stock"]["cfg"]["model"]).update(arch="lstm", _name="lstm")
    spoilt["task"]["cfg"]["task"]["_name"] = "translating"
    dictionaries = spoilt["turned"]["task_state"]["dictionaries"]
    number, _, digest = dictionaries["source"].partition(" ")
    dictionaries["source"] = f"{number} {digest[::-1]}"
    spoilt["nan"]["model"]["decoder.output.inventory.log_prob"][5] = float("nan")
    spoilt["negative"]["model"]["decoder.output.inventory.usage"][5] = -1.0
    for name, change in SPOILT.items():
        spoilt[name] = {**state, **change(state)}
    others = {"code": {**state, "extra": Code(folder / "ran")}, "list": [1]} | {
        "minimal": {"model": {}, "args": {}}
    }
    for name, value in {**spoilt, **others}.items():
        torch.save(value, folder / f"{name}.pt")


def run(command: str, work: Path, out: Path) -> tuple[Any, str]:
    """Exit status of a command run in this process, or the sentence that it is ended with."""
    program, *arguments = shlex.split(command.format(work=work, out=out))
    try:
        if program == "fairseq-train":
            tiny_checkpoint.fairseq_train(work / "bin", "--save-dir", out / "save", *arguments)
        elif program.startswith("fairseq-"):
            module = importlib.import_module(f"fairseq_cli.{program[8:].replace('-', '_')}")
            flags = ["--user-dir", str(ROOT / "fairseq_kerbs"), "--cpu", *arguments]
            argv = [program, str(work / "bin"), *flags]
            # what fairseq remarks on its own is not looked at
            with mock.patch.object(sys, "argv", argv), redirect_stderr(io.StringIO()):
                module.cli_main()
        else:
            return main([program, *arguments]), ""
    except SystemExit as ended:
        return (1, f"{ended.code}\n") if isinstance(ended.code, str) else (ended.code, "")
    return 0, ""


def files_below(folder: Path) -> set[str]:
    return {str(p.relative_to(folder)) for p in folder.rglob("*") if not p.is_dir()}


def sentences(stderr: str) -> list[str]:
    """Lines on standard error without argparse's usage in front."""
    # a warning of fairseq, which comes here where no test has set up its logging
    lines = [line for line in stderr.splitlines() if not line.startswith("Unable to access check")]
    if lines and lines[0].startswith("usage:"):
        return [line for line in lines[1:] if not line.startswith(" ")][-1:]
    return lines


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "file").write_text("a file\n")
    return tmp_path


@pytest.mark.parametrize(
    "misuse",
    [*CORPORA, *EXPERIMENTS, *EVALUATION, *MODELS, *LACKING, *CONVERSION, *TRAINING],
    ids=lambda misuse: misuse.command.replace("{", "").replace("}", "")[:90],
)
def test_one_sentence_and_nothing_half_written(
    misuse: Misuse, work: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files_below(work)
    capsys.readouterr()
    status, sentence = run(misuse.command, work, out)
    (line,) = sentences(capsys.readouterr().err + sentence)
    assert status not in (0, None)
    assert "error: " in line
    assert all(part in line for part in misuse.says), line
    assert files_below(out) - {"save/.lock"} == {"file", *misuse.left}
    assert files_below(work) == before


def test_the_table_is_about_every_command() -> None:
    table = [*CORPORA, *EXPERIMENTS, *EVALUATION, *MODELS, *LACKING, *CONVERSION, *TRAINING]
    assert {misuse.command.split()[0] for misuse in table} >= set(SUBCOMMANDS)


# --- pickles ------------------------------------------------------------------------------------


def _write_pickle(path: Path, kind: str, value: Any) -> None:
    if kind.startswith("torch"):
        torch.save(value, path, _use_new_zipfile_serialization=kind == "torch")
        return
    with path.open("wb") as stream:
        pickle.dump(value, stream, protocol=int(kind[-1]))


@pytest.mark.parametrize("kind", ["torch", "torch before 1.6", "pickle 2", "pickle 4"])
def test_a_foreign_pickle_runs_nothing_unless_it_is_trusted(
    kind: str, work: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, path = out / "made", out / "foreign.pt"
    state = read_checkpoint(work / "model.pt")
    _write_pickle(path, kind, {**state, "extra": Code(made)} if "torch" in kind else Code(made))
    command = f"{SENSES} {path}"
    assert run(command, work, out)[0] == 2
    assert "foreign.pt" in capsys.readouterr().err
    assert not made.exists()
    if kind.startswith("torch"):
        assert run(f"{command} --trust-checkpoint", work, out)[0] == 0
        assert made.exists()  # so the file would have run something


def test_all_that_fairseq_keeps_is_read_without_trust(work: Path, tmp_path: Path) -> None:
    state = read_checkpoint(work / "model.pt")
    # as in the meters of a training with --eval-bleu
    state["extra_state"]["counts"] = [np.array([4, 3]), np.float64(0.5), np.int64(7)]
    for kind in ("torch", "torch before 1.6"):
        _write_pickle(tmp_path / "again.pt", kind, state)
        again = read_checkpoint(tmp_path / "again.pt")
        assert again["extra_state"]["counts"][0].tolist() == [4, 3]
        assert vars(again["cfg"]["model"]) == vars(state["cfg"]["model"])
        assert all(torch.equal(again["model"][key], value) for key, value in state["model"].items())
    state["extra_state"]["counts"] = np.array([Code(tmp_path / "made")], dtype=object)
    torch.save(state, tmp_path / "objects.pt")
    with pytest.raises(UserError, match="holds more than tensors"):
        read_checkpoint(tmp_path / "objects.pt")
    assert not (tmp_path / "made").exists()


# --- places that cannot be written to -----------------------------------------------------------


@contextmanager
def full_disk(folder: Path) -> Iterator[str]:
    """A small file system without a free byte."""
    with mounted(folder):
        with (folder / "filler").open("wb", buffering=0) as stream:
            stream.write(bytes(1 << 20))
        yield "No space left on device"


@contextmanager
def read_only(folder: Path) -> Iterator[str]:
    """A file system that even root may not write to."""
    with mounted(folder):
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
        yield "Read-only file system"


@contextmanager
def limited(folder: Path) -> Iterator[str]:
    """A limit of no byte on every file, which works without the right to mount."""
    folder.mkdir()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield "File too large"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def mounted(folder: Path, size: str = "16k") -> Iterator[None]:
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no mount")
    if done.returncode != 0:
        pytest.skip(f"no file system can be mounted: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", folder], check=True)


WRITING = [
    "toy {out}/corpus",
    f"{PREPARE} {TEXT}",
    f"{LANGUAGE} --train {{work}}/two",
    "prepare-lm1b {work}/dialogs --dest {out}/dest --train 1 --valid 1 --test 1",
    "detokenize --lang en {work}/two --output {out}/text",
    "examples --source {work}/two --system a={work}/two --output {out}/examples",
    f"{EXPORT} --key {{out}}/key.json --items 1",
    f"{SENSES} {MODEL} --json {{out}}/report.json",
    f"{SENSES} {MODEL} --table {{out}}/table.csv",
    "plot kernels -o {out}/figure.svg",
]


@pytest.mark.parametrize("place", [full_disk, read_only, limited])
@pytest.mark.parametrize("command", WRITING, ids=lambda command: command.split()[0])
def test_a_place_that_cannot_be_written_to(
    command: str, place: Any, work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    capsys.readouterr()
    with place(out) as reason:
        before = files_below(out)
        status, _ = run(command, work, out)
        left = files_below(out) - before
    error = capsys.readouterr().err
    assert status == 2
    assert error.startswith("fairseq-kerbs: error: ")
    assert error.count("\n") == 1
    assert reason in error
    assert str(out) in error
    assert {Path(name).name for name in left} <= {".lock"}  # locks are empty


# --- processes of their own ---------------------------------------------------------------------


def test_nothing_but_the_sentence_is_printed(work: Path) -> None:
    """No logs and no warnings of fairseq and torch beside it."""
    command = ["senses", work / "model.pt", "--data", work / "other_de"]
    done = _run_into(subprocess.PIPE, *command)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"fairseq-kerbs: error: {work / 'model.pt'}: the checkpoint has")
    assert done.stderr.count("\n") == 1


def _run_into(stdout: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fairseq_kerbs.cli", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, stdout=stdout, stderr=subprocess.PIPE, text=True, env=environment, check=False
    )


def _lm_command(work: Path, out: Path) -> list[str]:
    return shlex.split(f"{LANGUAGE} --train {{work}}/two".format(work=work, out=out))


def test_a_reader_that_goes_away_is_no_error(work: Path, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = _run_into(writer, *_lm_command(work, tmp_path))
    finally:
        os.close(writer)
    assert done.stderr == ""
    assert done.returncode == 141  # what a shell says of a program that SIGPIPE ended
    assert not (tmp_path / "dest" / "bin").exists()


def test_full_standard_output_is_one_sentence(work: Path, tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    with open("/dev/full", "w") as full:
        done = _run_into(full.fileno(), *_lm_command(work, tmp_path))
    assert done.returncode == 2
    assert done.stderr.startswith("fairseq-kerbs: error: the output cannot be written (No space")
    assert done.stderr.count("\n") == 1
