"""What the commands say of a program of fairseq's that fails: one sentence, and the flag."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairseq_kerbs.cli.failures import flags_to_blame, say_failure
from fairseq_kerbs.programs import TRAIN, read_call
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.failures import Failure
from tests.helpers.cli import Capsys, Patch, kerbs

TRAINING = (
    "arch: lstm_kerbs, hidden-size: 6, embed-dim: 4, criterion: kerbs_cross_entropy, "
    "optimizer: adam, max-tokens: 400, max-update: 1, cpu: true, num-workers: 0"
)


@pytest.fixture(scope="module")
def folder(tiny_work: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration, and the model of a training by it."""
    made = tmp_path_factory.mktemp("failures")
    (made / "tiny.yaml").write_text(f"train: {{{TRAINING}}}\ngenerate: {{beam: 2, cpu: true}}\n")
    (made / "save").mkdir()
    shutil.copy(tiny_work / "model.pt", made / "save" / "checkpoint_best.pt")
    (made / "save" / "checkpoint_last.pt").touch()
    return made


FAILING = {
    "generate --print-step": "--print-step here (KeyError: 'steps')",
    "generate --retain-iter-history": "--retain-iter-history here (KeyError: 'history')",
    "generate --bpe bytes": "--bpe bytes here (MissingConfigException: ",
    "train --criterion hubert": "--criterion hubert here (KeyError: 'target_list')",
    "train --dataset-impl cached": "--dataset-impl cached here (AssertionError: ",
}
"""Commands that fail within fairseq, and whom the sentence blames."""


@pytest.fixture
def failing(folder: Path, tiny_work: Path, tmp_path: Path, capsys: Capsys) -> Callable[[str], str]:
    """Runs a command that fails, with SAVE_DIR ``save``; the last line of what it prints."""

    def run(command: str) -> str:
        name, *flags = command.split()
        save = tmp_path / "save"
        if name == "generate":
            shutil.copytree(folder / "save", save)
        said = kerbs(capsys, name, folder / "tiny.yaml", tiny_work / "bin", save, *flags, status=2)
        return said.splitlines()[-1]

    return run


@pytest.mark.slow
@pytest.mark.usefixtures("standing_in")
@pytest.mark.parametrize("command", FAILING)
def test_the_flag_is_named(command: str, failing: Callable[[str], str], tmp_path: Path) -> None:
    """Of several flags, the one that the failing lines read; the traceback is in a file."""
    save = tmp_path / "save"
    last = failing(command)
    expected = f"fairseq-kerbs: error: fairseq-{command.split()[0]} cannot serve {FAILING[command]}"
    assert last.startswith(expected)
    assert last.endswith(f"leave it out, or give what it needs: see {save}/traceback.txt")
    assert "Traceback" in (save / "traceback.txt").read_text()


PERHAPS = {
    "generate --checkpoint-shard-count 2 --beam 1": "--checkpoint-shard-count",
    "train --task sentence_prediction --max-update 3": "--task sentence_prediction",
}
"""Commands that fail at the start where no line names a flag, and the only one that they have."""


@pytest.mark.slow
@pytest.mark.usefixtures("standing_in")
@pytest.mark.parametrize("command", PERHAPS)
def test_the_only_flag_is_perhaps_to_blame(
    command: str, failing: Callable[[str], str], tmp_path: Path
) -> None:
    where = tmp_path / "save" / "traceback.txt"
    assert failing(command).endswith(f", perhaps by {PERHAPS[command]}; see {where}")


@pytest.mark.slow
@pytest.mark.usefixtures("standing_in")
def test_translate_says_it_alone(
    folder: Path, tiny_work: Path, monkeypatch: Patch, capsys: Capsys
) -> None:
    record = {"source_lang": "de", "target_lang": "en", "bpe": "none", "escape": False}
    record |= {"lowercase": False, "source_moses": None, "target_moses": None}
    shutil.copytree(tiny_work / "bin", folder / "bin")
    (folder / "preparation.json").write_text(json.dumps(record))
    monkeypatch.setattr(
        "fairseq_kerbs.cli.generate.read_lines", lambda _: ["das haus"], raising=True
    )
    words = ["translate", folder / "tiny.yaml", folder / "bin", folder / "save", "--print-step"]
    said = kerbs(capsys, *words, status=2).splitlines()
    assert [line for line in said if "limit" not in line and "thread" not in line] == [
        "fairseq-kerbs: error: fairseq-generate cannot serve --print-step here (KeyError: 'steps')"
        f"; leave it out, or give what it needs: see {folder}/save/traceback.txt"
    ]


