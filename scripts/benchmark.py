#!/usr/bin/env python
"""Speed and memory of fairseq_kerbs next to its peers: likelihood, step, decode, scaling.

    python scripts/benchmark.py likelihood --quick
    python scripts/benchmark.py step --tokens 4096 --threads 2 --output step.json

See ``--help`` of each; the work is done in :mod:`fairseq_kerbs.benchmarks`.
"""

from __future__ import annotations

import sys
from pathlib import Path

# the checkout that this script belongs to, installed or not
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

if __name__ == "__main__":  # not in the processes that measure memory
    from fairseq_kerbs.benchmarks.command import main

    main()
