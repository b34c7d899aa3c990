"""Copies of logs and hypotheses for ``results/``: small, and without the folders of the machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path

from fairseq_kerbs.tables.results import Entry, Result
from fairseq_kerbs.tables.runs import Paths
from fairseq_kerbs.utils.files import PARTIAL, atomic_write, partial_name, put_in_place
from fairseq_kerbs.utils.processes import PLUGIN_FOLDER

LIMIT = 200_000  # characters of a log that is copied

# An absolute path of two or more parts; not the end of a relative path or of a URL.
_ABSOLUTE = re.compile(r"(?<![\w./:@+~-])/(?:[\w.@+~-]+/)+[\w.@+~-]*")


def known_folders(paths: Paths) -> dict[str, str]:
    """Folders of this machine and what stands for them in copied text ("" for the checkout)."""
    folders = {
        str(Path(sys.executable).parent): "",
        str(PLUGIN_FOLDER.parent): "",
        str(paths.work.resolve()): "runs/tables",
        str(paths.data.resolve()): "DATA",
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
    ends = []
    for side in (lines, lines[::-1]):
        sizes = accumulate(map(len, side))
        ends.append(side[: sum(size <= limit // 2 for size in sizes)])
    head, tail = ends
    left_out = f"[… {len(lines) - len(head) - len(tail)} lines left out …]\n"
    return "".join([*head, left_out, *reversed(tail)])


def copy_raw(folder: Path, columns: Mapping[str, Sequence[Entry]], paths: Paths) -> None:
    """Copy logs, hypotheses, figures and records of all runs that have figures.

    Files are called ``COLUMN_ROW_sSEED.WHAT``. The folder is replaced as a whole, unless there are
    no figures at all.
    """
    for left in folder.parent.glob(f"{PARTIAL}*-{folder.name}"):
        shutil.rmtree(left, ignore_errors=True)
    fresh, folders = partial_name(folder), known_folders(paths)
    for column, entries in columns.items():
        for entry in entries:
            for result in entry.done:
                prefix = f"{column}_{entry.row}_s{result.run.seed}"
                for name, text in _raw_texts(result, paths.run(result.run.id), folders):
                    with atomic_write(fresh / f"{prefix}.{name}") as stream:
                        stream.write(text)
    if fresh.exists():
        shutil.rmtree(folder, ignore_errors=True)
        put_in_place(fresh, folder)


def _raw_texts(
    result: Result, source: Path, folders: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    for log in (source / "train.log", source / "evaluate.log"):
        if log.is_file():
            content = log.read_text(encoding="utf-8", errors="replace")
            yield log.name, shorten(strip_paths(content, folders))
    if (source / "hypotheses.txt").is_file():
        text = (source / "hypotheses.txt").read_text(encoding="utf-8")
        yield f"hyp.{result.run.data.language}", text
    yield "figures.json", (source / "figures.json").read_text(encoding="utf-8")
    records = json.dumps(result.records, indent=1, ensure_ascii=False)
    yield "steps.json", strip_paths(records, folders) + "\n"
