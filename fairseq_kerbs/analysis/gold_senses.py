"""Learned senses against true ones: V-measure, adjusted Rand index and purity of each word.

Beside them stand: one sense for all occurrences; the learned senses permuted among a word's
occurrences; k-means on the same context vectors with as many clusters as true senses (a ceiling
without labels); a linear classifier of the context vectors in cross-validation (one with labels).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import adjusted_rand_score, v_measure_score
from sklearn.metrics.cluster import contingency_matrix
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tabulate import tabulate

from fairseq_kerbs.analysis.occurrences import Occurrence
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import read_lines

GoldSenses = Mapping[tuple[int, int, str], str]
"""True senses by number of the line, occurrence of the word in it (both from 0), and word."""

LEAST_OCCURRENCES = 5  # of a word, and two of each of at least two of its senses
PERMUTATIONS = 100
LEAST_USE = 0.01  # share of a word's occurrences below which a sense counts as unused
FOLDS = 5


class Labelled(NamedTuple):
    """Occurrences of a word whose true senses are known, n in all."""

    true: NDArray[np.int64]  # [n] number of the true sense
    learned: NDArray[np.int64]  # [n] number of the model's most probable sense within the word
    contexts: NDArray[np.float32]  # [n, d]
    senses: int  # how many the model has of the word


def read_gold_senses(path: Path) -> GoldSenses:
    """True senses from lines of number of the line, occurrence, word and sense between tabs; a
    UserError if there are none, or a line has another form."""
    gold: dict[tuple[int, int, str], str] = {}
    for number, row in enumerate(read_lines(path), start=1):
        fields = row.split("\t")
        if len(fields) != 4 or not (fields[0].isdigit() and fields[1].isdigit()):
            raise UserError(
                f"{path}, line {number}: expected line, occurrence, word and sense between tabs"
            )
        gold[int(fields[0]), int(fields[1]), fields[2]] = fields[3]
    if not gold:
        raise UserError(f"{path} is empty")
    return gold


def lines_as_samples(task: Any) -> None:
    """Let a language model's splits come a line a sample, since gold senses count lines."""
    if hasattr(getattr(task, "args", None), "sample_break_mode"):
        task.args.sample_break_mode = "eos"


def by_word(occurrences: Iterable[Occurrence], gold: GoldSenses) -> dict[str, Labelled]:
    """Occurrences of every word whose true senses are known, in the order of words; a UserError if
    there are none."""
    rows: defaultdict[str, list[tuple[str, Occurrence]]] = defaultdict(list)
    for one in occurrences:
        true = gold.get((one.line, one.index, one.word))
        if true is not None:
            rows[one.word].append((true, one))
    if not rows:
        raise UserError(
            "--gold names no word of the split that is a single token of the model; name with "
            "--split the one that the file was made for"
        )
    found = {}
    for word, pairs in sorted(rows.items()):
        names = np.unique([true for true, _ in pairs], return_inverse=True)[1]
        learned = np.array([one.senses.index(one.sense) for _, one in pairs])
        contexts = np.stack([one.context.numpy() for _, one in pairs])
        found[word] = Labelled(names, learned, contexts, len(pairs[0][1].senses))
    return found


def agreement(true: NDArray[np.int64], learned: NDArray[np.int64]) -> dict[str, float]:
    """V-measure, adjusted Rand index and purity of learned senses [n] against true ones [n].

    Purity is Σ_s max_g n(s, g) / n, with n(s, g) occurrences of learned sense s and true sense g.
    More senses reach more even when they mean nothing: hold it against permuted senses.
    """
    return {
        "v_measure": float(v_measure_score(true, learned)),
        "ari": float(adjusted_rand_score(true, learned)),
        "purity": float(contingency_matrix(true, learned).max(0).sum()) / len(true),
    }


