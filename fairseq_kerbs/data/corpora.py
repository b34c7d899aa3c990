"""Download released corpora, verify and read them into ``DEST/raw``, and prepare the text.

Checksums of archives and numbers of lines must be those of the release.
"""

from __future__ import annotations

import html
import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any
from xml.etree import ElementTree

from fairseq_kerbs.data import prepare, tokens
from fairseq_kerbs.data.prepare import SPLITS, LanguageText, ParallelText, report, split_of_test
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import PARTIAL, iter_lines, read_lines, sha256_of

Texts = dict[str, list[str]]  # lines of each file in DEST/raw, by name

# IWSLT'16
_FIELDS = "url|keywords|speaker|talkid|title|description|reviewer|translator|doc"
_TAG = re.compile(rf"\s*</?(?:{_FIELDS})\b")  # lines of training files that are no sentences
_ENTITY = re.compile(r"&(?:[A-Za-z]+|#[0-9]+|#x[0-9A-Fa-f]+);")
# DailyDialog
_PARTS = {"train": "train", "valid": "validation", "test": "test"}  # names in the release
_ASCII = str.maketrans({"’": "'", "‘": "'", "′": "'", "“": '"', "”": '"'})
# endings after the apostrophe of a contraction or genitive; the release has ’Ve for ’ve
_CLITIC = re.compile(r"(?<=\w) ?' ?(s|t|m|re|ve|ll|d)\b", re.IGNORECASE)
_INSIDE = (
    (re.compile(r"\b([o0]) ' clock\b", re.IGNORECASE), r"\1'clock"),
    (re.compile(r"\b(ma) ' am\b", re.IGNORECASE), r"\1'am"),
    (re.compile(r"\b(O) ' (?=[A-Z][a-z])"), r"\1'"),
)
# One-Billion-Word benchmark
_TRAINING = "training-monolingual.tokenized.shuffled"  # folder of the release


@dataclass(frozen=True)
class Release:
    """An entry of releases.yaml, which explains the fields."""

    title: str
    archives: Mapping[str, Sequence[str]]
    counts: Mapping[str, int]
    nested: Sequence[str] = ()
    divided: bool = False

    def check_count(self, part: str, lines: int) -> None:
        """Raise a UserError unless a part has the number of lines of the release."""
        if lines != self.counts[part]:
            raise UserError(
                f"{part} has {lines:,} lines, expected {self.counts[part]:,}; this is not the "
                f"release of {self.title}"
            )

    def check_archive(self, path: Path) -> None:
        """Raise a UserError unless a file has the checksum of one of the release's archives."""
        import pooch

        names = [path.name] if self.divided else list(self.archives)
        sums = [self.archives[name][0].split(":") for name in names]
        if all(pooch.file_hash(str(path), alg=kind) != checksum for kind, checksum in sums):
            raise UserError(
                f"{path} is not the released {names[0]} of {self.title}, whose checksum is "
                f"{sums[0][1]}; fetch it again from {self.archives[names[0]][1]}"
            )


@cache
def release_of(name: str) -> Release:
    """The entry of releases.yaml with this name."""
    import yaml

    entries = yaml.safe_load(Path(__file__).with_name("releases.yaml").read_text("utf-8"))
    return Release(**entries[name])


def find_files(folder: Path, names: Mapping[str, str]) -> dict[str, Path]:
    """Find the file for each role in a folder and its subfolders, by patterns of their names.

    The names may have the suffix .gz. A UserError is raised unless each pattern matches one file.
    """
    files = {}
    for role, name in names.items():
        matching = sorted(folder.rglob(name)) or sorted(folder.rglob(f"{name}.gz"))
        if len(matching) != 1:
            listing = ", ".join(path.name for path in matching) or "none"
            raise UserError(f"{folder}: one file {name} was expected, found {listing}")
        files[role] = matching[0]
    return files


