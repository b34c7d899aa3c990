"""Kernelized Bayesian Softmax (KerBS, Miao et al., NeurIPS 2019) as a fairseq plugin.

``--user-dir fairseq_kerbs`` imports this package, which registers the models and the criterion. A
program that has not imported fairseq gets the mathematics alone (kernels, senses, likelihood,
output layers, …), which works in any PyTorch program; ``import fairseq_kerbs.models`` and
``import fairseq_kerbs.criterions`` register by hand.
"""

import sys

__version__ = "0.1.0"

# fairseq takes seconds to import: who has not asked for it does not wait for it
if "fairseq" in sys.modules:
    from fairseq_kerbs import criterions, models  # noqa: F401
