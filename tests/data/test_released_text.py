"""DailyDialog and the One-Billion-Word benchmark from archives in their layouts."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairseq_kerbs.data import prepare, released
from fairseq_kerbs.data.released import natural_text
from fairseq_kerbs.evaluation.bleu import read_systems
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import read_lines
from tests.helpers.cli import Capsys, Patch, kerbs
from tests.helpers.release_fixtures import expect, raw_of, size_of, tgz, write_tree, written, zipped

DIALOGUES = {
    "train": "Hello , Jim . __eou__ I ’ m fine . __eou__ I ’ Ve heard . __eou__\n"
    "How much ? __eou__ It ' s £ 5 . __eou__\n"  # in the test set
    "good bye ! __eou__ See you . __eou__\n"  # in the validation set, in another case
    "Hello , Jim . __eou__ I'm fine . __eou__\n"  # repeats the first pair
    "Alone . __eou__\n" + "We went home . __eou__ We stay home . __eou__\n" * 20,
    "validation": "Good bye ! __eou__ See you . __eou__ Or not . __eou__\n",
    "test": "How much ? __eou__ It’s £ 5 . __eou__\nDon ‘ t go ! __eou__ See you . __eou__\n",
}
DIALOGUE_COUNTS = {
    "train dialogues": 25, "validation dialogues": 1, "test dialogues": 2,
    "train": 25, "validation": 2, "test": 2,
}  # fmt: skip


def dialog_archive(tmp_path: Path, monkeypatch: Patch) -> Path:
    """A zip file with one a part, each with labels beside the text, as macOS packs them."""
    files = {"ijcnlp_dailydialog/": b"", "ijcnlp_dailydialog/dialogues_text.txt": b"all of it"}
    for part, text in DIALOGUES.items():
        inner = {f"{part}/": b"", f"{part}/dialogues_{part}.txt": text.encode()}
        inner[f"{part}/dialogues_act_{part}.txt"] = b"1 2\n"
        inner[f"__MACOSX/{part}/._dialogues_{part}.txt"] = b"\x00\x05"
        files[f"ijcnlp_dailydialog/{part}.zip"] = zipped(inner)
        files[f"__MACOSX/ijcnlp_dailydialog/._{part}.zip"] = b"\x00\x05"
    (path := tmp_path / "dialog.zip").write_bytes(zipped(files))
    expect(monkeypatch, "dailydialog", {path.name: path.read_bytes()}, DIALOGUE_COUNTS)
    return path


def test_dialog_archive_to_data(tmp_path: Path, monkeypatch: Patch, capsys: Capsys) -> None:
    archive, dest = dialog_archive(tmp_path, monkeypatch), tmp_path / "dest"
    printed = kerbs(capsys, "prepare-dailydialog", archive, "--dest", dest, "--merges", 10)
    assert "  2 training pairs removed that also occur" in printed
    raw = dest / "raw"
    pairs = list(zip(read_lines(raw / "train.context"), read_lines(raw / "train.en")))
    assert pairs[:3] == [
        ("Hello, Jim.", "I'm fine."), ("I'm fine.", "I've heard."), ("Hello, Jim.", "I'm fine."),
    ]  # fmt: skip
    assert read_lines(raw / "test.context") == ["How much?", "Don't go!"]
    assert read_lines(raw / "test.en") == ["It's £5.", "See you."]
    for split, size in (("train", 23), ("valid", 2), ("test", 2)):
        for side in ("context", "en"):
            assert size_of(dest / "bin" / f"{split}.context-en.{side}") == size
    assert read_lines(dest / "bin" / "dict.en.txt") == read_lines(dest / "bin" / "dict.context.txt")
    # what the model is trained to say is the reference
    systems, references = read_systems([dest / "bpe/test.en"], [raw / "test.en"], language="en")
    assert [*systems.values()] == references
    for folder in (tmp_path / "flat", tmp_path / "deep" / "test"):
        texts = {f"dialogues_{part}.txt": text.encode() for part, text in DIALOGUES.items()}
        write_tree(folder, texts)
        monkeypatch.setattr(prepare, "parallel_steps", lambda *_: None)
        assert raw_of(released.prepare_dailydialog, tmp_path / "d", folder) == written(raw)


@pytest.mark.parametrize(("text", "natural"), [
    ("I ’ m sure he ’ ll say it ’ s Tom ’ s .", "I'm sure he'll say it's Tom's."),
    ("I ’ Ve been , you ' ve not , I'Ve too .", "I've been, you've not, I've too."),
    ("I'm sure you don't .", "I'm sure you don't."),
    ("Let ‘ s go , don ′ t stay .", "Let's go, don't stay."),
    ("At 6 o ’ clock , ma ’ am , Mr . O ’ Neil .", "At 6 o'clock, ma'am, Mr. O'Neil."),
    ("Say “ cheese ” !", 'Say "cheese"!'),
    ("It is three minutes ' walk .", "It is three minutes' walk."),
    ("Is the shop ' Things ' open ?", "Is the shop 'Things' open?"),
])  # fmt: skip
def test_natural_text(text: str, natural: str) -> None:
    assert natural_text(text) == natural
    assert natural_text(natural) == natural


ROOT = "1-billion-word-language-modeling-benchmark-r13output"
TRAIN = f"{ROOT}/training-monolingual.tokenized.shuffled"
HELDOUT = f"{ROOT}/heldout-monolingual.tokenized.shuffled"


@pytest.fixture
def lm1b(tmp_path: Path, monkeypatch: Patch) -> Path:
    """An archive that is expected: shards out of order, and the held-out text once more."""
    files = {f"{ROOT}/README": b"notes\n"}
    files[f"{HELDOUT}/news.en-00000-of-00100"] = b"never drawn\n" * 9
    for shard in (2, 1, 3):
        lines = "".join(f"Training sentence {shard} {i} .\n" for i in range(40))
        files[f"{TRAIN}/news.en-{shard:05}-of-00100"] = lines.encode()
    for shard in (0, 1):
        lines = "".join(f"Held-out sentence {shard} {i} .\n" for i in range(15))
        files[f"{HELDOUT}/news.en.heldout-{shard:05}-of-00050"] = lines.encode()
    write_tree(tmp_path, files)
    (path := tmp_path / "lm.tar.gz").write_bytes(tgz(files))
    expect(monkeypatch, "lm1b", {path.name: tgz(files)}, {"training": 120, "held-out": 30})
    return path


def test_lm1b_archive_to_data(lm1b: Path, tmp_path: Path, capsys: Capsys) -> None:
    dest = tmp_path / "dest"
    numbers = ["--train", "50", "--valid", "5", "--test", "20", "--words", "9"]
    printed = kerbs(capsys, "prepare-lm1b", lm1b, "--dest", dest, *numbers)
    assert "0 validation and test sentences are also in the training text" in printed
    for split, size in (("train", 50), ("valid", 5), ("test", 20)):
        assert size_of(dest / "bin" / split) == size
        lines = read_lines(dest / "raw" / split)
        assert len(set(lines)) == size
        assert all(line.startswith("Training" if split == "train" else "Held") for line in lines)
    assert not set(read_lines(dest / "raw" / "valid")) & set(read_lines(dest / "raw" / "test"))
    assert len(read_lines(dest / "bin" / "dict.txt")) == 9


@pytest.mark.usefixtures("read_only")
def test_draws(lm1b: Path, tmp_path: Path) -> None:
    """The same of a folder; another with another seed; a smaller sample begins a larger one."""

    def draw(name: str, source: Path = lm1b, **changed: int) -> dict[str, bytes]:
        flags = {"train": 60, "valid": 6, "test": 9, "seed": 1, "words": 9} | changed
        return raw_of(released.prepare_lm1b, tmp_path / name, source, **flags)

    drawn = draw("a")
    assert draw("b", tmp_path / ROOT) == drawn
    assert draw("c", seed=2) != drawn
    assert draw("d", train=90)["train"].startswith(drawn["train"])
    shards = {line.split()[2] for line in drawn["train"].decode().splitlines()}
    assert shards == {"1", "2", "3"}
    with pytest.raises(UserError, match=r"30 sentences \(held-out\), fewer than --valid 20 and"):
        draw("e", valid=20, test=11)