def fetch(release: Release, dest: Path) -> Path:
    """Download a release to ``DEST/download``, and return its archive, or the folder of several.

    If no address has the archive with its checksum, a UserError tells where to put it.
    """
    folder = dest / "download"
    if release.divided:
        for name in release.archives:
            _fetch_one(release, [name], folder)
        return folder
    names = sorted(release.archives, key=lambda name: not (folder / name).exists())
    return _fetch_one(release, names, folder)


def _fetch_one(release: Release, names: Sequence[str], folder: Path) -> Path:
    """Download the first available one of several equivalent archives."""
    import pooch

    pooch.get_logger().setLevel("WARNING")
    headers = {"User-Agent": "fairseq-kerbs"}
    load = pooch.HTTPDownloader(headers=headers, timeout=30, progressbar=sys.stderr.isatty())
    failures = []
    for name in names:
        checksum, *urls = release.archives[name]
        for url in urls:
            if not (folder / name).exists():
                report(f"download {url} ...")
            try:  # pooch keeps an existing file with this checksum
                return Path(pooch.retrieve(url, checksum, name, folder, downloader=load))
            except (OSError, ValueError) as error:  # no answer, or another checksum
                failures.append(f"{url}: {error}")
    raise UserError(
        f"{release.title} could not be downloaded ({'; '.join(failures)}); get {names[0]} with "
        f"{release.archives[names[0]][0]} elsewhere, put it at {folder / names[0]}, and run again"
    )


def unpacked(release: Release, source: Path, folder: Path) -> Path:
    """A source that is a folder, or a ``folder`` that an archive is unpacked into."""
    if source.is_dir():
        return source
    _unpack(source, folder)
    for inner in [path for name in release.nested for path in folder.rglob(name)]:
        _unpack(inner, inner.with_name(inner.stem))
    return folder


def _unpack(archive: Path, folder: Path) -> None:
    shutil.unpack_archive(archive, folder, "zip" if zipfile.is_zipfile(archive) else "gztar")


def _prepare(
    name: str,
    dest: Path,
    source: Path | None,
    read: Callable[[Path, Release], Texts],
    text: ParallelText | LanguageText,
    workers: int,
    **options: Any,
) -> None:
    """Download, read and prepare a corpus."""
    release = release_of(name)
    digest = None
    if source is not None:
        _check_source(release, source)
        digest = sha256_of(source)
    options.update(command=f"prepare {release.title}", source=digest)
    with prepare.working_folder(dest, {**text.flags, **options}):
        raw = dest / "raw"
        if prepare.begin_step(f"read {release.title}", raw):
            with tempfile.TemporaryDirectory(prefix=PARTIAL, dir=dest) as folder:
                released = fetch(release, dest) if source is None else source
                place = unpacked(release, released, Path(folder))
                texts = read(place, release)
            with prepare.new_folder(raw) as temporary:
                for file, sentences in texts.items():
                    prepare.write_lines(temporary / file, sentences)
        if isinstance(text, ParallelText):
            text.check()
            prepare.parallel_steps(text, dest, workers)
        else:
            texts_by_split = {split: raw / split for split in SPLITS}
            prepare.language_steps(text, texts_by_split, dest, workers)


def _check_source(release: Release, source: Path) -> None:
    """Raise a UserError unless a source is there, and has the release's checksum if a file."""
    if release.divided:
        kind = "folder"
        there = source.is_dir()
    else:
        kind = "file or folder"
        there = source.exists()
    if not there:
        raise UserError(f"{source}: no such {kind}; name one with the released text")
    if source.is_file():
        release.check_archive(source)


def read_unchanged(folder: Path, release: Release, names: Mapping[str, str]) -> Texts:
    """Read files of a release, given the patterns of their names, without changing the text."""
    texts = {}
    for role, path in find_files(folder, names).items():
        if path.suffix == ".gz":
            release.check_archive(path)
        texts[role] = read_lines(path)
        release.check_count(role.partition(".")[0], len(texts[role]))
    return texts


