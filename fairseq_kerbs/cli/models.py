"""Read the model that a command is about, with its dictionary and data."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fairseq_kerbs.utils.errors import UserError

if TYPE_CHECKING:
    from fairseq_kerbs.analysis.names import SenseNames


class Trained(NamedTuple):
    """A checkpoint's dictionary and output layer; with data also model and task."""

    layer: Any  # None for a model of fairseq's own that was loaded with its data
    dictionary: Any
    model: Any = None
    task: Any = None


def read_model(
    checkpoint: Path,
    data: Path | None = None,
    dictionary: Path | None = None,
    *,
    trust: bool = False,
    any_model: bool = False,
) -> Trained:
    """Read a checkpoint of ours or of any fairseq model, with its data where they are given."""
    from fairseq_kerbs.checkpoints import load_layer, load_model_and_task
    from fairseq_kerbs.output_layers import OutputLayer

    if data is None:
        return Trained(*load_layer(checkpoint, dictionary, trust, any_model=any_model))
    model, task = load_model_and_task(checkpoint, data, trust=trust, any_model=any_model)
    layer = getattr(model.decoder, "output", None)
    if not isinstance(layer, OutputLayer):
        layer = None
    return Trained(layer, task.target_dictionary, model, task)


def check_senses(trained: Trained, checkpoint: Path) -> None:
    """Raise a UserError if the words of a model have no senses: it is no KerBS model."""
    from fairseq_kerbs.checkpoints.reading import convert_first
    from fairseq_kerbs.output_layers import KerbsOutputLayer, SoftmaxOutputLayer

    if isinstance(trained.layer, SoftmaxOutputLayer):
        raise UserError(f"{checkpoint} is a softmax model; {convert_first(checkpoint)}")
    if not isinstance(trained.layer, KerbsOutputLayer):
        raise UserError(
            f"{checkpoint} has a mixture as output layer, without senses; name a model that was "
            "trained with --output-layer kerbs"
        )


def read_names(trained: Trained, split: str) -> SenseNames:
    """Name senses of whole words and of pieces by a split."""
    from fairseq_kerbs.analysis.names import SenseNames
    from fairseq_kerbs.analysis.occurrences import TOKENS_FOR_NAMES, Extras, read_text

    extras = Extras(pieces=True)
    text = read_text(trained.model, trained.task, split, TOKENS_FOR_NAMES, extras=extras)
    return SenseNames(text, trained.dictionary.symbols, target_language(trained))


def has_training_text(data: Path) -> bool:
    """Whether a folder has binarized training text, by which senses are named."""
    return any(data.glob("train*.idx"))


def target_language(trained: Trained) -> str | None:
    """Code of the language of a model's words, or None if its task has none."""
    settings = trained.task.cfg or trained.task.args
    language: str | None = getattr(settings, "target_lang", None)
    return language
