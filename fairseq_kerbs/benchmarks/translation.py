"""``benchmark.py step`` and ``decode``: fairseq's Trainer and beam search on random sentences."""

from __future__ import annotations

import itertools
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from fairseq import options, utils
from fairseq.data import Dictionary, LanguagePairDataset
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.tasks.translation import TranslationTask
from fairseq.trainer import Trainer

import fairseq_kerbs.criterions
import fairseq_kerbs.models  # noqa: F401  (both register with fairseq)
from fairseq_kerbs.benchmarks.comparison import Entry, Settings, Workload, compare
from fairseq_kerbs.benchmarks.contestants import (
    DTYPES,
    LIKE_FOR_LIKE,
    MODEL_RATIOS,
    MODELS,
    SMOOTHED,
    SMOOTHING,
    zipf_words,
)
from fairseq_kerbs.benchmarks.report import comparison_tables

_SIDE_FLAGS = {"embed-dim": "dim", "ffn-embed-dim": "ffn"}
_SIDE_FLAGS |= {"layers": "layers", "attention-heads": "heads"}
MEAN_LENGTH, LENGTH_STD = 22.0, 3.0  # words of a sentence: fairseq batches similar lengths


def set_up(model: str, sizes: dict[str, Any], device: str, seed: int, *flags: str) -> Any:
    """What fairseq-train would make of a model's flags: configuration, task, model.

    Args:
        model: of :data:`fairseq_kerbs.benchmarks.contestants.MODELS`.
        sizes: dim, vocab, ffn, layers and heads of both sides, senses_per_word (M ÷ V).
        device: "cpu" or "cuda".
        seed: of the weights.
        flags: further flags of fairseq-train.
    """
    arguments = [
        "in-memory",  # the folder of the data, which nothing opens
        *("--arch", "transformer" if model == "stock" else "transformer_kerbs_iwslt"),
        *("--task", "translation", "--dropout", "0.1", "--distributed-world-size", "1"),
        *(("--cpu",) if device == "cpu" else ()),
        *MODELS[model].split(),
        *flags,
    ]
    if model.startswith("kerbs"):
        arguments += ["--total-senses", str(sizes["senses_per_word"])]
    for side, (flag, size) in itertools.product(("encoder", "decoder"), _SIDE_FLAGS.items()):
        arguments += [f"--{side}-{flag}", str(sizes[size])]
    args = options.parse_args_and_arch(options.get_training_parser(), arguments)
    cfg = convert_namespace_to_omegaconf(args)
    torch.manual_seed(seed)
    dictionaries = [Dictionary(), Dictionary()]
    for dictionary in dictionaries:
        for number in range(sizes["vocab"] - len(dictionary)):
            dictionary.add_symbol(f"w{number}")
    task = TranslationTask(cfg.task, *dictionaries)
    return cfg, task, task.build_model(cfg.model)


def sentence_lengths(generator: torch.Generator, tokens: int = 0, sentences: int = 0) -> list[int]:
    """Lengths in tokens, the final </s> included: drawn until their sum is ``tokens``, the last
    one cut to fit, or ``sentences`` of them.
    """
    lengths: list[int] = []
    while sum(lengths) < tokens or len(lengths) < sentences:
        drawn = MEAN_LENGTH + LENGTH_STD * float(torch.randn((), generator=generator))
        lengths.append(1 + max(2, round(drawn)))
    if tokens:
        lengths[-1] -= sum(lengths) - tokens
    return lengths


def make_batch(task: Any, seed: int, **amount: int) -> dict[str, Any]:
    """A batch of random sentences as fairseq's own dataset collates it; sources as targets long."""
    lengths = sentence_lengths(torch.Generator().manual_seed(seed), **amount)
    generator = torch.Generator().manual_seed(seed)
    sides: list[Any] = []
    for dictionary in (task.source_dictionary, task.target_dictionary):
        end = torch.tensor([dictionary.eos()])
        # a sentence may be cut down to its </s>, and no word cannot be drawn
        words = [zipf_words(max(1, n - 1), len(dictionary), generator)[: n - 1] for n in lengths]
        sides += [torch.cat([sentence, end]) for sentence in words], lengths, dictionary
    dataset = LanguagePairDataset(*sides)
    batch: dict[str, Any] = dataset.collater([dataset[index] for index in range(len(lengths))])
    return batch


