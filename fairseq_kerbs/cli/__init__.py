"""The command line ``fairseq-kerbs``, by click.

`commands` lists the commands, by what people do. A module has the commands of one subject, with
their flags, help and examples. Whatever is slow to import is imported when a command runs.
"""

from fairseq_kerbs.cli.program import main

__all__ = ["main"]
