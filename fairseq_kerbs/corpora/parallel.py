"""Raw parallel text to a folder that fairseq trains on: Moses, length filter, BPE, binarization.

    DEST/tok      tokenized            DEST/clean   training pairs that pass the filter
    DEST/bpe      codes and subwords   DEST/short   training pairs short enough in subwords
    DEST/bin      what fairseq-preprocess makes of them

Every step is recorded (`manifest`), so that a second run does only what has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from fairseq_kerbs.corpora import bpe, moses
from fairseq_kerbs.corpora.binarize import binarize
from fairseq_kerbs.corpora.manifest import Manifest, locked_folder
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import (
    LONGEST_WORD,
    atomic_write,
    has_endless_word,
    iter_lines,
    without_endless_words,
)
from fairseq_kerbs.utils.processes import LineFunction, find_program, parallel_map, usable_cores

BPE_MODES = ("joint", "separate", "none")
LONGEST = 1023  # units of a sentence: fairseq's models have 1024 positions, one is for its end


@dataclass(frozen=True)
class PrepareSettings:
    """What `prepare` shall do. Prefixes are completed by ``.source`` and ``.target``."""

    train: str
    valid: str
    tests: tuple[str, ...]
    source_lang: str
    target_lang: str
    dest: Path
    source_moses: str = ""  # language of the Moses rules; "" = source_lang
    target_moses: str = ""
    lowercase: bool = False
    escape: bool = False
    max_words: int = 80  # Moses tokens, training only, either side
    bpe: str = "joint"
    merges: int = 10000
    vocabulary_threshold: int = 0  # joint only; 0 = off
    joined_dictionary: bool = False
    workers: int = field(default_factory=usable_cores)

    @property
    def languages(self) -> tuple[str, str]:
        """Source and target suffix."""
        return self.source_lang, self.target_lang

    @property
    def splits(self) -> dict[str, str]:
        """fairseq's name of each split (test, test1, …) and its prefix; training comes last."""
        names = {f"test{i or ''}": prefix for i, prefix in enumerate(self.tests)}
        return {**names, "valid": self.valid, "train": self.train}

    @property
    def longest(self) -> int:
        """Most units of a sentence that a model is given: subwords, or tokens without BPE."""
        return max(LONGEST, self.max_words)

    def moses_language(self, language: str) -> str:
        """Language of the Moses rules for a side."""
        chosen = self.source_moses if language == self.source_lang else self.target_moses
        return chosen or language

    def check(self) -> None:
        """Raise a UserError that names the first flag with an impossible value."""
        named = {"--train": (self.train,), "--valid": (self.valid,), "--test": self.tests}
        for flag, prefixes in named.items():
            if not all(prefixes):
                raise UserError(f"{flag} has an empty name; give the files without their endings")
        if self.source_lang == self.target_lang:
            raise UserError("--source-lang and --target-lang must differ: they name the two files")
        moses.check_language(self.moses_language(self.source_lang), "--source-moses")
        moses.check_language(self.moses_language(self.target_lang), "--target-moses")
        if self.bpe not in BPE_MODES:
            raise UserError(f"--bpe must be one of {', '.join(BPE_MODES)}, not {self.bpe}")
        for flag, value in (
            ("--merges", self.merges),
            ("--max-words", self.max_words),
            ("--workers", self.workers),
        ):
            if value < 1:
                raise UserError(f"{flag} must be at least 1, not {value}")
        if self.vocabulary_threshold < 0:
            raise UserError(
                f"--vocabulary-threshold must not be negative, not {self.vocabulary_threshold}"
            )
        if self.vocabulary_threshold and self.bpe != "joint":
            raise UserError("--vocabulary-threshold needs --bpe joint")
        if "," in str(self.dest):
            raise UserError(f"--dest {self.dest}: fairseq-preprocess cannot work below a comma")


def count_pairs(prefix: str, languages: tuple[str, str], training: bool = False) -> int:
    """Lines of both sides of a raw corpus.

    Raises:
        UserError: a side is missing, empty or not UTF-8, the sides differ in length, or a word of
            text that is not for training is endless (see `without_endless_words`).
    """
    paths = [Path(f"{prefix}.{language}") for language in languages]
    counts = []
    for path in paths:
        lines = iter_lines(path) if training else without_endless_words(iter_lines(path), path)
        counts.append(sum(1 for _ in lines))
    for path, count in zip(paths, counts, strict=True):
        if count == 0:
            raise UserError(f"{path} is empty; it must hold one sentence a line")
    if counts[0] != counts[1]:
        raise UserError(
            f"{paths[0]} has {counts[0]} lines and {paths[1]} has {counts[1]}; "
            "parallel files need the same number"
        )
    return counts[0]


def prepare(settings: PrepareSettings, report: Callable[[str], None] = print) -> Path:
    """Run every step that is not yet done; return the folder for fairseq (``DEST/bin``).

    Raises:
        UserError: wrong flags or input (see `PrepareSettings.check`, `count_pairs`), an empty or
            endless line in validation or test text, or fairseq-preprocess failing.
    """
    settings.check()
    find_program("fairseq-preprocess")
    pairs = {
        name: count_pairs(prefix, settings.languages, training=name == "train")
        for name, prefix in settings.splits.items()
    }
    with locked_folder(settings.dest):
        return _Preparation(settings, pairs, report).run()


