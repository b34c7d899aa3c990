"""Tokens of Moses, and BPE of subword-nmt."""

import unicodedata
from pathlib import Path

import pytest

from fairseq_kerbs.data import tokens, toy
from fairseq_kerbs.data.tokens import detokenize, join_subwords, learn_bpe, load_bpe, tokenize
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import read_lines
from fairseq_kerbs.utils.processes import find_program
from tests.helpers.cli import Capsys
from tests.helpers.commands import run_program


@pytest.mark.parametrize(
    ("language", "raw", "words"),
    [
        ("en", "Anna's dog didn't bark, Mr. Smith.", "Anna 's dog didn 't bark , Mr. Smith ."),
        ("de", "Das ist z. B. der 3. Versuch.", "Das ist z. B. der 3. Versuch ."),
        ("de", "Der Mann, der „Ja“ sagt.", "Der Mann , der „ Ja “ sagt ."),
        ("fa", "می\u200cخواهم، بله؟", "می\u200cخواهم ، بله ؟"),
        ("hi", "यह घर है। हाँ।", "यह घर है । हाँ ।"),
        # marks that no composed character has
        ("th", "ผม ไม่ มี เงิน", "ผม ไม่ มี เงิน"),
        ("km", "ខ្ញុំ ស្រលាញ់ ឆ្មា", "ខ្ញុំ ស្រលាញ់ ឆ្មា"),
        ("my", "မြန်မာ စာ", "မြန်မာ စာ"),
        ("yo", "Ọ̀rọ̀ ni.", "Ọ̀rọ̀ ni ."),
        ("ru", "за́мок, стоит.", "за́мок , стоит ."),
        ("he", "שָׁלוֹם, עולם.", "שָׁלוֹם , עולם ."),
        ("en", "I ❤️ it, a 👩‍👩‍👦 b.", "I ❤️ it , a 👩‍👩‍👦 b ."),
        ("ml", "അവന്‍ വന്നു.", "അവന്‍ വന്നു ."),
        # apostrophes of words, and those that are quotation marks
        ("tr", "İstanbul'da, Türkiye'de.", "İstanbul'da , Türkiye'de ."),
        ("uk", "П'ять м’ячів.", "П'ять м’ячів ."),
        ("ca", "L'home, col·lecció.", "L'home , col·lecció ."),
        ("nl", "Hij zei 'ja' en m'n auto's.", "Hij zei ' ja ' en m'n auto's ."),
        ("fr", "L'homme d'ici.", "L' homme d' ici ."),
        ("en", "It’s Anna’s.", "It’s Anna’s ."),
        ("fr", "C’est l’homme.", "C’est l’homme ."),
        ("pt", "Um copo d'água.", "Um copo d'água ."),
        ("he", 'צה"ל, ד"ר כהן', 'צה"ל , ד"ר כהן'),
        ("fi", "EU:n mukaan: ei.", "EU:n mukaan : ei ."),
        ("hy", "Ո՞վ է։", "Ո՞վ է ։"),
        ("en", "🇩🇪 👍🏽 ok", "🇩🇪 👍🏽 ok"),
        # quotation marks, by language
        ("en", "He “did”, and ‘I don’t’, “no”.", "He “ did ” , and ‘ I don’t ’ , “ no ” ."),
        ("en", "“It is late, he said.", "“ It is late , he said ."),
        ("de", "Er sagt „ja“ und »nein«, »ja«.", "Er sagt „ ja “ und » nein « , » ja « ."),
        ("pl", "Mówi „tak” i „nie”.", "Mówi „ tak ” i „ nie ” ."),
        ("sv", "Han sa ”ja” och ”nej”.", "Han sa ” ja ” och ” nej ” ."),
        ("ru", "«Да», сказал он, «нет».", "« Да » , сказал он , « нет » ."),
        ("fr", "Il dit « oui ».", "Il dit « oui » ."),
        # marks that Moses does not know
        ("zh", "我爱你，他说：“好！”", "我爱你 ， 他说 ： “ 好 ！ ”"),
        ("km", "ខ្ញុំ ឆ្មា។", "ខ្ញុំ ឆ្មា ។"),
        ("my", "မြန်မာ စာ၊ စာ။", "မြန်မာ စာ ၊ စာ ။"),
        # a region has the rules of its language
        ("fr_CA", "L'homme d'ici.", "L' homme d' ici ."),
        ("tr-TR", "İstanbul'da.", "İstanbul'da ."),
    ],
)
def test_tokens_and_round_trip(language: str, raw: str, words: str) -> None:
    assert tokenize(raw, language=language) == words
    assert detokenize(words, language=language) == raw


