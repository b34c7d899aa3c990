"""Compare the senses of a model with gold senses of each word.

The measures are purity, V-measure (Rosenberg and Hirschberg 2007), adjusted Rand index, and
adjusted mutual information (Vinh et al. 2010). For comparison they are computed for permuted senses
(chance), for k-means with as many clusters as senses, fitted on training contexts (unsupervised),
and for cross-validated linear discriminants of the contexts, trained on gold senses (ceiling of the
mean over words; where a sense is rare, they may do worse than senses on a single word).
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pandas import DataFrame, factorize
from scipy.stats import binomtest, bootstrap
from sklearn.cluster import KMeans
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score, v_measure_score
from sklearn.metrics.cluster import contingency_matrix
from sklearn.model_selection import StratifiedKFold, cross_val_predict

from fairseq_kerbs.analysis.occurrences import Text
from fairseq_kerbs.analysis.words import sense_numbers
from fairseq_kerbs.data.gold import GoldSenses, Occurrence, occurrence_of
from fairseq_kerbs.output_layers import OutputLayer
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import read_lines
from fairseq_kerbs.utils.progress import progress


def purity(gold: NDArray[np.int64], induced: NDArray[np.int64]) -> float:
    """Share of occurrences whose gold sense is the most frequent one of their induced sense."""
    return float(contingency_matrix(gold, induced).max(0).sum() / len(gold))


MEASURES = {
    "purity": purity,
    "v_measure": v_measure_score,
    "ari": adjusted_rand_score,
    "ami": adjusted_mutual_info_score,
}
PARTITIONS = ("senses", "permuted", "kmeans", "probe")
LEAST_OCCURRENCES = 6  # minimum of a word, with three of each of at least two gold senses
PERMUTATIONS = 20
SEED = 1
RESAMPLES = 2000  # bootstrap samples of words
CONTEXTS = 1000  # maximum number of training contexts of a word for k-means
LEAST_USE = 0.01  # minimum share of occurrences of a used sense
FOLDS = 5


class Labelled(NamedTuple):
    """n occurrences of a word with gold senses."""

    gold: NDArray[np.int64]  # gold senses, [n]
    induced: NDArray[np.int64]  # most probable senses of the model, as indices in the word, [n]
    contexts: NDArray[np.float32]  # [n, d]
    senses: int  # number of senses of the word in the model


def read_gold_senses(path: Path) -> GoldSenses:
    """Read a file of gold senses (:mod:`.data.gold`). An invalid one raises a UserError."""
    gold: dict[Occurrence, str] = {}
    for number, row in enumerate(read_lines(path), start=1):
        fields = [field.strip() for field in row.split("\t")]
        if not any(fields):
            continue
        if not (len(fields) == 4 and all(fields) and all(map(str.isdecimal, fields[:2]))):
            raise UserError(
                f"{path}, line {number}: expected line, occurrence, word and sense between tabs"
            )
        if gold.setdefault((int(fields[0]), int(fields[1]), fields[2]), fields[3]) != fields[3]:
            raise UserError(f"{path}, line {number}: this occurrence has another sense above")
    if not gold:
        raise UserError(f"{path} is empty")
    return gold


def lines_as_samples(task: Any) -> None:
    """Make each line of a language model's split a sample, as gold senses refer to lines."""
    if hasattr(getattr(task, "args", None), "sample_break_mode"):
        task.args.sample_break_mode = "eos"


def no_labels() -> UserError:
    """The error for gold senses of no word that can be read."""
    return UserError(
        "--gold has no word of the split that is a single token of the model: check --split. Of a "
        "model of subwords only whole words are compared"
    )


def label_occurrences(
    text: Text, gold: GoldSenses, layer: OutputLayer, numbers: Mapping[str, int]
) -> tuple[dict[str, Labelled], dict[int, Counter[str]]]:
    """Occurrences with gold senses.

    Args:
        text: text with the contexts of all words in ``numbers``.
        gold: gold senses.
        layer: output layer of the model.
        numbers: index in the dictionary of each word.

    Returns:
        occurrences by word, and counts of gold senses by row of the model's sense. A message
        says how many labels are missing in the text.

    Raises:
        UserError: no occurrence has a gold sense, or most labels of the words are missing.
    """
    tokens = text.tokens[text.tokens["entry"].isin([*numbers.values()])]  # [C], as `text.contexts`
    columns = (tokens[name].tolist() for name in ("line", "place", "sense"))
    labels = []
    for context, (line, place, row) in enumerate(zip(*columns)):
        key = occurrence_of(text.number[line], text.words[line], place)
        sense = gold.get(key)
        if sense:
            labels.append((key[2], sense, row, context))
    if not labels:
        raise no_labels()
    named = sum(word in numbers for _, _, word in gold)
    where = f"--gold: the split has {len(labels)} of {named} labels of the model's words"
    if len(labels) < named / 2:
        raise UserError(f"{where}; see that both count from 0, and which --split they belong to")
    if len(labels) < named:
        print(f"fairseq-kerbs: {where}", file=sys.stderr)
    table = DataFrame(labels, columns=["word", "gold", "row", "context"])
    labelled = {}
    for word, group in table.groupby("word"):
        senses = sense_numbers(layer, numbers[word])
        kinds = factorize(group["gold"], sort=True)[0]
        induced = np.array([*map(senses.index, group["row"])])
        vectors = text.contexts[group["context"].tolist()].numpy()
        labelled[word] = Labelled(kinds, induced, vectors, len(senses))
    return labelled, {row: Counter(group) for row, group in table.groupby("row")["gold"]}