def prepare_multi30k(
    dest: Path, source: Path | None = None, workers: int = 1, *, merges: int
) -> None:
    """Prepare German-English Multi30k, task 1, test set 2016 (Flickr), as parallel text.

    Args:
        dest: output folder, with the text in ``raw`` and fairseq's data in ``bin``.
        source: folder with train, val and test_2016_flickr (.de, .en, optionally .gz), such as a
            checkout of github.com/multi30k/dataset. By default these are downloaded.
        workers: number of processes.
        merges: number of joint BPE merges.

    Raises:
        UserError: the source is not the release, or the folder is in use or has other data.
    """
    parts = zip(SPLITS, ("train", "val", "test_2016_flickr"))
    names = {f"{split}.{side}": f"{part}.{side}" for split, part in parts for side in ("de", "en")}
    text = ParallelText(**_raw(dest), source_lang="de", target_lang="en", merges=merges)
    _prepare("multi30k", dest, source, partial(read_unchanged, names=names), text, workers)


def prepare_wikitext2(
    dest: Path, source: Path | None = None, workers: int = 1, *, words: int
) -> None:
    """Prepare WikiText-2 (word level) for language models.

    A line is a paragraph of running text, so lines of any length are kept.

    Args:
        dest: output folder, with the text in ``raw`` and fairseq's data in ``bin``.
        source: wikitext-2-v1.zip, or a folder with wiki.{train,valid,test}.tokens. By default the
            archive is downloaded.
        workers: number of processes.
        words: vocabulary size, the most frequent training words. 0 keeps all.

    Raises:
        UserError: the source is not the release, or the folder is in use or has other data.
    """
    read = partial(read_unchanged, names={split: f"wiki.{split}.tokens" for split in SPLITS})
    _prepare("wikitext2", dest, source, read, LanguageText(words), workers)


def _raw(dest: Path, tests: int = 1) -> dict[str, Any]:
    """Arguments of :class:`.ParallelText` for the text in ``DEST/raw``."""
    test = tuple(f"{dest}/raw/{split_of_test(number)}" for number in range(tests))
    return {"train": f"{dest}/raw/train", "valid": f"{dest}/raw/valid", "test": test}


def prepare_iwslt16(
    dest: Path,
    source: Path | None = None,
    workers: int = 1,
    *,
    valid: str,
    test: Sequence[str],
    **flags: Any,
) -> None:
    """Prepare German-English IWSLT'16 (WIT3 release 2016-01) as parallel text.

    Checksum and numbers of lines of the release are verified. The KerBS paper does not name its
    validation and test sets.

    Args:
        dest: output folder, with the text in ``raw`` and fairseq's data in ``bin``.
        source: 2016-01.tgz, its de-en.tgz, that archive unpacked, or a folder of plain text with
            files such as train*.de and IWSLT16.TED.tst2013.de-en.de. By default the release is
            downloaded.
        workers: number of processes.
        valid: validation set, such as tst2013.
        test: test sets.
        flags: further fields of :class:`.ParallelText`.

    Raises:
        UserError: the sets do not differ or are not part of the release, the source is not the
            release, or the folder is in use or has other data.
    """
    sets = {"train": "train", "valid": valid}
    sets.update({split_of_test(number): name for number, name in enumerate(test)})
    known = list(release_of("iwslt16").counts)
    if not set(sets.values()) <= set(known) or len(set(sets.values())) < len(sets):
        raise UserError(f"--valid and --test must name different sets of {', '.join(known[1:])}")
    text = ParallelText(**_raw(dest, len(test)), source_lang="de", target_lang="en", **flags)
    _prepare("iwslt16", dest, source, partial(read_iwslt16, sets=sets), text, workers, sets=sets)


