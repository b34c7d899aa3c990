"""Agreement of senses with gold senses, and what stands beside it."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fairseq_kerbs.analysis import gold_senses
from fairseq_kerbs.analysis import words as entries
from fairseq_kerbs.analysis.gold_senses import Labelled, compare_with_gold
from fairseq_kerbs.utils.errors import UserError
from tests.analysis.conftest import Trained, text_of
from tests.helpers.cli import Capsys, Reported, kerbs
from tests.helpers.fairseq_fixtures import make_model


def test_comparison_with_gold_senses(trained: Trained, tmp_path: Path, reported: Reported) -> None:
    text = trained.data.parents[1] / "text"
    command = ("senses", trained.kerbs, "--data")
    flags = [trained.data, "--top", 2, "--split", "train", "--gold", text / "train.senses.tsv"]
    shown, report, _ = reported(*command, *flags)
    rows = report["gold"]["words"]
    every = report["gold"]["all"]
    most = sorted((row["occurrences"] for row in rows.values()), reverse=True)[:2]
    assert [rows[word["word"]]["occurrences"] for word in report["words"]] == most
    true = [sum(s["true_senses"].values()) for w in report["words"] for s in w["senses"]]
    assert sum(true) == sum(most)
    assert every["occurrences"] == sum(row["occurrences"] for row in rows.values())
    assert f"mean of {len(rows)} words" in shown
    # contexts of the same split, read once more
    again = reported(*command, *flags, "--train-data", trained.data)[1]["gold"]["words"]
    assert again == {word: pytest.approx(row, abs=1e-6) for word, row in rows.items()}
    # names are from the training data, also where the labelled data have none
    shutil.copytree(trained.data, tmp_path / "bin", ignore=shutil.ignore_patterns("train.*"))
    flags = [tmp_path / "bin", "--train-data", trained.data, "--gold", text / "test.senses.tsv"]
    assert reported(*command, *flags)[1]["lines_read"] == 250


def test_gold_senses_of_no_word_of_the_model(
    trained: Trained, tmp_path: Path, capsys: Capsys
) -> None:
    gold = tmp_path / "gold.tsv"
    gold.write_text("0\t0\tzzz\ta\n")
    error = kerbs(capsys, "senses", trained.kerbs, "--data", trained.data, "--gold", gold, status=2)
    assert "--gold has no word of the split that is a single token of the model" in error


def test_agreement_by_hand() -> None:
    """V: homogeneity 1, H(induced) = 1.0114 nats; ARI: 4 pairs agree of 6 and 4 of 15."""
    found = gold_senses.agreement(np.array([0, 0, 0, 1, 1, 1]), np.array([0, 0, 1, 2, 2, 2]))
    v_measure = 2 * np.log(2) / (np.log(2) + 1.0114042647)
    assert found["v_measure"] == pytest.approx(v_measure, abs=1e-6)
    assert (found["ari"], found["purity"]) == pytest.approx((2.4 / 3.4, 1.0))
    assert found["ami"] < v_measure  # adjusted for chance


def points(gold: np.ndarray, apart: float, seed: int = 0) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(size=(len(gold), 4))
    return (noise + apart * gold[:, None]).astype(np.float32)


def labelled(induced: list[int], apart: float = 8.0) -> Labelled:
    """20 occurrences of one gold sense, 12 of another; contexts in two clusters."""
    gold = np.array([0] * 20 + [1] * 12)
    return Labelled(gold, np.array(induced), points(gold, apart), 2)


GOOD = [0] * 20 + [1] * 12
BAD = [1, 0] * 16
SINGLE = [0] * 32
TRAINING = points(np.arange(60) % 2, 8.0, seed=1)


def test_what_stands_beside_the_senses() -> None:
    """The senses of "seal" are the gold ones, "spring" has one alone; contexts tell them all."""
    words = {"seal": labelled(GOOD), "spring": labelled([1] * 32)}
    found = compare_with_gold(words, dict.fromkeys(words, TRAINING))
    seal = found["words"]["seal"]
    spring = found["words"]["spring"]
    assert [seal[f"senses.{name}"] for name in gold_senses.MEASURES] == [1, 1, 1, 1]
    assert [spring[f"senses.{name}"] for name in gold_senses.MEASURES] == [20 / 32, 0, 0, 0]
    assert (seal["senses"], seal["used"], spring["used"]) == (2, 2, 1)
    for row in (seal, spring):
        assert row["kmeans.ari"] == row["probe.ari"] == row["probe.ami"] == 1.0
        assert abs(row["permuted.ari"]) < 0.1
    every = found["all"]
    assert every["senses.ari"] == {"mean": 0.5, "low": 0.0, "high": 1.0}  # of two words
    assert every["sign.ari"] == {"higher": 1, "of": 1, "p": 1.0}  # "spring" does not differ
    assert every["occurrences"] == 64
    lines = gold_senses.comparison_as_text(found).splitlines()
    assert "mean of 2 words, 64 occurrences" in lines[-6]
    assert "0.500 [0.000, 1.000]" in lines[-2]
    assert "1 of 1, p = 1" in lines[-1]


def test_intervals_and_the_sign_test_are_over_words() -> None:
    good, bad = (gold_senses.agreement(labelled(x).gold, np.array(x)) for x in (GOOD, BAD))
    counts = {"occurrences": 32, "senses": 2, "used": 2, "permuted.ari": 0.0}
    rows: list[dict[str, Any]] = []
    for row in [bad] * 10 + [good] * 30:
        each = ((f"{who}.{name}", row[name]) for who in gold_senses.PARTITIONS for name in row)
        rows.append({**dict(each), **counts, "permuted.purity": row["purity"] - 1e-16})
    every = gold_senses._over_words(rows)
    mean, low, high = every["senses.ari"].values()
    deviation = (1 - bad["ari"]) * (0.25 * 0.75 / 40) ** 0.5  # of a mean of 40 words
    assert mean == pytest.approx(0.75 + 0.25 * bad["ari"])
    assert low == pytest.approx(mean - 1.96 * deviation, abs=0.03)
    assert high == pytest.approx(mean + 1.96 * deviation, abs=0.03)
    assert (every["sign.ari"]["of"], every["sign.ari"]["higher"]) == (40, 30)
    assert every["sign.ari"]["p"] == pytest.approx(0.00222, rel=0.01)  # 2 P(at most 10 of 40)
    assert every["sign.purity"] == {"higher": 0, "of": 0, "p": 1.0}  # up to rounding
    single = gold_senses._over_words(rows[:1])["senses.ari"]
    assert single == dict.fromkeys(("mean", "low", "high"), bad["ari"])


def test_kmeans_is_fitted_on_training_contexts_alone_and_ceilings_may_be_low() -> None:
    """With clusters elsewhere all labelled contexts are in one of them."""
    far = TRAINING + np.float32(1000)
    far[:30] += np.float32(1000)
    for contexts in (far, TRAINING[:0]):
        row = compare_with_gold({"seal": labelled(SINGLE)}, {"seal": contexts})["words"]["seal"]
        assert (row["kmeans.ari"], row["kmeans.v_measure"], row["probe.ari"]) == (0, 0, 1)
    found = compare_with_gold({"it": labelled(SINGLE, apart=0.0)}, {"it": TRAINING})["words"]
    assert max(found["it"]["kmeans.ari"], found["it"]["probe.ari"]) < 0.3  # they do not tell


def test_words_without_two_attested_senses_are_left_out() -> None:
    few = Labelled(np.array([0, 0, 0, 1]), np.zeros(4, int), np.zeros((4, 2), np.float32), 1)
    single = Labelled(np.array([0] * 9 + [1]), np.zeros(10, int), np.zeros((10, 2), np.float32), 1)
    words = {"few": few, "once": single, "seal": labelled(SINGLE)}
    assert [*compare_with_gold(words, dict.fromkeys(words, TRAINING))["words"]] == ["seal"]
    nothing = compare_with_gold({"few": few, "once": single}, {})
    assert nothing == {"words": {}, "all": {}}
    assert gold_senses.comparison_as_text(nothing)


def test_occurrences_are_found_by_line_place_and_word(capsys: Capsys) -> None:
    layer = make_model("lstm").decoder.output
    first, second, *_ = rows = entries.sense_numbers(layer, 7)
    seal = 7
    capital = 8
    # lines 0 and 2 of the split; "a" is no word of the gold senses
    tokens = [(0, 0, seal, second), (0, 1, 9, 1), (0, 2, seal, first), (0, 3, seal, first)]
    tokens += [(1, 1, capital, entries.sense_numbers(layer, capital)[0])]
    lines = [["seal", "a", "seal", "seal"], ["seal", "Seal"]]
    contexts = torch.arange(4.0)[:, None]  # of the words that were asked for
    text = text_of(lines, tokens, number=[0, 2], contexts=contexts)
    gold = {(0, 0, "seal"): "animal", (0, 1, "seal"): "stamp", (2, 0, "Seal"): "animal"}
    numbers = {"seal": seal, "Seal": capital, "absent": 11}
    gold[1, 0, "seal"] = "stamp"  # of a line that was not read
    found, met = gold_senses.label_occurrences(text, gold, layer, numbers)
    assert [*found] == ["Seal", "seal"]
    gold_sense, induced, context, senses = found["seal"]
    assert (gold_sense.tolist(), induced.tolist()) == ([0, 1], [1, 0])
    assert (context.tolist(), senses) == ([[0.0], [1.0]], len(rows))
    assert (met[first], met[second]) == ({"stamp": 1}, {"animal": 1})
    assert "the split has 3 of 4 labels" in capsys.readouterr().err
    for others, named in (({}, "--split"), (gold, "has 3 of 9 labels")):
        later = {(9, n, "seal"): "x" for n in range(5)}
        with pytest.raises(UserError, match=named):
            gold_senses.label_occurrences(text, {**others, **later}, layer, numbers)


def test_lines_of_a_language_model_are_samples() -> None:
    task = SimpleNamespace(args=SimpleNamespace(sample_break_mode="none"))
    gold_senses.lines_as_samples(task)
    assert task.args.sample_break_mode == "eos"


def test_empty_lines_and_spaces_of_an_editor_are_no_senses(tmp_path: Path) -> None:
    path = tmp_path / "gold.tsv"
    path.write_text("0\t0\tbank\tBank\r\n\n1\t0\tbank \t Ufer \n\t\t\t\n")
    assert gold_senses.read_gold_senses(path) == {(0, 0, "bank"): "Bank", (1, 0, "bank"): "Ufer"}


def test_files_of_another_form_are_refused(tmp_path: Path) -> None:
    second = "0\t0\tbank\tBank\nx\t0\tbank\tUfer\n"
    again = "0\t0\tbank\tBank\n0\t0\tbank\tUfer\n"
    for text, named in (
        ("", "empty"),
        ("0\t0\tbank\n", "line 1"),
        ("²\t0\tbank\tBank\n", "line 1"),
        (second, "line 2"),
        (again, "line 2: this occurrence has another sense above"),
    ):
        path = tmp_path / "gold.tsv"
        path.write_text(text)
        with pytest.raises(UserError, match=f"{path}.*{named}"):
            gold_senses.read_gold_senses(path)
