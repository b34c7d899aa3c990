"""Record and check the dictionaries and the direction that a checkpoint was trained with.

A dictionary of the same size in another order loads without an error, but gives wrong words. With
one dictionary for both languages, so does text of the other direction. Therefore digests of both
dictionaries and the two languages are stored in ``task_state`` of fairseq's checkpoints.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import read_lines

STATE = "dictionaries"
"""Key in the task's state, with the value {"source": digest, "target": digest}, and for a
translation {"source_lang": language, "target_lang": language}."""


def read_dictionary(path: Path) -> Any:
    """Read a file of fairseq-preprocess, such as ``dict.en.txt``.

    A UserError is raised if the file is missing, or is no dictionary.
    """
    from fairseq.data import Dictionary

    read_lines(path)  # raises a UserError for a missing file or a wrong encoding
    try:
        return Dictionary.load(str(path))
    except Exception as error:  # fairseq raises a bare one for a file in another encoding
        raise UserError(f"{path} is no dictionary of fairseq ({error})") from None


def digest(dictionary: Any) -> str:
    """Number of words of fairseq's dictionary, and SHA-256 of the words in order."""
    words = "\n".join(dictionary.symbols)
    return f"{len(dictionary)} {hashlib.sha256(words.encode()).hexdigest()}"


def kept_in(state: Mapping[str, Any], name: str) -> str | None:
    """What a checkpoint holds of its dictionaries and languages, or None.

    ``name`` is "source" or "target" for a digest, "source_lang" or "target_lang" for a language.
    """
    entry: Any = state
    for key in ("task_state", STATE, name):
        entry = entry.get(key) if isinstance(entry, Mapping) else None
    return entry if isinstance(entry, str) and entry else None


def remember_dictionaries(task: Any) -> None:
    """Store digests of a task's dictionaries in its state, which checkpoints contain.

    If fairseq has loaded the state of a checkpoint into the task, its digests must be equal.
    """
    # a task with placeholder words (checkpoints.building.placeholder_task) has none
    if not hasattr(task, "state"):
        return
    check_dictionaries({"task_state": task.state.state_dict}, task)
    task.state.merge_state_dict(digests_of(task))


def digests_of(task: Any) -> dict[str, dict[str, str]]:
    """The entry of ``task_state`` with digests of a task's dictionaries, and its languages."""
    sides = {"source": task.source_dictionary, "target": task.target_dictionary}
    languages = {name: getattr(task.cfg, name, None) for name in ("source_lang", "target_lang")}
    kept = {name: str(language) for name, language in languages.items() if language}
    return {STATE: {side: digest(words) for side, words in sides.items()} | kept}


def is_reversed(state: Mapping[str, Any], source: str | None, target: str | None) -> bool:
    """Tell whether a checkpoint was trained to translate from ``target`` to ``source``."""
    trained = (kept_in(state, "source_lang"), kept_in(state, "target_lang"))
    return bool(source and target) and trained == (target, source)


def check_dictionaries(state: dict[str, Any], task: Any, *, direction: bool = True) -> None:
    """Raise a UserError if a checkpoint was trained with other dictionaries than a task's.

    The same holds for a checkpoint of the other ``direction``, unless a new training only begins
    with its parameters. Of the checkpoint's ``state``, only the entry ``task_state`` is used.
    """
    source = getattr(task.cfg, "source_lang", None)
    target = getattr(task.cfg, "target_lang", None)
    if direction and is_reversed(state, source, target):
        raise UserError(
            f"the checkpoint was trained to translate from {target} to {source}, and the data are "
            f"from {source} to {target}: give --source-lang {target} --target-lang {source}, or "
            "the data that the model was trained on."
        )
    for side in ("source", "target"):
        trained = kept_in(state, side)
        dictionary = getattr(task, f"{side}_dictionary")
        if trained is not None and trained != digest(dictionary):
            words = trained.split()[0]
            other = ""
            if words == str(len(dictionary)):
                other = ", but of other words or in another order"
            raise UserError(
                f"the checkpoint has a {side} dictionary of {words} words, the data has one of "
                f"{len(dictionary)}{other}: use the data that the model was trained on."
            )
