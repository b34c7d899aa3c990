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
    entry: Any = state
    for name in ("task_state", STATE, side):
        entry = entry.get(name) if isinstance(entry, Mapping) else None
    return entry if isinstance(entry, str) and entry else None


def remember_dictionaries(task: Any) -> None:
    """Put digests of a task's dictionaries into its state, for its checkpoints. fairseq's commands
    give a task the state of a checkpoint before they build its model: these must be the same."""
    if not hasattr(task, "state"):  # that of `fairseq-kerbs convert` has dictionaries of no words
        return
    check_dictionaries({"task_state": task.state.state_dict}, task)
    sides = {"source": task.source_dictionary, "target": task.target_dictionary}
    task.state.merge_state_dict({STATE: {side: digest(words) for side, words in sides.items()}})


def check_dictionaries(state: dict[str, Any], task: Any) -> None:
    """Raise a UserError where a checkpoint, of whose ``state`` the entry ``task_state`` is enough,
    was trained with other dictionaries than a task's."""
    for side in ("source", "target"):
        trained, dictionary = digest_kept(state, side), getattr(task, f"{side}_dictionary")
        if trained is not None and trained != digest(dictionary):
            words = trained.split()[0]
            other = "of other words or in another order" * (words == str(len(dictionary)))
            raise UserError(
                f"the checkpoint has a {side} dictionary of {words} words, the data has one of "
                f"{len(dictionary)}{', but ' * bool(other)}{other}: use the data that the model "
                "was trained on."
            )
