"""Raw parallel text to a folder that fairseq trains on: Moses, length filter, BPE, binarization.

DEST/tok      tokenized            DEST/clean   training pairs that pass the filter
DEST/bpe      codes and subwords   DEST/short   training pairs short enough in subwords
DEST/bin      what fairseq-preprocess makes of them
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fairseq_kerbs.corpora import bpe, moses, pipeline
from fairseq_kerbs.corpora.pipeline import LONGEST, Manifest, Preparation, flag, number, several
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import LONGEST_WORD, atomic_write, iter_lines, without_endless_words
from fairseq_kerbs.utils.processes import LineFunction, parallel_map
from fairseq_kerbs.utils.steps import fingerprint, read_object

Side = tuple[str, str]
"""A split (fairseq's name of it) and a language: one file."""


@dataclass(frozen=True, kw_only=True)
class ParallelText(Preparation):
    """Raw parallel text to fairseq data.

    Tokenizes it (Moses), drops overlong training pairs, learns and applies BPE, and binarizes into
    DEST/bin. PREFIX stands for PREFIX.de and PREFIX.en, say.
    """

    train: str = flag("training text", metavar="PREFIX")
    valid: str = flag("validation text", metavar="PREFIX")
    test: tuple[str, ...] = flag("test text", type=several, metavar="PREFIX[,PREFIX...]")
    source_lang: str = flag("how the names of source files end", metavar="LANG")
    target_lang: str = flag("how the names of target files end", metavar="LANG")
    source_moses: str = flag("language of the Moses rules [--source-lang]", "", metavar="LANG")
    target_moses: str = flag("language of the Moses rules [--target-lang]", "", metavar="LANG")
    lowercase: bool = flag("lower-case all text", False)
    escape: bool = flag("write special characters as XML entities", False)
    max_words: int = number("drop training pairs with more words on a side", 80)
    bpe: str = flag(
        "merges learned on both languages together, or on each [%(default)s]",
        "joint", choices=("joint", "separate", "none"),
    )  # fmt: skip
    merges: int = number("BPE merges to learn", 10000)
    vocabulary_threshold: int = number(
        "joint BPE: split what a language's training text has less often; 0 = off", 0, least=0
    )
    joined_dictionary: bool = flag("one dictionary for both languages", False)

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
        splits = {f"test{i or ''}": prefix for i, prefix in enumerate(self.test)}
        splits |= {"valid": self.valid, "train": self.train}
        return {
            (split, language): Path(f"{prefix}.{language}")
            for split, prefix in splits.items()
            for language in self.languages
        }

    @cached_property
    def pairs(self) -> dict[str, int]:
        """Lines of each split, which are the same on both sides. Raises a UserError if a side is
        missing, empty or not UTF-8, the sides differ in length, or a word of text that is not for
        training is endless (see `without_endless_words`)."""
        counts: dict[str, int] = {}
        for (split, _), path in self.raw.items():
            lines = iter_lines(path)
            lines = lines if split == "train" else without_endless_words(lines, path)
            count = sum(1 for _ in lines)
            if count == 0:
                raise UserError(f"{path} is empty; it must hold one sentence a line")
            if count != counts.setdefault(split, count):
                raise UserError(
                    f"{self.raw[split, self.source_lang]} has {counts[split]} lines and {path} has "
                    f"{count}; parallel files need the same number"
                )
        return counts

    def check(self) -> None:
        """Raise a UserError about flags that do not fit, or about the raw text (see `pairs`)."""
        if self.source_lang == self.target_lang:
            raise UserError("--source-lang and --target-lang must differ: they name the two files")
        for side, rules in zip(("source", "target"), self.rules.values(), strict=True):
            moses.check_language(rules, f"--{side}-moses")
        if self.vocabulary_threshold and self.bpe != "joint":
            raise UserError("--vocabulary-threshold needs --bpe joint")
        assert self.pairs

    def run(self, manifest: Manifest) -> None:
        """Tokenize, filter, split into subwords, filter again, binarize. Raises a UserError if
        validation or test text has an empty or an overlong line, no training pair is left, or
        fairseq-preprocess fails."""
        steps = _Steps(self, manifest)
        steps.tokenize()
        steps.filter("filter train", "clean", self.max_words, "words")
        if self.bpe == "joint":
            steps.split_words(self.dest / "bpe" / "codes", self.languages)
        elif self.bpe == "separate":
            for language in self.languages:
                steps.split_words(self.dest / "bpe" / f"codes.{language}", (language,))
        if self.bpe != "none":  # words of a pair that passed the filter may be many subwords
            steps.filter("filter subwords of train", "short", steps.longest, "subwords")
        steps.binarize()


class _Steps:
    """The texts in one folder, in the form that the latest step gave them."""

    def __init__(self, settings: ParallelText, manifest: Manifest) -> None:
        self._settings, self._manifest = settings, manifest
        self._texts, self._pairs = settings.raw, dict(settings.pairs)
        self.longest = max(LONGEST, settings.max_words)  # units of a sentence that a model is given

    def tokenize(self) -> None:
        s = self._settings
        choices: dict[str, Any] = {"lowercase": s.lowercase, "escape": s.escape}
        for side, raw in self._texts.items():
            rules = s.rules[side[1]]
            make = partial(partial, moses.tokenize, language=rules, **choices)
            settings = {"rules": rules, "sacremoses": version("sacremoses"), **choices}
            self._rewrite("tokenize", side, make, {"raw": raw}, **settings)

    def split_words(self, codes: Path, languages: Sequence[str]) -> None:
        """Learn BPE on the training text of the languages, and apply it to all their text."""
        s, program = self._settings, {"subword-nmt": version("subword-nmt")}
        texts = {language: self._texts["train", language] for language in languages}

        def learn() -> dict[str, int]:
            return {"merges": bpe.learn(texts.values(), codes, s.merges)}

        learned = self._manifest.step(
            f"learn BPE {codes.name}", learn, texts, [codes], merges=s.merges, **program
        )
        if learned["merges"] < s.merges:
            found = f"{learned['merges']} merges"
            self._manifest.report(f"  {found}: no further pair of units occurs twice")
        threshold, known = s.vocabulary_threshold, dict[str, Path]()
        for language, text in texts.items() if threshold else ():
            known[language] = codes.with_name(f"vocabulary.{language}")
            count = partial(bpe.write_vocabulary, text, codes, known[language])
            inputs, outputs = {"text": text, "codes": codes}, [known[language]]
            self._manifest.step(f"count subwords {language}", count, inputs, outputs, **program)
        for side, text in self._texts.items():
            if side[1] in languages:
                inputs = {"codes": codes} | ({"vocabulary": known[side[1]]} if known else {})
                make = partial(bpe.make_segmenter, **inputs, threshold=threshold)
                inputs |= {"text": text}
                self._rewrite("apply BPE", side, make, inputs, threshold=threshold, **program)

    def _rewrite(
        self, step: str, side: Side, make: Callable[[], LineFunction],
        inputs: Mapping[str, Path], **settings: Any,
    ) -> None:  # fmt: skip
        """Replace a text by a function of its lines; only training may have empty or long ones."""
        s, source, name = self._settings, self._texts[side], ".".join(side)
        folder, units = ("tok", "tokens") if step == "tokenize" else ("bpe", "subwords")
        target = s.dest / folder / name
        limits = {} if side[0] == "train" else {"longest": self.longest}

        def rewrite() -> dict[str, Any]:
            lines, total = iter_lines(source), self._pairs[side[0]]
            results = parallel_map(
                make, lines, total=total, workers=s.workers, description=f"{folder}/{name}"
            )
            with atomic_write(target) as stream:
                for line_number, line in enumerate(results, start=1):
                    if limits:
                        _check_line(line, self.longest, f"{s.raw[side]}, line {line_number}", units)
                    stream.write(line + "\n")
            return {}

        self._manifest.step(f"{step} {name}", rewrite, inputs, [target], **settings, **limits)
        self._texts[side] = target

    def filter(self, step: str, folder: str, longest: int, units: str) -> None:
        """Keep the training pairs whose sides both have 1 to `longest` units."""
        sides = [("train", language) for language in self._settings.languages]
        sources = {".".join(side): self._texts[side] for side in sides}
        targets = [self._settings.dest / folder / name for name in sources]
        write = partial(_filter_pairs, list(sources.values()), targets, longest)
        found = self._manifest.step(step, write, sources, targets, longest=longest)
        self._manifest.report(
            f"  {found['kept']} of {self._pairs['train']} training pairs kept; dropped "
            f"{found['long']} longer than {longest} {units}, {found['empty']} with an empty "
            f"side or a word of more than {LONGEST_WORD} characters"
        )
        if found["kept"] == 0:
            raise UserError(
                f"no pair of {self._settings.train} is left after the filter of {units}; raise "
                "--max-words or --merges, or see the text"
            )
        self._texts.update(zip(sides, targets, strict=True))
        self._pairs["train"] = found["kept"]

    def binarize(self) -> None:
        s = self._settings
        prefixes = {
            split: str(path).removesuffix(f".{language}")
            for (split, language), path in self._texts.items()
        }
        flags = ["--source-lang", s.source_lang, "--target-lang", s.target_lang]
        flags += ["--trainpref", prefixes.pop("train"), "--validpref", prefixes.pop("valid")]
        flags += ["--testpref", ",".join(prefixes.values()), "--workers", str(s.workers)]
        flags += ["--joined-dictionary"] * s.joined_dictionary
        pair = "-".join(s.languages)
        lines = {f"{split}.{pair}.{side}": self._pairs[split] for split, side in self._texts}
        inputs = {".".join(side): path for side, path in self._texts.items()}
        self._manifest.binarize(flags, inputs, lines, joined_dictionary=s.joined_dictionary)


def preparation_of(data: Path, language: str) -> tuple[dict[str, Any], LineFunction]:
    """How a language's text in a ``bin`` folder was made, by the manifest beside it: arguments of
    `moses.tokenize`, and the function from its lines to lines of subwords; a UserError if there is
    no manifest of parallel text, or the codes are not those it names."""
    dest, name = data.resolve().parent, f"valid.{language}"
    steps = read_object(dest / pipeline.NAME).get("steps", {})
    if not {"fairseq-preprocess", f"tokenize {name}"} <= steps.keys():
        raise UserError(
            f"{dest / pipeline.NAME} does not tell how raw text became {data}; name the 'bin' "
            "folder that 'fairseq-kerbs prepare' made of parallel text"
        )
    tokenized, divided = (steps.get(f"{step} {name}") for step in ("tokenize", "apply BPE"))
    settings = tokenized["settings"]
    choices = {"lowercase": settings["lowercase"], "escape": settings["escape"]}
    rules = {"language": settings["rules"], **choices}
    binarized = steps["fairseq-preprocess"]["inputs"][name]
    if divided is None or binarized not in divided["outputs"].values():  # of another preparation
        return rules, str
    made = {digest: path for step in steps.values() for path, digest in step["outputs"].items()}
    files = {
        role: dest / made[digest] for role, digest in divided["inputs"].items() if role != "text"
    }
    for role, path in files.items():
        if fingerprint(path) != divided["inputs"][role]:
            raise UserError(f"{path} is gone or has changed since the preparation; prepare again")
    return rules, bpe.make_segmenter(**files, threshold=divided["settings"]["threshold"])


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


def _filter_pairs(sources: Sequence[Path], targets: Sequence[Path], longest: int) -> dict[str, int]:
    """Write the pairs whose sides both have 1 to `longest` units; count them and the others."""
    figures = {"empty": 0, "long": 0, "kept": 0}
    with atomic_write(targets[0]) as source_out, atomic_write(targets[1]) as target_out:
        for source, target in zip(*map(iter_lines, sources), strict=True):
            lengths = len(source.split()), len(target.split())
            fate = "empty" if min(lengths) == 0 else "long" if max(lengths) > longest else "kept"
            figures[fate] += 1
            if fate == "kept":
                source_out.write(source + "\n")
                target_out.write(target + "\n")
    return figures
