"""θ of narrow and broad words."""

import csv
from pathlib import Path

import pytest
import torch

from fairseq_kerbs.checkpoints import load_layer
from fairseq_kerbs.utils.errors import UserError
from scripts.experiments.theta import PAIRS, compare, main, read_pairs
from tests.helpers.cli import Capsys
from tests.helpers.tiny_checkpoint import binarized_corpus, fairseq_train


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model in which θ of the senses of "the" are 1 and 2, of "a" −1, and of others 0."""
    folder = tmp_path_factory.mktemp("theta")
    data = binarized_corpus(folder, {"train": 60, "valid": 10, "test": 6})
    fairseq_train(data, "--save-dir", folder / "save", "--total-senses", "2")
    path = folder / "save" / "checkpoint_last.pt"
    layer, entries = load_layer(path, data / "dict.en.txt")
    state = torch.load(path, weights_only=False)
    theta = state["model"]["decoder.output.theta"]
    usage = state["model"]["decoder.output.inventory.usage"]
    theta.zero_()
    for word, values in (("the", [1.0, 2.0]), ("a", [-1.0, -1.0])):
        senses = layer.table.senses[entries.index(word)][:2]
        theta[senses] = torch.tensor(values)
        usage[senses] = torch.tensor([0.1, 0.3])
    torch.save(state, path)
    return path, data / "dict.en.txt"


def test_theta_of_a_word_is_weighted_by_usage(trained: tuple[Path, Path]) -> None:
    layer, _ = load_layer(*trained)
    the, a = layer.kernel.theta_of(torch.tensor([[1.0, 2.0], [-1.0, -1.0]]))
    rows, summary = compare(*trained, [("a", "the"), ("the", "a")])
    expected = float(0.25 * the[0] + 0.75 * the[1])
    assert [row["theta_broad"] for row in rows] == pytest.approx([expected, float(a[0])])
    assert [row["theta_narrow"] for row in rows] == pytest.approx([float(a[0]), expected])
    assert (summary["pairs"], summary["broad word has the larger theta"]) == (2, 1)
    # the same word twice tells nothing about frequency
    _, summary = compare(*trained, [("a", "the"), ("the", "the")])
    assert summary["pairs of different frequency"] == 1
    assert summary["more frequent word has the larger theta"] == 1
    assert not [name for name in summary if name.startswith("p ") or name == "p"]


def test_the_script_writes_pairs_and_a_summary(
    trained: tuple[Path, Path], tmp_path: Path, capsys: Capsys
) -> None:
    checkpoint, dictionary = map(str, trained)
    (tmp_path / "pairs.txt").write_text("a the\n" * 6)
    files = ["--output", str(tmp_path / "rows.csv"), "--summary", str(tmp_path / "summary.csv")]
    main([checkpoint, "--dict", dictionary, "--pairs", str(tmp_path / "pairs.txt"), *files])
    assert "broad word has the larger theta 6" in capsys.readouterr().out
    with (tmp_path / "summary.csv").open() as stream:
        [found] = csv.DictReader(stream)
    assert found["pairs"] == "6"
    with (tmp_path / "rows.csv").open() as stream:
        assert len(list(csv.DictReader(stream))) == 6


def test_pairs_are_checked(trained: tuple[Path, Path], tmp_path: Path, capsys: Capsys) -> None:
    file = tmp_path / "pairs.txt"
    for text, message in (("dog\n", "line 1"), ("", "is empty"), ("a b c\n", "line 1")):
        file.write_text(text)
        with pytest.raises(UserError, match=message):
            read_pairs(file)
    file.write_text("nothing the\n")
    with pytest.raises(SystemExit) as ended:
        main([str(trained[0]), "--dict", str(trained[1]), "--pairs", str(file)])
    assert ended.value.code == 2
    assert "nothing: not in the dictionary" in capsys.readouterr().err


def test_the_listed_pairs_are_different_words() -> None:
    pairs = read_pairs(PAIRS)
    assert len({*pairs}) == len(pairs)
    assert not {*pairs} & {(broad, narrow) for narrow, broad in pairs}
