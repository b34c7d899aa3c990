"""Adjusted mutual information over content words, from outputs of ``senses --gold``.

    python results/clusters/content_words.py FILE.cs.txt.gz...

Most files also have function words, whose Czech translations differ by grammar. These are
scikit-learn's stop words, as in ``gold-translations`` before revision aa78357. For each file: the
number of content words and their occurrences, and the means of senses, k-means and linear
classifier with 95 % bootstrap intervals over words.
"""

from __future__ import annotations

import gzip
import re
import sys
from pathlib import Path

import numpy as np
from scipy.stats import bootstrap
from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS


def main(files: list[Path]) -> None:
    """Print a line for each file."""
    for file in files:
        text = gzip.decompress(file.read_bytes()).decode()
        table = re.split(r"^word +n .*\n-.*\n", text, flags=re.M)[-1].partition("\n\n")[0]
        rows = [row.split() for row in table.splitlines()]
        values = np.array([row[1:] for row in rows if row[0].lower() not in ENGLISH_STOP_WORDS], float)
        cells = []
        for column in values[:, -3:].T:
            low, high = bootstrap(
                (column,), np.mean, method="percentile", random_state=1
            ).confidence_interval
            cells.append(f"{column.mean():.3f} [{low:.3f}, {high:.3f}]")
        print(file.name, f"{len(values)} words, {values[:, 0].sum():.0f} occurrences;", *cells)


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
