"""Commands that only read a model run nothing of a checkpoint, and find what is damaged."""

import argparse
import copy
import functools
import io
import os
import pickle
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder

from fairseq_kerbs.checkpoints.reading import SAFE_MODELS, read_checkpoint
from fairseq_kerbs.cli import main
from fairseq_kerbs.utils.errors import UserError
from tests.helpers import softmax_checkpoints as softmax
from tests.helpers.cli import Capsys, Folders, Patch, kerbs
from tests.helpers.fairseq_fixtures import dictionary

CASES = {name: softmax.CASES[name] for name in SAFE_MODELS} | {
    "transformer_kerbs": f"{softmax.TRANSLATION} --arch transformer_kerbs {softmax.TINY}",
    "lstm_kerbs": f"{softmax.TRANSLATION} --arch lstm_kerbs --hidden-size 12 --embed-dim 8",
    "bilstm_lm_kerbs": f"{softmax.LANGUAGE_MODEL} --self-target --arch bilstm_lm_kerbs "
    "--hidden-size 12 --embed-dim 8",
}


class Code:
    """A pickle of this makes a folder when it is loaded."""

    def __init__(self, made: Path) -> None:
        self.made = made

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.made),)


@pytest.fixture(scope="module")
def data(tmp_path_factory: Folders) -> Path:
    """Folders ``translation`` and ``language_modeling`` with a test split."""
    folder = tmp_path_factory.mktemp("data")
    _write_split(folder / "translation", "test.de-en.de", "dict.de.txt", softmax.SOURCE_WORDS)
    _write_split(folder / "translation", "test.de-en.en", "dict.en.txt", softmax.WORDS)
    _write_split(folder / "language_modeling", "test", "dict.txt", softmax.WORDS)
    return folder


def _write_split(folder: Path, name: str, dictionary_name: str, entries: int) -> None:
    folder.mkdir(exist_ok=True)
    words = dictionary(entries)
    words.save(str(folder / dictionary_name))
    builder = MMapIndexedDatasetBuilder(str(folder / f"{name}.bin"))
    for line in range(6):
        text = " ".join(f"w{(line * 5 + word) % (entries - 4)}" for word in range(9))
        builder.add_item(words.encode_line(text, add_if_not_exist=False).int())
    builder.finalize(str(folder / f"{name}.idx"))


@functools.cache
def written(name: str) -> bytes:
    content = io.BytesIO()
    softmax.write_softmax(content, CASES[name])
    return content.getvalue()


class Checkpoint:
    """A checkpoint of one architecture, written with other settings."""

    def __init__(self, name: str, folder: Path) -> None:
        self.path = folder / f"{name}.pt"
        self.ours = name.endswith("kerbs")
        self.path.write_bytes(written(name))
        self.state = torch.load(self.path, weights_only=False)
        self.kind = "language_modeling" if "language_modeling" in CASES[name] else "translation"

    def write(self, place: str = "model", **settings: Any) -> None:
        state = self.state | {"cfg": copy.deepcopy(self.state["cfg"])}
        held = state["cfg"][place] if place else state
        (held if isinstance(held, dict) else vars(held)).update(settings)
        torch.save(state, self.path)

    def commands(self, data: Path, out: Path) -> dict[str, list[object]]:
        """Every command that reads such a model, with its data and with a dictionary alone."""
        folder = ["--data", data / self.kind]
        names = {"translation": "dict.en.txt", "language_modeling": "dict.txt"}
        dictionary = ["--dict", data / self.kind / names[self.kind]]
        found: dict[str, list[object]] = {
            "neighbours": ["neighbours", self.path, *folder, "--least", 1],
            "vectors": ["neighbours", self.path, *dictionary, "--least", 1],
            "convert": ["convert", self.path, "-o", out / "converted.pt"],
        }
        if self.ours:
            found |= {
                "senses": ["senses", self.path, *folder, "--split", "test"],
                "report": ["report", self.path, *dictionary, "-o", out / "report.html"],
                "plot": ["plot", "usage", self.path, *dictionary, "-o", out / "usage.svg"],
            }
        return found


