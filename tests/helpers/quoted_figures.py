"""Figures that the tables of pages quote, and the values that stored files have for them.

A figure is looked up in the files of the folders that its page names, as it is rounded. A mean with
its deviation is computed again from values that stand at the same place of files of several seeds,
or of lines of one file. Files of a training have hundreds of losses and times, among which almost
any number would be found by chance. So only what sums a file up is read: the last and the lowest
validation of a training, scores, and means over words.
"""

from __future__ import annotations

import bisect
import csv
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

from scripts.experiments.figures import raw_files

NUMBER = re.compile(
    r"(?<![\w.,#/^-])[-−+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:e[-+]?\d+)?(?![\w/]|\.\d)"
)
SEED = re.compile(
    r"(?<=[_/\s-]s)[1-5](?!\d)|(?<=\bseed[ =])\d+|(?<=[a-z])[123](?=[._/])|(?<=[a-z])[123](?= |$)"
)
READ = {".csv", ".json", ".log", ".md", ".tsv", ".txt"}
SUMS_UP = re.compile(
    r"\| valid \||\| test \||BLEU|[Pp]erplexity|model params|done training|loss of split|moved"
)
"""What a line of a log has that is read."""

SETTINGS = ("alpha", "dim", "width")
"""Numbers of JSON that say, as texts do, what a row is of."""

SCALES = {1.0: "", 100.0: "", 1e3: "benchmarks", 1e-6: "benchmarks"}
"""Units of figures: shares in per cent; benchmarks store seconds and bytes, and quote ms and MB."""

MOST_VALUES = 12
"""Longer lists of JSON are measurements that nobody quotes one by one."""


class Figure(NamedTuple):
    """A number of a table as it is written, with the deviation after its ±."""

    line: int
    text: str
    deviation: str
    row: tuple[str, ...] = ()  # the numbers of its row that have no deviation
    page: tuple[str, ...] = ()  # all numbers of the page's tables


class Reading(NamedTuple):
    """A number of a stored file."""

    place: tuple[Any, ...]  # the same in files, lines and rows that differ in the seed alone
    seed: str
    value: float


def value_of(text: str) -> float:
    return float(text.replace(",", "").replace("−", "-"))


def decimals(text: str) -> int:
    return len(text.partition("e")[0].partition(".")[2])


def rounds_to(value: float, text: str) -> bool:
    """Whether a value is ``text`` after rounding; a half may go either way."""
    return abs(value - value_of(text)) <= 0.5 * 10.0 ** -decimals(text) * (1.0 + 1e-9)


def is_precise(text: str) -> bool:
    """Whether a number says enough to be looked up: a decimal, and three digits in all."""
    return decimals(text) >= 1 and len(re.sub(r"\D", "", text).lstrip("0")) >= 3


def quoted(page: Path) -> list[Figure]:
    """The figures in the tables of a page."""
    tables: list[list[list[Figure]]] = [[]]  # rows of figures of each table
    lines = page.read_text(encoding="utf-8").splitlines()
    in_code = False
    for number, line in enumerate(lines, start=1):
        in_code ^= line.startswith("```")
        head = number < len(lines) and re.match(r"\|[\s|:-]*---[\s|:-]*$", lines[number])
        if in_code or head or not line.startswith("|"):
            tables.append([])
        elif not line.startswith("| *the paper"):  # whose figures are in the paper
            plain = re.sub(r"\]\([^)]*\)|`[^`]*`|\*\*", " ", line)
            plain = re.sub(r"[\[\](),;:|%]+(?=\s|$)|(?<=\s)[\[(]+", " ", plain)
            pairs = re.findall(rf"({NUMBER.pattern})(?: ± ({NUMBER.pattern}))?", plain)
            singles = tuple(text for text, deviation in pairs if not deviation)
            tables[-1].append(
                [Figure(number, text, deviation, singles) for text, deviation in pairs]
            )
    found = []
    figures = [figure for rows in tables for row in rows for figure in row]
    numbers = tuple(figure.text for figure in figures)
    for figure in figures:
        if figure.deviation or is_precise(figure.text):
            found.append(figure._replace(page=numbers))
    return found


def nearly(value: float, text: str) -> bool:
    """Whether a value is ``text`` if it is computed from rounded numbers."""
    return abs(value - value_of(text)) <= 1.001 * 10.0 ** -decimals(text)


