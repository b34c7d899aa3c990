"""Senses of words: usage, θ, what they translate and stand beside, contexts, nearest senses, and
gold senses where they are known; for a terminal, as a table, and as one HTML page.

The page needs no network. It has the clearest words as cards, every word, and charts.
"""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any

import numpy as np
import torch
from pandas import DataFrame

from fairseq_kerbs.analysis.names import NO_NAME, SenseNames
from fairseq_kerbs.analysis.words import (
    in_context,
    is_word,
    sense_numbers,
    senses_by_frequency,
    usage_shares,
)
from fairseq_kerbs.output_layers import OutputLayer
from fairseq_kerbs.senses import number_senses
from fairseq_kerbs.utils.processes import progress

Figures = dict[str, Any]
"""What is written as JSON, by name."""

CARDS = 24  # words of the page's gallery
SIGNS = ("●", "□", "▲", "◇")
"""Marks of a word's senses in the order of their numbers."""
_CONTEXT = 6  # words shown on either side
_SCORES = 4 << 20  # logits that are kept at a time


def training_counts(dictionary: Any) -> list[int]:
    """[V] occurrences in the training data, 0 of fairseq's special symbols."""
    return [0] * dictionary.nspecial + dictionary.count[dictionary.nspecial :]


def build_report(
    names: SenseNames | None, layer: OutputLayer, dictionary: Any, words: Sequence[str] = (), *,
    gold: Mapping[int, Mapping[str, int]] | None = None,
    top: int = 20, examples: int = 2, nearest: int = 0,
) -> Figures:  # fmt: skip
    """Summarize the senses of some words.

    Args:
        names: what senses translate and stand beside; None where there are no data.
        words: entries of the dictionary, by default the ``top`` (all with 0) whose senses are
            clearest, or without data those with most senses.
        gold: how often each gold sense is met, by row of the sense.
        examples, nearest: contexts and neighbours of each sense.

    Returns:
        ``words``: ``word``, ``frequency``, ``log_prob`` (Eq. 12), ``clarity``
        (:meth:`SenseNames.clarity`) and ``senses``, the most used first: ``name``, such as
        ``seal#2``, ``sense`` (its number), ``row`` in the layer, ``usage`` (Eq. 13, a share of the
        word's), ``theta``, what :class:`SenseName` has, ``true_senses`` (how often each is met),
        ``examples`` (the surest) and ``nearest`` (`nearest_senses`);
        ``deciles``, see `senses_by_frequency`; ``by_number``, words with 1, 2, … senses;
        ``lines_read``, of the data, and ``with_data``. What is not known is None or empty.
    """
    symbols, special, counts = dictionary.symbols, dictionary.nspecial, training_counts(dictionary)
    proper = [number for number, word in enumerate(symbols) if is_word(word, number, special)]
    several: list[int] = layer.senses_per_word().tolist()
    wanted = list(dict.fromkeys(words))
    if not wanted and names is not None:
        wanted = names.clearest(top, special)
    elif not wanted:
        most = sorted((-several[n], -counts[n], symbols[n]) for n in proper if several[n] > 1)
        wanted = [word for *_, word in most[: top or None]]
    summaries = []
    for word in progress(wanted, "senses", " words"):
        entry = dictionary.indices[word]
        figures = {"word": word, "frequency": counts[entry]}
        figures |= {"log_prob": float(layer.log_prob[entry])}
        figures["clarity"] = None if names is None else names.clarity(entry)
        senses = _senses(layer, entry, word, names, gold or {}, examples)
        summaries.append(figures | {"senses": senses})
    _add_nearest(summaries, layer, symbols, nearest, proper)
    return {
        "words": summaries,
        "deciles": senses_by_frequency(several, counts),
        "by_number": np.bincount([several[n] for n in proper], minlength=1)[1:].tolist(),
        "lines_read": None if names is None else names.lines,
        "with_data": names is not None,
    }


