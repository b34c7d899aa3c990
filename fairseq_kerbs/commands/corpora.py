"""``fairseq-kerbs toy``, ``prepare``, ``prepare-lm`` and the released corpora: making data; and
``gold-…``: files of gold senses, which ``senses --gold`` compares with."""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path

from fairseq_kerbs.commands import arg, command, say_written, write_output
from fairseq_kerbs.data import prepare, released
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.processes import usable_cores

LOWERCASE = arg.switch("--lowercase", "lower-case all text")
LONGEST = arg.number("--max-words", 80, "drop training pairs with more words on a side", 1)
JOINED = arg.switch("--joined-dictionary", "one dictionary for both languages")
ARCHIVE = "archive of the release, or a folder of text [download]"
SOURCE = arg.file("source", ARCHIVE, "SOURCE", nargs="?")
SPLITS = ("train", "valid", "test")


def _merges(default: int) -> arg.Part:
    return arg.number("--merges", default, "number of joint BPE merges", 1)


def _words(default: int) -> arg.Part:
    return arg.number(
        "--words", default, "vocabulary size, the most frequent training words. 0 keeps all"
    )


def _max_words(default: int, example: str = "") -> arg.Part:
    """``--max-words`` of text for language models."""
    text = f"drop training lines with more words{example}. 0 keeps all"
    return arg.number("--max-words", default, text)


def _pairs(what: str, *numbers: int) -> list[arg.Part]:
    return [arg.number(f"--{split}", number, what, 1) for split, number in zip(SPLITS, numbers)]