def is_mean_of_row(figure: Figure) -> bool:
    """Whether values of seeds stand beside a mean, which are looked up themselves."""
    values = [value_of(text) for text in figure.row]
    for length, start in product((2, 3), range(len(values))):
        part = values[start : start + length]
        precise = all(is_precise(text) for text in figure.row[start : start + length])
        if (
            len(part) == length
            and precise
            and nearly(mean(part), figure.text)
            and nearly(stdev(part), figure.deviation)
        ):
            return True
    return False


def is_mean_of_two(figure: Figure) -> bool:
    """Whether a number is the mean of its two predecessors in a row, which have two seeds."""
    values = [value_of(text) for text in figure.row if is_precise(text)]
    return any(
        rounds_to(mean(values[at : at + 2]), figure.text)
        and values[at + 2] == value_of(figure.text)
        for at in range(len(values) - 2)
    )


def is_difference(figure: Figure) -> bool:
    """Whether a number with a sign is the difference of two others with as many decimals."""
    if figure.text[0] not in "+−":
        return False
    digits = decimals(figure.text)
    values = [value_of(text) for text in figure.page if decimals(text) == digits]
    return any(nearly(one - other, figure.text) for one, other in product(values, values))


def without_seeds(text: str) -> tuple[str, str]:
    """A name or line with its seeds replaced, and the seeds."""
    return SEED.sub("S", text).replace("_sS.", "."), "".join(SEED.findall(text))


def is_label(text: str) -> bool:
    """Whether a text of JSON may name what its row is of: it has no figure and is no digest."""
    return len(text) <= 40 and not re.search(r"\d\.\d", text)


def _readings_of_json(node: Any, path: tuple[str, ...], seed: str) -> Iterator[Reading]:
    if isinstance(node, dict):
        labels = {
            key: value
            for key, value in node.items()
            if key in SETTINGS or (isinstance(value, str) and is_label(value))
        }
        named, more = without_seeds(" ".join(f"{k}={v}"[:80] for k, v in labels.items()))
        more += str(node.get("seed", ""))
        for key, value in node.items():
            yield from _readings_of_json(value, (*path, named, key), seed + more)
    elif isinstance(node, list):
        if len(node) <= MOST_VALUES or isinstance(node[0], (dict, list)):
            for place, value in enumerate(node):
                name = "" if isinstance(value, dict) else str(place)
                yield from _readings_of_json(value, (*path, name), seed)
    elif isinstance(node, str):
        for score in re.findall(r"BLEU\S* = ([\d.]+)", node):
            yield Reading((*path, "BLEU"), seed, float(score))
    elif isinstance(node, (int, float)) and not isinstance(node, bool):
        yield Reading(path, seed, float(node))


def _readings_of_csv(family: str, text: str, seed: str) -> Iterator[Reading]:
    """Rows that differ in their column ``seed``, or in the seed of a name, are of one place."""
    for row in csv.DictReader(text.splitlines(), restkey="", restval=""):
        row.pop("", None)  # cells beyond the head, of a file that is no table
        seeds = seed + row.pop("seed", "")
        labels = [family]
        numbers = {}
        for column, cell in row.items():
            if NUMBER.fullmatch(cell):
                numbers[column] = value_of(cell)
            else:
                label, more = without_seeds(cell)
                labels.append(label)
                seeds += more
        for column, value in numbers.items():
            # an empty cell, where a value is missing, does not make another place
            yield Reading((*filter(None, labels), column), seeds, value)


def _summary(name: str, text: str) -> Iterator[str]:
    """The lines of a file that are read."""
    _, mean_of, agreement = text.partition("\nmean of ")
    if mean_of:  # of words, which stand above, one a line
        yield from (mean_of + agreement).splitlines()
    elif not name.endswith(".log") or "| INFO |" not in text:
        for line in text.splitlines():
            if not re.match(r"[STHDP]-\d+\t", line):  # no sentence of fairseq-generate's
                yield line
    else:
        validations = []
        validated = "| valid |" in text
        for line in text.splitlines():
            done = re.search(r"done training in ([\d.]+) seconds", line)
            if done:
                yield f"minutes {float(done[1]) / 60.0}"
            if "| valid |" in line and "| loss " in line:
                fields = re.findall(r"\| ((?:best_)?(?:nll_)?loss|ppl) ([\d.]+)", line)
                validations.append(dict(fields))
            elif not validated and "| train_inner |" in line:
                fields = re.findall(r"\b(nll_loss|num_updates)=([\d.]+)", line)
                yield " ".join(" ".join(field) for field in fields)
            elif SUMS_UP.search(line) and "train_inner" not in line and "| train |" not in line:
                yield line.rpartition(" | ")[2]
        some = [(str(n), [each]) for n, each in enumerate(validations[:MOST_VALUES])]
        for what, chosen in (("last", validations[-1:]), ("lowest", validations), *some):
            for field in ("loss", "nll_loss", "ppl"):
                values = [float(each[field]) for each in chosen if field in each]
                if values:
                    yield f"{what} {field} {min(values)}"


