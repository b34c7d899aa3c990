"""The HTML report: one file, no request, any word, quick with a whole dictionary."""

from __future__ import annotations

import csv
import html
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from distutils.core import run_setup
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from google.protobuf import text_format  # type: ignore[import-untyped]
from tensorboard.plugins.projector.projector_config_pb2 import ProjectorConfig

import fairseq_kerbs
from fairseq_kerbs.analysis.context_vectors import context_vectors, sense_of
from fairseq_kerbs.analysis.html_report import (
    html_page,
    page_data,
    page_words,
    script_json,
    write_projector,
)
from fairseq_kerbs.analysis.occurrences import occurrences
from fairseq_kerbs.analysis.saved_layer import load_layer
from fairseq_kerbs.analysis.similarity import nearest_senses
from fairseq_kerbs.checkpoints import load_model_and_task
from fairseq_kerbs.cli import main
from fairseq_kerbs.output_layers import KerbsOutputLayer
from fairseq_kerbs.utils.errors import UserError
from tests.analysis.conftest import Refused, Trained
from tests.helpers import HANGS
from tests.helpers.fairseq_fixtures import dictionary, make_model

PAGE = Path(fairseq_kerbs.__file__).parent / "analysis" / "page"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
HOSTILE = [
    *("</script>", "<b>", "<!--", "]]>", "&amp;", "\u2028", '"', "'", "\\", "__DATA__", "#word=%"),
    *("</scr@@", "ban@@", "<img src=x onerror=document.title='caught'>", "日本語"),
]
WORDS, SENSES = 21_000, 4


