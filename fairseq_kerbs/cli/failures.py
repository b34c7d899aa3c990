"""How a command says that a program of fairseq's has failed: one sentence, and the flag if known.

Many options of fairseq fail with a traceback, because a model, a criterion or a task has not what
they read. Which do is not known beforehand, as it depends on the model and the data. So the flags
of the call are looked up in the failing lines.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.failures import FULL
from fairseq_kerbs.utils.files import atomic_write

if TYPE_CHECKING:
    from fairseq_kerbs.programs import Call
    from fairseq_kerbs.utils.failures import Failure

TRACEBACK = "traceback.txt"
"""File in SAVE_DIR with the whole message of a program that has failed."""

_ORDINARY = frozenset(
    (
        "batch_size",
        "beam",
        "cpu",
        "data",
        "log_format",
        "log_interval",
        "lr",
        "max_len_a",
        "max_len_b",
        "max_tokens",
        "max_update",
        "num_workers",
        "path",
        "save_dir",
        "seed",
    )
)
"""Flags whose names are in most lines of fairseq. They are blamed only if the exception's sentence
names them."""

_FOLDERS = ("data", "save_dir")
"""Values that are a part of the paths in a sentence, which says nothing about them."""


def say_failure(call: Call, failure: Failure, folder: Path) -> int:
    """Say why a program has failed, and write its traceback. Returns an exit status of 1.

    Args:
        call: the call of the program.
        failure: what it has left.
        folder: folder for the traceback, which is printed if it cannot be written there.

    Raises:
        UserError: flags of the call are to blame.
    """
    if FULL in failure.error:
        print(
            f"fairseq-kerbs: error: {folder}: {FULL}; free some, remove {folder}/*.tmp, and give "
            "the same command again",
            file=sys.stderr,
        )
        return 1
    named = flags_to_blame(call, failure)
    possible = [] if named else _given_at_start(call, failure)
    where = _write_traceback(folder, failure.text)
    if possible:
        which = possible[0] if len(possible) == 1 else f"one of {', '.join(possible)}"
        raise UserError(f"{call.program} failed ({failure.error}), perhaps by {which}; see {where}")
    if named:
        raise UserError(
            f"{call.program} cannot serve {' and '.join(named)} here ({failure.error}); leave "
            f"{'it' if len(named) == 1 else 'one of them'} out, or give what it needs: see {where}"
        )
    sentence = f"{call.program} failed ({failure.error}); see {where}"
    print(f"fairseq-kerbs: error: {sentence}", file=sys.stderr)
    return 1


def _write_traceback(folder: Path, text: str) -> str:
    """Write a traceback, or print it. Returns where it is."""
    path = folder / TRACEBACK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as stream:
            stream.write(text)
    except (OSError, UserError):
        print(text, file=sys.stderr)
        return "above"
    return str(path)


def flags_to_blame(call: Call, failure: Failure) -> list[str]:
    """Flags of a call that the failing lines read, with their values if these choose a part.

    Those of the command line come before those of the configuration, and inner lines before outer
    ones. None is to blame where memory, a disk or a device failed.
    """
    if failure.of_system:
        return []
    for names in (call.on_command_line, call.given - call.on_command_line):
        for number, words in enumerate(failure.places):
            found = [
                _shown(call, name)
                for name in sorted(names & call.actions.keys())
                if _is_named(call, name, words, in_sentence=number == 0)
            ]
            if found:
                return found
    return []


def _is_named(call: Call, name: str, words: Sequence[str], *, in_sentence: bool) -> bool:
    """Tell whether the words of a line of code, or of an exception's sentence, name a flag."""
    if name in _ORDINARY and not in_sentence:
        return False
    return not _names_of(call, name, in_sentence=in_sentence).isdisjoint(words)


def _given_at_start(call: Call, failure: Failure) -> list[str]:
    """Flags of the command line, if no batch has been computed."""
    if failure.of_system or not failure.at_start:
        return []
    given = (call.on_command_line & call.actions.keys()) - _ORDINARY
    return [_shown(call, name) for name in sorted(given)]


def _names_of(call: Call, name: str, *, in_sentence: bool) -> set[str]:
    """What stands for a flag in a line of code, or in the sentence of an exception.

    One that chooses a part stands for its choice, and for the class and the module of that part. A
    sentence may have the value of a flag alone.
    """
    from fairseq_kerbs.programs import names_of_part

    value = getattr(call.values, name, None)
    if isinstance(value, str) and _chooses(call, name):
        return {word.lower() for word in (value, *names_of_part(name, value))}
    by_value = in_sentence and isinstance(value, str) and name not in _FOLDERS
    return {name, str(value).lower()} if by_value else {name}


def _chooses(call: Call, name: str) -> bool:
    value = getattr(call.values, name, None)
    return call.actions[name].choices is not None and isinstance(value, str)


def _shown(call: Call, name: str) -> str:
    flag = call.flag(name)
    return f"{flag} {getattr(call.values, name)}" if _chooses(call, name) else flag
