"""Human evaluation: sheets, what is refused, and figures worked by hand and by SciPy."""

import csv
import io
import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fairseq_kerbs.evaluation import human
from fairseq_kerbs.evaluation.human import HEADER, Key, Sheet, evaluate, make_key, read_sheet
from fairseq_kerbs.evaluation.texts import shown
from fairseq_kerbs.utils.errors import UserError
from tests.helpers.cli import Capsys, Folders, kerbs

Rows = list[list[str]]
SOURCES = ["how are you?", "=1+1", "", 'a "quoted", one; and\ttab', "1/2", "what's up?"]
SYSTEMS = {
    "softmax": ["fine.", "+2", "x", "-no", "@you", ""],
    "MoS": ["well", "'s", "y", "1e5", "2.", "ü – …"],
    "kerbs": ["good!", "=HYPERLINK(1)", "z", "a,b;c", "TRUE", "fine."],
}


def parsed(path: Path, delimiter: str = ",") -> Rows:
    text = path.read_text(encoding="utf-8-sig")
    return list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))


def save(path: Path, rows: Rows, encoding: str = "utf-8", **how: Any) -> None:
    stream = io.StringIO(newline="")
    csv.writer(stream, **how).writerows(rows)
    path.write_bytes(stream.getvalue().encode(encoding))


def table(rows: Rows) -> Rows:
    """The rows below the names of the columns."""
    return rows[next(i for i, row in enumerate(rows) if tuple(row) == HEADER) + 1 :]


def write_sheet(folder: Path, score: str = "") -> tuple[Key, Path]:
    """The sheet of one of two raters, of the texts above, with the same score everywhere."""
    key = make_key(SOURCES, SYSTEMS, items=5, raters=2, seed=1)
    text = human.sheet_text(key, 1).replace(",\r\n", f",{score}\r\n")
    path = folder / "r1.csv"
    path.write_bytes(text.encode())
    return key, path


def test_what_a_rater_sees(tmp_path: Path) -> None:
    _, path = write_sheet(tmp_path)
    assert path.read_bytes().startswith(b"\xef\xbb\xbf# Sheet ")
    rows = parsed(path)
    head = rows[: rows.index(list(HEADER))]
    assert all(len(row) == 1 and row[0].startswith("# ") and row[0].isascii() for row in head)
    assert [row[0][2:] for row in head[2:5]] == list(human.STANDARD)
    assert len(table(rows)) == 15
    for item, letter, source, response, score in table(rows):
        line = SOURCES.index(source[1:-1].replace("and tab", "and\ttab"))
        assert response[1:-1] in [texts[line] for texts in SYSTEMS.values()]
        assert (source[0], source[-1], response[0], response[-1]) == ("[", "]", "[", "]")
        assert item.isdecimal()
        assert letter in "ABC"
        assert score == ""
    assert not any(name in path.read_text(encoding="utf-8") for name in ("softmax", "MoS", "kerbs"))


def test_draw_is_seeded_and_letters_change_from_item_to_item() -> None:
    sources = [f"s{line}" for line in range(300)]
    systems = {name: [f"{name}{line}" for line in range(300)] for name in "xyz"}
    sizes = {"items": 200, "raters": 1}
    key, again, other = (make_key(sources, systems, **sizes, seed=seed) for seed in (4, 4, 5))
    assert key == again
    assert key.answers != other.answers
    assert len({a.line for a in key.answers}) == 200
    for answer in key.answers:
        assert answer.source == f"s{answer.line - 1}"
        assert answer.text == f"{answer.system}{answer.line - 1}"
    # each system under each letter in about a third of the items: 66.7 ± 4 standard deviations
    for system in "xyz":
        for letter in "ABC":
            assert 40 < sum(a.letter == letter for a in key.answers if a.system == system) < 94


_text = st.text(max_size=12) | st.sampled_from(["=1", "-1", *'+@",;#', "[]", "\r"])


