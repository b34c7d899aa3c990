"""Multi30k and WikiText-2, whose released text is prepared as it is: the data of most results."""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from fairseq_kerbs.corpora.language import LanguageText
from fairseq_kerbs.corpora.pipeline import number
from fairseq_kerbs.corpora.released import Archive, ReleasedCorpus, one_file
from fairseq_kerbs.utils.files import read_lines

_MULTI30K = (
    "https://raw.githubusercontent.com/multi30k/dataset/"
    "a3d2e0d26b56f3846f66a952536ffed4e401d05a/data/task1/raw"
)
_MULTI30K_SUMS = {
    "train.de": "726e39b2fa9eb9ffb6dc763fb35a179f80fae06ffc5d28b6ace5faa883de28a6",
    "train.en": "d79cfa999dd4c51d2cb42499b6796d5a882c3a8a961923c25a898c90f8bbd56f",
    "val.de": "f0cba2f995189cf5770f29a8a9a537a3ad3f51657ad873405082ff6863a5e75a",
    "val.en": "14f7d25ddd868909a9213e361768460edcacdd6ab9d1e77b92560dc10c10dc28",
    "test_2016_flickr.de": "9204244e408ccb38d2a55cfcd344df15005fc42a07a6e55ca6c52b6ababb8cc8",
    "test_2016_flickr.en": "611d361c6334bc7246101d48097c13cf5c4413c5befc793cc629934359d532d9",
}
_WIKITEXT = "wikitext-2-v1.zip"
_METAMIND = f"https://s3.amazonaws.com/research.metamind.io/wikitext/{_WIKITEXT}"


@dataclass(frozen=True, kw_only=True)
class _Unchanged(ReleasedCorpus):
    """Texts of a release, which become files of ``DEST/raw``."""

    names: ClassVar[Mapping[str, str]]  # in the release, by the name in DEST/raw

    def find(self, folder: Path) -> dict[str, Path]:
        """The texts of a folder; of a divided release the compressed one where a text is not."""
        found = {}
        for role, name in self.names.items():
            packed = self.divided and not list(folder.rglob(name))
            found[role] = one_file(folder, f"{name}.gz" if packed else name)
        return found

    def read(self, files: Mapping[str, Path]) -> tuple[dict[str, list[str]], list[str]]:
        """The lines of each text, and how many each split has."""
        texts = {}
        for role, path in files.items():
            if path.suffix == ".gz":
                self.check_archive(path)
                content = gzip.decompress(path.read_bytes()).decode("utf-8")
                texts[role] = content.removesuffix("\n").split("\n")
            else:
                texts[role] = read_lines(path)
            self.check_count(role.split(".")[0], len(texts[role]))
        return texts, [f"{split}: {lines} lines" for split, lines in self.counts.items()]


@dataclass(frozen=True, kw_only=True)
class Multi30k(_Unchanged):
    """Multi30k De-En to fairseq data.

    Reads the German-English text of Multi30k, task 1 (test set 2016, Flickr), then goes on as
    'prepare': the data of our results on Multi30k. SOURCE is a folder that has train, val and
    test_2016_flickr with the endings .de and .en, or these compressed (.gz) as in a checkout of
    github.com/multi30k/dataset. Text goes to DEST/raw, data to DEST/bin.
    """

    title, source_lang, target_lang = "Multi30k", "de", "en"
    test, divided = ("test",), True
    archives = tuple(
        Archive(f"{name}.gz", (f"{_MULTI30K}/{name}.gz",), checksum)
        for name, checksum in _MULTI30K_SUMS.items()
    )
    counts: ClassVar = {"train": 29_000, "valid": 1014, "test": 1000}
    names: ClassVar = {
        name.replace("val", "valid").replace("test_2016_flickr", "test"): name
        for name in _MULTI30K_SUMS
    }

    merges: int = number("joint BPE merges", 3000)


@dataclass(frozen=True, kw_only=True)
class WikiText2(_Unchanged):
    """WikiText-2 to fairseq data.

    Reads WikiText-2 (word level), then goes on as 'prepare-lm': the data of our results on
    WikiText-2. SOURCE is wikitext-2-v1.zip or a folder with wiki.{train,valid,test}.tokens. Text
    goes to DEST/raw, data to DEST/bin.
    """

    title = "WikiText-2"
    archives = (
        Archive(
            _WIKITEXT,
            (
                _METAMIND,
                f"https://wikitext.smerity.com/{_WIKITEXT}",
                f"https://web.archive.org/web/2020id_/{_METAMIND}",
            ),
            "92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c",
        ),
    )
    counts: ClassVar = {"train": 36_718, "valid": 3760, "test": 4358}
    names: ClassVar = {split: f"wiki.{split}.tokens" for split in counts}

    words: int = number("most frequent training words to keep; 0 keeps all", 10_000, least=0)

    def text(self) -> LanguageText:
        """The released text."""
        files = {split: self.dest / "raw" / split for split in self.names}
        return LanguageText(dest=self.dest, words=self.words, workers=self.workers, **files)
