"""The program ``fairseq-kerbs``: its output, signals and exit status."""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from fairseq_kerbs.utils.errors import UserError, sentence_of
from fairseq_kerbs.utils.processes import stop_on_signals


def main(argv: Sequence[str] | None = None, group: Any = None, name: str = "fairseq-kerbs") -> int:
    """Run a command; return its exit status (2 for wrong input, with one sentence on stderr).

    Args:
        argv: the command's words [those of this process].
        group: click's group of commands [those of ``fairseq-kerbs``].
        name: name of the program in messages.
    """
    stop_on_signals()
    _write_utf8()
    try:
        # only the commands need click: if it is missing, that is said in one sentence, as for
        # other packages
        from fairseq_kerbs.cli.commands import root, run

        status = run(sys.argv[1:] if argv is None else argv, group or root, name)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of our output has had enough, such as head
        _drop_output()
        return 128 + signal.SIGPIPE
    except (UserError, OSError, ModuleNotFoundError) as error:
        sentence = sentence_of(error)
        if sentence is None:
            raise
        _drop_output()
        program = getattr(error, "program", "") or name
        print(f"{program}: error: {sentence}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{name}: interrupted; run the same command again", file=sys.stderr)
        return 130
    return status


def _write_utf8() -> None:
    """Write UTF-8 in any locale, as the texts that we read, or nowhere if output is closed."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the shell, as by >&-
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")
    if isinstance(sys.stderr, io.TextIOWrapper):
        sys.stderr.reconfigure(encoding="utf-8", errors="backslashreplace")


def _drop_output() -> None:
    """Discard output that cannot be written, which Python would try to write again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
