"""Words that an output layer can hardly tell apart: similarity, clusters, two models on them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from pandas import DataFrame
from scipy import sparse
from scipy.stats import binomtest
from torch import Tensor

from fairseq_kerbs.analysis import neighbours as analysis
from fairseq_kerbs.analysis.neighbours import (
    Neighbours,
    cluster_words,
    find_neighbours,
    neighbours_as_text,
    similarity_graph,
    usual_similarity,
)
from fairseq_kerbs.analysis.teacher_forcing import Text, read_text
from fairseq_kerbs.checkpoints import load_layer, load_model_and_task, model_layer
from fairseq_kerbs.cli import main
from fairseq_kerbs.commands.figures import model_names
from fairseq_kerbs.output_layers import KerbsOutputLayer, OutputLayer, SoftmaxOutputLayer
from fairseq_kerbs.utils.errors import UserError
from tests.analysis.conftest import Trained

# --- counts and examples ------------------------------------------------------------

WORDS = ["<s>", "<pad>", "</s>", "<unk>", "quickly", "soon", "red", "blue", "the"]
QUICKLY, SOON, RED, BLUE, THE = range(4, 9)


def by_hand(*rows: tuple[int, int, int, float, int, float]) -> Text:
    """Sentence, place, word, its probability, the best other guess and its probability."""
    names = ["line", "place", "entry", "probability", "guess", "guessed"]
    tokens = DataFrame(rows, columns=names)
    right = tokens["probability"] >= tokens["guessed"]
    tokens.loc[right, "guess"] = tokens["entry"]
    tokens.loc[right, "guessed"] = tokens["probability"]
    lines = [["the", "red", "soon"], ["quickly", "blue", "the"], ["soon", "quickly"]]
    return Text(lines, None, tokens)


FIRST = by_hand(
    (0, 0, THE, 0.9, RED, 0.1),
    (0, 1, RED, 0.5, BLUE, 0.4),
    (0, 2, SOON, 0.3, QUICKLY, 0.6),
    (1, 0, QUICKLY, 0.8, SOON, 0.1),
    (1, 1, BLUE, 0.2, THE, 0.7),
    (1, 2, THE, 0.9, BLUE, 0.05),
    (2, 0, SOON, 0.3, THE, 0.5),
    (2, 1, QUICKLY, 0.4, SOON, 0.6),
)
SECOND = by_hand(
    (0, 0, THE, 0.6, RED, 0.1),
    (0, 1, RED, 0.2, BLUE, 0.6),
    (0, 2, SOON, 0.7, QUICKLY, 0.2),
    (1, 0, QUICKLY, 0.3, SOON, 0.5),
    (1, 1, BLUE, 0.5, RED, 0.3),
    (1, 2, THE, 0.4, RED, 0.5),
    (2, 0, SOON, 0.9, QUICKLY, 0.05),
    (2, 1, QUICKLY, 0.7, SOON, 0.1),
)


def find(texts: dict[str, Text], **flags: Any) -> Neighbours:
    """With vectors by which "quickly" is like "soon", and "red" like "blue"."""
    layer = SoftmaxOutputLayer(3, len(WORDS))
    rows = [[1.0, 0.0, 0.0], [1.0, 0.1, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 0.1], [0.0, 0.0, -1.0]]
    layer.weight.data = torch.cat([torch.zeros(4, 3), torch.tensor(rows)])
    layers, words = dict.fromkeys(texts, layer), torch.arange(len(WORDS)) >= 4
    frequency = [0, 0, 0, 0, 5, 9, 3, 8, 50]
    return find_neighbours(layers, texts, words, WORDS, frequency, **flags)


def test_two_models_side_by_side_by_hand() -> None:
    found = find({"a": FIRST, "b": SECOND}, examples=3)
    pair = found.clusters.set_index("words").loc["soon quickly"].iloc[0]  # the more frequent first
    assert pair.drop(["cluster", "of", "likeness a", "likeness b"]).to_dict() == {
        "times": 4,
        "right a": 1,
        "right b": 3,
        "within a": 2,
        "within b": 1,
        "alone a": 1,
        "alone b": 3,
    }
    examples = found.examples[found.examples["cluster"] == pair["cluster"]]
    # those where the other word of the cluster was predicted come first
    assert [*zip(examples["right"], examples["sentence"], examples["word"], strict=True)] == [
        ("a", 2, "quickly"),
        ("b", 1, "soon"),
        ("b", 3, "quickly"),
        ("b", 3, "soon"),
    ]
    example = examples.iloc[1]
    assert example["text"] == "the red [soon]"
    shown = [example[f"{column} {name}"] for name in "ab" for column in ("guess", "probability")]
    assert shown == ["quickly", pytest.approx(0.6), "soon", pytest.approx(0.7)]
    assert (example["truth a"], example["truth b"]) == (pytest.approx(0.3), pytest.approx(0.7))
    clusters, everything = found.totals.iloc[:2].to_dict("records")
    assert (everything["times"], everything["right a"], everything["right b"]) == (8, 4, 5)
    assert everything["within a"] == clusters["within a"]
    assert (everything["alone a"], everything["alone b"]) == (3, 4)
    assert found.ahead == {"a": 1, "b": 1}
    first = {
        name: text._replace(tokens=text.tokens[text.tokens["line"] < 2])
        for name, text in (("a", FIRST), ("b", SECOND))
    }
    assert find(first).ahead == {"a": 1, "b": 0}
    text = neighbours_as_text(found._replace(ahead={"a": 1, "b": 2}))
    assert f"sign test p = {binomtest(1, 3).pvalue:.2g}" in text
    assert "1 / 3" in text
    swapped = find({"b": SECOND, "a": FIRST})
    assert [*swapped.clusters["words"]] == [*found.clusters["words"]]
    assert len(find({"a": FIRST, "b": SECOND}, top=1).clusters) == 2  # of each model


def test_one_model_by_hand() -> None:
    found = find({"a": FIRST}, examples=3)
    assert not [column for column in found.clusters if "alone" in column]
    examples = found.examples[found.examples["word"].isin(["soon", "quickly"])]
    assert examples[["right", "sentence", "word"]].to_numpy().tolist() == [
        [None, 1, "soon"],
        [None, 3, "quickly"],
    ]


# --- the command --------------------------------------------------------------------------------


def neighbours(*flags: object) -> int:
    return main(["neighbours", *map(str, flags)])


def test_the_command_on_two_models(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--data", trained.data, "--least", "5", "--joined", "--examples", "2"]
    flags += ["--json", tmp_path / "a.json", "--csv", tmp_path / "a.csv"]
    assert neighbours(trained.softmax, trained.kerbs, *flags) == 0
    text = capsys.readouterr().out
    report = json.loads((tmp_path / "a.json").read_text())
    assert [*report["found"]] == ["softmax", "kerbs"]
    right, everything = {}, report["totals"][1]
    for name in report["found"]:
        model, task = load_model_and_task(getattr(trained, name), trained.data, any_model=True)
        tokens = read_text(model, task, "test", guesses=True).tokens
        words = tokens[tokens["entry"] >= 4]
        right[name] = int((words["guess"] == words["entry"]).sum())
        assert everything[f"right {name}"] == right[name]
    difference = everything["alone softmax"] - everything["alone kerbs"]
    assert difference == right["softmax"] - right["kerbs"]
    words_of = {cluster["cluster"]: cluster["words"] for cluster in report["clusters"]}
    assert all(words in text for words in words_of.values())
    for example in report["examples"]:
        assert example["word"] in words_of[example["cluster"]].split()
        assert example["text"] in text
        wrong = {"softmax": "kerbs", "kerbs": "softmax"}[example["right"]]
        assert example[f"guess {example['right']}"] == example["word"] != example[f"guess {wrong}"]
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()))
    assert {int(row["cluster"]) for row in rows} == {*words_of}
    assert [row["text"] for row in rows if row["text"]] == [e["text"] for e in report["examples"]]
    # a model beside itself: nobody is right alone
    assert neighbours(trained.kerbs, trained.kerbs, *flags[:4], "--names", "x", "y") == 0
    assert "more words right: 0 / 0, sign test p = 1" in capsys.readouterr().out


def test_the_command_by_vectors(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--top", "2", "--json", tmp_path / "a.json"]
    assert neighbours(trained.softmax, trained.kerbs, *flags) == 0
    report = json.loads((tmp_path / "a.json").read_text())
    assert [cluster["of"] for cluster in report["clusters"]] == ["softmax"] * 2 + ["kerbs"] * 2
    assert capsys.readouterr().out.count("clusters by output vectors of") == 2
    assert neighbours(trained.kerbs, "--joined", "--top", "0", "--json", tmp_path / "a.json") == 0
    report = json.loads((tmp_path / "a.json").read_text())
    words = [word for cluster in report["clusters"] for word in cluster["words"].split()]
    assert len(set(words)) == len(words)
    assert f" with {len(words)} words" in report["found"]["checkpoint_last"]
    assert not any(word.endswith("@@") or word.startswith("madeupword") for word in words)
    _, dictionary = load_layer(trained.kerbs)
    assert min(dictionary.count[dictionary.index(word)] for word in words) >= 20


def test_vectors_of_fairseqs_own_models(trained: Trained) -> None:
    model, _ = load_model_and_task(trained.softmax, trained.data, any_model=True)
    layer, dictionary = load_layer(trained.softmax, any_model=True)
    expected = model.decoder.output_projection.weight
    for found in (layer, model_layer(model, trained.softmax)):
        torch.testing.assert_close(found.weight, expected)
        assert found.word_of_sense.tolist() == list(range(len(dictionary)))

    def stock(tensors: dict[str, Tensor], tied: bool = False) -> OutputLayer:
        decoder = SimpleNamespace(share_input_output_embed=tied)
        return model_layer(SimpleNamespace(decoder=decoder, state_dict=lambda: tensors), Path("a"))

    embedding = {"decoder.embed_tokens.weight": torch.randn(7, 3)}
    assert stock(embedding, tied=True).weight.shape == (7, 3)
    own = embedding | {"decoder.fc_out.weight": torch.randn(7, 5)}
    assert stock(own, tied=True).weight.shape == (7, 5)
    adaptive = own | {"decoder.adaptive_softmax.head.word_proj.weight": torch.randn(2, 2)}
    for tensors in (embedding, adaptive, {}):
        with pytest.raises(UserError, match="no vector for each word"):
            stock(tensors)


def test_names_are_what_tells_paths_apart() -> None:
    for paths, names in (
        (["x/softmax-s1/c/best.pt", "x/kerbs-s1/c/best.pt"], ["softmax-s1", "kerbs-s1"]),
        (["x/run/first.pt", "x/run/last.pt"], ["first", "last"]),
        (["a/b.pt", "a/b.pt"], ["first", "second"]),
        (["runs/mine/checkpoint_best.pt"], ["checkpoint_best"]),
    ):
        assert model_names([Path(path) for path in paths]) == names


# --- similarity by vectors ------------------------------------------------------------------------


@pytest.mark.parametrize("biased", [False, True])
def test_similarity_by_vectors(biased: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The definition, pair by pair; a bias is no part of a vector."""
    layer = KerbsOutputLayer(6 + biased, 23, 53, biased=biased)
    layer.inventory.usage.copy_(torch.rand(layer.total_senses) ** 4)  # some below a twentieth
    owners, usage = layer.word_of_sense.tolist(), layer.usage.tolist()
    asked = [n for n in range(4, 23) if n != 11]
    total = {w: sum(u for u, o in zip(usage, owners, strict=True) if o == w) for w in asked}
    senses = [m for m, o in enumerate(owners) if o in total and usage[m] >= 0.05 * total[o]]
    assert len(senses) < sum(owner in total for owner in owners)
    vectors = layer.weight.detach()[senses, :6].double()
    centred = torch.nn.functional.normalize(vectors - vectors.mean(0))
    expected: dict[tuple[int, int], float] = {}
    for m, row in zip(senses, centred @ centred.T, strict=True):
        for n, value in zip(senses, row.tolist(), strict=True):
            pair = owners[m], owners[n]
            expected[pair] = max(expected.get(pair, -9.0), value)
    words = torch.isin(torch.arange(23), torch.tensor(asked))
    graph = similarity_graph(layer, words).toarray()
    np.testing.assert_array_equal(graph, graph.T)
    for i in range(23):
        for j in range(23):
            value = max(expected.get((i, j), 0.0), 0.0) if i != j else 0.0
            assert graph[i, j] == pytest.approx(value, abs=1e-5), (i, j)
    monkeypatch.setattr(analysis, "NEAREST", 1)
    few = similarity_graph(layer, words).toarray()
    nearest = max((other for other in asked if other != 9), key=lambda other: expected[9, other])
    assert few[9, nearest] == pytest.approx(max(0.0, expected[9, nearest]), abs=1e-5)
    assert 0 < np.count_nonzero(few) < np.count_nonzero(graph)


