"""A wrong flag of fairseq's programs is one sentence in place of 200 lines of usage."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

from fairseq import options

from fairseq_kerbs.fairseq_patches.registry import patched
from fairseq_kerbs.utils.errors import argument_error
from fairseq_kerbs.utils.processes import OWN_FLAGS


@patched(options, "parse_args_and_arch", "the sentence would be below 200 lines of usage")
def parse_args_and_arch(stock: Any, parser: Any, *args: Any, **kwargs: Any) -> Any:
    """What was misspelt may be a flag of the subcommand that has started the program."""
    flags = os.environ.get(OWN_FLAGS, "").split()
    parser.error = partial(argument_error, parser, flags=flags)
    return stock(parser, *args, **kwargs)
