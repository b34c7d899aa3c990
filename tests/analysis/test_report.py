"""The report of senses as text and as HTML: one file, no request, text stays text, same figures."""

import html
import json
import math
import os
import re
import shutil
import subprocess
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.data import Dictionary
from matplotlib.figure import Figure

from fairseq_kerbs.analysis import plots
from fairseq_kerbs.analysis import words as entries
from fairseq_kerbs.analysis.names import SenseNames
from fairseq_kerbs.analysis.occurrences import read_text
from fairseq_kerbs.analysis.report import (
    ReportSize,
    build_report,
    html_page,
    nearest_senses,
    report_as_text,
)
from fairseq_kerbs.analysis.words import sense_numbers
from fairseq_kerbs.checkpoints import load_layer, load_model_and_task
from fairseq_kerbs.kernels import kerbs_kernel
from fairseq_kerbs.output_layers import KerbsOutputLayer, OutputLayer, SoftmaxOutputLayer
from fairseq_kerbs.training.sense_updates import summarize
from tests.analysis.conftest import Trained, text_of
from tests.helpers import HANGS
from tests.helpers.cli import Capsys, Patch, Reported, kerbs
from tests.helpers.fairseq_fixtures import dictionary, make_model

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
EVIL = "<img src=x onerror=document.title='caught'>"
HOSTILE = [
    "</script>",
    "<b>",
    "<!--",
    "]]>",
    "&amp;",
    "\u2028",
    '"',
    "'",
    "\\",
    "{{ 1 }}",
    "#word=%",
    "<script>document.title='caught'</script>",
    "ban@@",
    EVIL,
    "日本語",
]


VOID = ("meta", "img", "input", "br")  # elements without an end


UNRANKED = HOSTILE[-2:]  # which the page shows only on request


class _Parts(HTMLParser):
    """Elements of a page, the tags and classes around each, its scripts, and its legend."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.around: list[list[str]] = []
        self.scripts: list[str] = []
        self.legend = ""
        self._open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.around.append([*self._open])
        if tag not in VOID:
            self._open.append(f"{tag}.{dict(attrs).get('class')}")
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop().partition(".")[0] == tag

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts[-1] += data
        if "details.legend" in self._open:
            self.legend += data


def data_of(page: str, name: str) -> Any:
    """A value in the page's own script, which comes last."""
    return json.JSONDecoder().raw_decode(_Parts(page).scripts[-1].partition(f"{name} = ")[2])[0]


def words_of(page: str) -> dict[str, Any]:
    """The words of the page by word, with examples as text, its word, source text and its word."""
    texts = data_of(page, "texts")
    words = {word["word"]: word for word in data_of(page, "words")}
    for word in words.values():
        for sense in word["senses"]:
            shown = []
            for target, start, end, source, source_start, source_end in sense["examples"]:
                named = None if source_start is None else texts[source][source_start:source_end]
                shown.append((texts[target], texts[target][start:end], texts[source], named))
            sense["examples"] = shown
    return words


def legend_of(page: str) -> str:
    """The explanation at the top of a page, as one line."""
    return " ".join(_Parts(page).legend.split())


@pytest.fixture(scope="module")
def hostile() -> str:
    """The page of words that are markup, and of the piece "ier", which ends one of them."""
    torch.manual_seed(1)
    words = Dictionary()
    for word in [*HOSTILE, "ier"]:
        words.add_symbol(word)
    layer = KerbsOutputLayer(3, len(words), 4 * len(words))
    entries = [number for number in range(4, len(words)) for _ in range(5)]
    tokens = [(line, 1, n, sense_numbers(layer, n)[0]) for line, n in enumerate(entries)]
    piece = words.index("ier")
    lines = [["a", words[number], "b", *HOSTILE] for number in entries]
    for line, number in zip(lines, entries):
        line[1] = f"{EVIL}ier" if number == piece else line[1]
    text = text_of(lines, tokens)
    text.tokens["piece"] = text.tokens["entry"] == piece
    given = [*HOSTILE, "ier"]
    report = build_report(
        SenseNames(text, words.symbols), layer, words, given, size=ReportSize(nearest=2)
    )
    report["words"][0]["forms_of_one_word"] = True  # which the page says
    title = "</title><script>document.title='caught'</script>"
    facts = {"checkpoint": "</script><b>.pt"}
    clearest = [*HOSTILE[: -len(UNRANKED)], "@@ier"]
    return html_page(title, facts, report, layer, counts=[1] * len(words), clearest=clearest)


