"""fairseq's translation task in memory: random dictionaries and sentences, real models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from fairseq import options
from fairseq.data import Dictionary, LanguagePairDataset
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.tasks.translation import TranslationTask

import fairseq_kerbs.criterions
import fairseq_kerbs.models  # noqa: F401  (both register with fairseq)
from fairseq_kerbs.benchmarks.inputs import zipf_words

MEAN_LENGTH, LENGTH_STD = 22.0, 3.0  # words of a sentence: fairseq batches similar lengths

KERBS = ("--arch", "transformer_kerbs_iwslt")
MODELS: dict[str, tuple[str, ...]] = {
    "stock": ("--arch", "transformer", "--share-decoder-input-output-embed"),
    "softmax": (*KERBS, "--output-layer", "softmax"),
    "kerbs-prior": (*KERBS, "--composition-passes", "0"),
    "kerbs": (*KERBS, "--composition-passes", "1"),
    "kerbs-sequential": (*KERBS, "--composition-passes", "-1"),
}
LABELS = {
    "stock": "fairseq's transformer",
    "softmax": "transformer_kerbs, --output-layer softmax",
    "kerbs-prior": "transformer_kerbs, --composition-passes 0",
    "kerbs": "transformer_kerbs, --composition-passes 1",
    "kerbs-sequential": "transformer_kerbs, --composition-passes -1",
}


@dataclass(frozen=True)
class ModelSizes:
    """Sizes of a Transformer; those of Section 5.1 by default.

    Attributes:
        dim: width of both sides, d.
        vocab: entries of the source and of the target dictionary, V.
        senses_per_word: M ÷ V.
        ffn: inner width of the feed-forward layers.
        layers: layers of each side.
        heads: attention heads.
    """

    dim: int = 288
    vocab: int = 10_000
    senses_per_word: float = 3.0
    ffn: int = 507
    layers: int = 5
    heads: int = 2


def make_dictionary(words: int) -> Dictionary:
    """A dictionary of ``words`` entries, specials included."""
    dictionary = Dictionary()
    for number in range(words - len(dictionary)):
        dictionary.add_symbol(f"w{number}")
    return dictionary


def configuration(model: str, sizes: ModelSizes, device: str, *flags: str) -> Any:
    """What fairseq-train would make of these flags.

    Args:
        model: of :data:`MODELS`.
        sizes: of the model.
        device: "cpu" or "cuda".
        flags: further flags of fairseq-train.
    """
    own = ["--total-senses", str(sizes.senses_per_word)] if model.startswith("kerbs") else []
    both = [
        item
        for side in ("encoder", "decoder")
        for flag, value in (
            ("embed-dim", sizes.dim),
            ("ffn-embed-dim", sizes.ffn),
            ("layers", sizes.layers),
            ("attention-heads", sizes.heads),
        )
        for item in (f"--{side}-{flag}", str(value))
    ]
    arguments = [
        "in-memory",  # the folder of the data, which nothing opens
        *("--task", "translation", "--dropout", "0.1", "--distributed-world-size", "1"),
        *(("--cpu",) if device == "cpu" else ()),
        *MODELS[model],
        *own,
        *both,
        *flags,
    ]
    parser = options.get_training_parser()
    return convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, arguments))


def build_task_and_model(cfg: Any, vocab: int, seed: int) -> tuple[Any, Any]:
    """The task on two random dictionaries, and the model of a configuration."""
    torch.manual_seed(seed)
    task = TranslationTask(cfg.task, make_dictionary(vocab), make_dictionary(vocab))
    return task, task.build_model(cfg.model)


def sentence_lengths(generator: torch.Generator, tokens: int = 0, sentences: int = 0) -> list[int]:
    """Lengths in tokens, the final </s> included.

    Args:
        generator: source of randomness.
        tokens: draw until the sum is this; the last one is cut to fit.
        sentences: or draw this many.
    """
    lengths: list[int] = []
    while sum(lengths) < tokens or len(lengths) < sentences:
        drawn = MEAN_LENGTH + LENGTH_STD * float(torch.randn((), generator=generator))
        lengths.append(1 + max(2, round(drawn)))
    if tokens:
        lengths[-1] -= sum(lengths) - tokens
    return lengths


def make_batch(task: Any, lengths: list[int], seed: int) -> dict[str, Any]:
    """A batch of random sentences as fairseq's own dataset collates it; sources as targets long."""
    generator = torch.Generator().manual_seed(seed)
    source_dict, target_dict = task.source_dictionary, task.target_dictionary

    def sentences(dictionary: Any) -> list[torch.Tensor]:
        end = torch.tensor([dictionary.eos()])
        return [
            torch.cat([zipf_words(length - 1, len(dictionary), generator), end])
            if length > 1
            else end
            for length in lengths
        ]

    dataset = LanguagePairDataset(
        *(sentences(source_dict), lengths, source_dict),
        *(sentences(target_dict), lengths, target_dict),
    )
    batch: dict[str, Any] = dataset.collater([dataset[index] for index in range(len(lengths))])
    return batch
