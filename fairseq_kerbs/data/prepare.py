"""Prepare parallel text, or text for language models, for fairseq in steps.

A step is skipped if its output exists. Outputs get their names when they are complete.
DEST/preparation.json has the flags and digests of the text. Data that were prepared with others are
kept: a second preparation in their folder is refused. An unfinished one with others is made anew.

DEST/raw   text of a release            DEST/tok    text tokenized by Moses
DEST/clean filtered training pairs      DEST/bpe    BPE codes and subwords
DEST/text  text for language models     DEST/bin    output of fairseq-preprocess
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

from fairseq_kerbs.data import tokens
from fairseq_kerbs.data.languages import base_language, is_language
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import (
    PARTIAL,
    atomic_write,
    check_parallel,
    iter_lines,
    lock_folder,
    read_lines,
    read_object,
    sha256_of,
    write_json,
)
from fairseq_kerbs.utils.processes import find_program, quoted, run_program
from fairseq_kerbs.utils.progress import Reminder

NAME = "preparation.json"
SPLITS = {"train": ("train",), "valid": ("valid", "validation", "dev"), "test": ("test",)}
"""fairseq's name of each split, and its names in files."""

# more than a word of Chinese, Japanese, Thai, Lao, Burmese or Khmer, which have no spaces
_UNSPACED = re.compile("[\u3400-\u9fff\u3040-\u30ff\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff]{9}")
LONGEST = 1023  # subwords of a line that fairseq's Transformers take by default
_RESERVED = "<s>", "</s>", "<pad>"  # of fairseq's dictionaries; <unk> is a usual word of such text
_SPECIALS = 4  # special symbols at the start of fairseq's dictionaries
_FOLDERS = ("raw", "tok", "clean", "bpe", "text", "bin")


def split_of_test(number: int) -> str:
    """fairseq's name of a test split by its number from 0: test, test1, test2 and so on."""
    if number == 0:
        return "test"
    return f"test{number}"


report = partial(print, flush=True)  # logs show each step when it starts
reminder = Reminder()


def begin_step(step: str, target: Path) -> bool:
    """Report a step; return whether its output is missing, so that it has to run."""
    reminder.begin(step)
    report(f"{step}: already done" if target.exists() else f"{step} ...")
    return not target.exists()


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines to a text file."""
    with atomic_write(path) as stream:
        stream.writelines(f"{line}\n" for line in lines)


@contextmanager
def working_folder(
    dest: Path, settings: Mapping[str, Any], reads: Iterable[Path] = ()
) -> Iterator[None]:
    """Lock a folder, and remove outputs of an interrupted run.

    Args:
        dest: the folder.
        settings: flags, and digests of the text.
        reads: files of the text.

    Raises:
        UserError: another run uses the folder, it has data of other settings or files that are no
            preparation, or a file of the text is in what would be removed.
    """
    record = dest / NAME
    settings = json.loads(json.dumps(settings))  # as the record is read: tuples become lists
    earlier = read_object(record)
    has_files = dest.is_dir() and any(entry.name[0] != "." for entry in dest.iterdir())
    if has_files and "command" not in earlier:
        raise UserError(
            f"{dest} exists and was not made by 'fairseq-kerbs prepare'; name another folder with "
            "--dest"
        )
    with lock_folder(dest, f"another run is preparing {dest}; wait for its end"):
        leftovers: list[Path] = []
        if earlier:
            leftovers += dest.rglob(f"{PARTIAL}*")
        for leftover in leftovers:
            if leftover.is_dir():
                shutil.rmtree(leftover)
            else:
                leftover.unlink(missing_ok=True)
        if earlier and earlier != settings:
            keys = {**settings, **earlier}
            changed = [key for key in keys if settings.get(key) != earlier.get(key)]
            if (dest / "bin").exists():  # models may have been trained on it
                raise UserError(
                    f"{dest} holds data that were prepared with other settings "
                    f"({', '.join(changed)}); name another folder with --dest, or remove this one"
                )
            _remove_outputs(dest, changed, reads)
        if earlier != settings:
            write_json(record, settings)
        with reminder.running():
            yield


def _remove_outputs(dest: Path, changed: Sequence[str], reads: Iterable[Path]) -> None:
    """Remove the outputs of a preparation with other settings, of which ``changed`` are named."""
    outputs = [dest / name for name in _FOLDERS]
    for file in reads:
        if any(file.resolve().is_relative_to(output.resolve()) for output in outputs):
            raise UserError(
                f"{file} is an output of {dest}, which is made anew as {', '.join(changed)} "
                "changed; copy the text to another place, or name another --dest"
            )
    report(f"changed {', '.join(changed)}: all steps are repeated")
    for output in outputs:
        if output.is_symlink():  # to a folder in another place, which stays
            output.unlink()
        elif output.exists():
            shutil.rmtree(output)


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Create a temporary folder, and rename it to ``target`` after the block."""
    temporary = target.with_name(f"{PARTIAL}{target.name}")
    temporary.mkdir(parents=True)
    yield temporary
    temporary.replace(target)


