"""Sentences of the One-Billion-Word benchmark, drawn with a seed, to fairseq data.

Section 5 of the KerBS paper uses 300k sentences for training, 10k for validation and 30k for the
test, and does not say which. Here training sentences come from the benchmark's training text and
the others from its held-out text.
"""

from __future__ import annotations

import heapq
import random
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

from tqdm import tqdm

from fairseq_kerbs.corpora.binarize import check_numbers
from fairseq_kerbs.corpora.language import LanguageText
from fairseq_kerbs.corpora.released import Reading, ReleasedCorpus, archive_files, decode_lines
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import iter_lines
from fairseq_kerbs.utils.processes import usable_cores

# The held-out folder of the release also has its text in one file, which is passed over.
_RELEASE = re.compile(
    r"(?:(training)-monolingual\.tokenized\.shuffled/news\.en"
    r"|(heldout)-monolingual\.tokenized\.shuffled/news\.en\.heldout)-\d{5}-of-\d{5}$"
)
_NAMES = {
    "training": {"train", "training"},
    "held-out": {"valid", "validation", "dev", "test", "heldout"},
}


@dataclass(frozen=True)
class Lm1b(ReleasedCorpus):
    """The One-Billion-Word benchmark.

    Attributes:
        train, valid, test: sentences to draw.
        seed: of the draw.
        words: number of most frequent training words that are kept; 0 keeps all.
        workers: processes that fairseq-preprocess uses.
    """

    key: ClassVar[str] = "lm1b"
    step: ClassVar[str] = "draw sentences"
    source: Path | None
    dest: Path
    train: int = 300_000
    valid: int = 10_000
    test: int = 30_000
    seed: int = 1
    words: int = 20_000
    workers: int = field(default_factory=usable_cores)

    @property
    def sizes(self) -> dict[str, int]:
        """Sentences of each split."""
        return {"train": self.train, "valid": self.valid, "test": self.test}

    def check(self) -> None:
        """As `ReleasedCorpus.check`, with the sizes."""
        check_numbers(**self.sizes)
        super().check()

    def text(self) -> LanguageText:
        """The sentences drawn."""
        files = {split: self.dest / "raw" / split for split in self.sizes}
        return LanguageText(files, self.dest, self.words or None, self.workers)

    def find(self, folder: Path) -> dict[str, Path]:
        """The unpacked release, or files whose names say what they are (train, dev, test, …)."""
        paths = [path for path in sorted(folder.glob("*/news.en*")) if _RELEASE.search(str(path))]
        paths = paths or [path for path in sorted(folder.iterdir()) if path.is_file()]
        files = {path.name: path for path in paths if _pool(str(path))}
        if "held-out" not in map(_pool, map(str, files.values())):
            raise UserError(
                f"{folder} has no text of the benchmark: files with train, dev or test in their "
                "names, or the unpacked release"
            )
        return files

    def recorded(self, files: Mapping[str, Path]) -> dict[str, Any]:
        """What is drawn, and of which pools; none where the archive is read."""
        pools = sorted(_splits(files)) if files else []
        return {"sizes": self.sizes, "seed": self.seed, "pools": pools}

    def read(self, source: Path, files: Mapping[str, Path]) -> Reading:
        """The sentences drawn for every split; how many there were, and how many are shared."""
        of_pool = _splits(files)
        draws = {
            pool: Draw(sum(self.sizes[split] for split in splits), self.seed)
            for pool, splits in of_pool.items()
        }
        texts = _texts(source, files)
        for path, lines in tqdm(texts, desc="draw", unit=" files", leave=False, disable=None):
            pool = "all" if "all" in draws else _pool(path)
            draws[pool].read(Path(path).name, lines)
        if "all" not in draws and all(_RELEASE.search(str(path)) for path in files.values()):
            for pool, draw in draws.items():
                self.release.check_count(source, f"{pool} files", draw.files, "files")
                self.release.check_count(source, pool, draw.total, "sentences")
        drawn: dict[str, list[str]] = {}
        for pool, splits in of_pool.items():
            sizes = {split: self.sizes[split] for split in splits}
            if draws[pool].total < sum(sizes.values()):
                flags = " and ".join(f"--{split} {size}" for split, size in sizes.items())
                raise UserError(
                    f"{source} has {draws[pool].total} sentences ({pool}), fewer than {flags} ask "
                    "for; give smaller numbers"
                )
            sentences = iter(draws[pool].sentences())
            drawn |= {split: list(islice(sentences, size)) for split, size in sizes.items()}
        known = set(drawn["train"])
        shared = sum(sentence in known for sentence in (*drawn["valid"], *drawn["test"]))
        totals = {pool: draw.total for pool, draw in draws.items()}
        return drawn, {"totals": totals, "shared": shared}

    def summary(self, source: Path, figures: Mapping[str, Any]) -> Iterator[str]:
        """Sentences of each pool and split, and how many are shared."""
        for pool, total in figures["totals"].items():
            yield f"{pool}: {total} sentences to draw from"
        yield (
            f"drawn: {', '.join(f'{split} {size}' for split, size in self.sizes.items())}; "
            f"{figures['shared']} validation and test sentences are also in the training text"
        )
        if "all" in figures["totals"]:
            yield f"note: {source} has no training text; all three are drawn from its one pool"


def _pool(path: str) -> str:
    """``training`` or ``held-out``, by the release's folders or the words of a name; "" if none."""
    released = _RELEASE.search(path)
    if released:
        return "training" if released[1] else "held-out"
    words = set(re.split(r"[._-]", Path(path).name))
    return next((pool for pool, names in _NAMES.items() if words & names), "")


def _splits(files: Mapping[str, Path]) -> dict[str, tuple[str, ...]]:
    """The splits that are drawn from each pool; all from one where there is no training text."""
    if files and "training" not in map(_pool, map(str, files.values())):
        return {"all": ("train", "valid", "test")}
    return {"training": ("train",), "held-out": ("valid", "test")}


def _texts(source: Path, files: Mapping[str, Path]) -> Iterator[tuple[str, Iterable[str]]]:
    """Path and lines of each file, or of each of the archive, which is unpacked as it is read."""
    for path in files.values():
        yield str(path), iter_lines(path)
    if not files:
        for name, content in archive_files(source, _RELEASE.search):
            yield name, decode_lines(content, f"{source}/{name}")


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
