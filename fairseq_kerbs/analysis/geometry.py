"""Geometry of context vectors (Section 1 of the paper): clusters and variance, word by word.

Any fairseq model with a decoder can be looked at; what softmax models show is why a word should
have several senses, each with a variance of its own.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from fairseq_kerbs.analysis.clusters import find_clusters
from fairseq_kerbs.analysis.context_vectors import sense_numbers, sense_of
from fairseq_kerbs.evaluation.texts import harmless_cell
from fairseq_kerbs.output_layers import OutputLayer


@dataclass(frozen=True)
class WordGeometry:
    """Context vectors of one word.

    Attributes:
        word: the word.
        contexts: how many were looked at.
        clusters: number of clusters found.
        sizes: contexts in each, the largest first.
        silhouette: mean silhouette of the best division into two or more.
        variance: mean squared distance to the mean vector.
        relative: variance as a share of the mean squared length.
        within: variance within the clusters, as a share of the variance.
        senses, used: of a KerBS model, senses of the word and how many of them these contexts use.
        theta: of a KerBS model, mean θ of the senses, by usage.
    """

    word: str
    contexts: int
    clusters: int
    sizes: list[int]
    silhouette: float
    variance: float
    relative: float
    within: float
    senses: int | None = None
    used: int | None = None
    theta: float | None = None


def measure_word(
    word: str,
    vectors: Tensor,
    most: int,
    seed: int = 1,
    *,
    layer: OutputLayer | None = None,
    number: int = 0,
) -> WordGeometry:
    """Clusters and variance of one word's contexts.

    Args:
        word: the word.
        vectors: [n, d] its context vectors, n ≥ 1.
        most: most clusters.
        seed: see `find_clusters`.
        layer: output layer of a model of ours.
        number: the word's number in it.
    """
    vectors = vectors.double()
    found = find_clusters(vectors, most, seed)
    variance = float((vectors - vectors.mean(0)).square().sum(1).mean())
    inside = 0.0
    for label in found.labels.unique():
        cluster = vectors[found.labels == label]
        inside += float((cluster - cluster.mean(0)).square().sum())
    share = inside / len(vectors) / variance if variance > 0 else 0.0
    result = WordGeometry(
        word,
        contexts=len(vectors),
        clusters=found.number,
        sizes=sorted(found.labels.unique(return_counts=True)[1].tolist(), reverse=True),
        silhouette=found.silhouette,
        variance=variance,
        relative=variance / max(float(vectors.square().sum(1).mean()), 1e-300),
        within=share,
    )
    if layer is None:
        return result
    own = sense_numbers(layer, number)
    usage = layer.usage[own] / layer.usage[own].sum().clamp_min(1e-38)
    return dataclasses.replace(
        result,
        senses=len(own),
        used=len(set(sense_of(layer, number, vectors.float()).tolist())),
        theta=float((layer.theta[own].detach() * usage).sum()) if layer.kernel.has_theta else None,
    )


@dataclass(frozen=True)
class Geometry:
    """Words, and those that could not be measured.

    Attributes:
        words: in the order asked for.
        few: words with too few contexts, and how many.
        least: contexts that a word must have.
    """

    words: list[WordGeometry]
    few: dict[str, int]
    least: int

    def as_json(self) -> str:
        """All figures as JSON."""
        return json.dumps(dataclasses.asdict(self), indent=1, ensure_ascii=False)

    def as_csv(self) -> str:
        """One row a word; sizes of clusters with spaces between them."""
        stream = io.StringIO(newline="")
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow([field.name for field in dataclasses.fields(WordGeometry)])
        for word in self.words:
            row = dataclasses.asdict(word)
            row |= {"word": harmless_cell(word.word), "sizes": " ".join(map(str, word.sizes))}
            writer.writerow(["" if value is None else value for value in row.values()])
        return stream.getvalue()

    def as_text(self) -> str:
        """A table for a terminal."""
        lines = [*self._table(), *self._summary()]
        if self.few:
            counts = ", ".join(f"{word} ({count})" for word, count in self.few.items())
            lines.append(f"fewer than {self.least} contexts: {counts}")
        return "\n".join(lines)

    def _table(self) -> list[str]:
        if not self.words:
            return []
        ours = self.words[0].senses is not None
        width = max(6, *(len(word.word) + 1 for word in self.words))
        head = f"{'word':<{width}}{'contexts':>9}{'clusters':>9}{'silhouette':>11}"
        head += f"{'variance':>10}{'relative':>9}{'within':>8}"
        head += f"{'senses':>8}{'used':>6}{'θ':>8}" if ours else ""
        lines = [head]
        for one in self.words:
            row = f"{one.word:<{width}}{one.contexts:>9}{one.clusters:>9}{one.silhouette:>11.2f}"
            row += f"{one.variance:>10.4g}{one.relative:>9.1%}{one.within:>8.0%}"
            if ours:
                theta = "–" if one.theta is None else f"{one.theta:+.3f}"
                row += f"{one.senses:>8}{one.used:>6}{theta:>8}"
            lines.append(row)
        return lines

    def _summary(self) -> list[str]:
        if not self.words:
            return []
        several = sum(word.clusters > 1 for word in self.words)
        relative = sorted(word.relative for word in self.words)
        return [
            f"{several} of {len(self.words)} words have more than one cluster; their variance, "
            f"relative to the mean squared length, lies between {relative[0]:.1%} and "
            f"{relative[-1]:.1%}"
        ]


def measure(
    vectors: Mapping[int, Tensor],
    words: Sequence[int],
    symbols: Sequence[str],
    *,
    most: int,
    least: int,
    seed: int = 1,
    layer: OutputLayer | None = None,
) -> Geometry:
    """Geometry of several words.

    Args:
        vectors: [n, d] context vectors by word.
        words: numbers of the words asked for.
        symbols: [V] entries of the dictionary.
        most: most clusters.
        least: contexts that a word must have.
        seed: see `find_clusters`.
        layer: output layer of a model of ours.
    """
    counts = {word: len(vectors[word]) if word in vectors else 0 for word in words}
    measured = [
        measure_word(symbols[word], vectors[word], most, seed, layer=layer, number=word)
        for word in words
        if counts[word] >= least
    ]
    few = {symbols[word]: count for word, count in counts.items() if count < least}
    return Geometry(measured, few, least)
