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
from tests.analysis.conftest import Trained, text_of
from tests.helpers.cli import Capsys, Patch, Reported, kerbs


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
    legend = [text.get_text() for text in drawn[0].legends[0].get_texts()]
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


def test_a_word_beside_itself_is_named_once() -> None:
    text = bank_text("two")
    twice = [["the", "bank", "bank", "."] if line[1] == "river" else line for line in text.words]
    found = SenseNames(text._replace(words=twice), NAMED).names(4)[41]
    assert found.neighbours == ["bank bank"]


def test_related_languages_are_aligned_and_first_words_have_their_usual_case() -> None:
    text = bank_text("two")
    ours = {"das": "the", "Hund": "dog", "Geldhaus": "money"}  # most words are the same
    lines = [[ours.get(word, word) for word in line] for line in text.source or []]
    source = [[b.capitalize(), a] if n % 4 > 1 else [a, b] for n, (a, b, *_) in enumerate(lines)]
    assert not naming.is_dialog(text.words, source)
    assert SenseNames(text._replace(source=source), NAMED).names(4)[40].sources == [("money", 80)]


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


SPLIT = ["<s>", "<pad>", "</s>", "<unk>", "bank", "brown", "twig", "of", "couch", "ier", "ban@@"]
# by entry: the word before both senses, the word or the words of a piece, and source words
PAIRS = {
    4: ("shore money", "bank bank", "Ufer Geldhaus"),  # split by meaning
    5: ("big small", "brown brown", "brauner braunen"),  # by form
    6: ("dry green", "twig twig", "Zweig Zweiges"),
    7: ("made kind", "of of", "von aus"),  # a function word
    8: ("soft soft", "couch couch", "Couch Sofa"),  # by two source words alone
    9: ("", "skier pier", "Läufer Steg"),
    10: ("", "banner bandit", "Fahne Räuber"),
}


def split_text(source: bool = True, before_bank: str = "") -> Text:
    """A text whose entries have two senses of 80 occurrences: 10 times the entry, and one more.

    "ier" and "ban@@" are pieces, and "ier" is once a whole word.

    Args:
        source: whether there is a source side.
        before_bank: two other words before bank.
    """
    draw = np.random.default_rng(3)
    lines = []
    sources = []
    tokens = []
    for entry, texts in PAIRS.items():
        before, words, causes = map(str.split, texts)
        if entry == 4:
            before = before_bank.split() or before
        for number in range(4 * LEAST_OCCURRENCES):
            sense = number % 2
            noise = [f"n{draw.integers(30)}" for _ in range(4)]
            word_before = before[sense] if before else noise[3]
            lines.append([noise[0], word_before, words[sense], noise[1], noise[2]])
            sources.append([f"N{noise[1]}", causes[sense], f"N{noise[0]}", f"N{noise[2]}"])
            tokens.append((len(lines) - 1, 2, entry, 10 * entry + sense, entry > 8))
    lines.append(["ier"])
    sources.append(["Ihr"])
    tokens.append((len(lines) - 1, 0, 9, 90, False))
    text = text_of(lines, [token[:4] for token in tokens], sources if source else None)
    text.tokens["piece"] = [piece for *_, piece in tokens]
    return text


def test_words_split_by_meaning_come_before_those_split_by_form() -> None:
    names = SenseNames(split_text(), SPLIT)
    told = {SPLIT[entry]: names.information(entry) for entry in range(4, 9)}
    assert told["bank"] == pytest.approx((np.log(2),) * 4, rel=0.02)
    for word in ("brown", "twig"):
        assert told[word].written == pytest.approx(np.log(2), rel=0.02)
        assert told[word].meaning == pytest.approx(0.0, abs=1e-9)  # one stem
        assert told[word].clarity == pytest.approx(0.0, abs=1e-9)
    assert told["couch"].meaning == pytest.approx(np.log(2), rel=0.02)
    assert told["couch"].clarity < 0.1  # the same words are beside both
    forms = {word for word in told if names.forms_of_one_word(SPLIT.index(word))}
    assert forms == {"brown", "twig"}
    assert names.clearest(0, special=4) == ["bank", "couch", "brown", "twig", "of"]
    assert names.clearest(1, special=4) == ["bank"]