class _Preparation:
    """The steps in one folder; each is skipped if the manifest shows it done."""

    def __init__(
        self, settings: PrepareSettings, pairs: dict[str, int], report: Callable[[str], None]
    ) -> None:
        self._settings = settings
        self._pairs = pairs  # of each split; training: after the filter, once that is done
        self._report = report
        self._dest = settings.dest
        self._bin = settings.dest / "bin"
        self._manifest = Manifest(settings.dest, product=self._bin, report=report)

    def run(self) -> Path:
        s = self._settings
        for split in s.splits:
            for language in s.languages:
                self._tokenize(split, language)
        self._filter_training()
        if s.bpe == "joint":
            self._learn_bpe(s.languages)
        elif s.bpe == "separate":
            self._learn_bpe((s.source_lang,))
            self._learn_bpe((s.target_lang,))
        if s.bpe != "none":
            for language in s.languages:
                self._count_vocabulary(language)
                for split in s.splits:
                    self._apply_bpe(split, language)
            self._drop_long_training()
        self._binarize()
        return self._bin

    def _tokenized(self, split: str, language: str) -> Path:
        return self._dest / "tok" / f"{split}.{language}"

    def _raw(self, split: str, language: str) -> Path:
        return Path(f"{self._settings.splits[split]}.{language}")

    def _clean(self, split: str) -> str:
        """Prefix of a split's tokens after the filter, which only training passes through."""
        return str(self._dest / ("clean" if split == "train" else "tok") / split)

    def _codes(self, language: str) -> Path:
        name = "codes" if self._settings.bpe == "joint" else f"codes.{language}"
        return self._dest / "bpe" / name

    def _vocabulary(self, language: str) -> Path | None:
        if self._settings.vocabulary_threshold == 0:
            return None
        return self._dest / "bpe" / f"vocabulary.{language}"

    def _map(
        self, make: Callable[[], LineFunction], source: Path, target: Path, split: str, units: str
    ) -> None:
        """Write a function of each line of `source` to `target`; `units` are what it gives.

        Raises:
            UserError: a line of validation or test text becomes none or too many of them.
        """
        raw = self._raw(split, target.suffix[1:])
        results = parallel_map(
            make,
            iter_lines(source),
            total=self._pairs[split],
            workers=self._settings.workers,
            description=f"{target.parent.name}/{target.name}",
        )
        with atomic_write(target) as stream:
            for number, line in enumerate(results, start=1):
                if split != "train":
                    _check_line(line, self._settings.longest, f"{raw}, line {number}", units)
                stream.write(line + "\n")

    def _limits(self, split: str) -> dict[str, int]:
        """Settings that decide which lines of validation and test text are refused."""
        return {} if split == "train" else {"longest": self._settings.longest}

    def _tokenize(self, split: str, language: str) -> None:
        s = self._settings
        raw, target = self._raw(split, language), self._tokenized(split, language)
        rules = s.moses_language(language)

        def action() -> dict[str, Any]:
            make = partial(moses.make_tokenizer, rules, s.lowercase, s.escape)
            self._map(make, raw, target, split, "tokens")
            return {}

        settings = {"rules": rules, "lowercase": s.lowercase, "escape": s.escape}
        self._manifest.step(
            f"tokenize {split}.{language}",
            inputs={"raw": raw},
            settings=settings | {"sacremoses": _version("sacremoses")} | self._limits(split),
            outputs=[target],
            action=action,
        )

    def _filter_training(self) -> None:
        s = self._settings
        raw = [self._raw("train", language) for language in s.languages]
        sources = [self._tokenized("train", language) for language in s.languages]
        targets = [self._dest / "clean" / f"train.{language}" for language in s.languages]
        figures = self._manifest.step(
            "filter train",
            inputs={path.name: path for path in sources},
            settings={"max_words": s.max_words, "longest_word": LONGEST_WORD},
            outputs=targets,
            action=lambda: _filter_pairs(sources, targets, s.max_words, raw),
        )
        self._report(
            f"  {figures['kept']} of {figures['pairs']} training pairs kept; dropped "
            f"{figures['empty']} with an empty side, {figures['long']} longer than "
            f"{s.max_words} words, {figures['endless']} with a word of more than {LONGEST_WORD} "
            "characters"
        )
        self._pairs["train"] = figures["kept"]
        if figures["kept"] == 0:
            raise UserError(
                f"no pair of {s.train} is left after the filter; raise --max-words or see the text"
            )

    def _learn_bpe(self, languages: tuple[str, ...]) -> None:
        s = self._settings
        texts = {language: Path(f"{self._clean('train')}.{language}") for language in languages}
        codes = self._codes(languages[0])
        figures = self._manifest.step(
            f"learn BPE {codes.name}",
            inputs=texts,
            settings={"merges": s.merges, "subword-nmt": _version("subword-nmt")},
            outputs=[codes],
            action=lambda: {"merges": bpe.learn(texts.values(), codes, s.merges)},
        )
        if figures["merges"] < s.merges:
            self._report(f"  {figures['merges']} merges: no further pair of units occurs twice")

    def _count_vocabulary(self, language: str) -> None:
        vocabulary, codes = self._vocabulary(language), self._codes(language)
        if vocabulary is None:
            return
        text = Path(f"{self._clean('train')}.{language}")
        self._manifest.step(
            f"count subwords {language}",
            inputs={"text": text, "codes": codes},
            settings={"subword-nmt": _version("subword-nmt")},
            outputs=[vocabulary],
            action=lambda: {"types": bpe.write_vocabulary(text, codes, vocabulary)},
        )

    def _apply_bpe(self, split: str, language: str) -> None:
        threshold = self._settings.vocabulary_threshold
        source = Path(f"{self._clean(split)}.{language}")
        target = self._dest / "bpe" / f"{split}.{language}"
        codes, vocabulary = self._codes(language), self._vocabulary(language)

        def action() -> dict[str, Any]:
            make = partial(bpe.make_segmenter, codes, vocabulary, threshold)
            self._map(make, source, target, split, "subwords")
            return {}

        inputs = {"text": source, "codes": codes}
        self._manifest.step(
            f"apply BPE {split}.{language}",
            inputs=inputs if vocabulary is None else inputs | {"vocabulary": vocabulary},
            settings={"threshold": threshold, "subword-nmt": _version("subword-nmt")}
            | self._limits(split),
            outputs=[target],
            action=action,
        )

    def _drop_long_training(self) -> None:
        """Words of a pair that passed the filter may be many subwords."""
        s = self._settings
        sources = [self._dest / "bpe" / f"train.{language}" for language in s.languages]
        targets = [self._dest / "short" / f"train.{language}" for language in s.languages]
        figures = self._manifest.step(
            "filter subwords of train",
            inputs={path.name: path for path in sources},
            settings={"longest": s.longest},
            outputs=targets,
            action=lambda: _filter_pairs(sources, targets, s.longest),
        )
        self._report(f"  {figures['long']} training pairs dropped, over {s.longest} subwords long")
        self._pairs["train"] = figures["kept"]
        if figures["kept"] == 0:
            raise UserError(
                f"every pair of {s.train} is over {s.longest} subwords long; raise --merges or see "
                "the text"
            )

    def _final(self, split: str) -> str:
        """Prefix of a split's text as it is binarized."""
        if self._settings.bpe == "none":
            return self._clean(split)
        return str(self._dest / ("short" if split == "train" else "bpe") / split)

    def _binarize(self) -> None:
        s = self._settings
        texts = {split: self._final(split) for split in s.splits}
        files = {
            f"{split}.{language}": Path(f"{text}.{language}")
            for split, text in texts.items()
            for language in s.languages
        }
        figures = self._manifest.step(
            "fairseq-preprocess",
            inputs=files,
            settings={"joined_dictionary": s.joined_dictionary, "fairseq": _version("fairseq")},
            outputs=[self._bin],
            action=lambda: binarize(
                texts,
                self._pairs,
                s.languages,
                self._bin,
                joined_dictionary=s.joined_dictionary,
                workers=s.workers,
            ),
        )
        for language in s.languages:
            self._report(f"  dictionary {language}: {figures[language]} types")
        self._report(f"data for fairseq-train: {self._bin}")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # a source checkout on PYTHONPATH
        return "unknown"


