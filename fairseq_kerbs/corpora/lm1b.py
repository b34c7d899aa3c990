"""Sentences of the One-Billion-Word benchmark, drawn with a seed, to fairseq data.

Section 5 of the KerBS paper uses 300k sentences for training, 10k for validation and 30k for the
test, and does not say which. Here training sentences come from the benchmark's training text and
the others from its held-out text.
"""

from __future__ import annotations

import heapq
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from tqdm import tqdm

from fairseq_kerbs.corpora import registry
from fairseq_kerbs.corpora.archives import decode_lines, reading, tar_streams
from fairseq_kerbs.corpora.language import LanguageSettings, prepare_language
from fairseq_kerbs.corpora.manifest import Manifest, locked_folder
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import atomic_write, iter_lines
from fairseq_kerbs.utils.processes import find_program, usable_cores

SPLITS = ("train", "valid", "test")

# The held-out folder of the release also has its text in one file, which is passed over.
_RELEASE = {
    "training": re.compile(r"training-monolingual\.tokenized\.shuffled/news\.en-\d{5}-of-\d{5}"),
    "held-out": re.compile(
        r"heldout-monolingual\.tokenized\.shuffled/news\.en\.heldout-\d{5}-of-\d{5}"
    ),
}
_NAMES = {
    "training": {"train", "training"},
    "held-out": {"valid", "validation", "dev", "test", "heldout"},
}

Text = tuple[str, Iterable[str]]
"""A file's name and its lines."""


@dataclass(frozen=True)
class Lm1bSettings:
    """What `prepare_lm1b` shall do.

    Attributes:
        source: the archive or a folder; None downloads the archive.
        dest: folder to work in.
        train, valid, test: sentences to draw.
        seed: of the draw.
        words: number of most frequent training words that are kept; None keeps all.
        workers: processes that fairseq-preprocess uses.
    """

    source: Path | None
    dest: Path
    train: int = 300_000
    valid: int = 10_000
    test: int = 30_000
    seed: int = 1
    words: int | None = 20_000
    workers: int = field(default_factory=usable_cores)

    @property
    def sizes(self) -> dict[str, int]:
        """Sentences of each split."""
        return {"train": self.train, "valid": self.valid, "test": self.test}

    def language(self) -> LanguageSettings:
        """The settings of the preparation that follows the draw."""
        files = {split: self.dest / "raw" / split for split in SPLITS}
        return LanguageSettings(files, self.dest, self.words, self.workers)

    def check(self) -> None:
        """Raise a UserError that names the first flag with an impossible value."""
        for split, size in self.sizes.items():
            if size < 1:
                raise UserError(f"--{split} must be at least 1, not {size}")
        self.language().check()


def prepare_lm1b(settings: Lm1bSettings, report: Callable[[str], None] = print) -> Path:
    """Run every step that is not yet done; return the folder for fairseq (``DEST/bin``).

    Raises:
        UserError: wrong flags, no archive, or one that is not the release (see `registry`); text
            that is missing or not UTF-8; fewer sentences than are to be drawn.
    """
    settings.check()
    find_program("fairseq-preprocess")
    corpus = registry.CORPORA["lm1b"]
    with locked_folder(settings.dest):
        manifest = Manifest(settings.dest, product=settings.dest / "bin", report=report)
        source = registry.locate(corpus, settings.source, settings.dest / "download", report)
        pools = _find_pools(source) if source.is_dir() else {}
        files = {path.name: path for paths in pools.values() for path in paths}
        raw = settings.dest / "raw"
        figures = manifest.step(
            "draw sentences",
            inputs=files or {"archive": source},
            settings={"sizes": settings.sizes, "seed": settings.seed, "pools": sorted(pools)},
            outputs=[raw / split for split in SPLITS],
            action=lambda: _draw_splits(corpus, source, pools, settings, raw),
        )
        for pool, total in figures["totals"].items():
            report(f"  {pool}: {total} sentences to draw from")
        report(
            f"  drawn: {', '.join(f'{split} {size}' for split, size in settings.sizes.items())}; "
            f"{figures['shared']} validation and test sentences are also in the training text"
        )
        if "all" in figures["totals"]:
            report(f"  note: {source} has no training text; all three are drawn from its one pool")
    return prepare_language(settings.language(), report)


def _find_pools(folder: Path) -> dict[str, list[Path]]:
    """The files of a folder to draw from: of ``training`` and ``held-out``, or of ``all``.

    The folder is the unpacked release, or has files whose names say what they are (train, dev, test
    …); without a training file all are one pool.
    """
    pools: dict[str, list[Path]] = {"training": [], "held-out": []}
    for path in sorted(folder.glob("*/news.en*")):
        for pool, pattern in _RELEASE.items():
            if pattern.fullmatch(path.relative_to(folder).as_posix()):
                pools[pool].append(path)
    if not any(pools.values()):
        for path in sorted(folder.iterdir()):
            words = set(re.split(r"[._-]", path.name))
            for pool, names in _NAMES.items():
                if path.is_file() and words & names:
                    pools[pool].append(path)
    if not pools["held-out"]:
        raise UserError(
            f"{folder} has no text of the benchmark: files with train, dev or test in their names, "
            "or the unpacked release"
        )
    return pools if pools["training"] else {"all": pools["held-out"]}


