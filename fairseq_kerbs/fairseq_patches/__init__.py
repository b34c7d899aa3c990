"""Every change of fairseq's behaviour at run time; `registry.PATCHES` lists them with reasons.

They hold for every model in a program with our ``--user-dir``, whichever way fairseq was installed.
"""

import re
import warnings

from fairseq_kerbs.fairseq_patches import (  # noqa: F401  (each registers its patches)
    checkpoint_files,
    ema,
    evaluated_settings,
    nan_gradients,
    printed_senses,
    resume,
)
from fairseq_kerbs.fairseq_patches.registry import PATCHES


NOTICES = ("'pin_memory' argument is set as true but no accelerator", "`torch.cuda.amp.autocast")
NOTICES += ("Support for mismatched key_padding_mask",)
"""Beginnings of what torch says about how fairseq calls it, which its user cannot change."""


def apply() -> None:
    """Make all changes; those that are made already stay as they are."""
    for notice in NOTICES:
        warnings.filterwarnings("ignore", message=re.escape(notice))
    for patch in PATCHES:
        patch.apply()
