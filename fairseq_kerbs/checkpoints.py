"""Read models from checkpoints without executing code from them.

Without ``--trust-checkpoint`` only tensors and plain settings are loaded. Settings could still
execute code: fairseq evaluates some strings when it builds a model, and opens files that others
name. Therefore a string with brackets must be a literal, as a call needs brackets, and only the
models and tasks in :data:`MODELS` and :data:`TASKS` are built.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import logging
import pickle
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from fairseq_kerbs.output_layers import OutputLayer, SoftmaxOutputLayer
from fairseq_kerbs.torch_compat import load, load_plain
from fairseq_kerbs.utils.dictionaries import digest, digest_kept
from fairseq_kerbs.utils.errors import UserError, reason_of
from fairseq_kerbs.utils.files import check_whole, damaged, read_lines

MODELS = ("transformer", "transformer_lm", "lstm", "lstm_lm")
"""fairseq's models that are built without trust, with all of their presets, besides ours."""
TASKS = ("translation", "language_modeling")
"""Tasks that are set up without trust."""
READ = "decoder.embed_tokens.weight"
"""Input embeddings of fairseq's decoders."""
STOCK_WEIGHTS = (
    "decoder.output_projection.weight",
    "decoder.fc_out.weight",
    "decoder.embed_out",
    READ,
)
"""Output embeddings of fairseq's decoders. The last is for tied embeddings."""

_OBJECT = re.compile(r"(?:GLOBAL|class) ([\w.]+)")  # in torch's message on an unsafe object
# settings with a path, which may have brackets
_PATH = re.compile(r".*(data|dir|file|path|from_model|continue_once)")
# replaced settings, by the end of their name
_REPLACED = {
    "embed_path": None,  # the embeddings are in the checkpoint
    "eval_bleu": False,  # would build a tokenizer from the settings
    "use_plasma_view": False,  # would start a server
    "job_logging_cfg": None,  # of fairseq-hydra-train; nothing reads it
}


def read_checkpoint(path: Path, trust: bool = False) -> dict[str, Any]:
    """Read a checkpoint of fairseq-train onto the CPU, without settings that open files.

    With ``trust``, objects that can execute code are loaded, too. A UserError is raised if the file
    is missing, damaged or no checkpoint, has parameters that are not finite, or, without ``trust``,
    has content that could execute code.
    """
    logging.getLogger("fairseq").setLevel(logging.WARNING)  # no sizes of dictionaries and the like
    state = _load(path, trust)
    content = state if isinstance(state, dict) else {}
    model, config, args = (content.get(name) for name in ("model", "cfg", "args"))
    settings = isinstance(config, Mapping) or isinstance(args, argparse.Namespace)
    tensors = isinstance(model, dict) and all(isinstance(value, Tensor) for value in model.values())
    if not (model and tensors and settings):
        raise UserError(f"{path} holds no model of fairseq-train; name one of its checkpoints")
    for name, value in model.items():
        # fairseq uses only the dtype of these buffers
        if not (name.endswith("._float_tensor") or value.isfinite().all()):
            raise UserError(
                f"{path}: {name} holds NaN or infinity, so its training had diverged; take an "
                "earlier checkpoint of that training"
            )
    if args is not None and not trust:  # hydra would parse them
        raise _refusal(path, "settings of a fairseq before 0.10,", args)
    try:
        names = [name for name in ("cfg", "args") if name in state]
        return state | {name: _plain(path, name, state[name], trust) for name in names}
    except RecursionError:  # a pickle can have circular references
        raise damaged(path) from None


