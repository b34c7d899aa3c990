"""The build of the fairseq wheel: edits, checks that stop it, the archive it starts from; and what
the installed one does that the release gets wrong."""

from __future__ import annotations

import hashlib
import io
import math
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import torch
from fairseq import options
from fairseq.dataclass.configs import FairseqConfig
from fairseq.ngram_repeat_block import NGramRepeatBlock
from fairseq.optim.amp_optimizer import AMPOptimizer
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from packaging.specifiers import SpecifierSet

WHEEL_FOLDER = Path(__file__).resolve().parents[2] / "scripts" / "fairseq_wheel"
sys.path.insert(0, str(WHEEL_FOLDER))

from fairseq_build import BuildError, sdist, toolchain  # noqa: E402
from fairseq_build.edits import EDITS, VERSION, Edit, _add_keyword, apply_edits  # noqa: E402


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("load(f)", "load(f, k=0)"),
        ("load(f,)", "load(f, k=0)"),
        ("load(g(1)(2), *a, x=(lambda s: (s))) + h(1)",
         "load(g(1)(2), *a, x=(lambda s: (s)), k=0) + h(1)"),
        ("load(\n    f,\n)", "load(\n    f, k=0\n)"),
        ("unload(f)", None),
        ("loads(f)", None),
    ],
)  # fmt: skip
def test_a_keyword_is_added(tmp_path: Path, before: str, after: str | None) -> None:
    (tmp_path / "a.py").write_text(before)
    apply_edits(tmp_path, [_add_keyword("*.py", int(after is not None), "load", "k=0")])
    assert (tmp_path / "a.py").read_text() == (after or before)


def test_places_are_counted_over_all_files(tmp_path: Path) -> None:
    names = ("a.py", "b.py", "c.txt")
    for name in names:
        (tmp_path / name).write_text("Ä = np.int\n")
    apply_edits(tmp_path, [Edit("*.py", 2, r"\bnp\.int$", "int")])
    assert [(tmp_path / name).read_text() for name in names] == [
        "Ä = int\n", "Ä = int\n", "Ä = np.int\n"
    ]  # fmt: skip


@pytest.mark.parametrize("places", [0, 2])
def test_a_wrong_number_of_places_stops_the_build(tmp_path: Path, places: int) -> None:
    (tmp_path / "a.py").write_text("x = np.int\n")
    with pytest.raises(BuildError, match=rf"'int' was found in 1 places instead of {places} in \*"):
        apply_edits(tmp_path, [Edit("*.py", places, "int", "int64")])


def test_every_edit_refuses_another_source(tmp_path: Path) -> None:
    for edit in EDITS:
        with pytest.raises(BuildError, match="was found in 0 places instead of"):
            apply_edits(tmp_path, [edit])


def archive(path: Path) -> str:
    """Write a source archive with one file and return its checksum."""
    content = b"pass\n"
    with tarfile.open(path, "w:gz") as tar:
        member = tarfile.TarInfo("fairseq-0.12.2/setup.py")
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_given_archive_is_checked_and_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = tmp_path / "mine.tar.gz"
    checksum = archive(given)
    monkeypatch.setenv("FAIRSEQ_SDIST", str(given))
    assert (sdist.unpacked_source(tmp_path, checksum) / "setup.py").read_text() == "pass\n"


def test_an_archive_with_another_checksum_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = tmp_path / "fairseq-0.12.2.tar.gz"
    checksum = archive(given)
    monkeypatch.setenv("FAIRSEQ_SDIST", str(given))
    with pytest.raises(BuildError) as error:
        sdist.unpacked_source(tmp_path)
    assert str(given) in str(error.value)
    assert checksum in str(error.value)
    assert sdist.SHA256 in str(error.value)


def test_a_given_archive_that_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAIRSEQ_SDIST", str(tmp_path / "absent"))
    with pytest.raises(BuildError, match=r"SDIST names .*absent, which is not a file"):
        sdist.unpacked_source(tmp_path)


def test_nested_pip_is_freed_of_the_outer_build(tmp_path: Path) -> None:
    outer = {
        "_PYPROJECT_HOOKS_BUILD_BACKEND": "fairseq_build.backend",
        "PIP_CONSTRAINT": "pins.txt",
        "PIP_REQUIRE_VIRTUALENV": "1",
        "PIP_INDEX_URL": "https://index.example/simple",
        "UV_DEFAULT_INDEX": "https://other.example/simple",
        "PYTHONPATH": "before",
        "HOME": "/home/user",
    }
    assert sdist.nested_pip_environment(outer, tmp_path) == {
        "PIP_INDEX_URL": "https://index.example/simple",
        "UV_DEFAULT_INDEX": "https://other.example/simple",
        "PYTHONPATH": f"{tmp_path}{os.pathsep}before",
        "HOME": "/home/user",
    }


def test_the_index_of_uv_serves_where_pip_has_none(tmp_path: Path) -> None:
    environment = sdist.nested_pip_environment({"UV_DEFAULT_INDEX": "https://u.example"}, tmp_path)
    assert environment["PIP_INDEX_URL"] == "https://u.example"


def test_a_failed_build_ends_with_one_sentence(tmp_path: Path) -> None:
    """The sentence of a refused archive is the last line, without a traceback."""
    given = tmp_path / "fairseq-0.12.2.tar.gz"
    archive(given)
    code = "from fairseq_build.backend import build_wheel; build_wheel('.')"
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(WHEEL_FOLDER), "FAIRSEQ_SDIST": str(given)},
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert result.stderr.splitlines()[-1].startswith(f"fairseq_wheel: {given} has the sha256 ")


def test_missing_tools_are_named_with_their_debian_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    monkeypatch.setenv("CXX", "true -pthread")
    missing = f"{tmp_path / 'Python.h'} is missing: install the Debian package python{version}-dev"
    assert toolchain.missing_tool() == missing
    (tmp_path / "Python.h").touch()
    assert toolchain.missing_tool() == ""
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    assert toolchain.missing_tool() == (
        "there is no C++ compiler (no-such-compiler): install the Debian package g++"
    )
    monkeypatch.setattr("fairseq_build.toolchain.NEWEST", (3, 0))
    assert f"is Python {version}: use Python 3.9 to 3.0" in toolchain.missing_tool()


def test_the_version_satisfies_the_plugin() -> None:
    assert VERSION in SpecifierSet("==0.12.2")
    assert VERSION != "0.12.2"


# --------------------------------------------------------------------------- the installed fairseq

PADDING, WORDS = 1, 7


def forbidden(words: list[int], size: int) -> set[int]:
    """Words that would end an n-gram that has occurred."""
    return {
        word
        for word in range(WORDS)
        if any([*words, word][-size:] == words[i : i + size] for i in range(len(words) - size + 1))
    }


@given(
    hypotheses=st.integers(0, 9).flatmap(
        lambda n: st.lists(
            st.lists(st.integers(3, 5), min_size=n, max_size=n), min_size=1, max_size=4
        )
    ),
    size=st.integers(1, 4),
)
def test_what_would_end_an_ngram_again_is_forbidden(hypotheses: list[list[int]], size: int) -> None:
    step = len(hypotheses[0])
    tokens = torch.tensor([[2, *words] + [PADDING] * (11 - step) for words in hypotheses])
    lprobs = torch.zeros(len(hypotheses), WORDS)
    found = NGramRepeatBlock(size)(tokens, lprobs, len(hypotheses), 1, step)
    for words, row in zip(hypotheses, found, strict=True):
        assert {word for word in range(WORDS) if row[word] == -math.inf} == forbidden(words, size)


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
