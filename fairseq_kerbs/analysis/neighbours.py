"""Words that an output layer can hardly tell apart (Gao et al. 2019, Section 4.5 and Table 4).

`fairseq_kerbs.analysis.similarity` says how similar two words are, by the vectors of the output
layer or by what it confuses in a text. Words are joined to clusters by the mean similarity of their
pairs, down to what half of all words have to their nearest one. Clusters come in the order of what
a word of theirs has to all others of its cluster together, on average.

Confusions of two models are taken together to find clusters. Clusters of one model's confusions
would be chosen by its own errors, and the other would look better there even if it were as good.

Then each cluster's occurrences in the text are counted: where the most probable word is the right
one, where it is another one of the cluster, and where one of two models alone is right. Examples
show the occurrences where one model is right and the other takes the word for another of the
cluster, or else for any other word, those first where their probabilities of the right word lie
farthest apart; of one model those where it takes a word for another of the cluster.

Counts of occurrences have ``times``, and by model: ``right`` (where the word is the most probable
one), ``within`` (where another word of its cluster is), of two models ``alone`` (where it is right
and the other is not) and ``ahead`` (sentences with more of these words right than the other has).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor

from fairseq_kerbs.analysis.predictions import Predictions
from fairseq_kerbs.analysis.similarity import (
    ConfusionSimilarity,
    Similarity,
    cluster_words,
    usual_similarity,
)
from fairseq_kerbs.analysis.tables import as_csv, as_lines
from fairseq_kerbs.analysis.words import in_context

Figures = dict[str, Any]
"""What is written as JSON, by name."""

_CONTEXT = 8  # words shown on either side
_NAME = 18  # letters of a model's name
_WORDS = 44  # of a cluster's words


def find_neighbours(
    similarity: Mapping[str, Similarity],
    symbols: Sequence[str],
    frequency: Sequence[int],
    *,
    by: str,
    words: Tensor,
    predictions: Mapping[str, Predictions],
    top: int = 8,
    examples: int = 1,
) -> Figures:
    """Find clusters, and count and show their occurrences.

    Args:
        similarity: of words, by model.
        symbols: [V] entries of the dictionary.
        frequency: [V] occurrences in the training data.
        by: "vectors" or "confusions", what ``similarity`` is made of.
        words: [V] which words are compared.
        predictions: by model, all of the same words; empty where there are no data.
        top: clusters to show, of each model where they are by vectors; 0 for all.
        examples: most examples of a cluster, for each model that is right.

    Returns:
        ``names`` of the models, ``by``, and ``clusters``, the first ones: ``words`` (the most
        frequent first), ``of`` (the model whose vectors show it; None by confusions), ``likeness``
        (mean similarity of its pairs, by model), ``counts`` (None without data) and ``examples``
        (see `_Text.examples`); by ``of`` ("" for None) how many are ``found`` in all, the number of
        ``words`` in them and counts of these, ``clustered``; ``everything``: counts of all words.
    """
    graphs: dict[str, Any]
    if by == "confusions":
        graphs = {"": ConfusionSimilarity(list(predictions.values()), words).graph()}
    else:
        graphs = {name: one.graph() for name, one in similarity.items()}
    clusters: list[Figures] = []
    result: Figures = {"names": list(similarity), "by": by, "clusters": clusters}
    result |= {"found": {}, "words": {}, "everything": None, "clustered": {}}
    for origin, graph in graphs.items():
        found = cluster_words(graph, usual_similarity(graph))
        # what a word has to the others of its cluster, on average
        found.sort(key=lambda own: (-float(graph[own][:, own].sum()) / len(own), own))
        result["found"][origin], result["words"][origin] = len(found), sum(map(len, found))
        cluster_of = torch.full((len(symbols),), -1)  # [V]
        for number, members in enumerate(found):
            cluster_of[members] = number
        text = _Text(predictions, cluster_of, symbols) if predictions else None
        for number, members in enumerate(found[: top or None]):
            members.sort(key=lambda word: (-frequency[word], word))
            pairs = len(members) * (len(members) - 1)
            means = {n: float(one.among(members).sum()) / pairs for n, one in similarity.items()}
            clusters.append(
                {
                    "words": [symbols[word] for word in members],
                    "of": origin or None,
                    "likeness": means,
                    "counts": text and text.count(text.cluster == number),
                    "examples": text.examples(text.cluster == number, examples) if text else [],
                }
            )
        if text:
            result["everything"] = text.count(text.cluster >= -1)
            result["clustered"][origin] = text.count(text.cluster >= 0)
    return result


class _Text:
    """Occurrences in a split, and the clusters of their words.

    Args:
        predictions: by model, all of the same N words.
        cluster_of: [V] number of each word's cluster, −1 for none.
        symbols: [V] entries of the dictionary.
    """

    def __init__(
        self, predictions: Mapping[str, Predictions], cluster_of: Tensor, symbols: Sequence[str]
    ) -> None:
        self._models, self._symbols = predictions, symbols
        self._one = next(iter(predictions.values()))
        self.cluster = cluster_of[self._one.word]  # [N]
        self._right = {name: one.right for name, one in predictions.items()}  # [N] each
        self._within = {  # [N] each: another word of the cluster is predicted
            name: (cluster_of[one.guesses[:, 0]] == self.cluster) & (self.cluster >= 0) & ~one.right
            for name, one in predictions.items()
        }
        names = list(predictions)
        # each of two models, and the other one
        self._pairs = list(zip(names, names[::-1], strict=True)) if len(names) == 2 else []

    def count(self, inside: Tensor) -> Figures:
        """Of the occurrences ``inside`` [N]."""
        right = {name: one & inside for name, one in self._right.items()}
        alone = {name: right[name] & ~self._right[other] for name, other in self._pairs}
        sentence = self._one.sentence
        length = int(sentence.max()) + 1
        more = {name: sentence[one].bincount(minlength=length) for name, one in alone.items()}
        return {
            "times": int(inside.sum()),
            "right": {name: int(one.sum()) for name, one in right.items()},
            "within": {name: int((one & inside).sum()) for name, one in self._within.items()},
            "alone": {name: int(one.sum()) for name, one in alone.items()},
            "ahead": {n: int((more[n] > more[other]).sum()) for n, other in self._pairs},
        }

    def examples(self, inside: Tensor, most: int) -> list[Figures]:
        """Occurrences as the head of this file says: the model that is ``right`` (None: the only
        one, which is wrong), ``sentence`` (of a language model: block) from 1, ``word``, ``text``
        around it, and by model ``guesses``: ``word``, its ``probability``, that of the ``truth``.
        """
        if not self._pairs:
            ((name, model),) = self._models.items()
            margin = model.guessed[:, 0] - model.probability
            return self._best(inside & self._within[name], margin, most, None)
        found = []
        for name, other in self._pairs:
            chosen = inside & self._right[name] & ~self._right[other]
            margin = self._models[name].probability - self._models[other].probability
            # a difference of probabilities is at most 1
            found += self._best(chosen, margin + 2.0 * self._within[other], most, name)
        return found

    def _best(self, chosen: Tensor, score: Tensor, most: int, right: str | None) -> list[Figures]:
        """Examples of the occurrences ``chosen`` [N] with the highest scores [N]."""
        where, one = chosen.nonzero()[:, 0], self._one
        found: list[Figures] = []
        for at in where[score[where].argsort(descending=True, stable=True)[:most]].tolist():
            sentence = int(one.sentence[at])
            guesses = {
                name: {
                    "word": self._symbols[int(model.guesses[at, 0])],
                    "probability": float(model.guessed[at, 0]),
                    "truth": float(model.probability[at]),
                }
                for name, model in self._models.items()
            }
            text = in_context(one.tokens[sentence], int(one.place[at]), _CONTEXT)
            word = self._symbols[int(one.word[at])]
            found.append({"right": right, "sentence": sentence + 1, "word": word, "text": text})
            found[-1]["guesses"] = guesses
        return found


# ------------------------------------------------------------------------- tables


def neighbours_as_csv(found: Figures) -> str:
    """One row an example, or a cluster that has none; a cluster's figures are on each row."""
    names, counted = found["names"], ("right", "within", "alone")[: 1 + len(found["names"])]
    head = ["cluster", "of", "words", *(f"likeness {name}" for name in names)]
    if found["everything"]:
        head += ["times", *(f"{kind} {name}" for kind in counted for name in names)]
        head += ["right", "sentence", "word", "text"]
        head += [f"{column} {n}" for n in names for column in ("guess", "probability", "truth")]
    rows: list[list[object]] = []
    for number, cluster in enumerate(found["clusters"], 1):
        figures: list[object] = [number, cluster["of"], " ".join(cluster["words"])]
        figures += cluster["likeness"].values()
        if counts := cluster["counts"]:
            figures += [counts["times"], *(n for kind in counted for n in counts[kind].values())]
        cells: list[list[object]] = [
            [one[name] for name in ("right", "sentence", "word", "text")]
            + [x for guess in one["guesses"].values() for x in guess.values()]
            for one in cluster["examples"]
        ]
        empty: list[object] = [None] * (len(head) - len(figures))
        rows += [[*figures, *example] for example in cells or [empty]]
    return as_csv(head, rows, digits=6)


