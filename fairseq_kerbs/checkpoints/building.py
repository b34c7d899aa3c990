"""Build model, task and output layer from a checkpoint.

Building a model can execute code that its settings name, so :mod:`.reading` decides which models
and tasks are accepted.
"""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from fairseq_kerbs.checkpoints.reading import Checkpoint, open_checkpoint
from fairseq_kerbs.output_layers import OutputLayer, SoftmaxOutputLayer
from fairseq_kerbs.utils.dictionaries import digest, kept_in, read_dictionary
from fairseq_kerbs.utils.errors import UserError, as_user_error

INPUT_EMBEDDING = "decoder.embed_tokens.weight"
"""Name of the input embeddings of fairseq's decoders."""
OUTPUT_EMBEDDINGS = (
    "decoder.output_projection.weight",
    "decoder.fc_out.weight",
    "decoder.embed_out",
    INPUT_EMBEDDING,
)
"""Names of the output embeddings of fairseq's decoders. The last is for tied embeddings."""


# ------------------------------------------------------------------ models and tasks


def load_model_and_task(
    path: Path | str, data: Path | None = None, *, trust: bool = False, any_model: bool = False
) -> tuple[Any, Any]:
    """Load the model of a checkpoint in evaluation mode, and its task, by fairseq's functions.

    ``data`` is a folder of binarized data with the dictionaries of the training. By default the
    task has dictionaries of placeholder words. With ``any_model``, models of fairseq are loaded,
    too. For ``trust`` and UserErrors see :func:`.reading.open_checkpoint` and
    :func:`build_model_and_task`.
    """
    others = None if any_model else ()
    checkpoint = open_checkpoint(Path(path), data, trust=trust, others=others)
    return build_model_and_task(checkpoint, data)


def _check_folder(checkpoint: Checkpoint, data: Path) -> None:
    """Raise a UserError for a folder without data, or with those of another task."""
    if not any(data.glob("dict*.txt")):
        remedy = "name the folder that fairseq-preprocess wrote"
        if any((data / "bin").glob("dict*.txt")):  # as 'fairseq-kerbs prepare' writes it
            remedy = f"name {data / 'bin'}"
        raise UserError(f"--data {data} is no folder with a dict.*.txt; {remedy}")
    task = getattr(checkpoint.config.task, "_name", None)
    if task == "language_modeling" and not (data / "dict.txt").is_file():
        raise UserError(
            f"{checkpoint.path} is a language model, and --data {data} is text of two languages; "
            "use the data that it was trained on"
        )
    if task == "translation" and not any(data.glob("dict.*.txt")):
        raise UserError(
            f"{checkpoint.path} is a translation model, and --data {data} is text of one language; "
            "use the data that it was trained on"
        )


def build_model_and_task(checkpoint: Checkpoint, data: Path | None) -> tuple[Any, Any]:
    """As :func:`load_model_and_task`, from a checkpoint that was read with this ``data``.

    A UserError is raised if the folder has no data, or the parameters do not fit the data or the
    settings.
    """
    from fairseq import models, tasks

    from fairseq_kerbs.training.guards import leave_out_copies

    if data is not None:
        _check_folder(checkpoint, data)
    state = checkpoint.state
    config = checkpoint.config
    fault = f"does not fit --data {data}" if data else "has parameters that do not fit its settings"
    with as_user_error(checkpoint.path, fault, "use the data and the file of the model's training"):
        if data is None:
            task = _placeholder_task_of(checkpoint)
            model = models.build_model(config.model, task)
        else:
            task = tasks.setup_task(config.task)
            task.load_state_dict(state.get("task_state") or {})
            model = task.build_model(config.model)
        tensors = copy.copy(state["model"])
        for name in leave_out_copies(model):
            tensors.pop(name, None)
        model.load_state_dict(tensors, strict=True, model_cfg=config.model)
    return model.eval(), task


def _placeholder_task_of(checkpoint: Checkpoint) -> Any:
    """A task with placeholder words, as many as the embeddings of a checkpoint are for."""
    tensors = checkpoint.state["model"]
    settings = checkpoint.config.task
    own_sizes = ("decoder.output.inventory.log_prob", "decoder.output.weight")
    names = own_sizes if checkpoint.ours else OUTPUT_EMBEDDINGS
    outputs = [len(tensors[name]) for name in names if name in tensors]
    if not outputs:
        raise UserError(f"{checkpoint.path} has no complete output layer; take a complete model")
    embeddings = ("encoder.embed_tokens.weight", INPUT_EMBEDDING)
    inputs = [len(tensors[name]) for name in embeddings if name in tensors]
    kinds = ("self", "future", "past")
    targets = [kind for kind in kinds if getattr(settings, f"{kind}_target", False)]
    target = outputs[0]
    source = target  # of a model without an input embedding
    if inputs:
        source = inputs[0]
    return placeholder_task(source, target, targets or ["future"])


