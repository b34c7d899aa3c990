"""``fairseq-kerbs detokenize``; scores and examples are in tests/evaluation."""

import json
from pathlib import Path

import pytest

from tests.helpers.cli import Capsys, Log, kerbs
from tests.helpers.commands import run


def test_detokenize_command(tmp_path: Path, capsys: Capsys) -> None:
    generated = tmp_path / "generate-test.txt"
    out = tmp_path / "o"
    generated.write_text("H-1\t-1\tIt is Anna 's .\nH-0\t-1\tGood mor@@ ning , all of you !\n")
    shown = kerbs(capsys, "detokenize", "--lang", "en", generated, "-o", out)
    assert out.read_text() == "Good morning, all of you!\nIt is Anna's.\n"
    assert shown == f"wrote {out}\n"
    flags = ("detokenize", "--lang", "de")
    raw = run("fairseq-kerbs", *flags, stdin="Schöne Grüße , Anna !\n")
    assert raw == "Schöne Grüße, Anna!\n"


def test_a_system_is_named_before_the_first_equals_sign(tmp_path: Path, capsys: Capsys) -> None:
    source = tmp_path / "source"
    source.write_text("one two\n")
    answers = tmp_path / "beam=5.txt"
    answers.write_text("eins zwei\n")
    given = ["examples", "--source", source, "--system", f"kerbs={answers}"]
    shown = kerbs(capsys, *given, "--system", f"softmax={source}")
    assert "kerbs" in shown
    assert "eins zwei" in shown


GENERATED = """\
S-1\tdas ist es .
H-1\t-1\tThat 's it .
S-0\tgu@@ ten Morgen !
H-0\t-1\tHello .
"""


@pytest.mark.parametrize(
    ("text", "is_other"),
    [
        ("Guten Morgen!\nDas ist es.\n", False),
        ("Das ist es.\nGuten Morgen!\n", True),
    ],
)
def test_a_source_of_another_text_is_noticed(
    text: str, is_other: bool, tmp_path: Path, capsys: Capsys, caplog: Log
) -> None:
    source = text_file(tmp_path / "source", text)
    answers = text_file(tmp_path / "answers", GENERATED)
    says = f"{answers} has other source sentences (S- lines) than --source {source}"
    system = f"a={answers}"
    other = f"b={source}"
    kerbs(capsys, "examples", "--source", source, "--system", system, "--system", other)
    assert (says in caplog.text) == is_other
    caplog.clear()
    kerbs(
        capsys,
        "human-eval",
        "export",
        "--source",
        source,
        "--system",
        system,
        "--system",
        other,
        "--items",
        1,
        "--key",
        tmp_path / "key.json",
        "--sheets",
        tmp_path / "sheets",
    )
    assert (says in caplog.text) == is_other


LEFT_OUT = "H-1\t-1\tIt is Anna 's .\nH-0\t-1\tGood mor@@ ning !\nSentences of test: 4\n"


def text_file(path: Path, text: str, encoding: str = "utf-8") -> Path:
    path.write_bytes(text.encode(encoding))
    return path


@pytest.mark.parametrize("command", ["detokenize", "score", "examples", "human-eval"])
def test_advice_about_sentences_left_out_helps(
    command: str, tmp_path: Path, capsys: Capsys
) -> None:
    """Without --fill-missing each command names the lines; with it, it reads them as empty."""
    generated = text_file(tmp_path / "g", LEFT_OUT)
    text = text_file(tmp_path / "text", "Good morning!\nIt is Anna's.\nNo.\nYes.\n")
    commands: dict[str, list[object]] = {
        "detokenize": ["detokenize", "--lang", "en", generated],
        "score": ["score", "--hypotheses", generated, "--reference", text],
        "examples": [
            "examples",
            "--source",
            text,
            "--system",
            f"a={generated}",
            "--system",
            f"b={text}",
        ],
        "human-eval": [
            "human-eval",
            "export",
            "--source",
            text,
            "--system",
            f"a={generated}",
            "--items",
            4,
            "--sheets",
            tmp_path / "sheets",
            "--key",
            tmp_path / "key",
        ],
    }
    arguments = commands[command]
    said = kerbs(capsys, *arguments, status=2)
    assert "lacks 2 of 4 in total (line 3, 4 of the text)" in said
    assert "--skip-invalid-size-inputs-valid-test" in said
    assert "--fill-missing" in said
    shown = kerbs(capsys, *arguments, "--fill-missing")
    if command == "detokenize":
        assert shown == "Good morning!\nIt is Anna's.\n\n\n"
    if command == "score":
        assert "hyp_len = 7 ref_len = 11" in shown
    if command == "human-eval":
        assert '"line": 4' in (tmp_path / "key").read_text()