@settings(max_examples=20)
@given(st.data())
def test_scores_return_through_any_program(tmp_path_factory: Folders, data: st.DataObject) -> None:
    """Any text, saved again with another delimiter, encoding, line end and order of rows."""
    path = tmp_path_factory.getbasetemp() / "any.csv"
    lines = data.draw(st.integers(1, 5))
    names = ["a", "b", "c"][: data.draw(st.integers(1, 3))]
    systems = {n: [f"{data.draw(_text)} {n}{line}" for line in range(lines)] for n in names}
    sources = [f"{data.draw(_text)} {line}" for line in range(lines)]
    scores = {
        shown(own[i]): str(data.draw(st.integers(0, 2)))
        for own in systems.values()
        for i in range(lines)
    }
    key = make_key(sources, systems, items=lines, raters=3, seed=data.draw(st.integers(0, 9)))
    path.write_bytes(human.sheet_text(key, 2, data.draw(st.sampled_from(",;\t"))).encode())
    rows = parsed(path, next(d for d in ",;\t" if list(HEADER) in parsed(path, d)))
    for row in table(rows):
        row[4] = f" {scores[row[3][1:-1]]} "
    start = rows.index(list(HEADER)) + 1
    rows = rows[:start] + data.draw(st.permutations(rows[start:]))
    rows.insert(data.draw(st.integers(0, len(rows))), [])
    width = data.draw(st.integers(5, 7))
    how: dict[str, Any] = {"delimiter": ",;\t", "lineterminator": ["\n", "\r\n", "\r"]}
    how |= {"encoding": ["utf-8", "utf-8-sig"], "quoting": [csv.QUOTE_MINIMAL, csv.QUOTE_ALL]}
    drawn = {name: data.draw(st.sampled_from(any_of)) for name, any_of in how.items()}
    first = data.draw(st.sampled_from([[], [[f"sep={drawn['delimiter']}"]]]))  # as Excel wants it
    save(path, [*first, *(row + [""] * (width - len(row)) for row in rows)], **drawn)
    sheet = read_sheet(path, key)
    assert sheet.rater == 2
    assert sheet.scores == {(a.item, a.letter): int(scores[a.text]) for a in key.answers}


Spoil = Callable[[Rows], object]


def _cell(column: int, text: str, row: int = 2) -> Spoil:
    return lambda rows: table(rows)[row].__setitem__(column, text)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        *((_cell(4, score), "row 13 .*item 1, answer C") for score in ("", "3")),
        *((_cell(column, "[other]"), "row 13 ") for column in (2, 3)),
        (_cell(3, "fine."), "row 13 "),
        (lambda rows: table(rows)[2].append("a note"), "row 13 "),
        (_cell(1, "B"), "row 13 .*item 1, answer B"),
        (_cell(0, ""), "row 13 .*item , answer C"),
        (lambda rows: rows.append(rows[11]), "row 26 .*item 1, answer B"),
        (lambda rows: rows.pop(), "item 5, answer C"),
        (lambda rows: rows.pop(0), ""),
        (lambda rows: rows.pop(9), ""),
    ],
)
def test_spoilt_sheets_are_refused(tmp_path: Path, spoil: Spoil, message: str) -> None:
    key, path = write_sheet(tmp_path, "1")
    assert set(read_sheet(path, key).scores.values()) == {1}
    rows = parsed(path)
    spoil(rows)
    save(path, rows)
    with pytest.raises(UserError, match=f"^{path}.*{message}"):
        read_sheet(path, key)


def test_a_long_answer_returns(tmp_path: Path) -> None:
    """Python's reader of CSV takes 131,072 characters of a cell by default."""
    systems = {"a": ["word " * 40_000], "b": ["short"]}
    key = make_key(["source"], systems, items=1, raters=1, seed=1)
    path = tmp_path / "rater1.csv"
    path.write_bytes(human.sheet_text(key, 1).replace(",\r\n", ",1\r\n").encode())
    assert {*read_sheet(path, key).scores.values()} == {1}


def test_files_that_are_no_sheet_or_no_key(tmp_path: Path) -> None:
    key, path = write_sheet(tmp_path, "1")
    with pytest.raises(UserError, match="or the sheet belongs to another key"):
        read_sheet(path, make_key(SOURCES, SYSTEMS, items=5, raters=2, seed=2))
    for content, message in (
        (b"PK\x03\x04\xff...", "is compressed"),
        (b"", "is no sheet of"),
        (b'"1,A,[x],[y],2"\r\n', "is no sheet of"),
    ):
        path.write_bytes(content)
        with pytest.raises(UserError, match=message):
            read_sheet(path, key)
    workbook = path.with_suffix(".xlsx")
    workbook.write_bytes(b"PK\x03\x04\xff...")
    with pytest.raises(UserError, match=r"r1\.xlsx is a workbook; open it and save"):
        read_sheet(workbook, key)
    _, path = write_sheet(tmp_path, "1")
    rows = path.read_text("utf-8-sig").splitlines()
    opened = f'{rows[-1]}\n1,A,"{"x" * 2**18}\n'
    path.write_text("\n".join([*rows[:-1], opened]))
    with pytest.raises(UserError, match=r"is no CSV: .* a quotation mark .* not closed"):
        read_sheet(path, key)
    path.write_text(key.as_json())
    assert human.read_key(path) == key
    for text in ("[1]", "{", '{"key": {"answers": 3}}', '{"key": 1}'):
        path.write_text(text)
        with pytest.raises(UserError, match=f"{path} is no key; name the exported key"):
            human.read_key(path)