class Draw:
    """A sample without replacement from files that are read once, in whatever order.

    Each sentence gets a random number from the seed, its file's name and its place in the file, and
    those with the lowest numbers are drawn, lowest first. So the sample does not depend on the
    order of the files, and a smaller sample is the beginning of a larger one.
    """

    def __init__(self, size: int, seed: int) -> None:
        """Prepare to draw `size` sentences."""
        self.total = 0
        self.files = 0
        self._size = size
        self._seed = seed
        self._drawn: list[tuple[float, str, int, str]] = []  # a heap: the highest number first

    def read(self, name: str, lines: Iterable[str]) -> None:
        """Take part of a file's lines into the sample; blank ones do not count."""
        numbers = random.Random(f"{self._seed} {name}")
        for place, line in enumerate(lines):
            if not line or line.isspace():
                continue
            self.total += 1
            number = numbers.random()
            if len(self._drawn) < self._size:
                heapq.heappush(self._drawn, (-number, name, place, line))
            elif number < -self._drawn[0][0]:
                heapq.heapreplace(self._drawn, (-number, name, place, line))
        self.files += 1

    def sentences(self) -> list[str]:
        """What was drawn, in random order, with single spaces between words."""
        drawn = sorted(self._drawn, key=lambda entry: (-entry[0], entry[1:3]))
        return [" ".join(line.split()) for *_, line in drawn]


def _draw_splits(
    corpus: registry.Corpus,
    source: Path,
    pools: dict[str, list[Path]],
    settings: Lm1bSettings,
    raw: Path,
) -> dict[str, Any]:
    """Draw the sentences of every split and write them to `raw`; return the counts."""
    of_pool: dict[str, Sequence[str]] = {"training": ("train",), "held-out": ("valid", "test")}
    if "all" in pools:
        of_pool = {"all": SPLITS}
    draws = {
        pool: Draw(sum(settings.sizes[split] for split in splits), settings.seed)
        for pool, splits in of_pool.items()
    }
    if pools:
        for pool, paths in pools.items():
            for path in tqdm(paths, desc=pool, unit=" files", leave=False, disable=None):
                draws[pool].read(path.name, iter_lines(path))
    else:
        registry.check_archive(corpus, source)
        for pool, (name, lines) in _archive_texts(source):
            draws[pool].read(name, lines)
    if not pools or _is_release(pools):
        for pool, draw in draws.items():
            corpus.check_count(source, f"{pool} files", draw.files, "files")
            corpus.check_count(source, pool, draw.total, "sentences")
    drawn: dict[str, list[str]] = {}
    for pool, splits in of_pool.items():
        drawn |= _split(
            source, pool, draws[pool], {split: settings.sizes[split] for split in splits}
        )
    for split, sentences in drawn.items():
        with atomic_write(raw / split) as stream:
            stream.writelines(sentence + "\n" for sentence in sentences)
    known = set(drawn["train"])
    shared = sum(sentence in known for split in ("valid", "test") for sentence in drawn[split])
    return {"totals": {pool: draw.total for pool, draw in draws.items()}, "shared": shared}


def _split(source: Path, pool: str, draw: Draw, sizes: dict[str, int]) -> dict[str, list[str]]:
    """Divide a sample.

    Raises:
        UserError: it is smaller than it should be.
    """
    if draw.total < sum(sizes.values()):
        flags = " and ".join(f"--{split} {size}" for split, size in sizes.items())
        raise UserError(
            f"{source} has {draw.total} sentences ({pool}), fewer than {flags} ask for; "
            "give smaller numbers"
        )
    sentences = iter(draw.sentences())
    return {split: [next(sentences) for _ in range(size)] for split, size in sizes.items()}


def _is_release(pools: dict[str, list[Path]]) -> bool:
    """Whether a folder's files are those of the unpacked release."""
    return "training" in pools and pools["training"][0].name.startswith("news.en-")


def _archive_texts(source: Path) -> Iterator[tuple[str, Text]]:
    """Pool, name and lines of each file of the archive, which is unpacked as it is read."""

    def pool_of(path: PurePosixPath) -> str | None:
        name = "/".join(path.parts[-2:])
        return next((pool for pool, form in _RELEASE.items() if form.fullmatch(name)), None)

    with reading(source), tqdm(desc="draw", unit=" files", leave=False, disable=None) as bar:
        for path, stream in tar_streams(source, lambda path: pool_of(path) is not None):
            pool = pool_of(path)
            assert pool is not None
            yield pool, (path.name, decode_lines(stream, f"{source}/{path}"))
            bar.update()
