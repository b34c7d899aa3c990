"""Human evaluation of blinded systems (Section 5 of the paper): sheets for raters, and statistics.

Raters see an input and the responses of all systems under letters. The letters are shuffled for
each item, and only the key maps them to systems. All raters see the same items and letters.

The sheets are CSV files for any spreadsheet program:

- The first rows have the scoring standard, one cell per row, and start with ``#``.
- Texts are in square brackets, so that programs do not convert them to formulas, numbers or dates.
- The encoding is UTF-8 with a byte order mark, which Excel needs.

A one-tailed paired t-test compares a system with the baseline over items. The score of an item is
the sum over its raters, as these scores are not independent. The null hypothesis is the paper's:
the system is not better than the baseline. p-values are not corrected for multiple tests.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from string import ascii_uppercase
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pandas import DataFrame
from scipy import stats

from fairseq_kerbs.evaluation.ratings import agreement_sentence, significance_sentence
from fairseq_kerbs.evaluation.texts import shown
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import check_parallel, read_lines

SCORES = {0: "zeros", 1: "ones", 2: "twos"}
"""Scores, and the names of their numbers in tables."""
STANDARD = (
    "2: the response is fluent, and it is relevant to the input",
    "1: the response is fluent or relevant to the input, but only one of the two",
    "0: the response is neither fluent nor relevant to the input",
)
"""Scoring standard of the paper's appendix, paraphrased in ASCII."""

HEADER = ("item", "answer", "input", "response", "score")
DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t"}
csv.field_size_limit(2**31 - 1)  # answers may be longer than Python's limit of 131,072 characters
WORKBOOKS = (".xlsx", ".xls", ".ods", ".numbers")
"""Names of the files of spreadsheet programs, which are no CSV."""
_HEADER = re.compile(r'"?item"?([,;\t])"?answer\b')
_RATER = re.compile(r'"?# Sheet (\d+) of ')


@dataclass(frozen=True)
class Answer:
    """A row of a sheet: the response of a system."""

    item: int  # from 1
    letter: str  # of the system in this item
    line: int  # in the files, from 1
    system: str
    source: str
    text: str


@dataclass(frozen=True)
class Key:
    """The key, which maps letters to systems and has the content of all rows."""

    systems: tuple[str, ...]  # in the user's order
    answers: tuple[Answer, ...]  # in the order of items and letters
    raters: int  # number of sheets
    seed: int  # random seed of items and letters

    def as_json(self) -> str:
        """Text of the key's file."""
        return json.dumps({"key": asdict(self)}, indent=1, ensure_ascii=False) + "\n"


def make_key(
    sources: Sequence[str], systems: Mapping[str, Sequence[str]], items: int, raters: int, seed: int
) -> Key:
    """Draw items at random, and shuffle the letters of the systems in each item.

    Blank inputs are not drawn. A UserError is raised if there are too few others or more than 26
    systems, or the responses of a system are not parallel to the inputs.
    """
    check_parallel({"--source": sources, **{f"--system {n}": t for n, t in systems.items()}})
    if len(systems) > len(ascii_uppercase):
        raise UserError(f"--system is given {len(systems)} times; a sheet has at most 26 systems")
    filled = [index for index, source in enumerate(sources) if shown(source)]
    if items > len(filled):
        raise UserError(f"--items is {items}, but only {len(filled)} lines have a source")
    rng = Random(seed)
    answers: list[Answer] = []
    for item, index in enumerate(rng.sample(filled, items), start=1):
        order = list(systems)
        rng.shuffle(order)
        for number, system in enumerate(order):
            answer = Answer(
                item=item,
                letter=ascii_uppercase[number],
                line=index + 1,
                system=system,
                source=shown(sources[index]),
                text=shown(systems[system][index]),
            )
            answers.append(answer)
    return Key(tuple(systems), tuple(answers), raters, seed)


def read_key(path: Path) -> Key:
    """Read the file of a key. Another file raises a UserError."""
    try:
        content: dict[str, Any] = json.loads("\n".join(read_lines(path)))["key"]
        answers = tuple(Answer(**row) for row in content["answers"])
        return Key(**{**content, "systems": tuple(content["systems"]), "answers": answers})
    except (ValueError, KeyError, TypeError):
        raise UserError(f"--key: {path} is no key; name the exported key") from None


@dataclass(frozen=True)
class Sheet:
    """A complete sheet of a rater."""

    path: Path
    rater: int  # from 1
    scores: dict[tuple[int, str], int]  # of each (item, letter)