def binarize(dest: Path, flags: Sequence[str]) -> None:
    """Run fairseq-preprocess from ``dest`` to ``dest/bin``. A failure raises a UserError."""
    target = dest / "bin"
    log = dest / "preprocess.log"
    if begin_step("fairseq-preprocess", target):
        with new_folder(target) as temporary, log.open("w", encoding="utf-8") as stream:
            # paths relative to dest, as fairseq-preprocess splits some at commas
            command = [find_program("fairseq-preprocess"), *flags, "--destdir", temporary.name]
            print(quoted(command), file=stream, flush=True)
            status = run_program(command, stdout=stream, stderr=subprocess.STDOUT, folder=dest)
            if status != 0:
                raise UserError(f"fairseq-preprocess failed with status {status}; see {log}")
            (temporary / log.name).unlink()  # a copy
    report(f"data for fairseq-train: {target}")


@dataclass(frozen=True)
class ParallelText:
    """Parallel text and the settings of its preparation."""

    train: str  # prefix: PREFIX means files such as PREFIX.de and PREFIX.en
    valid: str
    test: tuple[str, ...]
    source_lang: str  # suffix of the files
    target_lang: str
    source_moses: str = ""  # language of Moses' rules. Default: the suffix
    target_moses: str = ""
    lowercase: bool = False
    escape: bool = False  # write special characters as XML entities
    max_words: int = 80  # maximum of each side of a training pair
    bpe: str = "joint"  # or "separate" or "none"
    merges: int = 10000
    vocabulary_threshold: int = 0  # minimum count of a subword
    joined_dictionary: bool = False  # one for both languages

    @property
    def raw(self) -> dict[str, Path]:
        """Files by their names in DEST, from test.de to train.en, with the largest ones last."""
        splits = {split_of_test(number): prefix for number, prefix in enumerate(self.test)}
        splits.update(valid=self.valid, train=self.train)
        return {
            f"{split}.{language}": _text_file(prefix, language)
            for split, prefix in splits.items()
            for language in (self.source_lang, self.target_lang)
        }

    @property
    def flags(self) -> dict[str, Any]:
        """All settings except the prefixes."""
        return {key: value for key, value in asdict(self).items() if key not in SPLITS}

    def check(self) -> None:
        """Check suffixes and files.

        A UserError is raised for suffixes that are equal or that fairseq cannot read, a threshold
        without subwords, a file that cannot be read, or different numbers of lines.
        """
        if self.source_lang == self.target_lang:
            raise UserError("--source-lang and --target-lang must differ: they name the two files")
        if self.bpe == "none" and self.vocabulary_threshold > 0:
            raise UserError(
                "--vocabulary-threshold is for subwords, which --bpe none does not make; leave one "
                "of them out"
            )
        for side, language in (("source", self.source_lang), ("target", self.target_lang)):
            if not re.fullmatch(r"\w+", language):  # fairseq splits names of files at - and .
                raise UserError(
                    f"--{side}-lang {language}: fairseq takes letters, digits and _ alone; rename "
                    f"the files to {re.sub(r'[^0-9A-Za-z]+', '_', language)}, which has the rules "
                    f"of --{side}-moses {base_language(language)}"
                )
        for split, prefix in (
            ("train", self.train),
            ("valid", self.valid),
            *[("test", one) for one in self.test],
        ):
            self._check_prefix(split, prefix)
        self._name_unknown_languages()
        paths = list(self.raw.values())
        for pair in zip(paths[::2], paths[1::2]):
            lines = {str(path): read_lines(path) for path in pair}
            check_parallel(lines)
            for name, (first, *others) in lines.items():
                if not others and "\r" in first.strip("\r"):
                    raise UserError(
                        f"{name} is a single line with carriage returns, the line ends of old "
                        "Macs; convert it by tr '\\r' '\\n'"
                    )

    def _name_unknown_languages(self) -> None:
        """Say whose text is tokenized as English because its suffix is no code of a language."""
        for side, language, rules in (
            ("source", self.source_lang, self.source_moses),
            ("target", self.target_lang, self.target_moses),
        ):
            if not is_language(rules or language):
                report(
                    f"{rules or language} is no code of a language with rules: its text is "
                    f"tokenized as English is; --{side}-moses names another language"
                )

    def _check_prefix(self, split: str, prefix: str) -> None:
        """Raise a UserError if a prefix is empty, or the name of one of its two files is given."""
        if not prefix:
            raise UserError(
                f"--{split} has an empty part; give prefixes of files with single commas between "
                "them"
            )
        for language in (self.source_lang, self.target_lang):
            given = prefix.removesuffix(".gz").removesuffix(f".{language}")
            if given != prefix and not Path(f"{prefix}.{language}").exists():
                raise UserError(
                    f"--{split} {prefix}: both files are named by what their names begin with; "
                    f"give --{split} {given}"
                )


