#!/usr/bin/env python
"""A long training of a tiny model on the embedded corpus: do memory, speed and senses settle?

    python scripts/long_run.py -o long_run.json                   # 20,000 updates
    python scripts/long_run.py --reallocation balanced --seed 2   # other flags go to fairseq-train

fairseq-train runs as users run it, with validation and checkpoints after every epoch. After every
window of updates its resident memory and processor time are read from /proc (Linux) and the
senses that moved from its log. Three sentences at the end say what came of it.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

# the checkout that this script belongs to, installed or not
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fairseq_kerbs.benchmarks.machine import describe_machine, describe_versions
from fairseq_kerbs.corpora.files import atomic_write
from fairseq_kerbs.errors import UserError
from fairseq_kerbs.host import PLUGIN_FOLDER, end_with_parent, find_program

MODEL = (
    "--arch transformer_kerbs --encoder-embed-dim 16 --decoder-embed-dim 16 "
    "--encoder-ffn-embed-dim 32 --decoder-ffn-embed-dim 32 --encoder-layers 1 --decoder-layers 1 "
    "--encoder-attention-heads 2 --decoder-attention-heads 2 --dropout 0.1 "
    "--criterion kerbs_cross_entropy --optimizer adam --lr 3e-3 --lr-scheduler inverse_sqrt "
    "--warmup-updates 200 --clip-norm 5.0 --max-tokens 100 --seed 1 --no-epoch-checkpoints "
    "--num-workers 0 --cpu"
)
GROWTH, DRIFT = 0.02, 0.1  # shares by which flat memory and constant speed may differ


@dataclass(frozen=True)
class Window:
    """One window of updates.

    Attributes:
        updates: number of the last update.
        resident_mb: resident memory of the training process at its end, in 2^20 bytes.
        seconds: wall time since the window before.
        cpu_seconds: processor time since then.
        moved: senses that moved, None where the log does not say.
        loss: mean training loss in bits a token.
    """

    updates: int
    resident_mb: float
    seconds: float
    cpu_seconds: float
    moved: int | None
    loss: float


def quarters(values: Sequence[float]) -> tuple[float, float]:
    """Medians of the second and of the last quarter: the first one still warms up."""
    part = max(1, len(values) // 4)
    second = values[part : 2 * part] or values
    return statistics.median(second), statistics.median(values[-part:])


def memory_sentence(windows: Sequence[Window]) -> str:
    """Whether memory is flat."""
    early, late = quarters([window.resident_mb for window in windows])
    growth = late / early - 1
    verdict = "is flat" if growth <= GROWTH else "GROWS"
    return (
        f"Memory {verdict}: {early:.1f} MB in the second quarter of the training, {late:.1f} MB in "
        f"the last one ({growth:+.2%})."
    )


def speed_sentence(windows: Sequence[Window], size: int) -> str:
    """Whether updates cost the same processor time throughout."""
    early, late = quarters([size / window.cpu_seconds for window in windows])
    change = late / early - 1
    verdict = "is constant" if abs(change) <= DRIFT else "CHANGES"
    return (
        f"Throughput {verdict}: {early:.1f} updates a CPU second in the second quarter, {late:.1f} "
        f"in the last one ({change:+.1%})."
    )


def reallocation_sentence(windows: Sequence[Window]) -> str:
    """Whether, and after how many updates, senses came to rest."""
    known = [window for window in windows if window.moved is not None]
    if not known:
        return "Reallocation: the log shows no moves, so nothing can be said."
    moving = [window.updates for window in known if window.moved]
    total = sum(window.moved or 0 for window in known)
    last = known[-max(1, len(known) // 4) :]
    late = sum(window.moved or 0 for window in last)
    if late == 0:
        after = f"no sense moved after update {moving[-1]}" if moving else "no sense ever moved"
        return f"Reallocation converged: {after} ({total} moves in all)."
    return (
        f"Reallocation did NOT converge: {late} of {total} moves fell into the last quarter of the "
        f"training, {late / len(last):.1f} a window (at first {known[0].moved})."
    )


def resident_and_cpu(process: int) -> tuple[float, float]:
    """Resident memory in MB and processor seconds of a running process."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    # the name, in brackets, may hold blanks
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20, ticks / os.sysconf("SC_CLK_TCK")


