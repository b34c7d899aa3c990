"""``fairseq-kerbs detokenize``, ``score`` and ``examples``: translations as text, their scores."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from fairseq_kerbs.cli.output import write_output
from fairseq_kerbs.cli.parameters import (
    FILE,
    LANGUAGE,
    Command,
    Several,
    Whole,
    examples,
    not_with,
    output_option,
    seed_option,
    unescape_option,
)
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import STDIN, read_lines

if TYPE_CHECKING:
    from sacrebleu.significance import Result

    from fairseq_kerbs.evaluation.bleu import CorpusScore

logger = logging.getLogger(__name__)

source_option = click.option(
    "--source",
    type=FILE,
    metavar="FILE",
    required=True,
    help="source text, raw with one sentence per line, or output of fairseq-generate",
)
system_option = click.option(
    "--system",
    "systems",
    metavar="NAME=FILE",
    required=True,
    multiple=True,
    help="output of a system, raw text or of fairseq-generate. Repeat the flag for every system",
)
generated_language_option = click.option(
    "--lang",
    type=LANGUAGE,
    metavar="LANG",
    default="en",
    help="language of fairseq-generate's output",
)
source_language_option = click.option(
    "--source-lang",
    type=LANGUAGE,
    metavar="LANG",
    help="language of fairseq-generate's source [--lang]",
)
fill_missing_option = click.option(
    "--fill-missing",
    is_flag=True,
    help="read sentences that fairseq-generate left out as empty lines",
)


def read_answers(
    source: Path,
    systems: Sequence[str],
    lang: str,
    source_lang: str | None,
    *,
    unescape: bool,
    fill: bool,
) -> tuple[list[str], dict[str, list[str]]]:
    """Read sources, and each system's answers by name, from NAME=FILE.

    With ``fill``, answers that fairseq-generate left out are empty. A warning is logged if S- lines
    of a system are other sentences than the source.
    """
    from fairseq_kerbs.data.generated import read_generated
    from fairseq_kerbs.evaluation.texts import is_other_text, read_texts

    paths: dict[str, Path] = {}
    for system in systems:
        name, _, path = system.partition("=")
        if not (name and path):
            raise UserError(f"--system {system}: write NAME=FILE")
        if name in paths:
            raise UserError(f"--system {name} is there twice; names must differ")
        paths[name] = Path(path)
    sources = read_texts(source, "S", source_lang or lang, unescape, fill=fill)
    answers = {
        name: read_texts(path, "H", lang, unescape, sentences=len(sources), fill=fill)
        for name, path in paths.items()
    }
    for file in filter(Path.is_file, paths.values()):  # a pipe cannot be read again
        output = read_generated(read_lines(file), str(file))
        if output is not None and is_other_text(output.sources, sources):
            logger.warning(
                f"{file} has other source sentences (S- lines) than --source {source}: give the "
                "source that was translated"
            )
    return sources, answers


@click.command(
    "detokenize",
    cls=Command,
    epilog=examples("detokenize --lang en runs/toy/generate-test.txt --output translated.en"),
)
@click.argument("path", type=FILE, metavar="[INPUT]", default="-")
@click.option("--lang", type=LANGUAGE, metavar="LANG", required=True, help="language of the text")
@unescape_option
@fill_missing_option
@click.option(
    "--sentences",
    type=Whole(min=1),
    metavar="N",
    help="number of sentences that there should be [that of fairseq-generate's log]",
)
@output_option
def detokenize(
    path: Path,
    lang: str,
    unescape: bool,
    fill_missing: bool,
    sentences: int | None,
    output: Path | None,
) -> None:
    """Raw text of fairseq-generate's output.

    Join subwords and undo Moses tokenization: of fairseq-generate's output (best hypotheses, in the
    order of the corpus) or of tokenized text. Line N is sentence N. Without INPUT, standard input
    is read.
    """
    from fairseq_kerbs.evaluation.texts import detokenize_lines

    name = STDIN if str(path) == "-" else str(path)
    texts = detokenize_lines(
        read_lines(name),
        language=lang,
        name=name,
        unescape=unescape,
        sentences=sentences,
        fill=fill_missing,
    )
    if sentences is not None and len(texts) != sentences:
        raise UserError(
            f"{name} has {len(texts)} sentences, not {sentences} as --sentences says; name another "
            "file, or give the number of lines of the source text"
        )
    write_output(output, "".join(text + "\n" for text in texts))


@click.command(
    "score",
    cls=Command,
    epilog=examples(
        "score --hypotheses runs/toy/generate-test.txt --reference test.en",
        "score --hypotheses softmax.txt kerbs.txt --reference test.en",
    ),
)
@click.option(
    "--hypotheses",
    type=Several(FILE),
    metavar="FILE...",
    required=True,
    help="translations of one or several systems. The first is the baseline",
)
@click.option(
    "--reference",
    type=Several(FILE),
    metavar="FILE...",
    required=True,
    help="reference translations, raw text",
)
@click.option(
    "--lang",
    type=LANGUAGE,
    metavar="LANG",
    help="language of the texts [the suffix of the first reference, as of test.de, or else en]",
)
@click.option(
    "--lowercase",
    is_flag=True,
    callback=not_with("--both-cases"),
    help="ignore case. TER always does",
)
@click.option(
    "--both-cases",
    is_flag=True,
    callback=not_with("--lowercase"),
    help="print cased and lowercased scores",
)
@click.option(
    "--max-ngram-order",
    type=Whole(min=1),
    metavar="N",
    default=4,
    help="maximum n-gram order of BLEU. 1 is BLEU-1",
)
@click.option(
    "--tokenize", metavar="NAME", help="tokenizer of sacreBLEU [by language, usually 13a]"
)
@click.option("--unescape", is_flag=True, help="undo XML entities in hypotheses")
@fill_missing_option
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json"]),
    default="text",
    help="output format",
)
def score(
    hypotheses: tuple[Path, ...],
    reference: tuple[Path, ...],
    lang: str | None,
    lowercase: bool,
    both_cases: bool,
    max_ngram_order: int,
    tokenize: str | None,
    unescape: bool,
    fill_missing: bool,
    form: str,
) -> None:
    """Detokenized BLEU, chrF and TER with their signatures.

    BLEU, chrF and TER by sacreBLEU of fairseq-generate's output (or tokenized text), detokenized,
    against raw references. A text is raw, and scored as it is, if it has no subwords, and most full
    stops and commas have no space before them, or have one in a reference, too. Several systems are
    compared with the first by a paired bootstrap test (1,000 samples, seed 12345). BLEU's signature
    does not tell the order of n-grams: another order than 4 is printed beside it.
    """
    from fairseq_kerbs.data.languages import language_of
    from fairseq_kerbs.evaluation import bleu

    lang = lang or language_of(reference[0]) or "en"
    systems, references = bleu.read_systems(
        hypotheses, reference, language=lang, unescape=unescape, fill=fill_missing
    )
    for name, lines in systems.items():
        if not any(line.strip() for line in lines):
            raise UserError(f"{name} has no text to score; give the translations of a system")
    cases = [lowercase]
    if both_cases:
        cases = [False, True]
    cased = (systems, references)
    for ignored in cases:
        systems, references = cased
        if ignored:
            systems, references = bleu.lowercased(systems, references, lang)
        metrics = bleu.all_metrics(
            max_ngram_order, language=lang, lowercase=ignored, tokenize=tokenize
        )
        if len(systems) > 1:
            compared = bleu.paired_bootstrap(list(systems.values()), references, metrics)
            _print_comparison(form, list(systems), *compared)
            continue
        (texts,) = systems.values()
        scores = bleu.corpus_scores(texts, references, metrics)
        if form == "text":
            print(*(score.details for score in scores), sep="\n")
            continue
        print(_scores_as_json(scores, max_ngram_order))


def _scores_as_json(scores: Sequence[CorpusScore], max_ngram_order: int) -> str:
    """One line of JSON with BLEU, chrF and TER of a system, and what belongs to BLEU."""
    bleu, chrf, ter = scores
    of_bleu = asdict(bleu)
    del of_bleu["score"]
    shown = {
        "bleu": bleu.score,
        **of_bleu,
        "max_ngram_order": max_ngram_order,
        "chrf": chrf.score,
        "chrf_signature": chrf.signature,
        "ter": ter.score,
        "ter_signature": ter.signature,
    }
    return json.dumps(shown)


def _print_comparison(
    form: str, names: list[str], signatures: dict[str, str], results: dict[str, list[Result]]
) -> None:
    """sacreBLEU's table of systems with what its p-values mean, or one line of JSON."""
    from sacrebleu.utils import Color, print_results_table

    from fairseq_kerbs.evaluation.bleu import SAMPLES

    if form == "json":
        rows: list[dict[str, Any]] = [{"system": name} for name in names]
        for metric, of_systems in results.items():
            for row, result in zip(rows, of_systems):
                row[metric] = vars(result)
        print(json.dumps({"signatures": signatures, "systems": rows}, default=float))
        return
    Color.ENABLE_COLORS = sys.stdout.isatty()
    options = argparse.Namespace(format=form, width=2, paired_bs=True, paired_bs_n=SAMPLES)
    table = {"System": [f"Baseline: {names[0]}", *names[1:]], **results}
    print_results_table(table, signatures, options)


