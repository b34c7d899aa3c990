"""A wrong flag of fairseq's programs is one sentence in place of usage or of a traceback, and
--bf16 asks for no TPU."""

from __future__ import annotations

import os
import sys
from functools import partial
from importlib.util import find_spec
from typing import Any

from fairseq import options
from fairseq.trainer import Trainer

from fairseq_kerbs.fairseq_patches.registry import patched
from fairseq_kerbs.utils.errors import ProgramEnd, argument_error
from fairseq_kerbs.utils.processes import OWN_FLAGS


@patched(options, "parse_args_and_arch", "usage above errors, and TPUs for --bf16 alone")
def parse_args_and_arch(stock: Any, parser: Any, input_args: Any = None, **kwargs: Any) -> Any:
    """What was misspelt may be a flag of the subcommand that has started the program.

    fairseq takes ``--bf16`` for ``--tpu``: not where the library for these is missing.
    """
    flags = os.environ.get(OWN_FLAGS, "").split()
    parser.error = partial(argument_error, parser, flags=flags)
    try:
        found = stock(parser, input_args, **kwargs)
    except ValueError as error:  # it forbids --fp16 with the TPU that --bf16 has stood for
        parser.error(str(error))
    except RuntimeError as error:  # without a word if no --arch was given
        if error.args:
            raise
        parser.error("--arch is missing, or 'arch' under 'train:' of a configuration")
    args = found[0] if isinstance(found, tuple) else found
    if getattr(args, "bf16", False) and find_spec("torch_xla") is None:
        args.tpu = "--tpu" in (sys.argv if input_args is None else input_args)
    return found


@patched(Trainer, "_build_optimizer", "float32 copies on a CPU end in a traceback")
def build_optimizer(stock: Any, trainer: Any) -> None:
    """``--fp16`` keeps its copies, one flat tensor, in memory of a GPU alone."""
    common = trainer.cfg.common
    flat = common.fp16 and not (common.memory_efficient_fp16 or common.fp16_no_flatten_grads)
    if flat and not trainer.cuda:
        raise ProgramEnd("--fp16 needs a GPU, and no --cpu: leave it out, or use --bf16.")
    stock(trainer)