def _senses(
    layer: OutputLayer, entry: int, word: str, names: SenseNames | None,
    gold: Mapping[int, Mapping[str, int]], examples: int,
) -> list[Figures]:  # fmt: skip
    rows = sense_numbers(layer, entry)
    by_row = {} if names is None else names.names(entry)
    senses: list[Figures] = []
    for number, (row, usage) in enumerate(zip(rows, usage_shares(layer, rows).tolist()), 1):
        name = by_row.get(row, NO_NAME)
        contexts = [] if names is None else names.examples(row, entry, examples)
        senses.append(
            {
                "name": f"{word}#{number}",
                "sense": number,
                "row": row,
                "usage": usage,
                "theta": layer.theta[row].item() if layer.has_theta else None,
                **name._asdict(),
                "translates": name.translates,
                "beside": name.beside,
                "true_senses": dict(Counter(gold.get(row, {})).most_common()),
                "examples": [
                    {"text": in_context(words, place, _CONTEXT), "posterior": posterior}
                    for posterior, words, place in contexts
                ],
                "nearest": [],
            }
        )
    return senses


def _add_nearest(
    words: list[Figures], layer: OutputLayer, symbols: Sequence[str], most: int, proper: list[int]
) -> None:
    """To every sense of words the ``name`` and ``row`` of its nearest ones, and their ``score``."""
    owners: list[int] = layer.word_of_sense.tolist()
    numbers: list[int] = number_senses(layer.word_of_sense, layer.usage).tolist()
    ignored = sorted(set(range(len(symbols))) - set(proper))
    senses = [sense for word in words for sense in word["senses"]]
    found = nearest_senses(layer, [sense["row"] for sense in senses], most, ignored)
    for sense, near in zip(senses, found if most else ()):
        sense["nearest"] = [
            {"name": f"{symbols[owners[row]]}#{numbers[row]}", "row": row, "score": score}
            for row, score in near
        ]


