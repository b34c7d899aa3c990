"""``benchmark.py step``: a whole training step of fairseq's Trainer."""

from __future__ import annotations

from typing import Any

import torch
from fairseq.trainer import Trainer

from fairseq_kerbs.benchmarks.comparison import Entry, Settings, chosen, compare
from fairseq_kerbs.benchmarks.contestants import SMOOTHING
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

SMOOTHED = "-smoothed"
TRAINED = tuple(model for model in MODELS if model != "kerbs-sequential")  # that one is to decode
NAMES = tuple(model + suffix for suffix in ("", SMOOTHED) for model in TRAINED)
PAIRS = tuple(
    (of + suffix, over + suffix)
    for suffix in ("", SMOOTHED)
    for of, over in (
        ("kerbs", "stock"),
        ("kerbs-prior", "stock"),
        ("softmax", "stock"),
        ("kerbs", "softmax"),
        ("kerbs", "kerbs-prior"),
    )
)
TRAINING = ("--optimizer", "adam", "--lr", "1e-4", "--clip-norm", "1.0")
DTYPE_FLAGS = {"float32": (), "float16": ("--fp16",), "bfloat16": ("--bf16",)}


def workload(
    name: str, sizes: dict[str, Any], tokens: int, dtype: str, device: str, seed: int
) -> Workload:
    """A trainer and its batch; one call is forward, loss, backward, clipping and Adam's update.

    Args:
        name: a model of :data:`MODELS`, with "-smoothed" for label smoothing.
        sizes: fields of :class:`ModelSizes`.
        tokens: target tokens in the batch, padding not counted.
        dtype: float16 and bfloat16 are fairseq's --fp16 and --bf16.
        device: "cpu" or "cuda".
        seed: of the weights and of the batch.
    """
    model_name = name.removesuffix(SMOOTHED)
    criterion = "label_smoothed_cross_entropy" if model_name == "stock" else "kerbs_cross_entropy"
    smoothing = str(SMOOTHING if name.endswith(SMOOTHED) else 0.0)
    cfg = configuration(
        *(model_name, ModelSizes(**sizes), device),
        *("--criterion", criterion, "--label-smoothing", smoothing),
        *TRAINING,
        *DTYPE_FLAGS[dtype],
    )
    task, model = build_task_and_model(cfg, sizes["vocab"], seed)
    trainer = Trainer(cfg, task, model, task.build_criterion(cfg.criterion))
    trainer.cuda_env = None  # else every step resets the peak that we measure
    generator = torch.Generator().manual_seed(seed)
    batch = make_batch(task, sentence_lengths(generator, tokens=tokens), seed)

    def run() -> float:
        return float(trainer.train_step([batch])["loss"])

    return Workload(
        run=run,
        reset=trainer.zero_grad,
        amount=batch["ntokens"],
        unit="tokens",
        gradient_bytes=sum(weight.nbytes for weight in model.parameters() if weight.requires_grad),
        loss_unit="bits",
    )


def run(sizes: ModelSizes, tokens: int, settings: Settings) -> dict[str, Any]:
    """Compare training steps of all models at one size."""
    entries = [
        Entry(
            name,
            LABELS[name.removesuffix(SMOOTHED)]
            + (f", label smoothing {SMOOTHING}" if name.endswith(SMOOTHED) else ""),
            f"{__name__}:workload",
            {
                "name": name,
                "sizes": dict(vars(sizes)),
                "tokens": tokens,
                "dtype": settings.dtype,
                "device": settings.device,
                "seed": settings.seed,
            },
        )
        for name in chosen(settings, NAMES)
    ]
    return compare(entries, PAIRS, settings)
