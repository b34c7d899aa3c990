"""Results of ``fairseq-kerbs human-eval score --json``: reading them, and sentences about them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import read_lines

_DEFINED_OR_NOT = {"type": ["number", "null"]}
_SYSTEM = {
    "type": "object",
    "required": ["system", "mean", "deviation", "n", "p"],
    "properties": {
        "system": {"type": "string"},
        "mean": {"type": "number", "minimum": 0, "maximum": 2},
        "deviation": _DEFINED_OR_NOT,
        "n": {"type": "integer"},
        "p": _DEFINED_OR_NOT,
    },
}
_SCHEMA = {
    "type": "object",
    "required": [
        "systems",
        "baseline",
        "items",
        "raters",
        "expected_raters",
        "fleiss_kappa",
        "krippendorff_alpha",
    ],
    "properties": {
        "systems": {"type": "array", "minItems": 1, "items": _SYSTEM},
        "baseline": {"type": ["string", "null"]},
        "items": {"type": "integer"},
        "raters": {"type": "array"},
        "expected_raters": {"type": "integer"},
        "fleiss_kappa": _DEFINED_OR_NOT,
        "krippendorff_alpha": _DEFINED_OR_NOT,
    },
}
"""What is read of the result of :func:`.human.evaluate`."""


def read_ratings(path: Path) -> dict[str, Any]:
    """Read the result of :func:`.human.evaluate` from a JSON file.

    A UserError is raised if the file cannot be read or has something else.
    """
    import jsonschema

    try:
        result: dict[str, Any] = json.loads("\n".join(read_lines(path)))
        jsonschema.validate(result, _SCHEMA)
    except (ValueError, jsonschema.ValidationError):
        raise UserError(
            f"{path} is no result of people's scores; name the file that 'fairseq-kerbs human-eval "
            "score --json' wrote"
        ) from None
    return result


def ratings_by_row(
    path: Path, result: Mapping[str, Any], rows: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """Figures of the systems of a result by the rows of a table.

    Args:
        path: file of the result, for errors.
        result: value of :func:`read_ratings`.
        rows: titles of the table's rows by their names. A system has the name or the title of its
            row. Case does not matter.

    Raises:
        UserError: a system is none of the rows, or two systems are the same row.
    """
    row_of = {name.casefold(): row for row, title in rows.items() for name in (title, row)}
    figures: dict[str, dict[str, Any]] = {}
    for system in result["systems"]:
        name = system["system"]
        row = row_of.get(name.casefold())
        if row is None or row in figures:
            what = "is none of" if row is None else "is a second system for one of"
            raise UserError(
                f"{path}: system {name!r} {what} the table's rows {', '.join(rows)}; rename it "
                "there, or in '--system NAME=FILE' of 'fairseq-kerbs human-eval export'"
            )
        figures[row] = system
    return figures


def agreement_sentence(result: Mapping[str, Any]) -> str:
    """Numbers of items and raters, and the agreement of the raters."""
    kappa = _written(result["fleiss_kappa"])
    alpha = _written(result["krippendorff_alpha"])
    return (
        f"{result['items']} items, {len(result['raters'])} of {result['expected_raters']} raters; "
        f"Fleiss' kappa {kappa}, Krippendorff's alpha (ordinal) {alpha}"
    )


def _written(figure: float | None) -> str:
    """A figure with three decimals, or a dash if it is undefined."""
    return "–" if figure is None else f"{figure:.3f}"


def significance_sentence(result: Mapping[str, Any]) -> str:
    """The test that p is of."""
    if result["baseline"] is None:
        return "p: no test, name a --baseline"
    return f"p: one-tailed paired t-test over items, system better than {result['baseline']}"
