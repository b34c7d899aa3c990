"""``benchmark.py decode``: beam search by fairseq's SequenceGenerator, as fairseq-generate does."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import torch
from fairseq import utils

from fairseq_kerbs.benchmarks.comparison import Entry, Settings, chosen, compare
from fairseq_kerbs.benchmarks.inputs import DTYPES
from fairseq_kerbs.benchmarks.measuring import Workload
from fairseq_kerbs.benchmarks.translation import (
    LABELS,
    MODELS,
    ModelSizes,
    build_task_and_model,
    configuration,
    make_batch,
    sentence_lengths,
)

NAMES = tuple(MODELS)
PAIRS = (
    ("kerbs", "stock"),
    ("kerbs-sequential", "stock"),
    ("kerbs-prior", "stock"),
    ("softmax", "stock"),
    ("kerbs", "softmax"),
    ("kerbs", "kerbs-prior"),
)


def workload(
    name: str,
    sizes: dict[str, Any],
    sentences: int,
    beam: int,
    steps: int,
    dtype: str,
    device: str,
    seed: int,
) -> Workload:
    """An untrained model and its generator; one call translates a batch.

    Args:
        name: a model of :data:`MODELS`.
        sizes: fields of :class:`ModelSizes`.
        sentences: sentences of the batch.
        beam: size of the beam.
        steps: tokens of every hypothesis, the final </s> included: all take as many steps.
        dtype: of the model.
        device: "cpu" or "cuda".
        seed: of the weights and of the sentences.
    """
    cfg = configuration(name, ModelSizes(**sizes), device)
    task, model = build_task_and_model(cfg, sizes["vocab"], seed)
    model.to(device, DTYPES[dtype]).eval()
    model.prepare_for_inference_(cfg)
    forced = Namespace(beam=beam, max_len_a=0, max_len_b=steps - 1, min_len=steps - 1)
    generator = task.build_generator([model], forced)
    lengths = sentence_lengths(torch.Generator().manual_seed(seed), sentences=sentences)
    batch = make_batch(task, lengths, seed)
    if device == "cuda":
        batch = utils.move_to_cuda(batch)

    def translate() -> None:
        hypotheses = task.inference_step(generator, [model], batch)
        for best, *_ in hypotheses:
            if len(best["tokens"]) != steps:
                raise RuntimeError(f"a hypothesis has {len(best['tokens'])} tokens, not {steps}")

    return Workload(
        run=translate,
        amount=sentences,
        unit="sentences",
    )


def run(
    sizes: ModelSizes, sentences: int, beam: int, steps: int, settings: Settings
) -> dict[str, Any]:
    """Compare beam search with all models at one size."""
    entries = [
        Entry(
            name,
            LABELS[name],
            f"{__name__}:workload",
            {
                "name": name,
                "sizes": dict(vars(sizes)),
                "sentences": sentences,
                "beam": beam,
                "steps": steps,
                "dtype": settings.dtype,
                "device": settings.device,
                "seed": settings.seed,
            },
        )
        for name in chosen(settings, NAMES)
    ]
    return compare(entries, PAIRS, settings)
