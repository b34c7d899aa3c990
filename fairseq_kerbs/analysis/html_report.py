"""All senses as one HTML page that needs no network: the clearest words as cards, every word with
what its senses translate and stand beside, and charts of the whole model."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from jinja2 import Environment
from matplotlib.figure import Figure
from pandas import DataFrame

from fairseq_kerbs.analysis import plots
from fairseq_kerbs.analysis.sense_report import Figures, name_of
from fairseq_kerbs.output_layers import OutputLayer

CARDS = 24  # words of the gallery
SIGNS = ("●", "□", "▲", "◇")
"""Marks of a word's senses in the order of their numbers."""


def html_page(
    title: str,
    facts: Mapping[str, str | int],
    report: Figures,
    layer: OutputLayer,
    *,
    counts: Sequence[int] = (),
    clearest: Sequence[str] = (),
    history: DataFrame | None = None,
) -> str:
    """The page as text. Jinja escapes all that comes from corpora, also inside of scripts.

    Args:
        facts: names and values at its head.
        report: what `build_report` says of all words.
        counts: [V] occurrences of words in the training data.
        clearest: words whose senses differ most surely, for the gallery.
        history: what `read_history` gives.
    """
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    template = (files(__package__) / "report.html").read_text(encoding="utf-8")
    charts = [plots.plot_usage(layer.usage, layer.word_of_sense)]
    if any(counts):
        charts.append(plots.plot_frequency(layer.senses_per_word().tolist(), counts))
    senses = [sense for word in report["words"] for sense in word["senses"]]
    if layer.has_theta:
        charts.append(plots.plot_theta_histogram([sense["theta"] for sense in senses]))
    if history is not None:
        charts.append(plots.plot_history(history))
    return environment.from_string(template).render(
        title=title,
        facts=facts,
        words=[_word(word) for word in report["words"]],
        cards=list(clearest)[:CARDS],
        by_number=report["by_number"],
        charts=[_image(figure) for figure in charts],
        with_data=report["with_data"],
        nearest=any(sense["nearest"] for sense in senses),
        theta=layer.kernel_name if layer.has_theta else None,
        signs=list(zip(SIGNS, plots.COLORS)),
    )


def _word(word: Figures) -> Figures:
    """What the page shows of a word."""
    senses = []
    for sense in word["senses"]:
        name = name_of(sense)
        shown = {key: sense[key] for key in ("name", "row", "times", "examples")}
        shown |= {key: sense[key] and round(sense[key], 4) for key in ("usage", "theta", "share")}
        shown |= {"translates": name.translates, "beside": name.beside}
        near = [(other["name"], round(other["score"], 2)) for other in sense["nearest"]]
        senses.append(shown | {"nearest": near})
    head = {key: word[key] for key in ("word", "frequency", "log_prob", "clarity")}
    return head | {"senses": senses}


def _image(figure: Figure) -> dict[str, Any]:
    """A chart as an address that holds it, and what it shows."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=100)
    text = base64.b64encode(stream.getvalue()).decode()
    titles = "; ".join(axes.get_title() for axes in figure.axes)
    return {"src": f"data:image/png;base64,{text}", "alt": titles}