class _Parts(HTMLParser):
    """Elements with their attributes, and the text of scripts by id."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: dict[str, str] = {}
        self._script: str | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self._script = dict(attrs).get("id") or ""
            self.scripts[self._script] = ""

    def handle_endtag(self, tag: str) -> None:
        self._script = None if tag == "script" else self._script

    def handle_data(self, data: str) -> None:
        if self._script is not None:
            self.scripts[self._script] += data


def data_of(page: str) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(_Parts(page).scripts["data"])
    return data


def sentence(*words: str) -> str:
    return " ".join(words)


@pytest.fixture(scope="module")
def large() -> dict[str, Any]:
    """Data of 21,000 words with 4 senses each, contexts and neighbours of all, hostile words."""
    symbols = ["<s>", "<pad>", "</s>", "<unk>", *HOSTILE]
    symbols += [f"word{number}" for number in range(len(symbols), WORDS)]
    layer = KerbsOutputLayer(2, WORDS, WORDS * SENSES)
    torch.nn.init.uniform_(layer.inventory.usage)
    counts = list(range(WORDS, 0, -1))
    facts = {"checkpoint": "</script><b>.pt"}
    data = page_data(layer, symbols, counts, 4, facts=facts, nearest=0)
    number = len(data["sense"])
    places = torch.randint(number, (5 * number,)).tolist()
    data["near"] = {"each": 5, "place": places, "score": [12.34] * (5 * number)}
    data["sentences"] = [sentence("a", word, "</script> <b> context") for word in data["words"]]
    at = range(number)
    data["examples"] = {str(place): [place // SENSES, 1, 987] * 3 for place in at}
    data["times"] = [3] * number
    data["points"] = {str(word): [[9, 99, 0] * 20, [5, 5] * SENSES] for word in range(3000)}
    return data


def test_any_text_stays_text(large: dict[str, Any]) -> None:
    page = html_page("</title><script>alert(1)</script>", large)
    assert data_of(page) == large
    assert not set("<>&\u2028\u2029") & set(script_json(large))
    parts = _Parts(page)
    assert list(parts.scripts) == ["data", ""]
    assert not {"b", "img"} & {tag for tag, _ in parts.elements}
    assert page.count("</script>") == 2
    assert "<title>&lt;/title&gt;&lt;script&gt;" in page
    with pytest.raises(ValueError, match="not JSON compliant"):
        html_page("", {"theta": float("nan")})


def test_nothing_is_asked_of_the_network(large: dict[str, Any]) -> None:
    page = html_page("", {**large, "words": [], "sentences": []})
    assert set(re.findall(r"\w+://[^\s\"'`]+", page)) == {"http://www.w3.org/2000/svg"}  # a name
    for word in ("fetch", "XMLHttpRequest", "WebSocket", "import(", "@import", "url(", "innerHTML"):
        assert word not in page
    for tag, attributes in _Parts(page).elements:
        assert "src" not in attributes
        assert tag not in ("link", "iframe", "img", "object", "embed")
        assert (attributes.get("href") or "#").startswith("#")
    policy = next(a for _, a in _Parts(page).elements if a.get("http-equiv"))
    assert "default-src 'none'" in (policy["content"] or "")


def test_a_whole_dictionary_stays_small(large: dict[str, Any]) -> None:
    assert len(html_page("", large).encode()) < 15e6
    without_contexts = large | {"examples": {}, "sentences": [], "points": {}, "times": None}
    assert len(html_page("", without_contexts).encode()) < 9e6


def test_the_page_is_installed_with_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(PAGE.parents[2])
    patterns = run_setup("setup.py", stop_after="init").package_data["fairseq_kerbs"]
    shipped = {path for pattern in patterns for path in PAGE.parents[1].glob(pattern)}
    assert {path.name for path in PAGE.iterdir()} >= {"page.html", "style.css", "page.js"}
    assert set(PAGE.iterdir()) <= shipped


def test_data_of_the_page_are_the_models(trained: Trained, tmp_path: Path) -> None:
    output = tmp_path / "report.html"
    flags = ["--data", str(trained.data), "-o", str(output), "--log", str(trained.log)]
    assert main(["report", str(trained.kerbs), *flags, "--nearest", "3", "--examples", "2"]) == 0
    data = data_of(output.read_text(encoding="utf-8"))
    model, task = load_model_and_task(trained.kerbs, trained.data)
    layer, dictionary = model.decoder.output, task.target_dictionary
    words = page_words(layer, dictionary.symbols, dictionary.nspecial)
    assert data["words"] == [dictionary[number] for number in words.numbers]
    assert not {"</s>", "madeupword0000"} & set(data["words"])
    index, number = data["words"].index("the"), dictionary.index("the")
    at = slice(data["first"][index], data["first"][index + 1])
    own = data["sense"][at]
    owners = layer.word_of_sense
    assert sorted(own) == owners.eq(number).nonzero().flatten().tolist()
    assert own == sorted(own, key=lambda sense: (-layer.usage[sense].item(), sense))
    share = layer.usage[own] / layer.usage[own].sum()
    assert data["usage"][at] == pytest.approx((1000 * share).tolist(), abs=0.51)
    assert data["theta"][at] == pytest.approx(layer.theta[own].tolist(), abs=6e-4)
    assert data["count"][index] == dictionary.count[number]
    ignored = sorted(set(range(len(dictionary))) - set(words.numbers))
    (expected,) = nearest_senses(layer, own[:1], 3, ignored)
    begin = 3 * at.start
    named = [data["sense"][place] for place in data["near"]["place"][begin : begin + 3]]
    assert named == [sense for sense, _ in expected]
    found = [o for o in occurrences(model, task, "test", pieces=True) if o.word == "the"]
    assert data["times"][at] == [sum(o.sense == sense for o in found) for sense in own]
    for sense, place in zip(own, range(at.start, at.stop), strict=True):
        flat = data["examples"].get(str(place), [])
        best = sorted(-max(o.posterior) for o in found if o.sense == sense)[:2]
        assert flat[2::3] == [round(-1000 * value) for value in best]
        for line, position in zip(flat[::3], flat[1::3], strict=True):
            assert data["sentences"][line].split()[position] == "the"
    dots, marks = data["points"][str(index)]
    vectors = context_vectors(model, task, "test", [number], 60)[number]
    table = layer.table.senses[number]
    drawn = [own[slot] for slot in dots[2::3]]
    assert drawn == table[sense_of(layer, number, vectors)].tolist()
    assert len(marks) == 2 * len(own)
    assert max(dots[::3]) <= 999
    assert data["history"]["senses_moved"][0][-1] == 12


def test_report_without_data_and_wrong_uses(
    trained: Trained, tmp_path: Path, refused: Refused
) -> None:
    output = tmp_path / "report.html"
    assert main(["report", str(trained.kerbs), "-o", str(output), "--nearest", "1"]) == 0
    data = data_of(output.read_text(encoding="utf-8"))
    assert data["times"] is None
    assert data["points"] == data["examples"] == {}
    state: dict[str, Any] = torch.load(trained.kerbs, weights_only=False)
    state["model"]["decoder.output.theta"][3] = float("nan")
    torch.save(state, tmp_path / "diverged.pt")
    for checkpoint, flags, message in (
        (trained.kerbs, ["-o", "report.pdf"], "must end in .html"),
        (trained.kerbs, ["-o", "a.html", "--log", str(trained.dictionary)], "no figures of senses"),
        (trained.kerbs, ["-o", "a.html", "--examples", "-1"], "--examples is -1"),
        (tmp_path / "diverged.pt", ["-o", "a.html"], "theta of its output layer"),
    ):
        refused(message, "report", checkpoint, *flags)


def test_projector_files(trained: Trained, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "projector"
    assert main(["senses", str(trained.kerbs), "--top", "1", "--projector", str(folder)]) == 0
    layer, words = load_layer(trained.kerbs)
    config = text_format.Parse((folder / "projector_config.pbtxt").read_text(), ProjectorConfig())
    (embedding,) = config.embeddings
    metadata = (folder / embedding.metadata_path).read_text().splitlines()
    rows = list(csv.DictReader(metadata, delimiter="\t", quoting=csv.QUOTE_NONE))
    lines = (folder / embedding.tensor_path).read_text().splitlines()
    assert len(rows) == len(lines)
    owners = layer.word_of_sense
    shown = [int(row["sense"]) for row in rows]
    assert (
        len(set(shown))
        == len(shown)
        == int((owners >= 4).sum())
        - sum(
            symbol.startswith("madeupword") * int(owners.eq(n).sum())
            for n, symbol in enumerate(words.symbols)
        )
    )
    vectors = torch.tensor([[float(x) for x in line.split("\t")] for line in lines])
    torch.testing.assert_close(vectors, layer.weight[shown].detach(), rtol=1e-4, atol=1e-6)
    for row in rows[:50]:
        sense = int(row["sense"])
        assert words.symbols[int(owners[sense])] == row["word"]
        assert float(row["theta"]) == pytest.approx(layer.theta[sense].item(), rel=1e-4)
        own = owners.eq(owners[sense])
        share = layer.usage[sense] / layer.usage[own].sum()
        assert float(row["usage"]) == pytest.approx(share.item(), rel=1e-4)
        assert int(row["senses"]) == int(own.sum())


def test_a_tab_in_a_word_does_not_shift_cells(tmp_path: Path) -> None:
    layer, symbols = make_model("lstm").decoder.output, dictionary().symbols
    symbols = ["a\tb" if symbol == "w0" else symbol for symbol in symbols]
    write_projector(tmp_path, layer, symbols, 4)
    lines = (tmp_path / "metadata.tsv").read_text().splitlines()
    assert {line.count("\t") for line in lines} == {4}
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is no folder"):
        write_projector(tmp_path / "file", layer, symbols, 4)


# What a user does with the keyboard, and what the page shows then; written where the test reads it.
DRIVER = """
const seen = {};
const press = (target, key) => target.dispatchEvent(
  new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
const wait = (done) => setTimeout(done, 50);
const search = document.getElementById("search");
const type = (text) => { search.value = text; search.dispatchEvent(new Event("input")); };
const focused = () => document.activeElement;
seen.overview = document.querySelectorAll("main svg").length;
seen.drawn = document.querySelectorAll("#list a").length;
press(document.body, "/");
seen.slash = focused().id;
type("</SCRIPT");
press(search, "ArrowDown");
seen.first = focused().firstChild.textContent;
press(focused(), "ArrowUp");
seen.up = focused().id;
press(search, "ArrowDown");
focused().click();
wait(() => {
  seen.word = document.querySelector("h2").textContent;
  seen.rows = document.querySelectorAll("tbody tr").length;
  seen.context = document.querySelector(".contexts span:last-child").textContent;
  seen.marked = document.querySelector("mark").textContent;
  seen.focus = focused().id;
  seen.current = document.querySelector("[aria-current=true]").firstChild.textContent;
  press(document.getElementById("list").querySelector("a"), "Escape");
  seen.escape = focused().id;
  type("ban@@");
  press(search, "Enter");
  wait(() => {
    const context = () => document.querySelector(".contexts span:last-child").textContent;
    seen.entered = document.querySelector("h2").textContent;
    seen.pieces = context();
    document.getElementById("joined").click();
    seen.joined = [context(), focused().id];
    document.getElementById("theme").click();
    seen.theme = document.documentElement.dataset.theme;
    seen.requests = performance.getEntriesByType("resource").length;
    seen.title = document.title;
    const result = document.createElement("pre");
    result.id = "result";
    result.textContent = JSON.stringify(seen);
    document.body.append(result);
  });
});
"""


@pytest.fixture(scope="module")
def browse(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """Open a page in a browser without a window; what the document has become."""
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip(f"there is no {', '.join(BROWSERS)} to open the page with")
    folder = tmp_path_factory.mktemp("browser")

    def browse(page: str, *flags: str) -> str:
        file = folder / "page.html"
        file.write_text(page, encoding="utf-8")
        command = [program, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", *flags]
        done = subprocess.run(
            [*command, f"--user-data-dir={folder / 'profile'}", file.as_uri()],
            capture_output=True,
            encoding="utf-8",
            env=os.environ | {"HOME": str(folder)},
            timeout=HANGS,
            check=True,
        )
        return done.stdout

    return browse


def test_a_browser_shows_the_page_at_once(
    large: dict[str, Any], browse: Callable[..., str]
) -> None:
    document = browse(html_page("Senses", large))
    (ready,) = re.findall(r'<html[^>]* data-ready="(\d+)"', document)
    assert int(ready) < 4000  # a fraction of a second on a machine that does nothing else


def test_a_page_is_used_by_keyboard(large: dict[str, Any], browse: Callable[..., str]) -> None:
    page = html_page("Senses", large).replace("</body>", f"<script>{DRIVER}</script></body>")
    document = browse(page, "--virtual-time-budget=3000")
    (result,) = re.findall(r'<pre id="result">(.*?)</pre>', document)
    seen = json.loads(html.unescape(result))
    assert seen == {
        "overview": 4,
        "drawn": 200,
        "slash": "search",
        "first": "</script>",
        "up": "search",
        "word": "</script>",
        "rows": SENSES,
        "context": "a </script> </script> <b> context ",
        "marked": "</script>",
        "focus": "main",
        "current": "</script>",
        "escape": "search",
        "entered": "ban@@",
        "pieces": "a ban@@ </script> <b> context ",
        "joined": ["a ban</script> <b> context ", "joined"],
        "theme": "dark",
        "requests": 0,
        "title": "Senses",
    }
