"""What senses stand for: reports, `fairseq-kerbs senses`, Table 6, and one name everywhere."""

from __future__ import annotations

import csv
import re
import shutil
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from pandas import DataFrame

from fairseq_kerbs.analysis import plots
from fairseq_kerbs.analysis import words as entries
from fairseq_kerbs.analysis.names import SenseNames
from fairseq_kerbs.analysis.report import build_report, nearest_senses, report_as_text
from fairseq_kerbs.analysis.teacher_forcing import read_text
from fairseq_kerbs.checkpoints import load_layer, load_model_and_task
from fairseq_kerbs.commands import reading
from fairseq_kerbs.kernels import kerbs_kernel
from fairseq_kerbs.output_layers import OutputLayer, SoftmaxOutputLayer
from tests.analysis.conftest import Reported, Trained, text_of
from tests.helpers.cli import Capsys, Patch, kerbs
from tests.helpers.fairseq_fixtures import dictionary, make_model

WORDS = dictionary(23)


def test_nearest_senses_are_those_of_a_plain_loop() -> None:
    layer = make_model("lstm").decoder.output
    owners = layer.word_of_sense.tolist()
    asked, ignored = [5, 0, 17, 40], [0, 3]
    found = list(nearest_senses(layer, asked, 4, ignored))
    for sense, near in zip(asked, found, strict=True):
        logits = kerbs_kernel(layer.weight[sense], layer.weight, layer.theta).tolist()
        others = [m for m, owner in enumerate(owners) if m != sense and owner not in ignored]
        expected = sorted(others, key=lambda m: (-logits[m], m))[:4]
        assert [m for m, _ in near] == expected
        assert [score for _, score in near] == pytest.approx([logits[m] for m in expected], 1e-4)


def names_of(layer: OutputLayer, *numbers: int) -> SenseNames:
    """Names of a text "a w3 b" a line, each with a sense of w3 by its number."""
    rows = entries.sense_numbers(layer, 7)
    tokens = [(line, 1, 7, rows[number - 1]) for line, number in enumerate(numbers)]
    return SenseNames(text_of([["a", "w3", "b"]] * len(numbers), tokens), WORDS.symbols)


def test_report_counts_senses_and_true_ones() -> None:
    layer = make_model("lstm").decoder.output
    first, second, *_ = entries.sense_numbers(layer, 7)
    gold = {first: Counter(y=2), second: Counter(y=1, x=3)}
    names = names_of(layer, 2, 2, 2, 2, 1, 1)
    report = build_report(names, layer, WORDS, ["w3"], gold=gold)
    (word,) = report["words"]
    figures = word["senses"]
    shown = [tuple(s[k] for k in ("name", "sense", "times", "true_senses")) for s in figures[:2]]
    assert shown == [("w3#1", 1, 2, {"y": 2}), ("w3#2", 2, 4, {"x": 3, "y": 1})]
    assert sum(sense["usage"] for sense in figures) == pytest.approx(1.0)
    text = report_as_text(report)
    assert "a [w3] b" in text
    assert "true: x 3, y 1" in text


def test_senses_by_deciles_of_frequency() -> None:
    """Nine words in four groups of 3, 2, 2 and 2, by counts; the special symbol counts nothing."""
    counts = [0, 5, 90, 70, 5, 1, 30, 2, 8, 3]
    numbers = [4, 2, 4, 3, 1, 1, 2, 1, 4, 2]
    groups = entries.senses_by_frequency(numbers, counts, groups=4)
    right = [(3, 90, 30, 3.0), (2, 8, 5, 3.0), (2, 5, 3, 1.5), (2, 2, 1, 1.0)]
    assert [tuple(group.values()) for group in groups] == right
    assert len(entries.senses_by_frequency(numbers, counts)) == 9  # fewer words than deciles
    layer = make_model("lstm").decoder.output
    report = build_report(names_of(layer, 1), layer, WORDS)
    mean = sum(group["words"] * group["senses"] for group in report["deciles"])
    assert mean == pytest.approx(float(layer.senses_per_word()[4:].sum()))


