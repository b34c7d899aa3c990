#!/usr/bin/env python
"""Lemmas 4.1 and 4.2 of the paper as experiments, see :mod:`fairseq_kerbs.analysis.lemmas`."""

from __future__ import annotations

import sys
from pathlib import Path

# the checkout that this script belongs to, installed or not
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from fairseq_kerbs.analysis.lemmas import main

if __name__ == "__main__":
    main()
