"""The one exception that stands for a mistake of the user's, not of the program's."""

from __future__ import annotations


class UserError(Exception):
    """Wrong input: the message is one sentence that names the flag or file and says what to do.

    The command line prints it after ``fairseq-kerbs: error:`` and ends with exit status 2; it shows
    a traceback for every other exception, because that would be a defect of the program.
    """
