"""IWSLT'16 from an archive in the release's layout, and from folders."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fairseq_kerbs.cli import main
from fairseq_kerbs.corpora import released
from fairseq_kerbs.corpora.iwslt16 import Iwslt16, read_sentences
from fairseq_kerbs.corpora.parallel import ParallelText
from fairseq_kerbs.corpora.pipeline import binarized_lines
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import atomic_write, read_lines
from tests.helpers.release_fixtures import expect, tgz

HEAD = """<url>http://www.ted.com/talks/somebody</url>
<keywords>talks, AT&amp;T</keywords>
<speaker>Some Body</speaker>
<talkid>1</talkid>
<title>Some Body: A title</title>
<description>A description.</description>
"""
TAIL = """<reviewer href="http://www.ted.com/profiles/1">A Reviewer</reviewer>
<translator href="http://www.ted.com/profiles/2">A Translator</translator>
"""
TRAIN = {
    "de": f"{HEAD} Guten Morgen &amp; danke.\n Eins &lt; zwei\u2028und drei.\n{TAIL}{HEAD} Ende.\n",
    "en": f"{HEAD} Good morning & thanks.\n One &lt; two and &three.\n{TAIL}{HEAD} The end.\n",
}
TRAIN["de"] += " Wiederholung eins zwei.\n" * 20
TRAIN["en"] += " Repetition one two.\n" * 20
COUNTS = {"train": 23, "tst2010": 1, "tst2013": 2, "tst2014": 3}


def xml(language: str, size: int) -> str:
    """A set in the release's markup, its sentences in two talks."""
    segments = [f'<seg id="{i}"> {language} Satz {i} &amp; mehr. </seg>\n' for i in range(1, size)]
    kind = "srcset" if language == "de" else "refset"
    return (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<mteval>\n<{kind} setid="iwslt2016-tst">\n'
        f'<doc docid="1" genre="lectures">\n<talkid>1</talkid>\n{"".join(segments)}</doc>\n'
        f'<doc docid="2" genre="lectures">\n<seg id="1"> Letzter\nSatz. </seg>\n</doc>\n'
        f"</{kind}>\n</mteval>\n"
    )


def release_files() -> dict[str, bytes]:
    """The inner archive's files."""
    files = {"de-en/README": b"notes", "de-en/._train.tags.de-en.de": b"\x00\x05\x16\x07"}
    for language in ("de", "en"):
        files[f"de-en/train.tags.de-en.{language}"] = TRAIN[language].encode()
        for name in ("tst2010", "tst2013", "tst2014"):
            content = xml(language, COUNTS[name]).encode()
            files[f"de-en/IWSLT16.TED.{name}.de-en.{language}.xml"] = content
    return files


def write_release(path: Path, files: dict[str, bytes]) -> Path:
    """The outer archive, with other language pairs before and after."""
    other = tgz({"en-de/train.tags.de-en.de": b"not this\n"})
    path.write_bytes(
        tgz(
            {
                "2016-01/texts/en/de/en-de.tgz": other,
                "2016-01/texts/de/en/de-en.tgz": tgz(files),
                "2016-01/texts/fr/en/fr-en.tgz": b"never read",
            }
        )
    )
    return path


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An archive that the registry expects."""
    path = write_release(tmp_path / "2016-01.tgz", release_files())
    expect(monkeypatch, Iwslt16, path, COUNTS)
    return path


@pytest.fixture
def read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop after the text was read."""
    monkeypatch.setattr(ParallelText, "run", lambda text, manifest: None)


