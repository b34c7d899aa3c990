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
from scipy import sparse
from scipy.stats import binomtest
from torch import Tensor

from fairseq_kerbs.analysis import similarity as similarity_module
from fairseq_kerbs.analysis.neighbours import find_neighbours, neighbours_as_text
from fairseq_kerbs.analysis.similarity import VectorSimilarity, cluster_words, usual_similarity
from fairseq_kerbs.analysis.teacher_forcing import Predictions, collect_predictions
from fairseq_kerbs.checkpoints import load_layer, load_model_and_task, model_layer, read_checkpoint
from fairseq_kerbs.cli import main
from fairseq_kerbs.commands.figures import model_names
from fairseq_kerbs.kernels import kernel_logits
from fairseq_kerbs.output_layers import KerbsOutputLayer, OutputLayer, SoftmaxOutputLayer
from fairseq_kerbs.output_layers.mixture import MixtureOutputLayer
from fairseq_kerbs.utils.errors import UserError
from tests.analysis.conftest import Refused, Trained

# --- counts and examples ------------------------------------------------------------

WORDS = ["<s>", "<pad>", "</s>", "<unk>", "quickly", "soon", "red", "blue", "the"]
QUICKLY, SOON, RED, BLUE, THE = range(4, 9)


def by_hand(*rows: tuple[int, int, int, float, int, float]) -> Predictions:
    """Sentence, place, word, its probability, the best other guess and its probability."""
    columns = [torch.tensor(column) for column in zip(*rows, strict=True)]
    sentence, place, word, own, guess, other = columns
    ordered = (own >= other).unsqueeze(1)
    guesses = torch.stack([word, guess], 1)
    guessed = torch.stack([own, other], 1)
    tokens = {0: ["the", "red", "soon"], 1: ["quickly", "blue", "the"], 2: ["soon", "quickly"]}
    return Predictions(
        tokens,
        *(sentence, place, word, own),
        torch.where(ordered, guesses, guesses.flip(1)),
        torch.where(ordered, guessed, guessed.flip(1)),
    )


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


def find(predictions: dict[str, Predictions], **flags: Any) -> Any:
    """With vectors by which "quickly" is like "soon", and "red" like "blue"."""
    layer = SoftmaxOutputLayer(3, len(WORDS))
    rows = [[1.0, 0.0, 0.0], [1.0, 0.1, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 0.1], [0.0, 0.0, -1.0]]
    layer.weight.data = torch.cat([torch.zeros(4, 3), torch.tensor(rows)])
    layers, words = dict.fromkeys(predictions, layer), torch.arange(len(WORDS)) >= 4
    frequency = [0, 0, 0, 0, 5, 9, 3, 8, 50]
    return find_neighbours(layers, predictions, words, WORDS, frequency, **flags)


def test_two_models_side_by_side_by_hand() -> None:
    report = find({"a": FIRST, "b": SECOND}, examples=3)
    pair = next(cluster for cluster in report["clusters"] if "soon" in cluster["words"])
    assert pair["words"] == ["soon", "quickly"]  # the more frequent first
    assert pair["counts"] == {
        "times": 4,
        "right": {"a": 1, "b": 3},
        "within": {"a": 2, "b": 1},
        "alone": {"a": 1, "b": 3},
        "ahead": {"a": 1, "b": 2},
    }
    # those where the other word of the cluster was predicted come first
    assert [(e["right"], e["sentence"], e["word"]) for e in pair["examples"]] == [
        ("a", 2, "quickly"),
        ("b", 1, "soon"),
        ("b", 3, "quickly"),
        ("b", 3, "soon"),
    ]
    example = pair["examples"][1]
    assert example["text"] == "the red [soon]"
    guesses = {name: tuple(guess.values()) for name, guess in example["guesses"].items()}
    assert guesses["a"] == ("quickly", pytest.approx(0.6), pytest.approx(0.3))
    assert guesses["b"] == ("soon", pytest.approx(0.7), pytest.approx(0.7))
    everything = report["everything"]
    assert everything["right"] == {"a": 4, "b": 5}
    assert (everything["times"], everything["within"]) == (8, report["clustered"]["a"]["within"])
    assert everything["alone"] == {"a": 3, "b": 4}
    assert everything["ahead"] == {"a": 1, "b": 1}
    everything["ahead"] = {"a": 1, "b": 2}
    assert f"sign test p = {binomtest(1, 3).pvalue:.2g}" in neighbours_as_text(report)
    swapped = find({"b": SECOND, "a": FIRST})
    words = [cluster["words"] for cluster in report["clusters"]]
    assert [cluster["words"] for cluster in swapped["clusters"]] == words
    assert len(find({"a": FIRST, "b": SECOND}, top=1)["clusters"]) == 2  # of each model


