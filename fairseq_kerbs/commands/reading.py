"""What the commands that look at a trained model share: their flags, the model, their files."""

from __future__ import annotations

import argparse
import struct
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_kerbs.commands import TRUST, OutputPath, Part, either, file, flag, write_output
from fairseq_kerbs.utils.files import write_json

WORD = {"metavar": "WORD", "help": "entries of the dictionary"}


def model_flags(*, needs_data: bool = False, split: str = "test") -> Part:
    """The checkpoint, where its dictionary or data are, and which ``split`` of them by default; ""
    for no such flag."""

    def add(parser: Any) -> None:
        file("checkpoint", metavar="CHECKPOINT")(parser)
        if needs_data:
            file("--data", "binarized data", "BIN", required=True)(parser)
        else:
            text = "without --data: the target language's dict.*.txt [where the model was trained]"
            data = file("--data", "binarized data [none: the checkpoint alone]", "BIN")
            either(data, file("--dict", text))(parser)
        if split:
            parser.add_argument("--split", default=split, help="split of the data [%(default)s]")
        TRUST(parser)

    return add


def files(parser: Any) -> None:
    """``--json`` and ``--csv``."""
    for kind in ("json", "csv"):
        text = f"write it here as {kind.upper()}, too"
        flag(f"--{kind}", type=OutputPath, metavar="FILE", help=text)(parser)


class Trained(NamedTuple):
    """A checkpoint's dictionary and output layer; with data also model and task."""

    layer: Any  # None for a model of fairseq's own that was loaded with its data
    dictionary: Any
    model: Any = None
    task: Any = None


def read_model(
    args: argparse.Namespace, path: Path | None = None, any_model: bool = False
) -> Trained:
    """A checkpoint of ours or of any fairseq model, with its data where they are given."""
    from fairseq_kerbs.checkpoints import load_layer, load_model_and_task
    from fairseq_kerbs.output_layers import OutputLayer

    path, trust = path or args.checkpoint, args.trust_checkpoint
    if args.data is None:
        return Trained(*load_layer(path, args.dict, trust, any_model=any_model))
    model, task = load_model_and_task(path, args.data, trust=trust, any_model=any_model)
    layer = getattr(model.decoder, "output", None)
    layer = layer if isinstance(layer, OutputLayer) else None
    return Trained(layer, task.target_dictionary, model, task)


def has_split(task: Any, split: str) -> bool:
    """Whether the data have a split, damaged or not."""
    try:
        task.load_dataset(split)
    except FileNotFoundError:
        return False
    except (AssertionError, ValueError, struct.error):
        pass  # who reads it says what is wrong with it
    return True


def read_names(trained: Trained, split: str) -> Any:
    """Names of senses (:class:`.analysis.names.SenseNames`) by a split."""
    from fairseq_kerbs.analysis.names import SenseNames
    from fairseq_kerbs.analysis.teacher_forcing import TOKENS, read_text

    text = read_text(trained.model, trained.task, split, TOKENS)
    return SenseNames(text, trained.dictionary.symbols)


def show(text: str) -> None:
    """Print a text that has words of a corpus in it."""
    from fairseq_kerbs.analysis.words import printable

    print(printable(text))


def write_files(args: argparse.Namespace, result: Any, csv: str) -> None:
    """Write what ``--json`` and ``--csv`` ask for."""
    if args.json is not None:
        write_json(args.json, result)
        print(f"wrote {args.json}")
    if args.csv is not None:
        write_output(args.csv, csv)
