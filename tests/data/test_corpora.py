"""Released corpora from archives in their layouts, and from folders: downloads, checks, readers."""

import gzip
import re
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from fairseq_kerbs.cli import main
from fairseq_kerbs.data import corpora, prepare
from fairseq_kerbs.evaluation.bleu import read_systems
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import read_lines
from tests.helpers.cli import Capsys, Patch, kerbs
from tests.helpers.release_fixtures import expect, raw_of, size_of, tgz, write_tree, written, zipped


def test_entries_are_complete() -> None:
    for name in ("iwslt16", "dailydialog", "lm1b", "multi30k", "wikitext2"):
        release = corpora.release_of(name)
        assert min(release.counts.values()) > 0
        for file, (checksum, *urls) in release.archives.items():
            assert re.fullmatch(r"md5:[0-9a-f]{32}|sha256:[0-9a-f]{64}", checksum)
            assert all(url.startswith("http") for url in urls)
            assert urls
            assert name != "multi30k" or urls[0].endswith(file)


TOKENS = {"train": " \n = a <unk> = \n b c , b\n" * 3, "valid": " \n a c\n", "test": " b b a\n"}
WIKI = {f"wikitext-2/wiki.{split}.tokens": text.encode() for split, text in TOKENS.items()}
WIKI_COUNTS = {"train": 9, "valid": 2, "test": 1}
ARCHIVE = zipped(WIKI)


class Handler(BaseHTTPRequestHandler):
    """/whole/… gives the file; the other folders go wrong, each in its own way."""

    files: dict[str, bytes] = {"archive.zip": ARCHIVE}  # noqa: RUF012

    def do_GET(self) -> None:
        _, folder, name = self.path.split("/")
        content = self.files[name]
        body = {"cut": content[:-1], "other": content[:-1] + b"!"}.get(folder, content)
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        with suppress(OSError):  # the client may hang up after the headers
            self.wfile.write(body)

    log_message = staticmethod(lambda *_: None)  # type: ignore[assignment]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    pytest.importorskip("requests")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


@pytest.mark.usefixtures("read_only")
def test_download_tries_one_address_after_the_other(
    server: str, tmp_path: Path, monkeypatch: Patch, capsys: Capsys
) -> None:
    urls = ["http://127.0.0.1:1/x", f"{server}/other", f"{server}/cut", f"{server}/whole"]
    expect(monkeypatch, "wikitext2", {"archive.zip": ARCHIVE}, WIKI_COUNTS, *urls)
    corpora.prepare_wikitext2(tmp_path, words=3)
    assert written(tmp_path / "download") == {"archive.zip": ARCHIVE}
    assert read_lines(tmp_path / "raw" / "test") == [" b b a"]
    assert capsys.readouterr().out.count("download http") == 4
    corpora.prepare_wikitext2(tmp_path, words=3)
    assert capsys.readouterr().out == "read WikiText-2: already done\n"


@pytest.mark.usefixtures("read_only")
def test_offline_one_sentence_says_where_to_put_what(tmp_path: Path, monkeypatch: Patch) -> None:
    pytest.importorskip("requests")
    expect(monkeypatch, "wikitext2", {"archive.zip": ARCHIVE}, WIKI_COUNTS)
    place = tmp_path / "download" / "archive.zip"
    says = r"^WikiText-2 could not be downloaded \(http://127.0.0.1:1/archive.zip.*"
    with pytest.raises(UserError, match=rf"{says}put it at {place}, and run again\Z"):
        corpora.prepare_wikitext2(tmp_path, words=3)
    place.write_bytes(ARCHIVE)
    corpora.prepare_wikitext2(tmp_path, words=3)
    assert read_lines(tmp_path / "raw" / "test") == [" b b a"]


