"""Questions that a card has to answer before a program goes on, and tensors made on no device.

Where a value of a card is asked for, the host waits until the card has come to it, and meanwhile
gives it nothing to do. Updates of real trainings run here on the CPU; whatever would wait there is
counted, by the function of ours that asks. What no training here reaches is read in the code.
Tests of devices themselves are in ``output_layers/test_devices.py``.
"""

from __future__ import annotations

import ast
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import fairseq
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fairseq_kerbs.likelihood import chunks, mixture, nll
from fairseq_kerbs.utils.processes import PLUGIN_FOLDER
from tests.training.test_sense_updates import one_update, training

Places = dict[str, str]

EVERY_UPDATE: Places = {
    "models/recurrent.py:right_padded": "are sources padded on the left? fairseq's LSTM asks, too",
    "models/recurrent.py:forward": "cuDNN wants lengths on the CPU; fairseq's LSTM does the same",
}
SAMPLING: Places = {
    "output_layers/kerbs.py:_nll": "which targets count: one question a batch",
    "clusters.py:add": "words and contexts go to the sample, which is on the CPU",
}
SELDOM: Places = {
    "training/sense_updates.py:before_update": "the first update: does an old interval hang over?",
    "training/sense_updates.py:summarize": "after moves: words by number of senses, quantiles of θ",
    "training/sense_updates.py:_reallocate": "was anything recorded; what is logged of the moves",
    "output_layers/base.py:senses_per_word": "of the two above",
    "senses/inventory.py:senses_per_word": "policies count on the CPU",
    "senses/inventory.py:move": "the moves, in order",
    "senses/inventory.py:build_sense_table": "a new table is checked and made, once after moves",
    "senses/moves.py:moved": "of moves, which are on the CPU",
    "reallocation/policies.py:__init__": "Algorithm 1 is a loop over words, with a heap",
    "reallocation/policies.py:paper_policy": "the same",
    "reallocation/policies.py:released_policy": "the same",
    "reallocation/policies.py:apply_moves": "of moves, which are on the CPU",
    "reallocation/moved_vectors.py:new_vectors": "of moves, which are on the CPU",
    "reallocation/clusters.py:place_on_clusters": "k-means and discriminants are of the CPU",
    "reallocation/clusters.py:_places": "the same",
    "clusters.py:whiten": "the same",
    "clusters.py:place_senses": "the same",
    "clusters.py:__init__": "a sample begins: its size is of counts on the CPU",
    "clusters.py:_make_room": "the same",
    "clusters.py:_even_share": "the same",
}
"""When senses move or a sample begins, once in hundreds of updates, and in the first update."""

NOT_RUN_HERE: Places = {
    "likelihood/scores.py:of": "decoding: once a model, not once a step",
    "training/sense_updates.py:_find": "moves: rows of fp16's flat copy; moves are on the CPU",
    "clusters.py:from_state": "a checkpoint is loaded",
    "clusters.py:cluster": "k-means by numpy",
}

# ------------------------------------------------------------------ in real updates

ASKING = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "bincount",
          "unique_consecutive", "equal", "repeat_interleave")  # fmt: skip
"""Operators that return, or allocate by, a value: ``item``, ``bool``, ``int`` are the first."""

OTHERS = tuple(
    f"{Path(str(module.__file__)).parent}{os.sep}"
    for module in (fairseq, torch.optim, torch.nn)  # torch's ask tensors of the CPU
)
"""Folders whose questions are not ours."""

seen: Counter[str] = Counter()


def note() -> None:
    """Count a question for the innermost function of ours, if nobody else's lies within it."""
    frame: Any = sys._getframe(2)
    while frame is not None and not frame.f_code.co_filename.startswith(OTHERS):
        file = Path(frame.f_code.co_filename)
        if PLUGIN_FOLDER in file.parents:
            seen[f"{file.relative_to(PLUGIN_FOLDER).as_posix()}:{_function(frame)}"] += 1
            return
        frame = frame.f_back


def _function(frame: Any) -> str:
    while frame.f_code.co_name.startswith("<"):  # a comprehension
        frame = frame.f_back
    return str(frame.f_code.co_name)


class Operators(TorchDispatchMode):
    """Notes operators that ask, and masks as indices."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        lists = [arg for arg in args if isinstance(arg, (list, tuple))]
        masks = [one for each in lists for one in each if getattr(one, "dtype", 0) == torch.bool]
        # torch fills by a mask without a question where the value is one number
        fills = name.startswith("index_put") and len(masks) == 1 and args[2].numel() == 1
        if name in ASKING or (name.startswith("index") and masks and not fills):
            note()
        return func(*args, **(kwargs or {}))


class Methods(TorchFunctionMode):
    """Notes what no operator is called for on a CPU."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in ("tolist", "cpu", "numpy"):
            note()
        return func(*args, **(kwargs or {}))


POLICIES: dict[str, dict[str, Any]] = {
    "paper": {"reallocation": "paper", "reallocation_interval": 3},
    "released": {
        "reallocation": "released",
        "reallocation_interval": 3,
        "new_sense": "split",
        "max_moves": 0.5,
    },
    "clusters": {
        "reallocation": "clusters",
        "reallocation_interval": 2,
        "reallocation_at": [6],
        "sense_bias": True,
    },
    "none": {"output_layer": "mos", "kernel": "lin"},
}


