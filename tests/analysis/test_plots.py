"""Figures of senses and kernels, and the commands that draw them."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pandas import DataFrame
from pandas.testing import assert_frame_equal
from torch.utils.tensorboard import SummaryWriter

from fairseq_kerbs.analysis import plots
from fairseq_kerbs.analysis.projection import Projection
from fairseq_kerbs.checkpoints import load_layer
from fairseq_kerbs.training.curve import begins_after
from fairseq_kerbs.utils.errors import UserError
from tests.analysis.conftest import Trained
from tests.helpers.cli import Capsys, Reported, kerbs

HISTORY = DataFrame(
    {
        "words_with_1": [5.0, 4.0, 3.0],
        "words_with_2": [1.0, 2.0, 3.0],
        "senses_moved": [np.nan, 1.0, 0.0],
        "theta_q50": [0.0, -0.25, 1e-05],
    },
    index=[10, 20, 30],
)


@pytest.mark.parametrize("kind", ["simple", "epochs", "json", "json epochs"])
def test_history_from_a_log(tmp_path: Path, kind: str) -> None:
    lines = ["# noise"]
    name = "train" if "epochs" in kind else "train_inner"
    for update, row in HISTORY.iterrows():
        values = {key: f"{value:g}" for key, value in row.dropna().items()}
        values = {"epoch": "1", "loss": "9.8", "lr": "x", "num_updates": str(update), **values}
        if kind == "simple":
            text = ", ".join(f"{key}={value}" for key, value in values.items())
            lines.append(f"{update} | INFO | valid | epoch 001 | valid on 'x' | num_updates 15")
        elif kind == "epochs":
            text = " | ".join(f"{key} {value}" for key, value in values.items())
        else:
            start = "train_" if kind == "json epochs" else ""
            text = json.dumps({f"{start}{key}": value for key, value in values.items()})
        lines.append(f"2026-01-01 | INFO | {name} | {text}")
    lines += ["2026-01-01 | INFO | train_inner | {broken", ""]
    log = tmp_path / "train.log"
    log.write_text("\n".join(lines))
    assert_frame_equal(plots.read_history(log), HISTORY, check_like=True)


def test_history_from_tensorboard(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no statistics of senses"):
        plots.read_history(tmp_path)
    for kind in ("train", "train_inner"):  # the finer one counts
        with SummaryWriter(str(tmp_path / kind)) as writer:
            writer.add_scalar("loss", 1.0, 10)
            for name, values in HISTORY.items() if kind == "train_inner" else ():
                for update, value in values.dropna().items():
                    writer.add_scalar(str(name), value, update)
    assert_frame_equal(plots.read_history(tmp_path), HISTORY, check_like=True)


def test_history_of_three_steps(tmp_path: Path) -> None:
    """The third numbers its updates from 1 again."""
    log = tmp_path / "train.log"
    record = "2026 | INFO | train_inner | epoch 001: 1 / 9 nll_loss={}, num_updates={}{}"
    lines = [record.format(9, 10, ""), record.format(8, 20, ""), begins_after(20)]
    lines += [record.format(7, 5, ", words_with_1=3")]
    lines += [begins_after(20), record.format(6, 10, ", words_with_1=3")]  # resumed
    log.write_text("\n".join(lines))
    history = plots.read_history(log)
    assert history["nll_loss"].to_dict() == {10: 9, 20: 8, 25: 7, 30: 6}
    assert history["words_with_1"].dropna().to_dict() == {25: 3, 30: 3}
    titles = [axes.get_title() for axes in plots.plot_history(history).axes]
    assert titles == ["Words by number of senses, over training", "Training loss"]


def labelled(figure: Any) -> Any:
    """A figure, after it was drawn: a dollar sign is no mathematics."""
    figure.canvas.draw()
    for axes in figure.axes:
        assert all((axes.get_title(), axes.get_xlabel(), axes.get_ylabel()))
    return figure


def test_contexts_have_a_mark_for_each_sense(tmp_path: Path, capsys: Capsys) -> None:
    draw = np.random.default_rng(1)
    path = tmp_path / "figure.png"
    plane = Projection(draw.normal(size=(12, 2)), draw.normal(size=(4, 2)), ("first", "second"))
    names = ["Dollar 3", "", "Geld 2\nin US$", ""]
    (axes,) = labelled(plots.plot_contexts("US$", plane, np.array([0, 1, 2] * 4), names)).axes
    legend = [text.get_text() for text in axes.figure.legends[0].get_texts()]
    named = "US\\$#1 (4)\nDollar 3", "US\\$#2 (4)", "US\\$#3 (4)\nGeld 2\nin US\\$", "US\\$#4 (0)"
    assert legend == [*named]
    drawn = axes.collections[::3]
    for one, other in itertools.combinations(drawn, 2):  # told apart without colour
        shapes = [c.get_paths()[0].vertices.round(6).tolist() for c in (one, other)]
        filled = [len(c.get_facecolors()) for c in (one, other)]
        assert shapes[0] != shapes[1] or filled[0] != filled[1]
    np.testing.assert_allclose(drawn[1].get_offsets(), plane.contexts[1::3])
    plots.save_figure(plots.plot_contexts("草", plane, np.array([0, 1, 2] * 4), names), path)
    assert "the font has no letters" in capsys.readouterr().err


def test_theta_frequency_usage_and_history_show_their_data() -> None:
    theta = [[1.0, -1.0], [0.5]]
    shares = [[0.75, 0.25], [1.0]]
    (axes,) = labelled(plots.plot_theta([["a", "$b"]], [theta], [shares])).axes
    drawn = axes.collections
    points = [c.get_offsets().tolist()[0] for c in drawn if c.get_offsets().any()]
    assert points == [[0, 1.0], [0, -1.0], [1, 0.5]]
    lines = [c for c in drawn if hasattr(c, "get_segments")]
    means = [c.get_segments()[0][0][1] for c in lines if len({*c.get_segments()[0][:, 1]}) == 1]
    assert means.count(0.5) >= 2  # 0.75 − 0.25 of a, and b's only one
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["#1", "#2"]
    (axes,) = labelled(plots.plot_frequency([4, 1, 2, 3], [0, 5, 50, 500])).axes
    (line,) = axes.get_lines()
    np.testing.assert_allclose(line.get_xydata(), [[500, 3.0], [50, 2.0], [5, 1.0]])
    usage = torch.tensor([0.375, 0.125, 0.0, 0.2])
    owners = torch.tensor([0, 0, 1, 2])
    whole, within = labelled(plots.plot_usage(usage, owners)).axes
    assert "(1 never used)" in whole.get_title()
    assert sum(bar.get_height() for bar in whole.patches) == 3
    bars = {round(bar.get_x(), 2) for bar in within.patches if bar.get_height()}
    assert bars == {0.25, 0.75}  # of word 0; the other words have one sense
    figure = labelled(plots.plot_history(HISTORY))
    lines = [line for axes in figure.axes for line in axes.get_lines()]
    for line, name in zip(lines, HISTORY, strict=True):
        expected = HISTORY[name].dropna()
        assert [*map(list, line.get_data())] == [[*expected.index], [*expected]]
    assert lines[0].get_marker() != lines[1].get_marker()


def test_theta_of_sets_of_words(
    trained: Trained, monkeypatch: pytest.MonkeyPatch, reported: Reported
) -> None:
    """A panel for each set, in the order of the flags, with the same scale (Figure 3)."""
    drawn: list[Any] = []
    monkeypatch.setattr(plots, "save_figure", lambda figure, _: drawn.append(figure))
    sets = [["the", "a"], ["."]]
    given = "--dict", trained.data / "dict.en.txt", "--word", "the", "a", "--word", "."
    labels = "--label", "articles", "US$"
    _, report, rows = reported("plot", "theta", trained.kerbs, *given, *labels, "-o", "a.png")
    layer, dictionary, *_ = load_layer(trained.kerbs)
    expected: list[list[Any]] = []
    for number, words in enumerate(sets, start=1):
        for word in words:
            numbers = layer.word_of_sense.eq(dictionary.index(word)).nonzero()[:, 0].tolist()
            numbers.sort(key=lambda row: (-layer.usage[row].item(), row))
            total = layer.usage[numbers].sum().item()
            for sense, row in enumerate(numbers, start=1):
                share = layer.usage[row].item() / total
                expected.append([number, word, sense, layer.theta[row].item(), share])
    assert [[*row.values()][:3] for row in report] == [row[:3] for row in expected]
    values = [[row["theta"], row["share"]] for row in report]
    np.testing.assert_allclose(values, [row[3:] for row in expected], rtol=1e-6)
    assert [row["word"] for row in rows] == [row[1] for row in expected]
    figure = drawn[0]
    figure.canvas.draw()
    assert [axes.get_title() for axes in figure.axes] == ["articles", "US\\$"]
    assert "Kernel parameter" in figure.get_suptitle()
    for number, (axes, words) in enumerate(zip(figure.axes, sets, strict=True), start=1):
        assert [text.get_text() for text in axes.get_xticklabels()] == words
        assert axes.get_ylim() == figure.axes[0].get_ylim()
        marks = [c.get_offsets().tolist() for c in axes.collections]
        points = [offsets[0] for offsets in marks if offsets and offsets != [[0.0, 0.0]]]
        places = [[words.index(row[1]), row[3]] for row in expected if row[0] == number]
        np.testing.assert_allclose(points, places, rtol=1e-6)
    # without titles and with one set the title is that of the axes
    one = labelled(plots.plot_theta([["a"]], [[[1.0]]], [[[1.0]]]))
    assert one.get_suptitle() == ""
    assert "Kernel parameter" in one.axes[0].get_title()


def test_the_commands_draw(trained: Trained, tmp_path: Path, capsys: Capsys) -> None:
    checkpoint = trained.kerbs
    data = ("--data", trained.data)
    dictionary: Any = ("--dict", trained.data / "dict.en.txt")
    for kind, *flags in (
        ("contexts", checkpoint, *data, "--word", "the"),
        ("contexts", checkpoint, *data, "--word", "the", "--projection", "pca"),
        ("theta", checkpoint, *dictionary, "--word", "the", "a", "."),
        ("frequency", checkpoint, *data),
        ("usage", checkpoint),
        ("history", trained.log),
    ):
        path = tmp_path / f"{kind}.png"
        assert kerbs(capsys, "plot", kind, *flags, "-o", path).startswith(f"wrote {path}")
        assert path.read_bytes().startswith(b"\x89PNG")


def test_curves_are_the_printed_kernels() -> None:
    figure = labelled(plots.plot_kernels())
    values, gradients, kerbs = (
        {line.get_label().split(" (")[0]: line.get_xydata().T for line in axes.lines}
        for axes in figure.axes
    )
    for axes, count in zip(figure.axes, (4, 4, 3), strict=True):
        lines = [line for line in axes.lines if not line.get_label().startswith("_")]
        # told apart in grey: the style by name says "--" for every list of dashes
        assert len({str(line._dash_pattern) for line in lines}) == len(lines) == count
        assert len(axes.get_legend().get_texts()) == count
    distance = values["pow"][0]
    e = np.exp(-distance)
    expected = {
        "pow": (-distance, -np.ones_like(distance)),
        "log": (-np.log(distance + 1), -1 / (distance + 1)),
        "rbf": (e, -e),
        "wav": (np.cos(distance) * e, -(np.sin(distance) + np.cos(distance)) * e),
    }
    for name, (value, gradient) in expected.items():
        np.testing.assert_allclose(values[name], (distance, value), atol=1e-12)
        np.testing.assert_allclose(gradients[name], (distance, gradient), atol=1e-12)
    for theta, name in ((-2.0, "θ = −2"), (0.0, "θ = 0"), (2.0, "θ = 2")):
        cosine, value = kerbs[name]
        assert (cosine[0], cosine[-1]) == (-1.0, 1.0)
        a = -theta / (2 * (math.exp(-theta) + theta - 1)) if theta else 0.0
        eq_9 = a * (np.exp(-theta * cosine) - 1) if theta else cosine
        np.testing.assert_allclose(value, eq_9, atol=1e-6)


def test_the_command_writes_the_same_file_each_time(tmp_path: Path, capsys: Capsys) -> None:
    for suffix, start in (("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")):
        paths = [tmp_path / suffix / f"{name}.{suffix}" for name in ("one", "two")]
        for path in paths:
            kerbs(capsys, "plot", "kernels", "-o", path)
        assert paths[0].read_bytes().startswith(start)
        assert paths[0].read_bytes() == paths[1].read_bytes()
        assert sorted(paths[0].parent.iterdir()) == paths  # no temporary file stays
