"""All senses as one HTML page that needs no network: charts by plotly, and a view of each word."""

from __future__ import annotations

import math
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

import numpy as np
import plotly.graph_objects as go
import torch
from jinja2 import Environment
from matplotlib.ticker import MaxNLocator

from fairseq_kerbs.analysis.context_vectors import project
from fairseq_kerbs.analysis.history import Series, history_charts
from fairseq_kerbs.analysis.occurrences import Occurrence
from fairseq_kerbs.analysis.plots import COLORS
from fairseq_kerbs.analysis.sense_report import Figures
from fairseq_kerbs.analysis.words import BPE_MARK, in_context
from fairseq_kerbs.output_layers import OutputLayer
from fairseq_kerbs.utils.processes import progress

LEAST_POINTS, MOST_POINTS = 4, 60
"""Contexts that a word must have to be drawn, and most that are drawn."""

SIGNS = (("circle", "●"), ("square-open", "□"), ("triangle-up", "▲"), ("diamond-open", "◇"))
"""Marks of a word's senses in the order of their numbers: plotly's name, and in texts."""

_AXES = ("first principal component", "second principal component")
_CONFIG: dict[str, Any] = {
    "modeBarButtons": [["toImage"]],
    "toImageButtonOptions": {"format": "svg"},
    "displaylogo": False,
    "responsive": True,
}


def html_page(
    title: str,
    facts: Mapping[str, str | int],
    report: Figures,
    layer: OutputLayer,
    *,
    found: Iterable[Occurrence] = (),
    history: Series | None = None,
) -> str:
    """The page as text, with names and values (``facts``) at its head, what `build_report` says of
    all words, and, where there are data, occurrences ``found`` of every token.

    Jinja escapes all that comes from corpora, also inside of scripts.
    """
    by_word: dict[str, list[Occurrence]] = defaultdict(list)
    for occurrence in found:
        by_word[occurrence.word].append(occurrence)
    words = []
    for word in progress(report["words"], "plots", " words"):
        dots = context_traces(word["senses"], by_word[word["word"]][:MOST_POINTS], layer)
        senses = [
            {name: one[name] for name in ("name", "row", "count", "examples")}
            | {name: one[name] and round(one[name], 4) for name in ("usage", "theta")}
            | {"nearest": [(near["name"], round(near["score"], 2)) for near in one["nearest"]]}
            for one in word["senses"]
        ]
        words.append(word | {"senses": senses, "dots": dots})
    plane = _figure("Contexts and senses", *_AXES, [])
    plane.update_xaxes(showticklabels=False, zeroline=False)
    plane.update_yaxes(showticklabels=False, zeroline=False, scaleanchor="x")
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    template = (files(__package__) / "report.html").read_text(encoding="utf-8")
    return environment.from_string(template).render(
        title=title,
        facts=facts,
        words=words,
        charts=[
            figure.to_html(config=_CONFIG, full_html=False, include_plotlyjs=number == 0)
            for number, figure in enumerate(_charts(report, history or {}))
        ],
        plane=plane.layout.to_plotly_json(),
        config=_CONFIG,
        with_data=report["with_data"],
        theta=layer.kernel_name if layer.has_theta else None,
        signs=[(text, color) for (_, text), color in zip(SIGNS, COLORS)],
    )


def context_traces(
    senses: Sequence[Figures], found: Sequence[Occurrence], layer: OutputLayer
) -> list[dict[str, Any]]:
    """A word's contexts and sense vectors in the plane of `project`, as plotly draws them. plotly
    reads tags in texts, so they are escaped for it."""
    if len(senses) < 2 or len(found) < LEAST_POINTS:
        return []
    vectors = layer.weight[[sense["row"] for sense in senses]].detach().float()
    plane = project(torch.stack([one.context for one in found]), layer.as_contexts(vectors))
    points = plane.contexts.numpy().round(4).tolist()
    traces = []
    for index, (sense, (x, y)) in enumerate(zip(senses, plane.senses.tolist())):
        own = [place for place, one in enumerate(found) if one.sense == sense["row"]]
        name, sizes = escape(sense["name"]), [18] + [8] * len(own)
        symbol, color = SIGNS[index % 4][0], COLORS[index % 4]
        # the first point is the sense's own vector
        trace = {
            "type": "scatter",
            "mode": "markers",
            "hoverinfo": "text",
            "name": f"{name}: {len(own)} contexts",
            "marker": {"symbol": symbol, "color": color, "size": sizes},
            "x": [x, *(points[place][0] for place in own)],
            "y": [y, *(points[place][1] for place in own)],
            "text": [f"the vector of {name}", *(_tooltip(name, found[p]) for p in own)],
        }
        traces.append(trace)
    return traces


def _tooltip(name: str, one: Occurrence) -> str:
    sentence = in_context(one.tokens, one.position, len(one.tokens))
    sentence = sentence.replace(f"{BPE_MARK} ", "")  # whole words are easier to read
    return "<br>".join([name, *map(escape, textwrap.wrap(sentence, 70))])


def _charts(report: Figures, history: Series) -> list[go.Figure]:
    """The charts of the overview."""
    senses = [sense for word in report["words"] for sense in word["senses"]]
    theta = [sense["theta"] for sense in senses if sense["theta"] is not None]
    by_number, deciles = report["by_number"], [ten["senses"] for ten in report["deciles"]]
    usage = _histogram([sense["usage"] for sense in senses])
    tenth = "tenth of the words, the most frequent first"
    charts = [
        _figure("Words by number of senses", "senses", "words", [go.Bar(x0=1, y=by_number)]),
        _figure("Senses by frequency", tenth, "senses a word", [go.Bar(x0=1, y=deciles)]),
        _figure("Usage", "share of its word's usage", "senses", [usage]),
    ]
    if theta:
        charts.append(_figure("Kernel parameter", "θ", "senses", [_histogram(theta)]))
    for title, label, lines in history_charts(history):
        how = {"cliponaxis": False}  # a mark at the edge is drawn whole
        drawn = [go.Scatter(x=x, y=y, name=name, **how) for name, (x, y) in lines.items()]
        charts.append(_figure(title, "updates", label, drawn))
    return charts


def _histogram(values: Sequence[float]) -> go.Bar:
    """Bars of equal width that begin and end at round values."""
    edges = MaxNLocator(24).tick_values(min(values, default=0), max(values, default=1))
    counts, _ = np.histogram(values, edges)
    width = edges[1] - edges[0]
    return go.Bar(x0=edges[0] + width / 2, dx=width, width=width, y=counts.tolist())


def _figure(title: str, x: str, y: str, data: list[Any]) -> go.Figure:
    """A chart whose values begin and end at a tick."""
    figure = go.Figure(data)
    values = [value for trace in data for value in trace.y if math.isfinite(value)]
    if values:
        least = 0 if isinstance(data[0], go.Bar) else min(values)
        ticks = list(MaxNLocator(6, steps=[1, 2, 5, 10]).tick_values(least, max(values)))
        figure.update_yaxes(tickvals=ticks, range=[ticks[0], ticks[-1]])
    return figure.update_layout(
        title={"text": title, "font": {"size": 14}},  # narrow screens have no more room
        xaxis_title=x,
        yaxis_title=y,
        template="plotly_white",
        height=400,
        margin={"l": 60, "r": 15, "t": 45, "b": 45},
        legend={"orientation": "h", "y": -0.2, "itemsizing": "constant"},
    )
