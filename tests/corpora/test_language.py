"""Text for language models to fairseq data: what comes out, what is repeated, what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairseq_kerbs.cli import main
from fairseq_kerbs.corpora.language import LanguageText, find_splits, write_clean
from fairseq_kerbs.corpora.pipeline import binarized_lines
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import read_lines

TEXT = {
    "train": " \n = A title = \n\n b a <unk> b \r\n c\u2028b  a\u00a0d \n",
    "valid": "a b e\n\n",
    "test": "b <unk>\nzz a\n",
}


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """A folder of text as WikiText has it, blank lines and all."""
    folder = tmp_path / "raw"
    folder.mkdir()
    for split, text in TEXT.items():
        (folder / f"wiki.{split}.tokens").write_bytes(text.encode())
    (folder / "SOURCE.txt").write_text("notes")
    return folder


def settings_for(raw: Path, words: int = 0) -> LanguageText:
    return LanguageText(folder=raw, dest=raw.parent / "dest", words=words, workers=1)


def test_clean_text_has_no_blank_line_and_single_spaces(raw: Path, tmp_path: Path) -> None:
    target = tmp_path / "clean"
    figures = write_clean(raw / "wiki.train.tokens", target)
    assert target.read_text("utf-8") == "= A title =\nb a <unk> b\nc b a d\n"
    assert figures == {"lines": 3, "words": 12, "blank": 2, "endless": 0}


def test_endless_words_are_dropped_from_training_and_counted(raw: Path, tmp_path: Path) -> None:
    (raw / "wiki.train.tokens").write_text(f"a {'b' * 1001}\na {'b' * 1000}\n{'a ' * 1024}\n")
    figures = write_clean(raw / "wiki.train.tokens", tmp_path / "clean")
    assert figures == {"lines": 2, "words": 1026, "blank": 0, "endless": 1}


def test_most_frequent_words_are_kept_and_ties_go_by_the_alphabet(raw: Path) -> None:
    (raw / "wiki.train.tokens").write_text("d c <unk> b\nb c a <unk>\n<unk> ü b\n", "utf-8")
    folder = settings_for(raw, words=4).prepare(report=lambda line: None)
    assert read_lines(folder / "dict.txt") == ["b 3", "c 2", "a 1", "d 1"]
    settings_for(raw).prepare(report=lambda line: None)
    assert read_lines(folder / "dict.txt")[4:] == ["ü 1"]


def test_binarized_text_is_the_clean_text(raw: Path) -> None:
    from fairseq.data import Dictionary, data_utils

    lines: list[str] = []
    folder = settings_for(raw, words=3).prepare(report=lines.append)
    dictionary = Dictionary.load(str(folder / "dict.txt"))
    assert len(dictionary) == 4 + 3  # nothing is filled up
    found = {}
    for split in TEXT:
        data = data_utils.load_indexed_dataset(str(folder / split), dictionary)
        found[split] = [dictionary.string(data[i]) for i in range(len(data))]
        assert all(int(data[i][-1]) == dictionary.eos() for i in range(len(data)))
    # words kept: b (3), = and a (2); a word of the text that is <unk> is fairseq's own
    assert found["train"] == ["= <unk> <unk> =", "b a <unk> b", "<unk> b a <unk>"]
    assert found["test"] == ["b <unk>", "<unk> a"]
    assert any(line.startswith("  train: 3 lines, 12 words; 2 blank lines") for line in lines)

    lines.clear()
    settings_for(raw, words=3).prepare(report=lines.append)
    assert not [line for line in lines if line.endswith("...")]
    settings_for(raw, words=2).prepare(report=lines.append)
    repeated = [line for line in lines if line.endswith("...")]
    assert repeated == ["fairseq-preprocess ..."]
    assert binarized_lines(folder / "train.idx") == 3


@pytest.mark.parametrize(
    ("split", "content", "message"),
    [
        ("train", b"a b\n\xff\n", "line 2: not valid UTF-8"),
        ("valid", b" \n\n", "has no text"),
        ("test", b"a b </s>\n", "line 1: '</s>' is a symbol of fairseq's own"),
        ("test", b"a\n" + b"b" * 1001 + b" a\n", "line 2: a word has 1001 characters"),
    ],
)
def test_unusable_text_is_refused(raw: Path, split: str, content: bytes, message: str) -> None:
    (raw / f"wiki.{split}.tokens").write_bytes(content)
    with pytest.raises(UserError, match=message):
        settings_for(raw).prepare(report=lambda line: None)
    assert not (raw.parent / "dest" / "bin").exists()


def test_splits_are_found_by_name_or_named(raw: Path) -> None:
    (raw / "wiki.valid.tokens").rename(raw / "1b_benchmark.dev.tokens")
    assert find_splits(raw)["valid"].name == "1b_benchmark.dev.tokens"
    (raw / "valid.txt").write_text("a\n")
    with pytest.raises(UserError, match=r"found 1b_benchmark\.dev\.tokens, valid\.txt"):
        find_splits(raw)
    with pytest.raises(UserError, match="no such folder"):
        find_splits(raw / "nothing")


def test_a_missing_file_is_said_before_anything_is_written(raw: Path, tmp_path: Path) -> None:
    none, raw_file = tmp_path / "none", raw / "wiki.train.tokens"
    with pytest.raises(UserError, match="none: no such file"):
        LanguageText(dest=tmp_path / "dest", train=raw_file, valid=none, test=none).prepare()
    assert not (tmp_path / "dest").exists()


@pytest.mark.parametrize(
    "arguments", [[], ["raw", "--train", "x"], ["--train", "x", "--valid", "y"]]
)
def test_command_wants_a_folder_or_three_files(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prepare-lm", *arguments, "--dest", "nowhere"]) == 2
    assert "either a folder, or all of --train, --valid and --test" in capsys.readouterr().err
