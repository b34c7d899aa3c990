"""The figure of kernels, and what `fairseq-kerbs plot` does with a wrong file name."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch

from fairseq_kerbs.analysis.kernel_plots import distance_curves, kerbs_curves, plot_kernels
from fairseq_kerbs.cli import main


def test_curves_are_the_printed_kernels() -> None:
    distance, values, gradients = distance_curves()
    e, unit = torch.exp(-distance), torch.ones_like(distance)
    sine, cosine = torch.sin(distance), torch.cos(distance)
    expected = {
        "pow": (-distance, -unit),
        "log": (-torch.log(distance + 1), -1 / (distance + 1)),
        "rbf": (e, -e),
        "wav": (cosine * e, -(sine + cosine) * e),
    }
    assert set(values) == set(gradients) == set(expected)
    for name, (value, gradient) in expected.items():
        torch.testing.assert_close(values[name], value)
        torch.testing.assert_close(gradients[name], gradient)


def test_kerbs_curves_are_eq_9() -> None:
    cosine, curves = kerbs_curves()
    assert (cosine[0], cosine[-1]) == (-1.0, 1.0)
    torch.testing.assert_close(curves[0.0], cosine)
    for theta in (-2.0, 2.0):
        a = -theta / (2 * (math.exp(-theta) + theta - 1))
        torch.testing.assert_close(curves[theta], a * (torch.exp(-theta * cosine) - 1))


def test_panels_have_titles_names_and_lines_told_apart_in_grey() -> None:
    panels = plot_kernels().axes
    lines = [
        [line for line in axes.lines if not str(line.get_label()).startswith("_")]
        for axes in panels
    ]
    assert [len(one) for one in lines] == [4, 4, 3]
    for axes, drawn in zip(panels, lines, strict=True):
        assert axes.get_title()
        assert axes.get_xlabel()
        assert axes.get_ylabel()
        legend = axes.get_legend()
        assert legend is not None
        assert [text.get_text() for text in legend.get_texts()] == [
            line.get_label() for line in drawn
        ]
        for one, other in itertools.combinations(drawn, 2):
            # the style by name says "--" for every list of dashes
            assert getattr(one, "_dash_pattern") != getattr(other, "_dash_pattern")  # noqa: B009


@pytest.mark.parametrize(
    ("suffix", "start"), [(".png", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<?xml")]
)
def test_the_command_writes_the_same_file_each_time(
    tmp_path: Path, suffix: str, start: bytes
) -> None:
    paths = [tmp_path / "new" / f"{name}{suffix}" for name in ("one", "two")]
    for path in paths:
        assert main(["plot", "kernels", "-o", str(path)]) == 0
    assert paths[0].read_bytes().startswith(start)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert sorted(paths[0].parent.iterdir()) == paths  # no temporary file stays


def test_wrong_names_end_with_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.png").mkdir()
    for name, said in (
        ("kernels.jpg", ".png, .pdf, .svg"),
        ("kernels", ".png, .pdf, .svg"),
        ("file/kernels.png", "cannot be written"),
        ("folder.png", "cannot be written"),
    ):
        assert main(["plot", "kernels", "--output", str(tmp_path / name)]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"fairseq-kerbs: error: {tmp_path / name}")
        assert error.count("\n") == 1
        assert said in error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.png"]
