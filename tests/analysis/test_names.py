"""Names of senses: source words, neighbours, the turn before; one name in all outputs."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_kerbs.analysis import names as naming
from fairseq_kerbs.analysis import plots
from fairseq_kerbs.analysis.names import LEAST_OCCURRENCES, SenseNames, log_odds
from fairseq_kerbs.analysis.occurrences import Text
from fairseq_kerbs.checkpoints import load_model_and_task
from tests.analysis.conftest import Reported, Trained, text_of
from tests.helpers.cli import Capsys, Patch, kerbs


def test_all_outputs_name_a_sense_alike(
    trained: Trained, reported: Reported, monkeypatch: Patch, capsys: Capsys
) -> None:
    model, task = load_model_and_task(trained.kerbs, trained.data)
    layer = model.decoder.output
    word = task.target_dictionary.index("the")
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


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=60))
def test_scores_are_z_scores_of_log_odds(pairs: list[tuple[int, int]]) -> None:
    rows, columns = np.array(pairs).T
    table = np.zeros((4, 5), np.int64)
    np.add.at(table, (rows, columns), 1)
    scores = log_odds(table)
    for row, column in set(pairs):
        a = table[row, column]
        b = table[row].sum() - a
        c = table[:, column].sum() - a
        odds = np.log((a + 0.5) / (b + 0.5)) - np.log((c + 0.5) / (table.sum() - a - b - c + 0.5))
        right = odds / np.sqrt(1 / (a + 0.5) + 1 / (c + 0.5)) if a >= 2 else 0.0
        assert scores[row, column] == pytest.approx(right)


NAMED = ["<s>", "<pad>", "</s>", "<unk>", "bank", "the", "river", "money", "dog", "."]


def bank_text(sides: str, same: bool = False) -> Text:
    """ "the river bank ." and "the money bank ." in turn; rows 40 and 41 are senses of bank, 50 and
    51 senses of dog and of "the", which occur at random."""
    draw = np.random.default_rng(1)
    lines = []
    source = []
    tokens = []
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
    money = names.names(4)[40]
    river = names.names(4)[41]
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
        assert example[:3] == (posterior, ["the", "money", "bank", ".", "dog"], 2)
        assert example[3:] == (["das", "Geldhaus", "Hund"], 1)
    assert names.source_side == "translation"


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
    assert names.source_side == ("dialog" if sides == "same" else "none")
    (example,) = names.examples(41, 4, 1)
    turn = ["the", "dog", "river", "money", "bank", ".", "swim", "wet"]
    assert example[3:] == (turn if sides == "same" else [], None)
    river = names.names(4)[41]
    assert (river.sources, river.neighbours) == ([], ["river bank"])
    assert sorted(river.turn) == (["swim", "wet"] if sides == "same" else [])
    assert river.short.startswith("river bank")
    assert names.clarity(4) == pytest.approx(np.log(2), rel=0.02)