def test_export_and_score_commands(tmp_path: Path, capsys: Capsys) -> None:
    texts = [f"S-{i}\tques@@ tion {i} ?\nH-{i}\t-1\tan@@ swer {i} .\n" for i in range(12)]
    Random(1).shuffle(texts)
    generated = tmp_path / "generated"
    generated.write_text("".join(texts))
    raw = tmp_path / "raw"
    raw.write_text("".join(f"Reply {i}.\n" for i in range(12)))
    sheets = tmp_path / "sheets"
    key = tmp_path / "private" / "key.json"
    export = ["human-eval", "export", "--source", generated, "--system", f"soft={generated}"]
    export += ["--system", f"kerbs={raw}", "--sheets", sheets, "--key", key]
    export += ["--items", "10", "--delimiter", "semicolon"]
    assert kerbs(capsys, *export) == (
        f"wrote {sheets}: 3 sheets, 10 of 12 lines, 2 systems\n"
        f"wrote {key}: the key, to be kept from the raters\n"
    )
    assert {p.name for p in sheets.iterdir()} == {"rater1.csv", "rater2.csv", "rater3.csv"}
    before = {path: path.read_bytes() for path in (*sheets.iterdir(), key)}
    assert re.search(r"rater1\.csv.*exist already; use --force", kerbs(capsys, *export, status=2))
    kerbs(capsys, *export, "--force")
    assert {path: path.read_bytes() for path in before} == before  # the seed decides
    refused = kerbs(
        capsys, *export, "--force", "--raters", 2, status=2
    )  # rater3.csv has another key
    assert f"--sheets: {sheets} has sheets of another export, {sheets}/rater3.csv; name" in refused
    assert {path: path.read_bytes() for path in before} == before
    assert "--sheets: /proc cannot be used" in kerbs(
        capsys, *export, "--sheets", "/proc/sheets", "--key", tmp_path / "k.json", status=2
    )
    for rater in (1, 2, 3):
        path = sheets / f"rater{rater}.csv"
        rows = parsed(path, ";")
        for row in table(rows):
            assert row[2] == f"[question {re.findall('[0-9]+', row[3])[0]}?]"
            # rater 3 gives the answers with even numbers less than the others do
            even = rater == 3 and int(re.findall("[0-9]+", row[3])[0]) % 2 == 0
            row[4] = "2" if row[3].startswith("[Reply") and not even else "1"
        save(path, rows, delimiter=";")
    score = ["human-eval", "score", "--key", key, *sheets.glob("*.csv")]
    outputs = ["--json", tmp_path / "o.json", "--csv", tmp_path / "o.csv"]
    assert "3 of 3 raters" in kerbs(capsys, *score, "--baseline", "soft", *outputs)
    soft, ours = json.loads((tmp_path / "o.json").read_text())["systems"]
    lines = {answer.line - 1 for answer in human.read_key(key).answers}
    fewer = sum(line % 2 == 0 for line in lines)
    assert (soft["mean"], soft["ones"]) == (1.0, 30)
    assert (ours["ones"], ours["twos"]) == (fewer, 30 - fewer)
    assert ours["p"] < 1e-6
    assert (tmp_path / "o.csv").read_text().splitlines()[2].startswith("kerbs,")
    assert "both the sheet of rater" in kerbs(capsys, *score, score[-1], status=2)


def filled(given_scores: dict[str, list[list[int]]], seed: int = 3) -> tuple[Key, list[Sheet]]:
    """A key, and sheets of raters who give these scores, [items, raters] a system, to texts."""
    _, items, raters = np.array(list(given_scores.values())).shape
    sources = [f"input {line}" for line in range(items)]
    systems = {n: [f"{n} {line}" for line in range(items)] for n in given_scores}
    key = make_key(sources, systems, items=items, raters=raters, seed=seed)
    result = []
    for rater in range(raters):
        scores = {}
        for answer in key.answers:
            system, line = answer.text.split()
            scores[answer.item, answer.letter] = given_scores[system][int(line)][rater]
        result.append(Sheet(Path(f"r{rater + 1}.csv"), rater + 1, scores))
    return key, result


