"""Downloads and checks of released archives."""

from __future__ import annotations

import hashlib
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, ClassVar

import pytest

from fairseq_kerbs.corpora.dialog import DailyDialog
from fairseq_kerbs.corpora.iwslt16 import Iwslt16
from fairseq_kerbs.corpora.language import LanguageText
from fairseq_kerbs.corpora.lm1b import Lm1b
from fairseq_kerbs.corpora.released import Archive, ReleasedCorpus, one_file
from fairseq_kerbs.corpora.unchanged import Multi30k, WikiText2
from fairseq_kerbs.utils.errors import UserError
from tests.helpers.release_fixtures import archive_of, tgz

CONTENT = tgz({"folder/text": b"a line\n"})


@dataclass(frozen=True, kw_only=True)
class Small(ReleasedCorpus):
    """A corpus of one text."""

    title = "a corpus"
    archives = (archive_of(CONTENT),)
    counts: ClassVar = {"part": 3}

    def text(self) -> LanguageText:
        text = self.dest / "raw" / "text"
        return LanguageText(dest=self.dest, workers=1, train=text, valid=text, test=text)

    def find(self, folder: Path) -> dict[str, Path]:
        return {"text": one_file(folder, "text")}

    def read(self, files: Mapping[str, Path]) -> tuple[dict[str, list[str]], list[str]]:
        return {"text": [files["text"].read_text().strip()]}, ["1 line"]


class Handler(BaseHTTPRequestHandler):
    """/whole gives the file; the other paths go wrong, each in its own way."""

    def do_GET(self) -> None:
        body = {"/cut": CONTENT[:-1], "/other": CONTENT[:-1] + b"!"}.get(self.path, CONTENT)
        self.send_response(200 if self.path != "/missing" else 404)
        self.send_header("Content-Length", str(len(CONTENT)))
        self.end_headers()
        with suppress(OSError):  # the client may hang up after the headers
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Keep quiet."""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of a local server."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def expect_at(monkeypatch: pytest.MonkeyPatch, *urls: str) -> None:
    monkeypatch.setattr(Small, "archives", (archive_of(CONTENT, urls=urls),))


def quiet(message: str) -> None:
    pass


def test_entries_of_the_papers_corpora_are_complete() -> None:
    """Checksums as torchtext, DataDeps and Hugging Face's datasets list them; Multi30k's of git."""
    for corpus in (Iwslt16, DailyDialog, Lm1b, Multi30k, WikiText2):
        assert min(corpus.counts.values()) > 0
        for archive in corpus.archives:
            assert archive.urls
            assert len(archive.checksum) in (32, 64)


def test_download_tries_one_address_after_the_other(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expect_at(monkeypatch, "http://127.0.0.1:1/refused", f"{server}/other", f"{server}/whole")
    lines: list[str] = []
    Small(dest=tmp_path).prepare(lines.append)
    assert (tmp_path / "download" / "release.tgz").read_bytes() == CONTENT
    assert (tmp_path / "raw" / "text").read_text() == "a line\n"
    assert len([line for line in lines if line.startswith("download")]) == 3
    lines.clear()
    Small(dest=tmp_path).prepare(lines.append)
    assert lines[:2] == ["read a corpus: already done", "  1 line"]
    assert [file.name for file in (tmp_path / "download").iterdir()] == ["release.tgz"]


@pytest.mark.parametrize(
    ("page", "reason"), [("cut", "another file"), ("other", "another file"), ("missing", "404")]
)
def test_a_wrong_file_never_gets_the_name(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str, reason: str
) -> None:
    expect_at(monkeypatch, f"{server}/{page}")
    with pytest.raises(UserError, match=reason):
        Small(dest=tmp_path).prepare(quiet)
    assert list((tmp_path / "download").iterdir()) == []


def test_offline_one_sentence_says_what_to_fetch_and_where_to_put_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expect_at(monkeypatch, "http://127.0.0.1:1/a.tgz", (tmp_path / "nothing.tgz").as_uri())
    with pytest.raises(UserError) as raised:
        Small(dest=tmp_path).prepare(quiet)
    message, place = str(raised.value), tmp_path / "download" / "release.tgz"
    assert "\n" not in message
    assert message.startswith("a corpus could not be downloaded (http://127.0.0.1:1/a.tgz: ")
    assert "No such file" in message
    assert f"fetch release.tgz (checksum {hashlib.sha256(CONTENT).hexdigest()})" in message
    assert f"put it at {place}, and run again" in message
    place.write_bytes(CONTENT)
    Small(dest=tmp_path).prepare(quiet)
    assert (tmp_path / "raw" / "text").read_text() == "a line\n"


def test_an_interrupted_download_leaves_nothing(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(source: IO[bytes], target: IO[bytes]) -> None:
        target.write(b"half")
        raise KeyboardInterrupt

    expect_at(monkeypatch, f"{server}/whole")
    monkeypatch.setattr(shutil, "copyfileobj", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Small(dest=tmp_path).prepare(quiet)
    assert list((tmp_path / "download").iterdir()) == []


def test_archives_are_known_by_checksum_not_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, settings = tmp_path / "renamed", Small(source=tmp_path / "renamed", dest=tmp_path / "d")
    path.write_bytes(CONTENT)
    settings.prepare(quiet)
    md5 = Archive("b.tgz", ("http://a/b.tgz",), hashlib.md5(CONTENT).hexdigest())
    monkeypatch.setattr(Small, "archives", (archive_of(b"", urls=("http://a/",)), md5))
    Small(source=path, dest=tmp_path / "other").prepare(quiet)
    path.write_bytes(CONTENT[:-1])
    with pytest.raises(UserError, match=r"renamed is not the released release.tgz of a corpus"):
        settings.prepare(quiet)
    assert not [file for file in tmp_path.rglob("*") if "unpacked" in file.name]
    with pytest.raises(UserError, match="nowhere: no such file or folder"):
        Small(source=Path("nowhere"), dest=tmp_path / "d").prepare(quiet)


def test_counts(tmp_path: Path) -> None:
    Small(dest=tmp_path).check_count("part", 3)
    with pytest.raises(UserError, match="part has 2 lines, expected 3; this is not the release"):
        Small(dest=tmp_path).check_count("part", 2)