def sheet_text(key: Key, rater: int, delimiter: str = ",") -> str:
    """Text of a rater's file with empty scores, including the byte order mark."""
    head = [
        f"Sheet {rater} of {key.raters}: scores of responses",
        "Read the input. Then give each response to it a score of 0, 1 or 2 in the column 'score':",
        *STANDARD,
        "Score each response independently, and without help. The letters A, B, ... are shuffled",
        "for each input, so they do not identify systems. The same response may occur twice.",
        "Texts are in square brackets, which are not part of them.",
        "Give all scores, and change nothing else. Save the sheet as CSV (UTF-8).",
    ]
    rows: list[Sequence[object]] = [[f"# {line}"] for line in head]
    rows.append(HEADER)
    rows += [[a.item, a.letter, f"[{a.source}]", f"[{a.text}]", ""] for a in key.answers]
    stream = io.StringIO(newline="")
    stream.write("\ufeff")
    csv.writer(stream, delimiter=delimiter).writerows(rows)
    return stream.getvalue()


def read_sheet(path: Path, key: Key) -> Sheet:
    """Read a rater's sheet, and check every row against the key.

    Changes by spreadsheet programs are accepted: other delimiters (semicolon or tab), a first row
    such as ``sep=;``, rows that end in a carriage return alone, another order of rows, empty rows,
    and empty cells at the end of rows. A UserError is raised if the file is no sheet in UTF-8, or a
    row is missing, unknown, duplicate, changed, or has an invalid score.
    """
    if path.suffix.lower() in WORKBOOKS:
        raise UserError(f"{path} is a workbook; open it and save the sheet as CSV (UTF-8)")
    lines = [row for line in read_lines(path) for row in line.split("\r")]
    rater = next(filter(None, map(_RATER.match, lines)), None)
    header = next(filter(None, map(_HEADER.match, lines)), None)
    if rater is None or header is None:
        raise UserError(
            f"{path} is no sheet of 'human-eval export': it needs the row '# Sheet …' and one with "
            f"the names {', '.join(HEADER)}, and must be saved as CSV"
        )
    missing = {(str(answer.item), answer.letter): answer for answer in key.answers}
    scores: dict[tuple[int, str], int] = {}
    for number, row in enumerate(_rows(path, lines, header[1]), start=1):
        cells = [cell.strip() for cell in row]
        if not any(cells) or cells[0].startswith(("#", "sep=")) or cells[0] == HEADER[0]:
            continue
        item, letter, source, text, score, *others = cells + [""] * (len(HEADER) - len(cells))
        place = f"{path}, row {number} (item {item}, answer {letter})"
        answer = missing.pop((item, letter), None)
        if answer is None:
            raise UserError(f"{place} is not in the key, or appears twice")
        if (source, text) != (f"[{answer.source}]", f"[{answer.text}]") or any(others):
            raise UserError(f"{place}: the text was changed, or the sheet belongs to another key")
        if score not in map(str, SCORES):
            raise UserError(f"{place}: the score '{score}' is not 0, 1 or 2")
        scores[answer.item, letter] = int(score)
    if missing:
        item, letter = next(iter(missing))
        raise UserError(f"{path}: the row of item {item}, answer {letter}, is missing")
    return Sheet(path, int(rater[1]), scores)


def _rows(path: Path, lines: Sequence[str], delimiter: str) -> Iterator[list[str]]:
    """Rows of a sheet. A UserError is raised if quotation marks are not around whole cells."""
    try:
        yield from csv.reader(lines, delimiter=delimiter, strict=True)
    except csv.Error as error:
        raise UserError(
            f"{path} is no CSV: {error}; is a quotation mark at the beginning of a cell not closed "
            "at its end?"
        ) from None