def test_the_number_of_sentences_may_be_given(tmp_path: Path, capsys: Capsys) -> None:
    lines = text_file(tmp_path / "h", "H-1\t-1\tNo\nH-0\t-1\tYes\n")
    tokens = text_file(tmp_path / "t", "Yes .\nNo .\n")
    command = ("detokenize", "--lang", "en")
    assert kerbs(capsys, *command, lines, "--sentences", 2) == "Yes\nNo\n"
    assert "lacks 1 of 3" in kerbs(capsys, *command, lines, "--sentences", 3, status=2)
    filled = kerbs(capsys, *command, lines, "--sentences", 3, "--fill-missing")
    assert filled == "Yes\nNo\n\n"
    for file, count in ((lines, 1), (tokens, 3)):
        said = kerbs(capsys, *command, file, "--sentences", count, status=2)
        assert f"has 2 sentences, not {count} as --sentences says" in said


@pytest.mark.parametrize("kind", ["H", "D"])
@pytest.mark.parametrize("form", ["plain", "crlf", "bom", "no last newline", "sorted", "reversed"])
def test_every_command_reads_the_same_texts(
    kind: str, form: str, tmp_path: Path, capsys: Capsys
) -> None:
    r"""Whatever the form of the lines, and with characters at which Python breaks lines."""
    texts = ["Yes \u2028 it is .", "No\x0bnot@@ hing .", "\x85 A\x1cB . ", ""]
    raw = ["Yes it is.", "No nothing.", "A B.", ""]
    rows = [f"{kind}-{n}\t-0.5\t{text}" for n, text in enumerate(texts)]
    order = {"sorted": rows, "reversed": rows[::-1]}.get(
        form, [rows[2], rows[0], *rows[3:], rows[1]]
    )
    text = "".join(f"{row}\n" for row in order)
    if form == "crlf":
        text = text.replace("\n", "\r\n")
    if form == "no last newline":
        text = text.removesuffix("\n")
    generated = text_file(tmp_path / "g", text, "utf-8-sig" if form == "bom" else "utf-8")
    reference = text_file(tmp_path / "r", "".join(f"{line}\n" for line in raw))
    assert kerbs(capsys, "detokenize", "--lang", "en", generated).split("\n") == [*raw, ""]
    piped = run("fairseq-kerbs", "detokenize", "--lang", "en", stdin=text)
    assert piped.split("\n") == [*raw, ""]
    files = ("--hypotheses", generated, "--reference", reference)
    score = kerbs(capsys, "score", *files, "--max-ngram-order", 1, "--format", "json")
    assert json.loads(score)["bleu"] == pytest.approx(100)
    system = f"a={generated}"
    systems = ("--system", system, "--system", f"b={reference}")
    shown = kerbs(capsys, "examples", "--source", reference, *systems, "--reference", reference)
    assert "0 of 4 lines" in shown
    key = tmp_path / "key"
    places = ("--sheets", tmp_path / "sheets", "--key", key)
    export = ("human-eval", "export", "--source", reference, "--system", system, *places)
    kerbs(capsys, *export, "--items", 3)
    answers = {row["line"]: row["text"] for row in json.loads(key.read_text())["key"]["answers"]}
    assert answers == {1: raw[0], 2: raw[1], 3: raw[2]}


def test_references_may_be_the_target_lines_of_an_output(tmp_path: Path, capsys: Capsys) -> None:
    generated = text_file(tmp_path / "g", "T-1\tNo .\nT-0\tYes , it is .\n")
    hypotheses = text_file(tmp_path / "h", "Yes, it is.\nNo.\n")
    files = ("--hypotheses", hypotheses, "--reference", generated)
    score = kerbs(capsys, "score", *files, "--max-ngram-order", 1, "--format", "json")
    assert json.loads(score)["bleu"] == pytest.approx(100)
