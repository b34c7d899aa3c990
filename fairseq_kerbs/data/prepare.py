"""Text made ready for fairseq: parallel text, and text for language models.

DEST/tok    tokenized by Moses     DEST/clean  training pairs that pass the length filter
DEST/bpe    codes and subwords     DEST/text   clean text for language models
DEST/bin    what fairseq-preprocess makes of them

A step whose output is there is skipped; outputs get their names when they are whole. What the
folder was made with is in DEST/preparation.json: with other text or flags all is made anew.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fairseq_kerbs.data.tokens import (
    SMALL,
    check_language,
    learn_bpe,
    load_bpe,
    run_parallel,
    tokenize,
    write_vocabulary,
)
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import (
    LONGEST_WORD,
    PARTIAL,
    atomic_write,
    has_endless_word,
    iter_lines,
    locked,
    partial_name,
    put_in_place,
    read_lines,
    read_object,
    sha256_of,
    without_endless_words,
    write_json,
)
from fairseq_kerbs.utils.processes import find_program, quoted, run_program

NAME = "preparation.json"
SPLITS = {"train": ("train",), "valid": ("valid", "validation", "dev"), "test": ("test",)}
"""fairseq's name of each split, and what file names call it."""

_FOLDERS = ("raw", "tok", "clean", "bpe", "text", "bin")
_RESERVED = frozenset({"<s>", "<pad>", "</s>"})  # fairseq's own symbols, which no text may use
_SPECIAL = 4  # symbols that fairseq's dictionaries begin with

Report = Callable[[str], None]


@dataclass(frozen=True)
class ParallelText:
    """Parallel text and how to prepare it; a prefix stands for PREFIX.de and PREFIX.en, say."""

    train: str
    valid: str
    test: tuple[str, ...]
    source_lang: str
    target_lang: str
    source_moses: str = ""
    target_moses: str = ""
    lowercase: bool = False
    escape: bool = False
    max_words: int = 80
    bpe: str = "joint"
    merges: int = 10000
    vocabulary_threshold: int = 0
    joined_dictionary: bool = False

    @property
    def languages(self) -> tuple[str, str]:
        """Source and target suffix."""
        return self.source_lang, self.target_lang

    @property
    def raw(self) -> dict[str, Path]:
        """The files by their names in DEST: test.de, …, train.en; the largest come last."""
        splits = {f"test{i or ''}": prefix for i, prefix in enumerate(self.test)}
        splits |= {"valid": self.valid, "train": self.train}
        return {
            f"{split}.{language}": Path(f"{prefix}.{language}")
            for split, prefix in splits.items()
            for language in self.languages
        }

    @property
    def flags(self) -> dict[str, Any]:
        """All but the places of the text."""
        return {key: value for key, value in asdict(self).items() if key not in SPLITS}

    def check(self) -> None:
        """Raise a UserError if flags do not fit, a side is missing, empty or not UTF-8, the sides
        differ in length, or validation or test text has an endless word."""
        if self.source_lang == self.target_lang:
            raise UserError("--source-lang and --target-lang must differ: they name the two files")
        for side in ("source", "target"):
            check_language(rules_of(self.flags, getattr(self, f"{side}_lang")), f"--{side}-moses")
        if self.vocabulary_threshold and self.bpe != "joint":
            raise UserError("--vocabulary-threshold needs --bpe joint")
        counts: dict[str, tuple[Path, int]] = {}
        for name, path in self.raw.items():
            count = sum(1 for _ in checked_lines(path, training=name.startswith("train.")))
            if count == 0:
                raise UserError(f"{path} is empty; it must hold one sentence a line")
            other, expected = counts.setdefault(name.partition(".")[0], (path, count))
            if count != expected:
                raise UserError(
                    f"{other} has {expected} lines and {path} has {count}; parallel files need "
                    "the same number"
                )


def prepare_parallel(dest: Path, workers: int = 1, report: Report = print, **flags: Any) -> None:
    """Raw parallel text to fairseq data.

    Tokenizes it (Moses), drops overlong training pairs, learns and applies BPE, and binarizes into
    DEST/bin. PREFIX stands for PREFIX.de and PREFIX.en, say.

    ``flags`` are the fields of `ParallelText`. Raises what its `check` and `parallel_steps` do, and
    a UserError if the folder holds other things or another run is using it.
    """
    text = ParallelText(**flags)
    text.check()
    inputs = {name: sha256_of(path) for name, path in text.raw.items()}
    with working_folder(dest, {"command": "prepare", **text.flags, "inputs": inputs}, report):
        parallel_steps(text, dest, workers, report)