def test_any_text_stays_text_and_nothing_is_asked_of_the_network(hostile: str) -> None:
    words = words_of(hostile)
    assert list(words) == HOSTILE
    around = " ".join(HOSTILE[:5])  # as much as six words of the context hold
    for name, word in words.items():
        ((text, bold, source, named),) = word["senses"][0]["examples"]
        assert text.startswith(f"a {name} b {around}")
        assert (bold, source, named) == (name, "", None)
    parts = _Parts(hostile)
    elements = [tag for tag, _ in parts.elements]
    assert (elements.count("b"), elements.count("title")) == (0, 1)
    assert "<title>&lt;/title&gt;&lt;script&gt;" in hostile
    assert not set("<>\u2028\u2029") & set(parts.scripts[-1].split("const most")[0])
    images = [attributes["src"] or "" for tag, attributes in parts.elements if tag == "img"]
    assert len(images) == 3
    assert all(image.startswith("data:image/png;base64,") for image in images)
    for tag, attributes in parts.elements:
        assert tag == "img" or "src" not in attributes
        assert tag not in ("link", "iframe", "object", "embed")
        assert (attributes.get("href") or "#").startswith("#")
    policy = next(a["content"] or "" for _, a in parts.elements if a.get("http-equiv"))
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-")
    assert not re.search(r"\b(http|ws)s?:|\*", policy)
    assert len(hostile) < 300_000


def test_data_of_the_page_are_the_models(
    trained: Trained, tmp_path: Path, capsys: Capsys, reported: Reported
) -> None:
    output = tmp_path / "report.html"
    given = trained.kerbs, "--data", trained.data, "--nearest", 3, "--examples", 2
    kerbs(capsys, "report", *given, "--log", trained.log, "-o", output)
    page = output.read_text(encoding="utf-8")
    for title in ("Words by number of senses, over training", "Senses moved", "Kernel parameter"):
        assert title in page
    words = words_of(page)
    assert not {"</s>", "madeupword0000"} & set(words)
    clearest = [word["word"] for word in reported("senses", *given, "--top", 0)[1]["words"]]
    assert clearest
    assert list(words)[: len(clearest)] == clearest
    assert f"First come {len(clearest)} words, by how" in legend_of(page)
    (expected,) = reported("senses", *given, "--word", "the")[1]["words"]
    shown = words["the"]
    assert shown["log_prob"] == pytest.approx(expected["log_prob"], rel=1e-3)
    for one, sense in zip(shown["senses"], expected["senses"], strict=True):
        for name in ("name", "row", "times", "translates", "beside"):
            assert one[name] == sense[name]
        for name in ("usage", "theta", "share"):
            assert one[name] == pytest.approx(sense[name], rel=1e-3)
        assert [near["name"] for near in one["nearest"]] == [n["name"] for n in sense["nearest"]]
        assert len(one["nearest"]) == 3
        for (text, *_), example in zip(one["examples"], sense["examples"], strict=True):
            assert example["text"].replace("[the]", "the") in text
    assert sum(sense["share"] for sense in expected["senses"]) == pytest.approx(1.0)


def test_without_data_and_with_theta_0(trained: Trained, tmp_path: Path, capsys: Capsys) -> None:
    state = torch.load(trained.kerbs, weights_only=False)
    state["model"]["decoder.output.theta"].zero_()
    torch.save(state, placed := tmp_path / "placed.pt")
    output = tmp_path / "report.html"
    kerbs(capsys, "report", placed, "-o", output, "--nearest", 1)
    page = output.read_text(encoding="utf-8")
    assert "Usage of senses" in page
    for part in ("Kernel parameter", "<th>θ</th>", "<th>times</th>", 'id="_cards"'):
        assert part not in page
    legend = legend_of(page)
    assert "of the usage of the word, as the checkpoint stores it" in legend
    for part in ("that were read", "Sentences", "Source words", "First"):
        assert part not in legend


