"""Words split by meaning, by form, and pieces of words, by the commands from a made corpus on."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder

from fairseq_kerbs.analysis import plots
from tests.analysis.test_report import data_of, legend_of
from tests.helpers.cli import Capsys, Patch, Reported, kerbs
from tests.helpers.tiny_checkpoint import fairseq_train

FRAMES = [  # what a line is about, in English tokens and in German
    ("shore bank", "Ufer"),
    ("money bank", "Geldhaus"),
    ("big brown", "brauner"),
    ("small brown", "braunen"),
    ("fast sk@@ ier", "Läufer"),
    ("long p@@ ier", "Steg"),
    ("red ban@@ ner", "Fahne"),
    ("bad ban@@ dit", "Räuber"),
    ("old light", "Lampe"),  # an entry that is a word,
    ("warm sun@@ light", "Sonne"),  # and a piece of another
]


def binarize(folder: Path, language: str, lines: list[str]) -> None:
    """A dictionary and the splits train and valid of a side, as fairseq-preprocess writes them."""
    dictionary = Dictionary()
    for line in lines:
        dictionary.encode_line(line, append_eos=False)
    dictionary.finalize(padding_factor=1)
    dictionary.save(str(folder / f"dict.{language}.txt"))
    for split, part in (("train", lines), ("valid", lines[:40])):
        prefix = str(folder / f"{split}.de-en.{language}")
        builder = MMapIndexedDatasetBuilder(f"{prefix}.bin")
        for line in part:
            builder.add_item(dictionary.encode_line(line, add_if_not_exist=False).int())
        builder.finalize(f"{prefix}.idx")


@pytest.fixture(scope="module")
def split_words(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A trained softmax, and its data with pieces of BPE. The word before decides the sense."""
    return train(tmp_path_factory.mktemp("split"))