def test_a_softmax_layer_has_no_word_of_several_senses() -> None:
    layer, words = SoftmaxOutputLayer(4, 9), dictionary(9)
    report = build_report(None, layer, words, nearest=2)
    assert (report["by_number"], report["words"]) == ([5], [])
    (word,) = build_report(None, layer, words, words=["w1"], nearest=9)["words"]
    (sense,) = word["senses"]
    assert sense["theta"] is None
    assert {near["name"] for near in sense["nearest"]} == {"w0#1", "w2#1", "w3#1", "w4#1"}


def test_the_checkpoint_alone_gives_layer_and_report(trained: Trained, reported: Reported) -> None:
    model, task = load_model_and_task(trained.kerbs, trained.data)
    layer, words = load_layer(trained.kerbs)
    assert (words.symbols, layer.kernel_name) == (task.target_dictionary.symbols, "kerbs")
    expected = model.decoder.output.state_dict()
    torch.testing.assert_close(dict(layer.state_dict()), dict(expected), rtol=0, atol=0)
    flags = ["--dict", trained.data / "dict.en.txt", "--top", 4, "--nearest", 2]
    text, report, rows = reported("senses", trained.kerbs, *flags)
    numbers = layer.senses_per_word().tolist()[4 : words.symbols.index("madeupword0000")]
    assert report["by_number"] == [numbers.count(n) for n in range(1, max(numbers) + 1)]
    assert [len(word["senses"]) for word in report["words"]] == [max(numbers)] * 4
    assert len(rows) == 4 * max(numbers)
    first = report["words"][0]["senses"][0]
    assert float(rows[0]["theta"]) == pytest.approx(layer.theta[first["row"]].item(), 1e-4)
    assert rows[0]["example"] == ""
    near, _ = first["nearest"]
    assert near["name"].startswith(f"{words[layer.word_of_sense[near['row']]]}#")
    assert f"{near['name']} {near['score']:.2f}" in text


def test_report_with_data(trained: Trained, reported: Reported, capsys: Capsys) -> None:
    given = ("senses", trained.kerbs, "--data", trained.data, "--word")
    shown, report, rows = reported(*given, "the", "--examples", 3)
    (word,) = report["words"]
    model, task = load_model_and_task(trained.kerbs, trained.data)
    tokens = read_text(model, task, "train").tokens
    the = tokens[tokens["entry"] == task.target_dictionary.index("the")]
    assert sum(sense["times"] for sense in word["senses"]) == len(the)
    for sense in word["senses"]:
        sure = sorted(the["posterior"][the["sense"] == sense["row"]], reverse=True)
        assert [e["posterior"] for e in sense["examples"]] == pytest.approx(sure[:3])
        assert all("[the]" in example["text"] for example in sense["examples"])
    assert len(rows) == sum(max(1, len(sense["examples"])) for sense in word["senses"])
    assert "@@" not in shown
    sources = {source for sense in word["senses"] for source, _ in sense["sources"]}
    assert sources
    assert all(source in shown for source in sources)
    piece = next(word for word in task.target_dictionary.symbols if word.endswith("@@"))
    lines = kerbs(capsys, *given, "the", piece).partition(f"\n{piece}: ")[2].splitlines()
    assert ", never as a whole word in the lines that were read" in lines[0]
    assert lines[2].split()[1] == "–"
    refused = kerbs(capsys, *given, piece, status=2)
    assert f"split train has no occurrence of {piece} as a whole word" in refused


def test_comparison_with_gold_senses(trained: Trained, tmp_path: Path, reported: Reported) -> None:
    text, command = trained.data.parents[1] / "text", ("senses", trained.kerbs, "--data")
    flags = [trained.data, "--top", 2, "--split", "train", "--gold", text / "train.senses.tsv"]
    shown, report, _ = reported(*command, *flags)
    rows, every = report["gold"]["words"], report["gold"]["all"]
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


def test_no_control_character_of_a_word_reaches_the_terminal(capsys: Capsys) -> None:
    reading.show("bank\x1b[2J\x9b\rü ▲\nspring")
    assert capsys.readouterr().out == "bank\ufffd[2J\ufffd\ufffdü ▲\nspring\n"


SYMBOLS = [
    *("<s>", "<pad>", "</s>", "<unk>", "the", "ban@@", "ing", "change", "12", "=it", "."),
    *("they", "madeupword0000", "ü|x"),
]
NUMBERS = [1, 1, 2, 4, 4, 2, 1, 4, 4, 1, 2, 4, 1, 2]


