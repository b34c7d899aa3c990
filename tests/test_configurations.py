"""Configurations to argument lists."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_kerbs import configurations
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.processes import PLUGIN_FOLDER


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def train(path: Path) -> list[str]:
    return configurations.flag_arguments(configurations.load_experiment(path).train)


def test_kinds_of_values(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "a.yaml",
        """
description: all kinds
train:
  arch: transformer_kerbs
  total-senses: 3.0
  lr: 5e-4
  seed: 010
  adam-betas: (0.9, 0.98)
  share-all-embeddings: true
  fp16: false
  restore-file: null
  patience:
  log-prob-threshold: -1e-5
  list: [a, 2, 1.50]
  eval-bleu-args: '{"beam": 5}'
  word: "true"
  flag: True
""",
    )
    assert train(path) == [
        "--arch", "transformer_kerbs",
        "--total-senses", "3.0",
        "--lr", "5e-4",
        "--seed", "010",
        "--adam-betas", "(0.9, 0.98)",
        "--share-all-embeddings",
        "--log-prob-threshold=-1e-5",
        "--list", "a", "2", "1.50",
        "--eval-bleu-args", '{"beam": 5}',
        "--word", "true",
        "--flag",
    ]  # fmt: skip


PLAIN = st.from_regex(r"[0-9a-zA-Z_.+]{1,12}", fullmatch=True)
SPECIAL = {"true", "false", "null"}


@settings(max_examples=40)
@given(PLAIN.filter(lambda text: text.lower() not in SPECIAL))
def test_plain_values_arrive_as_written(
    tmp_path_factory: pytest.TempPathFactory, value: str
) -> None:
    path = write(tmp_path_factory.mktemp("yaml"), "a.yaml", f"train:\n  key: {value}\n")
    assert train(path) == ["--key", value]


def test_extending_file_wins_and_may_take_away(tmp_path: Path) -> None:
    write(tmp_path, "base/root.yaml", "train:\n  lr: 1\n  cpu: true\ngenerate:\n  beam: 5\n")
    write(tmp_path, "base/more.yaml", "extends: root.yaml\ntrain:\n  lr: 2\n  clip-norm: 1.0\n")
    write(tmp_path, "other.yaml", "train:\n  clip-norm: 0.1\n")
    path = write(
        tmp_path,
        "a.yaml",
        "extends: [base/more.yaml, other.yaml]\ntrain:\n  cpu: false\n  seed: 3\n",
    )
    experiment = configurations.load_experiment(path)
    assert configurations.flag_arguments(experiment.train) == [
        "--lr", "2", "--clip-norm", "0.1", "--seed", "3",
    ]  # fmt: skip
    assert configurations.flag_arguments(experiment.generate) == ["--beam", "5"]
    assert [file.name for file in experiment.files] == [
        "a.yaml", "more.yaml", "root.yaml", "other.yaml",
    ]  # fmt: skip


def test_command_line_replaces_the_file() -> None:
    flags: configurations.Flags = {"lr": "1", "max-update": "10", "seed": "1"}
    extra = ["--lr", "2", "--max-update=20", "-s", "de"]
    assert configurations.program_arguments("data", flags, extra) == [
        "data", "--user-dir", str(PLUGIN_FOLDER), "--seed", "1", *extra,
    ]  # fmt: skip


def test_configurations_have_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "toy").mkdir()  # as 'fairseq-kerbs toy toy' would
    toy = configurations.CONFIGS / "toy.yaml"
    for name in ("toy", "toy.yaml", "configs/toy.yaml", str(toy)):
        assert configurations.find_configuration(Path(name)) == toy
    own = write(tmp_path, "toy.yaml", "train:\n  seed: 5\n")
    assert configurations.find_configuration(Path("toy.yaml")).samefile(own)
    names = configurations.configuration_names()
    for name in names:
        assert configurations.load_experiment(configurations.find_configuration(Path(name))).files
    assert {"toy", "multi30k/lstm_kerbs", "wikitext2/gru_kerbs"} <= set(names)
    assert not [name for name in names if "base" in name or name.startswith(("tables", "paper"))]
    for name, near in (("multi30k/lstm_krebs", "mean multi30k/lstm_kerbs"), ("x", "train --help")):
        with pytest.raises(UserError, match=f"{name}: no such file, .*{near}"):
            configurations.find_configuration(Path(name))


def test_plugin_folder_is_this_package() -> None:
    assert (PLUGIN_FOLDER / "configurations.py").samefile(configurations.__file__)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("trian:\n  lr: 1\n", r"a.yaml: unknown key 'trian'; the top level has extends"),
        ("train:\n  lr: 1\n  lr: 2\n", r"a.yaml, line 3: .*key 'lr' is there twice"),
        ("train:\n  a: 1\ntrain:\n  b: 1\n", r"a.yaml, line 3: .*key 'train' is there twice"),
        ("train:\n  --lr: 1\n", r"a.yaml: train: --lr: write the flag without leading dashes"),
        ("train:\n  a: {b: 1}\n", r"train: a must be one value or a plain list"),
        ("train:\n  a: [[1]]\n", r"train: a must be one value or a plain list"),
        ("train:\n  a: [true]\n", r"train: a must be one value or a plain list"),
        ("train: 3\n", r"a.yaml: train must hold flags"),
        ("- a\n- b\n", r"a.yaml: the top level must be keys"),
        ("train: [\n", r"a.yaml, line \d: not valid YAML: expected the node content"),
        ("train:\n\tlr: 1\n", r"a.yaml, line 2: not valid YAML"),
        ("a: 1\n---\nb: 2\n", r"a.yaml, line 2: not valid YAML"),
        ("train:\n  a: \x01\n", r"a.yaml: not valid YAML: unacceptable character"),
        ("train:\n  ? [a, b]\n  : 1\n", r"a.yaml, line 2: not valid YAML: found unhashable key"),
        ("extends: nowhere.yaml\n", r"nowhere.yaml: no such file"),
        ("extends: a.yaml\n", r"a.yaml extends itself"),
    ],
)
def test_mistakes_are_one_sentence_that_names_the_file(
    tmp_path: Path, text: str, message: str
) -> None:
    path = write(tmp_path, "a.yaml", text)
    with pytest.raises(UserError, match=message) as caught:
        configurations.load_experiment(path)
    assert "\n" not in str(caught.value)


def test_circle_of_files(tmp_path: Path) -> None:
    write(tmp_path, "a.yaml", "extends: b.yaml\n")
    write(tmp_path, "b.yaml", "extends: a.yaml\n")
    with pytest.raises(UserError, match=r"extends itself, by way of b\.yaml"):
        configurations.load_experiment(tmp_path / "a.yaml")


def test_empty_file_is_an_empty_experiment(tmp_path: Path) -> None:
    assert train(write(tmp_path, "a.yaml", "# nothing\n")) == []


def test_data_are_looked_for(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"does not exist or has no dict\.\*\.txt"):
        configurations.check_data(str(tmp_path))
    (tmp_path / "dict.en.txt").touch()
    configurations.check_data(str(tmp_path))
    with pytest.raises(UserError, match=r"nowhere does not exist or"):
        configurations.check_data(f"{tmp_path}:{tmp_path / 'nowhere'}")


def test_languages_of_data(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--target-lang"):
        configurations.language_pair(str(tmp_path))
    for language in ("de", "en"):
        (tmp_path / f"train.de-en.{language}.idx").touch()
    assert configurations.language_pair(str(tmp_path)) == ("de", "en")