def _text_file(prefix: str, language: str) -> Path:
    """PREFIX.LANGUAGE, or PREFIX.LANGUAGE.gz where only that is there."""
    path = Path(f"{prefix}.{language}")
    compressed = Path(f"{prefix}.{language}.gz")
    return compressed if compressed.is_file() and not path.exists() else path


def prepare_parallel(dest: Path, workers: int = 1, **flags: Any) -> None:
    """Prepare raw parallel text for fairseq.

    It is tokenized by Moses' rules, long training pairs are dropped, BPE is learned and applied,
    and the text is binarized.

    Args:
        dest: output folder, with fairseq's data in ``bin``.
        workers: number of processes.
        flags: fields of :class:`ParallelText`. A prefix such as ``train`` means train.de and
            train.en, or train.de.gz and train.en.gz.

    Raises:
        UserError: the text is invalid, or the folder is in use or has other data.
    """
    text = ParallelText(**flags)
    text.check()
    inputs = {name: sha256_of(path) for name, path in text.raw.items()}
    settings = {"command": "prepare", **text.flags, "inputs": inputs}
    with working_folder(dest, settings, text.raw.values()):
        parallel_steps(text, dest, workers)


def parallel_steps(text: ParallelText, dest: Path, workers: int) -> None:
    """Tokenize, filter, split into subwords and binarize.

    A UserError is raised if no training pair is left, or fairseq-preprocess fails.
    """
    for name, raw in text.raw.items():
        if begin_step(f"tokenize {name}", dest / "tok" / name):
            run = partial(tokens.tokenize, **rules_of(text.flags, name.partition(".")[2]))
            write_lines(dest / "tok" / name, tokens.run_parallel(run, read_lines(raw), workers))
    train = f"train.{text.source_lang}", f"train.{text.target_lang}"
    if begin_step("filter train", dest / "clean"):
        filter_pairs([dest / "tok" / name for name in train], text.max_words, dest / "clean")
    texts = {name: dest / ("clean" if name in train else "tok") / name for name in text.raw}
    if text.bpe == "joint":
        texts = subwords(texts, dest / "bpe" / "codes", text, workers)
    elif text.bpe == "separate":
        for language in (text.source_lang, text.target_lang):
            side = {name: path for name, path in texts.items() if name.endswith(f".{language}")}
            texts |= subwords(side, dest / "bpe" / f"codes.{language}", text, workers)
    prefixes = {
        name.partition(".")[0]: str(path.relative_to(dest).with_suffix(""))
        for name, path in texts.items()
    }
    flags = ["--source-lang", text.source_lang, "--target-lang", text.target_lang]
    flags += ["--trainpref", prefixes.pop("train"), "--validpref", prefixes.pop("valid")]
    flags += ["--testpref", ",".join(prefixes.values()), "--workers", str(workers)]
    if text.joined_dictionary:
        flags.append("--joined-dictionary")
    binarize(dest, flags)


