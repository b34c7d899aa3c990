"""The HTML report: one file, no request, text stays text, the figures of `build_report`."""

import html
import json
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from fairseq.data import Dictionary

from fairseq_kerbs.analysis.names import SenseNames
from fairseq_kerbs.analysis.report import ReportSize, build_report, html_page
from fairseq_kerbs.analysis.words import sense_numbers
from fairseq_kerbs.output_layers import KerbsOutputLayer
from tests.analysis.conftest import Reported, Trained, text_of
from tests.helpers import HANGS
from tests.helpers.cli import Capsys, kerbs

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


class _Parts(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            self.scripts[-1] += data


def words_of(page: str) -> dict[str, Any]:
    """The words of the page's own script, which comes last, by word."""
    words, _ = json.JSONDecoder().raw_decode(_Parts(page).scripts[-1].partition("words = ")[2])
    return {word["word"]: word for word in words}


@pytest.fixture(scope="module")
def hostile() -> str:
    torch.manual_seed(1)
    words = Dictionary()
    for word in HOSTILE:
        words.add_symbol(word)
    layer = KerbsOutputLayer(3, len(words), 4 * len(words))
    entries = [number for number in range(4, len(words)) for _ in range(5)]
    tokens = [(line, 1, n, sense_numbers(layer, n)[0]) for line, n in enumerate(entries)]
    text = text_of([["a", words[number], "b", *HOSTILE] for number in entries], tokens)
    report = build_report(
        SenseNames(text, words.symbols), layer, words, HOSTILE, size=ReportSize(nearest=2)
    )
    title = "</title><script>document.title='caught'</script>"
    facts = {"checkpoint": "</script><b>.pt"}
    return html_page(title, facts, report, layer, counts=[1] * len(words), clearest=HOSTILE)


def test_any_text_stays_text_and_nothing_is_asked_of_the_network(hostile: str) -> None:
    assert list(words_of(hostile)) == HOSTILE
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
    cards = json.JSONDecoder().raw_decode(page.partition("cards = ")[2])[0]
    assert cards
    assert list(words)[: len(cards)] == cards
    (expected,) = reported("senses", *given, "--word", "the")[1]["words"]
    shown = words["the"]
    assert shown["log_prob"] == pytest.approx(expected["log_prob"], rel=1e-3)
    for one, sense in zip(shown["senses"], expected["senses"], strict=True):
        for name in ("name", "row", "times", "translates", "beside"):
            assert one[name] == sense[name]
        for name in ("usage", "theta", "share"):
            assert one[name] == pytest.approx(sense[name], rel=1e-3)
        for part, name in (("examples", "text"), ("nearest", "name")):
            assert [each[name] for each in one[part]] == [each[name] for each in sense[part]]
        assert len(one["nearest"]) == 3
    assert sum(sense["share"] for sense in expected["senses"]) == pytest.approx(1.0)


def test_without_data_and_with_theta_0(trained: Trained, tmp_path: Path, capsys: Capsys) -> None:
    state = torch.load(trained.kerbs, weights_only=False)
    state["model"]["decoder.output.theta"].zero_()
    torch.save(state, placed := tmp_path / "placed.pt")
    output = tmp_path / "report.html"
    kerbs(capsys, "report", placed, "-o", output, "--nearest", 1)
    page = output.read_text(encoding="utf-8")
    assert "Usage of senses" in page
    for part in ("Kernel parameter", "<th>θ</th>", "<th>times</th>", 'id="cards"'):
        assert part not in page


# What a user does, and what the page shows then; written where the test reads it.
DRIVER = """
const seen = { cards: document.querySelectorAll("#cards article").length };
byId("search").value = "<IMG";
byId("search").dispatchEvent(new Event("input"));
seen.hits = byId("list").options.length;
byId("search").dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
setTimeout(() => {
  seen.word = byId("name").textContent;
  seen.senses = byId("figures").rows.length;
  seen.shown = document.querySelector("#senses p").textContent.slice(0, 8);
  seen.bold = document.querySelector("#senses b").textContent;
  seen.hidden = byId("all").hidden;
  seen.requests = performance.getEntriesByType("resource").length;
  seen.title = document.title;
  add(document.body, "pre", JSON.stringify(seen)).id = "result";
}, 500);
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
        "cards": len(HOSTILE),
        "hits": 1,
        "word": EVIL,
        "senses": 4,
        "shown": f"● {EVIL}#1"[:8],
        "bold": EVIL,
        "hidden": True,
        "requests": 0,
        "title": "</title><script>document.title='caught'</script>",
    }
