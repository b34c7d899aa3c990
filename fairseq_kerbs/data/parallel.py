"""Raw parallel text to data for fairseq: tokens, length filter, subwords, binarization."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fairseq_kerbs.data.prepare import (
    NAME,
    SPLITS,
    binarize,
    checked_lines,
    count_lines,
    is_due,
    new_folder,
    report,
    working_folder,
    write_lines,
)
from fairseq_kerbs.data.tokens import (
    SMALL,
    learn_bpe,
    load_bpe,
    run_parallel,
    tokenize,
    write_vocabulary,
)
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import (
    LONGEST_WORD,
    atomic_write,
    iter_lines,
    read_lines,
    read_object,
    sha256_of,
)


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
        splits.update(valid=self.valid, train=self.train)
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
        """Raise a UserError if the languages are the same, a file is missing or not UTF-8, the two
        sides of a split have no lines or not as many, or text not for training has an endless word.
        """
        if self.source_lang == self.target_lang:
            raise UserError("--source-lang and --target-lang must differ: they name the two files")
        sizes = {
            path: sum(1 for _ in checked_lines(path, training=name.startswith("train.")))
            for name, path in self.raw.items()
        }
        paths = list(sizes)
        for source, target in zip(paths[::2], paths[1::2]):
            if sizes[source] != sizes[target] or not sizes[source]:
                raise UserError(
                    f"{source} has {sizes[source]} lines and {target} has {sizes[target]}; "
                    "parallel files need the same number, one sentence a line"
                )


def prepare_parallel(dest: Path, workers: int = 1, **flags: Any) -> None:
    """Raw parallel text to fairseq data.

    Tokenizes it (Moses), drops overlong training pairs, learns and applies BPE, and binarizes into
    DEST/bin. PREFIX stands for PREFIX.de and PREFIX.en, say.

    ``flags`` are the fields of `ParallelText`. Raises what its `check`, `working_folder` and
    `parallel_steps` do.
    """
    text = ParallelText(**flags)
    text.check()
    inputs = {name: sha256_of(path) for name, path in text.raw.items()}
    with working_folder(dest, {"command": "prepare", **text.flags, "inputs": inputs}):
        parallel_steps(text, dest, workers)


def parallel_steps(text: ParallelText, dest: Path, workers: int) -> None:
    """Tokenize, filter, split into subwords, binarize. Raises a UserError if no training pair is
    left, or fairseq-preprocess fails."""
    for name, raw in text.raw.items():
        if is_due(f"tokenize {name}", dest / "tok" / name):
            rules = rules_of(text.flags, name.partition(".")[2])
            run = partial(tokenize, language=rules, lowercase=text.lowercase, escape=text.escape)
            write_lines(dest / "tok" / name, run_parallel(run, read_lines(raw), workers))
    train = [f"train.{language}" for language in text.languages]
    if is_due("filter train", dest / "clean"):
        filter_pairs([dest / "tok" / name for name in train], text.max_words, dest / "clean")
    texts = {name: dest / ("clean" if name in train else "tok") / name for name in text.raw}
    if text.bpe == "joint":
        texts = subwords(texts, train, dest / "bpe" / "codes", text, workers)
    elif text.bpe == "separate":
        for name in train:
            language = name.partition(".")[2]
            side = {key: path for key, path in texts.items() if key.endswith(f".{language}")}
            texts |= subwords(side, [name], dest / "bpe" / f"codes.{language}", text, workers)
    prefixes = {
        name.partition(".")[0]: str(path.relative_to(dest).with_suffix(""))
        for name, path in texts.items()
    }
    flags = ["--source-lang", text.source_lang, "--target-lang", text.target_lang]
    flags += ["--trainpref", prefixes.pop("train"), "--validpref", prefixes.pop("valid")]
    flags += ["--testpref", ",".join(prefixes.values()), "--workers", str(workers)]
    binarize(dest, flags + ["--joined-dictionary"] * text.joined_dictionary)


def rules_of(flags: Mapping[str, Any], language: str) -> str:
    """Language of the Moses rules for a side, by the flags of a preparation."""
    side = "source" if language == flags["source_lang"] else "target"
    return str(flags[f"{side}_moses"] or language)


def filter_pairs(sources: Sequence[Path], longest: int, target: Path) -> None:
    """Write the pairs whose sides both have 1 to `longest` words to a folder, and report how many
    there are. A UserError if there is none."""
    pairs = list(zip(*map(iter_lines, sources)))
    whole = [pair for pair in pairs if all(side.split() for side in pair)]
    short = [pair for pair in whole if max(len(side.split()) for side in pair) <= longest]
    if not short:
        raise UserError(
            f"no pair of {sources[0]} is left after the filter; raise --max-words, or see the text"
        )
    with new_folder(target) as folder:
        for source, side in zip(sources, zip(*short)):
            write_lines(folder / source.name, side)
    long, empty = len(whole) - len(short), len(pairs) - len(whole)
    report(
        f"  {len(short)} of {len(pairs)} training pairs kept; dropped {long} longer than {longest} "
        f"words, {empty} with an empty side or a word of more than {LONGEST_WORD} characters"
    )


def subwords(
    texts: Mapping[str, Path], train: Sequence[str], codes: Path, text: ParallelText, workers: int
) -> dict[str, Path]:
    """Learn BPE on the training texts together, apply it to all, beside the codes."""
    if is_due(f"learn BPE {codes.name}", codes):
        learn_bpe([texts[name] for name in train], codes, text.merges)
    for name, source in texts.items():
        if is_due(f"apply BPE {name}", codes.with_name(name)):
            language, vocabulary = name.partition(".")[2], None
            if text.vocabulary_threshold:
                vocabulary = codes.with_name(f"vocabulary.{language}")
                write_vocabulary(texts[f"train.{language}"], codes, vocabulary)
            segmenter = load_bpe(codes, vocabulary, text.vocabulary_threshold)
            processes = workers if count_lines(source) > SMALL else 1
            with atomic_write(codes.with_name(name)) as stream:
                segmenter.process_lines(str(source), stream, num_workers=processes)
    return {name: codes.with_name(name) for name in texts}


def preparation_of(data: Path, language: str) -> tuple[dict[str, Any], Callable[[str], str]]:
    """How a language's text in a ``bin`` folder was made, by the record beside it: arguments of
    `tokenize`, and the function from its lines to lines of subwords. A UserError if there is no
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
