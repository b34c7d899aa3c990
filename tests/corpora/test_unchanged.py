"""Multi30k and WikiText-2 from files in the releases' layouts: the data of the plain commands."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from fairseq_kerbs.cli import main
from fairseq_kerbs.corpora.language import LanguageText
from fairseq_kerbs.corpora.parallel import ParallelText
from fairseq_kerbs.corpora.unchanged import Multi30k, WikiText2
from fairseq_kerbs.utils.errors import UserError
from tests.helpers.release_fixtures import archive_of, expect, zipped

SIZES = {"train": 30, "val": 3, "test_2016_flickr": 4}
TEXTS = {
    f"{part}.{language}": "".join(f"{language} Satz {n % 7}\u2028Nr.\n" for n in range(size))
    for part, size in SIZES.items()
    for language in ("de", "en")
}
TOKENS = {"train": " \n = a <unk> = \n b c , b\n" * 3, "valid": " \n a c\n", "test": " b b a\n"}


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of Multi30k that the registry expects, and which is its only address."""
    folder = tmp_path / "dataset" / "data" / "task1" / "raw"
    folder.mkdir(parents=True)
    archives = []
    for name, text in TEXTS.items():
        file = folder / f"{name}.gz"
        file.write_bytes(gzip.compress(text.encode()))
        (folder / f"{name[:-2]}fr.gz").write_bytes(b"never read")
        archives.append(archive_of(file.read_bytes(), file.name, (file.as_uri(),)))
    monkeypatch.setattr(Multi30k, "archives", tuple(archives))
    monkeypatch.setattr(Multi30k, "counts", {"train": 30, "valid": 3, "test": 4})
    return tmp_path / "dataset"


def written(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def prepare(*command: object) -> Path:
    """The data that a command of few merges makes."""
    assert main([*map(str, command), "--workers", "1"]) == 0
    return Path(str(command[command.index("--dest") + 1])) / "bin"


def test_multi30k_is_what_prepare_makes_of_it(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Downloaded, from a checkout, and from plain text."""
    plain = tmp_path / "plain"
    plain.mkdir()
    for name, text in TEXTS.items():
        (plain / name).write_text(text)
    parts = zip(("train", "valid", "test"), SIZES, strict=True)
    prefixes = [f"--{split}={plain / part}" for split, part in parts]
    flags = ["--source-lang", "de", "--target-lang", "en", "--merges", 9, "--dest", tmp_path / "a"]
    expected = written(prepare("prepare", *prefixes, *flags))
    for number, source in enumerate(([], [packed], [plain])):
        dest = tmp_path / str(number)
        found = prepare("prepare-multi30k", *source, "--dest", dest, "--merges", 9)
        assert written(found) == expected
    assert {f"{name}.gz" for name in TEXTS} == set(written(tmp_path / "0" / "download"))
    printed = capsys.readouterr().out
    assert printed.count("download file://") == len(TEXTS)
    assert printed.count("  valid: 3 lines\n") == 3


def test_a_wrong_file_of_multi30k_is_refused(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ParallelText, "run", lambda text, manifest: None)
    raw = packed / "data" / "task1" / "raw"

    def refused(message: str, source: Path | None = packed) -> None:
        with pytest.raises(UserError, match=message):
            Multi30k(source=source, dest=tmp_path / "dest").prepare(lambda line: None)
        assert not (tmp_path / "dest" / "raw").exists()

    good = (raw / "val.de.gz").read_bytes()
    (raw / "val.de.gz").write_bytes((raw / "val.en.gz").read_bytes())
    refused(r"val.de.gz is not the released val.de.gz of Multi30k, .*; fetch it again from file:")
    refused(r"fetch val.de.gz \(checksum .* \(and train.de.gz, .* beside it\), and run", None)
    (raw / "val.de.gz").unlink()
    refused("dataset: one file val.de.gz was expected, found none")
    (raw / "val.de").write_text("eins\nzwei\n")
    refused("valid has 2 lines, expected 3; this is not the release of Multi30k")
    (raw / "val.de").unlink()
    refused("train.en.gz: no such folder", raw / "train.en.gz")
    (raw / "val.de.gz").write_bytes(good)
    Multi30k(source=packed, dest=tmp_path / "dest").prepare(lambda line: None)


def test_wikitext2_is_what_prepare_lm_makes_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Downloaded, from the archive, and from its folder."""
    files = {f"wikitext-2/wiki.{split}.tokens": text.encode() for split, text in TOKENS.items()}
    archive, folder = tmp_path / "archive.zip", tmp_path / "wikitext-2"
    archive.write_bytes(zipped(files))
    folder.mkdir()
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    expect(monkeypatch, WikiText2, archive, {"train": 9, "valid": 2, "test": 1})
    expected = written(prepare("prepare-lm", folder, "--words", 3, "--dest", tmp_path / "a"))
    assert len(expected["dict.txt"].split()) == 6
    for number, source in enumerate(([], [archive], [folder])):
        dest = tmp_path / str(number)
        found = prepare("prepare-wikitext2", *source, "--dest", dest, "--words", 3)
        assert written(found) == expected
    (folder / "wiki.train.tokens").write_text("a\n")
    with pytest.raises(UserError, match="train has 1 lines, expected 9; this is not the release"):
        WikiText2(source=folder, dest=tmp_path / "b").prepare(lambda line: None)


def test_defaults_are_those_of_our_results() -> None:
    multi30k, wikitext2 = (kind(dest=Path("d")).text() for kind in (Multi30k, WikiText2))
    assert multi30k == ParallelText(
        dest=Path("d"), train="d/raw/train", valid="d/raw/valid", test=("d/raw/test",),
        source_lang="de", target_lang="en", merges=3000,
    )  # fmt: skip
    train, valid, test = (Path("d/raw") / split for split in TOKENS)
    expected = LanguageText(dest=Path("d"), words=10_000, train=train, valid=valid, test=test)
    assert wikitext2 == expected
