"""The build of the fairseq wheel, and what the installed one does that the release gets wrong."""

import math
import os
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq import options
from fairseq.data.data_utils import get_buckets
from fairseq.data.huffman import (
    HuffmanCodeBuilder,
    HuffmanMMapIndexedDataset,
    HuffmanMMapIndexedDatasetBuilder,
)
from fairseq.dataclass.configs import FairseqConfig
from fairseq.ngram_repeat_block import NGramRepeatBlock
from fairseq.optim.amp_optimizer import AMPOptimizer
from fairseq.tasks.text_to_speech import save_figure_to_numpy
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from omegaconf import OmegaConf
from packaging.specifiers import SpecifierSet

from tests.helpers.cli import Patch
from tests.helpers.commands import ROOT, run, run_program
from tests.helpers.release_fixtures import tgz

WHEEL_FOLDER = ROOT / "scripts" / "fairseq_wheel"
sys.path.insert(0, str(WHEEL_FOLDER))

import fairseq_build  # noqa: E402
from fairseq_edits import EDITS, VERSION, BuildError, Edit, _add_keyword, apply_edits  # noqa: E402


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("load(f)", "load(f, k=0)"),
        ("load(f,)", "load(f, k=0)"),
        (
            "load(g(1)(2), *a, x=(lambda s: (s))) + h(1)",
            "load(g(1)(2), *a, x=(lambda s: (s)), k=0) + h(1)",
        ),
        ("load(\n    f,\n)", "load(\n    f, k=0\n)"),
        ("unload(f)", None),
        ("loads(f)", None),
    ],
)
def test_a_keyword_is_added(tmp_path: Path, before: str, after: str | None) -> None:
    (tmp_path / "a.py").write_text(before)
    apply_edits(tmp_path, [_add_keyword("*.py", int(after is not None), "load", "k=0")])
    assert (tmp_path / "a.py").read_text() == (after or before)


