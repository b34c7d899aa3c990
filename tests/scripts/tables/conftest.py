"""Sheets of ratings for the tests of this folder."""

import re
from pathlib import Path

import pytest

from tests.helpers.cli import Capsys
from tests.helpers.cli import kerbs as run_kerbs

SHEET_SCORES = {"SOFTMAX": [1, 1, 1, 1], "KerBS": [2, 1, 1, 2]}  # of two raters, item by item


@pytest.fixture
def scored(tmp_path: Path, capsys: Capsys) -> Path:
    """The result of real sheets that two raters filled."""
    pytest.importorskip("scipy", reason="scipy is not installed; it is in the extra analysis")
    for name in ("source", *SHEET_SCORES):
        (tmp_path / name).write_text("".join(f"{name} {line}\n" for line in range(4)))
    export = ["human-eval", "export", "--source", tmp_path / "source", "--items", 4, "--raters", 2]
    export += [f"--system={name}={tmp_path / name}" for name in SHEET_SCORES]
    run_kerbs(capsys, *export, "--sheets", tmp_path / "sheets", "--key", tmp_path / "key.json")
    for sheet in (tmp_path / "sheets").iterdir():
        lines = sheet.read_text("utf-8-sig").splitlines()
        for number, line in enumerate(lines):
            if found := re.search(r"\[(\w+) (\d)\],$", line):
                lines[number] += str(SHEET_SCORES[found[1]][int(found[2])])
        sheet.write_text("\n".join(lines))
    score = ["human-eval", "score", "--key", tmp_path / "key.json", "--baseline", "SOFTMAX"]
    result = tmp_path / "scores.json"
    run_kerbs(capsys, *score, *(tmp_path / "sheets").iterdir(), "--json", result)
    return result
