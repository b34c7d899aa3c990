"""``benchmark.py step`` and ``decode``: fairseq's Trainer and beam search on random sentences."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import torch
from fairseq import options, utils
from fairseq.data import Dictionary, LanguagePairDataset
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.tasks.translation import TranslationTask
from fairseq.trainer import Trainer

import fairseq_kerbs.criterions
import fairseq_kerbs.models  # noqa: F401  (both register with fairseq)
from fairseq_kerbs.evaluation.numerics import DTYPES, zipf_words
from scripts.benchmarks.comparison import Workload

_STOCK = "--arch transformer --share-decoder-input-output-embed"
_KERBS = "--arch transformer_kerbs_iwslt"
MODELS = {
    "stock": _STOCK,
    "softmax": f"{_KERBS} --output-layer softmax",
    "kerbs": _KERBS,
    "kerbs-prior": f"{_KERBS} --composition prior",
    "mos": f"{_KERBS} --output-layer mos --mixture-components 3",
    "kerbs-lstm": "--arch lstm_kerbs",
    "softmax-lstm": "--arch lstm_kerbs --output-layer softmax",
    "kerbs-lstm-luong": "--arch lstm_kerbs --attention luong",
    "softmax-lstm-luong": "--arch lstm_kerbs --attention luong --output-layer softmax",
    "stock-smoothed": f"{_STOCK} --label-smoothing 0.1",
    "kerbs-smoothed": f"{_KERBS} --label-smoothing 0.1",
}
"""Flags of each system; "stock" is fairseq's own."""

_SIDE = (
    "--{0}-embed-dim {dim} --{0}-ffn-embed-dim {ffn} --{0}-layers {layers} "
    "--{0}-attention-heads {heads}"
)
LENGTH_STD = 3.0  # of the tokens of a sentence: fairseq batches similar lengths


def set_up(name: str, sizes: dict[str, Any], device: str, seed: int, *flags: str) -> Any:
    """What fairseq-train would make of a model's flags: configuration, task, model.

    ``sizes`` has dim, vocab, ffn, layers and heads of both sides, hidden, which is the hidden size
    of the LSTM with its one layer, and senses_per_word (M ÷ V).
    """
    arguments = [
        "in-memory",  # the folder of the data, which nothing opens
        "--task",
        "translation",
        "--dropout",
        "0.1",
        "--distributed-world-size",
        "1",
        *(("--cpu",) if device == "cpu" else ()),
        *flags,
        *MODELS[name].split(),
    ]
    if "lstm" in name:
        arguments += ["--embed-dim", str(sizes["dim"]), "--hidden-size", str(sizes["hidden"])]
    else:
        arguments += [
            flag for side in ("encoder", "decoder") for flag in _SIDE.format(side, **sizes).split()
        ]
    if name.startswith("kerbs"):
        arguments += ["--total-senses", str(sizes["senses_per_word"]), "--reallocation", "none"]
    args = options.parse_args_and_arch(options.get_training_parser(), arguments)
    cfg = convert_namespace_to_omegaconf(args)
    torch.manual_seed(seed)
    dictionaries = [Dictionary(), Dictionary()]
    for dictionary in dictionaries:
        for number in range(sizes["vocab"] - len(dictionary)):
            dictionary.add_symbol(f"w{number}")
    task = TranslationTask(cfg.task, *dictionaries)
    return cfg, task, task.build_model(cfg.model)


def make_batch(task: Any, seed: int, sentences: int, length: int) -> dict[str, Any]:
    """A batch of random sentences as fairseq's own dataset collates it.

    ``length`` is the mean number of tokens of a sentence. Sources are as long as targets.
    """
    generator = torch.Generator().manual_seed(seed)
    drawn = length + LENGTH_STD * torch.randn(sentences, generator=generator)
    lengths = drawn.round().int().clamp(min=2).tolist()  # the final </s> included
    sides: list[Any] = []
    for dictionary in (task.source_dictionary, task.target_dictionary):
        end = torch.tensor([dictionary.eos()])
        words = [zipf_words(length - 1, len(dictionary), generator) for length in lengths]
        sentences_of_side = [torch.cat([sentence, end]) for sentence in words]
        sides.extend([sentences_of_side, lengths, dictionary])
    dataset = LanguagePairDataset(*sides)
    return dataset.collater([dataset[index] for index in range(sentences)])


def step_workload(
    name: str, *, tokens: int, length: int, dtype: str, device: str, seed: int, **sizes: Any
) -> Workload:
    """A trainer and a batch of about ``tokens`` target tokens, padding not counted.

    One call is forward, loss, backward, clipping and Adam's update. float16 and bfloat16 are
    fairseq's --fp16 and --bf16.
    """
    stock = name.startswith("stock")
    cfg, task, model = set_up(
        name,
        sizes,
        device,
        seed,
        "--optimizer",
        "adam",
        "--lr",
        "1e-4",
        "--clip-norm",
        "1.0",
        "--criterion",
        "label_smoothed_cross_entropy" if stock else "kerbs_cross_entropy",
        "--label-smoothing",
        "0",
        *{"float32": (), "float16": ("--fp16",), "bfloat16": ("--bf16",)}[dtype],
    )
    trainer = Trainer(cfg, task, model, task.build_criterion(cfg.criterion))
    trainer.cuda_env = None  # else every step resets the peak that we measure
    batch = make_batch(task, seed, max(1, round(tokens / length)), length)
    return Workload(
        run=lambda: float(trainer.train_step([batch])["loss"]),
        reset=trainer.zero_grad,
        amount=batch["ntokens"],
        unit="token",
    )


# One argument for each flag of ``benchmark.py decode``.
def decode_workload(  # noqa: PLR0913
    name: str,
    *,
    batch: int,
    length: int,
    beam: int,
    steps: int,
    dtype: str,
    device: str,
    seed: int,
    **sizes: Any,
) -> Workload:
    """An untrained model and fairseq's SequenceGenerator; one call translates a batch.

    All hypotheses have ``steps`` tokens, the final </s> included, so that all take as many steps.
    """
    cfg, task, model = set_up(name, sizes, device, seed)
    model.to(device, DTYPES[dtype]).eval()
    model.prepare_for_inference_(cfg)
    forced = Namespace(beam=beam, max_len_a=0, max_len_b=steps - 1, min_len=steps - 1)
    generator = task.build_generator([model], forced)
    sample = make_batch(task, seed, batch, length)
    if device == "cuda":
        sample = utils.move_to_cuda(sample)

    def translate() -> None:
        for best, *_ in task.inference_step(generator, [model], sample):
            assert len(best["tokens"]) == steps

    return Workload(run=translate, amount=batch, unit="sentence")
