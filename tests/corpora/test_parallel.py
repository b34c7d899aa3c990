"""Raw parallel text to fairseq data: what comes out, what is repeated, what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fairseq_kerbs.cli import main
from fairseq_kerbs.corpora import moses
from fairseq_kerbs.corpora.parallel import ParallelText, preparation_of
from fairseq_kerbs.corpora.pipeline import NAME, Manifest, binarized_lines
from fairseq_kerbs.corpora.synthetic import write_synthetic_corpus
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import PARTIAL, read_lines

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A raw corpus with lines that the filter must drop."""
    folder = tmp_path_factory.mktemp("raw")
    write_synthetic_corpus(folder, train=600, valid=60, test=50)
    for language, lines in (
        ("de", "\n  \nEin Wort.\n" + "lang " * 80 + ".\n" + "lang " * 80 + "\n"),
        ("en", "Empty source.\nBlank source.\n\nToo long.\nJust right.\n"),
    ):
        with (folder / f"train.{language}").open("a", encoding="utf-8") as stream:
            stream.write(lines)
    return folder


def settings_for(raw: Path, dest: Path) -> ParallelText:
    return ParallelText(
        train=str(raw / "train"),
        valid=str(raw / "valid"),
        test=(str(raw / "test"), str(raw / "valid")),
        source_lang="de",
        target_lang="en",
        dest=dest,
        merges=300,
        joined_dictionary=True,
        workers=1,
    )


def tree(folder: Path) -> dict[str, bytes]:
    """Every file but those that name times or places."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ("preprocess.log", ".lock")
    }


@pytest.fixture(scope="module")
def prepared(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    dest = tmp_path_factory.mktemp("prepared") / "dest"
    settings_for(raw, dest).prepare(report=lambda line: None)
    return dest


def test_training_is_filtered_and_the_other_splits_are_whole(prepared: Path) -> None:
    german, english = (read_lines(prepared / "clean" / f"train.{lang}") for lang in ("de", "en"))
    assert len(german) == len(english) == 601
    assert english[-1] == "Just right ."
    assert len(german[-1].split()) == 80
    assert read_lines(prepared / "tok" / "train.en")[-3:] == ["", "Too long .", "Just right ."]
    for split, lines in (("train", 601), ("valid", 60), ("test", 50), ("test1", 60)):
        for language in ("de", "en"):
            index = prepared / "bin" / f"{split}.de-en.{language}.idx"
            assert binarized_lines(index) == lines


def test_binarized_text_is_the_subword_text(prepared: Path) -> None:
    from fairseq.data import Dictionary, data_utils

    source = Dictionary.load(str(prepared / "bin" / "dict.de.txt"))
    target = Dictionary.load(str(prepared / "bin" / "dict.en.txt"))
    assert source == target  # joined
    for split in ("train", "valid", "test", "test1"):
        for language, dictionary in (("de", source), ("en", target)):
            data = data_utils.load_indexed_dataset(
                str(prepared / "bin" / f"{split}.de-en.{language}"), dictionary
            )
            texts = [dictionary.string(data[i]) for i in range(len(data))]
            assert texts == read_lines(prepared / "bpe" / f"{split}.{language}")


def test_finished_run_is_not_repeated(raw: Path, prepared: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in prepared.rglob("*") if path.is_file()}
    lines: list[str] = []
    settings_for(raw, prepared).prepare(report=lines.append)
    assert not [line for line in lines if line.endswith("...")]
    after = {path: path.stat().st_mtime_ns for path in prepared.rglob("*") if path.is_file()}
    assert after == before


def test_changed_setting_repeats_what_depends_on_it(raw: Path, prepared: Path) -> None:
    before = tree(prepared)
    lines: list[str] = []
    other = replace(settings_for(raw, prepared), max_words=20)
    other.prepare(report=lines.append)
    repeated = {line.removesuffix(" ...") for line in lines if line.endswith("...")}
    assert {"filter train", "learn BPE codes", "fairseq-preprocess"} <= repeated
    assert not [step for step in repeated if step.startswith("tokenize")]
    assert tree(prepared)["bin/dict.en.txt"] != before["bin/dict.en.txt"]
    settings_for(raw, prepared).prepare(report=lines.append)
    assert tree(prepared) == before


def kill_after(line: str, command: list[str]) -> None:
    """Run until a line is printed, then SIGKILL."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        for printed in process.stdout:
            if printed.rstrip("\n") == line:
                process.kill()
                break
        else:
            pytest.fail(f"never printed {line!r}")
    assert process.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_killed_runs_leave_nothing_half_written_and_resume(
    raw: Path, prepared: Path, tmp_path: Path
) -> None:
    """Killed four times in different steps, the folder ends up like an uninterrupted run's."""
    settings_for(raw, prepared).prepare(report=lambda line: None)
    whole = tree(prepared)
    s = settings_for(raw, tmp_path / "dest")
    command = [
        sys.executable, "-m", "fairseq_kerbs.cli", "prepare", "--dest", str(s.dest),
        "--train", s.train, "--valid", s.valid, "--test", ",".join(s.test),
        "--source-lang", "de", "--target-lang", "en", "--merges", "300", "--workers", "1",
        "--joined-dictionary",
    ]  # fmt: skip
    for step in (
        "tokenize train.de",
        "learn BPE codes",
        "apply BPE train.en",
        "fairseq-preprocess",
    ):
        kill_after(f"{step} ...", command)
        for name, content in tree(s.dest).items():
            if name != NAME and PARTIAL not in name:
                assert content == whole[name], f"{name} is half-written"
        assert not (s.dest / "bin").exists()
    lines: list[str] = []
    s.prepare(report=lines.append)
    assert [line for line in lines if line.endswith("...")] == ["fairseq-preprocess ..."]
    assert tree(s.dest) == whole


