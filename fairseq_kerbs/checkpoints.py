"""Models of checkpoints, in commands that only read them: nothing that a file holds is run.

Without ``--trust-checkpoint`` tensors and plain settings alone are loaded. Settings could still run
a program: fairseq evaluates some of their strings when it builds a model, and opens files that
others name. So a string with brackets, without which nothing is called, must be a literal, and
only those models and tasks are built that do nothing else than their settings say.
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
"""fairseq's models that are built without trust, each with all of its presets, besides ours."""
TASKS = ("translation", "language_modeling")
"""Tasks that are set up without trust."""
READ = "decoder.embed_tokens.weight"
STOCK_WEIGHTS = (
    *("decoder.output_projection.weight", "decoder.fc_out.weight", "decoder.embed_out"),
    READ,
)
"""Where fairseq's own decoders keep their output vectors; the last where they are tied."""

_OBJECT = re.compile(r"(?:GLOBAL|class) ([\w.]+)")  # in torch's message on what it refuses
_PATH = re.compile(r".*(data|dir|file|path)")  # settings that name a place, which may have brackets
# by the end of a setting's name: its value in a model that is only read
_SET_ASIDE = {
    "embed_path": None,  # the vectors from there were trained on: they are in the checkpoint
    "eval_bleu": False,  # would build a tokenizer that the settings describe
    "use_plasma_view": False,  # would start a server
}


# ------------------------------------------------------------------ what a file holds


def read_checkpoint(path: Path, trust: bool = False) -> dict[str, Any]:
    """The content of a checkpoint of fairseq-train, on the CPU; settings that open files are set
    aside. With ``trust`` also of one that holds objects that run code when they are loaded.

    Raises a UserError if the file is missing, damaged, no such checkpoint, holds parameters that
    are not finite, or, without ``trust``, anything that could run a program.
    """
    logging.getLogger("fairseq").setLevel(logging.WARNING)  # no sizes of dictionaries and the like
    state = _load(path, trust)
    model, config, args = (
        state.get(name) if isinstance(state, dict) else None for name in ("model", "cfg", "args")
    )
    settings = isinstance(config, Mapping) or isinstance(args, argparse.Namespace)
    tensors = isinstance(model, dict) and all(isinstance(each, Tensor) for each in model.values())
    if not (model and tensors and settings):
        raise UserError(f"{path} holds no model of fairseq-train; name one of its checkpoints")
    for name, value in model.items():
        # fairseq reads of some buffers the type alone
        if not (name.endswith("._float_tensor") or value.isfinite().all()):
            raise UserError(
                f"{path}: {name} holds NaN or infinity, so its training had diverged; take an "
                "earlier checkpoint of that training"
            )
    if args is not None and not trust:  # hydra would read them
        raise _refusal(path, "settings of a fairseq before 0.10,", args)
    try:
        held = [name for name in ("cfg", "args") if name in state]
        return state | {name: _plain(path, name, state[name], trust) for name in held}
    except RecursionError:  # a pickle can hold circles
        raise damaged(path) from None