def evaluate(key: Key, sheets: Sequence[Sheet], baseline: str | None = None) -> dict[str, Any]:
    """Compute the statistics of sheets of different raters.

    Returns:
        for JSON: ``systems`` with mean, standard deviation (over n − 1), number of scores, number
        of each score, difference from the baseline's mean, t and p; ``baseline``, ``items``,
        ``raters`` (their numbers), ``expected_raters``, ``fleiss_kappa``, ``krippendorff_alpha``
        and ``rater_means``. Undefined values are None.

    Raises:
        UserError: two sheets have the same rater, or no system has the baseline's name.
    """
    if baseline is not None and baseline not in key.systems:
        raise UserError(f"--baseline {baseline} is none of the systems {', '.join(key.systems)}")
    by_rater: dict[int, Sheet] = {}
    for sheet in sheets:
        other = by_rater.setdefault(sheet.rater, sheet)
        if other is not sheet:
            raise UserError(
                f"{other.path} and {sheet.path} are both the sheet of rater {sheet.rater}; give "
                "each rater's sheet once"
            )
    raters = sorted(by_rater)
    # unblinded: a row for each system and item, a column for each rater
    scores = DataFrame(
        [[by_rater[rater].scores[a.item, a.letter] for rater in raters] for a in key.answers],
        index=[[a.system for a in key.answers], [a.item for a in key.answers]],
        columns=raters,
    )
    kappa, alpha = agreement(np.stack([(scores == s).sum(axis=1) for s in SCORES], axis=1))
    reference = None if baseline is None else scores.loc[baseline]
    figures = [
        {"system": name, **_figures(scores.loc[name], None if name == baseline else reference)}
        for name in key.systems
    ]
    return {
        "systems": figures,
        "baseline": baseline,
        "items": len(scores.loc[key.systems[0]]),
        "raters": raters,
        "expected_raters": key.raters,
        "fleiss_kappa": kappa,
        "krippendorff_alpha": alpha,
        "rater_means": scores.mean().tolist(),
    }


def _figures(scores: DataFrame, reference: DataFrame | None) -> dict[str, Any]:
    """Statistics of a system's scores, [items, raters], and of differences from the baseline."""
    values = scores.to_numpy()
    figures: dict[str, Any] = {
        "mean": float(values.mean()),
        "deviation": float(values.std(ddof=1)) if values.size > 1 else None,
        "n": values.size,
        **{name: int((values == score).sum()) for score, name in SCORES.items()},
        **dict.fromkeys(("difference", "t", "p")),
    }
    if reference is not None:
        differences = (scores - reference).sum(axis=1)  # of items
        figures["difference"] = float(differences.sum() / values.size)
        if differences.nunique() > 1:
            test: Any = stats.ttest_1samp(differences, 0, alternative="greater")
            figures |= {"t": float(test.statistic), "p": float(test.pvalue)}
    return figures


def as_csv(result: Mapping[str, Any]) -> str:
    """CSV of the result of :func:`evaluate`, with a row per system."""
    names = ("baseline", "fleiss_kappa", "krippendorff_alpha")
    table = DataFrame(result["systems"]).assign(**{name: result[name] for name in names})
    return str(table.to_csv(index=False, lineterminator="\n"))


def as_text(result: Mapping[str, Any]) -> str:
    """Text of the result of :func:`evaluate` for a terminal."""
    table = DataFrame(result["systems"]).rename(columns={v: str(k) for k, v in SCORES.items()})
    forms = {"mean": ".3f", "deviation": ".3f", "difference": "+.3f", "t": ".3f", "p": ".4f"}
    for name, form in forms.items():
        table[name] = table[name].astype(float).map(f"{{:{form}}}".format, na_action="ignore")
    return (
        f"{table.to_string(index=False, na_rep='–')}\n\n{agreement_sentence(result)}\n"
        f"{significance_sentence(result)}"
    )


def agreement(counts: NDArray[np.int64]) -> tuple[float | None, float | None]:
    """Fleiss' kappa (1971) and Krippendorff's ordinal alpha. 1 is full agreement, 0 is chance.

        kappa = (P − Pe) / (1 − Pe)        over pairs of equal scores
        alpha = 1 − Do / De                over squared distances of pairs

    The distance of two values is the number of scores between them, including half of their own.

    Args:
        counts: how often each value, in ascending order, was given to each unit, [units, values].
            All units have the same number of raters.

    Returns:
        kappa and alpha, or None for one rater, or if all scores are equal.
    """
    raters = counts[0].sum()
    totals = counts.sum(0)
    if raters < 2 or (totals > 0).sum() < 2:
        return None, None
    # ordered pairs of different ratings of a unit, [values, values]
    pairs = (counts.T @ counts - np.diag(totals)) / (raters - 1)
    chance = np.outer(totals, totals) / totals.sum()
    equal = pairs.trace()
    expected = chance.trace()
    kappa = (equal - expected) / (totals.sum() - expected)
    middle = totals.cumsum() - totals / 2  # mean rank of a value's scores
    distance = (middle[:, None] - middle[None, :]) ** 2
    at_random = (chance * distance).sum() * totals.sum() / (totals.sum() - 1)
    return float(kappa), float(1 - (pairs * distance).sum() / at_random)
