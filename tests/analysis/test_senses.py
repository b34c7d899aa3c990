"""What senses stand for: reports, Table 6, one name everywhere; agreement with gold senses."""

import csv
import math
import re
import shutil
from collections import Counter, defaultdict
from functools import partial
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from pandas import DataFrame

from fairseq_kerbs.analysis import gold_senses, plots
from fairseq_kerbs.analysis import names as naming
from fairseq_kerbs.analysis import words as entries
from fairseq_kerbs.analysis.alignment import NULL, align
from fairseq_kerbs.analysis.gold_senses import Labelled, compare_with_gold
from fairseq_kerbs.analysis.names import LEAST_OCCURRENCES, SenseNames, log_odds
from fairseq_kerbs.analysis.occurrences import Text, read_text
from fairseq_kerbs.analysis.report import (
    ReportSize,
    build_report,
    html_page,
    nearest_senses,
    report_as_text,
)
from fairseq_kerbs.checkpoints import load_layer, load_model_and_task
from fairseq_kerbs.kernels import kerbs_kernel
from fairseq_kerbs.output_layers import KerbsOutputLayer, OutputLayer, SoftmaxOutputLayer
from fairseq_kerbs.training.sense_updates import summarize
from fairseq_kerbs.utils.errors import UserError
from tests.analysis.conftest import Lines, Reported, Trained, text_of
from tests.helpers.cli import Capsys, Patch, kerbs
from tests.helpers.fairseq_fixtures import dictionary, make_model

WORDS = dictionary(23)


def test_nearest_senses_are_those_of_a_plain_loop() -> None:
    layer = make_model("lstm").decoder.output
    owners, asked, ignored = layer.word_of_sense.tolist(), [5, 0, 17, 40], [0, 3]
    for sense, near in zip(asked, nearest_senses(layer, asked, 4, ignored), strict=True):
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
    report = build_report(names_of(layer, 2, 2, 2, 2, 1, 1), layer, WORDS, ["w3"], gold=gold)
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
    counts, numbers = [0, 5, 90, 70, 5, 1, 30, 2, 8, 3], [4, 2, 4, 3, 1, 1, 2, 1, 4, 2]
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
    report = build_report(None, layer, words, size=ReportSize(nearest=2))
    assert (report["by_number"], report["words"]) == ([5], [])
    (word,) = build_report(None, layer, words, words=["w1"], size=ReportSize(nearest=9))["words"]
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


def test_theta_of_the_released_kernel_is_shown_and_not_its_logarithm(
    trained: Trained, reported: Reported, monkeypatch: Patch, capsys: Capsys, tmp_path: Path
) -> None:
    state = torch.load(trained.kerbs, weights_only=False)
    state["cfg"]["model"].kernel = "kerbs_released"
    parameter = state["model"]["decoder.output.theta"]
    parameter.copy_(torch.linspace(-3.5, 2.5, len(parameter)))
    torch.save(state, checkpoint := tmp_path / "released.pt")
    flags = ["--dict", trained.data / "dict.en.txt", "--word", "the"]
    _, report, _ = reported("senses", checkpoint, *flags)
    senses = report["words"][0]["senses"]
    right = [math.exp(parameter[sense["row"]]) for sense in senses]
    assert [sense["theta"] for sense in senses] == pytest.approx(right, rel=1e-5)
    drawn: list[list[float]] = []

    def draw(sets: Any, theta: Any, usage: Any, labels: Any) -> Figure:
        drawn.extend(*theta)
        return Figure()

    monkeypatch.setattr(plots, "plot_theta", draw)
    kerbs(capsys, "plot", "theta", checkpoint, *flags, "-o", tmp_path / "theta.png")
    assert drawn == [pytest.approx(right, rel=1e-5)]
    layer, _ = load_layer(checkpoint, trained.data / "dict.en.txt")
    assert "authors' released code" in html_page("", {}, report, layer)
    assert isinstance(layer, KerbsOutputLayer)
    summary = summarize(layer)
    assert summary["theta_q50"] == pytest.approx(math.exp(parameter.median()), rel=0.1)


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


