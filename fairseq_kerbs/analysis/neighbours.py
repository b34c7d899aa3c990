"""Words that an output layer can hardly tell apart (Gao et al. 2019, Section 4.5 and Table 4).

Words are joined to clusters by the mean similarity of their pairs (`.similarity`), down to what
half of all words have to their nearest one. Clusters come in the order of what a word of theirs has
to all others of its cluster together, on average.

Each cluster's occurrences in the text are counted: ``times`` in all, and by model ``right`` (where
the word is the most probable one), ``within`` (where another word of its cluster is), of two models
``alone`` (where it is right and the other is not) and ``ahead`` (sentences with more of these words
right). Examples show where one model is right and the other takes the word for another of the
cluster, or else for any other, those first where their probabilities of it lie farthest apart; of
one model where it takes a word for another of the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import shorten

import numpy as np
import torch
from numpy.typing import NDArray
from pandas import DataFrame
from scipy.stats import binomtest
from torch import Tensor

from fairseq_kerbs.analysis.sense_report import Figures
from fairseq_kerbs.analysis.similarity import VectorSimilarity, cluster_words, usual_similarity
from fairseq_kerbs.analysis.teacher_forcing import Predictions
from fairseq_kerbs.analysis.words import in_context
from fairseq_kerbs.output_layers import OutputLayer

_CONTEXT = 8  # words shown on either side
_WORDS = 44  # letters of a cluster's words
_SHOWN = {"right": "right", "within": "one for another", "alone": "alone right"}


def find_neighbours(
    layers: Mapping[str, OutputLayer],
    predictions: Mapping[str, Predictions],
    words: Tensor,
    symbols: Sequence[str],
    frequency: Sequence[int],
    *,
    top: int = 8,
    examples: int = 1,
) -> Figures:
    """Find clusters, and count and show their occurrences.

    Args:
        layers: output layers by model, to compare words by their vectors.
        predictions: by model, all of the same words; empty where there are no data.
        words, symbols, frequency: [V] of the dictionary's entries which are compared, their names,
            and their occurrences in the training data.
        top, examples: most clusters of each model (0 for all), and most examples of one for each
            model that is right.

    Returns:
        ``names`` of the models, and the first ``clusters``: ``words`` (the most frequent first),
        ``of`` (the model whose vectors show it), ``likeness`` (mean similarity of its pairs, by
        model), ``counts`` and ``examples``; by ``of`` how many are ``found``, the number of
        ``words`` in them and counts of these, ``clustered``; ``everything``: counts of all words.
    """
    vectors = {name: VectorSimilarity(layer, words) for name, layer in layers.items()}
    result: Figures = {"names": list(layers), "clusters": [], "found": {}, "words": {}}
    result |= {"everything": None, "clustered": {}}
    for origin, similarity in vectors.items():
        graph = similarity.graph()
        clusters = cluster_words(graph, usual_similarity(graph))
        # what a word has to the others of its cluster, on average
        clusters.sort(key=lambda words: (-float(graph[words][:, words].sum()) / len(words), words))
        result["found"][origin], result["words"][origin] = len(clusters), sum(map(len, clusters))
        cluster_of = torch.full((len(symbols),), -1)  # [V]
        for number, members in enumerate(clusters):
            cluster_of[members] = number
        text = _Text(predictions, cluster_of, symbols) if predictions else None
        for number, members in enumerate(clusters[: top or None]):
            members.sort(key=lambda word: (-frequency[word], word))
            pairs = len(members) * (len(members) - 1)
            cluster = {
                "words": [symbols[word] for word in members],
                "of": origin,
                "likeness": {
                    name: float(each.among(members).sum()) / pairs for name, each in vectors.items()
                },
                "counts": text and text.count(text.cluster == number),
                "examples": text.examples(text.cluster == number, examples) if text else [],
            }
            result["clusters"].append(cluster)
        if text:
            result["everything"] = text.count(text.cluster >= -1)
            result["clustered"][origin] = text.count(text.cluster >= 0)
    return result


class _Text:
    """Occurrences in a split [N], by clusters of words: [V] number of each word's, −1 for none."""

    def __init__(
        self, predictions: Mapping[str, Predictions], cluster_of: Tensor, symbols: Sequence[str]
    ) -> None:
        self._models, self._symbols = predictions, symbols
        self._words = next(iter(predictions.values()))
        self.cluster = cluster_of[self._words.word].numpy()  # [N]
        names = list(predictions)
        self._other = dict(zip(names, names[::-1])) if len(names) == 2 else {}
        # of each model, [N]
        right = DataFrame({name: model.right.numpy() for name, model in predictions.items()})
        guess = {name: cluster_of[m.guesses[:, 0]].numpy() for name, m in predictions.items()}
        same = DataFrame(guess).eq(self.cluster, axis=0) & (self.cluster >= 0)[:, None]
        alone = {name: right[name] & ~right[other] for name, other in self._other.items()}
        self._kinds = {"right": right, "within": same & ~right, "alone": DataFrame(alone)}

    def count(self, inside: NDArray[np.bool_]) -> Figures:
        """Of the occurrences ``inside`` [N]."""
        counts: Figures = {"times": int(inside.sum()), "ahead": {}}
        for kind, frame in self._kinds.items():
            counts[kind] = frame[inside].sum().to_dict() if len(frame) else {}
        if self._other:
            alone = self._kinds["alone"][inside]
            alone = alone.groupby(self._words.sentence.numpy()[inside]).sum()
            counts["ahead"] = {
                name: int((alone[name] > alone[other]).sum()) for name, other in self._other.items()
            }
        return counts

    def examples(self, inside: NDArray[np.bool_], most: int) -> list[Figures]:
        """Occurrences as the head of this file says: the model that is ``right`` (None: the only
        one, which is wrong), ``sentence`` (of a language model: block) from 1, ``word``, ``text``
        around it, and by model ``guesses``: ``word``, its ``probability``, that of the ``truth``.
        """
        examples: list[Figures] = []
        for name, model in self._models.items():
            if other := self._other.get(name):
                chosen = inside & self._kinds["alone"][name]
                margin = (model.probability - self._models[other].probability).numpy()
                margin = margin + 2.0 * self._kinds["within"][other]  # a margin is at most 1
            else:
                chosen = inside & self._kinds["within"][name]
                margin = (model.guessed[:, 0] - model.probability).numpy()
            where = np.flatnonzero(chosen)
            best = where[np.argsort(-np.asarray(margin)[where], kind="stable")[:most]]
            examples += [{"right": other and name, **self._example(at)} for at in best.tolist()]
        return examples

    def _example(self, at: int) -> Figures:
        sentence, place, word = (int(column[at]) for column in self._words[1:4])
        guesses = {
            name: {
                "word": self._symbols[int(model.guesses[at, 0])],
                "probability": float(model.guessed[at, 0]),
                "truth": float(model.probability[at]),
            }
            for name, model in self._models.items()
        }
        text = in_context(self._words.tokens[sentence], place, _CONTEXT)
        symbol = self._symbols[word]
        return {"sentence": sentence + 1, "word": symbol, "text": text, "guesses": guesses}