def placeholder_task(source: int, target: int, targets: list[str]) -> SimpleNamespace:
    """The attributes of a task that are needed to build a model, with placeholder words.

    ``source`` and ``target`` are sizes of dictionaries. ``targets`` are those of a language model,
    "self", "future" or "past".
    """
    source_dictionary = _placeholder_dictionary(source)
    target_dictionary = _placeholder_dictionary(target)
    return SimpleNamespace(
        source_dictionary=source_dictionary,
        target_dictionary=target_dictionary,
        dictionary=target_dictionary,
        output_dictionary=target_dictionary,
        targets=targets,
        # not used
        optimizer_step=None,
        train_step=None,
        begin_epoch=None,
    )


def _placeholder_dictionary(entries: int) -> Any:
    from fairseq.data import Dictionary

    dictionary = Dictionary()
    for number in range(entries - len(dictionary)):
        dictionary.add_symbol(f"word{number}")
    return dictionary


# ------------------------------------------------------------------ output layers


def load_layer(
    path: Path | str, dictionary: Path | None = None, trust: bool = False, any_model: bool = False
) -> tuple[OutputLayer, Any]:
    """Load the output layer and target dictionary of a checkpoint.

    ``dictionary`` is a ``dict.LANGUAGE.txt``, by default that of :func:`remembered_dictionary`. For
    ``trust`` and ``any_model`` see :func:`load_model_and_task`. A UserError is raised if the model
    or the dictionary cannot be read, or they do not match.
    """
    path = Path(path)
    checkpoint = open_checkpoint(path, trust=trust, others=None if any_model else ())
    model, _ = build_model_and_task(checkpoint, None)
    layer = model_layer(model, path)
    file = dictionary or remembered_dictionary(path, checkpoint.config)
    return layer, load_dictionary(file, layer.vocab_size, checkpoint.state)


def model_layer(model: Any, path: Path) -> OutputLayer:
    """Output layer of a model. Output embeddings of fairseq's models become a softmax layer.

    Biases of fairseq's models, which depend on word frequencies, are left out. A model without an
    output embedding for each word raises a UserError that names its ``path``.
    """
    layer = getattr(model.decoder, "output", None)
    if isinstance(layer, OutputLayer):
        return layer
    tensors = model.state_dict()
    tied = getattr(model.decoder, "share_input_output_embed", False)
    names = [name for name in OUTPUT_EMBEDDINGS if tied or name != INPUT_EMBEDDING]
    weights = [tensors[name] for name in names if name in tensors]
    if not weights or any(name.startswith("decoder.adaptive_softmax.") for name in tensors):
        raise UserError(
            f"{path}: its output layer has no vector for each word (an adaptive softmax has none)"
        )
    stock = SoftmaxOutputLayer(weights[0].shape[1], weights[0].shape[0])
    stock.weight.data = weights[0].detach().float()  # [V, d]
    return stock.eval()


def remembered_dictionary(path: Path, config: Any) -> Path:
    """Path of the target dictionary in the first folder of the training, or a UserError."""
    from fairseq.data.data_utils import infer_language_pair

    folder = Path(str(getattr(config.task, "data", "")).split(":")[0])
    language = getattr(config.task, "target_lang", None)
    if not language and folder.is_dir():
        language = infer_language_pair(str(folder))[1]  # None for a language model
    file = folder / (f"dict.{language}.txt" if language else "dict.txt")
    if not file.is_file():
        missing = f"{path} does not hold its dictionary, and {file} is not there"
        raise UserError(f"{missing}; give --data BIN or --dict FILE")
    return file


def load_dictionary(path: Path, words: int, state: dict[str, Any]) -> Any:
    """Load the target dictionary of a model with this number of words.

    A UserError is raised if the file is no dictionary, or not that of the training (``state``).
    """
    dictionary = read_dictionary(path)
    trained = kept_in(state, "target")
    if len(dictionary) != words or trained not in (None, digest(dictionary)):
        raise UserError(
            f"{path} is not the dictionary of {words} words in the order that the checkpoint was "
            "trained with; give that of the target language"
        )
    return dictionary