def test_vocabulary_threshold_keeps_rare_units_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_synthetic_corpus(tmp_path, train=150, valid=5, test=20)
    monkeypatch.setattr(Manifest, "binarize", lambda *_, **__: None)
    files = [f"--{split}={tmp_path / split}" for split in ("train", "valid", "test")]
    files += ["--source-lang", "de", "--target-lang", "en", "--dest", str(tmp_path / "dest")]
    flags = ["--merges", "300", "--workers", "1", "--vocabulary-threshold", "30"]
    assert main(["prepare", *files, *flags]) == 0
    for language in ("de", "en"):
        lines = read_lines(tmp_path / "dest" / "bpe" / f"vocabulary.{language}")
        counts = {unit: int(count) for unit, count in map(str.split, lines)}
        rare = {u for u in counts if counts[u] < 30 and len(u.removesuffix("@@")) > 1}
        text = read_lines(tmp_path / "dest" / "bpe" / f"test.{language}")
        assert rare
        assert not rare & {unit for line in text for unit in line.split()}


@pytest.mark.parametrize("mode", ["separate", "none"])
def test_other_bpe_modes(raw: Path, tmp_path: Path, mode: str) -> None:
    settings = replace(
        settings_for(raw, tmp_path / "dest"), bpe=mode, merges=100, joined_dictionary=False
    )
    folder = settings.prepare(report=lambda line: None)
    bpe = tmp_path / "dest" / "bpe"
    assert bpe.exists() == (mode == "separate")
    if mode == "separate":
        assert len(read_lines(bpe / "codes.de")) == len(read_lines(bpe / "codes.en")) == 101
        assert (bpe / "codes.de").read_bytes() != (bpe / "codes.en").read_bytes()
    else:
        words = {w for line in read_lines(tmp_path / "dest/clean/train.en") for w in line.split()}
        types = {line.split()[0] for line in read_lines(folder / "dict.en.txt")}
        assert types - {"madeupword0000", "madeupword0001", "madeupword0002"} >= words


def _unequal(folder: Path) -> None:
    with (folder / "train.en").open("a") as stream:
        stream.write("One more.\n")


def _empty(folder: Path) -> None:
    (folder / "valid.de").write_text("")


def _missing(folder: Path) -> None:
    (folder / "test.en").unlink()


def _not_utf8(folder: Path) -> None:
    lines = (folder / "train.de").read_bytes().split(b"\n")
    lines[2] = "Straße".encode("latin-1")
    (folder / "train.de").write_bytes(b"\n".join(lines))


def _empty_test_line(folder: Path) -> None:
    lines = read_lines(folder / "test.de")
    lines[4] = " \u00a0\x07"
    (folder / "test.de").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _all_too_long(folder: Path) -> None:
    count = len(read_lines(folder / "train.de"))
    (folder / "train.de").write_text(("lang " * 90 + "\n") * count)