def test_escaping_and_lower_casing_are_off_unless_asked_for() -> None:
    raw = "R&D costs [a lot] | <unk>"
    plain = tokenize(raw, language="en")
    escaped = tokenize(raw, language="en", escape=True)
    assert plain == "R & D costs [ a lot ] | < unk >"
    assert escaped == "R &amp; D costs &#91; a lot &#93; &#124; &lt; unk &gt;"
    assert detokenize(escaped, language="en", unescape=True) == detokenize(plain, language="en")
    assert "&lt;" in detokenize("a &lt; b", language="en")
    raw = "He left. Then Mr. Smith came."
    assert tokenize(raw, language="en", lowercase=True) == "he left . then mr. smith came ."
    # Case tells where sentences end, so lower-casing first would lose a full stop.
    assert tokenize(raw.lower(), language="en") == "he left. then mr. smith came ."


def test_characters_are_normalized() -> None:
    assert tokenize("\ufeffKra\u0301l", language="cs", lowercase=True) == "král"
    assert tokenize("बड़ा \u200cघर\u200c है", language="hi") == "बड़ा घर है"  # ड़ is one character
    for turkish in ("tr", "tr_TR"):
        assert tokenize("İstanbul IŞIK", language=turkish, lowercase=True) == "istanbul ışık"
    for language, text in (("ko", "한국어"), ("ja", "がぎ"), ("ar", "آب")):  # as macOS writes them
        assert tokenize(unicodedata.normalize("NFD", text), language=language) == text
    assert tokenize("\u202aא\u202c \u2066ב\u2069", language="he") == "א ב"  # of bidirectional text
    assert tokenize("Auto\u00adbahn\u200e, ខ្ញុំ\u200bឆ្មា\u2060", language="km") == "Autobahn , ខ្ញុំ ឆ្មា"


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        ("Früh@@ ling is@@", "Frühling is"),  # a hypothesis may end within a word
        ("▁He llo ▁wor ld .", "Hello world."),
        ("▁ 我 爱 ▁ 你", "我爱 你"),
        ("a ▁ b", "a ▁ b"),  # of a text with this sign
        ("▁▁▁ is a ban@@ k", "▁▁▁ is a bank"),  # a word to be filled in
        ("", ""),
    ],
)
def test_subwords_are_joined(pieces: str, text: str) -> None:
    assert join_subwords(pieces) == text


@pytest.mark.parametrize("text", ["a b c d a b\n", "A house .\n", ""])
def test_a_text_without_pairs_has_no_bpe(text: str, tmp_path: Path) -> None:
    (tmp_path / "text").write_text(text)
    with pytest.raises(UserError, match="give --bpe none"):
        learn_bpe([tmp_path / "text"], tmp_path / "codes", 10)
    assert not (tmp_path / "codes").exists()


@pytest.mark.parametrize("codes", ["", "#version: 0.2\na b c\n", "#version: x\n"])
def test_damaged_codes_are_named(codes: str, tmp_path: Path, capsys: Capsys) -> None:
    (tmp_path / "codes").write_text(codes)
    with pytest.raises(UserError, match=r"codes has no merges of BPE, or is damaged; copy it"):
        load_bpe(tmp_path / "codes")
    assert capsys.readouterr() == ("", "")


def test_bpe_is_that_of_the_commands(tmp_path: Path, capsys: Capsys) -> None:
    toy.write_toy_corpus(tmp_path, train=800, valid=100, test=10)
    texts = sorted(tmp_path.glob("train.??"))
    ours = tmp_path / "ours"
    theirs = tmp_path / "theirs"
    learn_bpe(texts, ours, 400)
    assert capsys.readouterr().err == ""  # no bar into a file
    vocabularies = [tmp_path / "theirs.de", tmp_path / "theirs.en"]
    program = find_program("subword-nmt")
    learning = ("learn-joint-bpe-and-vocab", "--input", *texts, "-s", "400", "-o", theirs)
    run_program(program, *learning, "--write-vocabulary", *vocabularies)
    assert ours.read_bytes() == theirs.read_bytes()
    for text, vocabulary in zip(texts, vocabularies, strict=True):
        own = tmp_path / f"ours{text.suffix}"
        applied = tmp_path / "applied"
        tokens.write_vocabulary(text, ours, own)
        assert sorted(read_lines(own)) == sorted(read_lines(vocabulary))
        limits = ("--vocabulary", vocabulary, "--vocabulary-threshold", "20")
        run_program(program, "apply-bpe", "-i", text, "-o", applied, "-c", theirs, *limits)
        lines = read_lines(text)
        segment = load_bpe(ours).segment
        assert [*map(load_bpe(ours, own, 20).segment, lines)] == read_lines(applied)
        assert [*map(segment, lines)] not in (lines, read_lines(applied))  # both did something
        assert [join_subwords(segment(line)) for line in lines] == lines
