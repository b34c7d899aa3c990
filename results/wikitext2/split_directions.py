"""How well cuts across a word's contexts agree with its meanings; prints ``split_directions.txt``.

usage: python split_directions.py CHECKPOINT DATA GOLD GOLD_DATA

DATA is what the model was trained on, GOLD and GOLD_DATA are those of ``senses --gold`` and ``--data``.
"""

import sys
from pathlib import Path

import fairseq  # noqa: F401  (before the plugin, so that it registers its models)
import numpy as np
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score
from tabulate import tabulate

from fairseq_kerbs.analysis.gold_senses import label_occurrences, lines_as_samples, read_gold_senses
from fairseq_kerbs.analysis.teacher_forcing import context_vectors, read_text
from fairseq_kerbs.checkpoints import load_model_and_task

DRAWS, STEPS = 20, 3
checkpoint, data, gold_file, gold_data = map(Path, sys.argv[1:])
draw = np.random.default_rng(0)


def kmeans(clusters, contexts):
    return KMeans(clusters, n_init=10, random_state=1).fit(contexts)


def power_iteration(sample):
    """Center and direction after steps with so many new contexts each."""
    v = draw.standard_normal(sample(0).shape[1])
    for step in range(STEPS):
        c = sample(step).mean(0)
        v = (sample(step) - c).T @ ((sample(step) - c) @ v)
        v /= np.linalg.norm(v)
    return c, v


def first_component(own):
    return own.mean(0), np.linalg.svd(own - own.mean(0), full_matrices=False)[2][0]


gold = read_gold_senses(gold_file)
model, task = load_model_and_task(checkpoint, gold_data)
lines_as_samples(task)
numbers = {word: task.target_dictionary.index(word) for _, _, word in gold}
text = read_text(model, task, "test", words=numbers.values())
labelled, _ = label_occurrences(text, gold, model.decoder.output, numbers)
model, task = load_model_and_task(checkpoint, data)
training = context_vectors(model, task, "train", [numbers[word] for word in labelled], 10**9)
rows = []
for word, (true, learned, contexts, _) in labelled.items():
    own, k = training[numbers[word]].numpy(), int(true.max()) + 1

    def cut(center, direction, true=true, contexts=contexts):
        return adjusted_rand_score(true, (contexts - center) @ direction > 0)

    def order(own=own):
        shuffled = np.concatenate([draw.permutation(len(own)) for _ in range(STEPS)])
        return lambda step, n=20: own[shuffled[step * n : (step + 1) * n]]

    found = [adjusted_rand_score(true, kmeans(k, contexts).labels_)]
    found += [adjusted_rand_score(true, kmeans(c, own).predict(contexts)) for c in (k, 2)]
    for n in (20, 40):
        parts = [own[draw.permutation(len(own))[:n]] for _ in range(DRAWS)]
        found.append(np.mean([cut(*first_component(part)) for part in parts]))
    found.append(np.mean([cut(*power_iteration(order())) for _ in range(DRAWS)]))
    rows.append([word, len(own), k, *found, adjusted_rand_score(true, learned)])
header = "word n true km_gold km_train km_train2 pc_20 pc_40 power_20 learned".split()
rows.append(["mean", None, None, *np.mean([row[3:] for row in rows], axis=0)])
print(tabulate(rows, header, floatfmt=".3f"))
