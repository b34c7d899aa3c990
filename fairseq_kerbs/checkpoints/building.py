"""Build model, task and output layer from a checkpoint.

Building a model can execute code that its settings name. Without ``--trust-checkpoint`` only the
models and tasks in :data:`SAFE_MODELS` and :data:`SAFE_TASKS` are built, and those of this package.
"""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from fairseq_kerbs.checkpoints.reading import read_checkpoint, refusal, training_config
from fairseq_kerbs.output_layers import OutputLayer, SoftmaxOutputLayer
from fairseq_kerbs.utils.dictionaries import digest, digest_kept
from fairseq_kerbs.utils.errors import UserError, as_user_error
from fairseq_kerbs.utils.files import read_lines
from fairseq_kerbs.utils.processes import quoted

SAFE_MODELS = ("transformer", "transformer_lm", "lstm", "lstm_lm")
"""fairseq's models that are built without trust, with all of their presets, besides ours."""
SAFE_TASKS = ("translation", "language_modeling")
"""Tasks that are set up without trust. Only data of these tasks and of those derived from them can
be read."""
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
    path: Path, data: Path | None = None, *, trust: bool = False, any_model: bool = False
) -> tuple[Any, Any]:
    """Load the model of a checkpoint in evaluation mode, and its task, by fairseq's functions.

    ``data`` is a folder of binarized data with the dictionaries of the training. By default the
    task has dictionaries of placeholder words. With ``any_model``, models of fairseq are loaded,
    too. For ``trust`` and UserErrors see :func:`.reading.read_checkpoint` and
    :func:`build_model_and_task`.
    """
    state = read_checkpoint(path, trust)
    config = training_config(path, state, data)
    return build_model_and_task(path, state, config, data, trust=trust, any_model=any_model)


def build_model_and_task(
    path: Path,
    state: dict[str, Any],
    config: Any,
    data: Path | None,
    *,
    trust: bool,
    any_model: bool,
) -> tuple[Any, Any]:
    """As :func:`load_model_and_task`, from the content and the configuration of a checkpoint.

    A UserError is raised if the folder has no data, the kind of model or task is refused, or the
    parameters do not fit the data or the settings.
    """
    from fairseq import models, tasks

    from fairseq_kerbs.training.guards import leave_out_copies

    _, ours = registered_model(config.model)
    _check_model(path, config.model, trust, any_model)
    _check_task(path, config.task, trust, data)
    if data is not None and not any(data.glob("dict*.txt")):
        raise UserError(
            f"--data {data} is no folder with a dict.*.txt; name the folder that "
            "fairseq-preprocess wrote"
        )
    fault = f"does not fit --data {data}" if data else "has parameters that do not fit its settings"
    with as_user_error(path, fault, "use the data and the file of the model's training"):
        if data is None:
            task = _placeholder_task(path, state["model"], config.task, ours)
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


def registered_model(settings: Any) -> tuple[Any, bool]:
    """Name of a model in fairseq's registry, and whether it belongs to fairseq_kerbs."""
    from fairseq.models import ARCH_MODEL_NAME_REGISTRY, MODEL_REGISTRY

    arch = getattr(settings, "_name", None) or getattr(settings, "arch", None)
    if not isinstance(arch, str):
        return str(arch), False
    name = ARCH_MODEL_NAME_REGISTRY.get(arch, arch)
    module = str(getattr(MODEL_REGISTRY.get(name), "__module__", ""))
    return name, module.startswith("fairseq_kerbs.")


def _check_model(path: Path, settings: Any, trust: bool, any_model: bool) -> None:
    """Raise a UserError if the kind of model is refused."""
    name, ours = registered_model(settings)
    if not (ours or any_model):
        remedy = "name a checkpoint of one of its architectures"
        if name in SAFE_MODELS:
            remedy = convert_first(path)
        raise UserError(f"{path} holds no model of fairseq_kerbs; {remedy}")
    if not (ours or trust or name in SAFE_MODELS):
        raise refusal(path, "architecture", name)


def convert_first(path: Path) -> str:
    """The advice to give a softmax model senses, with the command."""
    command = quoted(["fairseq-kerbs", "convert", path, "-o", path.with_name("kerbs.pt")])
    return f"give it senses first: {command} --data BIN"


def _check_task(path: Path, settings: Any, trust: bool, data: Path | None) -> None:
    """Raise a UserError if the kind of task is refused, or its ``data`` cannot be read."""
    from fairseq.tasks import TASK_REGISTRY

    name = getattr(settings, "_name", None) or getattr(settings, "task", None)
    registered = TASK_REGISTRY.get(name)
    readable = tuple(TASK_REGISTRY[task] for task in SAFE_TASKS)
    # other tasks make batches in another way, so that trust does not help
    unreadable = not issubclass(registered, readable) if registered else trust
    if data is not None and unreadable:
        raise UserError(
            f"{path} was trained with --task {name}, whose data cannot be read; only those of "
            f"{' and '.join(SAFE_TASKS)} can"
        )
    for setting in ("_name", "task"):
        named = getattr(settings, setting, None)
        if not (trust or named is None or named in SAFE_TASKS):
            raise refusal(path, "task", named)


def _placeholder_task(path: Path, tensors: dict[str, Tensor], settings: Any, ours: bool) -> Any:
    """A task with placeholder words, as many as the embeddings of a checkpoint are for."""
    own_sizes = ("decoder.output.inventory.log_prob", "decoder.output.weight")
    names = own_sizes if ours else OUTPUT_EMBEDDINGS
    outputs = [len(tensors[name]) for name in names if name in tensors]
    if not outputs:
        raise UserError(f"{path} has no complete output layer; take a complete model")
    embeddings = ("encoder.embed_tokens.weight", INPUT_EMBEDDING)
    inputs = [len(tensors[name]) for name in embeddings if name in tensors]
    kinds = ("self", "future", "past")
    targets = [kind for kind in kinds if getattr(settings, f"{kind}_target", False)]
    return building_task([*inputs, *outputs][0], outputs[0], targets or ["future"])


def building_task(source: int, target: int, targets: list[str]) -> SimpleNamespace:
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
    path: Path, dictionary: Path | None = None, trust: bool = False, any_model: bool = False
) -> tuple[OutputLayer, Any]:
    """Load the output layer and target dictionary of a checkpoint.

    ``dictionary`` is a ``dict.LANGUAGE.txt``, by default that of :func:`remembered_dictionary`. For
    ``trust`` and ``any_model`` see :func:`load_model_and_task`. A UserError is raised if the model
    or the dictionary cannot be read, or they do not match.
    """
    state = read_checkpoint(path, trust)
    config = training_config(path, state)
    model, _ = build_model_and_task(path, state, config, None, trust=trust, any_model=any_model)
    layer = model_layer(model, path)
    file = dictionary or remembered_dictionary(path, config)
    return layer, load_dictionary(file, layer.vocab_size, state)


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
    from fairseq.data import Dictionary

    read_lines(path)  # raises a UserError for a missing file or a wrong encoding
    try:
        dictionary = Dictionary.load(str(path))
    except (ValueError, RuntimeError) as error:
        raise UserError(f"{path} is no dictionary of fairseq ({error})") from None
    trained = digest_kept(state, "target")
    if len(dictionary) != words or trained not in (None, digest(dictionary)):
        raise UserError(
            f"{path} is not the dictionary of {words} words in the order that the checkpoint was "
            "trained with; give that of the target language"
        )
    return dictionary
