"""``fairseq-kerbs detokenize``; scores and examples are in tests/evaluation."""

from pathlib import Path

from tests.helpers.cli import Capsys, kerbs
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
