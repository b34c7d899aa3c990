"""Words that an output layer can hardly tell apart: similarity, clusters, predictions."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from pandas import DataFrame
from scipy import sparse
from torch import Tensor

from fairseq_kerbs.analysis import neighbours as analysis
from fairseq_kerbs.analysis.occurrences import Extras, Text, read_text
from fairseq_kerbs.checkpoints import load_layer, load_model_and_task, model_layer
from fairseq_kerbs.cli import main
from fairseq_kerbs.output_layers import KerbsOutputLayer, OutputLayer, SoftmaxOutputLayer
from fairseq_kerbs.utils.errors import UserError
from tests.analysis.conftest import Trained
from tests.helpers.cli import Capsys, Reported

WORDS = ["<s>", "<pad>", "</s>", "<unk>", "quickly", "soon", "red", "blue", "the"]
QUICKLY, SOON, RED, BLUE, THE = range(4, 9)
LINES = [["the", "red", "soon"], ["quickly", "blue", "the"], ["soon", "quickly"]]
TOKENS = DataFrame(
    [
        (0, 0, THE, 0.9, THE, 0.9),
        (0, 1, RED, 0.5, RED, 0.5),
        (0, 2, SOON, 0.3, QUICKLY, 0.6),
        (1, 0, QUICKLY, 0.8, QUICKLY, 0.8),
        (1, 1, BLUE, 0.2, THE, 0.7),
        (1, 2, THE, 0.9, THE, 0.9),
        (2, 0, SOON, 0.3, THE, 0.5),
        (2, 1, QUICKLY, 0.05, SOON, 0.9),
    ],
    columns=["line", "place", "entry", "probability", "guess", "guessed"],
)
FIRST = Text(LINES, None, TOKENS)


OTHER = FIRST._replace(
    tokens=TOKENS.assign(
        probability=[0.9, 0.5, 0.7, 0.3, 0.2, 0.9, 0.4, 0.6],
        guess=[THE, RED, SOON, SOON, THE, THE, SOON, QUICKLY],
        guessed=[0.9, 0.5, 0.7, 0.6, 0.7, 0.9, 0.4, 0.6],
    )
)


def small_layer() -> OutputLayer:
    """With vectors by which "quickly" is like "soon", and "red" like "blue"."""
    layer = SoftmaxOutputLayer(3, len(WORDS))
    rows = [[1.0, 0.0, 0.0], [1.0, 0.1, 0.0], [0.0, 1.0, 0.0], [0.0, 1.0, 0.1], [0.0, 0.0, -1.0]]
    layer.weight.data = torch.cat([torch.zeros(4, 3), torch.tensor(rows)])
    return layer


def find(text: Text | None = FIRST, other: Text | None = None, **flags: Any) -> analysis.Neighbours:
    frequency = [0, 0, 0, 0, 5, 9, 3, 8, 50]
    clusters = analysis.find_clusters(small_layer(), torch.arange(9) >= 4, frequency)
    return analysis.find_neighbours(clusters, WORDS, text, other, **flags)


def test_clusters_counts_and_examples_by_hand() -> None:
    found = find(examples=3)
    pair = found.clusters.set_index("words").loc["soon quickly"]  # the more frequent first
    assert pair[["times", "right", "within"]].tolist() == [4, 1, 2]
    examples = found.examples[found.examples["cluster"] == pair["cluster"]].to_dict("records")
    assert examples == [
        {
            "cluster": pair["cluster"],
            "guess": guess,
            "word": word,
            "sentence": sentence,
            "text": text,
            "probability": pytest.approx(guessed),
            "truth": pytest.approx(truth),
        }
        for guess, guessed, word, truth, sentence, text in (
            ("soon", 0.9, "quickly", 0.05, 3, "soon [quickly]"),
            ("quickly", 0.6, "soon", 0.3, 1, "the red [soon]"),
        )
    ]
    totals = [["(all clusters)", 4, 1, 2], ["(all words)", 8, 4, 2]]
    assert found.totals.to_numpy().tolist() == totals
    text = analysis.neighbours_as_text(found)
    assert "       1  the red [soon]\n          quickly 0.60, soon 0.30" in text
    assert re.search(r"\nsoon quickly +[\d.]+ +4 +1 +2 *\n", text)
    assert re.search(r"\n\(all words\) +8 +4 +2 *\n", text)
    assert len(find(top=1).table()) == len(find(None, top=1).table()) == 1
    with pytest.raises(UserError, match="no two words have similar"):
        analysis.find_clusters(SoftmaxOutputLayer(3, 2), torch.ones(2, dtype=torch.bool), [1, 1])


def test_a_second_model_in_the_clusters_of_the_first() -> None:
    found = find(other=OTHER, examples=3)
    pair = found.clusters.set_index("words").loc["soon quickly"]
    counts = ["times", "right", "within", "other_right", "other_within", "resolved", "introduced"]
    # the first has the second of soon, quickly, soon, quickly right; the other has all but that
    assert pair[counts].tolist() == [4, 1, 2, 3, 1, 2, 1]
    totals = [["(all clusters)", 4, 1, 2, 3, 1, 2, 1], ["(all words)", 8, 4, 2, 6, 1, 2, 1]]
    assert found.totals.to_numpy().tolist() == totals
    examples = found.examples[["word", "guess", "text", "other_truth"]].to_numpy().tolist()
    assert examples == [
        ["quickly", "soon", "soon [quickly]", 0.6],
        ["soon", "quickly", "the red [soon]", 0.7],
    ]
    text = analysis.neighbours_as_text(found)
    assert "quickly 0.60, soon 0.30, by the other model 0.70" in text
    assert re.search(r"\n\(all words\) +8 +4 +2 +6 +1 +2 +1 *(\n|$)", text)
    swapped = find(OTHER, FIRST).totals[counts].to_numpy().tolist()
    assert swapped == [[4, 3, 1, 1, 2, 1, 2], [8, 6, 1, 4, 2, 1, 2]]
    guesses = [*OTHER.tokens["guess"][:-1], SOON]  # the last is wrong in the cluster, too
    stubborn = OTHER._replace(tokens=OTHER.tokens.assign(guess=guesses))
    assert find(other=stubborn, examples=3).examples["text"].tolist() == ["the red [soon]"]
    shorter = OTHER._replace(tokens=OTHER.tokens[:-1])
    moved = OTHER._replace(tokens=OTHER.tokens.assign(entry=TOKENS["entry"].to_numpy()[::-1]))
    for different in (shorter, moved):
        with pytest.raises(UserError, match="--compare: the two models do not read the same"):
            find(other=different)


def test_clusters_of_given_words() -> None:
    clusters = [analysis.Cluster([SOON, QUICKLY], 0.9), analysis.Cluster([BLUE, RED], 0.8)]

    def shown(*wanted: int) -> list[str]:
        found = analysis.find_neighbours(clusters, WORDS, FIRST, wanted=wanted, top=1)
        assert found.totals["times"].tolist() == [6, 8]  # of all clusters, shown or not
        return list(found.clusters["words"])

    assert (shown(), shown(RED)) == (["soon quickly"], ["blue red"])
    assert shown(RED, SOON) == ["soon quickly", "blue red"]
    with pytest.raises(UserError, match=r"--word: the: in no cluster"):
        shown(SOON, THE)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ("--word xyzzy", "--word: xyzzy: not in the dictionary"),
        ("--compare nowhere.pt", "there is no checkpoint nowhere.pt"),
        ("--similarity angle", "invalid value for '--similarity': 'angle' is not one of"),
        ("--least 999999", "--least 999999: fewer than two words"),
        ("--least 60 --word Anna", "--word: Anna: less than --least 60 times in the training"),
        (
            "--joined --word <unk>",
            "or a special symbol, or a piece of words, which --joined leaves",
        ),
    ],
)
def test_mistakes_are_one_sentence(
    flags: str, sentence: str, trained: Trained, capsys: Capsys
) -> None:
    status = exit_status("neighbours", trained.kerbs, "--data", trained.data, *flags.split())
    assert (status, sentence in capsys.readouterr().err) == (2, True)
    if "compare" in flags:
        assert exit_status("neighbours", trained.kerbs, *flags.split()) == 2
        error = capsys.readouterr().err
        assert error.startswith("fairseq-kerbs: error: --compare needs --data")
        assert error.count("\n") == 1


def exit_status(*words: object) -> Any:
    try:
        return main([str(word) for word in words])
    except SystemExit as end:
        return end.code


def test_the_command_with_a_second_model(trained: Trained, reported: Reported) -> None:
    flags = ["--data", trained.data, "--least", "5", "--joined", "--top", "0"]
    flags += ["--similarity", "inner-product"]
    _, both, _ = reported("neighbours", trained.kerbs, *flags, "--compare", trained.softmax)
    _, same, _ = reported("neighbours", trained.kerbs, *flags, "--compare", trained.kerbs)
    _, first, _ = reported("neighbours", trained.kerbs, *flags)
    assert first["totals"] == [
        {name: row[name] for name in ("words", "times", "right", "within")}
        for row in both["totals"]
    ]
    model, task = load_model_and_task(trained.softmax, trained.data, any_model=True)
    tokens = read_text(model, task, "test", extras=Extras(guesses=True)).tokens
    words = tokens[tokens["entry"] >= 4]
    right = int((words["guess"] == words["entry"]).sum())
    assert both["totals"][1]["other_right"] == right
    for row in same["totals"]:
        assert (row["resolved"], row["introduced"]) == (0, 0)
        assert (row["right"], row["within"]) == (row["other_right"], row["other_within"])


@pytest.mark.parametrize("name", ["softmax", "kerbs"])
def test_the_command_with_data(name: str, trained: Trained, reported: Reported) -> None:
    path = getattr(trained, name)
    flags = ["--data", trained.data, "--least", "5", "--joined", "--examples", "2"]
    text, report, rows = reported("neighbours", path, *flags)
    model, task = load_model_and_task(path, trained.data, any_model=True)
    tokens = read_text(model, task, "test", extras=Extras(guesses=True)).tokens
    words = tokens[tokens["entry"] >= 4]
    assert report["totals"][1]["right"] == int((words["guess"] == words["entry"]).sum())
    words_of = {cluster["cluster"]: cluster["words"] for cluster in report["clusters"]}
    assert all(words in text for words in words_of.values())
    for example in report["examples"]:
        assert {example["word"], example["guess"]} <= {*words_of[example["cluster"]].split()}
        assert example["text"] in text
    assert {int(row["cluster"]) for row in rows} == {*words_of}
    assert [row["text"] for row in rows if row["text"]] == [e["text"] for e in report["examples"]]


def test_the_command_by_vectors(trained: Trained, reported: Reported) -> None:
    _, report, _ = reported("neighbours", trained.kerbs, "--joined", "--top", "0")
    words = [word for cluster in report["clusters"] for word in cluster["words"].split()]
    assert len(set(words)) == len(words)
    assert f" with {len(words)} words" in report["found"]
    assert not any(word.endswith("@@") or word.startswith("madeupword") for word in words)
    _, dictionary = load_layer(trained.kerbs)
    assert min(dictionary.count[dictionary.index(word)] for word in words) >= 20


def test_vectors_of_fairseqs_own_models(trained: Trained) -> None:
    model, _ = load_model_and_task(trained.softmax, trained.data, any_model=True)
    layer, dictionary = load_layer(trained.softmax, any_model=True)
    for found in (layer, model_layer(model, trained.softmax)):
        torch.testing.assert_close(found.weight, model.decoder.output_projection.weight)
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


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("similarity", analysis.SIMILARITIES)
def test_similarity_by_vectors(
    biased: bool, similarity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The definition, pair by pair; a bias is no part of a vector."""
    layer = KerbsOutputLayer(6 + biased, 23, 53, biased=biased)
    layer.inventory.usage.copy_(torch.rand(layer.total_senses) ** 4)  # some below a twentieth
    owners = layer.word_of_sense.tolist()
    usage = layer.usage.tolist()
    asked = [n for n in range(4, 23) if n != 11]
    total = {w: sum(u for u, o in zip(usage, owners, strict=True) if o == w) for w in asked}
    senses = [m for m, o in enumerate(owners) if o in total and usage[m] >= 0.05 * total[o]]
    assert len(senses) < sum(owner in total for owner in owners)
    vectors = layer.weight.detach()[senses, :6].double()
    if similarity == "cosine":
        vectors = torch.nn.functional.normalize(vectors - vectors.mean(0))
    expected = np.full((23, 23), -9.0)
    places = np.array(owners)[senses]
    np.maximum.at(expected, (places[:, None], places), (vectors @ vectors.T).numpy())
    words = torch.isin(torch.arange(23), torch.tensor(asked))
    monkeypatch.setattr(analysis, "_ROWS", 7)  # several parts
    graph = analysis.similarity_graph(layer, words, similarity).toarray()
    np.testing.assert_array_equal(graph, graph.T)
    apart = np.maximum(expected, 0.0) * (1 - np.eye(23))
    np.testing.assert_allclose(graph, apart, rtol=0, atol=1e-5)
    monkeypatch.setattr(analysis, "NEAREST", 1)
    few = analysis.similarity_graph(layer, words, similarity).toarray()
    nearest = max((other for other in asked if other != 9), key=lambda other: expected[9, other])
    assert few[9, nearest] == pytest.approx(max(0.0, expected[9, nearest]), abs=1e-5)
    assert 0 < np.count_nonzero(few) < np.count_nonzero(graph)


