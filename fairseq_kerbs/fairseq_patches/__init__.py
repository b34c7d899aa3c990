"""Every change of fairseq's behaviour at run time, made on import; `registry.PATCHES` lists them.

They hold for every model in a program with our ``--user-dir``, whichever way fairseq was installed.
"""

from fairseq_kerbs.fairseq_patches import (  # noqa: F401  (each makes its changes)
    checkpoint_files,
    ema,
    evaluated_settings,
    nan_gradients,
    printed_senses,
    resume,
)
