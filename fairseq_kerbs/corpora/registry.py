"""The released corpora of the papers' experiments: files, checksums, addresses, counts.

Nothing here is taken on trust: an archive of another size or checksum, or text with another number
of lines than the release has, is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import IO
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from tqdm import tqdm

from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import partial_name, put_in_place

TIMEOUT = 30.0  # seconds without an answer after which an address is given up
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Archive:
    """One released file.

    Attributes:
        name: its file name.
        urls: addresses that are tried, in this order.
        size: bytes; None where the release does not say.
        md5, sha256: hexadecimal; "" where the release does not say. One of them is given.
    """

    name: str
    urls: tuple[str, ...]
    size: int | None = None
    md5: str = ""
    sha256: str = ""

    def checksums(self) -> dict[str, str]:
        """Algorithm and expected value of each known checksum."""
        known = {"md5": self.md5, "sha256": self.sha256}
        return {name: value for name, value in known.items() if value}

    def differences(self, size: int, checksums: Mapping[str, str]) -> str:
        """What is wrong with a file of this size and these checksums; "" for the right one."""
        if self.size is not None and size != self.size:
            return f"{size:,} bytes, expected {self.size:,}"
        for name, expected in self.checksums().items():
            if checksums[name] != expected:
                return f"{name.upper()} {checksums[name]}, expected {expected}"
        return ""


@dataclass(frozen=True)
class Corpus:
    """A released corpus.

    Attributes:
        title: how messages call it.
        archives: files that hold it, each of them all of it.
        counts: lines, pairs or sentences that the release has, by the name of the part.
        members: how the SHA-256 of files inside the archive begins, by file name.
    """

    title: str
    archives: tuple[Archive, ...]
    counts: Mapping[str, int]
    members: Mapping[str, str] = field(default_factory=dict)

    def check_count(self, where: Path | str, part: str, found: int, unit: str) -> None:
        """Raise a UserError, unless the part has as many lines, pairs, … as in the release."""
        expected = self.counts[part]
        if found != expected:
            raise UserError(
                f"{where}: {part} has {found:,} {unit}, expected {expected:,}; "
                f"this is not the release of {self.title}"
            )

    def check_member(self, where: Path | str, name: str, content: bytes) -> None:
        """Raise a UserError if the checksum of a file of the release is known and not this one."""
        expected = self.members.get(name)
        found = hashlib.sha256(content).hexdigest()
        if expected is not None and not found.startswith(expected):
            raise UserError(
                f"{where}: SHA-256 of {name} is {found}, expected {expected}…; "
                f"this is not the release of {self.title}"
            )


CORPORA: dict[str, Corpus] = {
    "iwslt16": Corpus(
        title="IWSLT'16 De→En",
        archives=(
            Archive(
                name="2016-01.tgz",
                urls=(
                    "https://drive.google.com/uc?id=1l5y6Giag9aRPwGtuZHswh3w5v3qEz8D8&confirm=t",
                    "https://drive.google.com/uc?id=1l5y6Giag9aRPwGtuZHswh3w5v3qEz8D8",
                ),
                md5="c393ed3fc2a1b0f004b3331043f615ae",
            ),
            Archive(
                name="de-en.tgz",
                urls=("https://wit3.fbk.eu/archive/2016-01//texts/de/en/de-en.tgz",),
                sha256="7e21dd345e9192180f36d7816f84a77eafd6b85e45432d90d0970f06e8c772ea",
            ),
        ),
        counts={
            "train": 196_884,
            "dev2010": 887,
            "tst2010": 1565,
            "tst2011": 1433,
            "tst2012": 1700,
            "tst2013": 993,
            "tst2014": 1305,
        },
        members={
            "IWSLT16.TED.tst2013.de-en.de.xml": "5b74a729",
            "IWSLT16.TED.tst2013.de-en.en.xml": "479fec5c",
            "IWSLT16.TED.tst2014.de-en.de.xml": "e9b23337",
            "IWSLT16.TED.tst2014.de-en.en.xml": "bcbbf090",
        },
    ),
    "dailydialog": Corpus(
        title="DailyDialog",
        archives=(
            Archive(
                name="ijcnlp_dailydialog.zip",
                urls=(
                    "http://yanran.li/files/ijcnlp_dailydialog.zip",
                    "https://web.archive.org/web/20220516002703id_/http://yanran.li/files/ijcnlp_dailydialog.zip",
                ),
                size=4_475_921,
                sha256="c641e88cbf21fd7c1b57289387f9107d33fe8685a2b37fe8066b82776535ea89",
            ),
        ),
        counts={
            "train dialogues": 11_118,
            "validation dialogues": 1000,
            "test dialogues": 1000,
            "train": 76_053,
            "validation": 7069,
            "test": 6740,
        },
    ),
    "lm1b": Corpus(
        title="the One-Billion-Word benchmark",
        archives=(
            Archive(
                name="1-billion-word-language-modeling-benchmark-r13output.tar.gz",
                urls=(
                    "https://www.statmt.org/lm-benchmark/"
                    "1-billion-word-language-modeling-benchmark-r13output.tar.gz",
                    "http://www.statmt.org/lm-benchmark/"
                    "1-billion-word-language-modeling-benchmark-r13output.tar.gz",
                ),
                size=1_792_209_805,
                sha256="01ba60381110baf7f189dfd2b8374de371e8c9a340835793f190bdae9e90a34e",
            ),
        ),
        counts={
            "training files": 99,
            "held-out files": 50,
            "training": 30_301_028,
            "held-out": 306_688,
        },
    ),
}
"""By the name of the command: ``fairseq-kerbs prepare-NAME``."""


def locate(
    corpus: Corpus, source: Path | None, folder: Path, report: Callable[[str], None] = print
) -> Path:
    """Where the corpus is: `source` if it is named, else an archive in `folder`, else a download.

    Raises:
        UserError: `source` does not exist, or no address gave the archive.
    """
    if source is None:
        return fetch(corpus, folder, report)
    if not source.exists():
        raise UserError(f"{source}: no such file or folder; name an archive or folder of the text")
    return source


def check_archive(corpus: Corpus, path: Path) -> Archive:
    """The released archive that a file is, whatever its name.

    Raises:
        UserError: it is none of them; the message compares it with the one of its name, or with the
            first.
    """
    algorithms = {name for archive in corpus.archives for name in archive.checksums()}
    size, checksums = path.stat().st_size, _checksums(path, algorithms)
    found = {archive: archive.differences(size, checksums) for archive in corpus.archives}
    for archive, difference in found.items():
        if not difference:
            return archive
    named = [archive for archive in corpus.archives if archive.name == path.name]
    archive = (named or list(corpus.archives))[0]
    raise UserError(
        f"{path} is not the released {archive.name} of {corpus.title}: {found[archive]}; "
        f"fetch it again from {archive.urls[0]}"
    )


def fetch(corpus: Corpus, folder: Path, report: Callable[[str], None] = print) -> Path:
    """An archive of the corpus in `folder`, downloaded if none of them is there.

    The file gets its name after size and checksum were found right; until then it has a temporary
    one, and is removed when anything goes wrong.

    Raises:
        UserError: an archive that is there is wrong, or no address gave a right one.
    """
    for archive in corpus.archives:
        if (folder / archive.name).exists():
            return folder / archive.name
    failures = []
    for archive in corpus.archives:
        for url in archive.urls:
            report(f"download {url} ...")
            try:
                return _download(archive, url, folder)
            except (OSError, HTTPException, _WrongFile) as error:
                failures.append(f"{urlsplit(url).netloc or url}: {_reason(error)}")
    first = corpus.archives[0]
    checksum = ", ".join(f"{name.upper()} {value}" for name, value in first.checksums().items())
    raise UserError(
        f"{corpus.title} could not be downloaded ({'; '.join(dict.fromkeys(failures))}); fetch "
        f"{first.name} ({checksum}) from {first.urls[0]} elsewhere, put it at "
        f"{folder / first.name}, and run again"
    )


class _WrongFile(Exception):
    """An address answered, but not with the archive."""


def _reason(error: Exception) -> str:
    cause = error.reason if type(error) is URLError else error  # an HTTPError says more itself
    return str(cause) or type(error).__name__


def _download(archive: Archive, url: str, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / archive.name
    temporary = partial_name(target)
    request = Request(url, headers={"User-Agent": "fairseq-kerbs"})
    try:
        with urlopen(request, timeout=TIMEOUT) as answer, temporary.open("wb") as stream:
            length = answer.headers.get("Content-Length")
            total = int(length) if length is not None else None
            if answer.headers.get_content_type() == "text/html":
                raise _WrongFile("a web page instead of the file")
            if None not in (total, archive.size) and total != archive.size:
                raise _WrongFile(f"{total:,} bytes, expected {archive.size:,}")
            size, checksums = _copy(answer, stream, archive, total)
            if total is not None and size != total:
                raise _WrongFile(f"the connection ended after {size:,} of {total:,} bytes")
        if difference := archive.differences(size, checksums):
            raise _WrongFile(difference)
        put_in_place(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    return target


def _copy(
    source: IO[bytes], target: IO[bytes], archive: Archive, total: int | None
) -> tuple[int, dict[str, str]]:
    """Copy a stream under a progress bar; return its size and the checksums of the archive."""
    digests = {name: hashlib.new(name) for name in archive.checksums()}
    size = 0
    tqdm.monitor_interval = 0  # no monitor thread: later steps fork processes
    with tqdm(
        total=total, desc=archive.name, unit="B", unit_scale=True, leave=False, disable=None
    ) as bar:
        while block := source.read(_BLOCK):
            target.write(block)
            size += len(block)
            bar.update(len(block))
            for digest in digests.values():
                digest.update(block)
    return size, {name: digest.hexdigest() for name, digest in digests.items()}


def _checksums(path: Path, algorithms: set[str]) -> dict[str, str]:
    result = {}
    for name in sorted(algorithms):
        with path.open("rb") as stream:
            result[name] = hashlib.file_digest(stream, name).hexdigest()
    return result
