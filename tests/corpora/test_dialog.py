"""DailyDialog from an archive in the release's layout, and from folders."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairseq_kerbs.cli import main
from fairseq_kerbs.corpora.dialog import DailyDialog, natural_text, read_dialogues
from fairseq_kerbs.corpora.parallel import ParallelText
from fairseq_kerbs.corpora.pipeline import binarized_lines
from fairseq_kerbs.evaluation.bleu import score_file
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import read_lines
from tests.helpers.release_fixtures import expect, zipped

TRAIN = (
    "Hello , Jim . __eou__ I ’ m fine . __eou__ I ’ Ve heard . __eou__\n"
    "How much ? __eou__ It ' s £ 5 . __eou__\n"  # in the test set
    "good bye ! __eou__ See you . __eou__\n"  # in the validation set, in another case
    "Hello , Jim . __eou__ I'm fine . __eou__\n"  # repeats the first pair
    "Alone . __eou__\n"
) + "We went home . __eou__ We stay home . __eou__\n" * 20
TEXT = {
    "train": TRAIN,
    "validation": "Good bye ! __eou__ See you . __eou__ Or not . __eou__\n",
    "test": "How much ? __eou__ It’s £ 5 . __eou__\nDon ‘ t go ! __eou__ See you . __eou__\n",
}
COUNTS = {
    "train dialogues": 25,
    "validation dialogues": 1,
    "test dialogues": 2,
    "train": 25,
    "validation": 2,
    "test": 2,
}


def write_release(path: Path, text: dict[str, bytes]) -> Path:
    """A zip file with one a part, each with labels beside the text, as macOS packs them."""
    files = {"ijcnlp_dailydialog/": b"", "ijcnlp_dailydialog/dialogues_text.txt": b"all of it"}
    for part, content in text.items():
        inner = {
            f"{part}/": b"",
            f"{part}/dialogues_{part}.txt": content,
            f"{part}/dialogues_act_{part}.txt": b"1 2\n",
            f"__MACOSX/{part}/._dialogues_{part}.txt": b"\x00\x05",
        }
        files[f"ijcnlp_dailydialog/{part}.zip"] = zipped(inner)
        files[f"__MACOSX/ijcnlp_dailydialog/._{part}.zip"] = b"\x00\x05"
    path.write_bytes(zipped(files))
    return path


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An archive that the registry expects."""
    text = {part: content.encode() for part, content in TEXT.items()}
    path = write_release(tmp_path / "ijcnlp_dailydialog.zip", text)
    expect(monkeypatch, DailyDialog, path, COUNTS)
    return path


