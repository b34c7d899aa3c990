"""Binarized toy text and a model trained on it for two updates, all in this process."""

import logging
import sys
from pathlib import Path
from unittest import mock

import torch
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder

import fairseq_kerbs.criterions
import fairseq_kerbs.models  # noqa: F401  (registers)
from fairseq_kerbs.data.toy import write_toy_corpus
from fairseq_kerbs.utils.files import read_lines

LANGUAGES, SIZES = ("de", "en"), {"train": 40, "valid": 6, "test": 6}
ARCHITECTURE = ["--arch", "lstm_kerbs", "--hidden-size", "6", "--embed-dim", "4"]
FLAGS = [
    "--task",
    "translation",
    "--criterion",
    "kerbs_cross_entropy",
    "--optimizer",
    "adam",
    "--lr",
    "0.01",
    "--max-tokens",
    "400",
    "--max-update",
    "2",
    "--cpu",
    "--num-workers",
    "0",
    "--disable-validation",
    "--log-format",
    "none",
]


def fairseq_train(*arguments: object) -> None:
    """``fairseq-train`` with tiny flags, which later ones override; another --arch has its own."""
    architecture = [] if "--arch" in arguments else ARCHITECTURE
    fairseq_train_with(*FLAGS, *architecture, *arguments)


def fairseq_train_with(*arguments: object) -> None:
    """``fairseq-train`` with these arguments alone. It needs no --user-dir in this process."""
    from fairseq_cli.train import cli_main

    command = ["fairseq-train", *map(str, arguments)]
    generator = torch.get_rng_state()
    try:
        with mock.patch.object(sys, "argv", command):
            cli_main()
    finally:
        torch.set_rng_state(generator)
        logging.getLogger("fairseq_cli.train").handlers.clear()


def binarized_corpus(folder: Path, sizes: dict[str, int] = SIZES) -> Path:
    """The synthetic corpus in ``text``; in ``bin``, which is returned, binarized by words."""
    text, data = folder / "text", folder / "bin"
    write_toy_corpus(text, **sizes)
    data.mkdir()
    for language in LANGUAGES:
        dictionary = Dictionary()
        for line in read_lines(text / f"train.{language}"):
            dictionary.encode_line(line, append_eos=False)
        dictionary.finalize(padding_factor=1)
        dictionary.save(str(data / f"dict.{language}.txt"))
        for split in sizes:
            prefix = str(data / f"{split}.de-en.{language}")
            builder = MMapIndexedDatasetBuilder(f"{prefix}.bin")
            for line in read_lines(text / f"{split}.{language}"):
                builder.add_item(dictionary.encode_line(line, add_if_not_exist=False).int())
            builder.finalize(f"{prefix}.idx")
    return data


def make_work(folder: Path) -> Path:
    """Text in ``text``, its binarized form in ``bin`` and the checkpoint ``model.pt``."""
    binarized_corpus(folder)
    fairseq_train(folder / "bin", "--save-dir", folder / "save")
    (folder / "save" / "checkpoint_last.pt").rename(folder / "model.pt")
    return folder