@click.command(
    "examples",
    cls=Command,
    epilog=examples(
        "examples --source test.de --system softmax=a.txt --system kerbs=b.txt",
    ),
)
@source_option
@system_option
@generated_language_option
@source_language_option
@click.option("--unescape", is_flag=True, help="undo XML entities in fairseq-generate's output")
@fill_missing_option
@click.option("--reference", type=FILE, metavar="FILE", help="reference translations")
@click.option(
    "--choose",
    type=click.Choice(["differing", "best"]),
    default="differing",
    help="choose random lines among those with the most different outputs, or the lines with the "
    "largest gain in chrF of the last system over the baseline",
)
@click.option("--number", type=Whole(min=1), metavar="N", default=5, help="number of lines")
@seed_option()
@click.option("--baseline", metavar="NAME", help="baseline of '--choose best' [the first system]")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "markdown"]),
    default="text",
    help="output format",
)
@output_option
def show_examples(
    source: Path,
    systems: tuple[str, ...],
    lang: str,
    source_lang: str | None,
    unescape: bool,
    fill_missing: bool,
    reference: Path | None,
    choose: Literal["differing", "best"],
    number: int,
    seed: int,
    baseline: str | None,
    form: str,
    output: Path | None,
) -> None:
    """Answers of several systems side by side.

    Choose lines of a test set by a rule and print source, reference and every system's answer, as
    in Tables 3 and 4 of the paper.
    """
    if baseline is not None and choose != "best":
        raise UserError("--baseline is for --choose best; give that, or leave it out")
    from fairseq_kerbs.evaluation.examples import as_markdown, as_text, rule_text, side_by_side
    from fairseq_kerbs.evaluation.texts import read_texts

    sources, answers = read_answers(
        source, systems, lang, source_lang, unescape=unescape, fill=fill_missing
    )
    references = None
    if reference is not None:
        references = read_texts(reference, "T", lang, unescape, sentences=len(sources))
    chosen = side_by_side(sources, references, answers, choose, number, seed, baseline)
    rule = rule_text(chosen, len(sources), choose, seed)
    write = as_markdown if form == "markdown" else as_text
    write_output(output, f"{rule}\n\n{write(chosen)}")
