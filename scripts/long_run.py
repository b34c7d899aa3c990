#!/usr/bin/env python
"""Watches a long training: are memory, speed and senses steady? (Linux)

    fairseq-kerbs toy TEXT --train 4000 --valid 60 --test 60
    fairseq-kerbs prepare --train TEXT/train --valid TEXT/valid --test TEXT/test --source-lang de \
        --target-lang en --merges 2000 --dest DATA --workers 1
    python scripts/long_run.py WINDOWS.json fairseq-train DATA/bin --user-dir fairseq_kerbs \
        --arch transformer_kerbs ... --max-update 20000 --reallocation-interval 200 \
        --log-interval 200 --log-format json

All flags of the recorded run are in results/long_run/. After every logged window of updates the
resident memory (in 2^20 bytes) and processor time of the command are read from /proc, the senses
that moved and the loss from its log. At the end, the medians of the second and of the last quarter
of the windows are printed: the first quarter still warms up.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

FIELDS = {"resident_mb": "MB", "cpu_seconds": "CPU seconds a window", "moved": "senses moved"}


def resident_and_cpu(process: int) -> tuple[float, float]:
    """Resident memory in 2^20 bytes and processor seconds of a running process."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    # the name, in brackets, may hold blanks
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20, ticks / os.sysconf("SC_CLK_TCK")


def main(arguments: list[str]) -> int:
    """Run the command, write a JSON list of its windows; return the command's status."""
    if len(arguments) < 2:
        print("usage: long_run.py WINDOWS.json COMMAND [ARGUMENT ...]", file=sys.stderr)
        return 2
    windows: list[dict[str, Any]] = []
    spent = None  # the first window is that of imports and first allocations
    with subprocess.Popen(
        arguments[1:], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as command:
        assert command.stdout is not None
        for line in command.stdout:
            print(line, end="", flush=True)
            _, found, figures = line.partition("| train_inner | ")
            if found:
                log = json.loads(figures)
                memory, cpu = resident_and_cpu(command.pid)
                if spent is not None:
                    window = {"updates": int(log["num_updates"]), "resident_mb": round(memory, 2)}
                    window |= {"cpu_seconds": round(cpu - spent, 2), "loss": float(log["loss"])}
                    windows.append(window | {"moved": float(log.get("senses_moved", "nan"))})
                spent = cpu
    Path(arguments[0]).write_text(json.dumps(windows, indent=1) + "\n", encoding="utf-8")
    quarter = len(windows) // 4
    for name, unit in FIELDS.items() if quarter else ():
        values = [window[name] for window in windows]
        early, late = values[quarter : 2 * quarter], values[-quarter:]
        print(f"{unit}: {statistics.median(early):.2f} early, {statistics.median(late):.2f} late")
    return command.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
