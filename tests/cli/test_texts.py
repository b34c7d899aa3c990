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
