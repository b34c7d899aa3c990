"""One name for a sense everywhere: ``the#2`` is the same row in every output of a checkpoint."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fairseq_kerbs.analysis import plots
from fairseq_kerbs.analysis.occurrences import batches
from fairseq_kerbs.analysis.printed_senses import hypothesis_senses
from fairseq_kerbs.checkpoints import load_model_and_task
from fairseq_kerbs.cli import main
from tests.analysis.conftest import Trained
from tests.analysis.test_html_report import words_of


def test_all_outputs_name_a_sense_alike(
    trained: Trained,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model, task = load_model_and_task(trained.kerbs, trained.data)
    layer, word = model.decoder.output, task.target_dictionary.index("the")
    rows = layer.word_of_sense.eq(word).nonzero()[:, 0].tolist()
    rows.sort(key=lambda row: (-layer.usage[row].item(), row))
    assert rows != sorted(rows)  # otherwise nothing is tested
    names = {f"the#{number}": row for number, row in enumerate(rows, start=1)}

    given = [str(trained.kerbs), "--data", str(trained.data)]
    files = {kind: tmp_path / f"a.{kind}" for kind in ("json", "csv", "html")}
    written = ["--json", str(files["json"]), "--csv", str(files["csv"])]
    assert main(["senses", *given, "--word", "the", *written]) == 0
    assert re.findall(r"^  (the#\d+)", capsys.readouterr().out, re.M) == list(names)
    (figures,) = json.loads(files["json"].read_text())["words"]
    assert {one["name"]: one["row"] for one in figures["senses"]} == names
    assert [one["sense"] for one in figures["senses"]] == [*range(1, len(rows) + 1)]
    table = csv.DictReader(files["csv"].read_text().splitlines())
    assert {f"the#{one['sense']}": int(one["row"]) for one in table} == names
    counts = {one["name"]: one["times"] for one in figures["senses"]}

    assert main(["report", *given, "--nearest", "0", "-o", str(files["html"])]) == 0
    page = words_of(files["html"].read_text(encoding="utf-8"))["the"]
    assert {one["name"]: one["row"] for one in page["senses"]} == names
    assert [one["translates"] for one in page["senses"]] == [
        ", ".join(f"{word} {times}" for word, times in one["sources"]) for one in figures["senses"]
    ]

    drawn: list[Any] = []
    monkeypatch.setattr(plots, "save_figure", lambda figure, _: drawn.append(figure))
    given_plot = [*given, "--most", "100000", "--word", "the", "-o", "a.png"]
    assert main(["plot", "contexts", *given_plot]) == 0
    legend = [text.get_text() for text in drawn[0].axes[0].get_legend().get_texts()]
    assert [text.split("\n")[0] for text in legend] == [f"{n} ({k})" for n, k in counts.items()]
    for text, one in zip(legend, page["senses"], strict=True):
        assert one["translates"].split(",")[0] in text

    printed: Counter[str] = Counter()
    for batch in batches(task, "train"):
        targets = [row[row != 1] for row in batch["target"]]
        found = hypothesis_senses(model, batch["net_input"]["src_tokens"], targets, 2, 1)
        for target, senses in zip(targets, found, strict=True):
            own = zip(target.tolist(), senses, strict=True)
            printed.update(f"the#{number}" for token, (number, _) in own if token == word)
    assert printed == Counter(counts)