WRONG_INPUT: list[tuple[Callable[[Path], None], str]] = [
    (_unequal, r"train.de has 20 lines and .*train.en has 21; parallel files need the same number"),
    (_empty, r"valid.de is empty; it must hold one sentence a line"),
    (_missing, r"test.en: no such file"),
    (_not_utf8, r"train.de, line 3: not valid UTF-8"),
    (_empty_test_line, r"test.de, line 5: empty; validation and test text need a sentence"),
    (_all_too_long, r"no pair of .*train is left after the filter of words; raise"),
]


@pytest.mark.parametrize(("spoil", "message"), WRONG_INPUT)
def test_wrong_input(tmp_path: Path, spoil: Callable[[Path], None], message: str) -> None:
    raw = tmp_path / "raw"
    write_synthetic_corpus(raw, train=20, valid=10, test=10)
    spoil(raw)
    dest = tmp_path / "dest"
    with pytest.raises(UserError, match=message) as caught:
        settings_for(raw, dest).prepare(report=lambda line: None)
    assert "\n" not in str(caught.value)
    assert not (dest / "bin").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"vocabulary_threshold": 5, "bpe": "none"}, "--vocabulary-threshold needs --bpe joint"),
        ({"target_lang": "de"}, "--source-lang and --target-lang must differ"),
        ({"source_lang": "xx"}, "--source-moses: Moses has no rules for language 'xx'"),
        ({"target_moses": "yy"}, "--target-moses: Moses has no rules for language 'yy'"),
    ],
)
def test_wrong_settings(tmp_path: Path, change: dict[str, object], message: str) -> None:
    settings = settings_for(tmp_path, tmp_path / "dest")
    with pytest.raises(UserError, match=message):
        replace(settings, **change).prepare(report=lambda line: None)  # type: ignore[arg-type]
    assert not (tmp_path / "dest").exists()


def test_existing_folder_of_other_things(tmp_path: Path) -> None:
    write_synthetic_corpus(tmp_path / "raw", train=20, valid=10, test=10)
    with pytest.raises(UserError, match="was not made by 'fairseq-kerbs prepare'"):
        settings_for(tmp_path / "raw", tmp_path / "raw").prepare(report=lambda line: None)


# --- words without an end, and lines that BPE makes long ----------------------------------------

ENDLESS = "ab." * 400_000  # minutes for BPE, hours for Moses


def rare_line(words: int) -> str:
    """A line whose words BPE cuts into twelve subwords each: no letter of them occurs twice."""
    letters = [*map(chr, range(0x1401, 0x1401 + 600)), *map(chr, range(0xA000, 0xA000 + 600))]
    return " ".join("".join(letters[12 * n : 12 * (n + 1)]) for n in range(words))


def small_corpus(folder: Path, **added: tuple[str, str]) -> Path:
    """A toy corpus with pairs added at the end of splits."""
    write_synthetic_corpus(folder, train=30, valid=5, test=5)
    for split, pair in added.items():
        for language, line in zip(("de", "en"), pair, strict=True):
            with (folder / f"{split}.{language}").open("a", encoding="utf-8") as stream:
                stream.write(line + "\n")
    return folder


@pytest.mark.parametrize("mode", ["joint", "none"])
def test_training_pairs_without_an_end_are_dropped_and_counted(tmp_path: Path, mode: str) -> None:
    short, long = rare_line(5), rare_line(100)
    pairs = [(ENDLESS, "A word ."), ("Ein Wort .", f"b {ENDLESS}"), (ENDLESS, ""), (long, short)]
    lines = tuple("\n".join(side) for side in zip(*pairs, strict=True))
    raw = small_corpus(tmp_path / "raw", train=(lines[0], lines[1]))
    settings = replace(
        settings_for(raw, tmp_path / "dest"), test=(str(raw / "test"),), bpe=mode, max_words=100
    )
    printed: list[str] = []
    folder = settings.prepare(report=printed.append)
    kept = 31 if mode == "none" else 30  # tokens are its units without BPE
    assert binarized_lines(folder / "train.de-en.de.idx") == kept
    assert any("3 with an empty side or a word of more than 1000" in line for line in printed)
    steps = json.loads((tmp_path / "dest" / NAME).read_text())["steps"]
    assert steps["filter train"]["result"] == {"empty": 3, "long": 0, "kept": 31}
    if mode == "joint":
        assert any("dropped 1 longer than 1023 subwords" in line for line in printed)
        assert steps["filter subwords of train"]["result"]["long"] == 1
        final = [read_lines(tmp_path / f"dest/short/train.{side}") for side in ("de", "en")]
        assert [len(side) for side in final] == [30, 30]
        assert max(len(line.split()) for side in final for line in side) <= 1023


