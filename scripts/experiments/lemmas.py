#!/usr/bin/env python
"""Lemmas 4.1 and 4.2 as experiments, on context vectors whose clusters are known.

A context is drawn from a cluster: a direction μ_c with normal noise of relative width σ,

    h = |h| · unit(μ_c + σ z/√d),     z ~ N(0, I)

so σ is about the tangent of the angle between h and μ_c. Cluster directions are random, at a cosine
below :data:`MOST_COSINE`, and every word is equally frequent. Only the output layer is trained.

Lemma 4.1: words have 1 to 4 clusters each, there are as many senses as clusters in all, allocated
at random at first. Do words end with as many senses as they have clusters, one on each?

Lemma 4.2: every word has one cluster and one sense, clusters differ in width. Does θ grow with it?
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# the checkout that this script belongs to, installed or not
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np
import torch
import torch.nn.functional as F
from pandas import DataFrame, Series
from torch import Tensor
from torch.nn.functional import normalize

from fairseq_kerbs.analysis.words import records
from fairseq_kerbs.output_layers import KerbsOutputLayer
from fairseq_kerbs.reallocation import POLICIES, ReallocationSettings, reset_moments
from fairseq_kerbs.utils.files import write_json

MOST_COSINE = 0.6
UNSURE = 0.01  # 1 − P(y) from which on a word's likelihood still says something about θ
# the experiment on Lemma 4.1
WIDTH = 0.6  # σ of all clusters
INTERVAL = 40  # updates between two reallocations
DECAY = 1e-3  # β of Eq. 12–13
NEEDY_LOSS = 0.3  # mean loss in nats from which on a word is needy under ``paper``
MAX_MOVES = 1 / 6  # ``released``: most moves at a time, as a fraction of the words
VARIANTS = ("none", *POLICIES)
WIDTHS = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4)
LEGEND = """\
exact: words with as many senses as clusters. correlation: Spearman's of these numbers. own:
clusters whose most probable sense is that of no other cluster. used: senses that are the most
probable one of a cluster. late_moves: in the last fifth of reallocations.
"""
Row = dict[str, Any]


@dataclass(frozen=True)
class Training:
    """How the output layer is trained."""

    dim: int = 12  # size of context vectors
    length: float = 6.0  # their norm
    steps: int = 800  # parameter updates; the learning rate falls linearly to 0 over them
    batch: int = 192  # contexts in each
    lr: float = 0.03  # first learning rate of Adam


def spread_directions(number: int, dim: int, generator: torch.Generator) -> Tensor:
    """Random directions, [number, dim], any two with a cosine below :data:`MOST_COSINE`."""
    directions = torch.zeros(0, dim)
    while len(directions) < number:
        drawn = normalize(torch.randn(1, dim, generator=generator))
        if not bool((directions @ drawn.t() > MOST_COSINE).any()):
            directions = torch.cat([directions, drawn])
    return directions


def _experiment(
    word: Tensor, width: Tensor, training: Training, seed: int, **options: Any
) -> tuple[Tensor, KerbsOutputLayer, torch.optim.Adam, Callable[[], float]]:
    """Directions of clusters [C, d], an output layer, its optimizer, and an update.

    The update is a function that returns the mean loss in nats. ``word`` [C] has the words of the
    clusters, in order, and ``width`` [C] their σ.
    """
    g = torch.Generator().manual_seed(seed)
    direction = spread_directions(len(word), training.dim, g)
    clusters = torch.bincount(word)  # [V]
    first = clusters.cumsum(0) - clusters
    torch.manual_seed(seed)
    biased = bool(options.get("biased"))
    layer = KerbsOutputLayer(training.dim + biased, len(clusters), len(word), **options)
    optimizer = torch.optim.Adam(layer.parameters(), lr=training.lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1.0 - n / training.steps)

    def update() -> float:
        words = torch.randint(len(clusters), (training.batch,), generator=g)
        which = first[words] + (torch.rand(len(words), generator=g) * clusters[words]).long()
        noise = torch.randn(len(words), training.dim, generator=g) / math.sqrt(training.dim)
        h = training.length * normalize(direction[which] + width[which, None] * noise)
        optimizer.zero_grad()
        h = F.pad(h, (0, int(biased)), value=1.0)
        loss = layer.nll(h, words, reduction="mean")
        loss.backward()
        optimizer.step()
        schedule.step()
        return loss.item()

    return direction, layer, optimizer, update


def learn_senses(
    policy: str,
    training: Training,
    words_each: int = 3,
    seed: int = 0,
) -> Row:
    """Lemma 4.1: train with reallocation.

    ``words_each`` words have k clusters, k = 1, 2, 3, 4, all of the same σ, :data:`WIDTH`.
    Senses move every :data:`INTERVAL` updates, but not in the last fifth of training. Under
    ``paper`` ε is the log P at which a word with a mean loss of :data:`NEEDY_LOSS` settles:
    −loss/(Vβ).

    Returns mean senses of the words with k clusters, ``senses_1`` … ``senses_4``; what
    :data:`LEGEND` explains, as shares; ``moves`` of senses in all; mean ``loss`` of the last
    updates in nats.
    """
    clusters = torch.arange(1, 5).repeat(words_each)  # [V]
    vocab = len(clusters)
    word = torch.arange(vocab).repeat_interleave(clusters)
    widths = torch.full((len(word),), WIDTH)
    reads_contexts = policy != "none" and POLICIES[policy].needs_contexts
    options: dict[str, Any] = {"policy": None if policy == "none" else policy}
    options["biased"] = policy != "none" and POLICIES[policy].needs_bias
    direction, layer, optimizer, update = _experiment(word, widths, training, seed, **options)
    threshold = -NEEDY_LOSS / (vocab * DECAY)
    settings = ReallocationSettings(log_prob_threshold=threshold, max_moves=MAX_MOVES)
    moves = []
    losses = []
    for step in range(1, training.steps + 1):
        if reads_contexts and layer.sample is None and step <= 0.8 * training.steps:
            layer.start_sampling()
        losses.append(update())
        layer.update_statistics(DECAY)
        if policy != "none" and step % INTERVAL == 0 and step <= 0.8 * training.steps:
            made = layer.reallocate(policy, settings)
            if made.reset_moments:
                reset_moments(optimizer, layer.sense_parameters(), made.senses)
            moves.append(made.moved)
    last_losses = losses[-20:]
    senses = layer.senses_per_word()
    centers = F.pad(training.length * direction, (0, int(layer.biased)), value=1.0)
    logits = layer.sense_logits(centers, torch.arange(len(word))).detach()  # [C, M]
    top = logits.where(layer.word_of_sense == word[:, None], -torch.inf).argmax(1)  # [C]
    clusters_of_sense = torch.bincount(top, minlength=len(word))  # [M]
    return {
        **{f"senses_{k}": float(senses[clusters == k].float().mean()) for k in (1, 2, 3, 4)},
        "exact": float((senses == clusters).float().mean()),
        "correlation": float(Series(clusters).corr(Series(senses), method="spearman")),
        "own": float((clusters_of_sense[top] == 1).float().mean()),
        "used": float((clusters_of_sense > 0).float().mean()),
        "moves": sum(moves),
        "late_moves": sum(moves[-max(1, len(moves) // 5) :]),
        "loss": sum(last_losses) / len(last_losses),
    }


def learn_theta(
    widths: Sequence[float], training: Training, words_each: int = 3, seed: int = 0
) -> list[Row]:
    """Lemma 4.2: train one sense a word from θ = 0; ``words_each`` words have each of the widths.

    Returns for each ``width`` means over its words: ``theta`` (Eq. 9), ``norm`` of sense vectors,
    their ``cosine`` with their cluster's direction, ``unsure``: 1 − P(y) over the last updates.
    """
    width = torch.tensor(widths).repeat_interleave(words_each)  # [V]
    words = torch.arange(len(width))
    direction, layer, _, update = _experiment(words, width, training, seed, max_senses=1)
    inventory = layer.inventory
    layer.theta.data.zero_()
    for step in range(training.steps):
        update()
        layer.update_statistics(0.0)
        if step == training.steps - 101:
            inventory.start_interval()
    weight = layer.weight.detach()
    unsure = 1.0 - inventory.interval_prob / inventory.interval_count.clamp_min(1.0)
    cosine = (normalize(weight) * direction).sum(1)
    values = torch.stack([layer.theta.detach(), weight.norm(dim=1), cosine, unsure])  # [4, V]
    means = values.view(4, len(widths), words_each).mean(2).T
    names = ("width", "theta", "norm", "cosine", "unsure")
    return [dict(zip(names, row)) for row in np.column_stack([widths, means]).tolist()]


def theta_correlation(rows: Sequence[Row], least_unsure: float = -1.0) -> float:
    """Spearman's between width and θ, where 1 − P(y) is at least so much.

    Where it has vanished, so has the gradient of θ: its value says how far training came.
    """
    table = DataFrame([row for row in rows if row["unsure"] >= least_unsure])
    return float(table["width"].corr(table["theta"], method="spearman"))


def main(argv: Sequence[str] | None = None) -> None:
    """Both experiments, their tables, and a JSON file."""
    parser = argparse.ArgumentParser(
        description="Lemmas 4.1 and 4.2 of the KerBS paper on contexts whose clusters are known: "
        "do words get as many senses as they have clusters, and does theta grow with their width?"
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="JSON [none]")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1], help="seeds [%(default)s]")
    parser.add_argument(
        "--steps", type=int, default=800, metavar="N", help="updates of each run [%(default)s]"
    )
    args = parser.parse_args(argv)
    if args.steps < 1:
        parser.error(f"--steps must be at least 1, not {args.steps}")
    training = Training(steps=args.steps)
    senses = [
        {"lemma": "4.1", "policy": policy, "seed": seed} | learn_senses(policy, training, seed=seed)
        for policy in VARIANTS
        for seed in args.seeds
    ]
    print("Lemma 4.1: senses of words with 1, 2, 3, 4 clusters; means over words and seeds\n")
    print(f"{_means(senses, 'policy')}\n\n{LEGEND}", flush=True)
    runs = {seed: learn_theta(WIDTHS, training, seed=seed) for seed in args.seeds}
    thetas = [{"lemma": "4.2", "seed": seed} | row for seed, run in runs.items() for row in run]
    correlations = [[theta_correlation(run, u) for u in (-1.0, UNSURE)] for run in runs.values()]
    every, unsure = np.mean(correlations, axis=0)
    print(
        f"Lemma 4.2: theta (Eq. 9) by the width of a word's one cluster\n\n"
        f"{_means(thetas, 'width')}\n\n"
        "cosine: of sense vector and cluster. unsure: 1 - P(y). Spearman between width and theta: "
        f"{every:.2f};\nwhere unsure is {UNSURE} or more (below, theta has no gradient): "
        f"{unsure:.2f}"
    )
    if args.output is not None:
        settings = {"seeds": args.seeds, "steps": args.steps}
        rows = [*records(DataFrame(senses)), *records(DataFrame(thetas))]
        write_json(args.output, {"settings": settings, "torch": torch.__version__, "rows": rows})


def _means(rows: list[Row], *by: str) -> str:
    """A table of means over seeds."""
    means = DataFrame(rows).groupby(list(by), sort=False).mean(numeric_only=True)
    return str(means.drop(columns="seed").reset_index().to_string(index=False, float_format="%.3g"))


if __name__ == "__main__":
    main()
