"""Text to fairseq data: what comes out, is repeated, is refused."""

import gzip
import os
import re
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from fairseq.data import Dictionary, data_utils

from fairseq_kerbs.data import prepare, toy
from fairseq_kerbs.data.tokens import tokenize
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import PARTIAL, read_lines, write_json
from tests.helpers.cli import Capsys, Patch, kerbs


def texts_of(prefix: Path) -> list[str]:
    dictionary = Dictionary.load(str(prefix.with_name(f"dict{prefix.suffix}.txt")))
    data = data_utils.load_indexed_dataset(str(prefix), dictionary)
    return [dictionary.string(sentence) for sentence in data]


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A raw corpus with lines that the filter must drop."""
    folder = tmp_path_factory.mktemp("raw")
    toy.write_toy_corpus(folder, train=600, valid=60, test=50)
    for language, lines in (
        ("de", "\n  \nEin Wort.\n" + "lang " * 80 + ".\n" + "lang " * 80 + "\n"),
        ("en", "Empty source.\nBlank source.\n\nToo long.\nJust right.\n"),
    ):
        with (folder / f"train.{language}").open("a", encoding="utf-8") as stream:
            stream.write(lines)
    return folder


def run(raw: Path, dest: Path, **flags: Any) -> None:
    tests = (str(raw / "test"), str(raw / "valid"))
    chosen: dict[str, Any] = {
        "train": str(raw / "train"),
        "valid": str(raw / "valid"),
        "test": tests,
        "source_lang": "de",
        "target_lang": "en",
        "merges": 300,
        "joined_dictionary": True,
    }
    prepare.prepare_parallel(dest, **chosen | flags)


def steps(printed: str) -> list[str]:
    return re.findall(r"^(\S.*) \.\.\.$", printed, re.MULTILINE)


def tree(folder: Path) -> dict[str, bytes]:
    """Every file but those that name times or places."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    kept = (path for path in files if path.name not in ("preprocess.log", ".lock"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in kept}


