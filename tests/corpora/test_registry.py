"""Downloads and checks of released archives."""

from __future__ import annotations

import hashlib
import shutil
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO

import pytest

from fairseq_kerbs.corpora.registry import CORPORA, Archive, Corpus, check_archive, locate
from fairseq_kerbs.utils.errors import UserError
from tests.helpers.release_fixtures import archive_of

ROOT = Path(__file__).resolve().parents[2]
CONTENT = bytes(range(256)) * 20_000  # more than one block of the copy


class Handler(BaseHTTPRequestHandler):
    """/whole gives the file; the other paths go wrong, each in its own way."""

    def do_GET(self) -> None:
        body, length, kind = CONTENT, len(CONTENT), "application/octet-stream"
        if self.path == "/page":
            kind = "text/html; charset=utf-8"
        elif self.path == "/cut":
            body = CONTENT[:-1]
        elif self.path == "/other":
            body = CONTENT[:-1] + b"!"
        elif self.path == "/long":
            body, length = CONTENT + b"!", len(CONTENT) + 1
        self.send_response(200 if self.path != "/missing" else 404)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(length))
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


def corpus_at(*urls: str) -> Corpus:
    return Corpus("a corpus", (archive_of(CONTENT, "release.tgz", urls),), {"part": 3})


def quiet(message: str) -> None:
    pass


def test_entries_of_the_papers_corpora_are_complete() -> None:
    """Checksums as torchtext, DataDeps and Hugging Face's datasets list them."""
    assert set(CORPORA) == {"iwslt16", "dailydialog", "lm1b"}
    for corpus in CORPORA.values():
        assert min(corpus.counts.values()) > 0
        for archive in corpus.archives:
            assert archive.urls
            assert len(archive.checksum) == 2 * hashlib.new(archive.algorithm).digest_size


def test_download_tries_one_address_after_the_other(server: str, tmp_path: Path) -> None:
    corpus = corpus_at("http://127.0.0.1:1/refused", f"{server}/other", f"{server}/whole")
    lines: list[str] = []
    path = locate(corpus, None, tmp_path / "download", lines.append)
    assert path == tmp_path / "download" / "release.tgz"
    assert path.read_bytes() == CONTENT
    assert len(lines) == 3
    lines.clear()
    assert locate(corpus, None, tmp_path / "download", lines.append) == path  # no download
    assert not lines
    assert [file.name for file in path.parent.iterdir()] == ["release.tgz"]


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        ("page", "a web page instead of the file"),
        ("cut", "the connection ended after 5,119,999 of 5,120,000 bytes"),
        ("other", "SHA256 .*, expected "),
        ("long", "5,120,001 bytes, expected 5,120,000"),
        ("missing", "404"),
    ],
)
def test_a_wrong_file_never_gets_the_name(
    server: str, tmp_path: Path, page: str, reason: str
) -> None:
    with pytest.raises(UserError, match=reason):
        locate(corpus_at(f"{server}/{page}"), None, tmp_path, quiet)
    assert list(tmp_path.iterdir()) == []


def test_offline_one_sentence_says_what_to_fetch_and_where_to_put_it(tmp_path: Path) -> None:
    corpus = corpus_at("http://127.0.0.1:1/a.tgz", (tmp_path / "nothing.tgz").as_uri())
    with pytest.raises(UserError) as raised:
        locate(corpus, None, tmp_path / "download", quiet)
    message = str(raised.value)
    assert "\n" not in message
    assert message.startswith("a corpus could not be downloaded (127.0.0.1:1: ")
    assert "No such file" in message
    assert f"fetch release.tgz (SHA256 {hashlib.sha256(CONTENT).hexdigest()}) from" in message
    assert f"put it at {tmp_path / 'download' / 'release.tgz'}, and run again" in message


def test_an_interrupted_download_leaves_nothing(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(source: IO[bytes], target: IO[bytes]) -> None:
        target.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "copyfileobj", interrupted)
    with pytest.raises(KeyboardInterrupt):
        locate(corpus_at(f"{server}/whole"), None, tmp_path, quiet)
    assert list(tmp_path.iterdir()) == []


def test_archives_are_known_by_size_and_checksum_not_by_name(tmp_path: Path) -> None:
    other = Archive("inner.tgz", ("http://a/inner.tgz",), "md5", hashlib.md5(b"inner").hexdigest())
    corpus = Corpus("a corpus", (*corpus_at("http://a/b").archives, other), {"part": 3})
    path = tmp_path / "renamed"
    path.write_bytes(CONTENT)
    assert check_archive(corpus, path).name == "release.tgz"
    path.write_bytes(b"inner")
    assert check_archive(corpus, path) is other
    path.write_bytes(CONTENT[:-1])
    with pytest.raises(
        UserError, match=r"renamed is not the released release.tgz .* 5,119,999 bytes, expected"
    ):
        check_archive(corpus, path)
    wrong = tmp_path / "inner.tgz"
    wrong.write_bytes(b"Inner")
    expected = (
        f"MD5 {hashlib.md5(b'Inner').hexdigest()}, expected {other.checksum}; .* http://a/inner"
    )
    with pytest.raises(UserError, match=expected):
        check_archive(corpus, wrong)


def test_counts_and_members(tmp_path: Path) -> None:
    corpus = replace(
        corpus_at("http://a/b"), members={"a.xml": hashlib.sha256(b"a").hexdigest()[:8]}
    )
    corpus.check_count("f", "part", 3, "pairs")
    corpus.check_member("f", "a.xml", b"a")
    corpus.check_member("f", "unknown.xml", b"b")
    with pytest.raises(UserError, match="f: part has 2 pairs, expected 3; this is not the release"):
        corpus.check_count("f", "part", 2, "pairs")
    with pytest.raises(UserError, match=r"f: SHA-256 of a.xml is 3e23.*, expected ca978112…"):
        corpus.check_member("f", "a.xml", b"b")
    with pytest.raises(UserError, match="nowhere: no such file or folder"):
        locate(corpus, Path("nowhere"), tmp_path, quiet)
