"""Detokenized BLEU by sacreBLEU, always with its signature."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sacrebleu.metrics.bleu import BLEU

from fairseq_kerbs.corpora.files import read_lines
from fairseq_kerbs.errors import UserError
from fairseq_kerbs.evaluation.generated import detokenize_lines


@dataclass(frozen=True)
class BleuResult:
    """Corpus BLEU in per cent, sacreBLEU's own line of figures, and its signature."""

    score: float
    details: str
    signature: str
    sentences: int

    def as_text(self) -> str:
        """One line: ``BLEU|signature = score …``."""
        return self.details

    def as_json(self) -> str:
        """A JSON object with the score, the details, the signature and the number of sentences."""
        return json.dumps(
            {
                "bleu": self.score,
                "signature": self.signature,
                "details": self.details,
                "sentences": self.sentences,
            }
        )


def corpus_bleu(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    lowercase: bool = False,
    tokenize: str | None = None,
    target_lang: str = "",
) -> BleuResult:
    """BLEU-4 of raw (detokenized) hypotheses against one or several raw references.

    Args:
        hypotheses: one a sentence.
        references: one list for each reference translation, each as long as `hypotheses`.
        lowercase: compare without case.
        tokenize: sacreBLEU's tokenizer; None lets it choose by `target_lang` (13a for most).
        target_lang: language of the text.

    Raises:
        UserError: there is nothing to compare, or the numbers of sentences differ.
    """
    if not hypotheses or not references:
        raise UserError("BLEU needs at least one hypothesis and one reference")
    for reference in references:
        if len(reference) != len(hypotheses):
            raise UserError(
                f"{len(hypotheses)} hypotheses but {len(reference)} reference lines; "
                "both must come from the same test set"
            )
    metric = BLEU(lowercase=lowercase, tokenize=tokenize, trg_lang=target_lang)
    score = metric.corpus_score(list(hypotheses), [list(r) for r in references])
    signature = str(metric.get_signature())
    return BleuResult(
        score=score.score,
        details=score.format(width=2, signature=signature),
        signature=signature,
        sentences=len(hypotheses),
    )


def score_file(
    hypotheses: Path | str,
    references: Sequence[Path | str],
    *,
    language: str,
    lowercase: bool = False,
    tokenize: str | None = None,
    unescape: bool = False,
) -> BleuResult:
    """BLEU of fairseq-generate's output (or of tokenized text) against raw reference files.

    The hypotheses are joined from subwords, detokenized for `language` and put into the order of
    the corpus; references are taken as they are.

    Raises:
        UserError: see `corpus_bleu` and `detokenize_lines`.
    """
    lines = read_lines(hypotheses)
    texts = detokenize_lines(lines, language=language, name=str(hypotheses), unescape=unescape)
    loaded = [read_lines(path) for path in references]
    for path, reference in zip(references, loaded, strict=True):
        if len(reference) != len(texts):
            raise UserError(
                f"{hypotheses} has {len(texts)} hypotheses but {path} has {len(reference)} lines; "
                "both must come from the same test set"
            )
    return corpus_bleu(texts, loaded, lowercase=lowercase, tokenize=tokenize, target_lang=language)