def compare_with_gold(
    labelled: Mapping[str, Labelled], training: Mapping[str, NDArray[np.float32]]
) -> dict[str, Any]:
    """Agreement with gold senses, by word and over all words.

    Words with fewer than :data:`LEAST_OCCURRENCES`, or without two gold senses of three occurrences
    each, are left out.

    Args:
        labelled: occurrences of each word.
        training: training contexts [m, d] of each word for k-means. A word without any has a single
            cluster.

    Returns:
        "words": for each word the numbers of "occurrences", "gold" senses, "senses" and "used"
        senses, and each of :data:`MEASURES` for each of :data:`PARTITIONS`, such as "senses.ari".
        "all": sums of counts. For each measure "mean" over words with a 95 % bootstrap interval,
        "low" and "high". Sign tests of senses against permuted senses, such as "sign.ari": number
        of words where they are "higher", number "of" words where they differ, two-sided "p".
        Both are empty without words.
    """
    rows: dict[str, dict[str, Any]] = {}
    for word, occurrences in progress(labelled.items(), "gold senses", " words"):
        counts = np.bincount(occurrences.gold)
        if counts.sum() >= LEAST_OCCURRENCES and (counts >= 3).sum() >= 2:
            contexts = training.get(word, occurrences.contexts[:0])
            rows[word] = _compare_word(occurrences, contexts)
    return {"words": rows, "all": _over_words(list(rows.values())) if rows else {}}


def _compare_word(word: Labelled, training: NDArray[np.float32]) -> dict[str, Any]:
    gold = word.gold
    induced = word.induced
    contexts = word.contexts
    draw = np.random.default_rng(SEED)
    permuted = DataFrame(agreement(gold, draw.permutation(induced)) for _ in range(PERMUTATIONS))
    clusters = np.zeros_like(gold)
    if min(word.senses, len(training)) > 1:
        kmeans = KMeans(min(word.senses, len(training)), n_init=10, random_state=SEED)
        clusters = kmeans.fit(training).predict(contexts)
    known = np.bincount(gold)[gold] >= 3  # so that each training fold has two of each
    folds = min(FOLDS, int(np.bincount(gold[known])[gold[known]].min()))
    # shrinkage by Ledoit and Wolf
    probe = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto")
    parts = StratifiedKFold(folds, shuffle=True, random_state=SEED)
    predicted = cross_val_predict(probe, contexts[known], gold[known], cv=parts)
    partitions = {
        "senses": agreement(gold, induced),
        "permuted": permuted.mean().to_dict(),
        "kmeans": agreement(gold, clusters),
        "probe": agreement(gold[known], predicted),
    }
    use = np.bincount(induced, minlength=word.senses) / len(gold)
    counts = {"occurrences": len(gold), "gold": int(gold.max()) + 1, "senses": word.senses}
    counts["used"] = int((use >= LEAST_USE).sum())
    return counts | {f"{p}.{name}": v for p, row in partitions.items() for name, v in row.items()}


def agreement(gold: NDArray[np.int64], induced: NDArray[np.int64]) -> dict[str, float]:
    """:data:`MEASURES` of induced senses [n] and gold senses [n]."""
    return {name: float(measure(gold, induced)) for name, measure in MEASURES.items()}


def _over_words(rows: Sequence[Mapping[str, int | float]]) -> dict[str, Any]:
    table = DataFrame(rows)
    summary: dict[str, Any] = table[["occurrences", "senses", "used"]].sum().to_dict()
    scores = table.filter(like=".")
    low = high = mean = scores.mean()
    if len(table) > 1:
        options = {"n_resamples": RESAMPLES, "method": "percentile", "random_state": SEED}
        low, high = bootstrap((scores,), np.mean, axis=0, **options).confidence_interval
    figures = DataFrame({"mean": mean, "low": low, "high": high}, scores.columns)
    summary |= figures.to_dict("index")
    for name in MEASURES:
        difference = (table[f"senses.{name}"] - table[f"permuted.{name}"]).round(9)
        higher = int((difference > 0).sum())
        differ = int((difference != 0).sum())
        p = float(binomtest(higher, differ).pvalue) if differ else 1.0
        summary[f"sign.{name}"] = {"higher": higher, "of": differ, "p": p}
    return summary


def comparison_as_text(comparison: Mapping[str, Any]) -> str:
    """A table with a row per word, and a table with a row per measure."""
    if not comparison["words"]:
        return (
            f"no word has {LEAST_OCCURRENCES} occurrences in the split and two gold senses with "
            "three each, so nothing is compared with gold senses"
        )
    short = {"v_measure": "V", "ari": "ARI", "ami": "AMI", "purity": "purity"}
    titles = {"senses": "", "kmeans": " k-means", "probe": " probe"}
    columns = {"occurrences": "n", "gold": "gold", "senses": "senses", "used": "used"}
    for measure, name in list(short.items())[:3]:
        columns |= {f"{key}.{measure}": name + title for key, title in titles.items()}
    words = DataFrame.from_dict(comparison["words"], orient="index")[[*columns]]
    words = words.rename(columns=columns).rename_axis("word").reset_index()
    every = comparison["all"]
    means = []
    for measure, name in short.items():
        figures = [every[f"{partition}.{measure}"] for partition in PARTITIONS]
        cells = ["{mean:.3f} [{low:.3f}, {high:.3f}]".format(**figure) for figure in figures]
        sign = "{higher} of {of}, p = {p:.2g}".format(**every[f"sign.{measure}"])
        means.append([name, *cells, sign])
    head = [f"mean of {len(words)} words, {every['occurrences']} occurrences", "senses", "permuted"]
    head += ["k-means, training contexts", "linear probe (ceiling)", "senses above permuted"]
    means = DataFrame(means, columns=head)
    return (
        f"{words.to_markdown(index=False, tablefmt='simple', floatfmt='.3f')}\n\n"
        f"{means.to_markdown(index=False, tablefmt='simple', disable_numparse=True)}"
    )
