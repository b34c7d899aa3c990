"""The output layer of a checkpoint, without any data.

A checkpoint holds the layer's parameters and the flags that describe it. It does not hold the
dictionary: that is read from a file, or from the folder that the model was trained from, if it is
still there.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from fairseq_kerbs.checkpoints import read_checkpoint, set_aside, settings_of
from fairseq_kerbs.output_layers import OutputLayer, SoftmaxOutputLayer
from fairseq_kerbs.tables.experiments import language_pair
from fairseq_kerbs.utils.dictionaries import digest, digest_kept
from fairseq_kerbs.utils.errors import ProgramEnd, UserError, reason_of
from fairseq_kerbs.utils.files import read_lines

STOCK_WEIGHTS = ("output_projection.weight", "fc_out.weight", "embed_out")
"""Where fairseq's own decoders keep their output vectors."""


def load_layer(
    checkpoint: Path,
    dictionary: Path | None = None,
    trust: bool = False,
    *,
    any_model: bool = False,
) -> tuple[OutputLayer, Any]:
    """Rebuild the output layer of a checkpoint.

    Args:
        checkpoint: a file of fairseq-train.
        dictionary: a ``dict.LANGUAGE.txt``, by default :func:`remembered_dictionary`.
        trust: see :func:`read_checkpoint`.
        any_model: also one of fairseq's own, see :func:`stock_layer`.

    Returns:
        layer in evaluation mode, and fairseq's dictionary of the target side.

    Raises:
        UserError: see :func:`read_checkpoint`; the checkpoint is no model of ours (with
            ``any_model``: has no output vectors), or there is no dictionary or one of another size.
    """
    state = read_checkpoint(checkpoint, trust)
    config, tensors = settings_of(checkpoint, state), state["model"]
    if any(name.startswith("decoder.output.") for name in tensors):
        weight = tensors.get("decoder.output.weight")
        if weight is None or weight.ndim != 2:
            raise UserError(f"{checkpoint} has no whole output layer; take a whole model")
        words = len(tensors.get("decoder.output.inventory.log_prob", weight))
        layer = rebuild_model(checkpoint, config, tensors, words)[1].decoder.output
    elif any_model:
        tied = ("share_decoder_input_output_embed", "share_all_embeddings")
        shared = any(getattr(config.model, flag, False) for flag in tied)
        layer = stock_layer(tensors, shared, checkpoint)
    else:
        raise UserError(f"{checkpoint} holds no model of fairseq_kerbs")
    path = dictionary or remembered_dictionary(checkpoint, config)
    return layer, load_dictionary(path, layer.vocab_size, state)


def rebuild_model(
    checkpoint: Path, config: Any, tensors: dict[str, Tensor], words: int
) -> tuple[Any, Any]:
    """A model by fairseq's own functions, which know what older versions of fairseq wrote.

    Args:
        checkpoint: where it comes from, for messages.
        config: its settings.
        tensors: its parameters.
        words: entries of its target dictionary.

    Returns:
        see :func:`building_task`, and the model in evaluation mode.

    Raises:
        UserError: these are no settings and parameters of one model.
    """
    from fairseq.models import build_model

    try:
        keys = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")
        sizes = [len(tensors[key]) for key in keys if key in tensors]
        kinds = ("self", "future", "past")
        targets = [kind for kind in kinds if getattr(config.task, f"{kind}_target", False)]
        task = building_task([*sizes, words][0], words, targets or ["future"])
        set_aside(config.model)
        model = build_model(config.model, task)
        model.load_state_dict(copy.copy(tensors), strict=True, model_cfg=config.model)
    except ProgramEnd as error:
        raise UserError(f"{checkpoint}: {error.sentence}") from None
    except Exception as error:  # what fairseq raises about settings and sizes is of every kind
        raise UserError(
            f"{checkpoint} does not hold the model that its settings describe "
            f"({reason_of(error)}); take the file that fairseq-train wrote"
        ) from error
    return task, model.eval()


