"""Figures in the tables of README.md and results/ are those of the CSVs and raw files."""

import random
from functools import cache
from pathlib import Path

import pytest

from scripts.experiments.figures import RESULTS
from tests.helpers.quoted_figures import Figure, Stored, decimals, quoted, value_of

ROOT = RESULTS.parent
SUMMARIES = [ROOT / "README.md", RESULTS / "README.md"]
PAGES = [*SUMMARIES, *(page for page in sorted(RESULTS.glob("*/*.md")) if quoted(page))]

NOT_STORED = {
    "clusters/README.md": ("computed", {"1.13", "1.18", "1.36", "1.45", "1.47", "1.54"}),
    "init_scale/README.md": ("not stored", {"3.137", "3.337"}),
    "toy/README.md": ("not stored", {"0.122 ± 0.006", "0.123 ± 0.006"}),
}
"""Figures of pages that no file has, and what the page says of them."""

OTHERS = {
    "clusters": ["tables", "senses"],  # its tables repeat rows of these pages
    "senses": ["clusters"],  # which has the models that it compares with
}
"""Folders beside its own in which figures of a page are looked up."""


def folders(page: Path) -> list[Path]:
    """The folders of results/ whose files may have what a page quotes."""
    if page in SUMMARIES:
        return sorted({other.parent for other in PAGES if other not in SUMMARIES})
    return [page.parent, *(RESULTS / name for name in OTHERS.get(page.parent.name, ()))]


stored_in = cache(Stored)  # pages of one folder are looked up in the same files


def stored(page: Path) -> Stored:
    """What the figures of a page are looked up in. A summary also quotes other pages."""
    places = tuple(folders(page))
    others = tuple(other for folder in places for other in sorted(folder.glob("*.md")))
    return stored_in(places, others if page in SUMMARIES else ())


def written(figure: Figure) -> str:
    return f"{figure.text} ± {figure.deviation}" if figure.deviation else figure.text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_figures_of_tables_are_stored(page: Path) -> None:
    name = str(page.relative_to(RESULTS)) if page.is_relative_to(RESULTS) else page.name
    reason, known = NOT_STORED.get(name, ("", set()))
    assert reason in page.read_text(encoding="utf-8")
    missing = {written(f): f.line for f in quoted(page) if not stored(page).has(f)}
    assert {text: line for text, line in missing.items() if text not in known} == {}
    assert known <= missing.keys()


def shifted(figure: Figure, by: int) -> Figure:
    """A figure whose last digit is another one."""
    digits = decimals(figure.text)
    text = f"{value_of(figure.text) + by * 10.0**-digits:.{digits}f}"
    return figure._replace(text=text)


def test_a_changed_figure_is_noticed() -> None:
    """Of means with deviations nearly always. Single numbers may be found by chance."""
    draw = random.Random(1)
    noticed: dict[bool, list[bool]] = {True: [], False: []}
    for page in PAGES:
        for figure in quoted(page):
            changed = shifted(figure, draw.choice((-7, -4, -3, 3, 4, 7)))
            noticed[bool(figure.deviation)].append(not stored(page).has(changed))
    shares = {kind: sum(found) / len(found) for kind, found in noticed.items()}
    assert shares[True] > 0.9, shares
    assert shares[False] > 0.3, shares
