"""Lemmas 4.1 and 4.2 as experiments, on context vectors whose clusters are known.

A context is drawn from a cluster: a direction μ_c with normal noise of relative width σ,

    h = |h| · unit(μ_c + σ z/√d),     z ~ N(0, I)

so σ is about the tangent of the angle between h and μ_c. Cluster directions are random, at a cosine
below :data:`MOST_COSINE` to each other, and every word is equally frequent. Only the output layer
is trained.

Lemma 4.1: words have 1 to 4 clusters each, there are as many senses as clusters in all, allocated
at random at first. Do words end with as many senses as they have clusters, one on each?

Lemma 4.2: every word has one cluster and one sense, clusters differ in width. Does θ grow with it?

`main` is the command line of ``scripts/simulate_lemmas.py``: tables, and a JSON or CSV file.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from fairseq_kerbs.analysis.tables import as_csv, as_lines
from fairseq_kerbs.output_layers import KerbsOutputLayer
from fairseq_kerbs.reallocation import ReallocationSettings, reset_moments
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import atomic_write

MOST_COSINE = 0.6
NEAR = 0.7  # cosine from which on a sense counts as lying on a cluster
UNSURE = 0.01  # 1 − P(y) from which on a word's likelihood still says something about θ
DECAY = 1e-3  # β of Eq. 12–13 in the experiment on Lemma 4.1
NEEDY_LOSS = 0.3  # mean loss in nats from which on a word is needy under ``paper``
MAX_MOVES = 0.17  # of the other policies: most moves at a time, as a fraction of the words
VARIANTS = (
    *(("none", "keep"), ("paper", "keep"), ("released", "keep"), ("balanced", "keep")),
    ("balanced", "context"),
)
WIDTHS = (0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.2, 1.4)
Row = dict[str, Any]


@dataclass(frozen=True)
class Training:
    """How the output layer is trained."""

    dim: int = 12  # size of context vectors
    length: float = 6.0  # their norm
    steps: int = 800  # parameter updates; the learning rate falls linearly to 0 over them
    batch: int = 192  # contexts in each
    lr: float = 0.03  # first learning rate of Adam


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Rank correlation with mean ranks for ties; nan where one side is constant or too short."""
    from scipy.stats import spearmanr

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nan says it
        return float(spearmanr(first, second).statistic) if len(first) > 1 else math.nan


def spread_directions(number: int, dim: int, generator: torch.Generator) -> Tensor:
    """Random directions, [number, dim], any two with a cosine below :data:`MOST_COSINE`.

    Raises:
        UserError: so many do not fit into so few dimensions.
    """
    found = torch.zeros(0, dim)
    for _ in range(1000 * number):
        if len(found) == number:
            return found
        one = normalize(torch.randn(1, dim, generator=generator))
        if not bool((found @ one.t() > MOST_COSINE).any()):
            found = torch.cat([found, one])
    raise UserError(f"--dim {dim} has no room for {number} clusters that are far apart.")


class _Experiment:
    """Contexts of known clusters, and the output layer that is trained on them: [C] word of each
    cluster (those of a word follow each other), [C] σ."""

    def __init__(
        self, word: Tensor, width: Tensor, training: Training, seed: int, **options: Any
    ) -> None:
        self.width, self.training = width, training
        self.generator = torch.Generator().manual_seed(seed)
        self.direction = spread_directions(len(word), training.dim, self.generator)
        self.clusters = torch.bincount(word)  # [V]
        self.first = self.clusters.cumsum(0) - self.clusters
        torch.manual_seed(seed)
        self.layer = KerbsOutputLayer(training.dim, len(self.clusters), len(word), **options)
        self.optimizer = torch.optim.Adam(self.layer.parameters(), lr=training.lr)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda n: 1.0 - n / training.steps
        )

    def update(self) -> float:
        """One update of the parameters, on contexts drawn; its mean loss in nats."""
        n, g = self.training.batch, self.generator
        words = torch.randint(len(self.clusters), (n,), generator=g)
        which = self.first[words] + (torch.rand(n, generator=g) * self.clusters[words]).long()
        noise = torch.randn(n, self.training.dim, generator=g) / math.sqrt(self.training.dim)
        h = self.training.length * normalize(
            self.direction[which] + self.width[which, None] * noise
        )
        self.optimizer.zero_grad()
        loss = self.layer.nll(h, words, reduction="mean")
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        return loss.item()