def read_iwslt16(folder: Path, release: Release, sets: Mapping[str, str]) -> Texts:
    """Text of each split, from the set of the release that ``sets`` names."""
    patterns = {split: f"IWSLT16.TED.{part}.de-en.{{}}*" for split, part in sets.items()}
    patterns["train"] = "train*.{}"
    names = {f"{s}.{side}": patterns[s].format(side) for s in patterns for side in ("de", "en")}
    files = find_files(folder, names)
    texts = {role: read_sentences(path) for role, path in files.items()}
    complete = files["train.de"].name.startswith("train.tags.")
    for role, sentences in texts.items():
        part = sets[role.partition(".")[0]]
        if part != "train" or complete:
            release.check_count(part, len(sentences))
    if not complete:
        report(
            f"  note: {len(texts['train.de'])} of the release's {release.counts['train']} training "
            "pairs; scores are not comparable with published ones"
        )
    return texts


def read_sentences(path: Path) -> list[str]:
    """Sentences of a file (training text with tags, XML or plain text), with single spaces."""
    if path.suffix == ".xml":
        try:
            sentences = [segment.text or "" for segment in ElementTree.parse(path).iter("seg")]
        except ElementTree.ParseError as error:
            raise UserError(
                f"{path} is no whole XML file ({error}); take another copy of the release"
            ) from None
    else:
        tagged = path.name.startswith("train.tags.")
        lines = [line for line in read_lines(path) if not (tagged and _TAG.match(line))]
        sentences = [_ENTITY.sub(lambda match: html.unescape(match[0]), line) for line in lines]
    return [" ".join(sentence.split()) for sentence in sentences]


def prepare_dailydialog(
    dest: Path, source: Path | None = None, workers: int = 1, **flags: Any
) -> None:
    """Prepare pairs of adjacent utterances of DailyDialog as parallel text, with one vocabulary.

    Training pairs that also occur in validation or test are removed. The languages are named
    context and en: other commands derive the language of the target from this name.

    Args:
        dest: output folder, with the text in ``raw`` and fairseq's data in ``bin``.
        source: ijcnlp_dailydialog.zip, or a folder with dialogues_{train,validation,test}.txt. By
            default the archive is downloaded.
        workers: number of processes.
        flags: further fields of :class:`.ParallelText`.

    Raises:
        UserError: the source is not the release, or the folder is in use or has other data.
    """
    sides: dict[str, Any] = {"source_lang": "context", "target_lang": "en", "source_moses": "en"}
    text = ParallelText(**_raw(dest), **sides, joined_dictionary=True, **flags)
    _prepare("dailydialog", dest, source, partial(read_dailydialog, workers=workers), text, workers)


def read_dailydialog(folder: Path, release: Release, workers: int) -> Texts:
    """Pairs of adjacent utterances of each split (Section 5 of the KerBS paper).

    Training pairs that are in the validation or test set, ignoring case, are left out.
    """
    files = find_files(folder, {part: f"dialogues_{part}.txt" for part in _PARTS.values()})
    dialogues: dict[str, list[list[str]]] = {}
    for part, path in files.items():  # a line is a dialogue
        lines = (line.split("__eou__")[:-1] for line in iter_lines(path))
        dialogues[part] = [[" ".join(turn.split()) for turn in turns] for turns in lines]
    utterances = list({turn: "" for part in dialogues.values() for turns in part for turn in turns})
    text = dict(zip(utterances, tokens.run_parallel(natural_text, utterances, workers)))
    pairs = {}
    for part, texts in dialogues.items():
        pairs[part] = [(text[a], text[b]) for turns in texts for a, b in zip(turns, turns[1:])]
        release.check_count(f"{part} dialogues", len(texts))
        release.check_count(part, len(pairs[part]))
    held_out = {"\t".join(p).casefold() for part in ("validation", "test") for p in pairs[part]}
    train = [pair for pair in pairs["train"] if "\t".join(pair).casefold() not in held_out]
    removed = len(pairs["train"]) - len(train)
    report(f"  {removed} training pairs removed that also occur in validation or test")
    pairs["train"] = train
    return {
        f"{split}.{language}": [pair[side] for pair in pairs[part]]
        for split, part in _PARTS.items()
        for side, language in enumerate(("context", "en"))
    }