def parallel_steps(text: ParallelText, dest: Path, workers: int, report: Report) -> None:
    """Tokenize, filter, split into subwords, binarize. Raises a UserError if validation or test
    text has an empty line, no training pair is left, or fairseq-preprocess fails."""
    for name, raw in text.raw.items():
        if is_due(report, f"tokenize {name}", dest / "tok" / name):
            tokenize_file(raw, dest / "tok" / name, text, workers)
    train = [f"train.{language}" for language in text.languages]
    if is_due(report, "filter train", dest / "clean"):
        report(f"  {filter_pairs([dest / 'tok' / name for name in train], text.max_words)}")
    texts = {name: dest / ("clean" if name in train else "tok") / name for name in text.raw}
    lines = {name: sum(1 for _ in iter_lines(path)) for name, path in texts.items()}
    if text.bpe == "joint":
        texts = subwords(texts, train, dest / "bpe" / "codes", text, workers, report)
    elif text.bpe == "separate":
        for name in train:
            language = name.removeprefix("train.")
            side = {key: path for key, path in texts.items() if key.endswith(f".{language}")}
            codes = dest / "bpe" / f"codes.{language}"
            texts |= subwords(side, [name], codes, text, workers, report)
    prefixes = {
        name.partition(".")[0]: str(path.relative_to(dest).with_suffix(""))
        for name, path in texts.items()
    }
    flags = ["--source-lang", text.source_lang, "--target-lang", text.target_lang]
    flags += ["--trainpref", prefixes.pop("train"), "--validpref", prefixes.pop("valid")]
    flags += ["--testpref", ",".join(prefixes.values()), "--workers", str(workers)]
    flags += ["--joined-dictionary"] * text.joined_dictionary
    pair = "-".join(text.languages)
    binarize(dest, flags, {name.replace(".", f".{pair}."): n for name, n in lines.items()}, report)


