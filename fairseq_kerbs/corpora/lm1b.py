"""Sentences of the One-Billion-Word benchmark, drawn with a seed, to fairseq data.

Section 5 of the KerBS paper uses 300k sentences for training, 10k for validation and 30k for the
test, and does not say which. Here training sentences come from the benchmark's training text and
the others from its held-out text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from fairseq_kerbs.corpora.language import LanguageText
from fairseq_kerbs.corpora.pipeline import number
from fairseq_kerbs.corpora.released import Archive, ReleasedCorpus
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import iter_lines
from fairseq_kerbs.utils.processes import progress

_NAME = "1-billion-word-language-modeling-benchmark-r13output.tar.gz"
_URLS = tuple(f"{kind}://www.statmt.org/lm-benchmark/{_NAME}" for kind in ("https", "http"))
_TRAINING = "training-monolingual.tokenized.shuffled"  # a folder of the release

Numbered = tuple[float, str, int, str]  # random number, file, place in the file, sentence


@dataclass(frozen=True, kw_only=True)
class Lm1b(ReleasedCorpus):
    """Sentences of the One-Billion-Word benchmark to fairseq data.

    Draws sentences of the One-Billion-Word benchmark with a seed and without replacement, then goes
    on as 'prepare-lm'. SOURCE is 1-billion-word-language-modeling-benchmark-r13output.tar.gz, that
    archive unpacked, or a folder of files with train, dev or test in their names; without a
    training file all sentences are drawn from one pool. Text goes to DEST/raw, data to DEST/bin.
    """

    title = "the One-Billion-Word benchmark"
    archives = (
        Archive(_NAME, _URLS, "01ba60381110baf7f189dfd2b8374de371e8c9a340835793f190bdae9e90a34e"),
    )
    counts: ClassVar = {"training": 30_301_028, "held-out": 306_688}

    train: int = number("sentences", 300_000)
    valid: int = number("sentences", 10_000)
    test: int = number("sentences", 30_000)
    seed: int = number("of the draw", 1, least=0)
    words: int = number("most frequent training words to keep; 0 keeps all", 20_000, least=0)

    def settings(self) -> dict[str, Any]:
        """Sentences of each split, and the seed."""
        return {"sizes": [self.train, self.valid, self.test], "seed": self.seed}

    def text(self) -> LanguageText:
        """The sentences drawn."""
        files = {split: self.dest / "raw" / split for split in ("train", "valid", "test")}
        return LanguageText(dest=self.dest, words=self.words, workers=self.workers, **files)

    def find(self, folder: Path) -> dict[str, Path]:
        """The unpacked release, or files whose names say what they are (train, dev, test, …)."""
        paths = sorted(path for path in folder.rglob("*") if path.is_file() and _pool(path))
        if "held-out" not in map(_pool, paths):
            raise UserError(
                f"{folder} has no text of the benchmark: files with train, dev or test in their "
                "names, or the unpacked release"
            )
        return {str(path.relative_to(folder)): path for path in paths}

    def read(self, files: Mapping[str, Path]) -> tuple[dict[str, list[str]], list[str]]:
        """The sentences drawn for every split; how many there were, and how many are shared.

        Each sentence gets a random number from the seed, its file's name and its place in the file,
        and those with the lowest numbers are drawn: the order of the files does not matter, and a
        smaller sample is the beginning of a larger one.
        """
        pools: dict[str, dict[str, int]] = {
            "training": {"train": self.train},
            "held-out": {"valid": self.valid, "test": self.test},
        }
        if "training" not in map(_pool, files.values()):
            pools = {"all": pools["training"] | pools["held-out"]}
        totals = dict.fromkeys(pools, 0)
        lowest: dict[str, list[Numbered]] = {pool: [] for pool in pools}
        for path in progress(files.values(), "draw", " files"):
            pool = "all" if "all" in pools else _pool(path)
            numbers = Random(f"{self.seed} {path.name}")
            sentences = [
                (numbers.random(), path.name, place, line)
                for place, line in enumerate(iter_lines(path))
                if line and not line.isspace()
            ]
            totals[pool] += len(sentences)
            lowest[pool] = sorted(lowest[pool] + sentences)[: sum(pools[pool].values())]
        drawn: dict[str, list[str]] = {}
        for pool, sizes in pools.items():
            if any(path.parent.name == _TRAINING for path in files.values()):
                self.check_count(pool, totals[pool])
            if totals[pool] < sum(sizes.values()):
                flags = " and ".join(f"--{split} {size}" for split, size in sizes.items())
                raise UserError(
                    f"there are {totals[pool]} sentences ({pool}), fewer than {flags} ask for; "
                    "give smaller numbers"
                )
            texts = (" ".join(line.split()) for *_, line in lowest[pool])
            drawn |= {split: list(islice(texts, size)) for split, size in sizes.items()}
        report = [f"{pool}: {total} sentences to draw from" for pool, total in totals.items()]
        known = set(drawn["train"])
        shared = sum(sentence in known for sentence in drawn["valid"] + drawn["test"])
        report.append(f"{shared} validation and test sentences are also in the training text")
        if "all" in pools:
            report.append("note: there is no training text; all three are drawn from one pool")
        return drawn, report


def _pool(path: Path) -> str:
    """``training`` or ``held-out``, by the words of a name or the release's folder; "" if none."""
    words = set(re.split(r"[._-]", path.name))
    if words & {"valid", "validation", "dev", "test", "heldout"}:
        return "held-out"
    return "training" if "train" in words or path.parent.name == _TRAINING else ""
