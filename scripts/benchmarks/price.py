#!/usr/bin/env python
"""Time of training steps and of beam search on prepared data, next to a softmax.

    python scripts/benchmarks/price.py train DATA softmax=multi30k/transformer_softmax \
        kerbs=multi30k/transformer_kerbs --output train.csv
    python scripts/benchmarks/price.py decode DATA softmax=softmax.pt converted=kerbs.pt

The first system is the one that the others are divided by. ``NAME=CONFIG,FLAGS`` trains with
flags after the configuration, ``NAME=CONFIG@FILE`` from the model of a file with senses, with the
--total-senses and --sense-bias of that file. All systems run in one process, one after the
other in every round, so that a busy machine slows all of them. Times are processor time, user and
system: other programs hardly change it.
"""

from __future__ import annotations

import argparse
import csv
import functools
import gc
import logging
import os
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from fairseq import checkpoint_utils, tasks, utils
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.trainer import Trainer

import fairseq_kerbs
from fairseq_kerbs.configurations import find_configuration, load_experiment
from fairseq_kerbs.likelihood import chunks, custom_operator
from fairseq_kerbs.models.transformer import KerbsTransformerDecoder
from fairseq_kerbs.output_layers import OutputLayer
from fairseq_kerbs.output_layers.composition import ComposedEmbedding
from fairseq_kerbs.programs import TRAIN, read_call
from fairseq_kerbs.senses.statistics import SenseStatistics
from fairseq_kerbs.training.sense_updates import SenseUpdates

Workload = Callable[[], int]
"""One round of a system. It returns the number of updates, or of sentences."""


def training_round(data: str, given: str, updates: int) -> Workload:
    """A trainer as fairseq-train builds it, and its first batches."""
    config, _, file = given.partition("@")
    config, _, more = config.partition(",")
    extra = shlex.split(more)
    start: Any = None
    if file:
        start = torch.load(file, map_location="cpu", weights_only=False)
        settings = start["cfg"]["model"]
        extra += ["--output-layer", "kerbs", "--total-senses", str(settings.total_senses)]
        extra += ["--sense-bias"] if settings.sense_bias else []
        extra += ["--reallocation", "none"]
    experiment = load_experiment(find_configuration(Path(config)))
    flags = {**experiment.train, "save-dir": "unused", "cpu": True, "no-save": True}
    cfg = convert_namespace_to_omegaconf(read_call(TRAIN, data, flags, extra).values)
    utils.set_torch_seed(cfg.common.seed)
    task = tasks.setup_task(cfg.task)
    model = task.build_model(cfg.model)
    if start is not None:
        model.load_state_dict(start["model"])
    task.load_dataset("train")
    trainer = Trainer(cfg, task, model, task.build_criterion(cfg.criterion))
    task.begin_epoch(1, model)  # where the length of the training decides about compilation
    batches = trainer.get_train_iterator(1, load_dataset=False).next_epoch_itr(shuffle=True)
    chosen = [next(batches) for _ in range(updates)]

    def run() -> int:
        for batch in chosen:
            trainer.train_step([batch])
        return len(chosen)

    return run


def decoding_round(data: str, file: str, sentences: int, beam: int) -> Workload:
    """Beam search of fairseq over the first sentences of the test set, as fairseq-generate."""
    [model], cfg, task = checkpoint_utils.load_model_ensemble_and_task(
        [file], arg_overrides={"data": data}
    )
    model.eval()
    model.prepare_for_inference_(cfg)
    task.load_dataset("test")
    cfg.generation.beam = beam
    generator = task.build_generator([model], cfg.generation)
    batches = task.get_batch_iterator(
        dataset=task.dataset("test"),
        max_tokens=None,
        max_sentences=64,
        max_positions=(1024, 1024),
    ).next_epoch_itr(shuffle=False)
    chosen: list[Any] = []
    total = 0
    for batch in batches:
        if total >= sentences:
            break
        chosen.append(batch)
        total += batch["nsentences"]

    def run() -> int:
        for batch in chosen:
            task.inference_step(generator, [model], batch)
        return total

    return run


Row = dict[str, Any]
"""Time of one round of a system."""


def measure(workloads: dict[str, Workload], rounds: int, keep: Callable[[Row], None]) -> list[Row]:
    """Run every system once in each round, in rotated order, after one round to warm up.

    ``keep`` stores a row, so that a run that is stopped has its finished ones.
    """
    rows: list[Row] = []
    names = list(workloads)
    for number in range(rounds + 1):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            gc.collect()
            wall = time.perf_counter()
            processor = time.process_time()
            count = workloads[name]()
            row = {
                "round": number,
                "contestant": name,
                "count": count,
                "processor_ms": round(1000 * (time.process_time() - processor) / count, 3),
                "wall_ms": round(1000 * (time.perf_counter() - wall) / count, 3),
                "load": round(os.getloadavg()[0], 1),
            }
            rows.append(row)
            keep(row)
    return rows


