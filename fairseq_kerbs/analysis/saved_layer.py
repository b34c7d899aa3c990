"""The output layer of a checkpoint, without any data.

A checkpoint holds the layer's parameters and the flags that describe it. It does not hold the
dictionary: that is read from a file, or from the folder that the model was trained from, if it is
still there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fairseq_kerbs.checkpoints import read_checkpoint, upgraded
from fairseq_kerbs.corpora.files import read_lines
from fairseq_kerbs.errors import UserError
from fairseq_kerbs.experiments import target_language
from fairseq_kerbs.output_layers import OutputLayer

_PREFIX = "decoder.output."


def load_layer(
    checkpoint: Path, dictionary: Path | None = None, trust: bool = False
) -> tuple[OutputLayer, Any]:
    """Rebuild the output layer of a checkpoint.

    Args:
        checkpoint: a file of fairseq-train.
        dictionary: a ``dict.LANGUAGE.txt``; by default the target dictionary in the folder that
            the checkpoint says it was trained from.
        trust: see :func:`read_checkpoint`.

    Returns:
        layer in evaluation mode, and fairseq's dictionary of the target side.

    Raises:
        UserError: see :func:`read_checkpoint`; the checkpoint is no model of ours, or there is no
            dictionary or one of another size.
    """
    state = read_checkpoint(checkpoint, trust)
    config, tensors = _settings(state), state["model"]
    own = {
        name.removeprefix(_PREFIX): value
        for name, value in tensors.items()
        if name.startswith(_PREFIX)
    }
    if "inventory.word_of_sense" not in own:
        raise UserError(f"{checkpoint} holds no model of fairseq_kerbs")
    words = own["inventory.log_prob"].shape[0]
    symbols = load_dictionary(dictionary or remembered_dictionary(checkpoint, config), words)
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


def _settings(state: dict[str, Any]) -> Any:
    """Flags of the training; ``args`` are those of a fairseq before 0.10."""
    import fairseq_kerbs.criterions
    import fairseq_kerbs.models  # noqa: F401  (registers what the flags name)

    return upgraded(state, {})["cfg"]


def remembered_dictionary(checkpoint: Path, config: Any, data: Path | None = None) -> Path:
    """The target dictionary in a folder of data, by default the first one that it was trained from.

    Raises:
        UserError: it is not there.
    """
    named = str(getattr(config.task, "data", "") if data is None else data)
    folder, language = Path(named.split(":")[0]), getattr(config.task, "target_lang", None)
    path = folder / (f"dict.{language}.txt" if language else "dict.txt")
    if not language and not path.is_file() and list(folder.glob("dict.*.txt")):
        path = folder / f"dict.{target_language(named, ())}.txt"
    if not path.is_file():
        raise UserError(
            f"{checkpoint} does not hold its dictionary, and {path} is not there; give "
            "--data BIN or --dict FILE"
        )
    return path


def load_dictionary(path: Path, words: int) -> Any:
    """fairseq's dictionary of so many words.

    Raises:
        UserError: the file is missing, no dictionary, or of another size.
    """
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
