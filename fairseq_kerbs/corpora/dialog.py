"""DailyDialog: adjacent utterances become pairs of what was said and what was answered.

A training pair is removed if the validation or the test set has it too, in whatever case (Section 5
of the KerBS paper: what training and test share). The two sides are called ``context`` (source) and
``en`` (target), because the target's name tells the commands its language.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

from fairseq_kerbs.corpora import moses
from fairseq_kerbs.corpora.pipeline import flag, number
from fairseq_kerbs.corpora.released import Archive, ReleasedCorpus, one_file
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import has_endless_word, iter_lines, without_endless_words
from fairseq_kerbs.utils.processes import parallel_map

PARTS = {"train": "train", "valid": "validation", "test": "test"}
"""fairseq's name of each split and the release's."""

_URL = "http://yanran.li/files/ijcnlp_dailydialog.zip"
_SEPARATOR = "__eou__"
_ASCII = str.maketrans({"’": "'", "‘": "'", "′": "'", "“": '"', "”": '"'})
# What follows the apostrophe of a contraction or genitive. The text has ’Ve for ’ve throughout.
_CLITIC = re.compile(r"(?<=\w) ?' ?(s|t|m|re|ve|ll|d)\b", re.IGNORECASE)
_INSIDE = (
    (re.compile(r"\b([o0]) ' clock\b", re.IGNORECASE), r"\1'clock"),
    (re.compile(r"\b(ma) ' am\b", re.IGNORECASE), r"\1'am"),
    (re.compile(r"\b(O) ' (?=[A-Z][a-z])"), r"\1'"),
)


@dataclass(frozen=True, kw_only=True)
class DailyDialog(ReleasedCorpus):
    """DailyDialog to fairseq data.

    Makes pairs of adjacent utterances of DailyDialog, removes training pairs that also occur in
    validation or test, then goes on as 'prepare' with one vocabulary. SOURCE is
    ijcnlp_dailydialog.zip or a folder with dialogues_{train,validation,test}.txt. Source and target
    are called context and en. Text goes to DEST/raw, data to DEST/bin.
    """

    title, source_lang, target_lang = "DailyDialog", "context", "en"
    source_moses, joined_dictionary, test = "en", True, ("test",)
    archives = (
        Archive(
            "ijcnlp_dailydialog.zip",
            (_URL, f"https://web.archive.org/web/20220516002703id_/{_URL}"),
            "c641e88cbf21fd7c1b57289387f9107d33fe8685a2b37fe8066b82776535ea89",
        ),
    )
    nested = tuple(f"{part}.zip" for part in PARTS.values())
    counts: ClassVar = {
        "train dialogues": 11_118, "validation dialogues": 1000, "test dialogues": 1000,
        "train": 76_053, "validation": 7069, "test": 6740,
    }  # fmt: skip

    lowercase: bool = flag("lower-case all text", False)
    merges: int = number("joint BPE merges", 5000)
    max_words: int = number("drop training pairs with more words on a side", 80)

    def settings(self) -> dict[str, Any]:
        """What cleans the text."""
        return {"sacremoses": version("sacremoses")}

    def find(self, folder: Path) -> dict[str, Path]:
        """The text of each part, by ``dialogues_test.txt``, say."""
        return {part: one_file(folder, f"dialogues_{part}.txt") for part in PARTS.values()}

    def read(self, files: Mapping[str, Path]) -> tuple[dict[str, list[str]], list[str]]:
        """The pairs of every split, without the training pairs that another has, and counts."""
        dialogues = {part: read_dialogues(path, part) for part, path in files.items()}
        said = {text: "" for part in dialogues.values() for texts in part for text in texts}
        make = partial(partial, natural_text)
        natural = parallel_map(make, said, total=len(said), workers=self.workers, description="raw")
        said = dict(zip(said, natural, strict=True))
        pairs = {
            part: [(said[a], said[b]) for texts in dialogues[part] for a, b in pairwise(texts)]
            for part in files
        }
        report = []
        for part, found in pairs.items():
            self.check_count(f"{part} dialogues", len(dialogues[part]))
            self.check_count(part, len(found))
            report.append(f"{part}: {len(found)} pairs of {len(dialogues[part])} dialogues")
        others = {_key(pair) for part in ("validation", "test") for pair in pairs[part]}
        left = [pair for pair in pairs["train"] if _key(pair) not in others]
        report.append(
            f"{len(pairs['train']) - len(left)} training pairs removed that also occur in "
            f"validation or test; {len(left)} left"
        )
        pairs["train"] = left
        texts = {
            f"{split}.{language}": [pair[side] for pair in pairs[part]]
            for split, part in PARTS.items()
            for side, language in enumerate(("context", "en"))
        }
        return texts, report


def _key(pair: tuple[str, str]) -> tuple[str, str]:
    return pair[0].casefold(), pair[1].casefold()


def read_dialogues(path: Path, part: str) -> list[list[str]]:
    """The utterances of each dialogue: one dialogue a line, ``__eou__`` after each utterance.
    Raises a UserError if a line has another form, or a word of text not for training is endless."""
    lines = iter_lines(path)
    if part != "train":  # the preparation drops training pairs with an endless word
        lines = without_endless_words(lines, path)
    dialogues = []
    for line_number, line in enumerate(lines, start=1):
        *utterances, rest = (" ".join(piece.split()) for piece in line.split(_SEPARATOR))
        if rest or not utterances:
            raise UserError(f"{path}, line {line_number}: a dialogue must end with {_SEPARATOR}")
        if not all(utterances):
            raise UserError(f"{path}, line {line_number}: an utterance is empty")
        dialogues.append(utterances)
    return dialogues


def natural_text(text: str) -> str:
    """An utterance of the release, tokens between spaces, as people write it: detokenized by Moses,
    as hypotheses are that are compared with it."""
    if has_endless_word(text):
        return text  # hours for Moses, and its pair is dropped
    text = _CLITIC.sub(lambda match: "'" + match[1].replace("Ve", "ve"), text.translate(_ASCII))
    for pattern, replacement in _INSIDE:
        text = pattern.sub(replacement, text)
    return moses.detokenize(moses.tokenize(text, language="en"), language="en")