def _check_line(line: str, longest: int, where: str, units: str) -> None:
    """Raise a UserError if a line of validation or test text has no unit or too many."""
    if not line:
        raise UserError(
            f"{where}: empty; validation and test text need a sentence in every line, so remove "
            "the pair from both files"
        )
    count = line.count(" ") + 1
    if count > longest:
        raise UserError(
            f"{where}: {count} {units} are too long for fairseq's models; divide the line, or "
            f"allow it with --max-words {count}"
        )


def _filter_pairs(
    sources: Sequence[Path], targets: Sequence[Path], longest: int, raw: Sequence[Path] = ()
) -> dict[str, int]:
    """Write the pairs whose sides both have 1 to `longest` units; count the others.

    Those with an endless word on either side of `raw`, the text they come of, are left out, too.
    """
    figures = {"pairs": 0, "empty": 0, "long": 0, "endless": 0, "kept": 0}
    with atomic_write(targets[0]) as source_out, atomic_write(targets[1]) as target_out:
        files = [iter_lines(path) for path in (*sources, *raw)]
        for source, target, *given in zip(*files, strict=True):
            figures["pairs"] += 1
            lengths = len(source.split()), len(target.split())
            if any(map(has_endless_word, given)):
                figures["endless"] += 1
            elif min(lengths) == 0:
                figures["empty"] += 1
            elif max(lengths) > longest:
                figures["long"] += 1
            else:
                figures["kept"] += 1
                source_out.write(source + "\n")
                target_out.write(target + "\n")
    return figures
