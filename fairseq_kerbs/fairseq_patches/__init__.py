"""Every change of fairseq's behaviour at run time; `registry.PATCHES` lists them with reasons.

They hold for every model in a program with our ``--user-dir``, whichever way fairseq was installed.
"""

import warnings

from fairseq_kerbs.fairseq_patches import (  # noqa: F401  (each registers its patches)
    checkpoint_files,
    ema,
    evaluated_settings,
    nan_gradients,
    printed_senses,
    repeated_ngrams,
    resume,
    wrong_flags,
)
from fairseq_kerbs.fairseq_patches.registry import PATCHES


def apply() -> None:
    """Make all changes; those that are made already stay as they are."""
    # how fairseq calls torch, its user cannot change
    for notice in ("'pin_memory'", "`torch.cuda.amp", "Support for mismatched key_padding_mask"):
        warnings.filterwarnings("ignore", message=notice)
    for patch in PATCHES:
        patch.apply()
