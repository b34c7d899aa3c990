"""A model of a checkpoint without any data, and its output layer.

A checkpoint holds parameters and the flags that describe them. It does not hold the dictionary:
that is read from a file, or from the folder that the model was trained from, if it is still there.
"""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from fairseq_kerbs import checkpoints
from fairseq_kerbs.configurations import language_pair
from fairseq_kerbs.output_layers import OutputLayer, SoftmaxOutputLayer
from fairseq_kerbs.utils.dictionaries import digest, digest_kept
from fairseq_kerbs.utils.errors import UserError
from fairseq_kerbs.utils.files import read_lines

READ = "decoder.embed_tokens.weight"
STOCK_WEIGHTS = (
    *("decoder.output_projection.weight", "decoder.fc_out.weight", "decoder.embed_out"),
    READ,
)
"""Where fairseq's own decoders keep their output vectors; the last where they are tied."""


def load_layer(
    checkpoint: Path, dictionary: Path | None = None, trust: bool = False, any_model: bool = False
) -> tuple[OutputLayer, Any]:
    """The output layer and target dictionary of a model of ours (``any_model``: or of fairseq's).

    The dictionary is read from a ``dict.LANGUAGE.txt``, by default :func:`remembered_dictionary`.
    Raises what :func:`.checkpoints.read_checkpoint`, :func:`rebuild_model` and
    :func:`load_dictionary` raise; a UserError if the checkpoint is no model of ours.
    """
    state = checkpoints.read_checkpoint(checkpoint, trust)
    config = checkpoints.settings_of(checkpoint, state)
    if not (any_model or checkpoints.registered_model(config.model)[1]):
        raise UserError(f"{checkpoint} holds no model of fairseq_kerbs")
    layer = model_layer(rebuild_model(checkpoint, config, state["model"], trust)[1], checkpoint)
    path = dictionary or remembered_dictionary(checkpoint, config)
    return layer, load_dictionary(path, layer.vocab_size, state)


def rebuild_model(
    checkpoint: Path, config: Any, tensors: dict[str, Tensor], trust: bool = False
) -> tuple[Any, Any]:
    """A task (see :func:`building_task`) and the model, in evaluation mode, of a checkpoint.

    fairseq's own functions build it, which know what older versions of fairseq wrote. Raises a
    UserError if settings and parameters are not those of one model; or without ``trust`` if it is
    neither of ours nor of :data:`.checkpoints.MODELS`: others could run a program.
    """
    from fairseq.models import build_model

    name, own = checkpoints.registered_model(config.model)
    if not (own or trust or name in checkpoints.MODELS):
        known = ", ".join(checkpoints.MODELS)
        raise UserError(
            f"{checkpoint} is a model '{name}'; those that can be read without data and trust are "
            f"{known} of fairseq and those of fairseq_kerbs"
        )
    keys = ("decoder.output.inventory.log_prob", "decoder.output.weight") if own else STOCK_WEIGHTS
    wrong = "does not hold the model that its settings describe"
    with checkpoints.one_sentence(checkpoint, wrong, checkpoints.WRITTEN):
        sizes = [len(tensors[key]) for key in keys if key in tensors]
        if not sizes:
            raise UserError(f"{checkpoint} has no whole output layer; take a whole model")
        read = [len(tensors[k]) for k in ("encoder.embed_tokens.weight", READ) if k in tensors]
        kinds = ("self", "future", "past")
        targets = [kind for kind in kinds if getattr(config.task, f"{kind}_target", False)]
        task = building_task([*read, *sizes][0], sizes[0], targets or ["future"])
        checkpoints.set_aside(config.model)
        model = build_model(config.model, task)
        model.load_state_dict(copy.copy(tensors), strict=True, model_cfg=config.model)
    return task, model.eval()


def building_task(source: int, target: int, targets: list[str]) -> SimpleNamespace:
    """As much of a task as it takes to build a model: dictionaries of so many made-up words.
    ``targets`` are what a language model predicts: "future" or "self"."""
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
    """The output layer of a model of ours, or the output vectors of another as a softmax layer; a
    UserError if there is none for each word. A bias, which tells a word's frequency, is left out.
    """
    layer, tensors = getattr(model.decoder, "output", None), model.state_dict()
    if isinstance(layer, OutputLayer):
        return layer
    tied = getattr(model.decoder, "share_input_output_embed", False)
    found = [tensors[key] for key in STOCK_WEIGHTS if key in tensors and (tied or key != READ)]
    if not found or any(name.startswith("decoder.adaptive_softmax.") for name in tensors):
        raise UserError(
            f"{checkpoint}: its output layer has no vector for each word (an adaptive softmax has "
            "none); give --data BIN without --by vectors to see which words it takes for each other"
        )
    stock = SoftmaxOutputLayer(found[0].shape[1], found[0].shape[0])
    stock.weight.data = found[0].detach().float()  # [V, d]
    return stock.eval()


def remembered_dictionary(
    checkpoint: Path, config: Any, data: Path | None = None, side: str = "target"
) -> Path:
    """A dictionary in a folder of data, by default the first one that it was trained from; a
    UserError if it is not there."""
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
    """The target dictionary of a checkpoint, with so many words; a UserError if the file is
    missing, no dictionary, or another one."""
    from fairseq.data import Dictionary

    read_lines(path)  # missing files and wrong encodings become one sentence
    try:
        dictionary = Dictionary.load(str(path))
    except (ValueError, RuntimeError) as error:
        raise UserError(f"{path} is no dictionary of fairseq ({error})") from None
    differs = None
    if len(dictionary) != words:
        differs = f"has {len(dictionary)} words, the checkpoint {words}"
    elif digest_kept(state, "target") not in (None, digest(dictionary)):
        differs = "has as many words as the checkpoint, but others or in another order"
    if differs:
        raise UserError(
            f"{path} {differs}; give the dictionary of the target language that it was trained with"
        )
    return dictionary