def rules_of(flags: Mapping[str, Any], language: str) -> dict[str, Any]:
    """Arguments of :func:`.tokenize` for a language of a preparation with these flags."""
    side = "source" if language == flags["source_lang"] else "target"
    rules = flags[f"{side}_moses"] or language
    return {"language": rules, "lowercase": flags["lowercase"], "escape": flags["escape"]}


def filter_pairs(sources: Sequence[Path], longest: int, target: Path) -> None:
    """Write the pairs with 1 to ``longest`` words on both sides. Without any, raise a UserError."""
    pairs = list(zip(*map(iter_lines, sources)))
    sizes = [sorted(len(side.split()) for side in pair) for pair in pairs]
    fitting = [pair for pair, (least, most) in zip(pairs, sizes) if least >= 1 and most <= longest]
    empty = sum(least == 0 for least, _ in sizes)
    too_long = len(pairs) - len(fitting) - empty
    if not fitting:
        advice = "increase --max-words" if too_long else "give text with words on both sides"
        raise UserError(
            f"no pair of {sources[0]} is left after the filter: of {len(pairs)} pairs {empty} have "
            f"an empty side, and {too_long} are longer than {longest} words; {advice}"
        )
    with new_folder(target) as folder:
        for source, side in zip(sources, zip(*fitting)):
            write_lines(folder / source.name, side)
    for source, side in zip(sources, zip(*fitting)):
        _warn_of_unspaced(source.name, side)
    report(
        f"  {len(fitting)} of {len(pairs)} training pairs kept; dropped {empty} with an empty "
        f"side, {too_long} longer than {longest} words"
    )


def _warn_of_unspaced(name: str, lines: Sequence[str]) -> None:
    """Say that a text has no spaces between words, if most of its lines have none."""
    if 2 * sum(_UNSPACED.search(line) is not None for line in lines) > len(lines):
        report(
            f"  {name} has no spaces between words; segment raw text into words, or senses will be "
            "those of pieces"
        )


def subwords(
    texts: Mapping[str, Path], codes: Path, text: ParallelText, workers: int
) -> dict[str, Path]:
    """Learn joint BPE on the training texts, and apply it to all texts.

    Returns the files of subwords by name, which are written beside the codes.
    """
    if begin_step(f"learn BPE {codes.name}", codes):
        train = [path for name, path in texts.items() if name.startswith("train.")]
        tokens.learn_bpe(train, codes, text.merges)
    vocabularies: dict[str, Path] = {}  # by language, of the texts that were due
    for name, source in texts.items():
        if begin_step(f"apply BPE {name}", codes.with_name(name)):
            language = name.partition(".")[2]
            if language not in vocabularies:
                vocabulary = codes.with_name(f"vocabulary.{language}")
                if text.vocabulary_threshold:
                    tokens.write_vocabulary(texts[f"train.{language}"], codes, vocabulary)
                vocabularies[language] = vocabulary
            # a segmenter for each text: it keeps the words that it has seen
            segmenter = tokens.load_bpe(codes, vocabularies[language], text.vocabulary_threshold)
            processes = workers if sum(1 for _ in iter_lines(source)) > tokens.SMALL else 1
            with atomic_write(codes.with_name(name)) as stream:
                segmenter.process_lines(str(source), stream, num_workers=processes)
            lines = iter_lines(codes.with_name(name))
            long = sum(line.count(" ") >= LONGEST for line in lines)
            if long:
                report(
                    f"  {long} lines have over {LONGEST} subwords: too long for Transformers "
                    "without --max-source-positions, --max-target-positions"
                )
    return {name: codes.with_name(name) for name in texts}