def _several(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


@command(
    "toy",
    arg.file("folder", "output folder", None),
    *_pairs("number of sentence pairs", 20000, 500, 500),
    arg.number("--seed", 1, "random seed"),
)
def toy(args: argparse.Namespace) -> None:
    """write the synthetic corpus with gold senses

    Write a synthetic parallel corpus with ambiguous English words: {train,valid,test}.{de,en}, and
    their gold senses {train,valid,test}.senses.tsv (line, occurrence, word, German lemma).
    """
    from fairseq_kerbs.data.toy import write_toy_corpus

    write_toy_corpus(args.folder, args.train, args.valid, args.test, args.seed)
    say_written(args.folder, f"train {args.train}, valid {args.valid}, test {args.test} pairs")


def _preparation(name: str, prepare: Callable[..., None], *parts: arg.Part) -> arg.Part:
    """A command that calls a function with its flags; the function's docstring is the help."""
    parts = (
        arg.file("--dest", "output folder", "DIR", required=True),
        arg.number("--workers", usable_cores(), "number of processes", 1),
        *parts,
    )

    def run(args: argparse.Namespace) -> None:
        ours = ("run", "passes_on", "error", "extra")
        prepare(**{name: value for name, value in vars(args).items() if name not in ours})

    text, description = (inspect.getdoc(prepare) or "").split("\n\n")[:2]
    run.__doc__ = f"{text}\n\n{description} Finished steps are not repeated."
    return command(name, *parts)(run)


PREPARATIONS = (
    _preparation(
        "prepare",
        prepare.prepare_parallel,
        arg.value("--train", "training text", "PREFIX", required=True),
        arg.value("--valid", "validation text", "PREFIX", required=True),
        arg.value("--test", "test text", "PREFIX[,PREFIX...]", type=_several, required=True),
        arg.value("--source-lang", "source language and file suffix", "LANG", required=True),
        arg.value("--target-lang", "target language and file suffix", "LANG", required=True),
        arg.value("--source-moses", "Moses rules, source [--source-lang]", "LANG", default=""),
        arg.value("--target-moses", "Moses rules, target [--target-lang]", "LANG", default=""),
        LOWERCASE,
        arg.switch("--escape", "write special characters as XML entities"),
        LONGEST,
        arg.choice(
            "--bpe",
            "learn BPE on both languages together, on each, or not at all",
            "joint",
            "separate",
            "none",
        ),
        arg.number("--merges", 10000, "number of BPE merges", 1),
        arg.number(
            "--vocabulary-threshold",
            0,
            "for joint BPE: minimum frequency of a subword in a language. 0 turns it off",
        ),
        JOINED,
    ),
    _preparation(
        "prepare-lm",
        prepare.prepare_language,
        arg.file("folder", "folder with the text", None, nargs="?"),
        arg.file("--train", "training text"),
        arg.file("--valid", "validation text"),
        arg.file("--test", "test text"),
        _words(0),
        _max_words(
            0,
            ", such as 80 for one sentence per line, as in the KerBS paper. Running "
            "text, with a paragraph per line, needs 0",
        ),
    ),
    _preparation(
        "prepare-iwslt16",
        released.prepare_iwslt16,
        SOURCE,
        arg.value("--valid", "validation set [%(default)s]", "SET", default="tst2013"),
        arg.value(
            "--test", "test sets [tst2014]", "SET[,SET...]", default=("tst2014",), type=_several
        ),
        _merges(10000),
        LONGEST,
        JOINED,
    ),
    _preparation(
        "prepare-dailydialog",
        released.prepare_dailydialog,
        SOURCE,
        LOWERCASE,
        _merges(5000),
        LONGEST,
    ),
    _preparation(
        "prepare-lm1b",
        released.prepare_lm1b,
        SOURCE,
        *_pairs("number of sentences", 300_000, 10_000, 30_000),
        arg.number("--seed", 1, "random seed"),
        _words(20_000),
        _max_words(80),
    ),
    _preparation("prepare-multi30k", released.prepare_multi30k, SOURCE, _merges(3000)),
    _preparation("prepare-wikitext2", released.prepare_wikitext2, SOURCE, _words(10_000)),
)


# --- gold senses ----------------------------------------------------------------------------------

TEXT = "tokenized text of the split, such as clean/train.en or tok/test.en of 'prepare'"
LABELLED = "file with source, tokens and labels POSITION:SENSE per line, separated by tabs"
SENTENCES = arg.file("--text", "output file of sentences", "TEXT", required=True)


def _gold_file(least_count: int = 1, least_share: float = 0.0) -> tuple[arg.Part, ...]:
    text = "minimum share of a sense in these occurrences"
    return (
        arg.number("--least-count", least_count, "minimum labelled occurrences of a word"),
        arg.number("--least-share", least_share, text, metavar="F"),
        arg.output("output file", "GOLD.tsv", required=True),
    )


def _stemmer(flag: str) -> arg.Part:
    text = f"Snowball stemmer for {flag}, such as czech, or none [by the suffix]"
    return arg.value("--stemmer", text, "LANGUAGE")


def _stemmer_of(args: argparse.Namespace, flag: str, path: Path) -> str:
    """Name of the stemmer of a text with a suffix such as .de or .de.gz."""
    from fairseq_kerbs.data.gold import STEMMERS

    suffix = Path(path.name.removesuffix(".gz")).suffix.removeprefix(".")
    if (stemmer := args.stemmer or STEMMERS.get(suffix)) is None:
        raise UserError(f"{flag}: there is no stemmer for .{suffix}; give --stemmer, or none")
    return str(stemmer)


@command(
    "gold-mlt",
    arg.file("list", "list of MLT, such as ende_test2016.txt", "LIST"),
    arg.file("--text", TEXT, required=True),
    arg.file("--source", "its tokenized source, such as tok/test.de", required=True),
    _stemmer("--source"),
    *_gold_file(),
)
def mlt(args: argparse.Namespace) -> None:
    """gold senses of English words by the translations in a list of MLT

    The sense of an English word is the one of its translations in a list of Multimodal Lexical
    Translation whose stem is found in the source sentence.
    """
    from fairseq_kerbs.data.gold import gold_of_mlt

    stemmer = _stemmer_of(args, "--source", args.source)
    _write_gold(args, (), gold_of_mlt(args.list, args.text, args.source, stemmer))


@command(
    "gold-translations",
    arg.file("--text", TEXT, required=True),
    arg.file("--other", "the same lines in another language", required=True),
    _stemmer("--other"),
    arg.file("--more-text", "further lines for the alignment alone, such as the training text"),
    arg.file("--more-other", "the same lines in the language of --other"),
    arg.switch(
        "--function-words",
        "also label English function words, whose translations differ by grammar",
    ),
    *_gold_file(least_count=60, least_share=0.1),
)
def translations(args: argparse.Namespace) -> None:
    """gold senses of words by the words of another language aligned with them

    The gold sense of a word is the word, or its stem, that IBM Model 1 aligns with it in another
    language. Use a language that the model was not trained on.
    """
    from fairseq_kerbs.analysis.alignment import align
    from fairseq_kerbs.analysis.names import is_function_word
    from fairseq_kerbs.data.gold import gold_of_translations, parallel_words

    stemmer = _stemmer_of(args, "--other", args.other)
    if (args.more_text is None) != (args.more_other is None):
        raise UserError("--more-text and --more-other go together")
    lines, others = parallel_words(args.text, args.other, stemmer)
    for name, path, text in (("--text", args.text, lines), ("--other", args.other, others)):
        if not any(text):
            raise UserError(f"{name}: {path} has no words; give the tokenized text of a split")
    more: tuple[list[list[str]], list[list[str]]] = [], []
    if args.more_text:
        more = parallel_words(args.more_text, args.more_other, stemmer)
    text = [[word.lower() for word in words] for words in [*lines, *more[0]]]
    rows = gold_of_translations(lines, others, align(text, [*others, *more[1]]).tolist())
    _write_gold(args, (), [r for r in rows if args.function_words or not is_function_word(r[2])])


@command(
    "gold-coarsewsd",
    arg.file("folder", "folder of CoarseWSD-20, with a folder per word", "FOLDER"),
    arg.choice("--part", "part of the data", "train", "test"),
    SENTENCES,
    *_gold_file(),
)
def coarsewsd(args: argparse.Namespace) -> None:
    """gold senses and text of CoarseWSD-20, for language models

    Writes the sentences to TEXT, the senses of words to GOLD.tsv. Binarize TEXT with the dictionary
    of the language model: fairseq-preprocess --only-source --srcdict DATA/dict.txt --testpref TEXT
    --destdir BIN. Then: senses CHECKPOINT --data BIN --gold GOLD.tsv --train-data DATA.
    """
    from fairseq_kerbs.data.gold import gold_of_coarsewsd

    _write_gold(args, *gold_of_coarsewsd(args.folder, args.part))


@command("gold-noad", arg.file("list", LABELLED, "LIST"), SENTENCES, *_gold_file())
def noad(args: argparse.Namespace) -> None:
    """gold senses and text of words labelled by NOAD, for language models

    Writes the sentences to TEXT, the senses of words to GOLD.tsv, to be used as those of
    gold-coarsewsd.
    """
    from fairseq_kerbs.data.gold import gold_of_noad

    _write_gold(args, *gold_of_noad(args.list))


def _write_gold(
    args: argparse.Namespace, sentences: Sequence[str], rows: Sequence[tuple[int, int, str, str]]
) -> None:
    """Write the gold senses of words that have several, and the sentences if they are new."""
    from fairseq_kerbs.data.gold import gold_text, with_several_senses

    rows = with_several_senses(rows, args.least_count, args.least_share)
    if not rows:
        raise UserError(
            f"no word has two senses of --least-share {args.least_share:g} among --least-count "
            f"{args.least_count} labels; lower these, or see that the files belong together"
        )
    if sentences:
        text = "".join(f"{sentence}\n" for sentence in sentences)
        write_output(args.text, text, f"{len(sentences)} sentences")
    words = len({word for _, _, word, _ in rows})
    write_output(args.output, gold_text(rows), f"senses of {words} words, {len(rows)} occurrences")


GOLD = (mlt, translations, coarsewsd, noad)