def step_workload(
    name: str, *, tokens: int, dtype: str, device: str, seed: int, **sizes: Any
) -> Workload:
    """A trainer and its batch; one call is forward, loss, backward, clipping and Adam's update.

    Args:
        name: of :data:`fairseq_kerbs.benchmarks.contestants.STEP_NAMES`.
        tokens: target tokens in the batch, padding not counted.
        dtype: float16 and bfloat16 are fairseq's --fp16 and --bf16.
        device, seed, sizes: see :func:`set_up`.
    """
    model_name = name.removesuffix(SMOOTHED)
    criterion = "label_smoothed_cross_entropy" if model_name == "stock" else "kerbs_cross_entropy"
    cfg, task, model = set_up(
        *(model_name, sizes, device, seed, "--criterion", criterion),
        *("--label-smoothing", str(SMOOTHING if name.endswith(SMOOTHED) else 0.0)),
        *("--optimizer", "adam", "--lr", "1e-4", "--clip-norm", "1.0"),
        *{"float32": (), "float16": ("--fp16",), "bfloat16": ("--bf16",)}[dtype],
    )
    trainer = Trainer(cfg, task, model, task.build_criterion(cfg.criterion))
    trainer.cuda_env = None  # else every step resets the peak that we measure
    batch = make_batch(task, seed, tokens=tokens)
    return Workload(
        run=lambda: float(trainer.train_step([batch])["loss"]),
        reset=trainer.zero_grad,
        amount=batch["ntokens"],
        unit="tokens",
        gradient_bytes=sum(weight.nbytes for weight in model.parameters() if weight.requires_grad),
        loss_unit="bits",
    )


def decode_workload(
    name: str, *, batch: int, beam: int, steps: int, dtype: str, device: str, seed: int,
    **sizes: Any,
) -> Workload:  # fmt: skip
    """An untrained model and fairseq's SequenceGenerator; one call translates a batch.

    Args:
        name: a model of :data:`fairseq_kerbs.benchmarks.contestants.MODELS`.
        batch, beam: sentences of the batch, size of the beam.
        steps: tokens of every hypothesis, the final </s> included: all take as many steps.
        dtype: of the model.
        device, seed, sizes: see :func:`set_up`.
    """
    cfg, task, model = set_up(name, sizes, device, seed)
    model.to(device, DTYPES[dtype]).eval()
    model.prepare_for_inference_(cfg)
    forced = Namespace(beam=beam, max_len_a=0, max_len_b=steps - 1, min_len=steps - 1)
    generator = task.build_generator([model], forced)
    sample = make_batch(task, seed, sentences=batch)
    if device == "cuda":
        sample = utils.move_to_cuda(sample)

    def translate() -> None:
        for best, *_ in task.inference_step(generator, [model], sample):
            if len(best["tokens"]) != steps:
                raise RuntimeError(f"a hypothesis has {len(best['tokens'])} tokens, not {steps}")

    return Workload(run=translate, amount=batch, unit="sentences")


def run(
    make: Callable[..., Workload], names: tuple[str, ...], sizes: dict[str, Any], settings: Settings
) -> tuple[dict[str, Any], str]:
    """Compare all models at one size: what :func:`compare` returns, and the tables.

    Args:
        make: :func:`step_workload` or :func:`decode_workload`, whose contestants have ``names``.
        sizes: its keyword arguments, but for those of the settings.
    """
    entries: dict[str, Entry] = {}
    for name in settings.chosen(names):
        model = name.removesuffix(SMOOTHED)
        ours = f"transformer_kerbs, {MODELS[model]}"
        label = ours if model != "stock" else "fairseq's transformer"
        label += f", label smoothing {SMOOTHING}" if name != model else ""
        entries[name] = label, partial(make, name, **sizes, **settings.inputs())
    result = compare(entries, MODEL_RATIOS, settings)
    text = comparison_tables(result)
    return result, f"{text}\n\n{LIKE_FOR_LIKE}" if "softmax" in entries else text
