"""Detokenized BLEU, chrF and TER by sacreBLEU, with signatures."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sacrebleu.metrics.base import Metric
from sacrebleu.metrics.bleu import BLEU, BLEUScore
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest, Result

from fairseq_kerbs.data.generated import read_generated
from fairseq_kerbs.data.languages import base_language
from fairseq_kerbs.data.tokens import composed, lower
from fairseq_kerbs.evaluation.texts import (
    detokenize_lines,
    has_subwords,
    is_other_text,
    is_spaced,
    read_texts,
    tokenized,
)
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import check_parallel, read_lines

logger = logging.getLogger(__name__)

Texts = Sequence[str]
TOKENIZED = ("zh", "ja", "ko")  # languages with tokenizers of their own in sacreBLEU
SAMPLES = 1000  # of the bootstrap
SEED = 12345
_ROUNDING = 1e-9  # differences of scores in percent that are below this are rounding errors


@dataclass(frozen=True)
class CorpusScore:
    """A corpus score."""

    score: float  # in percent
    details: str  # sacreBLEU's text, with an order other than 4, which its signature omits
    signature: str  # sacreBLEU's signature
    sentences: int  # number of sentences
    length_ratio: float | None  # tokens of the hypotheses ÷ those of the reference, if BLEU


def bleu_metric(
    order: int = 4, *, language: str = "", lowercase: bool = False, tokenize: str | None = None
) -> BLEU:
    """sacreBLEU's BLEU.

    Args:
        order: maximum length of n-grams.
        language: target language, which determines the default tokenizer (13a for most).
        lowercase: ignore case.
        tokenize: name of a tokenizer.

    Raises:
        UserError: there is no such tokenizer, or its package is missing.
    """
    try:
        target = base_language(language)
        return BLEU(lowercase, tokenize=tokenize, trg_lang=target, max_ngram_order=order)
    except KeyError:
        names = ", ".join(sorted(BLEU.TOKENIZERS))
        raise UserError(
            f"--tokenize {tokenize}: sacreBLEU has no such tokenizer; choose one of {names}"
        ) from None
    except (ImportError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        wanted = tokenize or language
        raise UserError(
            f"sacreBLEU's tokenizer for {wanted} needs another package ({reason}); install it, or "
            "take --tokenize char of fairseq-kerbs score"
        ) from None


def all_metrics(order: int = 4, **options: Any) -> dict[str, Metric]:
    """BLEU with options of :func:`bleu_metric`, chrF2, and TER, which ignores case."""
    name = "BLEU" if order == 4 else f"BLEU-{order}"
    chrf = CHRF(lowercase=options.get("lowercase", False))
    return {name: bleu_metric(order, **options), "chrF2": chrf, "TER": TER()}


def corpus_scores(
    hypotheses: Texts, references: Sequence[Texts], metrics: Mapping[str, Metric]
) -> list[CorpusScore]:
    """Scores of raw hypotheses against one or several parallel references, by named metrics."""
    scores = []
    for name, metric in metrics.items():
        score = metric.corpus_score(list(hypotheses), [list(r) for r in references])
        signature = str(metric.get_signature())
        details = score.format(width=2, signature=signature).removeprefix(score.name)
        length_ratio = score.ratio if isinstance(score, BLEUScore) else None
        text = name + details
        scores.append(CorpusScore(score.score, text, signature, len(hypotheses), length_ratio))
    return scores


def read_systems(
    hypotheses: Sequence[Path],
    references: Sequence[Path],
    *,
    language: str,
    unescape: bool = False,
    fill: bool = False,
) -> tuple[dict[str, list[str]], list[list[str]]]:
    """Raw text of hypotheses by file, and of references, all of it :func:`.composed`.

    Hypotheses are fairseq-generate's output, tokenized text, or raw text. References are raw text,
    or the T- lines of such an output. For ``language`` and ``unescape`` see :func:`.detokenize`,
    for ``fill`` :func:`.detokenize_lines`. A UserError is raised if a file cannot be read, is empty
    or incomplete, or named twice, or numbers of lines differ. A warning is logged if T- lines of
    hypotheses are other sentences than the references, or if hypotheses equal the T- lines of one.
    """
    for flag, paths in (("--hypotheses", hypotheses), ("--reference", references)):
        twice = [path for path in paths if paths.count(path) > 1]
        if twice:
            raise UserError(f"{flag} names {twice[0]} twice; leave one out")
    loaded = {}
    for path in references:
        texts = read_texts(path, "T", language, unescape)
        loaded[str(path)] = [*map(composed, texts)]
    spaced = next((name for name, lines in loaded.items() if is_spaced(lines)), None)
    # then spaces before marks do not tell tokens
    has_tokens = tokenized if spaced is None else has_subwords
    sentences = max(map(len, loaded.values()), default=None)
    systems = {}
    for path in hypotheses:
        name = str(path)
        lines = read_lines(path)
        raw = detokenize_lines(
            lines,
            language=language,
            name=name,
            unescape=unescape,
            sentences=sentences,
            fill=fill,
            has_tokens=has_tokens,
        )
        systems[name] = [*map(composed, raw)]
        _check_targets(name, lines, systems[name], loaded)
        if spaced is not None and raw != lines:
            logger.warning(
                f"{spaced} has spaces before its marks, and {name} is detokenized, so that the "
                "scores are too low: give a reference without these spaces"
            )
    for name, lines in loaded.items():
        if not any(line.strip() for line in lines):
            raise UserError(f"{name} has no text to compare with; give the reference translations")
        check_parallel(systems | {f"{name} (--reference)": lines})
    return systems, list(loaded.values())


def lowercased(
    systems: Mapping[str, Texts], references: Sequence[Texts], language: str
) -> tuple[dict[str, list[str]], list[list[str]]]:
    """Texts of :func:`read_systems` in lower case, for metrics that ignore case.

    sacreBLEU itself lower-cases by rules that are wrong for Turkish (:func:`.tokens.lower`).
    """
    lower_systems = {}
    for name, lines in systems.items():
        lower_systems[name] = [lower(line, language) for line in lines]
    lower_references = [[lower(line, language) for line in lines] for lines in references]
    return lower_systems, lower_references


def _check_targets(
    name: str, lines: Sequence[str], texts: Sequence[str], references: Mapping[str, list[str]]
) -> None:
    """Warn of T- lines that are other sentences than the references, or equal the hypotheses.

    Args:
        name: file of hypotheses.
        lines: its lines.
        texts: its texts.
        references: texts of each reference, by file.
    """
    output = read_generated(lines, name)
    if output is None:
        for reference, targets in references.items():
            if list(texts) == targets and read_generated(read_lines(reference), reference):
                logger.warning(
                    f"{name} (--hypotheses) equals the T- lines of {reference} (--reference) in "
                    "every line: see that the two are not swapped"
                )
    elif references and all(is_other_text(output.references, t) for t in references.values()):
        logger.warning(
            f"{name} has other target sentences (T- lines) than {' and '.join(references)}: give "
            "the reference of the same text"
        )


def paired_bootstrap(
    systems: Sequence[Texts], references: Sequence[Texts], metrics: Mapping[str, Metric]
) -> tuple[dict[str, str], dict[str, list[Result]]]:
    """sacreBLEU's paired bootstrap test of raw texts against the first one, with a fixed seed.

    For n resampled test sets with absolute differences d of the scores,

        p = (1 + number of test sets with d − mean(d) > observed difference) / (n + 1).

    This is smaller than the p of a two-sided test: with normally distributed differences, 11 % of
    pairs of equally good systems have p < 0.05. The observed difference 0 would have p = 0.42; it
    is reported as 1.

    Returns the signatures, and the results of all systems, by the names of the metrics.
    """
    os.environ["SACREBLEU_SEED"] = str(SEED)  # overrides a seed of the user's environment
    named = [(str(number), texts) for number, texts in enumerate(systems)]
    test = PairedTest(named, metrics, references, test_type="bs", n_samples=SAMPLES)
    signatures, results = test()
    by_metric: dict[str, list[Any]] = dict(zip(metrics, list(results.values())[1:]))
    for baseline, *others in by_metric.values():
        for other in others:
            # Any deviation is at least as large as a difference of 0, so p is 1. sacreBLEU counts
            # deviations that are larger: of systems that score equally in every resample it counts
            # none, and its p of 1/1001 would call no difference at all significant.
            if abs(other.score - baseline.score) < _ROUNDING:
                other.p_value = 1.0
    return dict(zip(metrics, map(str, signatures.values()))), by_metric