def test_the_test_is_over_items_and_one_tailed() -> None:
    rng = Random(5)
    scores = {n: [[rng.randrange(3) for _ in range(3)] for _ in range(20)] for n in ("a", "b", "c")}
    key, sheets = filled(scores)
    figures = {row["system"]: row for row in evaluate(key, sheets, "a")["systems"]}
    for name in ("b", "c"):
        t, two_sided = stats.ttest_rel(np.mean(scores[name], 1), np.mean(scores["a"], 1))
        assert figures[name]["t"] == pytest.approx(t, rel=1e-9)
        assert figures[name]["p"] == pytest.approx(two_sided / 2 if t > 0 else 1 - two_sided / 2)
        assert figures[name]["deviation"] == pytest.approx(np.std(scores[name], ddof=1))
        assert figures[name]["n"] == 60
    assert evaluate(key, sheets, "b")["systems"][0]["p"] == pytest.approx(1 - figures["b"]["p"])
    with pytest.raises(UserError, match="--baseline d is none of the systems a, b, c"):
        evaluate(key, sheets, "d")


@given(st.data())
def test_blinding_is_undone_whatever_the_seed_and_the_order_of_sheets(data: st.DataObject) -> None:
    items = data.draw(st.integers(1, 6))
    raters = data.draw(st.integers(1, 4))
    score = st.lists(st.integers(0, 2), min_size=raters, max_size=raters)
    names = ("a", "b", "c", "d")[: data.draw(st.integers(1, 4))]
    scores = {name: data.draw(st.lists(score, min_size=items, max_size=items)) for name in names}
    key, sheets = filled(scores, seed=data.draw(st.integers(0, 99)))
    result = evaluate(key, data.draw(st.permutations(sheets)), "a")
    for figures, expected in zip(result["systems"], map(np.array, scores.values()), strict=True):
        assert figures["mean"] == pytest.approx(expected.mean())
        assert figures["twos"] == (expected == 2).sum()
        if figures["system"] != "a":
            assert figures["difference"] == pytest.approx(expected.mean() - np.mean(scores["a"]))
    assert result["rater_means"] == pytest.approx(np.mean(list(scores.values()), axis=(0, 1)))


def test_what_is_not_defined_is_said() -> None:
    key, (sheet, _) = filled({"a": [[1, 1], [1, 1]], "b": [[2, 2], [2, 2]]})
    result = evaluate(key, [sheet], "a")
    assert (result["systems"][1]["t"], result["systems"][1]["p"]) == (None, None)
    assert (result["fleiss_kappa"], result["krippendorff_alpha"]) == (None, None)  # one rater
    assert "1 of 2 raters; Fleiss' kappa –" in human.as_text(result)
    key, sheets = filled({"a": [[1]]})
    assert evaluate(key, sheets)["systems"][0]["deviation"] is None
    assert "no test, name a --baseline" in human.as_text(evaluate(key, sheets))
    assert human.agreement(np.array([[2, 0, 0], [2, 0, 0]])) == (None, None)  # of one value


def test_reports() -> None:
    """Four items and one rater: differences 1, 1, 0, 2 have mean 1 and deviation √(2/3)."""
    scores = {"base": [[1], [1], [1], [0]], "kerbs": [[2], [2], [1], [2]]}
    result = evaluate(*filled(scores), "base")
    text = human.as_text(result).splitlines()
    assert text[1].split() == ["base", "0.750", "0.500", *"4130", "–", "–", "–"]
    assert text[2].split() == ["kerbs", "1.750", "0.500", *"4013", "+1.000", "2.449", "0.0459"]
    base, ours = csv.DictReader(human.as_csv(result).splitlines())
    assert (base["zeros"], base["ones"], base["twos"], base["p"]) == ("1", "3", "0", "")
    assert (ours["system"], ours["mean"], ours["baseline"]) == ("kerbs", "1.75", "base")
    assert float(ours["t"]) == pytest.approx(math.sqrt(6))


def test_hand_worked_agreement() -> None:
    """Two raters: scores 0, 1, 2 occur 3, 2, 3 times; their ranks' middles are 1.5, 4, 6.5. Three:
    0 0 1 and 2 2 2: 8 of 12 ordered pairs agree, 14 of 36 by chance; middles 1, 2.5, 4.5."""
    alpha = 1 - 7 * 2 * 25 / (2 * (6 * 6.25 + 6 * 6.25 + 9 * 25))
    expected = pytest.approx(((3 / 4 - 22 / 64) / (1 - 22 / 64), alpha), rel=1e-12)
    result = evaluate(*filled({"a": [[0, 0], [1, 1]], "b": [[2, 2], [0, 2]]}))  # items and systems
    assert (result["fleiss_kappa"], result["krippendorff_alpha"]) == expected
    assert (result["raters"], result["rater_means"]) == ([1, 2], [0.75, 1.25])
    alpha = 1 - 5 * (4 * 2.25 / 2) / (2 * (2 * 2.25 + 6 * 12.25 + 3 * 4))
    expected = pytest.approx(((2 / 3 - 7 / 18) / (1 - 7 / 18), alpha), rel=1e-12)
    assert human.agreement(np.array([[2, 1, 0], [0, 0, 3]])) == expected