PARTS: dict[str, list[tuple[Any, str]]] = {
    "decoder, forward (all passes)": [(KerbsTransformerDecoder, "extract_features")],
    "backward of the network": [(torch.Tensor, "backward")],
    "likelihood": [(custom_operator.Nll, "forward")],
    "products h w": [(chunks._Chunks, "_products")],
    "products of the gradients": [(chunks._Chunks, "_add_products")],
    "logits": [(chunks._Chunks, "_logits")],
    "sum over senses": [(chunks._Chunks, "_log_sum")],
    "sums over words": [(chunks._Chunks, "_words")],
    "gradients by logits": [(chunks._Chunks, "_write_grad_products")],
    "composition of input embeddings": [
        (ComposedEmbedding, "forward"),
        (ComposedEmbedding, "embed_sequence"),
    ],
    "statistics (Eq. 12, 13)": [(SenseStatistics, "record"), (SenseStatistics, "update")],
    "hook and logging of senses": [
        (SenseUpdates, "before_update"),
        (SenseUpdates, "after_update"),
    ],
    "scores of all words": [(OutputLayer, "log_probs")],
}
"""Methods whose time is a part of a step or of a search. Some parts contain others."""


def time_parts(workload: Workload) -> dict[str, float]:
    """Processor milliseconds of each part in one round, for each update or sentence."""
    seconds = dict.fromkeys(PARTS, 0.0)

    def timed(part: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def run(*arguments: Any, **options: Any) -> Any:
            started = time.process_time()
            try:
                return method(*arguments, **options)
            finally:
                seconds[part] += time.process_time() - started

        return run

    with ExitStack() as patches:
        for part, methods in PARTS.items():
            for owner, name in methods:
                replaced = timed(part, getattr(owner, name))
                patches.enter_context(mock.patch.object(owner, name, replaced))
        started = time.process_time()
        count = workload()
        whole = time.process_time() - started
    found = {"whole": whole, **seconds}
    return {part: 1000 * value / count for part, value in found.items() if value}


def summary(rows: list[Row]) -> str:
    """Median time and the median, lowest and highest ratio to the first system."""
    measured = [row for row in rows if row["round"] > 0]
    names = list(dict.fromkeys(row["contestant"] for row in rows))
    by_name = {
        name: [row["processor_ms"] for row in measured if row["contestant"] == name]
        for name in names
    }
    lines = ["contestant\tms\tratio\tlowest\thighest\twarm-up ms"]
    for name, times in by_name.items():
        ratios = [one / base for one, base in zip(times, by_name[names[0]])]
        first = next(row["processor_ms"] for row in rows if row["contestant"] == name)
        middle = statistics.median(ratios)
        lines.append(
            f"{name}\t{statistics.median(times):.1f}\t{middle:.3f}\t{min(ratios):.3f}"
            f"\t{max(ratios):.3f}\t{first:.1f}"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments, measure, and write the rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("what", choices=["train", "decode"])
    parser.add_argument("data", help="folder of fairseq-preprocess")
    parser.add_argument("contestants", nargs="+", help="NAME=CONFIG or NAME=FILE")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=15, help="updates in a round")
    parser.add_argument("--sentences", type=int, default=256, help="sentences in a round")
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--parts", action="store_true", help="also time the parts, in one round")
    parser.add_argument("--label", default="", help="first column, such as a revision")
    parser.add_argument("--output", type=Path, help="CSV to append the rows to")
    args = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING)
    torch.set_num_threads(1)
    print(f"# {Path(fairseq_kerbs.__file__).parent}", file=sys.stderr)
    workloads: dict[str, Workload] = {}
    for contestant in args.contestants:
        name, _, given = contestant.partition("=")
        if args.what == "train":
            workloads[name] = training_round(args.data, given, args.updates)
        else:
            workloads[name] = decoding_round(args.data, given, args.sentences, args.beam)

    def keep(row: Row) -> None:
        labelled = {"label": args.label, "what": args.what, **row}
        if args.output is None:
            return
        new = not args.output.exists()
        with args.output.open("a", newline="") as file:
            writer = csv.DictWriter(file, [*labelled], lineterminator="\n")
            if new:
                writer.writeheader()
            writer.writerow(labelled)

    print(summary(measure(workloads, args.rounds, keep)))
    if args.parts:
        for name, workload in workloads.items():
            print(f"\n{name}")
            for part, milliseconds in time_parts(workload).items():
                print(f"{part}\t{milliseconds:.2f}")


if __name__ == "__main__":
    main()