@pytest.fixture(scope="module")
def updates() -> dict[tuple[str, str, int], Counter[str]]:
    """Questions by place, of each update of trainings by model and policy; senses move before the
    updates 3 and 6, and of "clusters" contexts of 4 and 5 are sampled."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        for module in (chunks, mixture):  # on a card it does not wait
            patch.setattr(module, "check_words", lambda *_: None)
        patch.setattr(nll, "_run", chunks.run_chunks)  # modes do not see into an operator
        for model in ("transformer", "lstm"):
            for policy, flags in POLICIES.items():
                parts = training(model, **flags)
                for update in range(8):
                    seen.clear()
                    with Methods(), Operators():
                        one_update(parts, update)
                    found[model, policy, update] = Counter(seen)
    return found


def test_an_update_asks_nothing(updates: dict[tuple[str, str, int], Counter[str]]) -> None:
    """Ours of a Transformer; a recurrent encoder asks what fairseq's own does."""
    for (model, policy, update), asked in updates.items():
        if update in (1, 2, 7) or (update in (4, 5) and policy != "clusters"):
            allowed = {} if model == "transformer" else EVERY_UPDATE
            assert asked.keys() <= allowed.keys(), (model, policy, update)
        if update == 5 and policy == "clusters":
            assert asked["output_layers/kerbs.py:_nll"] == 1
            assert asked.keys() <= {*EVERY_UPDATE, *SAMPLING}, (model, policy, update)


def test_all_other_questions_have_a_reason(
    updates: dict[tuple[str, str, int], Counter[str]],
) -> None:
    together: Counter[str] = sum(updates.values(), Counter())
    assert together.keys() == {*EVERY_UPDATE, *SAMPLING, *SELDOM}


# ------------------------------------------------------------------ in the code

FOLDERS = ("criterions", "kernels", "likelihood", "models", "output_layers", "reallocation",
           "senses", "training")  # fmt: skip
FILES = [PLUGIN_FOLDER / "clusters.py"]
FILES += [file for folder in FOLDERS for file in sorted((PLUGIN_FOLDER / folder).glob("*.py"))]

MAKERS = {"arange", "as_tensor", "empty", "eye", "full", "linspace", "ones", "rand", "randn",
          "randperm", "tensor", "zeros"}  # fmt: skip
ON_THE_CPU: Places = {
    "output_layers/base.py:__init__": "a module is made on the CPU, and moved",
    "output_layers/kerbs.py:__init__": "the same",
    "output_layers/mixture.py:__init__": "the same",
    "senses/inventory.py:__init__": "the same",
    "senses/inventory.py:random_allocation": "the same",
    "output_layers/kerbs.py:start_sampling": "samples are on the CPU",
    "clusters.py:_make_room": "the same",
    "clusters.py:_filled": "the same",
    "clusters.py:state": "the same",
    "clusters.py:add": "the same",
    "clusters.py:whiten": "of samples",
    "clusters.py:place_word": "the same",
    "clusters.py:place_senses": "the same",
    "reallocation/clusters.py:place_on_clusters": "the same",
    "reallocation/clusters.py:_places": "the same",
    "senses/moves.py:from_lists": "moves are on the CPU",
    "reallocation/policies.py:released_policy": "the same",
    "training/sense_updates.py:_reallocate": "the same",
    "training/sense_updates.py:_find": "the same",
    "reallocation/moved_vectors.py:_beside": "random numbers that are the same on every card",
    "training/sense_updates.py:__init__": "counts of words, for samples",
}


def calls(file: Path) -> list[tuple[str, ast.Call]]:
    """Calls of methods and functions of modules, with the place of each."""
    found: list[tuple[str, ast.Call]] = []

    def walk(node: ast.AST, function: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Call) and isinstance(child.func, ast.Attribute):
                found.append((f"{file.relative_to(PLUGIN_FOLDER).as_posix()}:{function}", child))
            walk(child, child.name if isinstance(child, ast.FunctionDef) else function)

    walk(ast.parse(file.read_text(encoding="utf-8")), "")
    return found


def test_what_no_training_here_reaches_asks_nothing_else() -> None:
    methods = {"item", "tolist", "cpu", "numpy", "nonzero", "masked_select", "unique", "bincount"}
    asking = {place for file in FILES for place, call in calls(file) if call.func.attr in methods}  # type: ignore[attr-defined]
    assert asking - {*EVERY_UPDATE, *SAMPLING, *SELDOM} == NOT_RUN_HERE.keys()


def test_tensors_are_made_on_the_device_of_others() -> None:
    made = set()
    for file in FILES:
        for place, call in calls(file):
            function: Any = call.func
            of_torch = isinstance(function.value, ast.Name) and function.value.id == "torch"
            placed = any(word.arg == "device" for word in call.keywords)
            if of_torch and function.attr in MAKERS and not placed:
                made.add(place)
    assert made == ON_THE_CPU.keys()
