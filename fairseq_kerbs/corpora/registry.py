"""The released corpora of the papers' experiments: files, checksums, addresses, counts.

Nothing here is taken on trust: an archive of another size or checksum, or text with another number
of lines than the release has, is refused.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from tqdm import tqdm

from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import partial_name, put_in_place

TIMEOUT = 30.0  # seconds without an answer after which an address is given up


@dataclass(frozen=True)
class Archive:
    """One released file.

    Attributes:
        name: its file name.
        urls: addresses that are tried, in this order.
        algorithm, checksum: md5 or sha256, and its hexadecimal value.
        size: bytes; None where the release does not say.
    """

    name: str
    urls: tuple[str, ...]
    algorithm: str
    checksum: str
    size: int | None = None

    def difference(self, path: Path) -> str:
        """What is wrong with a file of whatever name; "" for the right one."""
        size = path.stat().st_size
        if self.size is not None and size != self.size:
            return f"{size:,} bytes, expected {self.size:,}"
        with path.open("rb") as stream:
            found = hashlib.file_digest(stream, self.algorithm).hexdigest()
        if found != self.checksum:
            return f"{self.algorithm.upper()} {found}, expected {self.checksum}"
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
        expected = self.members.get(name, "")
        found = hashlib.sha256(content).hexdigest()
        if not found.startswith(expected):
            raise UserError(
                f"{where}: SHA-256 of {name} is {found}, expected {expected}…; "
                f"this is not the release of {self.title}"
            )


_DRIVE = "https://drive.google.com/uc?id=1l5y6Giag9aRPwGtuZHswh3w5v3qEz8D8"
_YANRAN = "http://yanran.li/files/ijcnlp_dailydialog.zip"
_STATMT = "www.statmt.org/lm-benchmark/1-billion-word-language-modeling-benchmark-r13output.tar.gz"
CORPORA = {
    "iwslt16": Corpus("IWSLT'16 De→En", (
        Archive("2016-01.tgz", (f"{_DRIVE}&confirm=t", _DRIVE),
                "md5", "c393ed3fc2a1b0f004b3331043f615ae"),
        Archive("de-en.tgz", ("https://wit3.fbk.eu/archive/2016-01//texts/de/en/de-en.tgz",),
                "sha256", "7e21dd345e9192180f36d7816f84a77eafd6b85e45432d90d0970f06e8c772ea"),
    ), {
        "train": 196_884, "dev2010": 887, "tst2010": 1565, "tst2011": 1433, "tst2012": 1700,
        "tst2013": 993, "tst2014": 1305,
    }, {
        "IWSLT16.TED.tst2013.de-en.de.xml": "5b74a729",
        "IWSLT16.TED.tst2013.de-en.en.xml": "479fec5c",
        "IWSLT16.TED.tst2014.de-en.de.xml": "e9b23337",
        "IWSLT16.TED.tst2014.de-en.en.xml": "bcbbf090",
    }),
    "dailydialog": Corpus("DailyDialog", (
        Archive("ijcnlp_dailydialog.zip",
                (_YANRAN, f"https://web.archive.org/web/20220516002703id_/{_YANRAN}"),
                "sha256", "c641e88cbf21fd7c1b57289387f9107d33fe8685a2b37fe8066b82776535ea89",
                4_475_921),
    ), {
        "train dialogues": 11_118, "validation dialogues": 1000, "test dialogues": 1000,
        "train": 76_053, "validation": 7069, "test": 6740,
    }),
    "lm1b": Corpus("the One-Billion-Word benchmark", (
        Archive(_STATMT.rpartition("/")[2], (f"https://{_STATMT}", f"http://{_STATMT}"),
                "sha256", "01ba60381110baf7f189dfd2b8374de371e8c9a340835793f190bdae9e90a34e",
                1_792_209_805),
    ), {"training files": 99, "held-out files": 50, "training": 30_301_028, "held-out": 306_688}),
}  # fmt: skip
"""By the name of the command: ``fairseq-kerbs prepare-NAME``."""


def locate(
    corpus: Corpus, source: Path | None, folder: Path, report: Callable[[str], None] = print
) -> Path:
    """Where the corpus is: `source` if it is named, else an archive in `folder`, else a download.

    A download gets its name after size and checksum were found right; until then it has a temporary
    one, and is removed when anything goes wrong.

    Raises:
        UserError: `source` does not exist, or no address gave the archive.
    """
    if source is not None:
        if source.exists():
            return source
        raise UserError(f"{source}: no such file or folder; name an archive or folder of the text")
    for archive in corpus.archives:
        if (folder / archive.name).exists():
            return folder / archive.name
    failures = []
    for archive in corpus.archives:
        for url in archive.urls:
            report(f"download {url} ...")
            try:
                return _download(archive, url, folder / archive.name)
            except (OSError, HTTPException, _WrongFile) as error:
                reason = error.reason if type(error) is URLError else error
                reason = str(reason) or type(error).__name__
                failures.append(f"{urlsplit(url).netloc or url}: {reason}")
    first = corpus.archives[0]
    raise UserError(
        f"{corpus.title} could not be downloaded ({'; '.join(dict.fromkeys(failures))}); fetch "
        f"{first.name} ({first.algorithm.upper()} {first.checksum}) from {first.urls[0]} "
        f"elsewhere, put it at {folder / first.name}, and run again"
    )


def check_archive(corpus: Corpus, path: Path) -> Archive:
    """The released archive that a file is, whatever its name.

    Raises:
        UserError: it is none of them; the message compares it with the one of its name, or with the
            first.
    """
    differences = {archive: archive.difference(path) for archive in corpus.archives}
    for archive, difference in differences.items():
        if not difference:
            return archive
    first = corpus.archives[0]
    archive = next((known for known in corpus.archives if known.name == path.name), first)
    raise UserError(
        f"{path} is not the released {archive.name} of {corpus.title}: {differences[archive]}; "
        f"fetch it again from {archive.urls[0]}"
    )


class _WrongFile(Exception):
    """An address answered, but not with the archive."""


def _download(archive: Archive, url: str, target: Path) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = partial_name(target)
    tqdm.monitor_interval = 0  # no monitor thread: later steps fork processes
    shown = {"desc": archive.name, "unit": "B", "unit_scale": True, "leave": False, "disable": None}
    try:
        request = Request(url, headers={"User-Agent": "fairseq-kerbs"})
        with urlopen(request, timeout=TIMEOUT) as answer, temporary.open("wb") as stream:
            if answer.headers.get_content_type() == "text/html":
                raise _WrongFile("a web page instead of the file")
            total = int(answer.headers.get("Content-Length", 0))
            with tqdm.wrapattr(stream, "write", total=total, **shown) as sink:
                shutil.copyfileobj(answer, sink)
        size = temporary.stat().st_size
        if size < total:
            raise _WrongFile(f"the connection ended after {size:,} of {total:,} bytes")
        if difference := archive.difference(temporary):
            raise _WrongFile(difference)
        put_in_place(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    return target
