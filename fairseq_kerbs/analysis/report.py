"""Report of senses as text, as a table, and as an HTML page.

It has usage, θ, names (:mod:`.names`), contexts, nearest senses and gold senses of each sense.
Whole words and pieces of words are lists of their own. The page needs no network. It has the
clearest words and pieces as cards, all others, and charts.
"""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np
import torch
from pandas import DataFrame

from fairseq_kerbs.analysis.names import (
    FORMS_OF_ONE_WORD,
    LEAST_OCCURRENCES,
    NO_NAME,
    Example,
    SenseNames,
)
from fairseq_kerbs.analysis.words import (
    first_items,
    in_context,
    is_always_piece,
    is_proper_entry,
    of_sentencepiece,
    sense_numbers,
    senses_by_frequency,
    usage_shares,
    written_piece,
)
from fairseq_kerbs.output_layers import OutputLayer
from fairseq_kerbs.senses import number_senses
from fairseq_kerbs.utils.progress import progress

Figures = dict[str, Any]
"""Values for JSON by name."""

CARDS = 24  # words that the page shows as cards at once
PAGE_CONTEXT = 20
"""Words on either side of the word in an example of the page: most sentences are whole."""
SIGNS = ("●", "□", "▲", "◇")
"""Marks of the senses of a word by number."""
USAGE_BARS = (
    "Left: each bar counts the senses whose usage lies in this range. Right: each bar counts the "
    "senses with this share in the usage of their word, for words with several senses."
)
FREQUENCY_POINTS = "Each grey point is a word. The black line is the mean of a tenth of the words."
THETA_BARS = "Each bar counts the senses whose θ lies in this range."
HISTORY_LINES = "Each line is a figure that the training logged, by number of updates."
_TRIED = 4  # occurrences that are compared for each example, because sentences repeat
_SCORES = 4 << 20  # maximum number of logits in memory


def training_counts(dictionary: Any) -> list[int]:
    """Occurrences of each entry in the training data, with 0 for special symbols, [V]."""
    return [0] * dictionary.nspecial + dictionary.count[dictionary.nspecial :]


@dataclass(frozen=True)
class ReportSize:
    """How much a report says.

    Args:
        top: number of words and of pieces, 0 for all.
        examples: number of contexts of each sense.
        nearest: number of nearest senses of each sense.
        context: number of words on either side of the word in a context.
    """

    top: int = 20
    examples: int = 2
    nearest: int = 0
    context: int = 6


USUAL_SIZE = ReportSize()