SYMBOLS = [
    "<s>",
    "<pad>",
    "</s>",
    "<unk>",
    "the",
    "ban@@",
    "ing",
    "change",
    "12",
    "=it",
    ".",
    "they",
    "madeupword0000",
    "ü|x",
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


GOOD, BAD, SINGLE = [0] * 20 + [1] * 12, [1, 0] * 16, [0] * 32
TRAINING = points(np.arange(60) % 2, 8.0, seed=1)


def test_what_stands_beside_the_senses() -> None:
    """The senses of "seal" are the gold ones, "spring" has one alone; contexts tell them all."""
    words = {"seal": labelled(GOOD), "spring": labelled([1] * 32)}
    found = compare_with_gold(words, dict.fromkeys(words, TRAINING))
    seal, spring = found["words"]["seal"], found["words"]["spring"]
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
    seal, capital = 7, 8
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
        (path := tmp_path / "gold.tsv").write_text(text)
        with pytest.raises(UserError, match=f"{path}.*{named}"):
            gold_senses.read_gold_senses(path)


def plain_posteriors(text: Lines, other: Lines, iterations: int) -> list[list[float]]:
    """P(f_i causes e) of every word, NULL first: Brown et al. (1993) in loops."""
    pairs = [(words, ["NULL", *causes]) for words, causes in zip(text, other, strict=True)]
    translation: defaultdict[tuple[str, str], float] = defaultdict(lambda: 1.0)

    def posteriors(words: list[str], causes: list[str]) -> list[list[float]]:
        rows = [[translation[word, cause] for cause in causes] for word in words]
        return [[value / sum(row) for value in row] for row in rows]

    for _ in range(iterations):
        counts: defaultdict[tuple[str, str], float] = defaultdict(float)
        totals: defaultdict[str, float] = defaultdict(float)
        for words, causes in pairs:
            for word, row in zip(words, posteriors(words, causes), strict=True):
                for cause, share in zip(causes, row, strict=True):
                    counts[word, cause] += share
                    totals[cause] += share
        translation.update({key: value / totals[key[1]] for key, value in counts.items()})
    return [row for words, causes in pairs for row in posteriors(words, causes)]


@pytest.mark.parametrize("iterations", [0, 1, 5])
def test_causes_are_the_most_probable_ones_of_plain_loops(iterations: int) -> None:
    draw = Random(0)
    text = [[draw.choice("abcd") for _ in range(draw.randint(0, 5))] for _ in range(60)]
    other = [[draw.choice("uvwxyz") for _ in range(draw.randint(0, 5))] for _ in range(60)]
    starts = np.cumsum([0, *map(len, other)])
    start = [starts[line] for line, words in enumerate(text) for _ in words]
    rows, best = plain_posteriors(text, other, iterations), align(text, other, iterations)
    found = [0 if cause == NULL else cause - begin + 1 for cause, begin in zip(best, start)]
    chosen = [row[at] for row, at in zip(rows, found, strict=True)]
    assert chosen == pytest.approx([*map(max, rows)])
    assert len({*found}) > 2 or iterations == 0


def test_words_find_their_translations() -> None:
    # by hand after one iteration: t(the | das) = t(the | NULL) = 5/7 > t(the | Haus) = 1/2, but
    # t(house | Haus) = 1/2 > 2/7; NULL stands first where two are equal
    best = align([["the", "house"], ["the"]], [["das", "Haus"], ["das"]], 1)
    assert best.tolist() == [NULL, 1, NULL]
    # words that always occur together are parted by their places
    together = align([["the", "trunk"], ["the"]], [["ihr", "Elefant", "Rüssel"], ["ihr"]])
    assert together.tolist()[1] == 2
    assert align([["trunk", "up"], ["up"]], [["Rüssel", "Elefant", "auf"], ["auf"]])[0] == 0
    assert align([["x"], [], ["y"]], [[], ["q"], []]).tolist() == [NULL, NULL]
    assert align([], []).tolist() == []


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=60))
def test_scores_are_z_scores_of_log_odds(pairs: list[tuple[int, int]]) -> None:
    rows, columns = np.array(pairs).T
    table = np.zeros((4, 5), np.int64)
    np.add.at(table, (rows, columns), 1)
    scores = log_odds(table)
    for row, column in set(pairs):
        a = table[row, column]
        b, c = table[row].sum() - a, table[:, column].sum() - a
        odds = np.log((a + 0.5) / (b + 0.5)) - np.log((c + 0.5) / (table.sum() - a - b - c + 0.5))
        right = odds / np.sqrt(1 / (a + 0.5) + 1 / (c + 0.5)) if a >= 2 else 0.0
        assert scores[row, column] == pytest.approx(right)


NAMED = ["<s>", "<pad>", "</s>", "<unk>", "bank", "the", "river", "money", "dog", "."]