def test_wikitext2_is_what_prepare_lm_makes_of_it(tmp_path: Path, monkeypatch: Patch) -> None:
    """From the archive under another name, and from its folder."""
    folder = write_tree(tmp_path, WIKI) / "wikitext-2"
    archive = tmp_path / "renamed"
    archive.write_bytes(ARCHIVE)
    expect(monkeypatch, "wikitext2", {"archive.zip": ARCHIVE}, WIKI_COUNTS)
    flags = ["--words", "3", "--workers", "1", "--dest"]
    assert main(["prepare-lm", str(folder), *flags, str(tmp_path / "a")]) == 0
    for number, source in enumerate((archive, folder)):
        dest = tmp_path / str(number)
        assert main(["prepare-wikitext2", str(source), *flags, str(dest)]) == 0
        assert written(dest / "bin") == written(tmp_path / "a" / "bin")
        assert not list(dest.glob(".partial-*"))
    with pytest.raises(UserError, match="nowhere: no such file or folder"):
        corpora.prepare_wikitext2(tmp_path / "c", Path("nowhere"), words=3)
    assert not (tmp_path / "c").exists()


SIZES = {"train": 30, "val": 3, "test_2016_flickr": 4}
TEXTS = {
    f"{part}.{language}": "".join(f"{language} Satz {n % 7}\u2028Nr.\n" for n in range(size))
    for part, size in SIZES.items()
    for language in ("de", "en")
}
PACKED = {f"{name}.gz": gzip.compress(text.encode()) for name, text in TEXTS.items()}


@pytest.fixture
def packed(server: str, tmp_path: Path, monkeypatch: Patch) -> Path:
    """A checkout of Multi30k that is expected, and can be downloaded."""
    monkeypatch.setattr(Handler, "files", PACKED)
    expect(monkeypatch, "multi30k", PACKED, {"train": 30, "valid": 3, "test": 4}, f"{server}/whole")
    files = {f"data/task1/raw/{name}": content for name, content in PACKED.items()}
    return write_tree(tmp_path / "dataset", files)


def test_multi30k_is_what_prepare_makes_of_it(packed: Path, tmp_path: Path) -> None:
    """From a checkout, from plain text, and downloaded file by file."""
    plain = write_tree(tmp_path / "plain", {name: text.encode() for name, text in TEXTS.items()})
    flags = [f"--{split}={plain / part}" for split, part in zip(("train", "valid", "test"), SIZES)]
    flags += ["--source-lang=de", "--target-lang=en", "--merges=9", f"--dest={tmp_path / 'a'}"]
    assert main(["prepare", *flags]) == 0
    for name, source in (("b", packed), ("c", plain), ("d", None)):
        corpora.prepare_multi30k(tmp_path / name, source, merges=9)
        assert written(tmp_path / name / "bin") == written(tmp_path / "a" / "bin")
    assert written(tmp_path / "d" / "download") == PACKED


@pytest.mark.usefixtures("read_only")
def test_a_wrong_file_of_multi30k_is_refused(packed: Path, tmp_path: Path) -> None:
    raw = packed / "data" / "task1" / "raw"

    def refused(message: str, source: Path = packed) -> None:
        with pytest.raises(UserError, match=message):
            corpora.prepare_multi30k(tmp_path / "dest", source, merges=9)
        assert not (tmp_path / "dest" / "raw").exists()

    (raw / "val.de.gz").write_bytes((raw / "val.en.gz").read_bytes())
    refused(r"val.de.gz is not the released val.de.gz of Multi30k, .*; fetch it again from http:")
    (raw / "val.de.gz").unlink()
    refused("dataset: one file val.de was expected, found none")
    (raw / "val.de").write_text("eins\nzwei\n")
    refused("valid has 2 lines, expected 3; this is not the release of Multi30k")
    refused("train.en.gz: no such folder", raw / "train.en.gz")


TAGS = ("url", "keywords", "speaker", "talkid", "title", "description")
HEAD = "".join(f"<{tag}>talks, AT&amp;T</{tag}>\n" for tag in TAGS)
TAIL = '<reviewer href="http:/1">A Reviewer</reviewer>\n<translator href="/2">B</translator>\n'
TALKS = {
    "de": f"{HEAD} Guten Morgen &amp; danke.\n Eins &lt; zwei\u2028und drei.\n{TAIL}{HEAD} Ende.\n"
    + " Wiederholung eins zwei.\n" * 20,
    "en": f"{HEAD} Good morning & thanks.\n One &lt; two and &three.\n{TAIL}{HEAD} The end.\n"
    + " Repetition one two.\n" * 20,
}
TALK_COUNTS = {"train": 23, "tst2010": 1, "tst2013": 2, "tst2014": 3}
SETS: dict[str, Any] = {"valid": "tst2013", "test": ("tst2014",)}