def test_only_whole_words_are_drawn() -> None:
    drawn = partial(entries.words_by_number_of_senses, NUMBERS, SYMBOLS, 4)
    assert drawn() == {1: ["ing", "=it"], 2: ["ü|x"], 3: [], 4: ["the", "change", "they"]}
    known = {"the", "change", "they", "=it", "ü|x"}
    assert drawn(known)[1] == ["=it"]
    pieces = drawn(known, with_pieces=True)
    assert (pieces[1], pieces[2]) == (["@@ing", "=it"], ["ban@@", "ü|x"])


def test_the_table_in_markdown_and_as_csv() -> None:
    head, _, *rows = entries.drawn_words({1: ["a|b"], 2: [], 3: ["c"]}, 5, 1).splitlines()
    assert [re.sub(" +", " ", row) for row in (head, *rows)] == [
        "| | 1 sense | 2 senses | 3 senses |",
        "| words in all | 1 | 0 | 1 |",
        "| drawn at random | a\\|b | | c |",
    ]
    table = entries.drawn_words({1: ["a,b"], 2: [], 3: ["=d"]}, 5, 1, csv=True)
    assert table.splitlines() == ["senses,words_in_all,word", '1,1,"a,b"', "3,1,=d"]
    gaps = DataFrame([{"a": 0.12345678, "b": None, "c": 1}, {"a": None, "b": "x", "c": 2}])
    for frame in (gaps, gaps.astype({"a": object})):
        assert entries.csv_of(frame, 6) == "a,b,c\n0.123457,,1\n,x,2\n"
    groups = {1: [f"a{number}" for number in range(300)], 2: ["b"]}
    table, again, other = (entries.drawn_words(groups, 5, seed) for seed in (1, 1, 2))
    assert table == again != other
    assert len(set(re.findall(r"\ba\d+", table))) == 5


def test_the_command_prints_the_table(trained: Trained, tmp_path: Path, capsys: Capsys) -> None:
    given = ["senses", trained.kerbs, "--data", trained.data, "--words-each", "999", "--table"]
    file, rows = tmp_path / "table.md", tmp_path / "table.csv"
    shown = kerbs(capsys, *given, file, "--by-number-of-senses")
    assert file.read_text() in shown
    assert "words in all" not in kerbs(capsys, *given, rows, "--with-pieces")
    words = {row["word"] for row in csv.DictReader(rows.read_text().splitlines())}
    pieces = {word for word in words if "@@" in word}
    assert {word[-2:] == "@@" for word in pieces} == {True, False}
    assert "@@" not in file.read_text()
    assert all(f"| {word} " in file.read_text() for word in words - pieces)


def test_all_outputs_name_a_sense_alike(
    trained: Trained, reported: Reported, monkeypatch: Patch, capsys: Capsys
) -> None:
    model, task = load_model_and_task(trained.kerbs, trained.data)
    layer, word = model.decoder.output, task.target_dictionary.index("the")
    rows = layer.word_of_sense.eq(word).nonzero()[:, 0].tolist()
    rows.sort(key=lambda row: (-layer.usage[row].item(), row))
    assert rows != sorted(rows)  # otherwise nothing is tested
    names = {f"the#{number}": row for number, row in enumerate(rows, start=1)}
    given = trained.kerbs, "--data", trained.data, "--word", "the"
    shown, report, table = reported("senses", *given)
    assert re.findall(r"^  (the#\d+)", shown, re.M) == list(names)
    (figures,) = report["words"]
    assert {one["name"]: one["row"] for one in figures["senses"]} == names
    assert {f"the#{one['sense']}": int(one["row"]) for one in table} == names
    counts = {one["name"]: one["times"] for one in figures["senses"]}
    drawn: list[Any] = []
    monkeypatch.setattr(plots, "save_figure", lambda figure, _: drawn.append(figure))
    kerbs(capsys, "plot", "contexts", *given, "--most", 100000, "-o", "a.png")
    legend = [text.get_text() for text in drawn[0].axes[0].get_legend().get_texts()]
    assert [text.split("\n")[0] for text in legend] == [f"{n} ({k})" for n, k in counts.items()]
    for text, one in zip(legend, figures["senses"], strict=True):
        assert one["translates"].split(",")[0] in text