def _home(data: Path) -> Path:
    """Folder of a preparation, for its ``bin`` folder or a symbolic link to or from that."""
    place = data.absolute()
    while place.is_symlink():
        if place.name == "bin" and (place.parent / NAME).is_file():
            return place.parent
        place = place.parent / place.readlink()
    return place.resolve().parent


def target_rules(data: Path, language: str) -> dict[str, Any]:
    """Arguments of :func:`.tokenize` for the target side of a ``bin`` folder.

    They are those of the folder's preparation, if it has a record, or else the defaults for the
    ``language``.
    """
    flags = read_object(_home(data) / NAME)
    if flags.get("target_lang") != language:
        flags = {}
    return {
        "language": flags.get("target_moses") or language,
        "lowercase": bool(flags.get("lowercase")),
        "escape": bool(flags.get("escape")),
    }


def preparation_of(data: Path, language: str) -> tuple[dict[str, Any], Callable[[str], str]]:
    """Preparation of one language of a ``bin`` folder, by the record beside it.

    Returns arguments of :func:`.tokenize`, and the function from a tokenized line to subwords. A
    UserError is raised if there is no record of parallel text.
    """
    dest = _home(data)
    flags = read_object(dest / NAME)
    if language not in (flags.get("source_lang"), flags.get("target_lang")):
        raise UserError(
            f"{dest / NAME} does not describe how {data} was prepared; name a 'bin' folder that "
            "'fairseq-kerbs prepare' wrote from parallel text"
        )
    needed = ["source_moses", "target_moses", "lowercase", "escape", "bpe"]
    if flags.get("bpe") != "none":
        needed.append("vocabulary_threshold")
    missing = [name for name in needed if name not in flags]
    if missing:
        raise UserError(
            f"{dest / NAME} does not tell {', '.join(missing)}; copy the file that 'fairseq-kerbs "
            "prepare' wrote"
        )
    if flags["bpe"] == "none":
        return rules_of(flags, language), str
    codes = dest / "bpe" / ("codes" if flags["bpe"] == "joint" else f"codes.{language}")
    vocabulary = codes.with_name(f"vocabulary.{language}")
    threshold = flags["vocabulary_threshold"]
    return rules_of(flags, language), tokens.load_bpe(codes, vocabulary, threshold).segment


@dataclass(frozen=True)
class LanguageText:
    """Settings of the preparation of text for language models."""

    words: int = 0  # vocabulary size, the most frequent training words; 0 keeps all
    max_words: int = 0  # maximum of a training line; 0 keeps all lines

    @property
    def flags(self) -> dict[str, Any]:
        """All settings, for the record."""
        return asdict(self)


