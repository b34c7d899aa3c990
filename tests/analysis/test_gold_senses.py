"""Agreement of learned senses with true ones: known values, and what the comparison shows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fairseq_kerbs.analysis import gold_senses
from fairseq_kerbs.analysis.gold_senses import Labelled
from fairseq_kerbs.analysis.occurrences import Occurrence
from fairseq_kerbs.utils.errors import UserError


@pytest.mark.parametrize(
    ("learned", "v_measure", "ari", "purity"),
    [
        ([7, 7, 7, 2, 2, 2], 1.0, 1.0, 1.0),
        ([0, 0, 0, 0, 0, 0], 0.0, 0.0, 0.5),
        # by hand. V: homogeneity 1, H(learned) = 1.0114 nats; ARI: 4 pairs agree of 6 and 4 of 15
        ([0, 0, 1, 2, 2, 2], 2 * np.log(2) / (np.log(2) + 1.0114042647), 2.4 / 3.4, 1.0),
        # mutual information ⅓ ln ⅔ + ⅔ ln 4/3; 2 pairs agree of 6 and 6 of 15
        ([0, 1, 1, 0, 0, 1], (np.log(2 / 3) + 2 * np.log(4 / 3)) / (3 * np.log(2)), -1 / 9, 4 / 6),
    ],
)
def test_agreement(learned: list[int], v_measure: float, ari: float, purity: float) -> None:
    found = gold_senses.agreement(np.array([0, 0, 0, 1, 1, 1]), np.array(learned))
    assert found["v_measure"] == pytest.approx(v_measure, abs=1e-6)
    assert found["ari"] == pytest.approx(ari, abs=1e-6)
    assert found["purity"] == pytest.approx(purity)


def test_purity_by_hand() -> None:
    learned, true = np.array([7, 7, 7, 9, 9, 9, 9, 4]), np.array([0, 0, 1, 1, 1, 1, 0, 0])
    # sense 7: 2 of 3 are 0; sense 9: 3 of 4 are 1; sense 4: 1 of 1 is 0
    assert gold_senses.agreement(true, learned)["purity"] == pytest.approx(6 / 8)


def labelled(learned: list[int], senses: int = 3, apart: float = 4.0) -> Labelled:
    """20 occurrences of one true sense, 12 of another; contexts in two clusters."""
    true = np.array([0] * 20 + [1] * 12)
    noise = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
    contexts = (noise + apart * true[:, None]).astype(np.float32)
    return Labelled(true, np.array(learned), contexts, senses)


def test_what_stands_beside_the_senses() -> None:
    """The senses of "seal" are the true ones, "spring" has one alone; contexts tell them all."""
    words = {"seal": labelled([0] * 20 + [2] * 12), "spring": labelled([1] * 32)}
    found = gold_senses.compare_with_gold(words)
    seal, spring = found["words"]["seal"], found["words"]["spring"]
    assert (seal["senses.v_measure"], seal["senses.ari"], seal["senses.purity"]) == (1, 1, 1)
    assert (spring["senses.v_measure"], spring["senses.purity"]) == (0, 20 / 32)
    assert (seal["senses"], seal["used"], spring["used"]) == (3, 2, 1)
    for row in (seal, spring):
        assert row["kmeans.ari"] == row["probe.accuracy"] == 1.0
        assert row["one.purity"] == 20 / 32
        assert abs(row["permuted.ari"]) < 0.1
    assert found["all"]["senses.v_measure"] == 0.5
    assert found["all"]["senses.purity"] == 52 / 64
    text = gold_senses.comparison_as_text(found)
    assert "2 words" in text.splitlines()[-1]


def test_ceilings_are_low_where_contexts_do_not_tell() -> None:
    row = gold_senses.compare_with_gold({"it": labelled([0] * 32, apart=0.0)})["words"]["it"]
    assert row["kmeans.ari"] < 0.3
    assert row["probe.accuracy"] < 0.85


def test_words_without_two_attested_senses_are_left_out() -> None:
    few = Labelled(np.array([0, 0, 0, 1]), np.zeros(4, int), np.zeros((4, 2), np.float32), 1)
    single = Labelled(np.array([0] * 9 + [1]), np.zeros(10, int), np.zeros((10, 2), np.float32), 1)
    words = {"few": few, "once": single, "seal": labelled([0] * 32)}
    assert [*gold_senses.compare_with_gold(words)["words"]] == ["seal"]
    nothing = gold_senses.compare_with_gold({"few": few, "once": single})
    assert nothing == {"words": {}, "all": {}}
    assert "no word has 5 occurrences" in gold_senses.comparison_as_text(nothing)


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
    assert found["seal"].true.tolist() == [0, 1]
    assert found["seal"].learned.tolist() == [1, 0]
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
