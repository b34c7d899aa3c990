"""What commands print."""

import subprocess
from pathlib import Path

import pytest

from fairseq_kerbs.cli import output
from tests.helpers.cli import Capsys
from tests.helpers.commands import PROGRAMS, run


def test_no_control_character_of_a_word_reaches_the_terminal(capsys: Capsys) -> None:
    output.show("bank\x1b[2J\x9b\r\u202eü\u200c ▲\nspring")
    assert capsys.readouterr().out == "bank\ufffd[2J\ufffd\ufffd\ufffdü\u200c ▲\nspring\n"


def test_files_are_written_and_named(tmp_path: Path, capsys: Capsys) -> None:
    output.write_files(None, None, {"a": 1}, "a\n1\n")
    assert capsys.readouterr().out == ""
    files = tmp_path / "a.json", tmp_path / "a.csv"
    output.write_files(*files, {"a": "ü"}, "a\nü\n")
    assert capsys.readouterr().out == f"wrote {files[0]}\nwrote {files[1]}\n"
    assert files[0].read_text(encoding="utf-8") == '{\n "a": "ü"\n}\n'
    assert files[1].read_text(encoding="utf-8") == "a\nü\n"


def test_output_is_utf8_or_a_file(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    output.write_output(None, "grüße\n")
    assert capfdbinary.readouterr().out == "grüße\n".encode()
    output.write_output(tmp_path / "new" / "file", "grüße\n", "two words")
    assert capfdbinary.readouterr().out.decode() == f"wrote {tmp_path}/new/file: two words\n"
    assert (tmp_path / "new" / "file").read_bytes() == "grüße\n".encode()


def test_a_name_that_is_no_utf8_is_written(tmp_path: Path) -> None:
    """Programs of long ago named files in Latin-1."""
    output.write_output(tmp_path / "page", "of mod\udce8le.pt\n")
    assert (tmp_path / "page").read_text("utf-8") == "of mod\ufffdle.pt\n"


def test_a_minus_is_standard_output(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("Schöne Grüße , Anna !\n")
    detokenize = ("fairseq-kerbs", "detokenize", "--lang", "de", tmp_path / "text")
    for name in ("-", "/dev/stdout"):
        assert run(*detokenize, "-o", name) == "Schöne Grüße, Anna!\n"
        with (tmp_path / "out").open("w+") as out:  # a file that other commands write to as well
            print("first", file=out, flush=True)
            command = [PROGRAMS / "fairseq-kerbs", *detokenize[1:], "-o", name]
            subprocess.run(command, stdout=out, check=True)
            print("last", file=out, flush=True)
            out.seek(0)
            assert out.read() == "first\nSchöne Grüße, Anna!\nlast\n"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["out", "text"]
    refused = run("fairseq-kerbs", "convert", "a.pt", "--data", "b", "-o", "-", status=2)
    assert "- is no file, and this command prints other lines; name a file" in refused
