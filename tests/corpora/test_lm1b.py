"""Sentences drawn from an archive in the One-Billion-Word benchmark's layout, and from folders."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from fairseq_kerbs.cli import main
from fairseq_kerbs.corpora.language import SPLITS, LanguageText
from fairseq_kerbs.corpora.lm1b import Lm1b
from fairseq_kerbs.corpora.pipeline import binarized_lines
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import read_lines
from tests.helpers.release_fixtures import expect, tgz

ROOT = "1-billion-word-language-modeling-benchmark-r13output"
TRAIN = f"{ROOT}/training-monolingual.tokenized.shuffled"
HELDOUT = f"{ROOT}/heldout-monolingual.tokenized.shuffled"
COUNTS = {"training": 120, "held-out": 30}


def release_files() -> dict[str, bytes]:
    """Shards out of order, as an archive may have them, and the held-out text once more."""
    files = {
        f"{ROOT}/README": b"notes\n",
        f"{HELDOUT}/news.en-00000-of-00100": b"never drawn\n" * 9,
    }
    for shard in (2, 1, 3):
        lines = "".join(f"Training sentence {shard} {i} .\n" for i in range(40))
        files[f"{TRAIN}/news.en-{shard:05}-of-00100"] = lines.encode()
    for shard in (0, 1):
        lines = "".join(f"Held-out sentence {shard} {i} .\n" for i in range(15))
        files[f"{HELDOUT}/news.en.heldout-{shard:05}-of-00050"] = lines.encode()
    return files


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An archive that the registry expects."""
    path = tmp_path / f"{ROOT}.tar.gz"
    path.write_bytes(tgz(release_files()))
    expect(monkeypatch, Lm1b, path, COUNTS)
    return path


