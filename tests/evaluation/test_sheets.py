"""Sheets of the human evaluation: what raters see, what comes back, and what is refused."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairseq_kerbs.cli import main
from fairseq_kerbs.evaluation.human import (
    HEADER,
    STANDARD,
    Key,
    make_key,
    read_key,
    read_sheet,
    sheet_text,
)
from fairseq_kerbs.evaluation.texts import shown
from fairseq_kerbs.utils.errors import UserError

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


def save(
    path: Path,
    rows: Rows,
    delimiter: str = ",",
    end: str = "\r\n",
    encoding: str = "utf-8",
    quoting: int = csv.QUOTE_MINIMAL,
) -> None:
    """As a spreadsheet program would."""
    stream = io.StringIO(newline="")
    # quoting and its siblings are one of csv's constants, which the type stubs spell as literals
    csv.writer(stream, delimiter=delimiter, lineterminator=end, quoting=quoting).writerows(rows)  # type: ignore[arg-type]
    path.write_bytes(stream.getvalue().encode(encoding))


def table(rows: Rows) -> Rows:
    """The rows below the names of the columns."""
    return rows[next(i for i, row in enumerate(rows) if tuple(row) == HEADER) + 1 :]


def write_sheets(folder: Path) -> tuple[Key, list[Path]]:
    """Unfilled sheets of two raters, of the texts above."""
    key = make_key(SOURCES, SYSTEMS, items=5, raters=2, seed=1)
    paths = [folder / f"r{rater}.csv" for rater in (1, 2)]
    for rater, path in enumerate(paths, start=1):
        path.write_bytes(sheet_text(key, rater).encode())
    return key, paths


def fill(path: Path) -> None:
    """Score 1 everywhere."""
    rows = parsed(path)
    for row in table(rows):
        row[4] = "1"
    save(path, rows)


def test_what_a_rater_sees(tmp_path: Path) -> None:
    _, (path, _) = write_sheets(tmp_path)
    assert path.read_bytes().startswith(b"\xef\xbb\xbf# Sheet ")
    rows = parsed(path)
    head = rows[: rows.index(list(HEADER))]
    assert all(len(row) == 1 and row[0].startswith("# ") and row[0].isascii() for row in head)
    assert [row[0][2:] for row in head[2:5]] == list(STANDARD)
    assert len(table(rows)) == 15
    for item, letter, source, response, score in table(rows):
        line = SOURCES.index(source[1:-1].replace("and tab", "and\ttab"))
        assert response[1:-1] in [texts[line] for texts in SYSTEMS.values()]
        assert (source[0], source[-1], response[0], response[-1]) == ("[", "]", "[", "]")
        assert item.isdecimal()
        assert letter in "ABC"
        assert score == ""
    text = path.read_text(encoding="utf-8")
    assert not any(name in text for name in ("softmax", "MoS", "kerbs"))


def test_draw_is_seeded_and_letters_change_from_item_to_item() -> None:
    sources = [f"s{line}" for line in range(300)]
    systems = {name: [f"{name}{line}" for line in range(300)] for name in "xyz"}
    key, again, other = (
        make_key(sources, systems, items=200, raters=1, seed=seed) for seed in (4, 4, 5)
    )
    assert key == again
    assert key.answers != other.answers
    assert len({a.line for a in key.answers}) == 200
    for answer in key.answers:
        assert answer.source == f"s{answer.line - 1}"
        assert answer.text == f"{answer.system}{answer.line - 1}"
    # each system under each letter in about a third of the items: 66.7 ± 4 standard deviations
    for system in "xyz":
        for letter in "ABC":
            share = sum(a.letter == letter for a in key.answers if a.system == system)
            assert 40 < share < 94


_text = st.text(max_size=12) | st.sampled_from(
    ["=1", "-1", "+", "@", '"', ",", ";", "#", "[]", "\r"]
)


@settings(max_examples=20)
@given(st.data())
def test_scores_come_back_through_any_program(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Any text, saved again with another delimiter, encoding, line end and order of rows."""
    path = tmp_path_factory.getbasetemp() / "any.csv"
    lines, names = data.draw(st.integers(1, 5)), ["a", "b", "c"][: data.draw(st.integers(1, 3))]
    systems = {n: [f"{data.draw(_text)} {n}{line}" for line in range(lines)] for n in names}
    sources = [f"{data.draw(_text)} {line}" for line in range(lines)]
    scores = {shown(own[i]): str(data.draw(st.integers(0, 2))) for own in systems.values()
              for i in range(lines)}  # fmt: skip
    seed = data.draw(st.integers(0, 9))
    key = make_key(sources, systems, items=lines, raters=3, seed=seed)
    path.write_bytes(sheet_text(key, 2, data.draw(st.sampled_from(",;\t"))).encode())
    delimiter = next(d for d in ",;\t" if list(HEADER) in parsed(path, d))
    rows = parsed(path, delimiter)
    for row in table(rows):
        row[4] = f" {scores[row[3][1:-1]]} "
    start = rows.index(list(HEADER)) + 1
    rows = rows[:start] + data.draw(st.permutations(rows[start:]))
    rows.insert(data.draw(st.integers(0, len(rows))), [])
    width = data.draw(st.integers(5, 7))
    save(
        path,
        [row + [""] * (width - len(row)) for row in rows],
        delimiter=data.draw(st.sampled_from(",;\t")),
        end=data.draw(st.sampled_from(["\n", "\r\n"])),
        encoding=data.draw(st.sampled_from(["utf-8", "utf-8-sig"])),
        quoting=data.draw(st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL])),
    )
    sheet = read_sheet(path, key)
    assert sheet.rater == 2
    assert sheet.scores == {(a.item, a.letter): int(scores[a.text]) for a in key.answers}


