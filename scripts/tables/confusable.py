"""Table of similar words that output layers take for each other (Gao et al. 2019, Table 4).

It is written from one file of each system, the output of ``fairseq-kerbs neighbours BASELINE
--compare SYSTEM --json FILE``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fairseq_kerbs.evaluation.texts import escape_markdown

CLUSTERS = 8  # shown, those that the baseline confuses most
EXAMPLES = 2  # of each system


def read_result(path: Path) -> dict[str, Any]:
    """What ``fairseq-kerbs neighbours --json`` has written."""
    result: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return result


def confusable_words(
    results: Mapping[str, Mapping[str, Any]], baseline: str, clusters: int = CLUSTERS
) -> list[str]:
    """Markdown lines: counts of each system, counts of each cluster, and examples.

    Args:
        results: the result of each system by its title, each beside the baseline. That of the
            baseline itself has the clusters.
        baseline: title of the baseline.
        clusters: maximum number of clusters that are shown.

    Raises:
        KeyError: ``results`` has no baseline.
    """
    first = results[baseline]
    others = {title: result for title, result in results.items() if title != baseline}
    times = _total(first, "(all clusters)")["times"]
    lines = [
        f"Clusters of words with similar output vectors in {baseline}, by inner products: "
        f"{first['found'].partition(',')[0]}. Their words occur {times:,} times in the test text.",
        "A system is *right* where the word has the highest probability after the words before it.",
        "",
        *_systems(results, baseline),
        "",
        f"- *one for another*: another word of the cluster has the highest probability. "
        f"*resolved*: {baseline} takes one for another, and the system is right. *introduced*: "
        f"{baseline} is right, and the system takes one for another.",
        "- p: exact two-sided sign test of *resolved* against *introduced*, over occurrences. It "
        "does not cover the variation between seeds, and is not corrected for several systems.",
        "",
        *_clusters(results, first["clusters"], baseline, clusters),
    ]
    examples = _examples(others, baseline)
    if examples:
        lines += ["", *examples]
    return lines


def sign_test(more: int, fewer: int) -> float:
    """p of the two-sided exact sign test, 1 if there is no difference to test."""
    from scipy.stats import binomtest

    return float(binomtest(more, more + fewer).pvalue) if more + fewer else 1.0


def _total(result: Mapping[str, Any], name: str) -> dict[str, Any]:
    return next(row for row in result["totals"] if row["words"] == name)


def _markdown(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """A table, whose columns are the keys of the first row."""
    from pandas import DataFrame

    text = DataFrame(rows).to_markdown(index=False, disable_numparse=True)
    return text.splitlines()


def _systems(results: Mapping[str, Mapping[str, Any]], baseline: str) -> list[str]:
    rows = []
    for title, result in results.items():
        inside = _total(result, "(all clusters)")
        everywhere = _total(result, "(all words)")
        same = title == baseline
        resolved = inside["resolved"]
        introduced = inside["introduced"]
        rows.append(
            {
                "system": title,
                "right": f"{inside['other_right']:,}",
                "one for another": f"{inside['other_within']:,}",
                "resolved": "" if same else f"{resolved:,}",
                "introduced": "" if same else f"{introduced:,}",
                "p": "" if same else f"{sign_test(resolved, introduced):.3f}",
                "right, all words": f"{everywhere['other_right']:,} of {everywhere['times']:,}",
            }
        )
    return _markdown(rows)


def _clusters(
    results: Mapping[str, Mapping[str, Any]],
    found: Sequence[Mapping[str, Any]],
    baseline: str,
    most: int,
) -> list[str]:
    """How often each system is right in the clusters that the baseline confuses most."""
    ranked = sorted(found, key=lambda cluster: (-cluster["within"], cluster["cluster"]))
    shown = [cluster for cluster in ranked[:most] if cluster["within"]]
    if not shown:
        return [f"{baseline} takes no word for another of its cluster."]
    right = {
        title: {cluster["cluster"]: cluster["other_right"] for cluster in result["clusters"]}
        for title, result in results.items()
    }
    rows = []
    for cluster in shown:
        row = {"words": escape_markdown(cluster["words"]), "times": str(cluster["times"])}
        row |= {title: str(counts[cluster["cluster"]]) for title, counts in right.items()}
        rows.append(row)
    head = f"Times right in the clusters in which {baseline} most often takes one for another:"
    return [head, "", *_markdown(rows)]


def _examples(others: Mapping[str, Mapping[str, Any]], baseline: str) -> list[str]:
    """Resolved occurrences of each system, those first where the baseline is most wrong."""
    rows = []
    for title, result in others.items():
        ranked = sorted(
            result["examples"], key=lambda example: example["truth"] - example["probability"]
        )
        for example in ranked[:EXAMPLES]:
            rows.append(
                {
                    "system": title,
                    "text": escape_markdown(example["text"]),
                    baseline: escape_markdown(
                        f"{example['guess']} {example['probability']:.2f}, "
                        f"{example['word']} {example['truth']:.2f}"
                    ),
                    "by the system": escape_markdown(
                        f"{example['word']} {example['other_truth']:.2f}"
                    ),
                }
            )
    if not rows:
        return []
    head = (
        "Examples of *resolved*, with probabilities, those that the baseline misses most clearly:"
    )
    return [head, "", *_markdown(rows)]
