"""What a checkpoint holds: its output layer without any data, or the whole model of any kind.

A checkpoint holds the layer's parameters and the flags that describe it. It does not hold the
dictionary: that is read from a file, or from the folder that the model was trained from, if it is
still there.
"""

from __future__ import annotations

import logging
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from torch import Tensor

from fairseq_kerbs.corpora.files import read_lines
from fairseq_kerbs.errors import UserError
from fairseq_kerbs.experiments import target_language
from fairseq_kerbs.output_layers import OutputLayer

_PREFIX = "decoder.output."


def load_layer(checkpoint: Path, dictionary: Path | None = None) -> tuple[OutputLayer, Any]:
    """Rebuild the output layer of a checkpoint.

    Args:
        checkpoint: a file of fairseq-train. It is a pickle: open only files that you trust.
        dictionary: a ``dict.LANGUAGE.txt``; by default the target dictionary in the folder that
            the checkpoint says it was trained from.

    Returns:
        layer in evaluation mode, and fairseq's dictionary of the target side.

    Raises:
        UserError: a file is missing, the checkpoint is no model of ours, or there is no dictionary
            or one of another size.
    """
    config, tensors = _read_checkpoint(checkpoint)
    own = {
        name.removeprefix(_PREFIX): value
        for name, value in tensors.items()
        if name.startswith(_PREFIX)
    }
    if "inventory.word_of_sense" not in own:
        raise UserError(f"{checkpoint} holds no model of fairseq_kerbs")
    words = own["inventory.log_prob"].shape[0]
    symbols = _load_dictionary(dictionary or _remembered_dictionary(checkpoint, config), words)
    from fairseq_kerbs.models.options import (
        KerbsConfig,
        as_namespace,
        build_output_layer,
        fill_defaults,
    )

    flags = as_namespace(config.model)
    fill_defaults(flags, KerbsConfig)
    try:
        layer = build_output_layer(flags, words, own["weight"].shape[1])
        layer.load_state_dict(own, strict=False)
    except (ValueError, RuntimeError) as error:
        raise UserError(f"{checkpoint}: its flags do not describe its output layer: {error}") from (
            error
        )
    return layer.eval(), symbols


def _read_checkpoint(checkpoint: Path) -> tuple[Any, dict[str, Tensor]]:
    """Flags and parameters."""
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf

    state = _load_state(checkpoint)
    config = state.get("cfg")
    if config is None:
        config = convert_namespace_to_omegaconf(state["args"])
    return config, state["model"]


def _load_state(checkpoint: Path, overrides: dict[str, Any] | None = None) -> dict[str, Any]:
    """All that fairseq-train saved.

    Raises:
        UserError: there is no such file, or fairseq-train did not write it.
    """
    if not checkpoint.is_file():
        raise UserError(f"there is no checkpoint {checkpoint}")
    logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)
    from fairseq import checkpoint_utils

    import fairseq_kerbs.criterions
    import fairseq_kerbs.models  # noqa: F401  (registers what the flags name)

    try:
        state: dict[str, Any] = checkpoint_utils.load_checkpoint_to_cpu(str(checkpoint), overrides)
        if not isinstance(state["model"], dict):
            raise TypeError("its parameters are no dictionary")
    except (OSError, RuntimeError, EOFError, KeyError, TypeError, UnpicklingError) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(
            f"{checkpoint} is no whole checkpoint of fairseq-train: {reason[0]}"
        ) from None
    return state


def load_any_model(checkpoint: Path, data: Path) -> tuple[Any, Any]:
    """Load a checkpoint of any fairseq model and its task.

    Args:
        checkpoint: a file of fairseq-train. It is a pickle: open only files that you trust.
        data: folder of binarized data with the checkpoint's dictionaries.

    Returns:
        model in evaluation mode, and task.

    Raises:
        UserError: a file is missing, or the checkpoint does not fit the data.
    """
    if not data.is_dir():
        raise UserError(f"there is no folder {data}; --data names what fairseq-preprocess wrote")
    state = _load_state(checkpoint, {"data": str(data)})
    from fairseq import checkpoint_utils

    try:
        models, _, task = checkpoint_utils.load_model_ensemble_and_task(
            [str(checkpoint)], state=state
        )
    except RuntimeError as error:
        raise UserError(
            f"{checkpoint} does not fit the dictionaries in {data}: {str(error).splitlines()[0]}"
        ) from None
    return models[0].eval(), task


def _remembered_dictionary(checkpoint: Path, config: Any) -> Path:
    """The target dictionary in the first folder that the model was trained from."""
    data = str(getattr(config.task, "data", ""))
    folder, language = Path(data.split(":")[0]), getattr(config.task, "target_lang", None)
    path = folder / (f"dict.{language}.txt" if language else "dict.txt")
    if not language and not path.is_file() and list(folder.glob("dict.*.txt")):
        path = folder / f"dict.{target_language(data, ())}.txt"
    if not path.is_file():
        raise UserError(
            f"{checkpoint} does not hold its dictionary, and {path} is not there; give "
            "--data BIN or --dict FILE"
        )
    return path


def _load_dictionary(path: Path, words: int) -> Any:
    from fairseq.data import Dictionary

    read_lines(path)  # missing files and wrong encodings become one sentence
    try:
        dictionary = Dictionary.load(str(path))
    except (ValueError, RuntimeError) as error:
        raise UserError(f"--dict: {path} is no dictionary of fairseq ({error})") from None
    if len(dictionary) != words:
        raise UserError(
            f"--dict: {path} has {len(dictionary)} words, the checkpoint {words}; give the "
            "dictionary of the target language that it was trained with"
        )
    return dictionary