def checked_lines(path: Path, *, training: bool) -> Iterator[str]:
    """The lines; a UserError if text that is not for training has an endless word."""
    return iter_lines(path) if training else without_endless_words(iter_lines(path), path)


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write a text of these lines."""
    with atomic_write(path) as stream:
        stream.writelines(f"{line}\n" for line in lines)


def is_due(report: Report, what: str, target: Path) -> bool:
    """Whether a step has yet to be done, because its output is not there."""
    report(f"{what}: already done" if target.exists() else f"{what} ...")
    return not target.exists()


def rules_of(flags: Mapping[str, Any], language: str) -> str:
    """Language of the Moses rules for a side, by the flags of a preparation."""
    side = "source" if language == flags["source_lang"] else "target"
    return str(flags[f"{side}_moses"] or language)


def tokenize_file(raw: Path, target: Path, text: ParallelText, workers: int) -> None:
    """Tokenize a side of a split; a UserError if validation or test text has an empty line."""
    split, _, language = target.name.partition(".")
    rules = rules_of(text.flags, language)
    run = partial(tokenize, language=rules, lowercase=text.lowercase, escape=text.escape)
    lines = list(run_parallel(run, read_lines(raw), workers))
    if split != "train" and "" in lines:
        raise UserError(
            f"{raw}, line {lines.index('') + 1}: empty; validation and test text need a sentence "
            "in every line, so remove the pair from both files"
        )
    write_lines(target, lines)


def filter_pairs(sources: Sequence[Path], longest: int) -> str:
    """Write the pairs whose sides both have 1 to `longest` words to ``clean`` beside their folder;
    return a sentence of counts. A UserError if there is none."""
    pairs = list(zip(*map(iter_lines, sources)))
    whole = [pair for pair in pairs if all(side.split() for side in pair)]
    short = [pair for pair in whole if max(len(side.split()) for side in pair) <= longest]
    if not short:
        raise UserError(
            f"no pair of {sources[0]} is left after the filter; raise --max-words, or see the text"
        )
    target = sources[0].parent.with_name("clean")
    temporary = fresh_folder(target)
    for source, side in zip(sources, zip(*short)):
        write_lines(temporary / source.name, side)
    put_in_place(temporary, target)
    long, empty = len(whole) - len(short), len(pairs) - len(whole)
    return (
        f"{len(short)} of {len(pairs)} training pairs kept; dropped {long} longer than {longest} "
        f"words, {empty} with an empty side or a word of more than {LONGEST_WORD} characters"
    )


def subwords(
    texts: Mapping[str, Path], train: Sequence[str], codes: Path, text: ParallelText,
    workers: int, report: Report,
) -> dict[str, Path]:  # fmt: skip
    """Learn BPE on the training texts together, apply it to all, beside the codes."""
    if is_due(report, f"learn BPE {codes.name}", codes):
        merges = learn_bpe([texts[name] for name in train], codes, text.merges)
        if merges < text.merges:
            report(f"  {merges} merges: no further pair of units occurs twice")
    for name, source in texts.items():
        if is_due(report, f"apply BPE {name}", codes.with_name(name)):
            language, vocabulary = name.partition(".")[2], None
            if text.vocabulary_threshold:
                vocabulary = codes.with_name(f"vocabulary.{language}")
                write_vocabulary(texts[f"train.{language}"], codes, vocabulary)
            segmenter = load_bpe(codes, vocabulary, text.vocabulary_threshold)
            processes = workers if sum(1 for _ in iter_lines(source)) > SMALL else 1
            with atomic_write(codes.with_name(name)) as stream:
                segmenter.process_lines(str(source), stream, num_workers=processes)
    return {name: codes.with_name(name) for name in texts}


def preparation_of(data: Path, language: str) -> tuple[dict[str, Any], Callable[[str], str]]:
    """How a language's text in a ``bin`` folder was made, by the record beside it: arguments of
    `tokenize`, and the function from its lines to lines of subwords; a UserError if there is no
    record of parallel text."""
    dest = data.resolve().parent
    flags = read_object(dest / NAME)
    if language not in (flags.get("source_lang"), flags.get("target_lang")):
        raise UserError(
            f"{dest / NAME} does not tell how raw text became {data}; name the 'bin' folder that "
            "'fairseq-kerbs prepare' made of parallel text"
        )
    choices = {"lowercase": flags["lowercase"], "escape": flags["escape"]}
    rules = {"language": rules_of(flags, language), **choices}
    if flags["bpe"] == "none":
        return rules, str
    codes = dest / "bpe" / ("codes" if flags["bpe"] == "joint" else f"codes.{language}")
    threshold = flags["vocabulary_threshold"]
    vocabulary = codes.with_name(f"vocabulary.{language}") if threshold else None
    return rules, load_bpe(codes, vocabulary, threshold).segment


def prepare_language(
    dest: Path, workers: int = 1, report: Report = print, *, folder: Path | None = None,
    words: int = 0, **files: Path | None,
) -> None:  # fmt: skip
    """Tokenized text to fairseq data for language models.

    Checks tokenized text (one sentence or paragraph a line, words between spaces), drops blank
    lines, keeps the most frequent words, and binarizes into DEST/bin. The text is a folder with one
    file each with train, valid (or dev) and test in its name, or three files.

    Raises a UserError as `prepare_parallel` does.
    """
    texts = {split: path for split, path in files.items() if path}
    if len(texts) != (0 if folder else 3):
        raise UserError("name either a folder, or all of --train, --valid and --test")
    inputs = {}
    for split, path in (texts := find_splits(folder) if folder else texts).items():
        next(iter_lines(path), None)  # which says what is wrong with the file
        inputs[split] = sha256_of(path)
    settings = {"command": "prepare-lm", "words": words, "inputs": inputs}
    with working_folder(dest, settings, report):
        language_steps(texts, dest, words, workers, report)


def language_steps(
    texts: Mapping[str, Path], dest: Path, words: int, workers: int, report: Report
) -> None:
    """Clean every text and binarize with the most frequent ``words`` (0: all)."""
    flags = ["--only-source", "--nwordssrc", str(words + _SPECIAL if words else -1)]
    flags += ["--padding-factor", "1", "--workers", str(workers)]
    for split, raw in texts.items():
        target = dest / "text" / split
        if is_due(report, f"clean {split}", target):
            report(f"  {split}: {write_clean(raw, target, training=split == 'train')}")
        flags.append(f"--{split}pref=text/{split}")
    lines = {split: sum(1 for _ in iter_lines(dest / "text" / split)) for split in texts}
    binarize(dest, flags, lines, report)


def find_splits(folder: Path) -> dict[str, Path]:
    """The text of each split in a folder, by file names such as wiki.train.tokens or valid.txt; a
    UserError unless there is one file for each."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; name one, or use --train, --valid and --test")
    files = [path for path in sorted(folder.iterdir()) if path.is_file()]
    texts = {}
    for split, names in SPLITS.items():
        matching = [path for path in files if set(re.split(r"[._-]", path.name)) & set(names)]
        if len(matching) != 1:
            listing = ", ".join(path.name for path in matching) or "none"
            raise UserError(
                f"{folder}: one file for {split} was expected ({' or '.join(names)} in its name), "
                f"found {listing}; name the files with --train, --valid and --test"
            )
        texts[split] = matching[0]
    return texts