def natural_text(text: str) -> str:
    """Detokenize an utterance of the release by Moses, with apostrophes in their usual places."""
    text = _CLITIC.sub(lambda match: "'" + match[1].replace("Ve", "ve"), text.translate(_ASCII))
    for pattern, replacement in _INSIDE:
        text = pattern.sub(replacement, text)
    return tokens.detokenize(tokens.tokenize(text, language="en"), language="en")


def prepare_lm1b(
    dest: Path,
    source: Path | None = None,
    workers: int = 1,
    *,
    seed: int,
    words: int,
    max_words: int = 80,
    **sizes: int,
) -> None:
    """Prepare random sentences of the One-Billion-Word benchmark for language models.

    The KerBS paper does not say which sentences it uses. Here training sentences are from the
    benchmark's training text, and the others from its held-out text. They are drawn without
    replacement.

    Args:
        dest: output folder, with the text in ``raw`` and fairseq's data in ``bin``.
        source: 1-billion-word-language-modeling-benchmark-r13output.tar.gz, this archive unpacked,
            or a folder of files with train, dev or test in their names. By default the archive is
            downloaded.
        workers: number of processes.
        seed: of the draw.
        words: vocabulary size, the most frequent training words. 0 keeps all.
        max_words: drawn training sentences with more words are dropped, as long pairs of parallel
            text are. Validation and test sentences are not. 0 keeps all.
        sizes: numbers of sentences that are drawn for ``train``, ``valid`` and ``test``, before
            long training sentences are dropped, as the papers' numbers of pairs.

    Raises:
        UserError: the source is not the release, has too few sentences, or the folder is in use or
            has other data.
    """
    read = partial(draw_sentences, sizes=sizes, seed=seed)
    text = LanguageText(words, max_words)
    _prepare("lm1b", dest, source, read, text, workers, sizes=sizes, seed=seed)


def draw_sentences(folder: Path, release: Release, sizes: Mapping[str, int], seed: int) -> Texts:
    """Draw sentences for each split from an unpacked release, or files named by :func:`_pool`.

    The sentences with the lowest random numbers are drawn. These depend on the seed, the file name
    and the line only. Therefore a smaller sample is the beginning of a larger one.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file() and _pool(path))
    released = any(path.parent.name == _TRAINING for path in files)
    texts: Texts = {}
    for pool, splits in (("training", ["train"]), ("held-out", ["valid", "test"])):
        total = 0
        size = sum(sizes[split] for split in splits)
        lowest: list[tuple[float, str, int, str]] = []
        for path in (path for path in files if pool == _pool(path)):
            numbers = Random(f"{seed} {path.name}")
            lines = enumerate(iter_lines(path))
            drawn = [(numbers.random(), path.name, *line) for line in lines if line[1].strip()]
            total += len(drawn)
            lowest = sorted(lowest + drawn)[:size]
        if released:
            release.check_count(pool, total)
        if total < size:
            flags = " and ".join(f"--{split} {sizes[split]}" for split in splits)
            raise UserError(f"{folder} has {total} sentences ({pool}), fewer than {flags} ask for")
        sentences = (" ".join(line.split()) for *_, line in lowest)
        texts.update({split: list(islice(sentences, sizes[split])) for split in splits})
    train = set(texts["train"])
    shared = sum(sentence in train for sentence in texts["valid"] + texts["test"])
    report(f"  {shared} validation and test sentences are also in the training text")
    return texts


def _pool(path: Path) -> str:
    """Kind of text ("training", "held-out" or "") by words in a file's name, or its folder."""
    words = set(re.split(r"[._-]", path.name))
    if words & {"valid", "validation", "dev", "test", "heldout"}:
        return "held-out"
    return "training" if "train" in words or path.parent.name == _TRAINING else ""
