"""Agreement of induced senses with gold senses: known values, and what the comparison shows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fairseq_kerbs.analysis import gold_senses
from fairseq_kerbs.analysis.gold_senses import Labelled
from fairseq_kerbs.analysis.occurrences import Occurrence, occurrences
from fairseq_kerbs.checkpoints import load_model_and_task
from fairseq_kerbs.utils.errors import UserError
from tests.analysis.conftest import Trained


@pytest.mark.parametrize(
    ("induced", "v_measure", "ari", "purity"),
    [
        ([7, 7, 7, 2, 2, 2], 1.0, 1.0, 1.0),
        ([0, 0, 0, 0, 0, 0], 0.0, 0.0, 0.5),
        # by hand. V: homogeneity 1, H(induced) = 1.0114 nats; ARI: 4 pairs agree of 6 and 4 of 15
        ([0, 0, 1, 2, 2, 2], 2 * np.log(2) / (np.log(2) + 1.0114042647), 2.4 / 3.4, 1.0),
        # mutual information ⅓ ln ⅔ + ⅔ ln 4/3; 2 pairs agree of 6 and 6 of 15
        ([0, 1, 1, 0, 0, 1], (np.log(2 / 3) + 2 * np.log(4 / 3)) / (3 * np.log(2)), -1 / 9, 2 / 3),
    ],
)
def test_agreement(induced: list[int], v_measure: float, ari: float, purity: float) -> None:
    found = gold_senses.agreement(np.array([0, 0, 0, 1, 1, 1]), np.array(induced))
    assert found["v_measure"] == pytest.approx(v_measure, abs=1e-6)
    assert found["ari"] == pytest.approx(ari, abs=1e-6)
    assert found["purity"] == pytest.approx(purity)
    assert (found["ami"] == pytest.approx(1)) == (v_measure == 1)
    assert found["ami"] <= v_measure + 1e-9  # adjusted for chance


def points(gold: NDArray[np.int64], apart: float, seed: int = 0) -> NDArray[np.float32]:
    """Contexts in two clusters."""
    noise = np.random.default_rng(seed).normal(size=(len(gold), 4))
    return (noise + apart * gold[:, None]).astype(np.float32)


def labelled(induced: list[int], senses: int = 2, apart: float = 8.0) -> Labelled:
    """20 occurrences of one gold sense, 12 of another; contexts in two clusters."""
    gold = np.array([0] * 20 + [1] * 12)
    return Labelled(gold, np.array(induced), points(gold, apart), senses)


TRAINING = points(np.arange(60) % 2, 8.0, seed=1)


def test_what_stands_beside_the_senses() -> None:
    """The senses of "seal" are the gold ones, "spring" has one alone; contexts tell them all."""
    words = {"seal": labelled([0] * 20 + [1] * 12), "spring": labelled([1] * 32)}
    found = gold_senses.compare_with_gold(words, dict.fromkeys(words, TRAINING))
    seal, spring = found["words"]["seal"], found["words"]["spring"]
    assert [seal[f"senses.{name}"] for name in gold_senses.MEASURES] == [1, 1, 1, 1]
    assert [spring[f"senses.{name}"] for name in gold_senses.MEASURES] == [20 / 32, 0, 0, 0]
    assert (seal["senses"], seal["used"], spring["used"]) == (2, 2, 1)
    for row in (seal, spring):
        assert row["kmeans.ari"] == row["probe.ari"] == row["probe.ami"] == 1.0
        assert abs(row["permuted.ari"]) < 0.1
    every = found["all"]
    assert every["senses.ari"]["mean"] == 0.5
    assert (every["senses.ari"]["low"], every["senses.ari"]["high"]) == (0, 1)  # of two words
    assert every["sign.ari"] == {"higher": 1, "of": 1, "p": 1.0}  # "spring" does not differ
    assert every["occurrences"] == 64
    lines = gold_senses.comparison_as_text(found).splitlines()
    assert "mean of 2 words, 64 occurrences" in lines[-6]
    assert "0.500 [0.000, 1.000]" in lines[-2]
    assert "1 of 1, p = 1" in lines[-1]


def test_intervals_and_the_sign_test_are_over_words() -> None:
    good, bad = labelled([0] * 20 + [1] * 12), labelled([1, 0] * 16)
    words = {f"w{number}": bad if number % 4 == 0 else good for number in range(40)}
    every = gold_senses.compare_with_gold(words, dict.fromkeys(words, TRAINING))["all"]
    mean, low, high = every["senses.ari"].values()
    bad_ari = gold_senses.agreement(bad.gold, bad.induced)["ari"]
    deviation = (1 - bad_ari) * (0.25 * 0.75 / 40) ** 0.5  # of a mean of 40 words
    assert mean == pytest.approx(0.75 + 0.25 * bad_ari)
    assert low == pytest.approx(mean - 1.96 * deviation, abs=0.03)
    assert high == pytest.approx(mean + 1.96 * deviation, abs=0.03)
    assert every["sign.ari"]["of"] == 40
    assert every["sign.ari"]["higher"] == 30
    assert every["sign.ari"]["p"] == pytest.approx(0.00222, rel=0.01)  # 2 P(at most 10 of 40)


def test_kmeans_is_fitted_on_training_contexts_alone() -> None:
    """With clusters elsewhere all labelled contexts are in one of them."""
    word = {"seal": labelled([0] * 32)}
    far = TRAINING + np.float32(1000)
    far[:30] += np.float32(1000)
    for training in (far, TRAINING[:0]):
        row = gold_senses.compare_with_gold(word, {"seal": training})["words"]["seal"]
        assert row["kmeans.ari"] == row["kmeans.v_measure"] == 0
        assert row["probe.ari"] == 1


def test_ceilings_are_low_where_contexts_do_not_tell() -> None:
    words = {"it": labelled([0] * 32, apart=0.0)}
    row = gold_senses.compare_with_gold(words, {"it": TRAINING})["words"]["it"]
    assert row["kmeans.ari"] < 0.3
    assert row["probe.ari"] < 0.3


def test_words_without_two_attested_senses_are_left_out() -> None:
    few = Labelled(np.array([0, 0, 0, 1]), np.zeros(4, int), np.zeros((4, 2), np.float32), 1)
    single = Labelled(np.array([0] * 9 + [1]), np.zeros(10, int), np.zeros((10, 2), np.float32), 1)
    words = {"few": few, "once": single, "seal": labelled([0] * 32)}
    training = dict.fromkeys(words, TRAINING)
    assert [*gold_senses.compare_with_gold(words, training)["words"]] == ["seal"]
    nothing = gold_senses.compare_with_gold({"few": few, "once": single}, training)
    assert nothing == {"words": {}, "all": {}}
    assert "no word has 6 occurrences" in gold_senses.comparison_as_text(nothing)


def test_contexts_of_whole_words_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gold_senses, "CONTEXTS", 40)
    seen = [occurrence(line, 0, "seal", 3) for line in range(90)]
    seen += [occurrence(0, 0, "a", 3), occurrence(1, 0, "b", 3), occurrence(2, -1, "a", 3)]
    sample = gold_senses.sample_contexts(seen, ["seal", "a", "none"])
    assert len(set(sample["seal"][:, 0])) == 40
    assert sample["a"].tolist() == [[0.0, 0.0]]
    assert sample["none"].shape == (0, 2)
    assert gold_senses.sample_contexts([], ["seal"]) == {}


def test_occurrences_of_some_words_are_those_among_all(trained: Trained) -> None:
    model, task = load_model_and_task(trained.kerbs, trained.data)
    words = {"the", "bank"}
    some = list(occurrences(model, task, "test", words=words))
    every = [o for o in occurrences(model, task, "test") if o.word in words]
    assert [(o.line, o.index, o.senses) for o in some] == [
        (o.line, o.index, o.senses) for o in every
    ]
    assert some


def occurrence(line: int, index: int, word: str, row: int) -> Occurrence:
    posterior = tuple(float(sense == row) for sense in (3, 8))
    return Occurrence(
        line, index, word, (3, 8), posterior, (word,), 0, torch.full((2,), line / 1.0)
    )


def test_occurrences_are_found_by_line_place_and_word() -> None:
    seen = [occurrence(0, 0, "seal", 8), occurrence(0, 1, "seal", 3), occurrence(2, 0, "Seal", 3)]
    gold = {(0, 0, "seal"): "animal", (0, 1, "seal"): "stamp", (2, 0, "seal"): "animal"}
    unknown = occurrence(0, 2, "seal", 3)
    found = gold_senses.by_word([*seen, unknown], gold)
    assert [*found] == ["seal"]
    assert found["seal"].gold.tolist() == [0, 1]
    assert found["seal"].induced.tolist() == [1, 0]
    assert found["seal"].senses == 2
    with pytest.raises(UserError, match="--split"):
        gold_senses.by_word([unknown], gold)


@pytest.mark.parametrize(
    ("text", "named"),
    [("", "empty"), ("0\t0\tbank\n", "line 1"), ("0\t0\tbank\tBank\nx\t0\tbank\tUfer\n", "line 2")],
)
def test_files_of_another_form_are_refused(text: str, named: str, tmp_path: Path) -> None:
    path = tmp_path / "gold.tsv"
    path.write_text(text)
    with pytest.raises(UserError, match=rf"gold\.tsv.*{named}"):
        gold_senses.read_gold_senses(path)