def _readings(name: str, text: str) -> Iterator[Reading]:
    family, seed = without_seeds(name)
    if name.endswith(".json"):
        try:
            document = json.loads(text)
        except ValueError:
            document = [json.loads(line) for line in text.splitlines()]
        for path, more, value in _readings_of_json(document, (family,), seed):
            parts, seeds = zip(*(without_seeds(part) for part in path))
            yield Reading(parts, "".join(seeds) + more, value)
        return
    if name.endswith(".csv"):
        yield from _readings_of_csv(family, text, seed)
        return
    seen: dict[str, int] = defaultdict(int)
    # precisions after a score are written with slashes, and not by every version
    summary = re.sub(r"(BLEU\S* = [\d.]+) ", r"\1\n", "\n".join(_summary(name, text)))
    for line in summary.splitlines():
        label, more = without_seeds(" ".join(line.split()))
        template = NUMBER.sub("N", label)
        seen[template + more] += 1
        for place, number in enumerate(NUMBER.findall(label)):
            at = (family, template, seen[template + more], place)
            yield Reading(at, seed + more, value_of(number))
        for place, number in enumerate(NUMBER.findall(label)):  # lines of a table, one a seed
            yield Reading(
                (family, template, "lines", place), f"{seed + more} {line}", value_of(number)
            )


@cache
def readings(folder: Path) -> list[Reading]:
    """The numbers of the files of a folder of results/ and of its archive."""
    files = {
        path.name: path.read_text(encoding="utf-8")
        for path in folder.iterdir()
        if path.suffix in READ - {".md"}
    }
    if (folder / "raw.tar.xz").exists():
        files |= raw_files(folder.name)
    return [
        reading
        for name, text in sorted(files.items())
        if Path(name).suffix in READ and ".hyp." not in name and name != "LISTING.txt"
        for reading in _readings(name, text)
    ]


class Stored:
    """All values of folders, to be asked for figures."""

    def __init__(self, folders: Sequence[Path], pages: Sequence[Path] = ()) -> None:
        names = {folder.name for folder in folders}
        self.scales = [scale for scale, where in SCALES.items() if not where or where in names]
        by_place: dict[tuple[Any, ...], dict[str, float]] = defaultdict(dict)
        for folder in folders:
            for place, seed, value in readings(folder):
                at = (folder.name, *place)
                by_place[at][seed] = value
        self.values = sorted(
            {reading.value for folder in folders for reading in readings(folder)}
            | {mean(group.values()) for group in by_place.values()}
            | {value_of(figure.text) for page in pages for figure in quoted(page)}
        )
        self.means = {
            (mean(group.values()), stdev(group.values()))
            for group in by_place.values()
            if 2 <= len(group) <= 10
        }
        for figure in (figure for page in pages for figure in quoted(page)):
            if figure.deviation:
                self.means.add((value_of(figure.text), value_of(figure.deviation)))
            for start in range(len(figure.row) - 2):  # of three seeds in a row
                seeds = [value_of(text) for text in figure.row[start : start + 3]]
                self.means.add((mean(seeds), stdev(seeds)))

    def has(self, figure: Figure) -> bool:
        if figure.deviation:
            return any(
                rounds_to(scale * middle, figure.text)
                and rounds_to(scale * width, figure.deviation)
                for scale, (middle, width) in product(self.scales, self.means)
            ) or is_mean_of_row(figure)
        return self.has_value(figure.text) or is_difference(figure) or is_mean_of_two(figure)

    def has_value(self, text: str) -> bool:
        for scale in self.scales:
            value = value_of(text) / scale
            half = 0.5 * 10.0 ** -decimals(text) * (1.0 + 1e-9) / scale
            nearest = bisect.bisect_left(self.values, value - half)
            if nearest < len(self.values) and self.values[nearest] <= value + half:
                return True
        return False
