"""Detokenized BLEU by sacreBLEU, always with its signature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sacrebleu.metrics.bleu import BLEU

from fairseq_kerbs.evaluation.texts import check_lengths, detokenize_lines
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import read_lines

DEFAULT_ORDER = 4


@dataclass(frozen=True)
class BleuResult:
    """Corpus BLEU in per cent, sacreBLEU's own line of figures, and its signature.

    sacreBLEU's signature does not tell the longest n-grams, so `max_ngram_order` belongs to it;
    `details` names another order than 4.
    """

    score: float
    details: str
    signature: str
    sentences: int
    max_ngram_order: int = DEFAULT_ORDER


def bleu_metric(
    order: int = DEFAULT_ORDER,
    *,
    language: str = "",
    lowercase: bool = False,
    tokenize: str | None = None,
) -> BLEU:
    """sacreBLEU's metric for n-grams up to `order`; 1 is precision times the brevity penalty.

    The tokenizer is `tokenize`, by default sacreBLEU's for `language` (13a for most).

    Raises:
        UserError: the order is not positive, or there is no such tokenizer, or a package that it
            needs is missing.
    """
    if order < 1:
        raise UserError(f"--max-ngram-order must be at least 1, not {order}")
    if tokenize is not None and tokenize not in BLEU.TOKENIZERS:
        raise UserError(f"--tokenize must be one of {', '.join(BLEU.TOKENIZERS)}, not {tokenize}")
    try:
        return BLEU(lowercase, tokenize=tokenize, trg_lang=language, max_ngram_order=order)
    except (ImportError, RuntimeError) as error:  # sacreBLEU's sentence on a missing package
        wanted = f"--tokenize {tokenize}" if tokenize else f"--lang {language}"
        raise UserError(f"{wanted}: {' '.join(str(error).split())}") from None


def corpus_bleu(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    target_lang: str = "",
    max_ngram_order: int = DEFAULT_ORDER,
    **options: Any,
) -> BleuResult:
    """BLEU of raw (detokenized) hypotheses against one or several lists of raw references.

    Raises:
        UserError: there is no hypothesis, the numbers of sentences differ, or see `bleu_metric`,
            whose `options` these are.
    """
    if not hypotheses:
        raise UserError("BLEU needs at least one hypothesis")
    for reference in references:
        check_lengths({"--hypotheses": hypotheses, "--reference": reference})
    metric = bleu_metric(max_ngram_order, language=target_lang, **options)
    score = metric.corpus_score(list(hypotheses), [list(r) for r in references])
    signature = str(metric.get_signature())
    details = score.format(width=2, signature=signature)
    if max_ngram_order != DEFAULT_ORDER:
        details = f"BLEU-{max_ngram_order}{details.removeprefix('BLEU')}"
    return BleuResult(score.score, details, signature, len(hypotheses), max_ngram_order)


def score_file(
    hypotheses: Path | str,
    references: Sequence[Path | str],
    *,
    language: str,
    unescape: bool = False,
    **options: Any,
) -> BleuResult:
    """BLEU of fairseq-generate's output (or of tokenized text) against raw reference files.

    Raises:
        UserError: see `corpus_bleu`, whose `options` these are, and `detokenize_lines`.
    """
    lines = read_lines(hypotheses)
    if not lines:
        raise UserError(f"{hypotheses} is empty; it must hold one hypothesis a line")
    texts = detokenize_lines(lines, language=language, name=str(hypotheses), unescape=unescape)
    loaded = {str(path): read_lines(path) for path in references}
    check_lengths({str(hypotheses): texts, **loaded})
    return corpus_bleu(texts, list(loaded.values()), target_lang=language, **options)