def prepare_language(
    dest: Path,
    workers: int = 1,
    *,
    folder: Path | None = None,
    words: int = 0,
    max_words: int = 0,
    **files: Path | None,
) -> None:
    """Prepare tokenized text for language models: clean and binarize it.

    A line is a sentence or a paragraph, with spaces between words. Empty lines are dropped.

    Args:
        dest: output folder, with fairseq's data in ``bin``.
        workers: number of processes.
        folder: folder with files that have train, valid (or dev) and test in their names.
        words: vocabulary size, the most frequent training words. 0 keeps all.
        max_words: training lines with more words are dropped. 0 keeps all.
        files: files for ``train``, ``valid`` and ``test``, in place of a folder.

    Raises:
        UserError: the text is invalid, or the folder is in use or has other data.
    """
    text = LanguageText(words, max_words)
    texts = {split: path for split, path in files.items() if path}
    if len(texts) != (0 if folder else 3):
        raise UserError("name either a folder, or all of --train, --valid and --test")
    texts = find_splits(folder) if folder else texts
    for path in texts.values():
        special = path.exists() and not path.is_file() and not path.is_dir()
        if special or str(path).startswith(("/dev/", "/proc/")):
            raise UserError(f"{path} is no file that can be read twice; give a text file")
        next(iter_lines(path), None)  # raises a UserError for an unreadable file
    inputs = {split: sha256_of(path) for split, path in texts.items()}
    settings = {"command": "prepare-lm", **text.flags, "inputs": inputs}
    with working_folder(dest, settings, texts.values()):
        language_steps(text, texts, dest, workers)


def language_steps(text: LanguageText, texts: Mapping[str, Path], dest: Path, workers: int) -> None:
    """Clean the files of each split, and binarize them.

    Long lines are dropped from the training text only, as :func:`filter_pairs` drops long pairs. A
    model is thus evaluated on every sentence of a validation or test set.
    """
    kept_words = text.words + _SPECIALS if text.words else -1
    flags = ["--only-source", "--nwordssrc", str(kept_words)]
    flags += ["--padding-factor", "1", "--workers", str(workers)]
    for split, raw in texts.items():
        target = dest / "text" / split
        if begin_step(f"clean {split}", target):
            write_clean(raw, target, text.max_words if split == "train" else 0)
        flags.append(f"--{split}pref=text/{split}")
    binarize(dest, flags)


def find_splits(folder: Path) -> dict[str, Path]:
    """Find the text of each split by file names such as wiki.train.tokens or valid.txt.

    A UserError is raised unless there is exactly one file per split.
    """
    files = [path for path in sorted(folder.glob("*")) if path.is_file()]
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


def _without_marks_of_a_line(words: Sequence[str]) -> Sequence[str]:
    """Words of a line without <s> at its beginning and </s> at its end, which fairseq adds."""
    if words and words[0] == "<s>":
        words = words[1:]
    if words and words[-1] == "</s>":
        words = words[:-1]
    return words


def write_clean(raw: Path, target: Path, longest: int = 0) -> None:
    """Write the lines that are not blank, with single spaces, and without <s> and </s> around them.

    Args:
        raw: text with words separated by white space.
        target: file to write.
        longest: maximum number of words of a line. Longer lines are dropped. 0 keeps all.

    Raises:
        UserError: no line is left, or a line has <s>, </s> or <pad> in it.
    """
    lines = []
    for number, line in enumerate(iter_lines(raw), start=1):
        words = _without_marks_of_a_line(line.split())
        reserved = next((word for word in words if word in _RESERVED), None)
        if reserved is not None:
            raise UserError(
                f"{raw}, line {number}: fairseq reads {reserved} as a sign of its own, not as a "
                "word; replace it"
            )
        lines.append(" ".join(words))
    filled = [line for line in lines if line]
    if not filled:
        raise UserError(f"{raw} has no text; it must have one sentence or paragraph per line")
    fitting = [line for line in filled if not longest or len(line.split()) <= longest]
    if not fitting:
        raise UserError(
            f"every line of {raw} has more than {longest} words; increase --max-words, or give "
            "text with one sentence per line"
        )
    write_lines(target, fitting)
    count = sum(len(line.split()) for line in fitting)
    dropped = f"{len(lines) - len(filled)} blank lines dropped"
    if longest:
        dropped += f", {len(filled) - len(fitting)} lines longer than {longest} words dropped"
    report(f"  {len(fitting)} lines, {count} words; {dropped}")
    _warn_of_unspaced(raw.name, fitting)