def test_a_flag_of_two_parts_is_refused_before(
    folder: Path, tiny_work: Path, capsys: Capsys
) -> None:
    words = ["train", folder / "tiny.yaml", tiny_work / "bin", folder / "new", "--arch"]
    said = kerbs(capsys, *words, "transformer_kerbs", "--task", "denoising", status=2)
    assert said == (
        "fairseq-kerbs: error: --task denoising and --arch transformer_kerbs do not go together, "
        "as fairseq says (argument --max-source-positions: conflicting option string: "
        "--max-source-positions); leave one of them out\n"
    )


def call_with(*words: str, data: str = "data") -> Any:
    flags: dict[str, Any] = {"arch": "lstm_kerbs", "optimizer": "adam", "lr": "1", "dropout": "0"}
    return read_call(TRAIN, data, flags, words)


def failure(*places: str, of_system: bool = False, at_start: bool = False) -> Failure:
    return Failure(
        "KeyError: 'x'", of_system, at_start, [place.split() for place in places], "text"
    )


def test_which_flags_are_to_blame() -> None:
    call = call_with("--patience", "3", "--clip-norm", "1", "--max-update", "5")
    assert flags_to_blame(call, failure("a b", "clip_norm", "patience")) == ["--clip-norm"]
    assert flags_to_blame(call, failure("", "patience clip_norm")) == ["--clip-norm", "--patience"]
    # the configuration's, and a part that it chooses
    assert flags_to_blame(call, failure("", "dropout", "adam")) == ["--dropout"]
    assert flags_to_blame(call, failure("", "fairseqadam")) == ["--optimizer adam"]
    # what every line could name is to blame in the sentence alone
    assert flags_to_blame(call, failure("", "lr")) == []
    assert flags_to_blame(call, failure("lr")) == ["--lr"]
    assert flags_to_blame(call, failure("none")) == []
    assert flags_to_blame(call, failure("patience", of_system=True, at_start=True)) == []
    # a sentence may have the value alone
    named = call_with("--best-checkpoint-metric", "blue", "--patience", "3")
    assert flags_to_blame(named, failure("blue")) == ["--best-checkpoint-metric"]
    assert flags_to_blame(named, failure("", "blue")) == []


def test_the_folder_of_a_checkpoint_is_not_to_blame_for_it() -> None:
    """Of a checkpoint of another size in SAVE_DIR, the sentence has its path."""
    call = call_with("--save-dir", "runs", "--restore-file", "other")
    assert flags_to_blame(call, failure("checkpoint runs checkpoint_last pt")) == []
    assert flags_to_blame(call, failure("checkpoint other checkpoint_last pt")) == [
        "--restore-file"
    ]


def test_no_flag_is_to_blame(tmp_path: Path, capsys: Capsys) -> None:
    """The status stays 1; a traceback that cannot be written is printed."""
    call = call_with()
    assert say_failure(call, failure("none"), tmp_path / "save") == 1
    file = tmp_path / "save" / "traceback.txt"
    assert capsys.readouterr().err == (
        f"fairseq-kerbs: error: fairseq-train failed (KeyError: 'x'); see {file}\n"
    )
    assert file.read_text() == "text"
    assert say_failure(call, failure("none"), Path("/proc/x")) == 1
    said = capsys.readouterr().err
    assert said.startswith("text\nfairseq-kerbs: error: ")
    assert said.endswith("; see above\n")
    assert say_failure(call, failure("none", at_start=True), tmp_path) == 1


def test_a_full_disk_is_one_sentence(tmp_path: Path, capsys: Capsys) -> None:
    """Without a traceback, for which there is no place either."""
    full = replace(
        failure("no space left on device", of_system=True),
        error="OSError: [Errno 28] No space left on device: 'checkpoint_1_3.pt'",
    )
    assert say_failure(call_with(), full, tmp_path) == 1
    assert capsys.readouterr().err == (
        f"fairseq-kerbs: error: {tmp_path}: No space left on device; free some, remove "
        f"{tmp_path}/*.tmp, and give the same command again\n"
    )
    assert not list(tmp_path.iterdir())


def test_flags_that_may_be_to_blame(tmp_path: Path) -> None:
    """At the start those of the command line are, but for what nearly every command has."""
    both = call_with("--patience", "3", "--clip-norm", "1", "--max-update", "5")
    with pytest.raises(UserError, match="perhaps by one of --clip-norm, --patience; see"):
        say_failure(both, failure("none", at_start=True), tmp_path)
    one = call_with("--patience", "3", "--max-update", "5")
    with pytest.raises(UserError, match="perhaps by --patience; see"):
        say_failure(one, failure("none", at_start=True), tmp_path)
    assert say_failure(one, failure("none", of_system=True, at_start=True), tmp_path) == 1
    both = call_with("--patience", "3", "--clip-norm", "1")
    with pytest.raises(
        UserError, match=r"--clip-norm and --patience here .*; leave one of them out"
    ):
        say_failure(both, failure("patience clip_norm"), tmp_path)
