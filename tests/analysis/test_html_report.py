"""The HTML report: one file, no request, text stays text, the figures of `build_report`."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from distutils.core import run_setup
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch

import fairseq_kerbs
from fairseq_kerbs.analysis.context_vectors import context_vectors, project, sense_numbers, sense_of
from fairseq_kerbs.analysis.html_report import MOST_POINTS, html_page
from fairseq_kerbs.analysis.occurrences import Occurrence
from fairseq_kerbs.analysis.sense_report import build_report
from fairseq_kerbs.checkpoints import load_model_and_task
from fairseq_kerbs.cli import main
from fairseq_kerbs.output_layers import KerbsOutputLayer
from tests.analysis.conftest import Refused, Trained
from tests.helpers import HANGS

PACKAGE = Path(fairseq_kerbs.__file__).parent
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
EVIL = "<img src=x onerror=document.title='caught'>"
HOSTILE = [
    *("</script>", "<b>", "<!--", "]]>", "&amp;", "\u2028", '"', "'", "\\", "{{ 1 }}", "#word=%"),
    *("<script>document.title='caught'</script>", "ban@@", EVIL, "日本語"),
]


class _Parts(HTMLParser):
    """Elements with their attributes, and the texts of scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._inside = False
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self._inside = True
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = self._inside and tag != "script"

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts[-1] += data


def words_of(page: str) -> dict[str, Any]:
    """The words of the page's own script, which comes last, by word."""
    script = _Parts(page).scripts[-1]
    words, _ = json.JSONDecoder().raw_decode(script, script.index("words = ") + len("words = "))
    return {word["word"]: word for word in words}


@pytest.fixture(scope="module")
def hostile() -> str:
    """The page of a model whose words and sentences would do harm."""
    torch.manual_seed(1)
    symbols = ["<s>", "<pad>", "</s>", "<unk>", *HOSTILE]
    layer = KerbsOutputLayer(3, len(symbols), 4 * len(symbols))
    found = []
    for number in range(4, len(symbols)):
        rows = tuple(sense_numbers(layer, number))
        posterior = (1.0, *[0.0] * (len(rows) - 1))
        sentence = ("a", symbols[number], "piec@@", "es", *HOSTILE)
        for line in range(5):
            at = (line, 0, symbols[number], rows, posterior, sentence, 1)
            found.append(Occurrence(*at, torch.randn(3)))
    options: dict[str, Any] = {"words": HOSTILE, "special": 4, "nearest": 2}
    report = build_report(found, layer, symbols, counts=[1] * len(symbols), **options)
    title = "</title><script>document.title='caught'</script>"
    return html_page(title, {"checkpoint": "</script><b>.pt"}, report, layer, found=found)


def test_any_text_stays_text(hostile: str) -> None:
    assert list(words_of(hostile)) == HOSTILE
    elements = [tag for tag, _ in _Parts(hostile).elements]
    assert not {"b", "img"} & set(elements)
    assert elements.count("title") == 1
    assert "<title>&lt;/title&gt;&lt;script&gt;" in hostile
    assert not set("<>\u2028\u2029") & set(_Parts(hostile).scripts[-1].split("const layout")[0])
    dots = [trace for word in words_of(hostile).values() for trace in word["dots"]]
    shown = "".join("".join([trace["name"], *trace["text"]]) for trace in dots)
    assert html.escape(EVIL.split()[0]) in shown
    assert set(re.findall("<[^>]*>", shown)) == {"<br>"}  # plotly reads tags, too


def test_nothing_is_asked_of_the_network(hostile: str) -> None:
    parts = _Parts(hostile)
    for tag, attributes in parts.elements:
        assert "src" not in attributes
        assert tag not in ("link", "iframe", "img", "object", "embed")
        assert (attributes.get("href") or "#").startswith("#")
    policy = next(a["content"] or "" for _, a in parts.elements if a.get("http-equiv"))
    assert policy.startswith(
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inl"
    )
    assert not re.search(r"\b(http|ws)s?:|\*", policy)
    assert sum("Plotly.newPlot=" in part or len(part) > 10**6 for part in parts.scripts) == 1


def test_the_page_is_installed_with_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PACKAGE.parent)
    patterns = run_setup("setup.py", stop_after="init").package_data["fairseq_kerbs"]
    shipped = {path for pattern in patterns for path in PACKAGE.glob(pattern)}
    assert PACKAGE / "analysis" / "report.html" in shipped


def test_data_of_the_page_are_the_models(trained: Trained, tmp_path: Path) -> None:
    output, figures = tmp_path / "report.html", tmp_path / "figures.json"
    flags = ["--data", str(trained.data), "--nearest", "3", "--examples", "2"]
    log = ["--log", str(trained.log)]
    assert main(["report", str(trained.kerbs), *flags, *log, "-o", str(output)]) == 0
    page = output.read_text(encoding="utf-8")
    for title in ("Words by number of senses, over training", "Senses moved", "Kernel parameter"):
        assert f'"text":"{title}"' in page.replace("\\u002c", ",")
    check_charts(page)
    words = words_of(page)
    assert not {"</s>", "madeupword0000"} & set(words)
    command = ["senses", str(trained.kerbs), *flags, "--word", "the", "--json", str(figures)]
    assert main(command) == 0
    (expected,) = json.loads(figures.read_text())["words"]
    shown = words["the"]
    assert shown["log_prob"] == expected["log_prob"]
    for one, sense in zip(shown["senses"], expected["senses"], strict=True):
        for name in ("name", "row", "count", "examples"):
            assert one[name] == sense[name]
        for name in ("usage", "theta"):
            assert one[name] == pytest.approx(sense[name], abs=1e-4)
        near = [[near["name"], round(near["score"], 2)] for near in sense["nearest"]]
        assert one["nearest"] == near
        assert len(near) == 3
    dots = shown["dots"]
    model, task = load_model_and_task(trained.kerbs, trained.data)
    layer, number = model.decoder.output, task.target_dictionary.index("the")
    vectors = context_vectors(model, task, "test", [number], MOST_POINTS)[number]
    own = sense_of(layer, number, vectors)
    plane = project(vectors, layer.weight[sense_numbers(layer, number)].detach())
    assert [trace["name"] for trace in dots] == [
        f"the#{n + 1}: {own.eq(n).sum()} contexts" for n in range(len(dots))
    ]
    for sense, trace in enumerate(dots):
        points = torch.cat([plane.senses[[sense]], plane.contexts[own == sense]])
        drawn = torch.tensor([trace["x"], trace["y"]]).double().T
        torch.testing.assert_close(drawn, points, atol=1e-4, rtol=1e-4)
        texts = [re.sub("<br>", " ", text) for text in trace["text"][1:]]
        assert all(text.startswith(f"the#{sense + 1} ") and "[the]" in text for text in texts)
        assert not any("@@" in text for text in texts)