def xml(language: str, size: int) -> str:
    """A set in the release's markup, its sentences in two talks."""
    kind = "srcset" if language == "de" else "refset"
    first = "".join(f"<seg> {language} Satz {i} &amp; mehr. </seg>\n" for i in range(1, size))
    documents = f"<doc>\n{first}</doc>\n<doc>\n<seg> Letzter\nSatz. </seg>\n</doc>\n"
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<{kind}>\n{documents}</{kind}>\n'


def iwslt_files() -> dict[str, bytes]:
    files = {"de-en/README": b"notes", "de-en/._train.tags.de-en.de": b"\x00\x05\x16\x07"}
    for language in ("de", "en"):
        files[f"de-en/train.tags.de-en.{language}"] = TALKS[language].encode()
        for name in ("tst2010", "tst2013", "tst2014"):
            content = xml(language, TALK_COUNTS[name]).encode()
            files[f"de-en/IWSLT16.TED.{name}.de-en.{language}.xml"] = content
    return files


def iwslt_archive(path: Path, monkeypatch: Patch, files: dict[str, bytes]) -> Path:
    """The outer archive, with another language pair, expected."""
    other = tgz({"en-de/train.tags.de-en.de": b"not this\n"})
    content = tgz({"texts/en/de/en-de.tgz": other, "texts/de/en/de-en.tgz": tgz(files)})
    path.write_bytes(content)
    expect(monkeypatch, "iwslt16", {path.name: content}, TALK_COUNTS)
    return path


def test_iwslt_archive_to_data(tmp_path: Path, monkeypatch: Patch, capsys: Capsys) -> None:
    archive = iwslt_archive(tmp_path / "i.tgz", monkeypatch, iwslt_files())
    dest = tmp_path / "d"

    def prepared(to: Path, *flags: str, status: int = 0) -> str:
        return kerbs(
            capsys,
            "prepare-iwslt16",
            archive,
            "--dest",
            to,
            "--merges",
            "20",
            *flags,
            status=status,
        )

    assert "note:" not in prepared(dest)
    german = ["Guten Morgen & danke.", "Eins < zwei und drei.", "Ende."]
    assert read_lines(dest / "raw" / "train.de")[:3] == german
    assert read_lines(dest / "raw" / "train.en")[1] == "One < two and &three."
    english = ["en Satz 1 & mehr.", "en Satz 2 & mehr.", "Letzter Satz."]
    assert read_lines(dest / "raw" / "test.en") == english
    for split, part in (("train", "train"), ("valid", "tst2013"), ("test", "tst2014")):
        for language in ("de", "en"):
            assert size_of(dest / "bin" / f"{split}.de-en.{language}") == TALK_COUNTS[part]
    assert not [line for line in prepared(dest).splitlines() if line.endswith("...")]
    refusal = prepared(dest, "--test", "tst2010,tst2014", "--joined-dictionary", status=2)
    assert "prepared with other settings (joined_dictionary, sets); name another" in refusal
    other = tmp_path / "e"
    prepared(other, "--test", "tst2010,tst2014", "--joined-dictionary")
    assert size_of(other / "bin" / "test1.de-en.en") == 3


@pytest.mark.usefixtures("read_only")
def test_iwslt_archives_and_folders_give_the_same_text(tmp_path: Path, monkeypatch: Patch) -> None:
    outer = iwslt_archive(tmp_path / "i.tgz", monkeypatch, iwslt_files())
    unpacked = write_tree(tmp_path / "unpacked", iwslt_files())
    run = corpora.prepare_iwslt16
    sources = (outer, unpacked, unpacked / "de-en")
    texts = [raw_of(run, tmp_path / f"{n}", source, **SETS) for n, source in enumerate(sources)]
    inner = tmp_path / "de-en.tgz"
    inner.write_bytes(tgz(iwslt_files()))
    expect(monkeypatch, "iwslt16", {"de-en.tgz": inner.read_bytes()}, TALK_COUNTS)
    texts.append(raw_of(run, tmp_path / "inner", inner, **SETS))
    assert texts[0] == texts[1] == texts[2] == texts[3]
    assert len(texts[0]) == 6