def test_the_page_explains_itself_and_has_three_examples_with_their_sources(
    trained: Trained, tmp_path: Path, capsys: Capsys
) -> None:
    output = tmp_path / "report.html"
    kerbs(capsys, "report", trained.kerbs, "--data", trained.data, "-o", output)
    page = output.read_text(encoding="utf-8")
    model, task = load_model_and_task(trained.kerbs, trained.data)
    text = read_text(model, task, "train")
    legend = legend_of(page)
    for part in (
        "a group of contexts in which the model predicts the word",
        f"in the {len(text.words)} sentences that were read",
        "The whole bar is 100 %",
        "Source words stand with the number of times",
        "with their source sentences",
    ):
        assert part in legend
    for caption in ("each bar counts the senses", "Each grey point is a word"):
        assert f'<figcaption class="soft">{caption}'.lower() in page.lower() or caption in page
    assert text.source is not None
    pairs = {(" ".join(a), " ".join(b)) for a, b in zip(text.words, text.source)}
    tokens = text.tokens
    for name in ("the", "a"):
        entry = task.target_dictionary.index(name)
        for sense in words_of(page)[name]["senses"]:
            where = (tokens["entry"] == entry) & (tokens["sense"] == sense["row"])
            lines = {" ".join(text.words[line]) for line in tokens["line"][where]}
            assert len(sense["examples"]) == min(3, len(lines))
            for target, bold, source, aligned in sense["examples"]:
                # more than 20 words on a side are cut
                assert any(target in a and source in b for a, b in pairs if a in lines)
                assert bold == name
                assert aligned is None or aligned in source.split()


def page_of(lines: list[list[str]], source: list[list[str]] | None, most: int = 20) -> str:
    """The page of a text whose second words, if they are w3, are of sense w3#1."""
    layer = make_model("lstm").decoder.output
    rows = entries.sense_numbers(layer, 7)
    tokens = [(number, 1, 7, rows[0]) for number, line in enumerate(lines) if line[1] == "w3"]
    names = SenseNames(text_of(lines, tokens, source), WORDS.symbols)
    report = build_report(names, layer, WORDS, ["w3"], size=ReportSize(examples=3, context=most))
    return html_page("", {}, report, layer, clearest=["w3"])


def test_examples_are_different_and_long_lines_are_cut_around_both_words() -> None:
    far = [f"u{number}" for number in range(9)]
    german = [*far, "Bank", *far]
    lines = [["a", "w3", "x", "y", "z"], ["a", "w3", "x", "y", "z"], ["b", "w3", "c"]]
    source = [german, german, ["Bank", "d"]]
    other = [["e", "f"]] * 9  # without w3, for the alignment
    page = page_of([*lines, *other], [*source, *[["g", "h"]] * 9], most=2)
    assert words_of(page)["w3"]["senses"][0]["examples"] == [
        ("a w3 x y", "w3", "u7 u8 Bank u0 u1", "Bank"),
        ("b w3 c", "w3", "Bank d", "Bank"),
    ]


def test_in_dialog_and_without_a_source_side_the_legend_says_what_is_there() -> None:
    lines = [["a", "w3", f"x{number}"] for number in range(6)]
    turns = [["w3", "a", f"x{(number + 3) % 6}"] for number in range(6)]
    dialog = page_of(lines, turns)
    assert "with the previous turns" in legend_of(dialog)
    assert words_of(dialog)["w3"]["senses"][0]["examples"][0] == ("a w3 x0", "w3", "w3 a x3", None)
    model_of_a_language = page_of(lines, None)
    for legend in map(legend_of, (dialog, model_of_a_language)):
        assert "Sentences are those in which the sense is the most certain" in legend
        assert "ource" not in legend
    assert words_of(model_of_a_language)["w3"]["senses"][0]["examples"][0][2:] == ("", None)