def test_places_are_counted_over_all_files(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a.py", "b.py", "c.txt")]
    for file in files:
        file.write_text("Ä = np.int\n")
    for places in (0, 1, 3):
        wrong = rf"'int' was found in 2 places instead of {places} in \*"
        with pytest.raises(BuildError, match=wrong):
            apply_edits(tmp_path, [Edit("*.py", places, "int", "int")])
    apply_edits(tmp_path, [Edit("*.py", 2, r"\bnp\.int$", "int")])
    assert [file.read_text() for file in files] == ["Ä = int\n", "Ä = int\n", "Ä = np.int\n"]


def test_edits_are_of_one_version(tmp_path: Path) -> None:
    """Which the plugin takes; each of them refuses another source."""
    assert VERSION in SpecifierSet("==0.12.2")
    assert VERSION != "0.12.2"
    for edit in EDITS:
        with pytest.raises(BuildError, match="was found in 0 places instead of"):
            apply_edits(tmp_path, [edit])


def test_a_given_archive_is_checked_and_unpacked(tmp_path: Path, monkeypatch: Patch) -> None:
    given = tmp_path / "mine.tar.gz"
    content = tgz({"fairseq-0.12.2/setup.py": b"pass\n"})
    monkeypatch.setenv("FAIRSEQ_SDIST", str(given))
    with pytest.raises(BuildError, match=r"SDIST names .*mine.tar.gz, which is not a file"):
        fairseq_build.unpacked_source(tmp_path)
    given.write_bytes(content)
    tree = fairseq_build.unpacked_source(tmp_path, sha256(content).hexdigest())
    assert (tree / "setup.py").read_text() == "pass\n"


def test_a_refused_archive_ends_the_build_with_one_sentence(tmp_path: Path) -> None:
    given = tmp_path / "fairseq-0.12.2.tar.gz"
    given.write_bytes(b"another")
    code = "import fairseq_build; fairseq_build.build_wheel('.')"
    env = {"PYTHONPATH": str(WHEEL_FOLDER), "FAIRSEQ_SDIST": str(given)}
    said = run_program(sys.executable, "-c", code, cwd=tmp_path, status=1, **env)
    assert "Traceback" not in said
    start = f"fairseq_wheel: {given} has the sha256 {sha256(b'another').hexdigest()} instead of "
    assert said.splitlines()[-1].startswith(f"{start}{fairseq_build.SHA256}")


def test_nested_pip_is_freed_of_the_outer_build() -> None:
    kept = {"PIP_INDEX_URL": "https://index.example", "UV_DEFAULT_INDEX": "https://uv.example"}
    outer = kept | {"_PYPROJECT_HOOKS_BUILD_BACKEND": "fairseq_build", "PIP_CONSTRAINT": "pins.txt"}
    outer |= {"PIP_REQUIRE_VIRTUALENV": "1", "PYTHONPATH": "before"}
    environment = fairseq_build.nested_pip_environment(outer, "stand-in")
    assert environment == kept | {"PYTHONPATH": f"stand-in{os.pathsep}before"}
    del outer["PIP_INDEX_URL"]
    environment = fairseq_build.nested_pip_environment(outer, "stand-in")
    assert environment["PIP_INDEX_URL"] == kept["UV_DEFAULT_INDEX"]


PADDING = 1
WORDS = 7


@given(st.data(), st.integers(0, 9), st.integers(1, 4))
def test_what_would_end_an_ngram_again_is_forbidden(data: Any, step: int, size: int) -> None:
    words = st.lists(st.integers(3, 5), min_size=step, max_size=step)
    hypotheses = data.draw(st.lists(words, min_size=1, max_size=4))
    tokens = torch.tensor([[2, *words] + [PADDING] * (11 - step) for words in hypotheses])
    lprobs = torch.zeros(len(hypotheses), WORDS)
    found = NGramRepeatBlock(size)(tokens, lprobs, len(hypotheses), 1, step)
    for words, row in zip(hypotheses, found, strict=True):
        met = [words[i : i + size] for i in range(len(words) - size + 1)]
        for word in range(WORDS):
            assert (row[word] == -math.inf) == ([*words, word][-size:] in met)


def test_amp_divides_gradients_by_the_scale_of_the_loss_once() -> None:
    """And not before clipping and again after it."""
    weight = torch.nn.Parameter(torch.ones(3))
    sgd = {"_name": "sgd", "momentum": 0.0, "weight_decay": 0.0, "lr": [0.5]}
    config = OmegaConf.create({"optimizer": sgd, "common": vars(FairseqConfig().common)})
    optimizer = AMPOptimizer.build_optimizer(config, [weight])
    optimizer._grad_scaler = torch.amp.GradScaler("cpu", init_scale=128.0)
    optimizer.backward((weight * torch.tensor([1.0, 2.0, 4.0])).sum())
    assert float(optimizer.clip_grad_norm(0.0)) == pytest.approx(21.0**0.5)
    optimizer.step()
    assert weight.tolist() == [0.5, 0.0, -1.0]


@pytest.mark.parametrize("flags", ["--bf16", "--memory-efficient-bf16", "--bf16 --tpu"])
def test_a_tpu_is_used_where_it_was_asked_for(flags: str) -> None:
    parser = options.get_training_parser()
    args = options.parse_args_and_arch(parser, ["DATA", "--arch", "lstm", *flags.split()])
    assert args.bf16
    assert args.tpu == ("--tpu" in flags)


def test_lengths_are_divided_into_buckets() -> None:
    """--num-batch-buckets: percentiles that are lengths of the data."""
    assert get_buckets([3, 1, 2, 9, 5], 2).tolist() == [3, 9]


def test_words_in_huffmans_code_are_read_again(tmp_path: Path) -> None:
    """--dataset-impl huffman, with padding of every length."""
    lines = [["a"] * count + ["b", "c"] for count in range(1, 20)]
    builder = HuffmanCodeBuilder()
    builder.add_symbols(*(word for line in lines for word in line))
    prefix = str(tmp_path / "data")
    with HuffmanMMapIndexedDatasetBuilder(prefix, builder.build_code()) as written:
        for line in lines:
            written.add_item(line)
    data = HuffmanMMapIndexedDataset(prefix)
    assert [[*data.get_symbols(index)] for index in range(len(data))] == lines


def test_a_figure_is_an_array_of_colours() -> None:
    """Of --task text_to_speech, for TensorBoard."""
    figure = Figure(figsize=(2, 1), dpi=10, facecolor="red")
    FigureCanvasAgg(figure).draw()
    pixels = save_figure_to_numpy(figure)
    assert (pixels.shape, pixels.dtype.name) == ((10, 20, 3), "uint8")
    assert pixels[0, 0].tolist() == [255, 0, 0]


def test_checkpoints_are_not_written_asynchronously_in_silence(data: Path, tmp_path: Path) -> None:
    said = run(
        "fairseq-train",
        data,
        "--save-async",
        "--arch",
        "lstm",
        "--optimizer",
        "sgd",
        "--max-tokens",
        "100",
        "--cpu",
        cwd=tmp_path,
        status=1,
    )
    assert said.splitlines()[-1].startswith("fairseq: error: --write-checkpoints-asynchronously")
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("not/there", "there is no folder {folder}/not/there; that of fairseq_kerbs is named in"),
        ("v1.0", "{folder}/v1.0: Python imports no folder with a dot in its name"),
        ("argparse", "because the corresponding module name (argparse) is not globally unique"),
    ],
)
def test_a_folder_that_cannot_be_a_plugin_is_refused(
    name: str, sentence: str, tmp_path: Path
) -> None:
    if "/" not in name:
        (tmp_path / name).mkdir()
    said = run("fairseq-train", "data", "--user-dir", name, cwd=tmp_path, status=1)
    assert sentence.format(folder=tmp_path) in said.splitlines()[-1]
    assert said.splitlines()[-1].startswith("fairseq: error: ")
    assert "Traceback" not in said