def _load(path: Path, trust: bool) -> Any:
    """What a file of ``torch.save`` holds."""
    if not path.is_file():
        raise UserError(f"there is no checkpoint {path}; name a file that fairseq-train wrote")
    check_whole(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about what is refused below
            return load(path, weights_only=False) if trust else load_plain(path, _plain_classes())
    except pickle.UnpicklingError as error:
        refused = _OBJECT.search(str(error))
        if trust or not refused:
            raise damaged(path) from None
        raise _refusal(path, "object", refused[1]) from None
    except Exception:  # whatever a damaged file, or another program's, makes of the reader
        raise damaged(path) from None


def _plain_classes() -> list[Any]:
    """What a checkpoint has beside tensors: settings, and arrays of numpy (figures of --eval-bleu),
    whose functions numpy 2 has under another name."""
    import numpy as np

    arrays = getattr(np, "_core" if hasattr(np, "_core") else "core").multiarray
    plain: list[Any] = [argparse.Namespace, np.ndarray, np.dtype]
    for name, core in product(("_reconstruct", "scalar"), ("_core", "core")):
        plain.append((getattr(arrays, name), f"numpy.{core}.multiarray.{name}"))
    kinds = ("int64", "int32", "float64", "float32", "bool")
    return plain + [type(np.dtype(kind)) for kind in kinds]


def _plain(path: Path, name: str, value: Any, trust: bool) -> Any:
    """A setting without what opens files, also within others and in lists; a UserError where it
    could run a program, unless it is trusted."""
    for end, plain in _SET_ASIDE.items():
        if name.endswith(end):
            return plain
    if isinstance(value, argparse.Namespace):
        return argparse.Namespace(**_plain(path, name, vars(value), trust))
    if isinstance(value, dict):
        return {key: _plain(path, str(key), each, trust) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(path, name, each, trust) for each in value]
    if not trust and isinstance(value, str) and not _harmless(name, value):
        raise _refusal(path, f"setting {name} =", value)
    return value


def _harmless(name: str, value: str) -> bool:
    """Whether to evaluate a setting calls nothing, and it refers to no other (``${…}``)."""
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


def _refusal(path: Path, what: str, value: Any) -> UserError:
    return UserError(
        f"{path} has the {what} {str(value)[:60]!r}, which could run a program when it is read; if "
        "you trust its maker, add --trust-checkpoint"
    )


# ------------------------------------------------------------------ the model


@contextmanager
def one_sentence(path: Path, wrong: str, advice: str) -> Iterator[None]:
    """Turn what fairseq raises about settings and sizes, errors of every kind, into a UserError."""
    try:
        yield
    except UserError as error:  # of our own models' check
        raise UserError(str(error) if str(path) in str(error) else f"{path}: {error}") from None
    except Exception as error:
        raise UserError(f"{path} {wrong} ({reason_of(error)}); {advice}") from error


def settings_of(path: Path, state: dict[str, Any], data: Path | None = None) -> Any:
    """Settings of what :func:`read_checkpoint` gave, as a configuration of fairseq, with ``data``
    in the place of the folder of its training; a UserError if there are none."""
    from fairseq import checkpoint_utils
    from fairseq.dataclass.utils import omegaconf_no_object_check, overwrite_args_by_name
    from omegaconf import OmegaConf

    import fairseq_kerbs.criterions
    import fairseq_kerbs.models  # noqa: F401  (both register)

    with one_sentence(path, "has no settings of fairseq", "take the file that fairseq-train wrote"):
        state = dict(state)
        if state.get("cfg") is not None:
            with omegaconf_no_object_check():  # it holds namespaces
                state["cfg"] = OmegaConf.create(state["cfg"])
        config = checkpoint_utils._upgrade_state_dict(state)["cfg"]
        for part in (config.model, config.task):  # which all that follows takes for granted
            vars(part) if isinstance(part, argparse.Namespace) else part.keys()
        if data is not None:
            overwrite_args_by_name(config, {"data": str(data)})
    return config


def registered_model(settings: Any) -> tuple[Any, bool]:
    """The name of a model in fairseq's registry by its settings, and whether it is one of ours."""
    from fairseq.models import ARCH_MODEL_NAME_REGISTRY, MODEL_REGISTRY

    given = getattr(settings, "_name", None) or getattr(settings, "arch", None)
    if not isinstance(given, str):
        return str(given), False
    name = ARCH_MODEL_NAME_REGISTRY.get(given, given)
    module = str(getattr(MODEL_REGISTRY.get(name), "__module__", ""))
    return name, module.startswith("fairseq_kerbs.")


def load_model_and_task(
    path: Path, data: Path | None = None, *, trust: bool = False, any_model: bool = False
) -> tuple[Any, Any]:
    """The model of a checkpoint in evaluation mode, and its task, by fairseq's own functions.

    ``data`` is a folder of binarized data with the dictionaries that the model was trained with;
    without, the task has made-up words. With ``any_model`` it may be none of fairseq_kerbs. Raises
    what :func:`read_checkpoint` and :func:`build` raise.
    """
    state = read_checkpoint(path, trust)
    return build(path, state, settings_of(path, state, data), data, trust, any_model)


def build(
    path: Path, state: Any, config: Any, data: Path | None, trust: bool, any_model: bool
) -> tuple[Any, Any]:
    """:func:`load_model_and_task` of what :func:`read_checkpoint` and :func:`settings_of` gave. A
    UserError if there are no such data, or the model is none of ours, could do more than its
    settings say, or does not fit the data or its own settings."""
    from fairseq import models, tasks

    name, ours = registered_model(config.model)
    if not (ours or any_model):
        raise UserError(
            f"{path} holds no model of fairseq_kerbs; name a checkpoint of one of its architectures"
        )
    if not (ours or trust or name in MODELS):
        raise _refusal(path, "architecture", name)
    for given in (getattr(config.task, part, None) for part in ("_name", "task")):
        if not (trust or given is None or given in TASKS):
            raise _refusal(path, "task", given)
    if data is not None and not any(data.glob("dict*.txt")):
        raise UserError(
            f"--data {data} is no folder with a dict.*.txt; name the folder that "
            "fairseq-preprocess wrote"
        )
    fault = f"does not fit --data {data}" if data else "has not the parameters of its settings"
    with one_sentence(path, fault, "use the data and the file of the model's training"):
        if data is None:
            task = _made_up_task(path, state["model"], config.task, ours)
            model = models.build_model(config.model, task)
        else:
            task = tasks.setup_task(config.task)
            task.load_state_dict(state.get("task_state") or {})
            model = task.build_model(config.model)
        model.load_state_dict(copy.copy(state["model"]), strict=True, model_cfg=config.model)
    return model.eval(), task


def _made_up_task(path: Path, tensors: dict[str, Tensor], settings: Any, ours: bool) -> Any:
    keys = ("decoder.output.inventory.log_prob", "decoder.output.weight") if ours else STOCK_WEIGHTS
    sizes = [len(tensors[key]) for key in keys if key in tensors]
    if not sizes:
        raise UserError(f"{path} has no whole output layer; take a whole model")
    read = [len(tensors[k]) for k in ("encoder.embed_tokens.weight", READ) if k in tensors]
    kinds = ("self", "future", "past")
    targets = [kind for kind in kinds if getattr(settings, f"{kind}_target", False)]
    return building_task([*read, *sizes][0], sizes[0], targets or ["future"])


def building_task(source: int, target: int, targets: list[str]) -> SimpleNamespace:
    """As much of a task as it takes to build a model: dictionaries of so many made-up words.
    ``targets`` are what a language model predicts: "future" or "self"."""
    from fairseq.data import Dictionary

    dictionaries = Dictionary(), Dictionary()
    for entries, dictionary in zip((source, target), dictionaries):
        for number in range(entries - len(dictionary)):
            dictionary.add_symbol(f"word{number}")
    return SimpleNamespace(
        source_dictionary=dictionaries[0],
        **dict.fromkeys(("target_dictionary", "dictionary", "output_dictionary"), dictionaries[1]),
        targets=targets,
        **dict.fromkeys(("optimizer_step", "train_step", "begin_epoch")),  # it trains nothing
    )


# ------------------------------------------------------------------ its output layer and words


def load_layer(
    path: Path, dictionary: Path | None = None, trust: bool = False, any_model: bool = False
) -> tuple[OutputLayer, Any]:
    """The output layer and target dictionary of a model of ours (``any_model``: or of fairseq's).

    The dictionary is read from a ``dict.LANGUAGE.txt``, by default :func:`remembered_dictionary`.
    Raises what :func:`load_model_and_task` and :func:`load_dictionary` raise.
    """
    state = read_checkpoint(path, trust)
    config = settings_of(path, state)
    layer = model_layer(build(path, state, config, None, trust, any_model)[0], path)
    named = dictionary or remembered_dictionary(path, config)
    return layer, load_dictionary(named, layer.vocab_size, state)


def model_layer(model: Any, path: Path) -> OutputLayer:
    """The output layer of a model of ours, or the output vectors of another as a softmax layer; a
    UserError if there is none for each word. A bias, which tells a word's frequency, is left out.
    """
    layer, tensors = getattr(model.decoder, "output", None), model.state_dict()
    if isinstance(layer, OutputLayer):
        return layer
    tied = getattr(model.decoder, "share_input_output_embed", False)
    vectors = [tensors[key] for key in STOCK_WEIGHTS if key in tensors and (tied or key != READ)]
    if not vectors or any(name.startswith("decoder.adaptive_softmax.") for name in tensors):
        raise UserError(
            f"{path}: its output layer has no vector for each word (an adaptive softmax has none)"
        )
    stock = SoftmaxOutputLayer(vectors[0].shape[1], vectors[0].shape[0])
    stock.weight.data = vectors[0].detach().float()  # [V, d]
    return stock.eval()


def remembered_dictionary(path: Path, config: Any, data: Path | None = None) -> Path:
    """The target dictionary in a folder of data, by default the first one that a checkpoint was
    trained from; a UserError if it is not there."""
    from fairseq.data.data_utils import infer_language_pair

    named: Any = getattr(config.task, "data", "") if data is None else data
    folder = Path(str(named).split(":")[0])
    language = getattr(config.task, "target_lang", None)
    if not language and folder.is_dir():
        language = infer_language_pair(str(folder))[1]  # None: the data of a language model
    file = folder / (f"dict.{language}.txt" if language else "dict.txt")
    if not file.is_file():
        where = f"{path} does not hold its dictionary, and" if data is None else "--data:"
        raise UserError(f"{where} {file} is not there; give --data BIN or --dict FILE")
    return file


def load_dictionary(path: Path, words: int, state: dict[str, Any]) -> Any:
    """The target dictionary of a checkpoint, with so many words; a UserError if the file is
    missing, no dictionary, or another one."""
    from fairseq.data import Dictionary

    read_lines(path)  # missing files and wrong encodings become one sentence
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
