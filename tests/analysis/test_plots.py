"""Figures of senses: what they show, and the commands that draw them."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.tensorboard import SummaryWriter

from fairseq_kerbs.analysis import plots
from fairseq_kerbs.analysis.context_vectors import (
    context_vectors,
    discriminate,
    project,
    sense_numbers,
    sense_of,
)
from fairseq_kerbs.analysis.history import read_history
from fairseq_kerbs.analysis.occurrences import occurrences
from fairseq_kerbs.checkpoints import load_model_and_task
from fairseq_kerbs.cli import main
from fairseq_kerbs.utils.errors import UserError
from tests.analysis.conftest import Refused, Trained

SERIES = {
    "words_with_1": ([10, 20, 30], [5.0, 4.0, 3.0]),
    "words_with_2": ([10, 20, 30], [1.0, 2.0, 3.0]),
    "senses_moved": ([20, 30], [1.0, 0.0]),
    "theta_q50": ([10, 20, 30], [0.0, -0.25, 1e-05]),
}


# ------------------------------------------------------------------ context vectors


def test_projection_is_that_of_the_covariance() -> None:
    contexts = torch.randn(40, 7) * torch.tensor([3.0, 0.1, 1.5, 0.2, 0.1, 0.3, 0.2]) + 2
    senses = torch.randn(3, 7)
    plane = project(contexts, senses)
    values, axes = np.linalg.eigh(np.cov(contexts.double().numpy().T))
    for number in (0, 1):
        axis, value = axes[:, -1 - number], values[-1 - number]
        assert f"({value / values.sum():.0%}" in plane.axes[number]
        expected = (contexts.double().numpy() - contexts.double().mean(0).numpy()) @ axis
        found = plane.contexts[:, number].numpy()
        sign = np.sign(found @ expected)
        np.testing.assert_allclose(found, sign * expected, atol=1e-9)
        length = contexts.double().norm(dim=1).mean()
        scaled = torch.nn.functional.normalize(senses.double()) * length
        other = (scaled - contexts.double().mean(0)).numpy() @ axis
        np.testing.assert_allclose(plane.senses[:, number].numpy(), sign * other, atol=1e-9)


def test_projection_of_few_or_equal_contexts() -> None:
    with pytest.raises(ValueError, match="at least two"):
        project(torch.ones(1, 4), torch.ones(2, 4))
    for contexts in (torch.ones(5, 4), torch.ones(2, 1), torch.eye(2)):
        plane = project(contexts, torch.zeros(2, contexts.shape[1]))
        assert plane.contexts.shape == (len(contexts), 2)
        assert plane.contexts.isfinite().all()
        assert plane.senses.isfinite().all()


@pytest.mark.parametrize("senses", [2, 3, 4])
def test_discriminants_part_senses_that_the_widest_directions_do_not(senses: int) -> None:
    labels = torch.arange(40 * senses) % senses
    contexts = torch.randn(len(labels), 8) * torch.tensor([5.0, 5.0, *[0.3] * 6])
    contexts[:, 2:] += 3 * torch.eye(4, 6)[labels]
    plane = discriminate(contexts, labels, senses + 1)
    assert plane.contexts.mean(0).abs().max() < 1e-6
    assert plane.senses[senses].isnan().all()
    used = min(2, senses - 1)
    nearest = torch.cdist(plane.contexts[:, :used], plane.senses[:senses, :used]).argmin(1)
    assert (nearest == labels).double().mean() > (0.95 if senses < 4 else 0.7)
    drawn = project(contexts, contexts[:senses]).contexts
    means = torch.stack([drawn[labels == k].mean(0) for k in range(senses)])
    assert (torch.cdist(drawn, means).argmin(1) == labels).double().mean() < 0.7
    for few in (contexts[:1], contexts[labels == 0]):
        with pytest.raises(ValueError, match="at least two senses"):
            discriminate(few, torch.zeros(len(few), dtype=torch.long), senses)


def test_senses_of_contexts_are_those_of_the_likelihood(trained: Trained) -> None:
    model, task = load_model_and_task(trained.kerbs, trained.data)
    layer, dictionary = model.decoder.output, task.target_dictionary
    model.decoder.output.theta.data.normal_(std=4.0)
    found = list(occurrences(model, task, "test"))
    for word in ("the", "."):
        number = dictionary.index(word)
        own = sense_numbers(layer, number)
        vectors = context_vectors(model, task, "test", [number], 10**6)[number]
        expected = sorted(o.sense for o in found if o.word == word)
        assert sorted(own[slot] for slot in sense_of(layer, number, vectors).tolist()) == expected
        assert len(context_vectors(model, task, "test", [number], 7)[number]) == 7


# ------------------------------------------------------------------ histories


def _log(kind: str) -> str:
    lines = []
    for update in (10, 20, 30):
        values = {
            name: dict(zip(*series, strict=True))[update]
            for name, series in SERIES.items()
            if update in series[0]
        }
        head = "2026-01-01 00:00:00 | INFO | "
        if kind == "simple":
            pairs = ", ".join(f"{name}={value:g}" for name, value in values.items())
            lines.append(
                f"{head}train_inner | epoch 001: {update} / 90 loss=9.8, num_updates={update}, "
                f"{pairs}, wall=6"
            )
            lines.append(f"{head}valid | epoch 001 | valid on 'valid' subset | num_updates 15")
        elif kind == "epochs":
            pairs = " | ".join(f"{name} {value:g}" for name, value in values.items())
            lines.append(f"{head}train | epoch 001 | num_updates {update} | {pairs} | wall 9")
        else:
            inner = {"epoch": 1, "loss": "9.8", "lr": "x", "num_updates": str(update)}
            inner |= {name: f"{value:g}" for name, value in values.items()}
            if kind == "json epochs":
                inner = {f"train_{name}": value for name, value in inner.items()}
            name = "train" if kind == "json epochs" else "train_inner"
            lines.append(f"{head}{name} | {json.dumps(inner)}")
    return "\n".join(["# noise", *lines, f"{head}train_inner | " + "{broken", ""])


@pytest.mark.parametrize("kind", ["simple", "epochs", "json", "json epochs"])
def test_history_from_a_log(tmp_path: Path, kind: str) -> None:
    log = tmp_path / "train.log"
    log.write_text(_log(kind))
    assert read_history(log) == SERIES


def test_history_from_tensorboard(tmp_path: Path) -> None:
    for kind in ("train", "train_inner"):  # the finer one counts
        with SummaryWriter(str(tmp_path / kind)) as writer:
            writer.add_scalar("loss", 1.0, 10)
            writer.add_scalar("theta_q05", 1.0, 10)
            for name, points in SERIES.items() if kind == "train_inner" else ():
                for update, value in zip(*points, strict=True):
                    writer.add_scalar(name, value, update)
    found = read_history(tmp_path)
    assert found.pop("theta_q05") == ([10], [1.0])
    assert found.keys() == SERIES.keys()
    for name, (updates, values) in SERIES.items():
        assert found[name] == (updates, pytest.approx(values))


def test_files_without_figures_of_senses_are_refused(tmp_path: Path) -> None:
    (tmp_path / "other.log").write_text("train_inner | loss=3, num_updates=4\n")
    for path in (tmp_path / "other.log", tmp_path):
        with pytest.raises(UserError, match="no figures of senses"):
            read_history(path)
    with pytest.raises(UserError, match="no such file"):
        read_history(tmp_path / "absent.log")


# ------------------------------------------------------------------ figures


def labelled(figure: Any) -> None:
    for axes in figure.axes:
        assert axes.get_title()
        assert axes.get_xlabel()
        assert axes.get_ylabel()


def test_contexts_have_a_mark_for_each_sense() -> None:
    plane = project(torch.randn(12, 5), torch.randn(4, 5))
    names = ["Dollar 3", "", "Geld 2\nin US$", ""]
    figure: Any = plots.plot_contexts("US$", plane, torch.tensor([0, 1, 2] * 4), names)
    labelled(figure)
    (axes,) = figure.axes
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    named = "US\\$#1 (4)\nDollar 3", "US\\$#2 (4)", "US\\$#3 (4)\nGeld 2\nin US\\$", "US\\$#4 (0)"
    assert legend == [*named]
    drawn = axes.collections[::3]
    for one, other in itertools.combinations(drawn, 2):  # told apart without colour
        shapes = [c.get_paths()[0].vertices.round(6).tolist() for c in (one, other)]
        filled = [len(c.get_facecolors()) for c in (one, other)]
        assert shapes[0] != shapes[1] or filled[0] != filled[1]
    assert torch.tensor(drawn[1].get_offsets()).tolist() == plane.contexts[1::3].tolist()
    figure.canvas.draw()  # a dollar sign is no mathematics


def test_theta_shows_its_data() -> None:
    figure: Any = plots.plot_theta(["a", "$b"], [[1.0, -1.0], [0.5]], [[0.75, 0.25], [1.0]])
    labelled(figure)
    drawn = figure.axes[0].collections
    points = [c.get_offsets().tolist()[0] for c in drawn if c.get_offsets().any()]
    assert points == [[0, 1.0], [0, -1.0], [1, 0.5]]
    lines = [c for c in drawn if hasattr(c, "get_segments")]
    means = [c.get_segments()[0][0][1] for c in lines if len({*c.get_segments()[0][:, 1]}) == 1]
    assert means.count(0.5) >= 2  # 0.75 − 0.25 of a, and b's only one
    legend = figure.axes[0].get_legend().get_texts()
    assert [text.get_text() for text in legend] == ["#1", "#2"]


def test_frequency_usage_and_history_show_their_data() -> None:
    figure: Any = plots.plot_frequency([4, 1, 2, 3], [0, 5, 50, 500])
    labelled(figure)
    (line,) = figure.axes[0].get_lines()
    assert line.get_xydata().tolist() == [[500, 3.0], [50, 2.0], [5, 1.0]]
    usage, owners = torch.tensor([0.375, 0.125, 0.0, 0.2]), torch.tensor([0, 0, 1, 2])
    figure = plots.plot_usage(usage, owners)
    labelled(figure)
    assert "(1 never used)" in figure.axes[0].get_title()
    assert sum(bar.get_height() for bar in figure.axes[0].patches) == 3
    shares = {round(b.get_x(), 2) for b in figure.axes[1].patches if b.get_height()}
    assert shares == {0.25, 0.75}  # of word 0; the other words have one sense
    figure = plots.plot_history(SERIES)
    labelled(figure)
    lines = [axes.get_lines() for axes in figure.axes]
    drawn = [[tuple(map(list, line.get_data())) for line in own] for own in lines]
    assert [series for own in drawn for series in own] == [SERIES[name] for name in (
        "words_with_1", "words_with_2", "senses_moved", "theta_q50"
    )]  # fmt: skip
    assert len({line.get_marker() for line in lines[0]}) == 2
    figure.canvas.draw()


def test_the_commands_draw(
    trained: Trained, tmp_path: Path, refused: Refused, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint, data = str(trained.kerbs), str(trained.data)
    for command in (
        ["contexts", checkpoint, "--data", data, "--word", "the"],
        ["contexts", checkpoint, "--data", data, "--word", "the", "--projection", "pca"],
        ["theta", checkpoint, "--dict", str(trained.dictionary), "--word", "the", "a", "."],
        ["frequency", checkpoint, "--data", data],
        ["usage", checkpoint],
        ["history", str(trained.log)],
    ):
        path = tmp_path / f"{command[0]}.png"
        assert main(["plot", *command, "-o", str(path)]) == 0
        assert capsys.readouterr().out == f"wrote {path}: {command[0]}\n"
        assert path.read_bytes().startswith(b"\x89PNG")
    uncounted = tmp_path / "dict.txt"
    words = [line.split()[0] for line in trained.dictionary.read_text().splitlines()]
    uncounted.write_text("".join(f"{word} 0\n" for word in words))
    for flags, message in (
        (["frequency", checkpoint, "--dict", str(uncounted)], "has no counts of words"),
        (["contexts", checkpoint, "--data", data, "--word", "nix"], "nix: no entry"),
        (["contexts", checkpoint, "--data", data, "--word", "<pad>"], "occurs 0 times"),
        (["contexts", checkpoint, "--data", data, "--word", "a", "--most", "1"], "--most is 1"),
        (["theta", checkpoint, "--word", "the", "nix", "nox"], "nix, nox: no entry"),
        (["theta", checkpoint, "--word", "a", "--dict", "a", "--data", data], "leave it out"),
        (["usage", checkpoint, "--dict", "a", "--data", data], "leave it out"),
        (["history", data], "no figures of senses"),
    ):
        refused(message, "plot", *flags, "-o", tmp_path / "x.png")
    assert not (tmp_path / "x.png").exists()


# ------------------------------------------------------------------ kernels


def test_curves_are_the_printed_kernels() -> None:
    values, gradients, kerbs = (
        {
            str(line.get_label()).split(" (")[0]: np.asarray(line.get_xydata()).T
            for line in axes.lines
        }
        for axes in plots.plot_kernels().axes
    )
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


def test_panels_have_titles_names_and_lines_told_apart_in_grey() -> None:
    panels = plots.plot_kernels().axes
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


def test_wrong_names_end_with_one_sentence(tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.png").mkdir()
    for name, said in (
        ("kernels.jpg", ".png, .pdf, .svg"),
        ("kernels", ".png, .pdf, .svg"),
        ("file/kernels.png", "cannot be written"),
        ("folder.png", "cannot be written"),
    ):
        error = refused(said, "plot", "kernels", "--output", tmp_path / name)
        assert error.startswith(f"fairseq-kerbs: error: {tmp_path / name}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.png"]
