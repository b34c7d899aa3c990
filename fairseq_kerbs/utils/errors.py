"""User errors, which are reported in one sentence. All other errors are bugs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from textwrap import shorten

from fairseq_kerbs.utils.failures import REFUSAL, REPORTS, informative_line, lines_of


class UserError(SystemExit):
    """Invalid input, with a sentence that names the flag or file and the remedy.

    ``fairseq-kerbs`` prints the sentence and exits with status 2. In fairseq's programs, Python
    prints :attr:`code` and exits with status 1. If a command of ours runs such a program, making a
    UserError also touches a file, by which the command tells a refusal from another failure.

    Args:
        sentence: the sentence.
        program: the program of fairseq that would say it, in place of ours.
    """

    def __init__(self, sentence: str, program: str = "") -> None:
        super().__init__(sentence)
        self.program = program
        self.code = f"{program or 'fairseq_kerbs'}: error: {sentence}"
        if REPORTS in os.environ:
            with suppress(OSError):
                Path(os.environ[REPORTS], REFUSAL).touch()


def sentence_of(error: BaseException) -> str | None:
    """Sentence of a UserError, or about a missing package or a refusal of the operating system.

    Returns None for a bug, which should end with its traceback.
    """
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").partition(".")[0]
        if package not in ("", "fairseq_kerbs"):
            extras = "fairseq_kerbs[fairseq,analysis,tables]"
            if package in ("transformers", "tokenizers", "safetensors"):
                extras = "fairseq_kerbs[analysis,hf]"
            return f"{package} is not installed; run pip install '{extras}'"
    # that a file is not there should have been noticed before
    if isinstance(error, OSError) and error.strerror and not isinstance(error, FileNotFoundError):
        path = error.filename or "the output"
        return f"{path} cannot be used ({error.strerror}); name another place"
    return None


def reason_of(error: BaseException) -> str:
    """The most informative line of an error of fairseq or torch."""
    lines = lines_of(error)
    if not lines:
        return type(error).__name__
    return shorten(informative_line(lines), 200)


@contextmanager
def as_user_error(path: Path, fault: str, advice: str) -> Iterator[None]:
    """Turn exceptions, which fairseq raises for wrong settings, into a UserError about a file."""
    try:
        yield
    except UserError as error:  # of a model of fairseq_kerbs
        raise UserError(str(error) if str(path) in str(error) else f"{path}: {error}") from None
    except Exception as error:
        raise UserError(f"{path} {fault} ({reason_of(error)}); {advice}") from error