# --- clusters -----------------------------------------------------------------------------------


def plain_clusters(matrix: Any, least: float, most: int) -> list[list[int]]:
    groups = [[n] for n in range(len(matrix))]
    while True:
        pairs = [
            (float(np.mean(matrix[np.ix_(a, b)])), i, j)
            for i, a in enumerate(groups)
            for j, b in enumerate(groups)
            if i < j and len(a) + len(b) <= most
        ]
        best = max(pairs, default=(-1.0, 0, 0))
        if best[0] < least or best[0] <= 0:
            return sorted(sorted(group) for group in groups if len(group) > 1)
        _, i, j = best
        groups[i] = groups[i] + groups.pop(j)


@pytest.mark.parametrize("seed", range(4))
def test_clusters_are_those_of_average_linkage(seed: int) -> None:
    random = np.random.default_rng(seed)
    matrix = np.where(random.random((24, 24)) < 0.3, random.random((24, 24)), 0.0)
    matrix = np.triu(matrix, 1) + np.triu(matrix, 1).T
    graph = sparse.csr_matrix(matrix)
    assert usual_similarity(graph) == np.median([row.max() for row in matrix if row.max() > 0])
    for least, most in ((0.5, 8), (0.1, 4), (0.05, 24)):
        found = sorted(sorted(group) for group in cluster_words(graph, least, most))
        assert found == plain_clusters(matrix, least, most)
    assert cluster_words(sparse.csr_matrix((5, 5)), 0.0) == []