def test_without_a_source_side_content_words_beside_a_word_tell_its_senses_apart() -> None:
    text = split_text(source=False, before_bank="the of")  # function words, as English knows them
    names = SenseNames(text, SPLIT)
    told = names.information(4)
    assert told.written == pytest.approx(np.log(2), rel=0.02)
    assert told.meaning == told.clarity < 0.05
    assert names.forms_of_one_word(4)
    assert not names.forms_of_one_word(5)  # big and small are before brown
    assert names.clearest(0, special=4)[:2] == ["brown", "twig"]
    assert names.clearest(0, special=4).index("bank") == 2


def test_rare_words_are_not_said_to_be_forms() -> None:
    text = split_text()
    brown = text.tokens.index[text.tokens["entry"] == 5]
    rare = text.tokens.drop(index=brown[LEAST_OCCURRENCES - 1 :]).reset_index(drop=True)
    names = SenseNames(text._replace(tokens=rare), SPLIT)
    assert names.information(5).one_word
    assert not names.forms_of_one_word(5)
    assert "brown" not in names.clearest(0, special=4)


def test_a_piece_shows_the_words_that_it_is_a_part_of() -> None:
    names = SenseNames(split_text(), SPLIT)
    ier, ban = SPLIT.index("ier"), SPLIT.index("ban@@")
    assert [names.is_whole(ier), names.is_piece(ier)] == [True, True]
    assert [names.is_whole(ban), names.is_piece(ban)] == [False, True]
    assert [names.is_whole(4), names.is_piece(4)] == [True, False]
    ends = names.names(ier, piece=True)
    assert {row: name.in_words for row, name in ends.items()} == {90: "skier 80", 91: "pier 80"}
    assert [name.sources for name in ends.values()] == [[("Läufer", 80)], [("Steg", 80)]]
    assert [name.neighbours for name in ends.values()] == [[], []]
    begins = names.names(ban, piece=True)
    assert [name.in_words for name in begins.values()] == ["banner 80", "bandit 80"]
    (whole,) = names.names(ier).values()  # the other occurrence
    assert (whole.times, whole.share, whole.words) == (1, 1.0, [])
    assert names.names(4, piece=True) == names.names(ban) == {}
    (example,) = names.examples(91, ier, 1, piece=True)
    assert example.words[example.place] == "pier"
    assert names.clearest_pieces(0, special=4) == ["ban@@", "ier"]
    assert names.clearest_pieces(1, special=4) == ["ban@@"]
    assert names.clarity(ier, piece=True) == pytest.approx(np.log(2), rel=0.02)
    assert names.clarity(ier) == 0.0


STEMS = st.sampled_from(["braun", "weiß", "gelb"])
ENDINGS = st.sampled_from(["", "e", "er", "em", "es"])


@given(st.lists(st.tuples(st.integers(0, 2), STEMS, ENDINGS), min_size=2, max_size=40))
def test_endings_of_source_words_do_not_change_what_senses_mean(
    occurrences: list[tuple[int, str, str]],
) -> None:
    """However endings are distributed over senses: what is told of meaning is told of stems."""
    lines = [["brown"]] * len(occurrences)
    tokens = [(number, 0, 5, 50 + sense) for number, (sense, *_) in enumerate(occurrences)]
    inflected = [[f"{stem}{ending}"] for _, stem, ending in occurrences]
    stems = [[stem] for _, stem, _ in occurrences]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(naming, "align", lambda words, _: np.arange(len(words)))
        told = SenseNames(text_of(lines, tokens, inflected), SPLIT).information(5)
        of_stems = SenseNames(text_of(lines, tokens, stems), SPLIT).information(5)
    assert told.meaning == pytest.approx(of_stems.written, abs=1e-9)
    assert told.entropy == of_stems.entropy
    if len(set(map(tuple, stems))) == 1:
        assert told.one_word == (told.entropy > 0)
