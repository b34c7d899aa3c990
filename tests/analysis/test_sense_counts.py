"""Numbers of senses judged by gold senses of all words."""

import numpy as np
import pytest
import torch
from scipy.stats import linregress

from fairseq_kerbs.analysis.occurrences import all_tokens
from fairseq_kerbs.analysis.sense_counts import (
    CountedWord,
    cluster_training,
    correlation,
    counts_as_text,
    entropy,
    interval,
    judge_counts,
    partial_correlation,
)
from fairseq_kerbs.checkpoints.contexts import sample_of
from fairseq_kerbs.senses.partitions import bcubed
from tests.analysis.conftest import Trained
from tests.helpers.cli import Reported
from tests.helpers.fairseq_fixtures import dictionary

GOLD = np.array([0, 0, 0, 1])
ONE = np.zeros(4, np.int64)
SPLIT = np.array([0, 0, 1, 1])


def counted(name: str, gold: np.ndarray, induced: np.ndarray, frequency: int = 9) -> CountedWord:
    piece = name.endswith("@@")
    senses = int(induced.max()) + 1
    contexts = torch.zeros(len(gold), 3)
    clusters = [ONE, SPLIT, GOLD]
    return CountedWord(name, piece, frequency, senses, gold, induced, 7, contexts, clusters)


def test_figures_by_hand() -> None:
    """B-cubed F of GOLD: one sense has precision (9 + 1) / 16, SPLIT has 12/17."""
    words = [counted("a", GOLD, SPLIT), counted("b", ONE, SPLIT, 99), counted("c", GOLD, GOLD)]
    judged = judge_counts([*words, counted("d@@", GOLD, ONE)])
    figures = judged["words"]
    of_one = 2 * (10 / 16) / (26 / 16)
    of_split = 2 * 0.5 / 1.5  # one gold sense in two halves
    assert figures["of"] == 3
    assert figures["one"]["bcubed"]["mean"] == pytest.approx((2 * of_one + 1) / 3)
    assert figures["one"]["recall"] == pytest.approx(1.0)
    assert figures["senses"]["bcubed"]["mean"] == pytest.approx((12 / 17 + of_split + 1) / 3)
    assert figures["senses"]["senses"] == pytest.approx(2.0)
    assert figures["best"]["bcubed"]["mean"] == pytest.approx(1.0)
    assert figures["best"]["senses"] == pytest.approx((3 + 1 + 3) / 3)
    assert (figures["senses"]["better"], figures["senses"]["worse"]) == (1, 2)
    assert (figures["best"]["better"], figures["best"]["worse"]) == (2, 0)
    assert figures["correlations"]["with_entropy"] is None  # all have two senses
    assert judged["pieces"]["of"] == 1
    text = counts_as_text(judged)
    assert text.count("one sense per word") == 2
    assert "whole words, 3" in text
    assert "pieces of words, 1" in text
    assert "undefined: too few words, or all are alike" in text


def test_clusters_are_those_of_training_contexts() -> None:
    """Two clusters are trained, and few occurrences are labelled, which alone would have one."""
    centers = 8.0 * torch.eye(3)
    noise = torch.randn(80, 3, generator=torch.Generator().manual_seed(1))
    training = sample_of([7, 8], 9, 3, 80)
    training.add(torch.full((80,), 7), centers[torch.arange(80) % 2] + noise)
    labelled = counted("a", GOLD, ONE)._replace(contexts=centers[[0, 0, 0, 1]], clusterings=())
    rare = labelled._replace(entry=8)
    found, of_rare = cluster_training([labelled, rare], training)
    assert [len(set(labels.tolist())) for labels in found.clusterings[:2]] == [1, 2]
    assert bcubed(GOLD, found.clusterings[1]).f == pytest.approx(1.0)
    assert [labels.tolist() for labels in of_rare.clusterings] == [[0, 0, 0, 0]]


def test_nothing_to_judge() -> None:
    assert judge_counts([]) == {}
    assert "no word has 25 labelled occurrences" in counts_as_text({})


def test_entropy() -> None:
    assert entropy(np.array([0, 0, 2, 2])) == pytest.approx(np.log(2))
    assert entropy(ONE) == 0.0


def test_a_partial_correlation_is_that_of_residuals() -> None:
    draw = np.random.default_rng(1)
    given = draw.normal(size=200)
    x = given + draw.normal(size=200)
    y = 2 * given + x + draw.normal(size=200)
    residuals = []
    for values in (x, y):
        line = linregress(given, values)
        residuals.append(values - line.slope * given - line.intercept)
    right = np.corrcoef(*residuals)[0, 1]
    assert partial_correlation(x, y, given) == pytest.approx(right)
    assert partial_correlation(3 * x + 1, -y, given) == pytest.approx(-right)
    for constant in (1.0, 0.1):  # whose mean is rounded
        same = np.full(200, constant)
        for three in ((same, y, given), (x, same, given), (x, y, same)):
            assert np.isnan(partial_correlation(*three))
            assert correlation(*three) is None


def test_the_correlation_is_with_entropy_at_equal_frequency() -> None:
    """Words with two gold senses have two senses, however frequent they are."""
    draw = np.random.default_rng(1)
    words = []
    for number in range(60):
        gold = GOLD if number % 2 else ONE
        words.append(counted(f"w{number}", gold, gold, int(draw.integers(10, 1000))))
    found = judge_counts(words)["words"]["correlations"]
    assert found["with_entropy"]["mean"] == pytest.approx(1.0)
    words = [word._replace(induced=ONE, senses=1 + (word.frequency > 300)) for word in words]
    found = judge_counts(words)["words"]["correlations"]
    assert abs(found["with_entropy"]["mean"]) < 0.3
    assert found["with_frequency"]["low"] > 0.5
    assert found["with_frequency"]["low"] < found["with_frequency"]["mean"]


def test_an_interval_narrows_with_words() -> None:
    few, many = (interval((np.arange(n) % 2).astype(np.float64)) for n in (10, 1000))
    assert few["low"] < many["low"] < 0.5 < many["high"] < few["high"]
    assert many["high"] - many["low"] == pytest.approx(2 * 1.96 * 0.5 / 1000**0.5, rel=0.15)
    assert interval(np.array([0.3])) == {"mean": 0.3, "low": 0.3, "high": 0.3}


def test_tokens_know_their_word() -> None:
    words = dictionary(3)
    for piece in ("ban@@", "k", "a"):
        words.add_symbol(piece)
    line = [words.index(token) for token in ("ban@@", "k", "a", "k")]
    found = all_tokens([words.pad(), *line, words.eos()], words)
    assert found[0] == ["bank", "a", "k"]
    assert found[1] == [(1, 0, True), (2, 0, True), (3, 1, False), (4, 2, False)]


def test_the_command_judges_words_and_pieces(trained: Trained, reported: Reported) -> None:
    gold = trained.data.parents[1] / "text" / "train.senses.tsv"
    flags = ["--split", "train", "--gold", gold, "--top", 1]
    shown, report, _ = reported("senses", trained.kerbs, "--data", trained.data, *flags)
    counts = report["gold"]["counts"]
    figures = counts["words"]
    assert figures["of"] > 0
    assert figures["one"]["senses"] == 1.0
    assert figures["best"]["bcubed"]["mean"] >= figures["one"]["bcubed"]["mean"]
    assert f"whole words, {figures['of']}" in shown
    assert "one sense per word" in shown
