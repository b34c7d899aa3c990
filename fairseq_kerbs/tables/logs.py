"""Copies of logs and hypotheses for ``results/``: small, and without the folders of the machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from fairseq_kerbs.tables.cells import Places, hypotheses_path, score_path
from fairseq_kerbs.tables.figures import Entry, Run
from fairseq_kerbs.tables.state import log_path
from fairseq_kerbs.utils.files import atomic_write, partial_name, put_in_place
from fairseq_kerbs.utils.processes import PLUGIN_FOLDER

LIMIT = 200_000  # characters of a log that is copied

# An absolute path of two or more parts; not the end of a relative path or of a URL.
_ABSOLUTE = re.compile(r"(?<![\w./:@+~-])/(?:[\w.@+~-]+/)+[\w.@+~-]*")


def known_folders(places: Places) -> dict[str, str]:
    """Folders of this machine and what stands for them in copied text ("" for the checkout)."""
    folders = {
        str(Path(sys.executable).parent): "",
        str(PLUGIN_FOLDER.parent): "",
        str(places.work.resolve()): "runs/tables",
        str(places.data.resolve()): "DATA",
        os.getcwd(): "",
        str(Path.home()): "~",
    }
    return {folder: name for folder, name in folders.items() if folder != "/"}


def strip_paths(text: str, folders: Mapping[str, str]) -> str:
    """A text without absolute paths.

    What lies in one of `folders` keeps its path below it, under the name given; of any other
    absolute path only the last part stays, after "…/".
    """
    for folder in sorted(folders, key=len, reverse=True):
        name = folders[folder]
        inside = re.escape(folder) + r"(?=/)" + ("/" if not name else "")
        text = re.sub(rf"(?<![\w./~-]){inside}", name, text)
        text = re.sub(rf"(?<![\w./~-]){re.escape(folder)}(?![\w./~-])", name or ".", text)
    return _ABSOLUTE.sub(lambda match: f"…/{match[0].rstrip('/').rpartition('/')[2]}", text)


def shorten(text: str, limit: int = LIMIT) -> str:
    """A text of at most about `limit` characters: lines from its middle are left out."""
    if len(text) <= limit:
        return text
    lines = text.splitlines(keepends=True)
    kept, size, half = [0, 0], [0, 0], limit // 2
    for side, order in enumerate((lines, lines[::-1])):
        for line in order:
            if size[side] + len(line) > half:
                break
            size[side] += len(line)
            kept[side] += 1
    left_out = len(lines) - sum(kept)
    tail = lines[len(lines) - kept[1] :]
    return "".join([*lines[: kept[0]], f"[… {left_out} lines left out …]\n", *tail])


def copy_raw(
    folder: Path, columns: Mapping[str, Sequence[Entry]], places: Places
) -> dict[str, list[str]]:
    """Copy logs, hypotheses, figures and records of all runs that have figures.

    Files are called ``COLUMN_ROW_sSEED.WHAT``. The folder is replaced as a whole. Returns the names
    of the files of each cell.
    """
    fresh = partial_name(folder)
    shutil.rmtree(fresh, ignore_errors=True)
    folders = known_folders(places)
    names: dict[str, list[str]] = {}
    for column, entries in columns.items():
        for entry in entries:
            for run in entry.done:
                prefix = f"{column}_{entry.row}_s{run.seed}"
                names[prefix] = _copy_run(fresh, prefix, run, places.cell(run.cell.id), folders)
    if names:
        shutil.rmtree(folder, ignore_errors=True)
        put_in_place(fresh, folder)
    return names


def _copy_run(
    target: Path, prefix: str, run: Run, source: Path, folders: Mapping[str, str]
) -> list[str]:
    texts = {}
    for step in ("train", "evaluate"):
        log = log_path(source, step)
        if log.is_file():
            content = log.read_text(encoding="utf-8", errors="replace")
            texts[f"{step}.log"] = shorten(strip_paths(content, folders))
    if hypotheses_path(source).is_file():
        name = f"hyp.{run.cell.data.language}"
        texts[name] = hypotheses_path(source).read_text(encoding="utf-8")
    texts["figures.json"] = score_path(source).read_text(encoding="utf-8")
    records = json.dumps(run.records, indent=1, ensure_ascii=False)
    texts["steps.json"] = strip_paths(records, folders) + "\n"
    for name, text in texts.items():
        with atomic_write(target / f"{prefix}.{name}") as stream:
            stream.write(text)
    return [f"{prefix}.{name}" for name in texts]