def neighbours_as_text(found: Figures) -> str:
    """For a terminal: totals, a table of clusters, examples; a slash between models' figures."""
    short = {n: n if len(n) <= _NAME else f"{n[: _NAME - 1]}…" for n in found["names"]}
    parts = [[" / ".join(short.values())]] if len(short) > 1 else []
    if found["everything"]:
        totals = [_total_line("all words", found["everything"])]
        for origin, counts in found["clustered"].items():
            title = "words in clusters" + (f" of {short[origin]}" if origin else "")
            totals.append(_total_line(title, counts))
        parts.append(totals)
    for origin, number in found["found"].items():
        clusters = [cluster for cluster in found["clusters"] if (cluster["of"] or "") == origin]
        by = "confusions of both models" if len(short) > 1 else "confusions"
        by = f"output vectors of {short[origin]}" if origin else by
        words = found["words"][origin]
        title = f"clusters by {by}: {number} with {words} words, {len(clusters)} shown"
        parts.append([title, *_table(clusters, found["by"] == "vectors")])
        parts += [_example_lines(cluster, short) for cluster in clusters if cluster["examples"]]
    return "\n\n".join("\n".join(part) for part in parts)


def _total_line(title: str, counts: Figures) -> str:
    times = max(1, counts["times"])
    right = " / ".join(f"{number / times:.1%}" for number in counts["right"].values())
    line = f"{title}: {counts['times']} times, right {right}"
    if counts["alone"]:
        from scipy.stats import binomtest

        first, second = counts["ahead"].values()
        # of sentences: words of one are not independent
        p = binomtest(first, first + second).pvalue if first + second else 1.0
        line += f", alone right {_slashed(counts['alone'])}, ahead in {_slashed(counts['ahead'])} "
        line += f"sentences (sign test p = {p:.2g})"
    return line