@pytest.mark.usefixtures("read_only")
def test_folder_of_plain_text(tmp_path: Path, monkeypatch: Patch, capsys: Capsys) -> None:
    expect(monkeypatch, "iwslt16", {}, TALK_COUNTS)
    folder = tmp_path / "text"
    for language in ("de", "en"):
        files = {f"train10pct.{language}": b"a &amp; b\n" * 4}
        for name in ("tst2010", "tst2013"):
            files[f"IWSLT16.TED.{name}.de-en.{language}"] = b"Satz\n" * TALK_COUNTS[name]
        write_tree(folder, files)
    sets: dict[str, Any] = {"valid": "tst2010", "test": ("tst2013",)}
    corpora.prepare_iwslt16(tmp_path / "dest", folder, **sets)
    assert "note: 4 of the release's 23 training pairs" in capsys.readouterr().out
    assert read_lines(tmp_path / "dest" / "raw" / "train.de") == ["a & b"] * 4
    (folder / "IWSLT16.TED.tst2013.de-en.de").write_text("ein Satz\n")  # the change is seen
    with pytest.raises(UserError, match="tst2013 has 1 lines, expected 2"):
        corpora.prepare_iwslt16(tmp_path / "dest", folder, **sets)
    (folder / "train.de").write_text("x\n")
    with pytest.raises(UserError, match=r"expected, found train.de, train10pct.de"):
        corpora.prepare_iwslt16(tmp_path / "dest", folder, **sets)


def test_only_lines_that_begin_with_a_tag_are_left_out(tmp_path: Path) -> None:
    lines = "<title>x</title>\n a <title> b\n<i>c</i> d\n</doc>\n<urls> e\n\n <talkid>\n"
    (tmp_path / "train.tags.de-en.de").write_text(lines)
    sentences = corpora.read_sentences(tmp_path / "train.tags.de-en.de")
    assert sentences == ["a <title> b", "<i>c</i> d", "<urls> e", ""]


def test_a_truncated_set_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.xml").write_text('<doc><seg id="1">One</seg><seg id="2">Tw')
    with pytest.raises(UserError, match=r"a\.xml is no whole XML file \(.*\); take another copy"):
        corpora.read_sentences(tmp_path / "a.xml")


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
    "train dialogues": 25,
    "validation dialogues": 1,
    "test dialogues": 2,
    "train": 25,
    "validation": 2,
    "test": 2,
}


def test_dialog_archive_to_data(tmp_path: Path, monkeypatch: Patch, capsys: Capsys) -> None:
    """A zip file with one a part, each with labels beside the text, as macOS packs them."""
    files = {"ijcnlp_dailydialog/": b"", "ijcnlp_dailydialog/dialogues_text.txt": b"all of it"}
    for part, text in DIALOGUES.items():
        inner = {f"{part}/": b"", f"{part}/dialogues_{part}.txt": text.encode()}
        inner[f"{part}/dialogues_act_{part}.txt"] = b"1 2\n"
        inner[f"__MACOSX/{part}/._dialogues_{part}.txt"] = b"\x00\x05"
        files[f"ijcnlp_dailydialog/{part}.zip"] = zipped(inner)
        files[f"__MACOSX/ijcnlp_dailydialog/._{part}.zip"] = b"\x00\x05"
    archive = tmp_path / "dialog.zip"
    dest = tmp_path / "dest"
    archive.write_bytes(zipped(files))
    expect(monkeypatch, "dailydialog", {archive.name: archive.read_bytes()}, DIALOGUE_COUNTS)
    printed = kerbs(capsys, "prepare-dailydialog", archive, "--dest", dest, "--merges", 10)
    assert "  2 training pairs removed that also occur" in printed
    raw = dest / "raw"
    assert list(zip(read_lines(raw / "train.context"), read_lines(raw / "train.en")))[:3] == [
        ("Hello, Jim.", "I'm fine."),
        ("I'm fine.", "I've heard."),
        ("Hello, Jim.", "I'm fine."),
    ]
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
        assert raw_of(corpora.prepare_dailydialog, tmp_path / "d", folder) == written(raw)