@pytest.fixture(scope="module")
def sentence_pieces(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same text in pieces of SentencePiece."""
    return train(tmp_path_factory.mktemp("pieces"), sentencepiece=True)


def as_sentencepiece(line: str) -> str:
    """A line of BPE in pieces of SentencePiece: ``fast sk@@ ier`` as ``▁fast ▁sk ier``."""
    return re.sub(r"(?<!@@)(^| )", r"\1▁", line).replace("@@", "")


def train(folder: Path, sentencepiece: bool = False) -> tuple[Path, Path]:
    """A softmax that has learned the frames, and its data."""
    draw = np.random.default_rng(2)
    english = []
    german = []
    for number in range(60 * len(FRAMES)):
        words, cause = FRAMES[number % len(FRAMES)]
        noise = draw.integers(2)
        english.append(f"{words} x{noise}")
        german.append(f"{cause} X{noise}")
    if sentencepiece:
        english = [*map(as_sentencepiece, english)]
        german = [*map(as_sentencepiece, german)]
    data = folder / "bin"
    data.mkdir()
    binarize(data, "en", english)
    binarize(data, "de", german)
    training = ["--save-dir", folder / "save", "--max-update", 120, "--seed", 1]
    model = ["--arch", "lstm_kerbs", "--hidden-size", 16, "--embed-dim", 16]
    fairseq_train(data, *training, *model, "--output-layer", "softmax")
    return folder / "save" / "checkpoint_last.pt", data


def convert(checkpoint: Path, data: Path, output: Path, capsys: Capsys) -> tuple[Any, ...]:
    """The flags that name the model with senses and its data."""
    flags = ["--total-senses", 2, "--max-senses", 2, "--number-of-senses", "distortion"]
    kerbs(capsys, "convert", checkpoint, "-o", output, "--data", data, *flags)
    return output, "--data", data


def names_printed(
    converted: tuple[Any, ...], source: str, tokens: str, folder: Path, capsys: Capsys
) -> list[str]:
    """Names such as ``bank#1=Ufer`` that print-senses adds to a hypothesis."""
    generated = folder / "generated"
    scores = " ".join(["-1"] * (len(tokens.split()) + 1))
    lines = [f"S-0\t{source}", f"H-0\t-1\t{tokens}", f"D-0\t-1\t{tokens}", f"P-0\t{scores}"]
    generated.write_text("\n".join(lines) + "\n")
    model, *data = converted
    named = kerbs(capsys, "print-senses", model, generated, *data, "--names")
    (line,) = [line for line in named.splitlines() if line.startswith("K-0")]
    return line.split("\t")[2].split("; ")


@pytest.fixture
def converted(split_words: tuple[Path, Path], tmp_path: Path, capsys: Capsys) -> tuple[Any, ...]:
    """Flags that name the model with senses and its data."""
    return convert(*split_words, tmp_path / "kerbs.pt", capsys)


@pytest.fixture
def of_sentencepiece(
    sentence_pieces: tuple[Path, Path], tmp_path: Path, capsys: Capsys
) -> tuple[Any, ...]:
    """As ``converted``, with pieces of SentencePiece."""
    return convert(*sentence_pieces, tmp_path / "kerbs.pt", capsys)


def sources_of(word: Any) -> set[str]:
    return {re.sub(r" \d+", "", sense["translates"]) for sense in word["senses"]}


def test_senses_lists_meanings_then_forms_and_pieces_apart(
    converted: tuple[Any, ...], reported: Reported
) -> None:
    text, report, rows = reported("senses", *converted)
    words = {word["word"]: word for word in report["words"]}
    pieces = {piece["word"]: piece for piece in report["pieces"]}
    order = [word for word in words if word in ("bank", "brown")]
    assert order == ["bank", "brown"]
    assert sources_of(words["bank"]) == {"Ufer", "Geldhaus"}
    assert sources_of(words["brown"]) == {"brauner", "braunen"}
    assert [words[word]["forms_of_one_word"] for word in order] == [False, True]
    assert words["brown"]["clarity"] < 0.01 < words["bank"]["clarity"]
    assert not {"ier", "ban@@", "sk@@", "p@@", "ner", "dit"} & set(words)
    assert {"ier", "ban@@"} <= set(pieces)
    assert not {"bank", "brown"} & set(pieces)
    assert [pieces[piece]["piece"] for piece in ("ier", "ban@@")] == ["@@ier", "ban@@"]
    for piece, of in (("ier", {"skier 60", "pier 60"}), ("ban@@", {"banner 60", "bandit 60"})):
        assert {sense["in_words"] for sense in pieces[piece]["senses"]} == of
    whole, _, parts = text.partition("\nPieces of words\n")
    assert re.search(r"^brown: 2 senses, 120 times .*; forms of one word$", whole, re.M)
    assert re.search(r"^bank: 2 senses, 120 times in the training data$", whole, re.M)
    assert "@@" not in whole
    assert re.search(r"^@@ier: 2 senses, .*\n +sense .* words .*\n.* (skier|pier) 60", parts, re.M)
    assert re.search(r"\[(skier|pier)\]", parts)
    by_word = {row["word"]: row for row in rows}
    assert [by_word[word]["forms_of_one_word"] for word in order] == ["False", "True"]
    assert by_word["ier"]["piece"] == "@@ier"
    assert by_word["ier"]["in_words"] in ("skier 60", "pier 60")


def test_a_piece_is_shown_by_its_name_and_each_list_has_its_own_top(
    converted: tuple[Any, ...], reported: Reported
) -> None:
    _, report, _ = reported("senses", *converted, "--word", "ier", "bank")
    assert [[one["word"] for one in report[kind]] for kind in ("words", "pieces")] == [
        ["bank"],
        ["ier"],
    ]
    _, report, _ = reported("senses", *converted, "--top", 1)
    assert [len(report[kind]) for kind in ("words", "pieces")] == [1, 1]
    without_data = "senses", converted[0], "--dict", converted[2] / "dict.en.txt"
    _, report, _ = reported(*without_data, "--top", 0)
    pieces = {piece["word"] for piece in report["pieces"]}
    assert "ban@@" in pieces
    assert all(piece.endswith("@@") for piece in pieces)  # nothing else tells pieces from words
    assert not [one for one in report["words"] if one["word"].endswith("@@")]


def test_occurrences_as_a_word_and_as_a_piece_are_told_apart(
    converted: tuple[Any, ...], capsys: Capsys
) -> None:
    text = kerbs(capsys, "senses", *converted, "--word", "light")
    read = r"light: . senses?, 120 times in the training data, 60 times as"
    assert re.search(rf"^{read} a word in the lines that were read", text, re.M)
    assert re.search(rf"^@@{read} a piece of a longer word in the lines", text, re.M)


def test_the_page_has_a_list_for_pieces(
    converted: tuple[Any, ...], tmp_path: Path, capsys: Capsys
) -> None:
    output = tmp_path / "senses.html"
    shown = kerbs(capsys, "report", *converted, "-o", output)
    page = output.read_text(encoding="utf-8")
    words, pieces = (
        {one["word"]: one for one in data_of(page, key)} for key in ("words", "pieces")
    )
    assert f"{len(words)} words, {len(pieces)} pieces of words, " in shown
    assert set(words) & set(pieces) == {"light"}
    assert {"sk@@", "p@@", "ier", "ban@@", "ner", "dit", "sun@@", "light"} == set(pieces)
    assert list(words).index("bank") < list(words).index("brown")
    assert [words[word]["forms_of_one_word"] for word in ("bank", "brown")] == [False, True]
    ends = {sense["in_words"] for sense in pieces["ier"]["senses"]}
    assert ends == {"skier 60", "pier 60"}
    for part in ("Forms of one word says that the source words", "are pieces that end or begin"):
        assert part in legend_of(page)


def test_figures_and_generated_text_tell_forms_from_meanings(
    converted: tuple[Any, ...], tmp_path: Path, monkeypatch: Patch, capsys: Capsys
) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(plots, "save_figure", lambda figure, _: drawn.append(figure))
    for word in ("bank", "brown", "ier"):
        kerbs(capsys, "plot", "contexts", *converted, "--word", word, "-o", "a.png")
    titles = [figure.axes[0].get_title() for figure in drawn]
    assert [title.endswith("by sense (forms of one word)") for title in titles] == [
        False,
        True,
        False,
    ]
    legend = [text.get_text() for text in drawn[2].legends[0].get_texts()]
    assert {text.split("\n")[1] for text in legend} == {"skier 60", "pier 60"}
    # the contexts of a word are without those of the longer words that it ends
    kerbs(capsys, "plot", "contexts", *converted, "--word", "light", "-o", "a.png")
    legend = [text.get_text() for text in drawn[3].legends[0].get_texts()]
    assert sum(int(re.findall(r"\((\d+)\)", text)[0]) for text in legend) == 60
    named = names_printed(converted, "Ufer", "big brown shore bank", tmp_path, capsys)
    words = [name.partition("#")[0] for name in named]
    assert words[0] == "bank"  # the last one in the text, and the only one split by meaning
    assert "brown" in words


def test_a_word_that_is_not_in_the_split_is_refused(
    converted: tuple[Any, ...], capsys: Capsys
) -> None:
    model, _, data = converted
    path = data / "dict.en.txt"
    words = [line.split()[0] for line in path.read_text().splitlines()]
    assert "bandit" not in words
    refused = kerbs(capsys, "senses", model, "--data", data, "--word", "bandit", status=2)
    assert "which has no entry for a word that BPE splits, or that was not in" in refused


def test_words_and_pieces_of_sentencepiece(
    of_sentencepiece: tuple[Any, ...],
    reported: Reported,
    tmp_path: Path,
    monkeypatch: Patch,
    capsys: Capsys,
) -> None:
    text, report, _ = reported("senses", *of_sentencepiece)
    words = {word["word"]: word for word in report["words"]}
    pieces = {piece["word"]: piece for piece in report["pieces"]}
    assert [word for word in words if word in ("▁bank", "▁brown")] == ["▁bank", "▁brown"]
    assert sources_of(words["▁bank"]) == {"Ufer", "Geldhaus"}
    assert sources_of(words["▁brown"]) == {"brauner", "braunen"}
    assert all(word.startswith("▁") for word in words)
    assert {"ier", "▁ban"} <= set(pieces)
    assert [pieces[piece]["piece"] for piece in ("ier", "▁ban")] == ["@@ier", "▁ban@@"]
    for piece, of in (("ier", {"skier 60", "pier 60"}), ("▁ban", {"banner 60", "bandit 60"})):
        assert {sense["in_words"] for sense in pieces[piece]["senses"]} == of
    assert "[skier]" in text
    # a word is named without its mark, and is another entry than the piece
    _, report, _ = reported("senses", *of_sentencepiece, "--word", "light", "ier")
    assert [one["word"] for one in report["words"]] == ["▁light"]
    assert [one["word"] for one in report["pieces"]] == ["ier"]
    gold = tmp_path / "gold.tsv"  # of words as they are written; 60 lines of each meaning
    labels = ((number, FRAMES[number % 10][1]) for number in range(600) if number % 10 < 2)
    gold.write_text("".join(f"{number}\t0\tbank\t{sense}\n" for number, sense in labels))
    _, report, _ = reported("senses", *of_sentencepiece, "--gold", gold, "--split", "train")
    assert [one["word"] for one in report["words"]] == ["▁bank"]
    assert report["gold"]["words"]["bank"]["senses.v_measure"] == pytest.approx(1)
    without_data = "senses", of_sentencepiece[0], "--dict", of_sentencepiece[2] / "dict.en.txt"
    _, report, _ = reported(*without_data, "--top", 0)
    assert "ier" in {piece["word"] for piece in report["pieces"]}
    assert "▁bank" in {word["word"] for word in report["words"]}

    drawn: list[Any] = []
    monkeypatch.setattr(plots, "save_figure", lambda figure, _: drawn.append(figure))
    for word in ("bank", "ban"):  # ▁bank, and the beginning of others
        kerbs(capsys, "plot", "contexts", *of_sentencepiece, "--word", word, "-o", "a.png")
    legend = [text.get_text() for text in drawn[1].legends[0].get_texts()]
    assert {text.split("\n")[1] for text in legend} == {"banner 60", "bandit 60"}
    tokens = "▁fast ▁sk ier ▁shore ▁bank"
    names = names_printed(of_sentencepiece, "▁Ufer", tokens, tmp_path, capsys)
    assert names[0].startswith("▁bank#")
    assert not [name for name in names if name.startswith(("▁sk", "ier"))]