def test_no_words_and_unknown_similarities() -> None:
    layer = small_layer()
    none = torch.zeros(layer.vocab_size, dtype=torch.bool)
    for similarity in analysis.SIMILARITIES:
        graph = analysis.similarity_graph(layer, none, similarity)
        assert graph.shape == (layer.vocab_size, layer.vocab_size)
        assert graph.nnz == 0
    with pytest.raises(ValueError, match="'Cosine'; it must be one of cosine, inner-product"):
        analysis.similarity_graph(layer, ~none, "Cosine")


def test_nearest_vectors_are_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(analysis, "_ROWS", 7)
    vectors = torch.randn(20, 4, generator=torch.Generator().manual_seed(1))
    products = (vectors @ vectors.T).fill_diagonal_(-9e9)
    for first in (0, 7, 14):
        values, numbers = analysis._nearest(vectors, first, 3)
        expected = products[first : first + 7].sort(1, descending=True)
        torch.testing.assert_close(values, expected.values[:, :3])
        assert numbers.tolist() == expected.indices[:, :3].tolist()


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
    nearest = [row.max() for row in matrix if row.max() > 0]
    assert analysis.usual_similarity(graph) == np.median(nearest)
    for least, most in ((0.5, 8), (0.1, 4), (0.05, 24)):
        found = sorted(sorted(group) for group in analysis.cluster_words(graph, least, most))
        assert found == plain_clusters(matrix, least, most)
    assert analysis.cluster_words(sparse.csr_matrix((5, 5)), 0.0) == []