@torch.no_grad()
def nearest_senses(
    layer: OutputLayer, senses: Sequence[int], number: int, ignored: Sequence[int] = ()
) -> Iterator[list[tuple[int, float]]]:
    """The ``number`` senses with the highest logits, were the vector of another one the context.

    Yields for each of ``senses`` the others with their logits K(w, w'; θ'), the highest first; none
    of the words ``ignored``, such as fairseq's special symbols.
    """
    left_out = torch.isin(layer.word_of_sense, torch.tensor([*ignored], dtype=torch.long))  # [M]
    number = max(0, min(number, int((~left_out).sum()) - 1))
    rows, everything = max(1, _SCORES // layer.total_senses), torch.arange(layer.total_senses)
    parts = torch.tensor(list(senses), dtype=torch.long).split(rows)
    for part in progress(parts, "nearest senses", " parts"):
        contexts = layer.as_contexts(layer.weight[part].float())  # [n, d]
        logits = layer.sense_logits(contexts, everything)  # [n, M]
        logits[:, left_out] = -torch.inf
        logits.scatter_(1, part.unsqueeze(1), -torch.inf)  # itself
        scores, nearest = logits.topk(number, dim=1)
        for row in zip(nearest.tolist(), scores.tolist()):
            yield list(zip(*row))


# --- for a terminal, and as a table ---------------------------------------------------------------


def _true_senses(sense: Figures) -> list[str]:
    return [f"{name} {times}" for name, times in sense["true_senses"].items()]


def report_table(report: Figures) -> DataFrame:
    """One row an example, or a sense that has none; the figures of a sense are on each row."""
    rows = []
    for word in report["words"]:
        shared = {key: word[key] for key in ("word", "frequency", "log_prob", "clarity")}
        for sense in word["senses"]:
            row = shared | {"senses": len(word["senses"])} | sense
            row["true_senses"] = "; ".join(_true_senses(sense))
            row["nearest"] = "; ".join("{name} {score:.6g}".format(**n) for n in sense["nearest"])
            for example in sense["examples"] or [{}]:
                shown = {"posterior": example.get("posterior"), "example": example.get("text")}
                rows.append(row | shown)
    hidden = ["sources", "neighbours", "turn", "examples"]
    return DataFrame(rows).drop(columns=hidden, errors="ignore")


def report_as_text(report: Figures) -> str:
    """The report for a terminal."""
    words, total = report["words"], max(1, sum(report["by_number"]))
    parts = [_word_lines(word, report["with_data"]) for word in words]
    if not words:
        parts.append("no word here has several senses; name words with --word to see them")
    by_number = DataFrame({"words": report["by_number"]})
    by_number.insert(0, "senses", range(1, len(by_number) + 1))
    by_number["share"] = [f"{number / total:.1%}" for number in by_number["words"]]
    parts.append(by_number.to_string(index=False))
    if report["deciles"]:
        deciles = DataFrame(report["deciles"])
        deciles.insert(0, "decile", range(1, len(deciles) + 1))
        between = deciles["most"].astype(str) + "–" + deciles.pop("fewest").astype(str)
        deciles["most"] = between
        titles = {"most": "occurrences", "senses": "senses per word"}
        text = deciles.rename(columns=titles).to_string(index=False, float_format="%.3f")
        parts.append(text)
    if report["lines_read"] is not None:
        parts.append(f"shares and names by {report['lines_read']} lines")
    return "\n\n".join(parts)


def _word_lines(word: Figures, with_data: bool) -> str:
    senses, share = word["senses"], "share" if with_data else "usage"
    table = DataFrame(senses)[["name", share, "theta", "translates", "beside"]]
    table[share] = table[share].map("{:.0%}".format)
    table["theta"] = [f"{t:+.3f}" if t is not None else "–" for t in table["theta"]]
    heads = {"name": "sense", "theta": "θ", "beside": "neighbours"}
    table = table.rename(columns=heads).loc[:, table.ne("").any().values]
    sides = ["left", "right", "right", "left", "left"][: table.shape[1]]
    text = table.to_markdown(index=False, tablefmt="plain", disable_numparse=True, colalign=sides)
    head, *rows = text.splitlines()
    several = "s" if len(senses) > 1 else ""
    lines = [f"{word['word']}: {len(senses)} sense{several}, ", f"  {head}"]
    lines[0] += f"{word['frequency']} times in the training data"
    for sense, row in zip(senses, rows):
        lines.append(f"  {row}")
        if true := _true_senses(sense):
            lines.append(f"      true: {', '.join(true)}")
        if near := ["{name} {score:.2f}".format(**near) for near in sense["nearest"]]:
            lines.append(f"      nearest: {', '.join(near)}")
        lines += ["      {posterior:.2f}  {text}".format(**each) for each in sense["examples"]]
    return "\n".join(line.rstrip() for line in lines)


# --- in a browser ---------------------------------------------------------------------------------


def html_page(
    title: str, facts: Mapping[str, str | int], report: Figures, layer: OutputLayer, *,
    counts: Sequence[int] = (), clearest: Sequence[str] = (), history: DataFrame | None = None,
) -> str:  # fmt: skip
    """The page as text. Jinja escapes all that comes from corpora, also inside of scripts.

    Args:
        facts: names and values at its head.
        report: what `build_report` says of all words.
        counts: [V] occurrences of words in the training data.
        clearest: words whose senses differ most surely, for the gallery.
        history: what `read_history` gives.
    """
    from jinja2 import Environment

    from fairseq_kerbs.analysis import plots

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    template = (files(__package__) / "report.html").read_text(encoding="utf-8")
    charts = [plots.plot_usage(layer.usage, layer.word_of_sense)]
    if any(counts):
        charts.append(plots.plot_frequency(layer.senses_per_word().tolist(), counts))
    if layer.has_theta:
        theta = [sense["theta"] for word in report["words"] for sense in word["senses"]]
        charts.append(plots.plot_theta_histogram(theta))
    if history is not None:
        charts.append(plots.plot_history(history))
    return environment.from_string(template).render(
        title=title,
        facts=facts,
        words=_shown(report["words"]),
        cards=list(clearest)[:CARDS],
        by_number=report["by_number"],
        charts=list(map(_image, charts)),
        with_data=report["with_data"],
        nearest=any(sense["nearest"] for word in report["words"] for sense in word["senses"]),
        theta=layer.kernel_name if layer.has_theta else None,
        signs=list(zip(SIGNS, plots.COLORS)),
    )


def _shown(value: Any) -> Any:
    """What the page needs of a report: no parts of names, and no more digits than are seen."""
    if isinstance(value, dict):
        hidden = ("sources", "neighbours", "turn", "true_senses")
        return {key: _shown(each) for key, each in value.items() if key not in hidden}
    if isinstance(value, list):
        return [_shown(each) for each in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _image(figure: Any) -> dict[str, str]:
    """A chart as an address that holds it, and what it shows."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=100)
    text = base64.b64encode(stream.getvalue()).decode()
    titles = "; ".join(axes.get_title() for axes in figure.axes)
    return {"src": f"data:image/png;base64,{text}", "alt": titles}