def _cell(column: int, text: str, row: int = 2) -> Callable[[Rows], object]:
    return lambda rows: table(rows)[row].__setitem__(column, text)


REFUSALS: list[tuple[Callable[[Rows], object], str]] = [
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
]


@pytest.mark.parametrize(("spoil", "message"), REFUSALS)
def test_spoilt_sheets_are_refused(
    tmp_path: Path, spoil: Callable[[Rows], object], message: str
) -> None:
    key, (path, _) = write_sheets(tmp_path)
    fill(path)
    assert set(read_sheet(path, key).scores.values()) == {1}
    rows = parsed(path)
    spoil(rows)
    save(path, rows)
    with pytest.raises(UserError, match=message) as refusal:
        read_sheet(path, key)
    assert str(refusal.value).startswith(str(path))


def test_files_that_are_no_sheet(tmp_path: Path) -> None:
    key, (path, other) = write_sheets(tmp_path)
    fill(other)
    elsewhere = make_key(SOURCES, SYSTEMS, items=5, raters=2, seed=2)
    with pytest.raises(UserError, match="or the sheet belongs to another key"):
        read_sheet(other, elsewhere)
    for content, message in (
        (b"PK\x03\x04\xff...", "not valid UTF-8"),
        (b"", "is no sheet of"),
        (b'"1,A,[x],[y],2"\r\n', "is no sheet of"),
    ):
        path.write_bytes(content)
        with pytest.raises(UserError, match=message):
            read_sheet(path, key)


def test_keys(tmp_path: Path) -> None:
    key, _ = write_sheets(tmp_path)
    path = tmp_path / "key.json"
    path.write_text(key.as_json())
    assert read_key(path) == key
    for text in ("[1]", "{", '{"key": {"answers": 3}}', '{"key": 1}'):
        path.write_text(text)
        with pytest.raises(UserError, match=r"key\.json is no key; name the exported key"):
            read_key(path)


def _write_texts(folder: Path, lines: int = 12) -> list[str]:
    """Files of a test set, one of them fairseq-generate's output; the flags that name them."""
    inputs = [f"S-{i}\tques@@ tion {i} ?\nH-{i}\t-1\tan@@ swer {i} .\n" for i in range(lines)]
    Random(1).shuffle(inputs)
    (folder / "generated").write_text("".join(inputs))
    (folder / "raw").write_text("".join(f"Reply {i}.\n" for i in range(lines)))
    generated = str(folder / "generated")
    return [
        *("--source", generated, "--system", f"soft={generated}"),
        *("--system", f"kerbs={folder / 'raw'}"),
    ]


def test_export_and_score_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = _write_texts(tmp_path)
    sheets, key = tmp_path / "sheets", tmp_path / "private" / "key.json"
    export = ["human-eval", "export", *flags, "--sheets", str(sheets), "--key", str(key)]
    export += ["--items", "10", "--delimiter", "semicolon"]
    assert main(export) == 0
    assert capsys.readouterr().out == (
        f"wrote {sheets}: 3 sheets, 10 of 12 lines, 2 systems\n"
        f"wrote {key}: the key, to be kept from the raters\n"
    )
    assert {p.name for p in sheets.iterdir()} == {"rater1.csv", "rater2.csv", "rater3.csv"}
    before = {path: path.read_bytes() for path in (*sheets.iterdir(), key)}
    assert main(export) == 2
    assert re.search(r"rater1\.csv.*exist already; use --force", capsys.readouterr().err)
    assert main([*export, "--force"]) == 0
    assert {path: path.read_bytes() for path in before} == before  # the seed decides
    for rater in (1, 2, 3):
        path = sheets / f"rater{rater}.csv"
        rows = parsed(path, ";")
        for row in table(rows):
            assert row[2] == f"[question {re.findall('[0-9]+', row[3])[0]}?]"
            # rater 3 gives the answers with even numbers less than the others do
            even = rater == 3 and int(re.findall("[0-9]+", row[3])[0]) % 2 == 0
            row[4] = "2" if row[3].startswith("[Reply") and not even else "1"
        save(path, rows, ";")
    score = ["human-eval", "score", "--key", str(key), *(str(p) for p in sheets.glob("*.csv"))]
    capsys.readouterr()
    outputs = ["--json", str(tmp_path / "o.json"), "--csv", str(tmp_path / "o.csv")]
    assert main([*score, "--baseline", "soft", *outputs]) == 0
    assert "3 of 3 raters" in capsys.readouterr().out
    soft, kerbs = json.loads((tmp_path / "o.json").read_text())["systems"]
    lines = {answer.line - 1 for answer in read_key(key).answers}
    fewer = sum(line % 2 == 0 for line in lines)
    assert (soft["mean"], soft["ones"]) == (1.0, 30)
    assert (kerbs["ones"], kerbs["twos"]) == (fewer, 30 - fewer)
    assert kerbs["p"] < 1e-6
    assert (tmp_path / "o.csv").read_text().splitlines()[2].startswith("kerbs,")
    assert main([*score, score[-1]]) == 2
    assert "both the sheet of rater" in capsys.readouterr().err
