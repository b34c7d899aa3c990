"""Which dictionaries a checkpoint was trained with.

Words are rows of matrices, so a dictionary of the same size in another order fits every model, and
turns what it has learned into noise. fairseq keeps a task's state in every checkpoint, as
``task_state``; a digest of both dictionaries goes there, where older versions do not look.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from fairseq_kerbs.utils.errors import UserError

STATE = "dictionaries"
"""The entry of the task's state: {"source": digest, "target": digest}."""


def digest(dictionary: Any) -> str:
    """Number of words of fairseq's dictionary, and SHA-256 of the words in their order."""
    words = "\n".join(dictionary.symbols)
    return f"{len(dictionary)} {hashlib.sha256(words.encode()).hexdigest()}"


def digest_kept(state: dict[str, Any], side: str) -> str | None:
    """The digest of one side in a checkpoint; None in those that were written without."""
    kept: Any = state
    for name in ("task_state", STATE, side):
        kept = kept.get(name) if isinstance(kept, Mapping) else None
    return kept if isinstance(kept, str) and kept else None


def remember_dictionaries(task: Any) -> None:
    """Put digests of a task's dictionaries into its state, for its checkpoints.

    fairseq's commands give a task the state of a checkpoint before they build its model: then the
    dictionaries must be those, or the command ends with one sentence.
    """
    if not hasattr(task, "state"):  # that of `fairseq-kerbs convert` has dictionaries of no words
        return
    check_dictionaries({"task_state": task.state.state_dict}, task)
    own = {"source": digest(task.source_dictionary), "target": digest(task.target_dictionary)}
    task.state.merge_state_dict({STATE: own})


def check_dictionaries(state: dict[str, Any], task: Any) -> None:
    """End with one sentence where a checkpoint was trained with other dictionaries than a task's.
    Of the checkpoint's ``state`` the entry ``task_state`` is enough."""
    for side in ("source", "target"):
        kept = digest_kept(state, side)
        if kept is None or kept == digest(dictionary := getattr(task, f"{side}_dictionary")):
            continue
        words = kept.split()[0]
        found = f"one of {len(dictionary)}"
        if words == str(len(dictionary)):
            found = "one of as many, but of other words or in another order"
        raise UserError(
            f"the checkpoint has a {side} dictionary of {words} words, the data has {found}: "
            "use the data that the model was trained on."
        )