def bank_text(sides: str, same: bool = False) -> Text:
    """ "the river bank ." and "the money bank ." in turn; rows 40 and 41 are senses of bank, 50 and
    51 senses of dog and of "the", which occur at random."""
    draw = np.random.default_rng(1)
    lines, source, tokens = [], [], []
    for number in range(4 * LEAST_OCCURRENCES):
        river = number % 2
        lines.append(["the", "river" if river else "money", "bank", ".", "dog"])
        shore = "Ufer" if number != 7 else "Flussufer"  # once is chance
        asked = ["the", "dog", "river", "money", "bank", "."]
        asked += ["swim", "wet"] if river else ["pay"]
        source.append(asked if same else ["das", shore if river else "Geldhaus", "Hund"])
        tokens += [(number, 2, 4, 40 + river), (number, 4, 8, 50 + int(draw.integers(2)))]
        tokens += [(number, 0, 5, 60 + river), (number, 3, 9, 70 + river)]
    tokens += [(len(lines) + n, 1, 8, 50 + int(draw.integers(2))) for n in range(len(lines))]
    lines += [["the", "dog", "."]] * len(lines)  # without bank, for the alignment
    source += [["das", "Hund"]] * len(source)
    text = text_of(lines, tokens, None if sides == "one" else source)
    text.tokens["posterior"] = draw.uniform(0.5, 1.0, len(tokens))
    return text


def test_a_sense_is_named_by_what_it_translates_and_its_neighbours() -> None:
    text = bank_text("two")
    names = SenseNames(text, NAMED)
    money, river = names.names(4)[40], names.names(4)[41]
    assert (money.sources, river.sources) == ([("Geldhaus", 80)], [("Ufer", 79)])
    assert (money.neighbours, river.neighbours) == (["money bank"], ["river bank"])
    assert (money.share, money.turn) == (0.5, [])
    assert (river.translates, river.short) == ("Ufer 79", "Ufer")
    assert names.clarity(4) == pytest.approx(np.log(2), rel=0.02)
    unknown = [["<unk>" if word == "river" else word for word in line] for line in text.words]
    nothing = SenseNames(text._replace(words=unknown), NAMED).names(4)[41]
    assert (nothing.neighbours, nothing.share) == ([], 0.5)
    assert (names.names(6), names.examples(40, 6, 9), names.clarity(6)) == ({}, [], 0.0)
    assert names.clarity(8) < 0.02
    assert [name.neighbours for name in names.names(8).values()] == [[], []]  # they are at random
    posteriors = sorted(text.tokens["posterior"][text.tokens["sense"] == 40], reverse=True)
    for example, posterior in zip(names.examples(40, 4, 3), posteriors[:3], strict=True):
        assert example == (posterior, ["the", "money", "bank", ".", "dog"], 2)


def test_related_languages_are_aligned_and_first_words_have_their_usual_case() -> None:
    text = bank_text("two")
    ours = {"das": "the", "Hund": "dog", "Geldhaus": "money"}  # most words are the same
    lines = [[ours.get(word, word) for word in line] for line in text.source or []]
    source = [[b.capitalize(), a] if n % 4 > 1 else [a, b] for n, (a, b, *_) in enumerate(lines)]
    assert not naming.is_dialog(text.words, source)
    assert SenseNames(text._replace(source=source), NAMED).names(4)[40].sources == [("money", 80)]
    assert [naming.is_function_word(word) for word in ("The", "fire")] == [True, False]


def test_the_clearest_words_come_first_and_those_without_content_last() -> None:
    names = SenseNames(bank_text("one"), NAMED)
    assert names.clarity(5) == pytest.approx(names.clarity(4), rel=0.05)  # of "the", by "river"
    words = names.clearest(0, special=4)
    assert (words[0], words[-1]) == ("bank", "the")
    assert names.clearest(1, special=4) == ["bank"]


@pytest.mark.parametrize("sides", ["one", "same", "empty"])
def test_without_another_language_neighbours_and_the_turn_before_name_senses(sides: str) -> None:
    text = bank_text(sides, same=True)
    if sides == "empty":
        text = text._replace(source=[[]] * len(text.words))
    names = SenseNames(text, NAMED)
    river = names.names(4)[41]
    assert (river.sources, river.neighbours) == ([], ["river bank"])
    assert sorted(river.turn) == (["swim", "wet"] if sides == "same" else [])
    assert river.short.startswith("river bank")
    assert names.clarity(4) == pytest.approx(np.log(2), rel=0.02)
