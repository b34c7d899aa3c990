"""What the commands that look at a trained model share: their flags, the model, their files."""

from __future__ import annotations

import argparse
import struct
from pathlib import Path
from typing import Any, NamedTuple

from fairseq_kerbs.commands import OutputPath, add_trust_flag, say_written, write_output
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import write_json


def add_model_flags(
    parser: argparse.ArgumentParser, *, needs_data: bool = False, split: str = "test"
) -> None:
    """The checkpoint, where its dictionary or data are, and which ``split`` of them by default; ""
    for no such flag."""
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT")
    text = "binarized data" if needs_data else "binarized data [none: the checkpoint alone]"
    parser.add_argument("--data", type=Path, required=needs_data, metavar="BIN", help=text)
    if not needs_data:
        text = "without --data: the target language's dict.*.txt [where the model was trained]"
        parser.add_argument("--dict", type=Path, metavar="FILE", help=text)
    if split:
        parser.add_argument("--split", default=split, help="split of the data [%(default)s]")
    add_trust_flag(parser)


def add_numbers(parser: argparse._ActionsContainer, *flags: tuple[str, int, str]) -> None:
    """Whole numbers: flag, default and what it says."""
    for flag, default, text in flags:
        text = f"{text} [%(default)s]"
        parser.add_argument(flag, type=int, default=default, metavar="N", help=text)


def add_files(parser: argparse.ArgumentParser) -> None:
    """``--json`` and ``--csv``."""
    for kind in ("json", "csv"):
        text = f"write it here as {kind.upper()}, too"
        parser.add_argument(f"--{kind}", type=OutputPath, metavar="FILE", help=text)


def check_numbers(args: argparse.Namespace, **least: int) -> None:
    """Refuse a number below the least that its flag takes, and two dictionaries."""
    for name, value in least.items():
        if getattr(args, name) < value:
            flag = name.replace("_", "-")
            bound = f"at least {value}" if value else "0 or more"
            raise UserError(f"--{flag} is {getattr(args, name)}, but must be {bound}")
    if args.data is not None and getattr(args, "dict", None) is not None:
        raise UserError("--dict is for use without data: leave it out, --data has a dictionary")


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


def read_names(model: Any, task: Any, split: str, otherwise: str | None = "") -> Any:
    """Names of senses (:class:`.analysis.names.SenseNames`) by a split, or, if the data have no
    such split, by another one; None if the other is None. Raises what :func:`read_text` raises."""
    from fairseq_kerbs.analysis.names import SenseNames, read_text

    if otherwise != "":
        try:
            task.load_dataset(split)
        except FileNotFoundError:
            if otherwise is None:
                return None
            split = otherwise
        except (AssertionError, ValueError, struct.error):
            pass  # read_text says what is wrong with it
    return SenseNames(read_text(model, task, split), task.target_dictionary.symbols)


def show(text: str) -> None:
    """Print a text that has words of a corpus in it."""
    from fairseq_kerbs.analysis.words import printable

    print(printable(text))


def write_files(args: argparse.Namespace, result: Any, csv: str) -> None:
    """Write what ``--json`` and ``--csv`` ask for."""
    if args.json is not None:
        write_json(args.json, result)
        say_written(args.json)
    if args.csv is not None:
        write_output(args.csv, csv)