def watch(training: subprocess.Popen[str], log: Path) -> Iterator[Window]:
    """The windows of a running training, as its log shows them."""
    assert training.stdout is not None
    clock, spent = time.monotonic(), math.nan
    with log.open("w", encoding="utf-8") as copy:
        for line in training.stdout:
            copy.write(line)
            _, mark, rest = line.partition("| train_inner | ")
            if not mark:
                continue
            figures: dict[str, Any] = json.loads(rest)
            memory, processor = resident_and_cpu(training.pid)
            now = time.monotonic()
            if not math.isnan(spent):  # the first window is that of imports and first allocations
                moved = figures.get("senses_moved")
                yield Window(
                    updates=int(figures["num_updates"]),
                    resident_mb=round(memory, 2),
                    seconds=round(now - clock, 3),
                    cpu_seconds=round(processor - spent, 2),
                    moved=None if moved is None else round(float(moved)),
                    loss=float(figures["loss"]),
                )
            clock, spent = now, processor


def prepare(folder: Path, pairs: int) -> Path:
    """Write and binarize the embedded corpus; return the folder for fairseq-train."""
    kerbs = [sys.executable, "-P", "-m", "fairseq_kerbs.cli"]
    text = folder / "text"
    toy = ["toy", str(text), "--train", str(pairs), "--valid", "60", "--test", "60"]
    splits = [part for name in ("train", "valid", "test") for part in (f"--{name}", text / name)]
    bpe = ["prepare", *map(str, splits), "--source-lang", "de", "--target-lang", "en"]
    bpe += ["--merges", "2000", "--dest", str(folder / "data"), "--workers", "1"]
    for arguments in (toy, bpe):
        done = subprocess.run(
            [*kerbs, *arguments], env=_environment(), capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise UserError(f"fairseq-kerbs {arguments[0]} failed: {done.stderr.strip()[-500:]}")
    return folder / "data" / "bin"


def _environment() -> dict[str, str]:
    path = os.environ.get("PYTHONPATH")
    checkout = str(PLUGIN_FOLDER.parent)
    return {**os.environ, "PYTHONPATH": checkout if not path else f"{checkout}{os.pathsep}{path}"}


def run(args: argparse.Namespace, flags: Sequence[str], folder: Path) -> list[Window]:
    """Prepare the data, train, and return the windows.

    Raises:
        UserError: a command failed; the message holds the end of what it said.
    """
    data, log = prepare(folder, args.pairs), folder / "train.log"
    command = [find_program("fairseq-train"), str(data), "--user-dir", str(PLUGIN_FOLDER)]
    command += [*MODEL.split(), "--max-update", str(args.updates)]
    command += ["--reallocation-interval", str(args.window), "--log-interval", str(args.window)]
    command += ["--log-format", "json", "--save-dir", str(folder / "model"), *flags]
    with subprocess.Popen(
        command,
        env=_environment(),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=end_with_parent,
    ) as training:
        windows = []
        for window in watch(training, log):
            windows.append(window)
            if len(windows) % max(1, args.updates // args.window // 10) == 0:
                print(
                    f"{window.updates} updates: {window.resident_mb:.0f} MB, "
                    f"{args.window / window.cpu_seconds:.1f} updates a CPU second, "
                    f"{window.moved} senses moved, loss {window.loss}",
                    flush=True,
                )
    if training.returncode:
        end = log.read_text(encoding="utf-8").strip()[-800:]
        raise UserError(f"fairseq-train ended with status {training.returncode}: {end}")
    return windows


def main(argv: Sequence[str] | None = None) -> int:
    """Run; return the exit status (2 for wrong input, with one sentence)."""
    parser = argparse.ArgumentParser(prog="long_run.py", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write a JSON file")
    parser.add_argument("--updates", type=int, default=20_000, help="[%(default)s]")
    parser.add_argument("--window", type=int, default=200, help="updates of one [%(default)s]")
    parser.add_argument("--pairs", type=int, default=4000, help="training pairs [%(default)s]")
    args, flags = parser.parse_known_args(argv)
    try:
        if args.window < 1 or args.updates < 6 * args.window:
            raise UserError("--updates must be at least six times --window, and --window 1 or more")
        with tempfile.TemporaryDirectory(prefix="long_run-") as folder:
            windows = run(args, flags, Path(folder))
        sentences = {
            "memory": memory_sentence(windows),
            "throughput": speed_sentence(windows, args.window),
            "reallocation": reallocation_sentence(windows),
        }
        document = {
            "settings": {"updates": args.updates, "window": args.window, "pairs": args.pairs},
            "flags": [*MODEL.split(), *flags],
            "machine": describe_machine("cpu"),
            "versions": describe_versions(),
            "sentences": sentences,
            "windows": [asdict(window) for window in windows],
        }
        if args.output is not None:
            with atomic_write(args.output) as stream:
                stream.write(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    except UserError as error:
        print(f"long_run.py: error: {error}", file=sys.stderr)
        return 2
    print("\n".join(sentences.values()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