@pytest.mark.parametrize("split", ["valid", "test"])
def test_other_text_without_an_end_is_refused(tmp_path: Path, split: str) -> None:
    long = rare_line(100)
    raw = small_corpus(tmp_path / "long", **{split: ("Kurz .", long)})
    settings = replace(settings_for(raw, tmp_path / "dest"), test=(str(raw / "test"),))
    message = rf"{split}\.en, line 6: 1200 subwords are too long .* allow it with --max-words 1200"
    with pytest.raises(UserError, match=message):
        settings.prepare(report=lambda line: None)
    assert not (tmp_path / "dest" / "bin").exists()
    assert not (tmp_path / "dest" / "bpe" / f"{split}.en").exists()
    replace(settings, max_words=1200).prepare(report=lambda line: None)
    with pytest.raises(UserError, match=message):  # the limit is part of what was done
        settings.prepare(report=lambda line: None)

    raw = small_corpus(tmp_path / "endless", **{split: (f"a {ENDLESS}", "A word .")})
    settings = replace(settings_for(raw, tmp_path / "other"), test=(str(raw / "test"),))
    with pytest.raises(UserError, match=rf"{split}\.de, line 6: a word has 1200000 characters"):
        settings.prepare(report=lambda line: None)
    assert not (tmp_path / "other").exists()


def test_nothing_left_after_bpe_is_said(tmp_path: Path) -> None:
    raw = small_corpus(tmp_path / "raw")
    for language, line in (("de", rare_line(100)), ("en", "A word , a word .")):
        (raw / f"train.{language}").write_text(line + "\n", encoding="utf-8")
    settings = replace(settings_for(raw, tmp_path / "dest"), max_words=100)
    with pytest.raises(UserError, match=r"no pair of .*train is left after the filter of subwords"):
        settings.prepare(report=lambda line: None)


def test_text_without_any_pair_for_bpe_is_said(tmp_path: Path) -> None:
    raw = small_corpus(tmp_path / "raw")
    for language in ("de", "en"):
        (raw / f"train.{language}").write_text("ab cd\n" if language == "de" else "ef gh\n")
    with pytest.raises(UserError, match="a pair of characters that occurs twice; use --bpe none"):
        settings_for(raw, tmp_path / "dest").prepare(report=lambda line: None)
    assert not (tmp_path / "dest" / "bpe" / "codes").exists()


# ---------------------------------------------------------------- how new text is prepared alike


@pytest.fixture
def own(raw: Path, tmp_path: Path) -> Callable[..., Path]:
    """Prepares the corpus in a folder of its own, again and again, as flags say."""

    def prepare(**flags: object) -> Path:
        chosen = replace(settings_for(raw, tmp_path / "own"), **flags)  # type: ignore[arg-type]
        chosen.prepare(report=lambda line: None)
        return tmp_path / "own"

    return prepare


def read_alike(dest: Path, raw: Path, language: str) -> list[str]:
    rules, segment = preparation_of(dest / "bin", language)
    return [segment(moses.tokenize(line, **rules)) for line in read_lines(raw / f"test.{language}")]


def test_new_text_is_prepared_as_the_manifest_says(raw: Path, own: Callable[..., Path]) -> None:
    made = []
    separate = {"bpe": "separate", "lowercase": True, "escape": True, "joined_dictionary": False}
    for folder, flags in (
        ("bpe", {}),
        ("bpe", separate),
        ("bpe", {"vocabulary_threshold": 30}),
        ("tok", {"bpe": "none"}),  # its manifest remembers BPE of before
    ):
        dest = own(**flags)
        for language in ("de", "en"):
            made.append(read_lines(dest / folder / f"test.{language}"))
            assert read_alike(dest, raw, language) == made[-1]
    assert len({tuple(text) for text in made}) == 8


def test_new_text_is_not_prepared_by_other_codes(raw: Path, own: Callable[..., Path]) -> None:
    dest = own()
    codes = dest / "bpe" / "codes"
    codes.write_text("\n".join(codes.read_text().split("\n")[:100]) + "\n")
    with pytest.raises(UserError, match=r"codes is gone or has changed .*; prepare again"):
        read_alike(dest, raw, "de")
    (dest / NAME).unlink()
    with pytest.raises(UserError, match=r"manifest\.json does not tell how raw text became"):
        read_alike(dest, raw, "de")
