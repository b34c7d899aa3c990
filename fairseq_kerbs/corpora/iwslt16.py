"""IWSLT'16 German-English: of the WIT3 release 2016-01, or of a folder of text, to fairseq data.

Section 5.1 of the KerBS paper: Moses tokenization, BPE, sentences of up to 80 words. The paper does
not say which sets it validates and tests on.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from xml.etree import ElementTree

from fairseq_kerbs.corpora.pipeline import flag, number, several
from fairseq_kerbs.corpora.released import Archive, ReleasedCorpus, one_file
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import read_lines

_DRIVE = "https://drive.google.com/uc?id=1l5y6Giag9aRPwGtuZHswh3w5v3qEz8D8"
# Lines of the training files that are about a talk; all others are its sentences.
_TAG = re.compile(
    r"\s*</?(?:url|keywords|speaker|talkid|title|description|reviewer|translator|doc)\b"
)
_ENTITY = re.compile(r"&(?:[A-Za-z]+|#[0-9]+|#x[0-9A-Fa-f]+);")


@dataclass(frozen=True, kw_only=True)
class Iwslt16(ReleasedCorpus):
    """IWSLT'16 De-En of the WIT3 release to fairseq data.

    Reads IWSLT'16 German-English from the WIT3 release 2016-01 (its checksum and numbers of lines
    are checked) or from a folder, then goes on as 'prepare'. SOURCE is 2016-01.tgz, its de-en.tgz,
    that archive unpacked, or a folder of plain text with train*.de and IWSLT16.TED.SET.de-en.de,
    say. Text goes to DEST/raw, data to DEST/bin.
    """

    title, source_lang, target_lang = "IWSLT'16 De→En", "de", "en"
    archives = (
        Archive("2016-01.tgz", (f"{_DRIVE}&confirm=t", _DRIVE), "c393ed3fc2a1b0f004b3331043f615ae"),
        Archive(
            "de-en.tgz",
            ("https://wit3.fbk.eu/archive/2016-01//texts/de/en/de-en.tgz",),
            "7e21dd345e9192180f36d7816f84a77eafd6b85e45432d90d0970f06e8c772ea",
        ),
    )
    nested = ("de-en.tgz",)
    counts: ClassVar = {
        "train": 196_884, "dev2010": 887, "tst2010": 1565, "tst2011": 1433, "tst2012": 1700,
        "tst2013": 993, "tst2014": 1305,
    }  # fmt: skip

    valid: str = flag("[%(default)s]", "tst2013", metavar="SET")
    test: tuple[str, ...] = flag("[tst2014]", ("tst2014",), type=several, metavar="SET[,SET...]")
    merges: int = number("joint BPE merges", 10000)
    max_words: int = number("drop training pairs with more words on a side", 80)
    joined_dictionary: bool = flag("one dictionary for both languages", False)

    @property
    def sets(self) -> dict[str, str]:
        """Part of the release that each split is: train, valid, test, test1, …"""
        tests = {f"test{i or ''}": name for i, name in enumerate(self.test)}
        return {"train": "train", "valid": self.valid, **tests}

    def check(self) -> None:
        """Raise a UserError unless the sets are known and differ."""
        if not set(self.sets.values()) <= set(self.counts):
            raise UserError(f"--valid and --test must be of {', '.join(list(self.counts)[1:])}")
        if len(set(self.sets.values())) < len(self.sets):
            raise UserError("--valid and --test must name different sets")

    def settings(self) -> dict[str, Any]:
        """The sets."""
        return {"sets": self.sets}

    def find(self, folder: Path) -> dict[str, Path]:
        """The release's files, or plain text: ``train*.de``, ``IWSLT16.TED.tst2013.de-en.de``."""
        names = {split: f"IWSLT16.TED.{part}.de-en.{{}}*" for split, part in self.sets.items()}
        names["train"] = "train*.{}"
        return {
            f"{split}.{language}": one_file(folder, name.format(language))
            for split, name in names.items()
            for language in ("de", "en")
        }

    def read(self, files: Mapping[str, Path]) -> tuple[dict[str, list[str]], list[str]]:
        """The text of every split, and the number of pairs of each."""
        texts = {role: read_sentences(path) for role, path in files.items()}
        released = files["train.de"].name.startswith("train.tags.")
        for role, sentences in texts.items():
            part = self.sets[role[:-3]]
            if part != "train" or released:
                self.check_count(part, len(sentences))
        sizes = {split: len(texts[f"{split}.de"]) for split in self.sets}
        report = [f"{split}: {sizes[split]} pairs of {part}" for split, part in self.sets.items()]
        if not released:
            share = 100 * sizes["train"] / self.counts["train"]
            report.append(
                f"note: {share:.1f} % of the release's {self.counts['train']} training pairs; "
                "scores will not compare with published ones"
            )
        return texts, report


def read_sentences(path: Path) -> list[str]:
    """Sentences of training text, XML or plain text: entities decoded, single spaces."""
    if path.suffix == ".xml":
        try:
            sentences = [segment.text or "" for segment in ElementTree.parse(path).iter("seg")]
        except ElementTree.ParseError as error:
            raise UserError(f"{path} is not the release's XML ({error})") from None
    else:
        tagged = path.name.startswith("train.tags.")
        lines = [line for line in read_lines(path) if not (tagged and _TAG.match(line))]
        sentences = [_ENTITY.sub(lambda match: html.unescape(match[0]), line) for line in lines]
    return [" ".join(sentence.split()) for sentence in sentences]