def building_task(source: int, target: int, targets: list[str]) -> SimpleNamespace:
    """As much of a task as it takes to build a model: dictionaries of so many made-up words.

    ``targets`` are what a language model predicts: "future" or "self".
    """
    from fairseq.data import Dictionary

    dictionaries = Dictionary(), Dictionary()
    for entries, dictionary in zip((source, target), dictionaries, strict=True):
        for number in range(entries - len(dictionary)):
            dictionary.add_symbol(f"word{number}")
    return SimpleNamespace(
        source_dictionary=dictionaries[0],
        **dict.fromkeys(("target_dictionary", "dictionary", "output_dictionary"), dictionaries[1]),
        targets=targets,
        **dict.fromkeys(("optimizer_step", "train_step")),  # it trains nothing
    )


def model_layer(model: Any, checkpoint: Path) -> OutputLayer:
    """The output layer of a loaded model, ours or (see :func:`stock_layer`) one of fairseq's."""
    layer = getattr(model.decoder, "output", None)
    if isinstance(layer, OutputLayer):
        return layer
    tied = bool(getattr(model.decoder, "share_input_output_embed", False))
    return stock_layer(model.state_dict(), tied, checkpoint)


def stock_layer(tensors: Mapping[str, Tensor], tied: bool, checkpoint: Path) -> OutputLayer:
    """The output vectors of one of fairseq's own models as a softmax layer, in evaluation mode.

    A bias (fairseq's LSTM has one) is left out: it says how frequent a word is, not what it means.

    Args:
        tensors: parameters of the model, by name.
        tied: whether its output vectors may be its input embeddings.
        checkpoint: where they come from, for the message.

    Raises:
        UserError: there is no output vector for each word.
    """
    names = [*STOCK_WEIGHTS, "embed_tokens.weight"] if tied else [*STOCK_WEIGHTS]
    found = [tensors[key] for name in names if (key := f"decoder.{name}") in tensors]
    adaptive = any(name.startswith("decoder.adaptive_softmax.") for name in tensors)
    if adaptive or not found:
        raise UserError(
            f"{checkpoint}: its output layer has no vector for each word (an adaptive softmax has "
            "none); give --data BIN without --by vectors to see which words it takes for each other"
        )
    layer = SoftmaxOutputLayer(found[0].shape[1], found[0].shape[0])
    layer.weight.data = found[0].detach().float()  # [V, d]
    return layer.eval()


def remembered_dictionary(
    checkpoint: Path, config: Any, data: Path | None = None, side: str = "target"
) -> Path:
    """A dictionary in a folder of data, by default the first one that it was trained from.

    Raises:
        UserError: it is not there.
    """
    named = str(getattr(config.task, "data", "") if data is None else data)
    folder, language = Path(named.split(":")[0]), getattr(config.task, f"{side}_lang", None)
    path = folder / (f"dict.{language}.txt" if language else "dict.txt")
    if not language and not path.is_file() and list(folder.glob("dict.*.txt")):
        path = folder / f"dict.{language_pair(named)[side == 'target']}.txt"
    if not path.is_file():
        raise UserError(
            f"{checkpoint} does not hold its dictionary, and {path} is not there; give "
            "--data BIN or --dict FILE"
        )
    return path


def load_dictionary(path: Path, words: int, state: dict[str, Any]) -> Any:
    """fairseq's dictionary of so many words, the target dictionary of a checkpoint.

    Raises:
        UserError: the file is missing, no dictionary, or another one.
    """
    from fairseq.data import Dictionary

    read_lines(path)  # missing files and wrong encodings become one sentence
    try:
        dictionary = Dictionary.load(str(path))
    except (ValueError, RuntimeError) as error:
        raise UserError(f"--dict: {path} is no dictionary of fairseq ({error})") from None
    differs = None
    if len(dictionary) != words:
        differs = f"has {len(dictionary)} words, the checkpoint {words}"
    elif digest_kept(state, "target") not in (None, digest(dictionary)):
        differs = "has as many words as the checkpoint, but others or in another order"
    if differs:
        raise UserError(
            f"--dict: {path} {differs}; give the dictionary of the target language that it was "
            "trained with"
        )
    return dictionary