def _slashed(numbers: dict[str, int]) -> str:
    return " / ".join(map(str, numbers.values()))


def _table(clusters: list[Figures], with_similarity: bool) -> list[str]:
    """One row a cluster."""
    rows = []
    for cluster in clusters:
        row = {"words": shorten(" ".join(cluster["words"]), _WORDS, placeholder=" …")}
        if with_similarity:
            row["similarity"] = " / ".join(f"{like:.2f}" for like in cluster["likeness"].values())
        if counts := cluster["counts"]:
            row |= {"times": str(counts["times"]), "right": _slashed(counts["right"])}
            row["one for another"] = _slashed(counts["within"])
            row |= {"alone right": _slashed(counts["alone"])} if counts["alone"] else {}
        rows.append(row)
    lines = as_lines(list(rows[0]), [list(row.values()) for row in rows]) if rows else []
    return [f"  {line}" for line in lines]


def _example_lines(cluster: Figures, short: dict[str, str]) -> list[str]:
    lines, width = [" ".join(cluster["words"])], max(map(len, short.values()))
    for example in cluster["examples"]:
        lines.append("  {sentence:>6}  {text}".format(**example))
        for name, guess in example["guesses"].items():
            line = f"          {short[name]:<{width}}  {guess['word']} {guess['probability']:.2f}"
            wrong = guess["word"] != example["word"]
            lines.append(f"{line}, {example['word']} {guess['truth']:.2f}" if wrong else line)
    return lines