def compare_with_gold(labelled: Mapping[str, Labelled], seed: int = 1) -> dict[str, Any]:
    """Agreement by word, and in all; ``seed``: of permutations, k-means and folds.

    Words with fewer than :data:`LEAST_OCCURRENCES`, or without two true senses of two occurrences
    each, are left out.

    Returns "words": rows by word; "all": means over words (of purities and the probe's accuracy
    over occurrences) and sums of counts. Both are empty where no word is left.
    """
    rows = {}
    for word, one in labelled.items():
        counts = np.bincount(one.true)
        if len(one.true) >= LEAST_OCCURRENCES and (counts >= 2).sum() >= 2:
            rows[word] = _compare_word(one, seed)
    if not rows:
        return {"words": {}, "all": {}}
    names = [name for name in next(iter(rows.values())) if "." in name]
    weights = np.array([row["occurrences"] for row in rows.values()], dtype=float)
    means = {}
    for name in names:
        values = np.array([row[name] for row in rows.values()])
        by_use = name.endswith(("purity", "accuracy"))
        means[name] = float(np.average(values, weights=weights if by_use else None))
    means |= {
        key: sum(row[key] for row in rows.values()) for key in ("occurrences", "senses", "used")
    }
    return {"words": rows, "all": means}


def _compare_word(one: Labelled, seed: int) -> dict[str, float]:
    true, clusters = one.true, int(one.true.max()) + 1
    draw = np.random.default_rng(seed)
    shuffled = [agreement(true, draw.permutation(one.learned)) for _ in range(PERMUTATIONS)]
    clustered = KMeans(clusters, n_init=10, random_state=seed).fit_predict(one.contexts)
    use = np.bincount(one.learned, minlength=one.senses) / len(true)
    figures = {
        "senses": agreement(true, one.learned),
        "permuted": {name: float(np.mean([s[name] for s in shuffled])) for name in shuffled[0]},
        "kmeans": agreement(true, clustered),
        "one": {"purity": float(np.bincount(true).max()) / len(true)},
        "probe": {"accuracy": _probe(one, seed)},
    }
    counts = {"occurrences": len(true), "true": clusters, "senses": one.senses}
    flat = {f"{who}.{what}": value for who, row in figures.items() for what, value in row.items()}
    return {**counts, "used": int((use >= LEAST_USE).sum()), **flat}


def _probe(one: Labelled, seed: int) -> float:
    """Accuracy of a linear classifier in cross-validation; senses that occur once are left out."""
    counts = np.bincount(one.true)
    chosen = counts[one.true] >= 2
    true, contexts = one.true[chosen], one.contexts[chosen]
    folds = StratifiedKFold(
        min(FOLDS, int(counts[counts >= 2].min())), shuffle=True, random_state=seed
    )
    classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    return float(cross_val_score(classifier, contexts, true, cv=folds).mean())


def comparison_as_text(comparison: Mapping[str, Any]) -> str:
    """A table with a line a word and one for all."""
    if not comparison["words"]:
        return (
            f"no word has {LEAST_OCCURRENCES} occurrences in the split and two true senses with "
            "two each, so that nothing is compared with true senses"
        )
    header = ["word", "n", "true", "senses", "used", "V", "V permuted", "V k-means", "ARI"]
    header += ["ARI k-means", "purity", "one sense", "k-means", "linear probe"]
    keys = ["occurrences", "true", "senses", "used", "senses.v_measure", "permuted.v_measure"]
    keys += ["kmeans.v_measure", "senses.ari", "kmeans.ari", "senses.purity", "one.purity"]
    keys += ["kmeans.purity", "probe.accuracy"]
    rows = [[word, *(row.get(key) for key in keys)] for word, row in comparison["words"].items()]
    rows.append([f"{len(rows)} words", *(comparison["all"].get(key) for key in keys)])
    formats = ["", "d", "d", "d", "d"] + [".2f"] * 5 + [".3f"] * 4
    return tabulate(rows, header, floatfmt=formats)