def _load(path: Path, trust: bool) -> Any:
    if not path.is_file():
        raise UserError(f"there is no checkpoint {path}; name a file that fairseq-train wrote")
    check_whole(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about objects that are refused below
            return load(path, weights_only=False) if trust else load_plain(path, _plain_classes())
    except pickle.UnpicklingError as error:
        unsafe = _OBJECT.search(str(error))
        if trust or not unsafe:
            raise damaged(path) from None
        raise _refusal(path, "object", unsafe[1]) from None
    except Exception:  # a damaged file can cause any error
        raise damaged(path) from None


def _plain_classes() -> list[Any]:
    """Safe classes: settings, and arrays (of --eval-bleu) as numpy 1 and numpy 2 name them."""
    import numpy as np

    arrays = getattr(np, "_core" if hasattr(np, "_core") else "core").multiarray
    plain: list[Any] = [argparse.Namespace, np.ndarray, np.dtype]
    for name, core in product(("_reconstruct", "scalar"), ("_core", "core")):
        plain.append((getattr(arrays, name), f"numpy.{core}.multiarray.{name}"))
    kinds = ("int64", "int32", "float64", "float32", "bool")
    return plain + [type(np.dtype(kind)) for kind in kinds]


def _plain(path: Path, name: str, value: Any, trust: bool) -> Any:
    """A setting with :data:`_REPLACED` values. Without ``trust``, unsafe values are refused."""
    for end, replacement in _REPLACED.items():
        if name.endswith(end):
            return replacement
    if isinstance(value, argparse.Namespace):
        return argparse.Namespace(**_plain(path, name, vars(value), trust))
    if isinstance(value, dict):
        return {key: _plain(path, str(key), item, trust) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(path, name, item, trust) for item in value]
    if not trust and isinstance(value, str) and not _harmless(name, value):
        raise _refusal(path, f"setting {name} =", value)
    return value


def _harmless(name: str, value: str) -> bool:
    """Whether the evaluation of a setting calls nothing, and it has no reference (``${…}``)."""
    if "${" in value:
        return False
    if _PATH.fullmatch(name) or not set(value) & set("([{"):
        return True
    for read in (ast.literal_eval, json.loads):
        try:
            read(value)
            return True
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            pass
    return False


def _refusal(path: Path, kind: str, value: Any) -> UserError:
    return UserError(
        f"{path} has the {kind} {str(value)[:60]!r}, which could execute code when it is read; if "
        "you trust its source, add --trust-checkpoint"
    )


@contextmanager
def as_user_error(path: Path, fault: str, advice: str) -> Iterator[None]:
    """Turn exceptions, which fairseq raises for wrong settings, into a UserError about a file."""
    try:
        yield
    except UserError as error:  # of a model of fairseq_kerbs
        raise UserError(str(error) if str(path) in str(error) else f"{path}: {error}") from None
    except Exception as error:
        raise UserError(f"{path} {fault} ({reason_of(error)}); {advice}") from error


def settings_of(path: Path, state: dict[str, Any], data: Path | None = None) -> Any:
    """Settings of a checkpoint (:func:`read_checkpoint`) as a configuration of fairseq.

    ``data`` replaces the folder of the training. A UserError is raised if there are no settings.
    """
    from fairseq import checkpoint_utils
    from fairseq.dataclass.utils import omegaconf_no_object_check, overwrite_args_by_name
    from omegaconf import OmegaConf

    import fairseq_kerbs.criterions
    import fairseq_kerbs.models  # noqa: F401  (both register)

    with as_user_error(
        path, "has no settings of fairseq", "take the file that fairseq-train wrote"
    ):
        state = dict(state)
        if state.get("cfg") is not None:
            with omegaconf_no_object_check():  # it contains namespaces
                state["cfg"] = OmegaConf.create(state["cfg"])
        config = checkpoint_utils._upgrade_state_dict(state)["cfg"]
        for part in (config.model, config.task):  # raises unless both have settings
            vars(part) if isinstance(part, argparse.Namespace) else part.keys()
        if data is not None:
            overwrite_args_by_name(config, {"data": str(data)})
    return config


def registered_model(settings: Any) -> tuple[Any, bool]:
    """Name of a model in fairseq's registry, and whether it belongs to fairseq_kerbs."""
    from fairseq.models import ARCH_MODEL_NAME_REGISTRY, MODEL_REGISTRY

    arch = getattr(settings, "_name", None) or getattr(settings, "arch", None)
    if not isinstance(arch, str):
        return str(arch), False
    name = ARCH_MODEL_NAME_REGISTRY.get(arch, arch)
    module = str(getattr(MODEL_REGISTRY.get(name), "__module__", ""))
    return name, module.startswith("fairseq_kerbs.")


def load_model_and_task(
    path: Path, data: Path | None = None, *, trust: bool = False, any_model: bool = False
) -> tuple[Any, Any]:
    """Load the model of a checkpoint in evaluation mode, and its task, by fairseq's functions.

    ``data`` is a folder of binarized data with the dictionaries of the training. By default the
    task has dictionaries of placeholder words. With ``any_model``, models of fairseq are loaded,
    too. For ``trust`` and UserErrors see :func:`read_checkpoint` and :func:`build`.
    """
    state = read_checkpoint(path, trust)
    return build(path, state, settings_of(path, state, data), data, trust, any_model)


def build(
    path: Path, state: Any, config: Any, data: Path | None, trust: bool, any_model: bool
) -> tuple[Any, Any]:
    """As :func:`load_model_and_task`, from :func:`read_checkpoint` and :func:`settings_of`.

    A UserError is raised if the folder has no data, the kind of model or task is refused, or the
    parameters do not fit the data or the settings.
    """
    from fairseq import models, tasks

    from fairseq_kerbs.training.guards import leave_out_copies

    name, ours = registered_model(config.model)
    if not (ours or any_model):
        raise UserError(
            f"{path} holds no model of fairseq_kerbs; name a checkpoint of one of its architectures"
        )
    if not (ours or trust or name in MODELS):
        raise _refusal(path, "architecture", name)
    for name in (getattr(config.task, part, None) for part in ("_name", "task")):
        if not (trust or name is None or name in TASKS):
            raise _refusal(path, "task", name)
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


def _placeholder_task(path: Path, tensors: dict[str, Tensor], settings: Any, ours: bool) -> Any:
    keys = ("decoder.output.inventory.log_prob", "decoder.output.weight") if ours else STOCK_WEIGHTS
    sizes = [len(tensors[key]) for key in keys if key in tensors]
    if not sizes:
        raise UserError(f"{path} has no complete output layer; take a complete model")
    inputs = [len(tensors[k]) for k in ("encoder.embed_tokens.weight", READ) if k in tensors]
    kinds = ("self", "future", "past")
    targets = [kind for kind in kinds if getattr(settings, f"{kind}_target", False)]
    return building_task([*inputs, *sizes][0], sizes[0], targets or ["future"])


def building_task(source: int, target: int, targets: list[str]) -> SimpleNamespace:
    """The attributes of a task that are needed to build a model, with placeholder words.

    ``source`` and ``target`` are sizes of dictionaries. ``targets`` are those of a language model,
    "self", "future" or "past".
    """
    from fairseq.data import Dictionary

    dictionaries = Dictionary(), Dictionary()
    for entries, dictionary in zip((source, target), dictionaries):
        for number in range(entries - len(dictionary)):
            dictionary.add_symbol(f"word{number}")
    return SimpleNamespace(
        source_dictionary=dictionaries[0],
        **dict.fromkeys(("target_dictionary", "dictionary", "output_dictionary"), dictionaries[1]),
        targets=targets,
        **dict.fromkeys(("optimizer_step", "train_step", "begin_epoch")),  # not used
    )


def load_layer(
    path: Path, dictionary: Path | None = None, trust: bool = False, any_model: bool = False
) -> tuple[OutputLayer, Any]:
    """Load the output layer and target dictionary of a checkpoint.

    ``dictionary`` is a ``dict.LANGUAGE.txt``, by default that of :func:`remembered_dictionary`. For
    ``trust`` and ``any_model`` see :func:`load_model_and_task`. A UserError is raised if the model
    or the dictionary cannot be read, or they do not match.
    """
    state = read_checkpoint(path, trust)
    config = settings_of(path, state)
    layer = model_layer(build(path, state, config, None, trust, any_model)[0], path)
    file = dictionary or remembered_dictionary(path, config)
    return layer, load_dictionary(file, layer.vocab_size, state)


def model_layer(model: Any, path: Path) -> OutputLayer:
    """Output layer of a model. Output embeddings of fairseq's models become a softmax layer.

    Biases of fairseq's models, which depend on word frequencies, are left out. A model without an
    output embedding for each word raises a UserError that names its ``path``.
    """
    layer, tensors = getattr(model.decoder, "output", None), model.state_dict()
    if isinstance(layer, OutputLayer):
        return layer
    tied = getattr(model.decoder, "share_input_output_embed", False)
    weights = [tensors[key] for key in STOCK_WEIGHTS if key in tensors and (tied or key != READ)]
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
