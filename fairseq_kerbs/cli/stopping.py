"""What ``fairseq-kerbs train`` says when a signal ends it: where the same command goes on.

fairseq saves nothing at a signal, so the training goes on from its last checkpoint.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_kerbs.utils.checkpoint_files import LAST, check_whole, with_suffix
from fairseq_kerbs.utils.errors import UserError

if TYPE_CHECKING:
    from fairseq_kerbs.programs import Call

INTERRUPTED = 128 + signal.SIGINT
"""Exit status after Ctrl-C."""

STOPPED = (INTERRUPTED, 128 + signal.SIGTERM, 128 + signal.SIGHUP)
"""Exit statuses of a training that a signal ended, as a shell has them."""


def where_it_goes_on(call: Call) -> str:
    """A clause about the checkpoint that the same command goes on from.

    Args:
        call: the call of fairseq-train. Of a training in three steps, the whole one.
    """
    values = call.values
    folder = Path(values.save_dir)
    name = with_suffix(LAST, values.checkpoint_suffix)
    # the second is of the first of three steps
    files = [file for file in (folder / name, folder / "softmax" / name) if file.is_file()]
    if not files:
        pattern = with_suffix("checkpoint*.pt", values.checkpoint_suffix)
        others = sorted(folder.glob(pattern), key=lambda file: file.stat().st_mtime)
        if others:
            return (
                f"{folder} has no {name}, so that the same command begins anew; to go on, add "
                f"--restore-file {others[-1]}"
            )
        return (
            f"no checkpoint yet in {folder}, so that the same command begins anew "
            "(--save-interval-updates N saves after every N updates)"
        )
    last = files[0]
    try:
        check_whole(last)
    except UserError:
        return f"{last} is damaged; to go on from another checkpoint, name it with --restore-file"
    updates = _updates(last)
    place = f"{last} at {updates} updates" if updates else str(last)
    if values.restore_file != LAST:
        return f"to go on from {place}, leave --restore-file out"
    return f"the same command goes on from {place}"


def _updates(checkpoint: Path) -> int | None:
    """Number of updates of a checkpoint, or None if only fairseq itself can read it."""
    from fairseq_kerbs.checkpoints import read_checkpoint

    try:
        history = read_checkpoint(checkpoint).get("optimizer_history") or [{}]
    except UserError:
        return None
    number = history[-1].get("num_updates")
    return number if isinstance(number, int) else None
