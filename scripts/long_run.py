#!/usr/bin/env python
"""Watches a long training: are memory, speed and senses steady? (Linux)

    python scripts/long_run.py WINDOWS.json fairseq-train DATA/bin --user-dir fairseq_kerbs \
        --arch transformer_kerbs --reallocation paper ... --max-update 20000 \
        --reallocation-interval 200 --log-interval 200 --log-format json

All flags of the recorded run are in results/long_run/. WINDOWS.json receives, for every logged
window of updates but the first, the resident memory (in 2^20 bytes) and processor time of the
command from /proc, and the senses that moved and the loss from its log (what moves when a window
ends is in the next one).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def resident_and_cpu(process: int) -> tuple[float, float]:
    """Resident memory in 2^20 bytes and processor seconds of a running process."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    # the name, in brackets, may hold blanks
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20, ticks / os.sysconf("SC_CLK_TCK")


def main(output: str, *command: str) -> int:
    """Run the command, write a JSON list of its windows; return the command's status."""
    windows: list[dict[str, float]] = []
    spent = 0.0
    pipe = subprocess.PIPE
    with subprocess.Popen(command, text=True, stdout=pipe, stderr=subprocess.STDOUT) as process:
        for line in process.stdout or ():
            print(line, end="", flush=True)
            _, found, figures = line.partition("| train_inner | ")
            if found:
                log = json.loads(figures)
                memory, cpu = resident_and_cpu(process.pid)
                window = {"updates": int(log["num_updates"]), "resident_mb": round(memory, 2)}
                window |= {"cpu_seconds": round(cpu - spent, 2), "loss": float(log["loss"])}
                windows.append(window | {"moved": float(log.get("senses_moved", "nan"))})
                spent = cpu
    # the first window is that of imports and first allocations
    Path(output).write_text(json.dumps(windows[1:], indent=1) + "\n", encoding="utf-8")
    return process.returncode


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: long_run.py WINDOWS.json COMMAND [ARGUMENT ...]")
    sys.exit(main(*sys.argv[1:]))