def neighbours_table(result: Figures) -> DataFrame:
    """One row an example, or a cluster that has none; a cluster's figures are on each row."""
    rows: list[Figures] = []
    for number, cluster in enumerate(result["clusters"], start=1):
        row = {"cluster": number, "of": cluster["of"], "words": " ".join(cluster["words"])}
        row |= {f"likeness {name}": value for name, value in cluster["likeness"].items()}
        if counts := cluster["counts"]:
            row["times"] = counts["times"]
            for kind in _SHOWN:
                row |= {f"{kind} {name}": count for name, count in counts[kind].items()}
        for example in cluster["examples"] or [{}]:
            shown = {key: value for key, value in example.items() if key != "guesses"}
            for name, guess in example.get("guesses", {}).items():
                shown |= {f"guess {name}": guess["word"]}
                shown |= {f"{column} {name}": guess[column] for column in ("probability", "truth")}
            rows.append(row | shown)
    return DataFrame(rows)


def neighbours_as_text(result: Figures) -> str:
    """For a terminal: a table of clusters, and examples; a slash between models' figures."""
    names, everything = result["names"], result["everything"]
    parts = [" / ".join(names)] if len(names) > 1 else []
    for origin, number in result["found"].items():
        clusters = [cluster for cluster in result["clusters"] if cluster["of"] == origin]
        rows = [
            _row(cluster["words"], cluster["likeness"], cluster["counts"]) for cluster in clusters
        ]
        if everything:
            rows.append(_row(["(all clusters)"], {}, result["clustered"][origin]))
            rows.append(_row(["(all words)"], {}, everything))
        count = f"{number} with {result['words'][origin]} words, {len(clusters)} shown"
        parts.append(f"clusters by output vectors of {origin}: {count}")
        table = DataFrame(rows)
        parts.append(table.to_markdown(index=False, tablefmt="plain", disable_numparse=True))
        parts += [_example_lines(cluster) for cluster in clusters if cluster["examples"]]
    if everything and everything["ahead"]:
        first, second = everything["ahead"].values()
        # of sentences: words of one are not independent
        p = binomtest(first, first + second).pvalue if first + second else 1.0
        parts.append(f"sentences with more words right: {first} / {second}, sign test p = {p:.2g}")
    return "\n\n".join(parts)


def _row(words: list[str], likeness: dict[str, float], counts: Figures | None) -> dict[str, str]:
    row = {"words": shorten(" ".join(words), _WORDS, placeholder=" …")}
    row["similarity"] = " / ".join(f"{value:.2f}" for value in likeness.values())
    if counts:
        row["times"] = str(counts["times"])
        for kind, title in _SHOWN.items():
            row[title] = " / ".join(map(str, counts[kind].values()))
    return row


def _example_lines(cluster: Figures) -> str:
    lines, width = [" ".join(cluster["words"])], max(map(len, cluster["likeness"]))
    for example in cluster["examples"]:
        lines.append("  {sentence:>6}  {text}".format(**example))
        for name, guess in example["guesses"].items():
            line = f"          {name:<{width}}  {guess['word']} {guess['probability']:.2f}"
            wrong = guess["word"] != example["word"]
            lines.append(f"{line}, {example['word']} {guess['truth']:.2f}" if wrong else line)
    return "\n".join(lines)