def check_charts(page: str) -> None:
    """No value lies above the highest tick of its chart or below the lowest, bars begin at 0."""
    charts = [script for script in _Parts(page).scripts if "Plotly.newPlot(" in script]
    decoder = json.JSONDecoder()
    assert len(charts) == 4 + 3
    for script in charts:
        start = script.index("[{", script.rindex("Plotly.newPlot("))
        traces, end = decoder.raw_decode(script, start)
        layout, _ = decoder.raw_decode(script, script.index("{", end))
        axis, values = layout["yaxis"], [value for trace in traces for value in trace["y"]]
        assert [axis["tickvals"][0], axis["tickvals"][-1]] == axis["range"]
        assert axis["range"][0] <= min(values) <= max(values) <= axis["range"][1]
        assert 2 * max(map(abs, values)) >= max(map(abs, axis["range"]))  # and not far above
        if traces[0]["type"] == "bar":
            assert axis["range"][0] == 0


def test_a_histogram_has_every_value(trained: Trained, tmp_path: Path) -> None:
    output = tmp_path / "report.html"
    assert main(["report", str(trained.kerbs), "-o", str(output), "--nearest", "0"]) == 0
    page = output.read_text(encoding="utf-8")
    senses = [sense for word in words_of(page).values() for sense in word["senses"]]
    bars = [
        json.JSONDecoder().raw_decode(script, script.index("[{", script.rindex("newPlot(")))[0][0]
        for script in _Parts(page).scripts
        if "Plotly.newPlot(" in script
    ]
    for name, trace in zip(("usage", "theta"), bars[2:], strict=True):
        assert sum(trace["y"]) == len(senses)
        places = [trace["x0"] + trace["dx"] * number for number in range(len(trace["y"]))]
        mean = sum(map(float.__mul__, places, map(float, trace["y"]))) / len(senses)
        assert mean == pytest.approx(
            sum(sense[name] for sense in senses) / len(senses), abs=trace["dx"] / 2
        )
        assert trace["width"] == trace["dx"]


def test_report_without_data_and_wrong_uses(
    trained: Trained, tmp_path: Path, refused: Refused
) -> None:
    output = tmp_path / "report.html"
    assert main(["report", str(trained.kerbs), "-o", str(output), "--nearest", "1"]) == 0
    page = output.read_text(encoding="utf-8")
    assert "<th>times</th>" not in page
    assert not any(word["dots"] for word in words_of(page).values())
    state: dict[str, Any] = torch.load(trained.kerbs, weights_only=False)
    state["model"]["decoder.output.theta"][3] = float("nan")
    torch.save(state, tmp_path / "diverged.pt")
    for checkpoint, flags, message in (
        (trained.kerbs, ["-o", "report.pdf"], "must end in .html"),
        (trained.kerbs, ["-o", "a.html", "--log", str(trained.dictionary)], "no figures of senses"),
        (trained.kerbs, ["-o", "a.html", "--examples", "-1"], "--examples is -1"),
        (tmp_path / "diverged.pt", ["-o", "a.html"], "decoder.output.theta holds NaN"),
    ):
        refused(message, "report", checkpoint, *flags)


# What a user does, and what the page shows then; written where the test reads it.
DRIVER = """
const seen = { charts: document.querySelectorAll("#all .plot-container").length };
byId("search").value = "<IMG";
byId("search").dispatchEvent(new Event("input"));
seen.hits = byId("list").options.length;
byId("list").selectedIndex = 0;
byId("list").dispatchEvent(new Event("change"));
setTimeout(() => {
  seen.word = byId("name").textContent;
  seen.senses = byId("senses").rows.length;
  seen.context = document.querySelector("#contexts p").textContent.slice(0, 12);
  seen.pieces = document.querySelector("#contexts p").textContent.includes("] pieces ");
  seen.marks = document.querySelectorAll("#plane .points path").length;
  seen.legend = document.querySelector("#plane .legendtext").textContent;
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
        capture_output=True,
        encoding="utf-8",
        env=os.environ | {"HOME": str(tmp_path)},
        timeout=HANGS,
        check=True,
    ).stdout
    (result,) = re.findall(r'<pre id="result">(.*?)</pre>', document)
    seen = json.loads(html.unescape(result))
    assert seen == {
        "charts": 4,
        "hits": 1,
        "word": EVIL,
        "senses": 4,
        "context": "1.00 a [<img",
        "pieces": True,
        "marks": 5 + 4,
        "legend": f"{EVIL}#1: 5 contexts",
        "hidden": True,
        "requests": 0,
        "title": "</title><script>document.title='caught'</script>",
    }