def test_a_print_has_the_cards_and_no_controls(hostile: str) -> None:
    (style,) = re.findall(r"<style>(.*?)</style>", hostile, re.S)
    rules = style.partition("@media print {")[2]
    assert re.search(r"nav > :not\(h1\), \.screen \{ display: none; \}", rules)
    assert re.search(r"\.card, .*\{ break-inside: avoid; \}", rules)
    assert "color-scheme: light;" in rules
    parts = _Parts(hostile)
    controls = 0
    for (tag, attributes), around in zip(parts.elements, parts.around, strict=True):
        if tag in ("input", "select", "button", "label", "a"):
            controls += 1
            assert {"nav.None", "p.screen"} & set(around)
        if attributes.get("id") in ("_cards", "_senses", "_legend"):
            assert not [name for name in around if name.endswith(".screen")]
    assert controls >= 6


def test_light_and_dark_are_those_of_the_reader_and_the_focus_is_seen(hostile: str) -> None:
    (style,) = re.findall(r"<style>(.*?)</style>", hostile, re.S)
    assert ":root { color-scheme: light dark;" in style
    assert re.search(r":focus-visible \{ outline: 3px solid", style)


def test_no_element_has_an_address_that_a_word_could_have(hostile: str) -> None:
    names = [a["id"] or "" for _, a in _Parts(hostile).elements if "id" in a]
    assert names
    assert all(name.startswith("_") for name in names)


# What a user does, and what the page shows then; written where the test reads it.
DRIVER = """
const seen = { cards: document.querySelectorAll("#_cards article").length };
seen.pieces = [...document.querySelectorAll("#_cards_pieces article")].map((card) =>
  [card.querySelector("h3").textContent, card.querySelector(".sense p").textContent]);
seen.forms = document.querySelector("#_cards .forms").parentElement.querySelector("h3").textContent;
byId("more").click();
seen.more = document.querySelectorAll("#_cards article").length;
const wait = () => new Promise((done) => setTimeout(done, 200));
const press = (element, key) =>
  element.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
async function use() {
  byId("search").value = "<IMG";
  byId("search").dispatchEvent(new Event("input"));
  seen.hits = byId("list").options.length;
  seen.found_pieces = document.querySelectorAll("#_cards_pieces article").length;
  seen.found = document.querySelectorAll("#_cards article").length;
  byId("search").focus();
  press(byId("search"), "Enter");
  await wait();
  seen.word = byId("name").textContent;
  seen.address = decodeURIComponent(location.hash);
  seen.focus = document.activeElement.id;
  seen.senses = byId("figures").rows.length;
  seen.shown = document.querySelector("#_senses p").textContent.slice(0, 8);
  seen.bold = document.querySelector("#_senses b").textContent;
  seen.parts = document.querySelectorAll("#_senses .bar span").length;
  seen.hidden = byId("all").hidden;
  seen.title = document.title;
  press(document.body, "Escape");
  await wait();
  seen.back = [byId("one").hidden, document.activeElement.textContent];
  seen.opened = [];
  const hashes = ["#日本語", "#%23word%3D%25", "#%", "#ban@@%232", "#ier%231", "#@@ier", "#ierx"];
  for (const hash of hashes) {
    location.hash = hash;
    await wait();
    const asked = document.querySelector(".asked strong")?.textContent;
    seen.opened.push(byId("one").hidden ? null : [byId("name").textContent, asked ?? ""]);
  }
  seen.requests = performance.getEntriesByType("resource").length;
  add(document.body, "pre", JSON.stringify(seen)).id = "result";
}
use();
"""


def test_a_browser_shows_a_word(hostile: str, tmp_path: Path) -> None:
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip(f"there is no {', '.join(BROWSERS)} to open the page with")
    file = tmp_path / "page.html"
    file.write_text(f"{hostile}<script>{DRIVER}</script>", encoding="utf-8")
    command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += ["--virtual-time-budget=5000", f"--user-data-dir={tmp_path / 'profile'}"]
    document = subprocess.run(
        [*command, file.as_uri()],
        env=os.environ | {"HOME": str(tmp_path)},
        capture_output=True,
        encoding="utf-8",
        timeout=HANGS,
        check=True,
    ).stdout
    (result,) = re.findall(r'<pre id="result">(.*?)</pre>', document)
    assert json.loads(html.unescape(result)) == {
        "cards": len(HOSTILE) - len(UNRANKED),
        "pieces": [["@@ier", f"● ier#1 100 % {EVIL}ier 5"]],
        "forms": HOSTILE[0],
        "found_pieces": 0,
        "more": len(HOSTILE),
        "hits": 1,
        "found": 1,
        "word": EVIL,
        "address": f"#{EVIL}",
        "focus": "_name",
        "senses": 4,
        "shown": f"● {EVIL}#1"[:8],
        "bold": EVIL,
        "parts": 1,
        "hidden": True,
        "requests": 0,
        "title": f"{EVIL} – </title><script>document.title='caught'</script>",
        "back": [True, EVIL],
        "opened": [
            ["日本語", ""],
            ["#word=%", ""],
            None,
            ["ban@@", "ban@@#2"],
            ["@@ier", "ier#1"],
            ["@@ier", ""],
            None,
        ],
    }