@pytest.fixture
def read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop after the sentences were drawn."""
    monkeypatch.setattr(LanguageText, "run", lambda text, manifest: None)


def quiet(message: str) -> None:
    pass


def drawn(dest: Path) -> dict[str, list[str]]:
    return {split: read_lines(dest / "raw" / split) for split in SPLITS}


def test_archive_to_data(archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without SOURCE it is downloaded; everything from there to DEST/bin is the real code."""
    dest = tmp_path / "dest"
    sizes = ["--train", "50", "--valid", "5", "--test", "20"]
    command = ["prepare-lm1b", "--dest", str(dest), *sizes, "--words", "9", "--workers", "1"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "  training: 120 sentences to draw from" in printed
    assert "0 validation and test sentences are also in the training text" in printed
    for split, size in (("train", 50), ("valid", 5), ("test", 20)):
        assert binarized_lines(dest / "bin" / f"{split}.idx") == size
        lines = read_lines(dest / "raw" / split)
        assert len(set(lines)) == size
        assert all(line.startswith("Training" if split == "train" else "Held") for line in lines)
    assert not set(read_lines(dest / "raw" / "valid")) & set(read_lines(dest / "raw" / "test"))
    assert len(read_lines(dest / "bin" / "dict.txt")) == 9
    assert main(command) == 0
    assert not [line for line in capsys.readouterr().out.splitlines() if line.endswith("...")]


@pytest.mark.usefixtures("read_only")
def test_archive_and_unpacked_release_give_the_same_draw(archive: Path, tmp_path: Path) -> None:
    for name, content in release_files().items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    texts = []
    for number, source in enumerate((archive, tmp_path / ROOT)):
        dest = tmp_path / str(number)
        Lm1b(source=source, dest=dest, train=60, valid=6, test=9).prepare(quiet)
        texts.append(drawn(dest))
    assert texts[0] == texts[1]
    Lm1b(source=archive, dest=tmp_path / "2", train=60, valid=6, test=9, seed=2).prepare(quiet)
    other = drawn(tmp_path / "2")
    assert all(other[split] != texts[0][split] for split in SPLITS)
    (tmp_path / TRAIN / "news.en-00001-of-00100").unlink()
    with pytest.raises(UserError, match="training has 80 lines, expected 120"):
        Lm1b(source=tmp_path / ROOT, dest=tmp_path / "3", train=60, valid=6, test=9).prepare(quiet)


def draw(folder: Path, train: int, seed: int = 1) -> list[str]:
    """The training sentences of a draw from the one pool that a folder has."""
    files = {path.name: path for path in sorted(folder.iterdir())}
    texts, _ = Lm1b(dest=folder, train=train, valid=1, test=1, seed=seed).read(files)
    return texts["train"]


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    """A folder without training text: 60 sentences in two files, and blank lines."""
    folder = tmp_path / "pool"
    folder.mkdir()
    for name, blank in (("a.dev", "\n"), ("b.test", "\t\n")):
        lines = [f"{name}  {number}\n{blank}" for number in range(30)]
        (folder / name).write_text("".join(lines))
    return folder


def test_a_smaller_draw_is_the_beginning_of_a_larger_one(pool: Path) -> None:
    whole = draw(pool, 58)
    assert len(set(whole)) == 58
    assert set(whole) < {f"{name} {number}" for name in ("a.dev", "b.test") for number in range(30)}
    assert whole != sorted(whole)
    assert draw(pool, 20) == whole[:20]
    assert draw(pool, 20, seed=2) != whole[:20]


def test_a_draw_is_uniform(pool: Path) -> None:
    """Each of 60 sentences is in a draw of 20 with 1/3: 600 draws, standard deviation 11.5."""
    counts = Counter(sentence for seed in range(600) for sentence in draw(pool, 20, seed))
    assert len(counts) == 60
    assert max(abs(count - 200) for count in counts.values()) < 4 * 11.5


@pytest.mark.usefixtures("read_only")
def test_folders_of_named_files(tmp_path: Path) -> None:
    folder = tmp_path / "text"
    folder.mkdir()
    (folder / "SOURCE.txt").write_text("notes\n")
    for part, size in (("dev", 12), ("test", 13)):
        text = "".join(f"{part} sentence {i}\n" for i in range(size))
        (folder / f"1b_benchmark.{part}.tokens").write_text(text)
    lines: list[str] = []
    dest = tmp_path / "dest"
    Lm1b(source=folder, dest=dest, train=17, valid=3, test=5).prepare(lines.append)
    assert "  note: there is no training text; all three are drawn from one pool" in lines
    texts = drawn(dest)
    assert len(set(texts["train"] + texts["valid"] + texts["test"])) == 25
    with pytest.raises(UserError) as raised:
        Lm1b(source=folder, dest=dest, train=17, valid=3, test=6).prepare(quiet)
    assert str(raised.value) == (
        "there are 25 sentences (all), fewer than --train 17 and --valid 3 and --test 6 ask for; "
        "give smaller numbers"
    )
    (folder / "1b_benchmark.train.tokens").write_text("train sentence\n" * 2)
    Lm1b(source=folder, dest=dest, train=2, valid=3, test=5).prepare(quiet)
    assert drawn(dest)["train"] == ["train sentence"] * 2
    (folder / "1b_benchmark.train.tokens").write_bytes(b"good\n\xff\n")
    with pytest.raises(UserError, match=r"train.tokens, line 2: not valid UTF-8"):
        Lm1b(source=folder, dest=dest, train=2, valid=3, test=5).prepare(quiet)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty has no text of the benchmark"):
        Lm1b(source=tmp_path / "empty", dest=tmp_path / "other").prepare(quiet)


@pytest.mark.usefixtures("read_only")
def test_what_is_not_the_release_is_refused(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Lm1b(source=archive, dest=tmp_path / "dest", train=60, valid=6, test=9)

    def refused(message: str) -> None:
        with pytest.raises(UserError, match=message):
            settings.prepare(quiet)
        assert not (tmp_path / "dest" / "raw").exists()

    expect(monkeypatch, Lm1b, archive, COUNTS | {"held-out": 31})
    refused("held-out has 30 lines, expected 31")
    files = release_files()
    files[f"{TRAIN}/news.en-00003-of-00100"] = b"good\n\xff\n"
    archive.write_bytes(tgz(files))
    refused("is not the released")
    expect(monkeypatch, Lm1b, archive, COUNTS)
    refused(r"news.en-00003-of-00100, line 2: not valid UTF-8")