@pytest.fixture(scope="module")
def prepared(raw: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    dest = tmp_path_factory.mktemp("prepared") / "dest"
    run(raw, dest)
    return dest


def test_training_is_filtered_and_all_splits_are_binarized(prepared: Path) -> None:
    german, english = (read_lines(prepared / "clean" / f"train.{lang}") for lang in ("de", "en"))
    assert (english[-1], len(german[-1].split())) == ("Just right .", 80)
    assert read_lines(prepared / "tok" / "train.en")[-3:] == ["", "Too long .", "Just right ."]
    source, target = ((prepared / f"bin/dict.{s}.txt").read_bytes() for s in ("de", "en"))
    assert source == target  # joined
    for split, size in (("train", 601), ("valid", 60), ("test", 50), ("test1", 60)):
        for language in ("de", "en"):
            texts = texts_of(prepared / "bin" / f"{split}.de-en.{language}")
            assert texts == read_lines(prepared / "bpe" / f"{split}.{language}")
            assert len(texts) == size


def test_what_is_missing_is_remade_and_other_settings_are_refused(
    raw: Path, prepared: Path, capsys: Capsys
) -> None:
    def done(**flags: Any) -> str:
        run(raw, prepared, **flags)
        return capsys.readouterr().out

    before = tree(prepared)
    assert not steps(done())
    (prepared / "bpe" / "valid.en").unlink()
    assert steps(done()) == ["apply BPE valid.en"]
    assert tree(prepared) == before
    # models may have been trained on it
    with pytest.raises(UserError, match=r"with other settings \(max_words\); name another folder"):
        done(max_words=20)
    text = (raw / "test.de").read_text()
    (raw / "test.de").write_text(text.replace("e", "a", 1))
    with pytest.raises(UserError, match=r"with other settings \(max_words, inputs\); name"):
        done(max_words=20)
    (raw / "test.de").write_text(text)
    assert tree(prepared) == before
    # what was not finished is made anew
    shutil.rmtree(prepared / "bin")
    printed = done(max_words=20)
    assert printed.startswith("changed max_words: all steps are repeated")
    assert "tokenize train.de" in steps(printed)
    assert tree(prepared)["bin/dict.en.txt"] != before["bin/dict.en.txt"]
    shutil.rmtree(prepared / "bin")
    done()
    assert tree(prepared) == before


@pytest.mark.slow
def test_interrupted_runs_leave_nothing_half_written_and_resume(
    raw: Path, prepared: Path, tmp_path: Path, monkeypatch: Patch
) -> None:
    """In a folder named "-d,1"; two processes give what one gives."""
    whole = tree(prepared)
    dest = Path("-d,1")
    rename = os.replace
    monkeypatch.chdir(tmp_path)
    for step in ("tok/train.de", "bpe/codes", "bpe/train.en"):

        def replace(name: str, target: Path, step: str = step) -> None:
            if str(target).endswith(step):
                raise KeyboardInterrupt
            rename(name, target)

        monkeypatch.setattr(os, "replace", replace)
        with pytest.raises(KeyboardInterrupt):
            run(raw, dest)
        assert tree(dest).items() <= whole.items()
        assert not (dest / "bin").exists()
    monkeypatch.setattr(os, "replace", rename)
    (dest / f"{PARTIAL}codes").write_text("half of them")  # as a killed run leaves them
    (dest / f"{PARTIAL}bin").mkdir()
    (dest / f"{PARTIAL}bin" / "dict.de.txt").touch()
    run(raw, dest, workers=2)
    assert tree(dest) == whole


def test_text_compressed_by_gzip_gives_the_same_data(
    raw: Path, prepared: Path, tmp_path: Path
) -> None:
    for file in raw.iterdir():
        (tmp_path / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
    run(tmp_path, tmp_path / "dest")
    found, expected = tree(tmp_path / "dest"), tree(prepared)
    assert found.keys() == expected.keys()
    assert [name for name in found if found[name] != expected[name]] == ["preparation.json"]
    with pytest.raises(UserError, match=rf"give --train {tmp_path}/train$"):
        run(tmp_path, tmp_path / "other", train=str(tmp_path / "train.de.gz"))


def test_new_text_is_prepared_as_the_record_says(raw: Path, tmp_path: Path) -> None:
    made = []
    separate = {"bpe": "separate", "lowercase": True, "escape": True, "joined_dictionary": False}
    settings: list[Any] = [("bpe", {}), ("bpe", separate), ("bpe", {"vocabulary_threshold": 30})]
    for number, (folder, flags) in enumerate((*settings, ("tok", {"bpe": "none"}))):
        dest = tmp_path / f"dest {number}"
        run(raw, dest, **flags)
        for language in ("de", "en"):
            made.append(read_lines(dest / folder / f"test.{language}"))
            rules, segment = prepare.preparation_of(dest / "bin", language)
            lines = read_lines(raw / f"test.{language}")
            assert [segment(tokenize(line, **rules)) for line in lines] == made[-1]
    assert len({tuple(text) for text in made}) == 8
    with pytest.raises(UserError, match=r"preparation\.json does not describe how"):
        prepare.preparation_of(dest / "bin", "fr")


def test_the_record_of_a_linked_folder_is_found(tmp_path: Path) -> None:
    """Whether the folder was moved away, or a link to it has another place; a link to a link."""
    for name, rules in (("one", "fr"), ("two", "it")):
        (tmp_path / name).mkdir()
        text = prepare.ParallelText("", "", (), "de", "en", target_moses=rules)
        write_json(tmp_path / name / prepare.NAME, text.flags)
    moved = tmp_path / "elsewhere" / "bin"
    moved.mkdir(parents=True)
    (tmp_path / "two" / "bin").mkdir()
    for link, place in (
        ("one/bin", moved),
        ("link", tmp_path / "one" / "bin"),
        ("one/data", tmp_path / "two" / "bin"),
        ("one/relative", Path("../two/bin")),
    ):
        (tmp_path / link).symlink_to(place)
    for folder, rules in (
        ("one/bin", "fr"),
        ("link", "fr"),
        ("one/data", "it"),
        ("one/relative", "it"),
        ("elsewhere/bin", "en"),
    ):
        assert prepare.target_rules(tmp_path / folder, "en")["language"] == rules


def test_folder_in_use_or_of_other_things_is_untouched(tmp_path: Path, monkeypatch: Patch) -> None:
    another = (prepare.NAME, '{"name": "another program"}')
    for name, content in (("thesis.tex", "years of work"), another):
        (tmp_path / name).write_text(content)
        (tmp_path / f"{PARTIAL}thesis").write_text("years of work")
        before = tree(tmp_path)
        with (
            pytest.raises(UserError, match="was not made by 'fairseq-kerbs prepare'"),
            prepare.working_folder(tmp_path, {"command": "prepare"}),
        ):
            pass
        assert tree(tmp_path) == before
    monkeypatch.setattr(prepare, "lock_folder", mock.Mock(side_effect=UserError("in use")))
    used = tmp_path / "used"
    with pytest.raises(UserError, match="in use"), prepare.working_folder(used, {"a": "b"}):
        pass
    assert not used.exists()


def test_text_that_would_be_removed_is_refused(tmp_path: Path) -> None:
    """A folder that is prepared anew loses its outputs, of which text may be read."""
    settings = {"command": "prepare", "merges": 1}
    with prepare.working_folder(tmp_path / "dest", settings):
        (tmp_path / "dest" / "raw").mkdir()
        (tmp_path / "dest" / "raw" / "train.de").write_text("years of work\n")
    (tmp_path / "linked").symlink_to(tmp_path / "dest" / "raw")
    before = tree(tmp_path)
    for folder in ("dest/raw", "linked"):
        file = tmp_path / folder / "train.de"
        with (
            pytest.raises(
                UserError, match=r"train.de is an output of .*, which is made anew as mer"
            ),
            prepare.working_folder(tmp_path / "dest", {**settings, "merges": 2}, [file]),
        ):
            pass
        assert tree(tmp_path) == before
        with prepare.working_folder(tmp_path / "dest", settings, [file]):
            pass


def test_of_other_settings_a_folder_that_is_a_link_is_taken_away_alone(tmp_path: Path) -> None:
    dest = tmp_path / "dest"
    with prepare.working_folder(dest, {"command": "prepare", "merges": 1}):
        (tmp_path / "scratch").mkdir()
        (tmp_path / "scratch" / "train").touch()
        (dest / "tok").symlink_to(tmp_path / "scratch")
    with prepare.working_folder(dest, {"command": "prepare", "merges": 2}):
        assert not (dest / "tok").exists()
    assert (tmp_path / "scratch" / "train").exists()


def test_binarization_that_went_wrong_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"failed with status 1; see .*preprocess\.log"):
        prepare.binarize(tmp_path, ["--only-source", "--trainpref", "nothing", "--workers", "1"])
    assert not (tmp_path / "bin").exists()


TEXT = {
    "train": " \n = A title = \n\n b a <unk> b \r\n c\u2028b  a\u00a0d \n",
    "valid": "a b e\n\n",
    "test": "b <unk>\nzz a\n",
}


@pytest.fixture
def wiki(tmp_path: Path) -> Path:
    """A folder of text as WikiText has it, blank lines and all."""
    folder = tmp_path / "raw"
    folder.mkdir()
    for split, text in TEXT.items():
        (folder / f"wiki.{split}.tokens").write_bytes(text.encode())
    (folder / "SOURCE.txt").write_text("notes")
    return folder


def test_most_frequent_words_are_kept_and_ties_go_by_the_alphabet(wiki: Path) -> None:
    (wiki / "wiki.train.tokens").write_text("d c <unk> b\nb c a <unk>\n<unk> ü b\n", "utf-8")
    dest = wiki.parent / "dest"
    prepare.prepare_language(dest, folder=wiki, words=4)
    assert read_lines(dest / "bin" / "dict.txt") == ["b 3", "c 2", "a 1", "d 1"]
    other = wiki.parent / "other"
    prepare.prepare_language(other, folder=wiki)
    assert read_lines(other / "bin" / "dict.txt")[4:] == ["ü 1"]


def test_binarized_text_is_the_clean_text(wiki: Path, capsys: Capsys) -> None:
    dest = wiki.parent / "dest"
    prepare.prepare_language(dest, folder=wiki, words=3)
    assert "3 lines, 12 words; 2 blank lines dropped" in capsys.readouterr().out
    assert read_lines(dest / "text" / "train") == ["= A title =", "b a <unk> b", "c b a d"]
    assert len(read_lines(dest / "bin" / "dict.txt")) == 3  # nothing is filled up
    # words kept: b (3), = and a (2); a word of the text that is <unk> is fairseq's own
    assert texts_of(dest / "bin" / "train") == ["= <unk> <unk> =", "b a <unk> b", "<unk> b a <unk>"]
    assert texts_of(dest / "bin" / "test") == ["b <unk>", "<unk> a"]
    prepare.prepare_language(dest, folder=wiki, words=3)
    assert not steps(capsys.readouterr().out)


def test_long_training_sentences_are_dropped_where_asked(tmp_path: Path, capsys: Capsys) -> None:
    """Validation and test keep theirs, as in the preparation of parallel text."""
    folder = tmp_path / "sentences"
    folder.mkdir()
    for split in ("train", "valid", "test"):
        lines = ["short one", "", *(" ".join(["w"] * size) for size in (80, 81, 200))]
        (folder / f"{split}.txt").write_text("\n".join(lines) + "\n")

    def sizes(*flags: object) -> dict[str, list[int]]:
        printed.append(kerbs(capsys, "prepare-lm", folder, "--dest", tmp_path / "dest", *flags))
        texts = {split: texts_of(tmp_path / "dest/bin" / split) for split in prepare.SPLITS}
        return {split: [len(line.split()) for line in texts[split]] for split in texts}

    printed: list[str] = []
    whole = [2, 80, 81, 200]
    assert sizes("--max-words", 80) == {"train": [2, 80], "valid": whole, "test": whole}
    cleaned = "2 lines, 82 words; 1 blank lines dropped, 2 lines longer than 80 words dropped"
    assert printed[0].count(cleaned) == printed[0].count("longer than") == 1
    (tmp_path / "dest").rename(tmp_path / "sentences of 80 words")
    assert sizes() == {"train": whole, "valid": whole, "test": whole}  # running text
    assert "longer than" not in printed[1]
    error = kerbs(
        capsys, "prepare-lm", folder, "--dest", tmp_path / "dest 2", "--max-words", 1, status=2
    )
    assert error.count("\n") == 1
    assert "train.txt has more than 1 words; increase --max-words, or" in error


def test_splits_are_found_by_name_or_named(wiki: Path, tmp_path: Path) -> None:
    (wiki / "wiki.valid.tokens").rename(wiki / "1b_benchmark.dev.tokens")
    assert prepare.find_splits(wiki)["valid"].name == "1b_benchmark.dev.tokens"
    (wiki / "valid.txt").write_text("a\n")
    with pytest.raises(UserError, match=r"found 1b_benchmark\.dev\.tokens, valid\.txt"):
        prepare.find_splits(wiki)
    with pytest.raises(UserError, match="found none"):
        prepare.find_splits(wiki / "nothing")
    none = tmp_path / "none"
    with pytest.raises(UserError, match="none: no such file"):
        prepare.prepare_language(tmp_path / "dest", train=none, valid=none, test=none)
    os.mkfifo(tmp_path / "pipe")
    for special in (tmp_path / "pipe", Path("/dev/stdin"), Path("/dev/null")):
        with pytest.raises(UserError, match=f"{special.name} is no file that can be read twice"):
            prepare.prepare_language(tmp_path / "dest", train=special, valid=special, test=special)
    assert not (tmp_path / "dest").exists()


def test_marks_of_sentences_are_no_words(tmp_path: Path) -> None:
    """fairseq adds its own to each line."""
    (tmp_path / "text").write_text("<s> a b </s>\n<s>\na <unk>\n</s>\nb </s>\n")
    prepare.write_clean(tmp_path / "text", tmp_path / "clean")
    assert (tmp_path / "clean").read_text() == "a b\na <unk>\nb\n"


def test_a_suffix_that_is_no_language_is_said(tmp_path: Path, capsys: Capsys) -> None:
    for name in ("src", "kor"):
        (tmp_path / f"text.{name}").write_text("오늘 은 날씨 가 좋다 .\n")
    prefix = str(tmp_path / "text")
    prepare.ParallelText(prefix, prefix, (prefix,), "src", "kor").check()
    assert capsys.readouterr().out.startswith(
        "src is no code of a language with rules: its text is"
    )
    prepare.ParallelText(prefix, prefix, (prefix,), "src", "kor", "en").check()
    assert not capsys.readouterr().out


def test_a_record_with_gaps_is_said(tmp_path: Path) -> None:
    record = {"command": "prepare", "source_lang": "de", "target_lang": "en", "bpe": "none"}
    write_json(tmp_path / prepare.NAME, record)
    with pytest.raises(UserError, match="does not tell source_moses, target_moses, lowercase, esc"):
        prepare.preparation_of(tmp_path / "bin", "de")
    rules = {"language": "en", "lowercase": False, "escape": False}
    assert prepare.target_rules(tmp_path / "bin", "en") == rules


def test_text_that_models_cannot_use_is_reported(tmp_path: Path, capsys: Capsys) -> None:
    texts = {f"train.{language}": tmp_path / f"train.{language}" for language in ("zh", "en")}
    for file, line in zip(texts.values(), ("一个男人在街上行走 。", "a man walks .")):
        file.write_text(f"{line}\n" * 3 + "b " * 1100 + "\n")
    prepare.filter_pairs([*texts.values()], 80, tmp_path / "clean")
    assert "train.zh has no spaces" in (printed := capsys.readouterr().out)
    assert "train.en has" not in printed
    prepare.write_clean(texts["train.zh"], tmp_path / "text")
    assert "train.zh has no spaces" in capsys.readouterr().out
    text = prepare.ParallelText("", "", (), "zh", "en", "", "xx", merges=5)
    prepare.subwords(texts, tmp_path / "bpe" / "codes", text, 1)
    assert capsys.readouterr().out.count("1 lines have over 1023 subwords") == 2
    write_json(tmp_path / prepare.NAME, text.flags)
    rules = [prepare.target_rules(tmp_path / "bin", language) for language in ("en", "de")]
    assert [of_language["language"] for of_language in rules] == ["xx", "de"]