@pytest.fixture
def read_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop after the text was read."""
    monkeypatch.setattr(ParallelText, "run", lambda text, manifest: None)


def quiet(message: str) -> None:
    pass


def test_archive_to_data(archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without SOURCE it is downloaded; everything from there to DEST/bin is the real code."""
    dest = tmp_path / "dest"
    command = ["prepare-dailydialog", "--dest", str(dest), "--merges", "10", "--workers", "1"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "  train: 25 pairs of 25 dialogues" in printed
    removed = "2 training pairs removed that also occur in validation or test; 23 left"
    assert removed in printed
    raw = dest / "raw"
    pairs = list(zip(read_lines(raw / "train.context"), read_lines(raw / "train.en"), strict=True))
    assert pairs[:3] == [
        ("Hello, Jim.", "I'm fine."),
        ("I'm fine.", "I've heard."),
        ("Hello, Jim.", "I'm fine."),
    ]
    assert read_lines(raw / "test.context") == ["How much?", "Don't go!"]
    assert read_lines(raw / "test.en") == ["It's £5.", "See you."]
    for split, size in (("train", 23), ("valid", 2), ("test", 2)):
        for side in ("context", "en"):
            assert binarized_lines(dest / "bin" / f"{split}.context-en.{side}.idx") == size
    assert read_lines(dest / "bin" / "dict.en.txt") == read_lines(dest / "bin" / "dict.context.txt")
    # what the model is trained to say scores 100 against the reference
    result = score_file(
        dest / "bpe" / "test.en", [raw / "test.en"], language="en", max_ngram_order=1
    )
    assert result.score == pytest.approx(100)
    assert main(command) == 0
    assert not [line for line in capsys.readouterr().out.splitlines() if line.endswith("...")]


@pytest.mark.usefixtures("read_only")
def test_folders_give_the_same_text(archive: Path, tmp_path: Path) -> None:
    flat, deep = tmp_path / "flat", tmp_path / "deep"
    for part, text in TEXT.items():
        for path in (flat / f"dialogues_{part}.txt", deep / part / f"dialogues_{part}.txt"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
    lines: list[str] = []
    for number, source in enumerate((archive, flat, deep)):
        DailyDialog(source=source, dest=tmp_path / str(number)).prepare(lines.append)
    texts = [
        {path.name: path.read_bytes() for path in (tmp_path / str(number) / "raw").iterdir()}
        for number in range(3)
    ]
    assert texts[0] == texts[1] == texts[2]
    assert set(texts[0]) == {
        f"{s}.{e}" for s in ("train", "valid", "test") for e in ("context", "en")
    }
    lines.clear()
    DailyDialog(source=flat, dest=tmp_path / "1").prepare(lines.append)
    assert lines[0] == "read DailyDialog: already done"
    assert "removed" in "".join(lines)  # counts are told again
    with (flat / "dialogues_test.txt").open("a", encoding="utf-8") as stream:
        stream.write("One . __eou__ Two . __eou__\n")
    with pytest.raises(UserError, match="test dialogues has 3 lines, expected 2"):
        DailyDialog(source=flat, dest=tmp_path / "1").prepare(lines.append)
    (flat / "dialogues_test.txt").unlink()
    with pytest.raises(UserError, match=r"flat: one file dialogues_test.txt was expected"):
        DailyDialog(source=flat, dest=tmp_path / "1").prepare(lines.append)


@pytest.mark.usefixtures("read_only")
@pytest.mark.parametrize(
    ("part", "content", "message"),
    [
        ("test", b"a __eou__ \xff __eou__\n", r"dialogues_test.txt, line 1: not valid UTF-8"),
        (
            "train",
            b"a __eou__ b __eou__\nc __eou__ d\n",
            "line 2: a dialogue must end with __eou__",
        ),
        ("train", b"a __eou__ __eou__ b __eou__\n", "line 1: an utterance is empty"),
        ("validation", None, r"one file dialogues_validation.txt was expected, found none"),
        ("validation", TEXT["test"].encode(), "validation dialogues has 2 lines, expected 1"),
    ],
)
def test_damaged_archives_are_refused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    part: str,
    content: bytes | None,
    message: str,
) -> None:
    text = {name: value.encode() for name, value in TEXT.items()}
    text.pop(part)
    path = write_release(
        tmp_path / "ijcnlp_dailydialog.zip", text if content is None else text | {part: content}
    )
    expect(monkeypatch, DailyDialog, path, COUNTS)
    with pytest.raises(UserError, match=message):
        DailyDialog(source=path, dest=tmp_path / "dest").prepare(quiet)


@pytest.mark.parametrize(
    ("text", "natural"),
    [
        ("I ’ m sure he ’ ll say it ’ s Tom ’ s .", "I'm sure he'll say it's Tom's."),
        ("I ’ Ve been , you ' ve not , I'Ve too .", "I've been, you've not, I've too."),
        ("I'm sure you don't .", "I'm sure you don't."),
        ("Let ‘ s go , don ′ t stay .", "Let's go, don't stay."),
        ("At 6 o ’ clock , ma ’ am , Mr . O ’ Neil .", "At 6 o'clock, ma'am, Mr. O'Neil."),
        ("Say “ cheese ” !", 'Say "cheese"!'),
        ("It is three minutes ' walk .", "It is three minutes' walk."),
        ("Is the shop ' Things ' open ?", "Is the shop 'Things' open?"),
    ],
)
def test_natural_text(text: str, natural: str) -> None:
    assert natural_text(text) == natural
    assert natural_text(natural) == natural


def test_dialogues_have_any_number_of_utterances(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("a  b__eou__ c __eou__ d __eou__\ne __eou__\n")
    assert read_dialogues(tmp_path / "f", "test") == [["a b", "c", "d"], ["e"]]
    (tmp_path / "f").write_text("\n")
    with pytest.raises(UserError, match="f, line 1: a dialogue must end"):
        read_dialogues(tmp_path / "f", "test")
