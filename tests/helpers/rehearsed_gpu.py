"""A GPU that is not there: tensors that say they lie on ``cuda:0``, while their values are on the
CPU. Whole trainings run on them, to the same bits as on a CPU.

What a GPU would refuse is refused: tensors of the GPU and of the CPU in one operation, and numpy.
Where the host would wait for a GPU, :data:`waits` counts it. Fake tensors of PyTorch on "cuda:0"
have no values, and a build for CPUs ends the process where autograd meets one.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import fairseq
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from fairseq_kerbs.likelihood import custom_operator
from fairseq_kerbs.utils.processes import PLUGIN_FOLDER

FAIRSEQ = Path(str(fairseq.__file__)).parent
GPU = torch.device("cuda", 0)
CPU = torch.device("cpu")

WAITING = {
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "_unique2",
    "unique_dim",
    "bincount",
    "unique_consecutive",
    "equal",
    "repeat_interleave",
    "histc",
}
"""Operators that return, or allocate by, a value: ``item``, ``bool``, ``int`` are the first."""

MIXING = {"copy_", "index", "index_put", "index_put_", "_index_put_impl_", "_pack_padded_sequence"}
"""Operators of a GPU that take tensors of the CPU with dimensions, and copy all but the last's."""

waits: Counter[str] = Counter()
"""How often the host has waited for the GPU, by ``file:function`` of ours or of fairseq's."""


def note() -> None:
    """Count a wait for the innermost function of ours or of fairseq's."""
    for frame, _ in traceback.walk_stack(sys._getframe(1)):
        file = Path(frame.f_code.co_filename)
        function = frame.f_code.co_name
        for folder, start in ((PLUGIN_FOLDER, PLUGIN_FOLDER), (FAIRSEQ, FAIRSEQ.parent)):
            if folder in file.parents and not function.startswith("<"):  # no comprehension
                waits[f"{file.relative_to(start).as_posix()}:{function}"] += 1
                return
    waits["elsewhere"] += 1


def values_of(given: Any) -> Any:
    """A GPU's tensor as one of the CPU; all else as it is."""
    return given.content if isinstance(given, GpuTensor) else given


def on_gpu(given: Any) -> Any:
    """A tensor on the GPU, with the values of one of the CPU; all else as it is."""
    plain = isinstance(given, Tensor) and not isinstance(given, GpuTensor)
    return GpuTensor(given) if plain else given


class GpuTensor(Tensor):
    """A tensor of the GPU: for torch's C++ it is of the CPU, for Python of ``cuda:0``."""

    content: Tensor

    @staticmethod
    def __new__(cls, content: Tensor) -> Any:
        made: Any = Tensor._make_wrapper_subclass(
            cls,
            content.shape,
            strides=content.stride(),
            storage_offset=content.storage_offset(),
            dtype=content.dtype,
            device=CPU,
        )
        made.content = content
        return made

    device = property(lambda _: GPU)
    is_cuda = property(lambda _: True)
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"GpuTensor({self.content})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = func.overloadpacket.__name__
        kwargs = kwargs or {}
        given = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        of_cpu = [value for value in given if not isinstance(value, cls) and value.dim()]
        if name == "_pack_padded_sequence" and isinstance(args[1], cls):
            raise RuntimeError("lengths of sequences must be on the CPU")
        if of_cpu and name not in MIXING:
            shapes = [tuple(value.shape) for value in of_cpu]
            raise RuntimeError(f"{func}: of tensors on cuda:0 and on the CPU, these: {shapes}")
        masks = []
        if name.startswith(("index", "_index")) and isinstance(args[1], (list, tuple)):
            masks = [value for value in args[1] if getattr(value, "dtype", None) == torch.bool]
        # torch fills by a mask without a question where the value is one number
        fills = len(masks) == 1 and name != "index" and args[2].numel() == 1
        copies = of_cpu and name != "_pack_padded_sequence"
        if name in WAITING or copies or (masks and not fills):
            note()
        found = func(*tree_map(values_of, args), **tree_map(values_of, kwargs))
        if name == "_pack_padded_sequence":  # its batch sizes are for the host
            return cls(found[0]), found[1]
        if torch.Tag.inplace_view in func.tags:
            args[0].data = cls(args[0].content)
        same = {id(values_of(value)): value for value in given}  # what is written in place
        return tree_map(lambda value: same.get(id(value), on_gpu(value)), found)


class _Across(torch.autograd.Function):
    """A copy on another device."""

    @staticmethod
    def forward(ctx: Any, given: Tensor, to_gpu: bool, dtype: torch.dtype) -> Any:
        ctx.back = isinstance(given, GpuTensor), given.dtype
        copied = values_of(given).to(dtype, copy=True)
        return GpuTensor(copied) if to_gpu else copied

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return _Across.apply(grad, *ctx.back), None, None