def test_one_model_by_hand() -> None:
    report = find({"a": FIRST}, examples=3)
    pair = next(cluster for cluster in report["clusters"] if "soon" in cluster["words"])
    assert pair["counts"]["alone"] == {}
    assert [(e["right"], e["sentence"], e["word"]) for e in pair["examples"]] == [
        (None, 1, "soon"),
        (None, 3, "quickly"),
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
    assert report["names"] == ["softmax", "kerbs"]
    found = {}
    for name in report["names"]:
        model, task = load_model_and_task(getattr(trained, name), trained.data, any_model=True)
        found[name] = collect_predictions(model, task, "test", joined=True)
    right = {name: int(one.right.sum()) for name, one in found.items()}
    assert report["everything"]["right"] == right
    difference = report["everything"]["alone"]
    assert difference["softmax"] - difference["kerbs"] == right["softmax"] - right["kerbs"]
    assert report["clusters"]
    for cluster in report["clusters"]:
        assert " ".join(cluster["words"]) in text
        for example in cluster["examples"]:
            assert example["word"] in cluster["words"]
            assert example["text"] in text
            wrong = {"softmax": "kerbs", "kerbs": "softmax"}[example["right"]]
            assert example["guesses"][example["right"]]["word"] == example["word"]
            assert example["guesses"][wrong]["word"] != example["word"]
    rows = list(csv.DictReader((tmp_path / "a.csv").read_text().splitlines()))
    examples = [example or None for c in report["clusters"] for example in c["examples"] or [None]]
    assert len(rows) == len(examples)
    assert {int(row["cluster"]) for row in rows} == {*range(1, len(report["clusters"]) + 1)}
    for row, example in zip(rows, examples, strict=True):
        assert row.get("text", "") == ("" if example is None else example["text"])
        guess = example["guesses"]["kerbs"]["word"] if example else ""
        assert row.get("guess kerbs", "") == guess
    # a model beside itself: nobody is right alone
    assert neighbours(trained.kerbs, trained.kerbs, *flags[:4], "--names", "x", "y") == 0
    assert "more words right: 0 / 0, sign test p = 1" in capsys.readouterr().out


def test_the_command_by_vectors(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--top", "2", "--json", tmp_path / "a.json"]
    assert neighbours(trained.softmax, trained.kerbs, *flags, "--data", trained.data) == 0
    with_data = json.loads((tmp_path / "a.json").read_text())
    assert [cluster["of"] for cluster in with_data["clusters"]] == ["softmax"] * 2 + ["kerbs"] * 2
    assert capsys.readouterr().out.count("clusters by output vectors of") == 2
    assert neighbours(trained.softmax, trained.kerbs, *flags) == 0
    report = json.loads((tmp_path / "a.json").read_text())
    for one, other in zip(report["clusters"], with_data["clusters"], strict=True):
        assert one["words"] == other["words"]
        assert one["counts"] is None
        assert one["likeness"] == pytest.approx(other["likeness"])
    assert neighbours(trained.kerbs, "--joined", "--top", "0", "--json", tmp_path / "a.json") == 0
    report = json.loads((tmp_path / "a.json").read_text())
    words = [word for cluster in report["clusters"] for word in cluster["words"]]
    assert len(set(words)) == len(words) == report["words"]["checkpoint_last"]
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


def test_wrong_uses_are_one_sentence(trained: Trained, tmp_path: Path, refused: Refused) -> None:
    data, moved, turned = ["--data", trained.data], tmp_path / "moved.pt", tmp_path / "turned.pt"
    lines = trained.dictionary.read_text().splitlines()
    (tmp_path / "dict.en.txt").write_text("\n".join(lines[::-1]) + "\n")
    state = read_checkpoint(trained.softmax)
    state["cfg"]["task"] |= {"data": str(tmp_path), "source_lang": "de", "target_lang": "en"}
    torch.save(state, moved)
    state = read_checkpoint(trained.softmax)
    state["cfg"]["task"] |= {"source_lang": "en", "target_lang": "de"}
    torch.save(state, turned)
    for flags, message in (
        ([trained.kerbs, moved], "have different target dictionaries"),
        ([trained.kerbs, turned, *data], "turned.pt does not fit --data"),
        ([trained.kerbs, *data, "--names", "a", "b"], "as many names as checkpoints, 1"),
        ([trained.kerbs, trained.kerbs, "--names", "a", "a"], "that differ"),
    ):
        refused(message, "neighbours", *flags)


# --- similarity by vectors ------------------------------------------------------------------------


def plain_similarity(layer: OutputLayer, words: list[int]) -> dict[tuple[int, int], float]:
    """The definition, pair by pair."""
    owners, usage = layer.word_of_sense.tolist(), layer.usage.tolist()
    total = {w: sum(u for u, o in zip(usage, owners, strict=True) if o == w) for w in words}
    senses = [m for m, o in enumerate(owners) if o in total and usage[m] >= 0.05 * total[o]]
    senses.sort(key=lambda m: owners[m])
    step = -(-len(senses) // similarity_module._MEANS)
    w, theta = layer.weight.detach().double(), layer.theta.detach().double()
    kernel = layer.kernel if isinstance(layer, KerbsOutputLayer) else "lin"
    k = kernel_logits(w[senses], w[senses], theta[senses], kernel)
    g = (k + k.T) / 2
    means = g[:, ::step].mean(1)
    s = g - means - means.unsqueeze(1) + means[::step].mean()
    found: dict[tuple[int, int], float] = {}
    for a, m in enumerate(senses):
        for b, n in enumerate(senses):
            pair = (owners[m], owners[n])
            if pair[0] != pair[1]:
                value = float(s[a, b] / (s[a, a] * s[b, b]).sqrt())
                found[pair] = max(found.get(pair, -9.0), value)
    return found


@pytest.mark.parametrize("kernel", ["lin", "kerbs", "kerbs_released", "log", "mog", "mixture"])
def test_similarity_by_vectors(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(3)
    layer: OutputLayer
    if kernel == "mixture":
        layer = MixtureOutputLayer(6, 23, ["lin", "log"])
    else:
        layer = KerbsOutputLayer(6, 23, 53, kernel=kernel)
        layer.inventory.usage.copy_(torch.rand(layer.total_senses) ** 4)  # some below a twentieth
    asked = [n for n in range(4, 23) if n != 11]
    if kernel == "lin":
        monkeypatch.setattr(similarity_module, "_MEANS", 15)  # means over some of the senses
    expected = plain_similarity(layer, asked)
    monkeypatch.setattr(similarity_module, "_SCORES", 200)  # chunks of few words
    monkeypatch.setattr(similarity_module, "NEAREST", 3)
    words = torch.zeros(23, dtype=torch.bool)
    words[asked] = True
    similarity = VectorSimilarity(layer, words)
    some = [17, 4, 9, 22]
    among = similarity.among(some)
    for a, one in enumerate(some):
        assert among[a, a] == 0
        for b, other in enumerate(some):
            if a != b:
                assert among[a, b] == pytest.approx(expected[one, other], abs=2e-4)
    graph = similarity.graph().toarray()
    np.testing.assert_array_equal(graph, graph.T)
    nearest = {i: sorted(asked, key=lambda j: -expected.get((i, j), -9.0))[:3] for i in asked}
    for i in range(23):
        for j in range(23):
            near = i in nearest and j in nearest and (j in nearest[i] or i in nearest[j])
            value = max(expected[i, j], 0.0) if near else 0.0
            assert graph[i, j] == pytest.approx(value, abs=2e-4), (i, j)


def test_similarity_does_not_see_lengths_and_what_all_have_in_common() -> None:
    layer = KerbsOutputLayer(4, 6, 6, kernel="lin", max_senses=1)
    rows = [[3.0, 1.0, 0, 0], [0.3, 0.1, 0, 0], [0, 0, 2.0, 1.0], [0, 0, 0.2, 0.1]]
    rows += [[-sum(column) for column in zip(*rows, strict=True)], [0.0] * 4]  # mean 0
    with torch.no_grad():
        layer.weight[layer.table.senses[:, 0]] = torch.tensor(rows)
    everything = torch.ones(6, dtype=torch.bool)
    one = VectorSimilarity(layer, everything).among(range(4))
    np.testing.assert_allclose(
        one, [[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]], atol=1e-5
    )
    with torch.no_grad():
        layer.weight.add_(torch.tensor([5.0, -3.0, 2.0, 1.0]))
    np.testing.assert_allclose(VectorSimilarity(layer, everything).among(range(4)), one, atol=1e-4)


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