WORDS = dictionary(23)


def test_nearest_senses_are_those_of_a_plain_loop() -> None:
    layer = make_model("lstm").decoder.output
    owners = layer.word_of_sense.tolist()
    asked = [5, 0, 17, 40]
    ignored = [0, 3]
    for sense, near in zip(asked, nearest_senses(layer, asked, 4, ignored), strict=True):
        logits = kerbs_kernel(layer.weight[sense], layer.weight, layer.theta).tolist()
        others = [m for m, owner in enumerate(owners) if m != sense and owner not in ignored]
        expected = sorted(others, key=lambda m: (-logits[m], m))[:4]
        assert [m for m, _ in near] == expected
        assert [score for _, score in near] == pytest.approx([logits[m] for m in expected], 1e-4)


def names_of(layer: OutputLayer, *numbers: int) -> SenseNames:
    """Names of a text "a w3 b" a line, each with a sense of w3 by its number."""
    rows = entries.sense_numbers(layer, 7)
    tokens = [(line, 1, 7, rows[number - 1]) for line, number in enumerate(numbers)]
    return SenseNames(text_of([["a", "w3", "b"]] * len(numbers), tokens), WORDS.symbols)


def test_report_counts_senses_and_true_ones() -> None:
    layer = make_model("lstm").decoder.output
    first, second, *_ = entries.sense_numbers(layer, 7)
    gold = {first: Counter(y=2), second: Counter(y=1, x=3)}
    report = build_report(names_of(layer, 2, 2, 2, 2, 1, 1), layer, WORDS, ["w3"], gold=gold)
    (word,) = report["words"]
    figures = word["senses"]
    shown = [tuple(s[k] for k in ("name", "sense", "times", "true_senses")) for s in figures[:2]]
    assert shown == [("w3#1", 1, 2, {"y": 2}), ("w3#2", 2, 4, {"x": 3, "y": 1})]
    assert sum(sense["usage"] for sense in figures) == pytest.approx(1.0)
    text = report_as_text(report)
    assert "a [w3] b" in text
    assert "true: x 3, y 1" in text


def test_a_softmax_layer_has_no_word_of_several_senses() -> None:
    layer = SoftmaxOutputLayer(4, 9)
    words = dictionary(9)
    report = build_report(None, layer, words, size=ReportSize(nearest=2))
    assert (report["by_number"], report["words"]) == ([5], [])
    (word,) = build_report(None, layer, words, words=["w1"], size=ReportSize(nearest=9))["words"]
    (sense,) = word["senses"]
    assert sense["theta"] is None
    assert {near["name"] for near in sense["nearest"]} == {"w0#1", "w2#1", "w3#1", "w4#1"}


def test_the_checkpoint_alone_gives_layer_and_report(trained: Trained, reported: Reported) -> None:
    model, task = load_model_and_task(trained.kerbs, trained.data)
    layer, words = load_layer(trained.kerbs)
    assert (words.symbols, layer.kernel_name) == (task.target_dictionary.symbols, "kerbs")
    expected = model.decoder.output.state_dict()
    torch.testing.assert_close(dict(layer.state_dict()), dict(expected), rtol=0, atol=0)
    flags = ["--dict", trained.data / "dict.en.txt", "--top", 4, "--nearest", 2]
    text, report, rows = reported("senses", trained.kerbs, *flags)
    numbers = layer.senses_per_word().tolist()[4 : words.symbols.index("madeupword0000")]
    assert report["by_number"] == [numbers.count(n) for n in range(1, max(numbers) + 1)]
    assert [len(word["senses"]) for word in report["words"]] == [max(numbers)] * 4
    whole = [row for row in rows if not row["piece"]]
    assert len(whole) == 4 * max(numbers)
    assert len(rows) == sum(len(one["senses"]) for one in report["words"] + report["pieces"])
    first = report["words"][0]["senses"][0]
    assert float(rows[0]["theta"]) == pytest.approx(layer.theta[first["row"]].item(), 1e-4)
    assert rows[0]["example"] == ""
    near, _ = first["nearest"]
    assert near["name"].startswith(f"{words[layer.word_of_sense[near['row']]]}#")
    assert f"{near['name']} {near['score']:.2f}" in text