def learn_senses(
    policy: str,
    new_sense: str,
    training: Training,
    *,
    interval: int = 40,
    words_each: int = 3,
    width: float = 0.6,
    seed: int = 0,
) -> Row:
    """Lemma 4.1: train with reallocation; ``words_each`` words have k clusters, k = 1, 2, 3, 4.

    Under ``paper`` ε is the log P at which a word with a mean loss of :data:`NEEDY_LOSS` settles;
    with V equally frequent words that is −loss/(Vβ).

    Args:
        policy: name of a policy, or "none".
        new_sense: what vector a moved sense begins with.
        training: how to train.
        interval: updates between two reallocations; none in the last fifth of training.
        words_each: words of each number of clusters.
        width: σ of all clusters.
        seed: of all that is drawn.

    Returns:
        mean senses of the words with k clusters (``senses_1`` … ``senses_4``); shares of words with
        as many senses as clusters (``exact``), of clusters that a sense of their word lies on
        (``covered``) and that one lies on to which no other is nearer (``distinct``), of senses
        that lie on a cluster of their word (``placed``); Spearman's ``correlation`` of numbers of
        clusters and senses; reallocations in all (``moves``) and in the last fifth of those that
        there were (``late_moves``); mean ``loss`` of the last updates in nats.
    """
    clusters = torch.arange(1, 5).repeat(words_each)  # [V]
    vocab = len(clusters)
    word = torch.arange(vocab).repeat_interleave(clusters)
    widths = torch.full((len(word),), width)
    experiment = _Experiment(word, widths, training, seed, new_sense=new_sense)
    layer = experiment.layer
    threshold = -NEEDY_LOSS / (vocab * DECAY)
    settings = ReallocationSettings(log_prob_threshold=threshold, max_moves=MAX_MOVES)
    moves, losses = [], []
    for step in range(1, training.steps + 1):
        losses.append(experiment.update())
        layer.update_statistics(DECAY)
        if policy != "none" and step % interval == 0 and step <= 0.8 * training.steps:
            made = layer.reallocate(policy, settings)
            reset_moments(experiment.optimizer, layer.sense_parameters(), made.senses)
            moves.append(len(made))
    senses = layer.senses_per_word()
    cosine = experiment.direction @ normalize(layer.weight.detach()).t()  # [C, M]
    cosine = cosine.where(layer.word_of_sense == word[:, None], -1.0)
    near = cosine > NEAR
    nearest = cosine.argmax(0)[near.any(0)]  # the cluster that each placed sense lies on
    return {
        **{f"senses_{k}": float(senses[clusters == k].float().mean()) for k in (1, 2, 3, 4)},
        "exact": float((senses == clusters).float().mean()),
        "correlation": spearman(clusters.tolist(), senses.tolist()),
        "covered": float(near.any(1).float().mean()),
        "distinct": len(nearest.unique()) / len(cosine),
        "placed": float(near.any(0).float().mean()),
        "moves": sum(moves),
        "late_moves": sum(moves[-max(1, len(moves) // 5) :]),
        "loss": sum(losses[-20:]) / 20,
    }


def learn_theta(
    widths: Sequence[float],
    training: Training,
    *,
    words_each: int = 4,
    norm: float | None = None,
    seed: int = 0,
) -> list[Row]:
    """Lemma 4.2: train one sense a word from θ = 0; ``words_each`` words have each of the widths.

    Args:
        widths: σ of the clusters.
        training: how to train.
        words_each: words of each width.
        norm: hold sense vectors at this norm; by default they are free, and the norm, too, can
            answer to the width.
        seed: of directions, contexts and first vectors.

    Returns:
        for each ``width`` means over its words: ``theta`` (Eq. 9), ``norm`` of sense vectors, their
        ``cosine`` with their cluster's direction, ``unsure``: 1 − P(y) over the last updates.
    """
    width = torch.tensor(widths).repeat_interleave(words_each)  # [V]
    experiment = _Experiment(torch.arange(len(width)), width, training, seed, max_senses=1)
    layer = experiment.layer
    layer.theta.data.zero_()
    for step in range(training.steps):
        experiment.update()
        layer.update_statistics(0.0)
        if norm is not None:
            layer.weight.data = norm * normalize(layer.weight.data)
        if step == training.steps - 101:
            layer.inventory.start_interval()
    inventory, weight = layer.inventory, layer.weight.detach()
    unsure = 1.0 - inventory.interval_prob / inventory.interval_count.clamp_min(1.0)
    cosine = (normalize(weight) * experiment.direction).sum(1)
    values = torch.stack([layer.theta.detach(), weight.norm(dim=1), cosine, unsure])  # [4, V]
    means = values.view(4, len(widths), words_each).mean(2).T.tolist()
    names = ("width", "theta", "norm", "cosine", "unsure")
    return [
        dict(zip(names, (sigma, *own), strict=True))
        for sigma, own in zip(widths, means, strict=True)
    ]


def theta_correlations(found: Sequence[Row]) -> tuple[float, float]:
    """Spearman's between width and θ: over all widths, and over those that leave doubt.

    Where 1 − P(y) has vanished, so has the gradient of θ: its value says how far training came.
    """
    unsure = [one for one in found if one["unsure"] >= UNSURE]
    first, second = (
        spearman([one["width"] for one in part], [one["theta"] for one in part])
        for part in (found, unsure)
    )
    return first, second


# ------------------------------------------------------------------------- the command


def main(argv: Sequence[str] | None = None) -> int:
    """Run the experiments; return the exit status (2 for wrong input, with one sentence)."""
    parser = argparse.ArgumentParser(
        prog="simulate_lemmas.py",
        description="Lemmas 4.1 and 4.2 of the KerBS paper on contexts whose clusters are known: "
        "do words get as many senses as they have clusters, and does theta grow with their width?",
    )
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write .json or .csv")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1], help="seeds [%(default)s]")
    parser.add_argument("--steps", type=int, default=800, help="updates of each run [%(default)s]")
    parser.add_argument("--dim", type=int, default=12, help="size of contexts [%(default)s]")
    parser.add_argument("--width", type=float, default=0.6, help="of 4.1's clusters [%(default)s]")
    parser.add_argument("--norm", type=float, help="4.2: hold sense vectors at this norm")
    args = parser.parse_args(argv)
    try:
        if args.output is not None and args.output.suffix not in (".json", ".csv"):
            raise UserError(f"--output {args.output} must end with .json or .csv")
        for name in ("steps", "dim", "width", "norm"):
            value = getattr(args, name)
            if value is not None and not value > 0:
                raise UserError(f"--{name} is {value}, but it must be greater than 0")
        training = Training(dim=args.dim, steps=args.steps)
        rows = _compare_policies(args, training) + _compare_widths(args, training)
        if args.output is not None:
            settings = {name: value for name, value in vars(args).items() if name != "output"}
            document = {"settings": settings, "torch": torch.__version__, "rows": rows}
            names = list(dict.fromkeys(name for row in rows for name in row))
            csv = args.output.suffix == ".csv"
            table = as_csv(names, [[row.get(name) for name in names] for row in rows])
            with atomic_write(args.output) as stream:
                stream.write(table if csv else json.dumps(document, indent=1) + "\n")
    except UserError as error:
        print(f"simulate_lemmas.py: error: {error}", file=sys.stderr)
        return 2
    return 0


def _compare_policies(args: argparse.Namespace, training: Training) -> list[Row]:
    rows = [
        {"lemma": "4.1", "policy": policy, "new_sense": new_sense, "seed": seed}
        | learn_senses(policy, new_sense, training, width=args.width, seed=seed)
        for policy, new_sense in VARIANTS
        for seed in args.seeds
    ]
    print("Lemma 4.1: senses of words with 1, 2, 3, 4 clusters; means over words and seeds\n")
    print(*_means(rows, "policy", "new_sense"), sep="\n")
    print(
        "\nexact: words with as many senses as clusters. correlation: of their ranks. covered: "
        "clusters with a sense of\ntheir word on them. distinct: with one that is on no other "
        "cluster. placed: senses on a cluster.\nlate_moves: in the last fifth of reallocations.\n",
        flush=True,
    )
    return rows


def _compare_widths(args: argparse.Namespace, training: Training) -> list[Row]:
    runs = [
        learn_theta(WIDTHS, training, norm=args.norm, words_each=3, seed=seed)
        for seed in args.seeds
    ]
    rows = [
        {"lemma": "4.2", "seed": seed} | one
        for seed, run in zip(args.seeds, runs, strict=True)
        for one in run
    ]
    every, sure = np.mean([theta_correlations(run) for run in runs], axis=0)
    held = "free" if args.norm is None else f"held at {args.norm:g}"
    print(f"Lemma 4.2: theta (Eq. 9) by the width of a word's one cluster; |w| {held}\n")
    print(*_means(rows, "width"), sep="\n")
    print(
        "\ncosine: of sense vector and cluster. unsure: 1 - P(y). Spearman between width and "
        f"theta: {every:.2f};\nwhere unsure is {UNSURE} or more: {sure:.2f}. Where clusters are "
        "told apart without doubt, theta has no\ngradient and stays where training has left it."
    )
    return rows


def _means(rows: list[Row], *by: str) -> list[str]:
    """A table of means over seeds."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(str(row[name]) for name in by), []).append(row)
    figures = [name for name in rows[0] if name not in ("lemma", "seed", *by)]
    table = [
        [*key, *(f"{np.mean([row[name] for row in own]):.3g}" for name in figures)]
        for key, own in groups.items()
    ]
    return as_lines([*by, *figures], table, left=len(by))
