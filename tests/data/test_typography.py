"""Apostrophes, quotation marks and full stops that Moses does not know."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_kerbs.data import typography

SIGNS = st.text(st.sampled_from("ab1 é'’‘·:\"׳״“„”«»。, ་٫٬"))


@given(SIGNS, st.sampled_from(["en", "uk", "he", "fi", "bo"]))
def test_what_is_hidden_is_shown_again(line: str, language: str) -> None:
    assert typography.show_inner_signs(typography.hide_inner_signs(line, language)) == line
    assert typography.show_quotes(typography.hide_quotes(line)) == line


@given(SIGNS, st.sampled_from(["en", "de", "fr", "zh", "el"]))
def test_nothing_but_spaces_is_removed(line: str, language: str) -> None:
    found = typography.without_inner_spaces(line, language)
    assert found.replace(" ", "") == line.replace(" ", "")


@pytest.mark.parametrize(
    ("language", "line", "hidden"),
    [
        ("en", "It’s John's “it”", 1),  # ' is of Moses' own rules
        ("uk", "п'ять, м’яч 'так'", 2),
        ("he", 'צה"ל "כן"', 1),
        ("yi", "ס׳איז", 1),
        ("fi", "EU:n kello: 12:30", 1),
        ("en", "EU:n", 0),
        ("en", "1990’s", 0),
        ("tr", "1990'da, İzmir’de", 2),
        ("fi", "vaa'an", 1),
        ("pl", "Harry'ego", 1),
        ("he", "רח' אלנבי 'כן'", 1),
        ("he", "(עמ' 5)", 1),
        ("he", "'בן דוד' ולאמא 'חיים'.", 0),
        ("yi", "ער זאגט 'איך בין דא' און 'ניין'", 0),
        ("bo", "བོད་ཡིག་།", 2),
        ("fa", "۱٬۲۰۰٫۵ ٫", 2),
    ],
)
def test_signs_of_words_and_numbers_are_hidden(language: str, line: str, hidden: int) -> None:
    assert sum(a != b for a, b in zip(line, typography.hide_inner_signs(line, language))) == hidden


@pytest.mark.parametrize(
    ("language", "tokens", "joined"),
    [
        ("tr", "a , % 50'si .", "a , %50'si ."),
        ("eu", "% 5", "%5"),
        ("tr", "100 % 5 yıl", "100 % 5 yıl"),
        ("en", "a % 5", "a % 5"),
        ("fa", "a ٪ ۵۰ b", "a ٪۵۰ b"),
    ],
)
def test_percent_signs_before_numbers(language: str, tokens: str, joined: str) -> None:
    assert typography.join_percent_signs(tokens, language) == joined


@pytest.mark.parametrize(
    ("language", "tokens", "text"),
    [
        ("en", "a “ b ” and ‘ I don’t ’ “ c ”", "a “b” and ‘I don’t’ “c”"),
        ("de", "„ a “ und „ b “", "„a“ und „b“"),
        ("de", "» a « , » b «", "»a« , »b«"),
        ("pl", "„ a ” i „ b ”", "„a” i „b”"),
        ("ru", "« a » — « b »", "«a» — «b»"),
        ("fr", "« a »", "« a »"),
        ("sv", "” a ” och ” b ”", "”a” och ”b”"),
        # a quotation that begins or ends in another line
        ("en", "“ a", "“a"),
        ("en", "a ”", "a ”"),
        ("zh", "你 ， “ 好 ！ ”", "你，“好！”"),
        ("km", "ក ។", "ក។"),
        ("en", "a ” b “ c", "a ” b “ c"),
        ("am", "ነው ፣ እሺ ።", "ነው፣ እሺ።"),
        ("fa", "۵ ٪ ، ۵ ٪", "۵٪، ۵٪"),
        ("fa", "a ٪ b", "a ٪ b"),
        ("el", "α · β", "α· β"),
        ("el", "3 · 4", "3 · 4"),
        ("en", "a · b", "a · b"),
    ],
)
def test_spaces_inside_quotes_and_before_full_stops(language: str, tokens: str, text: str) -> None:
    assert typography.without_inner_spaces(tokens, language) == text
