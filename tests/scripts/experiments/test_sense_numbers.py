"""Which words have many senses."""

import csv
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pandas import DataFrame

from scripts.experiments.sense_numbers import (
    AFTER,
    ALGORITHM_1,
    BEFORE,
    RELEASED,
    RULES,
    correlations,
    main,
    words_of_release,
)
from tests.helpers.cli import Capsys

# every pair of a frequency and an entropy, so that these are not correlated
FREQUENCIES = [10, 20, 40, 80, 160, 320, 640, 1280]
ENTROPIES = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4]
LETTERS = "abcdefgh"
PAIRS = list(itertools.product(range(8), range(8)))
WORDS = [LETTERS[i] + LETTERS[j] for i, j in PAIRS]
INVENTORY = "decoder.output.inventory"


def write_words(path: Path) -> None:
    """Rule "before" follows frequency, the other one entropy. Pieces are not read."""
    before, after = RULES
    rows = []
    for word, (i, j) in zip(WORDS, PAIRS):
        shared: dict[str, Any] = {"kind": "words", "word": word}
        shared |= {"frequency": FREQUENCIES[i], "entropy": ENTROPIES[j]}
        rows.append(shared | {"rule": before, "senses": 1 + i // 2})
        rows.append(shared | {"rule": after, "senses": 1 + j // 2})
        rows.append(shared | {"rule": after, "senses": 4, "kind": "pieces", "word": f"{word}@@"})
    DataFrame(rows).to_csv(path, index=False)


def write_model(path: Path, policy: str = "paper") -> None:
    """A KerBS model: log P is −frequency, and the number of senses as rule "before" has it."""
    counts = [1] * 4 + [1 + i // 2 for i, _ in PAIRS]
    log_prob = [0.0] * 4 + [-float(FREQUENCIES[i]) for i, _ in PAIRS]
    model = {
        f"{INVENTORY}.word_of_sense": torch.arange(len(counts)).repeat_interleave(
            torch.tensor(counts)
        ),
        f"{INVENTORY}.log_prob": torch.tensor(log_prob),
    }
    settings = {"reallocation": policy, "log_prob_threshold": -100.0}
    torch.save({"cfg": {"model": settings}, "model": model}, path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_words(tmp_path / "words.csv")
    for seed in (1, 2):
        write_model(tmp_path / f"kerbs{seed}.pt")
    (tmp_path / "dict.en.txt").write_text("".join(f"{word} 1\n" for word in WORDS))
    # words in lower case, of which "ha" is not in the text and "hb" has no number
    released = "".join(f"{word}\t2\n" for word in WORDS if word != "hb")
    (tmp_path / "sense_num.txt").write_text(f"AA\t9\n{released}")
    text = "\n".join(f"{word.upper()} {word} ." for word in WORDS if word != "ha")
    (tmp_path / "train.en").write_text(f"{text}\n")
    return tmp_path


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def arguments(folder: Path) -> list[str]:
    models = [str(folder / f"kerbs{seed}.pt") for seed in (1, 2)]
    files = ["--dict", str(folder / "dict.en.txt"), "-o", str(folder / "out")]
    return [str(folder / "words.csv"), *models, *files]


def test_the_command_tells_frequency_from_entropy(folder: Path) -> None:
    release = ["--released", str(folder / "sense_num.txt"), "--text", str(folder / "train.en")]
    assert main([*arguments(folder), *release]) == 0
    out = folder / "out"
    found = {(row["source"], row["of"]): row for row in rows_of(out / "correlations.csv")}
    number = "number of senses"
    assert [source for source, of in found if of == number] == [
        ALGORITHM_1,
        RELEASED,
        BEFORE,
        AFTER,
    ]
    for source, follows, ignores in (
        (ALGORITHM_1, "frequency", "entropy"),
        (BEFORE, "frequency", "entropy"),
        (AFTER, "entropy", "frequency"),
    ):
        row = found[source, number]
        assert row["words"] == "64"
        assert float(row[f"with_{follows}_mean"]) > 0.95
        assert abs(float(row[f"with_{ignores}_mean"])) < 0.01
    assert float(found[ALGORITHM_1, "-log P"]["with_frequency_mean"]) > 0.8
    assert found[RELEASED, number]["words"] == "62"
    assert not found[RELEASED, number]["with_entropy_mean"]  # all have two senses
    below = rows_of(out / "below_epsilon.csv")
    assert [(row["model"], row["log_prob"], row["words"]) for row in below] == [
        ("1", "not below ε", "32"),
        ("1", "below ε", "32"),
        ("2", "not below ε", "32"),
        ("2", "below ε", "32"),
    ]
    assert [float(row["frequency_median"]) for row in below] == [30.0, 480.0] * 2
    assert all(float(row["entropy_mean"]) == pytest.approx(0.7) for row in below)
    assert len(rows_of(out / "senses.csv")) == 3 * 64 + 62
    before = [row for row in rows_of(out / "numbers.csv") if row["source"] == BEFORE]
    by_frequency = [row for row in before if row["by"] == "frequency"]
    assert [float(row["at"]) for row in by_frequency] == FREQUENCIES
    assert [float(row["mean"]) for row in by_frequency] == [1, 1, 2, 2, 3, 3, 4, 4]
    assert "Algorithm 1" in (out / "number_of_senses.svg").read_text(encoding="utf-8")


def test_released_numbers_are_in_lower_case() -> None:
    words = DataFrame(
        {"word": ["The", "the", "dog"], "frequency": [5, 90, 7], "entropy": [0.1, 0.2, 0.3]}
    )
    found = words_of_release(words, {"the": 4, "dog": 1}, ["The dog .", "the man"])
    rows = found[["word", "frequency", "entropy", "senses"]].to_dict("records")
    assert rows == [
        {"word": "the", "frequency": 2.0, "entropy": 0.2, "senses": 4.0},
        {"word": "dog", "frequency": 1.0, "entropy": 0.3, "senses": 1.0},
    ]


def test_a_correlation_is_that_of_residuals() -> None:
    """Entropy rises with frequency, and values with both."""
    drawn = np.random.default_rng(4)
    frequency = np.exp(drawn.uniform(1, 6, 200))
    entropy = 0.2 * np.log(frequency) + drawn.uniform(0, 1, 200)
    value = entropy + 0.1 * np.log(frequency) + drawn.uniform(0, 1, 200)
    table = DataFrame(
        {"source": "a", "of": "n", "frequency": frequency, "entropy": entropy, "value": value}
    )
    (row,) = correlations(table)

    def residuals(y: Any, x: Any) -> Any:
        design = np.stack([np.ones(len(x)), x], 1)
        return y - design @ np.linalg.lstsq(design, y, rcond=None)[0]

    for name, x, given in (
        ("with_entropy", entropy, np.log(frequency)),
        ("with_frequency", np.log(frequency), entropy),
    ):
        expected = np.corrcoef(residuals(value, given), residuals(x, given))[0, 1]
        assert row[f"{name}_mean"] == pytest.approx(expected)
        assert row[f"{name}_low"] < expected < row[f"{name}_high"]


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (
            lambda folder: write_model(folder / "kerbs1.pt", "clusters"),
            "kerbs1.pt was trained with --reallocation clusters; name models of",
        ),
        (lambda folder: (folder / "dict.en.txt").write_text("a 1\n"), "no KerBS model with the 5"),
        (lambda folder: (folder / "words.csv").unlink(), "words.csv"),
    ],
    ids=["policy", "dictionary", "words"],
)
def test_wrong_files_are_one_sentence(spoil: Any, says: str, folder: Path, capsys: Capsys) -> None:
    spoil(folder)
    assert main(arguments(folder)) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
    assert not (folder / "out").exists()


def test_released_numbers_need_their_text(folder: Path, capsys: Capsys) -> None:
    numbers = ["--released", str(folder / "sense_num.txt")]
    assert main([*arguments(folder), *numbers]) == 2
    assert "--released and --text" in capsys.readouterr().err
    (folder / "sense_num.txt").write_text("bank two\n")
    assert main([*arguments(folder), *numbers, "--text", str(folder / "train.en")]) == 2
    assert "sense_num.txt, line 1: 'bank two'" in capsys.readouterr().err