def test_archive_to_data(archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without SOURCE it is downloaded; everything from there to DEST/bin is the real code."""
    dest = tmp_path / "dest"
    command = ["prepare-iwslt16", "--dest", str(dest), "--merges", "20", "--workers", "1"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "  test: 3 pairs of tst2014" in printed
    assert "note:" not in printed
    assert read_lines(dest / "raw" / "train.de")[:3] == [
        "Guten Morgen & danke.",
        "Eins < zwei und drei.",
        "Ende.",
    ]
    assert read_lines(dest / "raw" / "train.en")[1] == "One < two and &three."
    assert read_lines(dest / "raw" / "test.en") == [
        "en Satz 1 & mehr.",
        "en Satz 2 & mehr.",
        "Letzter Satz.",
    ]
    for split, part in (("train", "train"), ("valid", "tst2013"), ("test", "tst2014")):
        for language in ("de", "en"):
            index = dest / "bin" / f"{split}.de-en.{language}.idx"
            assert binarized_lines(index) == COUNTS[part]
    assert main([*command[:-4], str(archive), *command[-4:]]) == 0  # the same bytes, named
    assert not [line for line in capsys.readouterr().out.splitlines() if line.endswith("...")]
    assert main([*command, "--test", "tst2010,tst2014", "--joined-dictionary"]) == 0
    printed = capsys.readouterr().out
    assert "read IWSLT'16 De→En ..." in printed
    assert "tokenize train.de: already done" in printed
    assert binarized_lines(dest / "bin" / "test1.de-en.en.idx") == 3


@pytest.mark.usefixtures("read_only")
def test_interrupted_run_is_taken_up(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Iwslt16(source=archive, dest=tmp_path / "dest")
    written: list[Path] = []

    def interrupted(path: Path) -> object:
        if len(written) == 3:
            raise KeyboardInterrupt
        written.append(path)
        return atomic_write(path)

    monkeypatch.setattr(released, "atomic_write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        settings.prepare(lambda line: None)
    monkeypatch.setattr(released, "atomic_write", atomic_write)
    lines: list[str] = []
    settings.prepare(lines.append)
    assert lines[0] == "read IWSLT'16 De→En ..."
    lines.clear()
    settings.prepare(lines.append)
    assert lines[0] == "read IWSLT'16 De→En: already done"
    assert "  valid: 2 pairs of tst2013" in lines  # counts are told again


@pytest.mark.usefixtures("read_only")
def test_inner_archive_and_unpacked_release_give_the_same_text(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Iwslt16(source=archive, dest=tmp_path / "a").prepare(lambda line: None)
    unpacked = tmp_path / "unpacked"
    for name, content in release_files().items():
        (unpacked / name).parent.mkdir(parents=True, exist_ok=True)
        (unpacked / name).write_bytes(content)
    for folder, dest in ((unpacked, "b"), (unpacked / "de-en", "c")):
        Iwslt16(source=folder, dest=tmp_path / dest).prepare(lambda line: None)
    inner = tmp_path / "de-en.tgz"
    inner.write_bytes(tgz(release_files()))
    expect(monkeypatch, Iwslt16, inner, COUNTS)
    Iwslt16(source=inner, dest=tmp_path / "d").prepare(lambda line: None)
    texts = [
        {file.name: file.read_bytes() for file in (tmp_path / dest / "raw").iterdir()}
        for dest in "abcd"
    ]
    assert texts[0] == texts[1] == texts[2] == texts[3]
    assert len(texts[0]) == 6


@pytest.mark.usefixtures("read_only")
@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("train.tags.de-en.de", " Ende.\n", "", "train has 22 lines, expected 23"),
        ("train.tags.de-en.de", "Ende", "\udcff", "train.tags.de-en.de, line 17: not valid UTF-8"),
        ("IWSLT16.TED.tst2014.de-en.en.xml", "mehr. </seg>", "mehr.", "not the release's XML"),
        (
            "IWSLT16.TED.tst2014.de-en.en.xml",
            None,
            None,
            r"one file IWSLT16.TED.tst2014.de-en.en\* was expected, found none",
        ),
    ],
)
def test_damaged_text_is_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    old: str | None,
    new: str,
    message: str,
) -> None:
    files = release_files()
    if old is None:
        del files[f"de-en/{name}"]
    else:
        changed = files[f"de-en/{name}"].decode().replace(old, new, 1)
        files[f"de-en/{name}"] = changed.encode("utf-8", "surrogateescape")
    path = write_release(tmp_path / "2016-01.tgz", files)
    expect(monkeypatch, Iwslt16, path, COUNTS)
    with pytest.raises(UserError, match=message):
        Iwslt16(source=path, dest=tmp_path / "dest").prepare(lambda line: None)


@pytest.mark.usefixtures("read_only")
def test_what_is_not_the_release_is_refused(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(source: Path, message: str) -> None:
        with pytest.raises(UserError, match=message):
            Iwslt16(source=source, dest=tmp_path / "dest").prepare(lambda line: None)
        assert not (tmp_path / "dest" / "raw" / "test.en").exists()

    expect(monkeypatch, Iwslt16, archive, COUNTS | {"train": 24})
    refused(archive, "train has 23 lines, expected 24")
    archive.write_bytes(archive.read_bytes()[:-1] + b"!")
    refused(archive, "2016-01.tgz is not the released 2016-01.tgz of .*; fetch it again")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Plain text: a part of the training text, and one set."""
    folder = tmp_path / "text"
    folder.mkdir()
    for language in ("de", "en"):
        (folder / f"train10pct.{language}").write_text("a &amp; b\n" * 4)
        for name in ("tst2010", "tst2013"):
            text = f"{language} Satz\n" * COUNTS[name]
            (folder / f"IWSLT16.TED.{name}.de-en.{language}").write_text(text)
    return folder


@pytest.mark.usefixtures("read_only", "archive")
def test_folder_of_plain_text(folder: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    settings = Iwslt16(source=folder, dest=tmp_path / "dest", valid="tst2010", test=("tst2013",))
    settings.prepare(lines.append)
    assert any("17.4 % of the release's 23 training pairs" in line for line in lines)
    assert read_lines(tmp_path / "dest" / "raw" / "train.de") == ["a & b"] * 4
    with pytest.raises(UserError, match=r"one file IWSLT16.TED.tst2014\.de-en\.de\* was expected"):
        Iwslt16(source=folder, dest=tmp_path / "dest").prepare(lines.append)
    (folder / "IWSLT16.TED.tst2013.de-en.de").write_text("ein Satz\n")
    with pytest.raises(UserError, match="tst2013 has 1 lines, expected 2"):
        settings.prepare(lines.append)
    (folder / "train.de").write_text("x\n")
    with pytest.raises(UserError, match=r"expected, found train.de, train10pct.de"):
        settings.prepare(lines.append)


def test_only_lines_that_begin_with_a_tag_are_left_out(tmp_path: Path) -> None:
    lines = [
        "<title>x</title>",
        " a <title> b",
        "<i>c</i> d",
        "</doc>",
        "<urls> e",
        "",
        " <talkid>",
    ]
    (tmp_path / "train.tags.de-en.de").write_text("\n".join(lines) + "\n")
    sentences = read_sentences(tmp_path / "train.tags.de-en.de")
    assert sentences == ["a <title> b", "<i>c</i> d", "<urls> e", ""]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--valid", "tst2015"], "--valid and --test must be of dev2010, "),
        (["--test", "tst2014,"], "--test must be of"),
        (["--test", "tst2013"], "must name different sets"),
    ],
)
def test_wrong_flags(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], message: str
) -> None:
    assert main(["prepare-iwslt16", "--dest", str(tmp_path / "dest"), *flags]) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "dest").exists()