@pytest.fixture
def evaluating(monkeypatch: Patch) -> list[str]:
    """fairseq as released: its readers of settings evaluate them; what was evaluated."""
    evaluated: list[str] = []

    def evaluate(text: str) -> Any:
        evaluated.append(text)
        return eval(text)

    for name, module in [*sys.modules.items()]:
        if name.startswith("fairseq."):
            monkeypatch.setattr(module, "read_literal", evaluate, raising=False)
            monkeypatch.setattr(module, "eval", evaluate, raising=False)
    return evaluated


@pytest.mark.parametrize("name", CASES)
def test_no_setting_runs_a_program(
    name: str, data: Path, evaluating: list[str], tmp_path: Path, capsys: Capsys
) -> None:
    """Each setting as an expression, alone for all commands, and within what fairseq expects."""
    checkpoint = Checkpoint(name, tmp_path)
    made = tmp_path / "made"
    evaluating.clear()
    code = f"__import__('os').mkdir({str(made)!r})"
    for form in (code, f"[{code}]", f"{{'a': {code}}}", [code], f"[1 for _ in [{code}]]"):
        for place, setting in (("model", "decoder_attention"), ("task", "eval_bleu_args")):
            checkpoint.write(place, **{setting: form})
            commands = [*checkpoint.commands(data, tmp_path).values()]
            for command in commands if form == code else commands[:1]:
                assert f"setting {setting} =" in kerbs(capsys, *command, status=2)
    assert not made.exists()
    assert not evaluating


@pytest.mark.parametrize("name", CASES)
def test_a_model_is_read(name: str, data: Path, evaluating: list[str], tmp_path: Path) -> None:
    """Also where it was trained with vectors from a file: they are in the checkpoint."""
    checkpoint = Checkpoint(name, tmp_path)
    vectors = {"encoder_embed_path": "absent"} if checkpoint.kind == "translation" else {}
    checkpoint.state["cfg"]["optimizer"]["adam_betas"] = "(0.9, 0.98)"
    checkpoint.state["cfg"]["checkpoint"]["save_dir"] = "my models (old)"
    checkpoint.state["extra_state"]["counts"] = [np.array([4, 3]), np.float64(0.5), np.int64(7)]
    checkpoint.write(**vectors)
    for what, command in checkpoint.commands(data, tmp_path).items():
        refused = what == "convert" and checkpoint.ours  # is converted already
        assert main([*map(str, command)]) == (2 if refused else 0), what
    assert all("(" not in text for text in evaluating)


@pytest.mark.parametrize(
    ("place", "settings", "says"),
    [
        ("model", {"_name": "fconv"}, "architecture 'fconv'"),
        ("model", {"_name": [1]}, "architecture"),
        ("task", {"_name": "translation_moe"}, "task 'translation_moe'"),
        ("task", {"task": "denoising"}, "task 'denoising'"),
        ("model", {"encoder": [["${oc.create:{embed_path: vectors}}"]]}, "setting encoder"),
        ("", {"model": {"a": 1}}, ""),
        ("", {"cfg": None}, ""),
        ("", {"cfg": "model: {_name: lstm}"}, ""),
        ("", {"cfg": {"model": argparse.Namespace(_name="lstm")}}, ""),
        ("", {"cfg": {"model": "lstm", "task": None}}, ""),
        ("", {"model": {"decoder.attention.input_proj.weight": torch.zeros(1)}}, ""),
    ],
    ids=str,
)
def test_what_is_not_known_and_no_whole_model_is_one_sentence(
    place: str, settings: dict[str, Any], says: str, data: Path, tmp_path: Path, capsys: Capsys
) -> None:
    checkpoint = Checkpoint("lstm", tmp_path)
    checkpoint.write(place, **settings)
    for name, command in checkpoint.commands(data, tmp_path).items():
        error = kerbs(capsys, *command, status=2)
        assert error.startswith(f"fairseq-kerbs: error: {checkpoint.path}")
        assert error.count("\n") == 1
        if place:
            # trust would not help to convert another architecture
            convertible = name != "convert" or not says.startswith("architecture")
            remedy = "--trust-checkpoint" if convertible else "take one of transformer, "
            assert all(part in error for part in (" has the ", says, remedy))