def test_theta_of_the_released_kernel_is_shown_and_not_its_logarithm(
    trained: Trained, reported: Reported, monkeypatch: Patch, capsys: Capsys, tmp_path: Path
) -> None:
    state = torch.load(trained.kerbs, weights_only=False)
    state["cfg"]["model"].kernel = "kerbs_released"
    parameter = state["model"]["decoder.output.theta"]
    parameter.copy_(torch.linspace(-3.5, 2.5, len(parameter)))
    torch.save(state, checkpoint := tmp_path / "released.pt")
    flags = ["--dict", trained.data / "dict.en.txt", "--word", "the"]
    _, report, _ = reported("senses", checkpoint, *flags)
    senses = report["words"][0]["senses"]
    right = [math.exp(parameter[sense["row"]]) for sense in senses]
    assert [sense["theta"] for sense in senses] == pytest.approx(right, rel=1e-5)
    drawn: list[list[float]] = []

    def draw(sets: Any, theta: Any, usage: Any, labels: Any) -> Figure:
        drawn.extend(*theta)
        return Figure()

    monkeypatch.setattr(plots, "plot_theta", draw)
    kerbs(capsys, "plot", "theta", checkpoint, *flags, "-o", tmp_path / "theta.png")
    assert drawn == [pytest.approx(right, rel=1e-5)]
    layer, _ = load_layer(checkpoint, trained.data / "dict.en.txt")
    assert "authors' released code" in html_page("", {}, report, layer)
    assert isinstance(layer, KerbsOutputLayer)
    summary = summarize(layer)
    assert summary["theta_q50"] == pytest.approx(math.exp(parameter.median()), rel=0.1)


def test_report_with_data(trained: Trained, reported: Reported, capsys: Capsys) -> None:
    given = ("senses", trained.kerbs, "--data", trained.data, "--word")
    shown, report, rows = reported(*given, "the", "--examples", 3)
    (word,) = report["words"]
    model, task = load_model_and_task(trained.kerbs, trained.data)
    tokens = read_text(model, task, "train").tokens
    the = tokens[tokens["entry"] == task.target_dictionary.index("the")]
    assert sum(sense["times"] for sense in word["senses"]) == len(the)
    for sense in word["senses"]:
        sure = sorted(the["posterior"][the["sense"] == sense["row"]], reverse=True)
        assert [e["posterior"] for e in sense["examples"]] == pytest.approx(sure[:3])
        assert all("[the]" in example["text"] for example in sense["examples"])
    assert len(rows) == sum(max(1, len(sense["examples"])) for sense in word["senses"])
    assert "@@" not in shown
    sources = {source for sense in word["senses"] for source, _ in sense["sources"]}
    assert sources
    assert all(source in shown for source in sources)
    piece = next(word for word in task.target_dictionary.symbols if word.endswith("@@"))
    parts = kerbs(capsys, *given, "the", piece).partition("\nPieces of words\n")
    assert parts[0].startswith("the: ")
    assert parts[2].strip().startswith(f"{piece}: ")
    assert re.search(rf"^ +{piece}#1 +\d+%", parts[2], re.M)
    shown = kerbs(capsys, *given, "the", "madeupword0000")
    assert "madeupword0000: 1 sense" in shown
    assert "madeupword0000: 1 sense, 0 times in the training data, never in the lines" in shown
    refused = kerbs(capsys, *given, "madeupword0000", status=2)
    assert "split train has no occurrence of madeupword0000; name other words" in refused
