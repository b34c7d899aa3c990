"""``fairseq-kerbs gold-translations``: gold senses that ``senses --gold`` compares with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairseq_kerbs.cli.output import write_output
from fairseq_kerbs.cli.parameters import FILE, OUTPUT, Command, Number, Whole, examples
from fairseq_kerbs.utils.errors import UserError

if TYPE_CHECKING:
    from fairseq_kerbs.data.gold import GoldRow

TEXT = "tokenized text of the split, such as clean/train.en or tok/test.en of 'prepare'"

text_option = click.option("--text", type=FILE, metavar="FILE", required=True, help=TEXT)
gold_option = click.option(
    "-o", "--output", type=OUTPUT, metavar="GOLD.tsv", required=True, help="output file"
)


def stemmer_option(flag: str) -> Callable[[Any], Any]:
    """``--stemmer`` for the text that another flag names."""
    text = f"Snowball stemmer for {flag}, such as czech, or none [by the suffix]"
    return click.option("--stemmer", metavar="LANGUAGE", help=text)


def least_count_option(default: int) -> Callable[[Any], Any]:
    """``--least-count``, below which a word is left out."""
    return click.option(
        "--least-count",
        type=Whole(min=0),
        metavar="N",
        default=default,
        help="minimum labelled occurrences of a word",
    )


def least_share_option(default: float) -> Callable[[Any], Any]:
    """``--least-share``, below which a sense is left out."""
    return click.option(
        "--least-share",
        type=Number(min=0, max=1),
        metavar="F",
        default=default,
        help="minimum share of a sense in these occurrences",
    )


@click.command(
    "gold-translations",
    cls=Command,
    epilog=examples(
        "gold-translations --text clean/train.en --other train.cs --stemmer czech -o gold.tsv"
    ),
)
@text_option
@click.option(
    "--other",
    type=FILE,
    metavar="FILE",
    required=True,
    help="the same lines in another language",
)
@stemmer_option("--other")
@click.option(
    "--more-text",
    type=FILE,
    metavar="FILE",
    help="further lines for the alignment alone, such as the training text",
)
@click.option(
    "--more-other",
    type=FILE,
    metavar="FILE",
    help="the same lines in the language of --other",
)
@click.option(
    "--function-words",
    is_flag=True,
    help="also label function words, whose translations differ by grammar: those of a list in "
    "English, in other languages frequent words with diverse neighbours",
)
@click.option(
    "--all-words",
    is_flag=True,
    help="also keep words with one sense, to judge the number of senses",
)
@click.option(
    "--merge-forms",
    is_flag=True,
    help="count translations of a word that begin alike as one sense, which they mostly are",
)
@least_count_option(60)
@least_share_option(0.1)
@gold_option
def gold_translations(
    text: Path,
    other: Path,
    stemmer: str | None,
    more_text: Path | None,
    more_other: Path | None,
    function_words: bool,
    all_words: bool,
    merge_forms: bool,
    least_count: int,
    least_share: float,
    output: Path,
) -> None:
    """Gold senses of words by the words of another language aligned with them.

    The gold sense of a word is the word, or its stem, that IBM Model 1 aligns with it in another
    language. Use a language that the model was not trained on.
    """
    from fairseq_kerbs.analysis.alignment import align
    from fairseq_kerbs.analysis.function_words import FunctionWords
    from fairseq_kerbs.data.gold import (
        frequent_senses,
        gold_of_translations,
        parallel_words,
        with_merged_forms,
    )
    from fairseq_kerbs.data.languages import language_of
    from fairseq_kerbs.data.tokens import lower

    stemmer = stemmer_of(stemmer, "--other", other)
    if (more_text is None) != (more_other is None):
        raise UserError("--more-text and --more-other go together")
    lines, others = parallel_words(text, other, stemmer)
    for flag, path, words in (("--text", text, lines), ("--other", other, others)):
        if not any(words):
            raise UserError(f"{flag}: {path} has no words; give the tokenized text of a split")
    more_lines: list[list[str]] = []
    more_others: list[list[str]] = []
    if more_text is not None and more_other is not None:
        more_lines, more_others = parallel_words(more_text, more_other, stemmer)
    language = language_of(text)
    lowered = [[lower(word, language) for word in line] for line in [*lines, *more_lines]]
    alignment = align(lowered, [*others, *more_others]).tolist()
    rows = gold_of_translations(lines, others, alignment)
    if not function_words:
        excluded = FunctionWords([*lines, *more_lines], language)
        rows = [row for row in rows if row[2] not in excluded]
    if merge_forms:
        rows = with_merged_forms(rows)
    if not all_words:
        write_senses(output, several(rows, least_count, least_share))
        return
    kept = frequent_senses(rows, least_count, least_share)
    if not kept:
        raise UserError(
            f"no word has --least-count {least_count} labels of senses of --least-share "
            f"{least_share:g}; lower these, or see that the files belong together"
        )
    write_senses(output, kept)


def stemmer_of(stemmer: str | None, flag: str, path: Path) -> str:
    """Name of the stemmer of a text, by its suffix such as .de or .de.gz if none is given."""
    from fairseq_kerbs.data.gold import STEMMERS
    from fairseq_kerbs.data.languages import language_of

    found = stemmer or STEMMERS.get(language_of(path))
    if found is None:
        raise UserError(f"{flag}: there is no stemmer for {path.name}; give --stemmer, or none")
    return found


def several(rows: Sequence[GoldRow], least_count: int, least_share: float) -> list[GoldRow]:
    """Rows of the words that have several senses. A UserError is raised if there are none."""
    from fairseq_kerbs.data.gold import with_several_senses

    kept = with_several_senses(rows, least_count, least_share)
    if not kept:
        raise UserError(
            f"no word has two senses of --least-share {least_share:g} among --least-count "
            f"{least_count} labels; lower these, or see that the files belong together"
        )
    return kept


def write_senses(path: Path, rows: Sequence[GoldRow]) -> None:
    """Write the gold senses."""
    from fairseq_kerbs.data.gold import gold_text

    words = len({word for _, _, word, _ in rows})
    write_output(path, gold_text(rows), f"senses of {words} words, {len(rows)} occurrences")
