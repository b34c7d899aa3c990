"""Raw parallel text to a folder that fairseq trains on: Moses, length filter, BPE, binarization.

    DEST/tok      tokenized            DEST/clean   training pairs that pass the filter
    DEST/bpe      codes and subwords   DEST/short   training pairs short enough in subwords
    DEST/bin      what fairseq-preprocess makes of them

Every step is recorded (`manifest`), so that a second run does only what has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fairseq_kerbs.corpora import bpe, moses
from fairseq_kerbs.corpora.binarize import LONGEST, Report, binarize, check_flags, working_folder
from fairseq_kerbs.corpora.manifest import Manifest
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import (
    LONGEST_WORD,
    atomic_write,
    has_endless_word,
    iter_lines,
    without_endless_words,
)
from fairseq_kerbs.utils.processes import LineFunction, parallel_map, usable_cores

BPE_MODES = ("joint", "separate", "none")

Side = tuple[str, str]
"""A split (fairseq's name of it) and a language: one file."""


@dataclass(frozen=True)
class ParallelText:
    """Raw text, and what `prepare` shall do with it.

    Attributes:
        train, valid, tests: names of the files without ``.source_lang`` and ``.target_lang``.
        dest: folder to work in.
        source_moses, target_moses: languages of the Moses rules; "" = those of the files.
        max_words: longer training pairs are dropped (Moses tokens, either side).
        bpe: one of :data:`BPE_MODES`.
        vocabulary_threshold: of joint BPE; 0 = off.
    """

    train: str
    valid: str
    tests: tuple[str, ...]
    source_lang: str
    target_lang: str
    dest: Path
    source_moses: str = ""
    target_moses: str = ""
    lowercase: bool = False
    escape: bool = False
    max_words: int = 80
    bpe: str = "joint"
    merges: int = 10000
    vocabulary_threshold: int = 0
    joined_dictionary: bool = False
    workers: int = field(default_factory=usable_cores)

    @property
    def languages(self) -> tuple[str, str]:
        """Source and target suffix."""
        return self.source_lang, self.target_lang

    @property
    def rules(self) -> dict[str, str]:
        """Language of the Moses rules for each side."""
        chosen = (self.source_moses or self.source_lang, self.target_moses or self.target_lang)
        return dict(zip(self.languages, chosen, strict=True))

    @property
    def raw(self) -> dict[Side, Path]:
        """The files of every split (test, test1, …); training comes last."""
        splits = {f"test{i or ''}": prefix for i, prefix in enumerate(self.tests)}
        splits |= {"valid": self.valid, "train": self.train}
        return {
            (split, language): Path(f"{prefix}.{language}")
            for split, prefix in splits.items()
            for language in self.languages
        }

    @property
    def longest(self) -> int:
        """Most units of a sentence that a model is given: subwords, or tokens without BPE."""
        return max(LONGEST, self.max_words)

    def check(self) -> None:
        """Raise a UserError that names the first flag with an impossible value."""
        named = {"--train": (self.train,), "--valid": (self.valid,), "--test": self.tests}
        for flag, prefixes in named.items():
            if not all(prefixes):
                raise UserError(f"{flag} has an empty name; give the files without their endings")
        if self.source_lang == self.target_lang:
            raise UserError("--source-lang and --target-lang must differ: they name the two files")
        for flag, rules in zip(("source", "target"), self.rules.values(), strict=True):
            moses.check_language(rules, f"--{flag}-moses")
        if self.bpe not in BPE_MODES:
            raise UserError(f"--bpe must be one of {', '.join(BPE_MODES)}, not {self.bpe}")
        check_flags(self.dest, merges=self.merges, max_words=self.max_words, workers=self.workers)
        if self.vocabulary_threshold < 0:
            raise UserError(
                f"--vocabulary-threshold must not be negative, not {self.vocabulary_threshold}"
            )
        if self.vocabulary_threshold and self.bpe != "joint":
            raise UserError("--vocabulary-threshold needs --bpe joint")

    def prepare(self, report: Report = print) -> Path:
        """Run every step that is not yet done; return the folder for fairseq (``DEST/bin``).

        Raises:
            UserError: wrong flags or input (see `check`, `count_pairs`), an empty or endless line
                in validation or test text, or fairseq-preprocess failing.
        """
        self.check()
        pairs = count_pairs(self.raw)
        with working_folder(self.dest, report) as manifest:
            return _Preparation(self, pairs, manifest, report).run()


def count_pairs(raw: Mapping[Side, Path]) -> dict[str, int]:
    """Lines of each split, which are the same on both sides.

    Raises:
        UserError: a side is missing, empty or not UTF-8, the sides differ in length, or a word of
            text that is not for training is endless (see `without_endless_words`).
    """
    counts: dict[str, tuple[int, Path]] = {}
    for (split, _), path in raw.items():
        lines = iter_lines(path)
        count = sum(1 for _ in (lines if split == "train" else without_endless_words(lines, path)))
        if count == 0:
            raise UserError(f"{path} is empty; it must hold one sentence a line")
        other, source = counts.setdefault(split, (count, path))
        if count != other:
            raise UserError(
                f"{source} has {other} lines and {path} has {count}; "
                "parallel files need the same number"
            )
    return {split: count for split, (count, _) in counts.items()}


class _Preparation:
    """The steps in one folder; each is skipped if the manifest shows it done."""

    def __init__(
        self, settings: ParallelText, pairs: dict[str, int], manifest: Manifest, report: Report
    ) -> None:
        self._settings, self._manifest, self._report = settings, manifest, report
        self._texts = settings.raw  # each in the form that the latest step gave it
        self._pairs = pairs  # of each split, likewise

    def run(self) -> Path:
        s = self._settings
        choices = {"lowercase": s.lowercase, "escape": s.escape}
        for side, raw in self._texts.items():
            rules = s.rules[side[1]]
            recorded = {"rules": rules, "sacremoses": version("sacremoses"), **choices}
            make = partial(moses.make_tokenizer, rules, **choices)
            self._rewrite("tokenize", side, make, inputs={"raw": raw}, recorded=recorded)
        raw_training = [s.raw["train", language] for language in s.languages]
        limits = {"max_words": s.max_words, "longest_word": LONGEST_WORD}
        figures = self._filter("filter train", "clean", s.max_words, limits, raw_training)
        self._report(
            f"  {figures['kept']} of {figures['pairs']} training pairs kept; dropped "
            f"{figures['empty']} with an empty side, {figures['long']} longer than "
            f"{s.max_words} words, {figures['endless']} with a word of more than {LONGEST_WORD} "
            "characters"
        )
        if figures["kept"] == 0:
            raise UserError(
                f"no pair of {s.train} is left after the filter; raise --max-words or see the text"
            )
        if s.bpe == "joint":
            self._split_words(s.dest / "bpe" / "codes", s.languages)
        elif s.bpe == "separate":
            for language in s.languages:
                self._split_words(s.dest / "bpe" / f"codes.{language}", (language,))
        if s.bpe != "none":  # words of a pair that passed the filter may be many subwords
            limits = {"longest": s.longest}
            figures = self._filter("filter subwords of train", "short", s.longest, limits)
            dropped = f"over {s.longest} subwords long"
            self._report(f"  {figures['long']} training pairs dropped, {dropped}")
            if figures["kept"] == 0:
                raise UserError(
                    f"every pair of {s.train} is {dropped}; raise --merges or see the text"
                )
        return self._binarize()

    def _rewrite(
        self, step: str, side: Side, make: Callable[[], LineFunction], *,
        inputs: Mapping[str, Path], recorded: Mapping[str, Any],
    ) -> None:  # fmt: skip
        """Replace a text by a function of its lines; only training may have empty or long ones."""
        s, source, name = self._settings, self._texts[side], ".".join(side)
        folder, units = ("tok", "tokens") if step == "tokenize" else ("bpe", "subwords")
        target = s.dest / folder / name
        limits = {} if side[0] == "train" else {"longest": s.longest}

        def action() -> dict[str, Any]:
            lines, total = iter_lines(source), self._pairs[side[0]]
            results = parallel_map(
                make, lines, total=total, workers=s.workers, description=f"{folder}/{name}"
            )
            with atomic_write(target) as stream:
                for number, line in enumerate(results, start=1):
                    if limits:
                        _check_line(line, s.longest, f"{s.raw[side]}, line {number}", units)
                    stream.write(line + "\n")
            return {}

        self._manifest.step(
            f"{step} {name}",
            inputs=inputs,
            settings={**recorded, **limits},
            outputs=[target],
            action=action,
        )
        self._texts[side] = target

    def _filter(
        self, step: str, folder: str, longest: int, limits: Mapping[str, int],
        raw: Sequence[Path] = (),
    ) -> dict[str, Any]:  # fmt: skip
        """Keep the training pairs that `_filter_pairs` keeps; return its counts."""
        sides = [("train", language) for language in self._settings.languages]
        sources = [self._texts[side] for side in sides]
        targets = [self._settings.dest / folder / ".".join(side) for side in sides]
        figures = self._manifest.step(
            step,
            inputs={path.name: path for path in sources},
            settings=limits,
            outputs=targets,
            action=lambda: _filter_pairs(sources, targets, longest, raw),
        )
        self._texts.update(zip(sides, targets, strict=True))
        self._pairs["train"] = figures["kept"]
        return figures

    def _split_words(self, codes: Path, languages: Sequence[str]) -> None:
        """Learn BPE on the training text of the languages, and apply it to all their text."""
        s, program = self._settings, {"subword-nmt": version("subword-nmt")}
        texts = {language: self._texts["train", language] for language in languages}
        figures = self._manifest.step(
            f"learn BPE {codes.name}",
            inputs=texts,
            settings={"merges": s.merges, **program},
            outputs=[codes],
            action=lambda: {"merges": bpe.learn(texts.values(), codes, s.merges)},
        )
        if figures["merges"] < s.merges:
            self._report(f"  {figures['merges']} merges: no further pair of units occurs twice")
        vocabularies = {}
        for language, text in texts.items() if s.vocabulary_threshold else ():
            vocabularies[language] = codes.with_name(f"vocabulary.{language}")
            self._manifest.step(
                f"count subwords {language}",
                inputs={"text": text, "codes": codes},
                settings=program,
                outputs=[vocabularies[language]],
                action=partial(bpe.write_vocabulary, text, codes, vocabularies[language]),
            )
        recorded = {"threshold": s.vocabulary_threshold, **program}
        for side in [side for side in self._texts if side[1] in languages]:
            inputs, vocabulary = {"codes": codes}, vocabularies.get(side[1])
            if vocabulary:
                inputs["vocabulary"] = vocabulary
            make = partial(bpe.make_segmenter, **inputs, threshold=s.vocabulary_threshold)
            inputs["text"] = self._texts[side]
            self._rewrite("apply BPE", side, make, inputs=inputs, recorded=recorded)

    def _binarize(self) -> Path:
        s, target = self._settings, self._settings.dest / "bin"

        def action() -> dict[str, int]:
            prefixes = {
                split: str(path).removesuffix(f".{language}")
                for (split, language), path in self._texts.items()
            }
            flags: dict[str, object] = {"source-lang": s.source_lang, "target-lang": s.target_lang}
            flags |= {f"{split}pref": prefixes.pop(split) for split in ("train", "valid")}
            flags |= {"testpref": ",".join(prefixes.values()), "workers": s.workers}
            flags["joined-dictionary"] = s.joined_dictionary or None
            pair = "-".join(s.languages)
            lines = {f"{split}.{pair}.{side}": self._pairs[split] for split, side in self._texts}
            binarize(flags, lines, target)
            dictionaries = {side: target / f"dict.{side}.txt" for side in s.languages}
            return {side: sum(1 for _ in iter_lines(path)) for side, path in dictionaries.items()}

        figures = self._manifest.step(
            "fairseq-preprocess",
            inputs={".".join(side): path for side, path in self._texts.items()},
            settings={"joined_dictionary": s.joined_dictionary, "fairseq": version("fairseq")},
            outputs=[target],
            action=action,
        )
        for language in s.languages:
            self._report(f"  dictionary {language}: {figures[language]} types")
        self._report(f"data for fairseq-train: {target}")
        return target


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
    sources: Sequence[Path], targets: Sequence[Path], longest: int, raw: Sequence[Path]
) -> dict[str, int]:
    """Write the pairs whose sides both have 1 to `longest` units; count the others.

    Those with an endless word on either side of `raw`, the text they come of, are left out, too.
    """
    figures = {"pairs": 0, "empty": 0, "long": 0, "endless": 0, "kept": 0}
    with atomic_write(targets[0]) as source_out, atomic_write(targets[1]) as target_out:
        files = [iter_lines(path) for path in (*sources, *raw)]
        for source, target, *given in zip(*files, strict=True):
            lengths = len(source.split()), len(target.split())
            fate = "kept"
            if any(map(has_endless_word, given)):
                fate = "endless"
            elif min(lengths) == 0:
                fate = "empty"
            elif max(lengths) > longest:
                fate = "long"
            else:
                source_out.write(source + "\n")
                target_out.write(target + "\n")
            figures["pairs"] += 1
            figures[fate] += 1
    return figures
