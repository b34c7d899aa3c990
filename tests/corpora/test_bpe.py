"""BPE equals what subword-nmt's own commands give, byte for byte."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fairseq_kerbs.corpora import bpe
from fairseq_kerbs.corpora.synthetic import write_synthetic_corpus
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import iter_lines, read_lines
from fairseq_kerbs.utils.processes import find_program


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bpe")
    write_synthetic_corpus(folder, train=800, valid=100, test=10)
    return folder


def subword_nmt(*arguments: str | Path) -> None:
    """Run subword-nmt's command line."""
    command = [find_program("subword-nmt"), *map(str, arguments)]
    subprocess.run(command, check=True, capture_output=True)


def apply(text: Path, codes: Path, vocabulary: Path | None = None, threshold: int = 0) -> str:
    segment = bpe.make_segmenter(codes, vocabulary, threshold)
    return "".join(segment(line) + "\n" for line in iter_lines(text))


def test_separate_codes_and_text_equal_the_command_s(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = corpus / "train.en"
    assert bpe.learn([text], tmp_path / "ours", 300) == 300
    assert capsys.readouterr().err == ""  # no bar into a file
    subword_nmt("learn-bpe", "-i", text, "-o", tmp_path / "theirs", "-s", "300")
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    valid = corpus / "valid.en"
    subword_nmt("apply-bpe", "-i", valid, "-o", tmp_path / "valid", "-c", tmp_path / "theirs")
    assert apply(valid, tmp_path / "ours") == (tmp_path / "valid").read_text(encoding="utf-8")


def test_joint_codes_vocabulary_and_threshold_equal_the_command_s(
    corpus: Path, tmp_path: Path
) -> None:
    texts = [corpus / "train.de", corpus / "train.en"]
    bpe.learn(texts, tmp_path / "ours", 400)
    vocabularies = [tmp_path / "theirs.de", tmp_path / "theirs.en"]
    subword_nmt(
        "learn-joint-bpe-and-vocab", "--input", *texts, "-s", "400",
        "-o", tmp_path / "theirs", "--write-vocabulary", *vocabularies,
    )  # fmt: skip
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    for text, theirs in zip(texts, vocabularies, strict=True):
        ours = tmp_path / f"ours{text.suffix}"
        types = len(read_lines(theirs))
        assert bpe.write_vocabulary(text, tmp_path / "ours", ours) == {"types": types}
        assert sorted(read_lines(ours)) == sorted(read_lines(theirs))
        subword_nmt(
            "apply-bpe", "-i", text, "-o", tmp_path / "applied", "-c", tmp_path / "theirs",
            "--vocabulary", theirs, "--vocabulary-threshold", "20",
        )  # fmt: skip
        applied = (tmp_path / "applied").read_text(encoding="utf-8")
        assert apply(text, tmp_path / "ours", ours, 20) == applied
        assert applied != apply(text, tmp_path / "ours")  # the threshold did something


def test_undo_gives_the_words_back(corpus: Path, tmp_path: Path) -> None:
    bpe.learn([corpus / "train.de"], tmp_path / "codes", 100)
    segment = bpe.make_segmenter(tmp_path / "codes")
    changed = 0
    for line in iter_lines(corpus / "valid.de"):
        changed += segment(line) != line
        assert bpe.undo(segment(line)) == line
    assert changed > 50
    assert bpe.undo("Früh@@ ling is@@") == "Frühling is"  # a hypothesis may end within a word


def test_small_text_has_fewer_merges(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("ab ab\nab\n")
    assert bpe.learn([tmp_path / "text"], tmp_path / "codes", 50) == 1


@pytest.mark.parametrize("text", ["", "\n\n", "a b c\n"])
def test_text_without_anything_to_merge(tmp_path: Path, text: str) -> None:
    (tmp_path / "text").write_text(text)
    with pytest.raises(UserError, match="use --bpe none"):
        bpe.learn([tmp_path / "text"], tmp_path / "codes", 50)
    assert not (tmp_path / "codes").exists()
