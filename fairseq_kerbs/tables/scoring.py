"""The last step of a run, as a command of its own: figures of what was generated or evaluated.

    python -m fairseq_kerbs.tables.scoring bleu GENERATED REFERENCE --lang en --order 4 \
        --hypotheses FILE --output FILE
    python -m fairseq_kerbs.tables.scoring perplexity LOG --output FILE
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fairseq_kerbs.evaluation.bleu import corpus_bleu
from fairseq_kerbs.evaluation.texts import detokenize_lines
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import atomic_write, read_lines
from fairseq_kerbs.utils.steps import write_json

_PERPLEXITY = re.compile(r"Loss \(base 2\): ([0-9.]+|inf|nan), Perplexity: ([0-9.]+|inf|nan)")


def bleu_figures(
    hypotheses: Sequence[str], reference: Sequence[str], *, order: int, language: str
) -> dict[str, Any]:
    """BLEU of cased and of lowercased text, with signatures; the order stands beside them.

    Raises:
        UserError: see :func:`fairseq_kerbs.evaluation.bleu.corpus_bleu`.
    """
    figures: dict[str, Any] = {"metric": f"bleu{order}", "sentences": len(hypotheses)}
    figures["order"] = order
    for prefix, lowercase in (("", False), ("lowercased_", True)):
        how: dict[str, Any] = {"target_lang": language, "max_ngram_order": order}
        result = corpus_bleu(hypotheses, [reference], lowercase=lowercase, **how)
        # sacreBLEU's signature does not tell the order of the n-grams.
        figures[f"{prefix}signature"] = f"{result.signature}|order:{order}"
        figures[f"{prefix}value"] = result.score
        figures[f"{prefix}details"] = result.details
    return figures


def perplexity_figures(log: str, name: str) -> dict[str, Any]:
    """Perplexity and bits per token by the last line of fairseq-eval-lm in a log.

    Raises:
        UserError: the log has no such line.
    """
    found = _PERPLEXITY.findall(log)
    if not found:
        raise UserError(f"{name} has no line with a perplexity; did fairseq-eval-lm end well?")
    bits, perplexity = found[-1]
    return {"metric": "perplexity", "value": float(perplexity), "bits_per_token": float(bits)}


def main(argv: Sequence[str] | None = None) -> int:
    """Write the figures; 2 for wrong input, with one sentence."""
    parser = argparse.ArgumentParser(prog="python -m fairseq_kerbs.tables.scoring")
    kinds = parser.add_subparsers(required=True, dest="kind")
    bleu = kinds.add_parser("bleu", help="of fairseq-generate's output")
    bleu.add_argument("text", type=Path)
    bleu.add_argument("reference", type=Path)
    bleu.add_argument("--lang", required=True)
    bleu.add_argument("--order", type=int, required=True)
    bleu.add_argument("--hypotheses", type=Path, required=True, help="detokenized text goes here")
    perplexity = kinds.add_parser("perplexity", help="of fairseq-eval-lm's log")
    perplexity.add_argument("text", type=Path)
    for kind in (bleu, perplexity):
        kind.add_argument("--output", type=Path, required=True, help="figures go here, as JSON")
    args = parser.parse_args(argv)
    try:
        lines, name = read_lines(args.text), str(args.text)
        if args.kind == "bleu":
            texts = detokenize_lines(lines, language=args.lang, name=name)
            reference = read_lines(args.reference)
            figures = bleu_figures(texts, reference, order=args.order, language=args.lang)
            with atomic_write(args.hypotheses) as stream:
                stream.write("".join(text + "\n" for text in texts))
        else:
            figures = perplexity_figures("\n".join(lines), name)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    write_json(args.output, figures)
    print(json.dumps(figures, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
