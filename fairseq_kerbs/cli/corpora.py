"""``fairseq-kerbs toy`` and ``prepare…``: write text and binarized data."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from fairseq_kerbs.cli.output import say_written
from fairseq_kerbs.cli.parameters import FILE, LANGUAGE, Command, Whole, examples, seed_option
from fairseq_kerbs.utils.processes import usable_cores


class SeparatedByCommas(click.ParamType):
    """Values such as ``tst2013,tst2014``."""

    name = "values"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """Convert a text at its commas."""
        return value if isinstance(value, tuple) else tuple(value.split(","))


dest_option = click.option(
    "--dest",
    type=FILE,
    metavar="DIR",
    required=True,
    help="output folder. Data in it that were prepared with other settings are never replaced",
)
workers_option = click.option(
    "--workers",
    type=Whole(min=1),
    metavar="N",
    default=usable_cores(),
    help="number of processes",
)
source_argument = click.argument("source", type=FILE, required=False)
lowercase_option = click.option("--lowercase", is_flag=True, help="lower-case all text")
longest_option = click.option(
    "--max-words",
    type=Whole(min=1),
    metavar="N",
    default=80,
    help="drop training pairs with more words on a side",
)
joined_option = click.option(
    "--joined-dictionary", is_flag=True, help="one dictionary for both languages"
)


def number_option(flag: str, default: int, text: str, least: int = 1) -> Callable[[Any], Any]:
    """Flag with a whole number, whose default differs between the corpora."""
    number = Whole(min=least)
    return click.option(flag, type=number, metavar="N", default=default, help=text)


def merges_option(default: int) -> Callable[[Any], Any]:
    """``--merges`` of both languages together."""
    return number_option("--merges", default, "number of joint BPE merges")


def words_option(default: int) -> Callable[[Any], Any]:
    """``--words`` of a language model."""
    text = "vocabulary size, the most frequent training words. 0 keeps all"
    return number_option("--words", default, text, least=0)


def line_option(default: int, example: str = "") -> Callable[[Any], Any]:
    """``--max-words`` of text for language models."""
    text = f"drop training lines with more words{example}. 0 keeps all"
    return number_option("--max-words", default, text, least=0)


@click.command("toy", cls=Command, epilog=examples("toy text --train 3000"))
@click.argument("folder", type=FILE)
@number_option("--train", 20_000, "number of sentence pairs")
@number_option("--valid", 500, "number of sentence pairs")
@number_option("--test", 500, "number of sentence pairs")
@seed_option()
def toy(folder: Path, train: int, valid: int, test: int, seed: int) -> None:
    """Write the synthetic corpus with gold senses.

    Write a synthetic parallel corpus with ambiguous English words: {train,valid,test}.{de,en}, and
    their gold senses {train,valid,test}.senses.tsv (line, occurrence, word, German lemma).
    """
    from fairseq_kerbs.data.toy import write_toy_corpus

    write_toy_corpus(folder, train, valid, test, seed)
    say_written(folder, f"train {train}, valid {valid}, test {test} pairs")


@click.command(
    "prepare",
    cls=Command,
    epilog=examples(
        "prepare --train train --valid valid --test test --source-lang de --target-lang en "
        "--dest data"
    ),
)
@dest_option
@workers_option
@click.option("--train", metavar="PREFIX", required=True, help="training text")
@click.option("--valid", metavar="PREFIX", required=True, help="validation text")
@click.option(
    "--test",
    type=SeparatedByCommas(),
    metavar="PREFIX[,PREFIX...]",
    required=True,
    help="test text",
)
@click.option(
    "--source-lang", metavar="LANG", required=True, help="source language and file suffix"
)
@click.option(
    "--target-lang", metavar="LANG", required=True, help="target language and file suffix"
)
@click.option(
    "--source-moses",
    type=LANGUAGE,
    metavar="LANG",
    help="Moses rules, source [--source-lang]",
)
@click.option(
    "--target-moses",
    type=LANGUAGE,
    metavar="LANG",
    help="Moses rules, target [--target-lang]",
)
@lowercase_option
@click.option("--escape", is_flag=True, help="write special characters as XML entities")
@longest_option
@click.option(
    "--bpe",
    type=click.Choice(["joint", "separate", "none"]),
    default="joint",
    help="learn BPE on both languages together, on each, or not at all",
)
@number_option("--merges", 10_000, "number of BPE merges")
@click.option(
    "--vocabulary-threshold",
    type=Whole(min=0),
    metavar="N",
    default=0,
    help="minimum frequency of a subword in its language; rarer ones are split further. 0 turns it "
    "off",
)
@joined_option
def prepare(**flags: Any) -> None:
    """Raw parallel text to fairseq data.

    Tokenizes text (Moses), drops long training pairs, learns and applies BPE, and binarizes into
    DEST/bin. PREFIX means files such as PREFIX.de and PREFIX.en. Finished steps are not repeated.
    """
    from fairseq_kerbs.data.prepare import prepare_parallel

    for name in ("source_moses", "target_moses"):
        flags[name] = flags[name] or ""
    prepare_parallel(**flags)


@click.command(
    "prepare-lm",
    cls=Command,
    epilog=examples(
        "prepare-lm wikitext-2 --words 10000 --dest data/wt2",
        "prepare-lm sentences --words 20000 --max-words 80 --dest data/lm",
    ),
)
@dest_option
@workers_option
@click.argument("folder", type=FILE, required=False)
@click.option("--train", type=FILE, metavar="FILE", help="training text")
@click.option("--valid", type=FILE, metavar="FILE", help="validation text")
@click.option("--test", type=FILE, metavar="FILE", help="test text")
@words_option(0)
@line_option(
    0,
    ", such as 80 for one sentence per line, as in the KerBS paper. Running text, with a paragraph "
    "per line, needs 0",
)
def prepare_lm(**flags: Any) -> None:
    """Tokenized text to fairseq data for language models.

    Binarizes tokenized text into DEST/bin, with one sentence or paragraph per line and words
    separated by spaces. Drops empty lines and, with --max-words, long training lines. Keeps the
    most frequent words. The text is three files, or a FOLDER with files that have train, valid (or
    dev) and test in their names. Finished steps are not repeated.
    """
    from fairseq_kerbs.data.prepare import prepare_language

    prepare_language(**flags)


@click.command(
    "prepare-iwslt16",
    cls=Command,
    epilog=examples("prepare-iwslt16 2016-01.tgz --dest data/iwslt16"),
)
@dest_option
@workers_option
@source_argument
@click.option("--valid", metavar="SET", default="tst2013", help="validation set")
@click.option(
    "--test",
    type=SeparatedByCommas(),
    metavar="SET[,SET...]",
    default="tst2014",
    help="test sets",
)
@merges_option(10_000)
@longest_option
@joined_option
def prepare_iwslt16(**flags: Any) -> None:
    """IWSLT'16 De-En of the WIT3 release to fairseq data.

    Prepares German-English IWSLT'16 (WIT3 release 2016-01) like 'prepare'. SOURCE is 2016-01.tgz,
    its de-en.tgz, that archive unpacked, or a folder of plain text with files such as train*.de and
    IWSLT16.TED.SET.de-en.de. Without SOURCE the release is downloaded. Checksum and numbers of
    lines of the release are verified. Writes text to DEST/raw and data to DEST/bin. Finished steps
    are not repeated.
    """
    from fairseq_kerbs.data import corpora

    corpora.prepare_iwslt16(**flags)


@click.command(
    "prepare-dailydialog",
    cls=Command,
    epilog=examples("prepare-dailydialog ijcnlp_dailydialog.zip --dest data/dd"),
)
@dest_option
@workers_option
@source_argument
@lowercase_option
@merges_option(5000)
@longest_option
def prepare_dailydialog(**flags: Any) -> None:
    """DailyDialog to fairseq data.

    Prepares pairs of adjacent utterances of DailyDialog like 'prepare', with one vocabulary.
    Training pairs that also occur in validation or test are removed. SOURCE is
    ijcnlp_dailydialog.zip or a folder with dialogues_{train,validation,test}.txt. Without SOURCE
    the archive is downloaded. The languages are named context and en. Writes text to DEST/raw and
    data to DEST/bin. Finished steps are not repeated.
    """
    from fairseq_kerbs.data import corpora

    corpora.prepare_dailydialog(**flags)


@click.command(
    "prepare-lm1b", cls=Command, epilog=examples("prepare-lm1b --dest data/lm1b --train 300000")
)
@dest_option
@workers_option
@source_argument
@number_option("--train", 300_000, "number of sentences")
@number_option("--valid", 10_000, "number of sentences")
@number_option("--test", 30_000, "number of sentences")
@seed_option()
@words_option(20_000)
@line_option(80)
def prepare_lm1b(**flags: Any) -> None:
    """Sentences of the One-Billion-Word benchmark to fairseq data.

    Draws sentences of the One-Billion-Word benchmark without replacement, and prepares them like
    'prepare-lm'. Drawn training sentences of more than --max-words words are dropped, as 'prepare'
    drops long pairs; validation and test sentences are not. SOURCE is
    1-billion-word-language-modeling-benchmark-r13output.tar.gz, this archive unpacked, or a folder
    of files with train, dev or test in their names. Without SOURCE the archive is downloaded.
    Writes text to DEST/raw and data to DEST/bin. Finished steps are not repeated.
    """
    from fairseq_kerbs.data import corpora

    corpora.prepare_lm1b(**flags)


@click.command(
    "prepare-multi30k", cls=Command, epilog=examples("prepare-multi30k --dest data/m30k")
)
@dest_option
@workers_option
@source_argument
@merges_option(3000)
def prepare_multi30k(**flags: Any) -> None:
    """Multi30k De-En to fairseq data.

    Prepares German-English Multi30k, task 1, test set 2016 (Flickr), like 'prepare'. SOURCE is a
    folder with train, val and test_2016_flickr (.de, .en, optionally .gz), such as a checkout of
    github.com/multi30k/dataset. Without SOURCE the files are downloaded. Writes text to DEST/raw
    and data to DEST/bin. Finished steps are not repeated.
    """
    from fairseq_kerbs.data import corpora

    corpora.prepare_multi30k(**flags)


@click.command(
    "prepare-wikitext2", cls=Command, epilog=examples("prepare-wikitext2 --dest data/wt2")
)
@dest_option
@workers_option
@source_argument
@words_option(10_000)
def prepare_wikitext2(**flags: Any) -> None:
    """WikiText-2 to fairseq data.

    Prepares WikiText-2 (word level) like 'prepare-lm'. SOURCE is wikitext-2-v1.zip or a folder with
    wiki.{train,valid,test}.tokens. Without SOURCE the archive is downloaded. Writes text to
    DEST/raw and data to DEST/bin. A line is a paragraph of running text, so lines of any length are
    kept. Finished steps are not repeated.
    """
    from fairseq_kerbs.data import corpora

    corpora.prepare_wikitext2(**flags)
