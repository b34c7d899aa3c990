"""What the commands that look at a trained model share: their flags, the model, their files."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fairseq_kerbs.commands import arg, say_written, write_output
from fairseq_kerbs.utils.files import write_json

if TYPE_CHECKING:
    from fairseq_kerbs.analysis.names import SenseNames

CHECKPOINT = arg.file("checkpoint", "file of a trained model", "CHECKPOINT")
DATA = arg.file("--data", "folder of binarized data", "BIN", required=True)
DATA_OR_DICT = arg.either(
    arg.file("--data", "folder of binarized data [none]", "BIN"),
    arg.file("--dict", "dictionary of the target language, dict.*.txt [that of the training data]"),
)
TRUST = arg.switch(
    "--trust-checkpoint",
    "allow code in the checkpoint to run, for trusted files. Without this flag only tensors and "
    "plain settings are loaded",
)
FILES = (
    arg.file("--json", "also write the result as JSON"),
    arg.file("--csv", "also write the result as CSV"),
)

# control characters but the end of a line, and those that change the direction of all that follows
_CONTROLS = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def split(default: str) -> arg.Part:
    """``--split``."""
    return arg.value("--split", "split of the data [%(default)s]", default=default)


def words(text: str, **options: Any) -> arg.Part:
    """``--word``, one or several."""
    return arg.value("--word", text, "WORD", **{"nargs": "+", **options})


class Trained(NamedTuple):
    """A checkpoint's dictionary and output layer; with data also model and task."""

    layer: Any  # None for a model of fairseq's own that was loaded with its data
    dictionary: Any
    model: Any = None
    task: Any = None


def read_model(
    args: argparse.Namespace, any_model: bool = False, data: Path | None = None
) -> Trained:
    """A checkpoint of ours or of any fairseq model, with its data where they are given."""
    from fairseq_kerbs.checkpoints import load_layer, load_model_and_task
    from fairseq_kerbs.output_layers import OutputLayer

    path, data, trust = args.checkpoint, data or args.data, args.trust_checkpoint
    if data is None:
        return Trained(*load_layer(path, args.dict, trust, any_model=any_model))
    model, task = load_model_and_task(path, data, trust=trust, any_model=any_model)
    layer = getattr(model.decoder, "output", None)
    layer = layer if isinstance(layer, OutputLayer) else None
    return Trained(layer, task.target_dictionary, model, task)


def read_names(trained: Trained, split: str) -> SenseNames:
    """Names of senses by a split."""
    from fairseq_kerbs.analysis.names import SenseNames
    from fairseq_kerbs.analysis.occurrences import TOKENS_FOR_NAMES, read_text

    text = read_text(trained.model, trained.task, split, TOKENS_FOR_NAMES)
    return SenseNames(text, trained.dictionary.symbols)


def show(text: str) -> None:
    """Print a text with words of a corpus, with U+FFFD for what could control a terminal."""
    print(_CONTROLS.sub("\ufffd", text))


def write_files(args: argparse.Namespace, result: Any, csv: str) -> None:
    """Write what ``--json`` and ``--csv`` ask for."""
    if args.json is not None:
        write_json(args.json, result)
        say_written(args.json)
    if args.csv is not None:
        write_output(args.csv, csv)