def write_clean(raw: Path, target: Path, *, training: bool) -> str:
    """Write the lines that have a word, words apart by one space; return a sentence of counts.

    Training lines with an endless word are left out. Raises a UserError if no line has a word, a
    word is a symbol of fairseq's own, or one of other text is endless.
    """
    counts = {"lines": 0, "words": 0, "blank": 0, "endless": 0}
    with atomic_write(target) as stream:
        for number, line in enumerate(checked_lines(raw, training=training), start=1):
            words = line.split()
            if not words or has_endless_word(line):
                counts["endless" if words else "blank"] += 1
                continue
            for word in _RESERVED.intersection(words):
                raise UserError(
                    f"{raw}, line {number}: '{word}' is a symbol of fairseq's own; remove it (the "
                    "end of a line needs no mark)"
                )
            counts["lines"] += 1
            counts["words"] += len(words)
            stream.write(" ".join(words) + "\n")
        if counts["lines"] == 0:
            raise UserError(f"{raw} has no text; it must hold one sentence or paragraph a line")
    return (
        f"{counts['lines']} lines, {counts['words']} words; {counts['blank']} blank lines dropped, "
        f"{counts['endless']} with a word of more than {LONGEST_WORD} characters"
    )


@contextmanager
def working_folder(dest: Path, settings: Mapping[str, Any], report: Report) -> Iterator[None]:
    """Hold the lock of a folder that is prepared with ``settings``, cleared of what an interrupted
    run, or one with other settings, left there; a UserError if it holds other things than a
    preparation, or another run is using it."""
    record, settings = dest / NAME, json.loads(json.dumps(settings))
    foreign = dest.is_dir() and any(entry.name[0] != "." for entry in dest.iterdir())
    if foreign and "command" not in read_object(record):
        raise UserError(
            f"{dest} exists and was not made by 'fairseq-kerbs prepare'; name another folder with "
            "--dest"
        )
    with locked(dest, f"another run is preparing {dest}; wait for its end"):
        earlier = read_object(record)
        if earlier and earlier != settings:
            changed = [key for key in settings if settings[key] != earlier.get(key)]
            report(f"other {', '.join(changed)} than before: everything is made anew")
            for name in _FOLDERS:
                shutil.rmtree(dest / name, ignore_errors=True)
        for leftover in list(dest.rglob(f"{PARTIAL}*")) if earlier else []:
            if leftover.is_dir():
                shutil.rmtree(leftover, ignore_errors=True)
            else:
                leftover.unlink(missing_ok=True)
        if earlier != settings:
            write_json(record, settings)
        yield


def fresh_folder(target: Path) -> Path:
    """An empty folder, to be renamed to ``target`` when it is whole; its name is of this process
    alone, because programs of a killed run may write a little longer."""
    temporary = partial_name(target)
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    return temporary


def binarize(dest: Path, flags: Sequence[str], lines: Mapping[str, int], report: Report) -> None:
    """The last step: fairseq-preprocess with `flags`, which name files from DEST, to ``DEST/bin``.
    `lines` by the names of binarized files: a worker of the program that dies leaves some out."""
    target = dest / "bin"
    if is_due(report, "fairseq-preprocess", target):
        temporary, log = fresh_folder(target), dest / "preprocess.log"
        # names from DEST, because fairseq-preprocess divides some at commas
        command = [find_program("fairseq-preprocess"), *flags, "--destdir", temporary.name]
        with log.open("w", encoding="utf-8") as stream:
            print(quoted(command), file=stream, flush=True)
            status = run_program(command, stdout=stream, stderr=subprocess.STDOUT, folder=dest)
        if status != 0:
            raise UserError(f"fairseq-preprocess failed with status {status}; see {log}")
        for name, expected in lines.items():
            count = binarized_lines(temporary / f"{name}.idx")
            if count != expected:
                raise UserError(
                    f"fairseq-preprocess wrote {count} of {expected} lines of {name}; run again "
                    "with --workers 1"
                )
        (temporary / "preprocess.log").unlink(missing_ok=True)  # the same text as `log`
        put_in_place(temporary, target)
    report(f"data for fairseq-train: {target}")


def binarized_lines(index: Path) -> int:
    """Number of sentences in a binarized file, from the header of fairseq's mmap index."""
    return int.from_bytes(index.read_bytes()[18:26], "little")