@pytest.mark.parametrize(
    ("text", "natural"),
    [
        ("I ’ m sure he ’ ll say it ’ s Tom ’ s .", "I'm sure he'll say it's Tom's."),
        ("I ’ Ve been , you ' ve not , I'Ve too .", "I've been, you've not, I've too."),
        ("I'm sure you don't .", "I'm sure you don't."),
        ("Say “ cheese ” !", 'Say "cheese"!'),
        ("Let ‘ s go , don ′ t stay .", "Let's go, don't stay."),
        ("At 6 o ’ clock , ma ’ am , Mr . O ’ Neil .", "At 6 o'clock, ma'am, Mr. O'Neil."),
        ("It is three minutes ' walk .", "It is three minutes' walk."),
        ("Is the shop ' Things ' open ?", "Is the shop 'Things' open?"),
    ],
)
def test_natural_text(text: str, natural: str) -> None:
    assert corpora.natural_text(text) == natural
    assert corpora.natural_text(natural) == natural


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
    path = tmp_path / "lm.tar.gz"
    path.write_bytes(tgz(files))
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


def test_lm1b_drops_training_sentences_of_more_than_80_words(
    tmp_path: Path, monkeypatch: Patch, capsys: Capsys
) -> None:
    """All sentences are drawn: those of 1, 80, 81 and 200 words."""
    expect(monkeypatch, "lm1b", {}, {})
    folder = tmp_path / "text"
    dest = tmp_path / "dest"
    lengths = (1, 80, 81, 200)
    names = {"train": "a", "dev": "b", "test": "c"}
    for name, word in names.items():
        lines = (" ".join([f"{word}{size}"] * size) for size in lengths)
        write_tree(folder, {f"news.{name}.txt": "\n".join(lines).encode()})
    numbers = ["--train", 4, "--valid", 4, "--test", 4, "--dest", dest]

    def sizes(folder: str) -> list[list[int]]:
        splits = (read_lines(dest / folder / split) for split in ("train", "valid", "test"))
        return [sorted(len(line.split()) for line in lines) for lines in splits]

    printed = kerbs(capsys, "prepare-lm1b", folder, *numbers)
    assert "2 lines, 81 words; 0 blank lines dropped, 2 lines longer than 80 words" in printed
    assert sizes("raw")[0] == [1, 80, 81, 200]
    train, valid, test = sizes("text")
    assert train == [1, 80]
    assert sorted(valid + test) == sorted(2 * lengths)
    assert [size_of(dest / "bin" / split) for split in ("train", "valid", "test")] == [2, 4, 4]
    dest = tmp_path / "other"
    numbers[-1] = dest
    kerbs(capsys, "prepare-lm1b", folder, *numbers, "--max-words", 0)
    assert sizes("text")[0] == [1, 80, 81, 200]


@pytest.mark.usefixtures("read_only")
def test_draws(lm1b: Path, tmp_path: Path) -> None:
    """The same of a folder; another with another seed; a smaller sample begins a larger one."""

    def draw(name: str, source: Path = lm1b, **changed: int) -> dict[str, bytes]:
        flags = {"train": 60, "valid": 6, "test": 9, "seed": 1, "words": 9} | changed
        return raw_of(corpora.prepare_lm1b, tmp_path / name, source, **flags)

    drawn = draw("a")
    assert draw("b", tmp_path / ROOT) == drawn
    assert draw("c", seed=2) != drawn
    assert draw("d", train=90)["train"].startswith(drawn["train"])
    assert {line.split()[2] for line in drawn["train"].decode().splitlines()} == {"1", "2", "3"}
    with pytest.raises(UserError, match=r"30 sentences \(held-out\), fewer than --valid 20 and"):
        draw("e", valid=20, test=11)