@pytest.mark.parametrize(
    ("name", "other", "says"),
    [
        (
            "lstm_kerbs",
            "language_modeling",
            "is a translation model, and --data .* of one language",
        ),
        ("bilstm_lm_kerbs", "translation", "is a language model, and .* of two languages"),
    ],
)
def test_data_of_another_task_are_refused(
    name: str, other: str, says: str, data: Path, tmp_path: Path, capsys: Capsys
) -> None:
    checkpoint = Checkpoint(name, tmp_path)
    checkpoint.write()
    for command in ("senses", "neighbours"):
        error = kerbs(
            capsys, command, checkpoint.path, "--data", data / other, "--split", "test", status=2
        )
        assert re.search(says, error)
        assert error.count("\n") == 1


def test_settings_of_an_old_fairseq_ask_for_trust(data: Path, tmp_path: Path) -> None:
    checkpoint = Checkpoint("lstm", tmp_path)
    args = softmax.arguments(CASES["lstm"])
    torch.save({**checkpoint.state, "cfg": None, "args": args}, checkpoint.path)
    command = checkpoint.commands(data, tmp_path)["neighbours"]
    assert main([*map(str, command)]) == 2
    assert main([*map(str, command), "--trust-checkpoint"]) == 0


@pytest.mark.parametrize("kind", ["torch", "torch before 1.6", "pickle 2", "pickle 4"])
def test_an_object_runs_nothing_unless_it_is_trusted(kind: str, data: Path, tmp_path: Path) -> None:
    checkpoint = Checkpoint("lstm_kerbs", tmp_path)
    made = tmp_path / "made"
    state = {**checkpoint.state, "extra": Code(made)}
    if kind.startswith("torch"):
        torch.save(state, checkpoint.path, _use_new_zipfile_serialization=kind == "torch")
    else:
        checkpoint.path.write_bytes(pickle.dumps(Code(made), protocol=int(kind[-1])))
    commands = checkpoint.commands(data, tmp_path)
    for command in commands.values():
        assert main([*map(str, command)]) == 2
        assert not made.exists()
    if kind.startswith("torch"):
        assert main([*map(str, commands["senses"]), "--trust-checkpoint"]) == 0
        assert made.exists()  # so the file would have run something


def test_parameters_must_be_finite(data: Path, tmp_path: Path, capsys: Capsys) -> None:
    for name in ("lstm_kerbs", "transformer"):
        checkpoint = Checkpoint(name, tmp_path)
        key = "decoder.output.weight" if checkpoint.ours else "decoder.layers.0.fc1.weight"
        for value in (float("nan"), float("inf")):
            checkpoint.state["model"][key].view(-1)[3] = value
            checkpoint.write()
            for command in checkpoint.commands(data, tmp_path).values():
                assert f"{key} holds NaN or infinity" in kerbs(capsys, *command, status=2)


def test_damage_is_found(tmp_path: Path) -> None:
    path = Checkpoint("lstm", tmp_path).path
    content = bytearray(path.read_bytes())
    weights = read_checkpoint(path)["model"]["decoder.fc_out.weight"].numpy().tobytes()
    middle = content.index(weights) + len(weights) // 2
    content[middle] ^= 1  # a single bit
    for wrong in (content, content[:-100], b"", b"text"):
        path.write_bytes(bytes(wrong))
        with pytest.raises(UserError, match="is no whole checkpoint"):
            read_checkpoint(path)