class _Factories(TorchDispatchMode):
    """Puts on the GPU what torch's C++ makes for an operation with tensors of the GPU."""

    for_gpu = True  # the engine of autograd calls no function of torch's

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        makes = not any(isinstance(value, Tensor) for value in tree_leaves((args, kwargs)))
        here = self.for_gpu and makes and isinstance(found, Tensor) and found.is_floating_point()
        return on_gpu(found) if here else found  # whole numbers are sizes, for the host


class RehearsedGpu(TorchFunctionMode):
    """While it is entered, there is a GPU: the only one, ``cuda:0``."""

    def __init__(self) -> None:
        super().__init__()
        self.factories = _Factories()
        self.depth = 0
        self.operator = custom_operator._run

    def __enter__(self) -> RehearsedGpu:
        if not self.depth:
            torch.__future__.set_overwrite_module_params_on_conversion(True)
            # torch runs an operator of ours on values of the CPU, where nothing would be counted
            custom_operator._run = custom_operator.flat_losses
            self.factories.__enter__()
        self.depth += 1
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.depth -= 1
        if not self.depth:
            torch.__future__.set_overwrite_module_params_on_conversion(False)
            custom_operator._run = self.operator
            self.factories.__exit__(*error)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        before = self.factories.for_gpu
        try:
            if func is Tensor.backward:  # in which Python of ours runs, too
                self.factories.for_gpu = True
                with self:
                    return torch.autograd.backward(args[0], kwargs.pop("gradient"), **kwargs)
            given = tree_leaves((args, kwargs))
            self.factories.for_gpu = any(isinstance(value, GpuTensor) for value in given)
            return self._call(func, getattr(func, "__name__", ""), args, kwargs)
        finally:
            self.factories.for_gpu = before

    def _call(self, func: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
        first = args[0] if args else None
        if name in ("to", "type_as", "cpu", "cuda") and isinstance(first, Tensor):
            return self._move(name, *args, **kwargs)
        if isinstance(first, GpuTensor):
            if func is Tensor.data.__set__:  # type: ignore[attr-defined]
                first.content = args[1].content
            if name == "numpy":
                raise TypeError("numpy cannot read a tensor of a GPU")
            if name in ("tolist", "new_tensor"):
                note()
            if name == "_shape_as_tensor":  # which is one of the CPU
                return func(first.content)
            if name in ("tolist", "data_ptr", "new_tensor", "__deepcopy__"):
                return on_gpu(getattr(first.content, name)(*args[1:], **kwargs))
        # a private function of torch's that takes a device is no factory: Module.to reads it so
        device = None if name.startswith("_") else kwargs.pop("device", None)
        if device is None:
            return func(*args, **kwargs)
        if name in ("tensor", "as_tensor", "asarray") and torch.device(device).type == "cuda":
            note()
        args, kwargs = tree_map(values_of, (args, kwargs))
        self.factories.for_gpu = False
        made = func(*args, **kwargs, device=CPU)
        return on_gpu(made) if torch.device(device).type == "cuda" else made

    def _move(self, name: str, given: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        device = {"cpu": CPU, "cuda": GPU}.get(name, given.device)
        dtype = given.dtype
        asynchronous = kwargs.get("non_blocking", False)
        # what a call names, by position or by keyword, is told by its type
        for asked in (*args, kwargs.get("device"), kwargs.get("dtype")):
            if isinstance(asked, Tensor):
                device = asked.device
                dtype = asked.dtype
            elif isinstance(asked, torch.dtype):
                dtype = asked
            elif isinstance(asked, bool):
                asynchronous = asked
            elif isinstance(asked, int):
                device = GPU
            elif asked is not None:
                device = torch.device(asked)
        if device.type == given.device.type:
            return given.to(dtype, copy=kwargs.get("copy", False))
        if not asynchronous:
            note()
        return _Across.apply(given, device.type == "cuda", dtype)


def insert(path: str) -> None:
    """Put the GPU into this process, and write the waits of each update to a line of a file."""
    answers: dict[str, Any] = {
        "is_available": True,
        "current_device": 0,
        "device_count": 1,
        "max_memory_allocated": 0,
        "get_device_properties": SimpleNamespace(total_memory=80 << 30, name="", major=9, minor=0),
        "get_device_capability": (9, 0),
    }
    functions = (
        "set_device",
        "get_rng_state",
        "set_rng_state",
        "manual_seed",
        "empty_cache",
        "reset_peak_memory_stats",
    )
    for name, answer in {**dict.fromkeys(functions), **answers}.items():
        setattr(torch.cuda, name, lambda *_, answer=answer, **__: answer)
    RehearsedGpu().__enter__()
    from fairseq.trainer import Trainer

    stock = Trainer.train_step

    def train_step(*args: Any, **kwargs: Any) -> Any:
        waits.clear()
        found = stock(*args, **kwargs)
        with open(path, "a") as stream:
            stream.write(f"{json.dumps(waits)}\n")
        return found

    Trainer.train_step = train_step