def whole_and_pieces(
    names: SenseNames | None, dictionary: Any, words: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Entries that are whole words, and entries that are pieces of words. Some are both.

    Without data, and if an entry is not in the text, its mark tells whether it is a piece.

    Args:
        names: names of senses, or None without data.
        dictionary: fairseq's dictionary.
        words: entries of it.
    """
    sentencepiece = of_sentencepiece(dictionary.symbols)
    whole = []
    pieces = []
    for word in words:
        entry = dictionary.indices[word]
        is_whole = names is not None and names.is_whole(entry)
        is_piece = names is not None and names.is_piece(entry)
        if not is_whole and not is_piece:
            is_piece = is_always_piece(word, sentencepiece)
            is_whole = not is_piece
        if is_whole:
            whole.append(word)
        if is_piece:
            pieces.append(word)
    return whole, pieces


def build_report(
    names: SenseNames | None,
    layer: OutputLayer,
    dictionary: Any,
    words: Sequence[str] = (),
    *,
    gold: Mapping[int, Mapping[str, int]] | None = None,
    size: ReportSize = USUAL_SIZE,
) -> Figures:
    """Summarize the senses of words.

    Args:
        names: names of senses, or None without data.
        layer, dictionary: the output layer, and the dictionary of its words.
        words: entries of the dictionary, by default the clearest words and pieces, or without data
            those with most senses.
        gold: counts of gold senses, by row of the model's sense.
        size: numbers of words (where ``words`` names none), of contexts and of nearest senses.

    Returns:
        ``words`` with ``word``, ``frequency``, ``log_prob`` (Eq. 12), ``clarity``
        (:meth:`.SenseNames.clarity`), ``forms_of_one_word``
        (:meth:`.SenseNames.forms_of_one_word`, None of a piece) and ``senses`` by decreasing usage:
        ``name`` such as ``seal#2``, ``sense`` (its number), ``row`` in the layer, ``usage``
        (Eq. 13, share in the word), ``theta``, fields of :class:`.SenseName`, ``true_senses``
        (counts of gold senses), ``examples`` and ``nearest`` (:func:`nearest_senses`). ``times``
        and ``share`` are None for an entry that is not in the text.
        ``pieces`` with the same of entries that are pieces of words (:func:`whole_and_pieces`).
        Their ``piece`` is the entry with the mark at the side where the word goes on, such as
        ``@@ier``, and their senses have the ``words`` that it is a part of. The figures of an entry
        that is both are of its occurrences as a word in ``words``, as a piece in ``pieces``.
        An example has the ``text`` with the word in brackets, the ``posterior`` of the sense
        (Eq. 7), and the ``source`` text with the aligned word in brackets, or "". ``span`` and
        ``source_span`` are start and end of the words in the texts without brackets, or None.
        Texts that repeat are one example.
        ``deciles``: see :func:`.senses_by_frequency`. ``by_number``: number of words with 1, 2, …
        senses. ``lines_read``, ``with_data``: number of lines, and whether there are names.
        ``source_side``: see :attr:`.SenseNames.source_side`.
        Unknown values are None or empty.
    """
    symbols = dictionary.symbols
    special = dictionary.nspecial
    counts = training_counts(dictionary)
    proper = [
        number for number, word in enumerate(symbols) if is_proper_entry(word, number, special)
    ]
    several: list[int] = layer.senses_per_word().tolist()
    if words:
        whole, pieces = whole_and_pieces(names, dictionary, list(dict.fromkeys(words)))
    elif names is not None:
        whole = names.clearest(size.top, special)
        pieces = names.clearest_pieces(size.top, special)
    else:
        most = sorted((-several[n], -counts[n], symbols[n]) for n in proper if several[n] > 1)
        whole, pieces = whole_and_pieces(names, dictionary, [word for *_, word in most])
        whole = first_items(whole, size.top)
        pieces = first_items(pieces, size.top)
    lists: dict[bool, list[Figures]] = {False: [], True: []}
    entries = [*((word, False) for word in whole), *((piece, True) for piece in pieces)]
    for word, piece in progress(entries, "senses", " words"):
        entry = dictionary.indices[word]
        figures: Figures = {"word": word, "piece": written_piece(word) if piece else ""}
        figures |= {"frequency": counts[entry], "log_prob": float(layer.log_prob[entry])}
        figures["clarity"] = None if names is None else names.clarity(entry, piece)
        figures["forms_of_one_word"] = None
        if names is not None and not piece:
            figures["forms_of_one_word"] = names.forms_of_one_word(entry)
        figures["senses"] = _senses(layer, entry, figures, names, gold or {}, size)
        lists[piece].append(figures)
    _add_nearest([*lists[False], *lists[True]], layer, symbols, size.nearest, proper)
    return {
        "words": lists[False],
        "pieces": lists[True],
        "deciles": senses_by_frequency(several, counts),
        "by_number": np.bincount([several[n] for n in proper], minlength=1)[1:].tolist(),
        "lines_read": None if names is None else names.lines,
        "with_data": names is not None,
        "source_side": "none" if names is None else names.source_side,
    }


def _senses(
    layer: OutputLayer,
    entry: int,
    word: Figures,
    names: SenseNames | None,
    gold: Mapping[int, Mapping[str, int]],
    size: ReportSize,
) -> list[Figures]:
    """The senses of an entry, as a whole word or as a piece."""
    piece = bool(word["piece"])
    rows = sense_numbers(layer, entry)
    theta = layer.kernel.theta_of(layer.theta[rows].detach()).tolist()
    by_row = {} if names is None else names.names(entry, piece)
    senses: list[Figures] = []
    shares = usage_shares(layer, rows).tolist()
    for number, (row, usage, value) in enumerate(zip(rows, shares, theta), 1):
        name = by_row.get(row, NO_NAME)
        contexts: list[Example] = []
        if names is not None:
            contexts = names.examples(row, entry, _TRIED * size.examples, piece)
        unseen = {} if by_row else {"times": None, "share": None}
        senses.append(
            {
                "name": f"{word['word']}#{number}",
                "sense": number,
                "row": row,
                "usage": usage,
                "theta": value if layer.has_theta else None,
                **name._asdict(),
                **unseen,
                "in_words": name.in_words,
                "translates": name.translates,
                "beside": name.beside,
                "true_senses": dict(Counter(gold.get(row, {})).most_common()),
                "examples": _examples(contexts, size),
                "nearest": [],
            }
        )
    return senses


def _examples(contexts: Sequence[Example], size: ReportSize) -> list[Figures]:
    """The first contexts with different texts, as :func:`build_report` describes them."""
    most = size.context
    found: dict[str, Figures] = {}
    for posterior, words, place, source, source_place in contexts:
        example: Figures = {"text": in_context(words, place, most), "posterior": posterior}
        example["span"] = _span(words, place, most)
        if source_place is None:  # from the start of the line
            example["source"] = " ".join(source[: 2 * most + 1])
            example["source_span"] = None
        else:
            example["source"] = in_context(source, source_place, most)
            example["source_span"] = _span(source, source_place, most)
        found.setdefault(example["text"], example)
    return list(found.values())[: size.examples]


def _span(tokens: Sequence[str], place: int, most: int) -> tuple[int, int]:
    """Start and end of a token in the result of :func:`.in_context` without its brackets."""
    before = tokens[max(0, place - most) : place]
    start = sum(len(token) + 1 for token in before)
    return start, start + len(tokens[place])


def _add_nearest(
    words: list[Figures], layer: OutputLayer, symbols: Sequence[str], most: int, proper: list[int]
) -> None:
    """Add the nearest senses with ``name``, ``row`` and ``score`` to each sense."""
    numbers = number_senses(layer.word_of_sense, layer.usage).tolist()
    names = [f"{symbols[w]}#{n}" for w, n in zip(layer.word_of_sense.tolist(), numbers)]
    ignored = sorted(set(range(len(symbols))) - set(proper))
    senses = [sense for word in words for sense in word["senses"]]
    nearest = nearest_senses(layer, [sense["row"] for sense in senses], most, ignored)
    for sense, near in zip(senses, nearest if most else ()):
        sense["nearest"] = [{"name": names[row], "row": row, "score": score} for row, score in near]


@torch.no_grad()
def nearest_senses(
    layer: OutputLayer, senses: Sequence[int], number: int, ignored: Sequence[int] = ()
) -> Iterator[list[tuple[int, float]]]:
    """Senses with the highest logits K(w, w'; θ') if the embedding w of a sense is the context.

    Yields for each of the ``senses`` rows and logits of the nearest other ones in descending order.
    Senses of ``ignored`` words, such as special symbols, are left out.
    """
    excluded = torch.isin(layer.word_of_sense, torch.tensor([*ignored], dtype=torch.long))  # [M]
    number = max(0, min(number, int((~excluded).sum()) - 1))
    rows = max(1, _SCORES // layer.total_senses)
    everything = torch.arange(layer.total_senses)
    parts = torch.tensor(list(senses), dtype=torch.long).split(rows)
    for part in progress(parts, "nearest senses", " parts"):
        contexts = layer.as_contexts(layer.weight[part].float())  # [n, d]
        logits = layer.sense_logits(contexts, everything)  # [n, M]
        logits[:, excluded] = -torch.inf
        logits.scatter_(1, part.unsqueeze(1), -torch.inf)  # itself
        scores, nearest = logits.topk(number, dim=1)
        for row in zip(nearest.tolist(), scores.tolist()):
            yield list(zip(*row))


def _true_senses(sense: Figures) -> list[str]:
    return [f"{name} {times}" for name, times in sense["true_senses"].items()]


def report_table(report: Figures) -> DataFrame:
    """Table with a row for each example, or for a sense without examples."""
    rows = []
    shared_keys = ("word", "piece", "frequency", "log_prob", "clarity", "forms_of_one_word")
    for word in [*report["words"], *report["pieces"]]:
        shared = {key: word[key] for key in shared_keys}
        for sense in word["senses"]:
            row = shared | {"senses": len(word["senses"])} | sense
            row["true_senses"] = "; ".join(_true_senses(sense))
            row["nearest"] = "; ".join("{name} {score:.6g}".format(**n) for n in sense["nearest"])
            for example in sense["examples"] or [{}]:
                cells = {"posterior": example.get("posterior"), "example": example.get("text")}
                rows.append(row | cells)
    omitted = ["sources", "neighbours", "turn", "words", "examples"]
    return DataFrame(rows).drop(columns=omitted, errors="ignore")


def report_as_text(report: Figures) -> str:
    """Text of the report for a terminal."""
    words = report["words"]
    pieces = report["pieces"]
    total = max(1, sum(report["by_number"]))
    parts = [_word_lines(word, report["with_data"]) for word in words]
    if pieces:
        parts.append("Pieces of words")
        parts += [_word_lines(piece, report["with_data"]) for piece in pieces]
    if not words and not pieces:
        least = ""
        if report["with_data"]:
            least = f" and {LEAST_OCCURRENCES} occurrences in these lines"
        parts.append(f"no word has several senses{least}; select words by --word")
    by_number = DataFrame(list(enumerate(report["by_number"], 1)), columns=["senses", "words"])
    by_number["share"] = [f"{number / total:.1%}" for number in by_number["words"]]
    parts.append(by_number.to_string(index=False))
    if report["deciles"]:
        deciles = DataFrame(report["deciles"])
        deciles.insert(0, "decile", range(1, len(deciles) + 1))
        deciles["most"] = deciles["most"].astype(str) + "–" + deciles.pop("fewest").astype(str)
        deciles = deciles.rename(columns={"most": "occurrences", "senses": "senses per word"})
        parts.append(deciles.to_string(index=False, float_format="%.3f"))
    if report["lines_read"] is not None:
        parts.append(f"shares and names from {report['lines_read']} lines")
    return "\n\n".join(parts)


def _word_lines(word: Figures, with_data: bool) -> str:
    senses = word["senses"]
    share = "share" if with_data else "usage"
    table = DataFrame(senses)[["name", share, "theta", "in_words", "translates", "beside"]]
    table[share] = ["–" if s[share] is None else f"{s[share]:.0%}" for s in senses]
    table["theta"] = [f"{t:+.3f}" if t is not None else "–" for t in table["theta"]]
    if all(sense["theta"] == 0 for sense in senses):  # as after 'fairseq-kerbs convert'
        table = table.drop(columns="theta")
    heads = {"name": "sense", "theta": "θ", "in_words": "words", "beside": "neighbours"}
    table = table.rename(columns=heads).loc[:, table.ne("").any().values]
    sides = ["right" if head in (share, "θ") else "left" for head in table.columns]
    text = table.to_markdown(index=False, tablefmt="plain", disable_numparse=True, colalign=sides)
    head, *rows = text.splitlines()
    several = "s" if len(senses) > 1 else ""
    title = f"{word['piece'] or word['word']}: {len(senses)} sense{several}, "
    title += f"{word['frequency']} times in the training data"
    read = sum(sense["times"] or 0 for sense in senses)
    if with_data and not read:
        title += ", never in the lines that were read"
    elif with_data and read != word["frequency"]:
        # an entry of the dictionary can be a word, and a piece of others
        kind = "a piece of a longer word" if word["piece"] else "a word"
        title += f", {read} times as {kind} in the lines that were read"
    if word["forms_of_one_word"]:
        title += f"; {FORMS_OF_ONE_WORD}"
    lines = [title, f"  {head}"]
    for sense, row in zip(senses, rows):
        lines.append(f"  {row}")
        true = _true_senses(sense)
        if true:
            lines.append(f"      true: {', '.join(true)}")
        near = ["{name} {score:.2f}".format(**nearest) for nearest in sense["nearest"]]
        if near:
            lines.append(f"      nearest: {', '.join(near)}")
        lines += ["      {posterior:.2f}  {text}".format(**e) for e in sense["examples"]]
    return "\n".join(line.rstrip() for line in lines)


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
    """The report as an HTML page. Jinja escapes text from corpora, also in scripts.

    Args:
        facts: names and values at the top.
        report: result of :func:`build_report` for all words.
        counts: occurrences of words in the training data, [V].
        clearest: words that the page shows first, in their order, and the same of pieces, written
            as the ``piece`` of the report. Without words and pieces the page has no cards.
        history: result of :func:`.read_history`.
    """
    from jinja2 import Environment

    from fairseq_kerbs.analysis import plots

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    template = (files(__package__) / "report.html").read_text(encoding="utf-8")
    rank = {word: number for number, word in enumerate(clearest)}
    texts: dict[str, int] = {}
    words, clear_words = _page_words(report["words"], rank, texts)
    pieces, clear_pieces = _page_words(report["pieces"], rank, texts)
    everything = [*report["words"], *report["pieces"]]
    theta = layer.kernel.theta_of(layer.theta.detach())
    curved = layer.has_theta and bool(theta.any())  # after convert every θ is 0
    return environment.from_string(template).render(
        title=title,
        facts=facts,
        words=words,
        pieces=pieces,
        texts=list(texts),
        cards=CARDS,
        clear_words=clear_words,
        clear_pieces=clear_pieces,
        forms_of_one_word=FORMS_OF_ONE_WORD,
        by_number=report["by_number"],
        charts=_charts(report, layer, counts, history, with_theta=curved),
        lines_read=report["lines_read"],
        with_data=report["with_data"],
        source_side=report["source_side"],
        nearest=any(sense["nearest"] for word in everything for sense in word["senses"]),
        theta=layer.kernel_name if curved else None,
        signs=list(zip(SIGNS, plots.COLORS)),
    )


def _page_words(
    words: Sequence[Figures], rank: Mapping[str, int], texts: dict[str, int]
) -> tuple[list[Figures], int]:
    """The figures of words or of pieces, the clearest first, and the number of these."""
    ranks = [rank.get(word["piece"] or word["word"], len(rank)) for word in words]
    order = sorted(range(len(words)), key=lambda number: ranks[number])
    clear = sum(place < len(rank) for place in ranks)
    return [_page_word(words[number], texts) for number in order], clear


def _page_word(word: Figures, texts: dict[str, int]) -> Figures:
    """The part of a word's figures that the page uses, with four significant digits.

    An example becomes the number of its text, start and end of the word, and the same of the source
    text. Each text is added to ``texts`` once, with its number, because examples share sentences.
    """
    used = ("name", "row", "usage", "theta", "times", "share", "in_words", "translates", "beside")
    senses = []
    for sense in word["senses"]:
        shown = {key: _rounded(sense[key]) for key in used}
        shown["nearest"] = [
            {"name": near["name"], "score": _rounded(near["score"])} for near in sense["nearest"]
        ]
        shown["examples"] = [_page_example(example, texts) for example in sense["examples"]]
        senses.append(shown)
    kept = ("word", "piece", "frequency", "log_prob", "forms_of_one_word")
    figures = {key: _rounded(word[key]) for key in kept}
    return figures | {"senses": senses}


def _rounded(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _page_example(example: Figures, texts: dict[str, int]) -> list[int | None]:
    """Numbers of both texts without brackets, each followed by start and end of its word."""
    numbers: list[int | None] = []
    for key, span in (("text", example["span"]), ("source", example["source_span"])):
        text = example[key]
        if span is not None:
            start, end = span
            text = text[:start] + text[start + 1 : end + 1] + text[end + 2 :]
        numbers.append(texts.setdefault(text, len(texts)))
        numbers += span or (None, None)
    return numbers


def _charts(
    report: Figures,
    layer: OutputLayer,
    counts: Sequence[int],
    history: DataFrame | None,
    *,
    with_theta: bool,
) -> list[dict[str, str]]:
    """The charts that the data allow, each with what it shows."""
    from fairseq_kerbs.analysis import plots

    charts = [_image(plots.plot_usage(layer.usage, layer.word_of_sense), USAGE_BARS)]
    if any(counts):
        frequency = plots.plot_frequency(layer.senses_per_word().tolist(), counts)
        charts.append(_image(frequency, FREQUENCY_POINTS))
    if with_theta:
        words = [*report["words"], *report["pieces"]]
        theta = {sense["row"]: sense["theta"] for word in words for sense in word["senses"]}
        charts.append(_image(plots.plot_theta_histogram(list(theta.values())), THETA_BARS))
    if history is not None:
        charts.append(_image(plots.plot_history(history), HISTORY_LINES))
    return charts


def _image(figure: Any, caption: str) -> dict[str, str]:
    """A chart as a data URL, with its alternative text and caption."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=100)
    text = base64.b64encode(stream.getvalue()).decode()
    titles = "; ".join(axes.get_title() for axes in figure.axes)
    return {"src": f"data:image/png;base64,{text}", "alt": titles, "caption": caption}
