"""A pretended accelerator: tensors that say they are elsewhere, hold real data, and refuse the CPU.

A `There` reports the device `THERE`. An operation that meets such a tensor and a CPU tensor (of
more than one number, as on CUDA) raises, as do `.numpy()` and random numbers there from a CPU
generator. Copies between the two are counted. Inside `pretending()`, factories and `.to` know the
device.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

THERE = torch.device("meta")  # it needs no driver, and no real tensor of ours is on it
_COPIES = {torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default}


@dataclass
class Transfers:
    there: int = 0  # copies to the device
    back: int = 0


transfers = Transfers()


class There(Tensor):
    """Data on the pretended device."""

    data_here: Tensor

    @staticmethod
    def __new__(cls, data: Tensor) -> There:
        made = Tensor._make_wrapper_subclass(
            cls, data.shape, strides=data.stride(), storage_offset=data.storage_offset(),
            dtype=data.dtype, device=THERE, requires_grad=False,
        )  # fmt: skip
        made.data_here = data
        return made

    def __repr__(self) -> str:
        return f"There({self.data_here!r})"

    def numpy(self, *, force: bool = False) -> Any:
        raise RuntimeError("a tensor on the device has no .numpy(): copy it to the CPU first")

    def __array__(self, *_: Any) -> Any:
        raise RuntimeError("a tensor on the device is not an array: copy it to the CPU first")

    def tolist(self) -> Any:
        transfers.back += 1
        return self.detach().data_here.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.ops.aten._local_scalar_dense.default:
            transfers.back += 1
            return func(args[0].data_here)
        if func in _COPIES:
            return _copy(func, args, kwargs)
        flat, _ = tree_flatten((args, kwargs))
        for value in flat:
            if isinstance(value, torch.Generator):
                raise RuntimeError(f"{func}: a CPU generator cannot draw on the device")
            if isinstance(value, Tensor) and not isinstance(value, There) and value.dim():
                raise RuntimeError(f"{func}: a CPU tensor {tuple(value.shape)} meets the device's")
        if "device" in kwargs:
            kwargs["device"] = torch.device("cpu")
        outcome = func(*tree_map(_here, args), **tree_map(_here, kwargs))
        if func._schema.is_mutable and args and isinstance(args[0], There):
            return args[0]  # in place
        return tree_map(_there, outcome)


def _copy(func: Any, args: Any, kwargs: Any) -> Any:
    if func is torch.ops.aten.copy_.default:
        target, source = args[0], args[1]
        _count(source, to_device=isinstance(target, There))
        _here(target).copy_(_here(source))
        return target
    wanted = kwargs.pop("device", None)
    to_device = isinstance(args[0], There) if wanted is None else wanted == THERE
    _count(args[0], to_device=to_device)
    found = func(_here(args[0]), **kwargs)
    return There(found) if to_device else found


def _count(source: Tensor, *, to_device: bool) -> None:
    if to_device != isinstance(source, There):
        transfers.there += to_device
        transfers.back += not to_device


def _here(value: Any) -> Any:
    return value.data_here if isinstance(value, There) else value


def _there(value: Any) -> Any:
    plain = isinstance(value, Tensor) and not isinstance(value, There)
    return There(value) if plain else value


class _Mode(TorchFunctionMode):
    """Factories and copies that name the device."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in (Tensor.to, Tensor.cpu):
            return self._to(func, args, kwargs)
        if kwargs.get("device") == THERE and not any(isinstance(a, Tensor) for a in args):
            kwargs["device"] = torch.device("cpu")
            gradient = kwargs.pop("requires_grad", False)
            made = func(*args, **kwargs)
            transfers.there += func is torch.tensor
            return There(made).requires_grad_(gradient)
        return func(*args, **kwargs)

    def _to(self, func: Any, args: Any, kwargs: Any) -> Any:
        tensor, *rest = args
        wanted = torch.device("cpu") if func is Tensor.cpu else kwargs.get("device")
        dtype = kwargs.get("dtype")
        for value in rest:
            if isinstance(value, Tensor):
                wanted, dtype = value.device, value.dtype
            elif isinstance(value, torch.dtype):
                dtype = value
            elif isinstance(value, torch.device | str):
                wanted = torch.device(value)
        moved = tensor if wanted is None or wanted == tensor.device else _Move.apply(tensor, wanted)
        return moved if dtype is None or dtype == moved.dtype else Tensor.type(moved, dtype)


class _Move(torch.autograd.Function):
    """A copy to another device, with the gradient copied back."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, wanted: torch.device) -> Tensor:
        ctx.source = tensor.device
        _count(tensor, to_device=wanted == THERE)
        data = _here(tensor.detach()).clone()
        return There(data) if wanted == THERE else data

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return _Move.apply(grads[0], ctx.source), None


class _Factories(TorchDispatchMode):
    """Tensors that torch's own code makes on the device, inside other operations."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("device") == THERE:
            flat, _ = tree_flatten((args, kwargs))
            if not any(isinstance(value, Tensor) for value in flat):
                return There(func(*args, **kwargs | {"device": torch.device("cpu")}))
        return func(*args, **kwargs)


@contextmanager
def pretending() -> Iterator[Transfers]:
    """The device exists, in threads that start meanwhile too; transfers are counted from 0."""
    transfers.there = transfers.back = 0
    run, to = threading.Thread.run, nn.Module.to

    def run_with_device(thread: threading.Thread) -> None:
        with _Mode(), _Factories():
            run(thread)

    def module_to(module: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        if THERE not in (*args, kwargs.get("device")):
            return to(module, *args, **kwargs)
        move(module)
        return module

    with (
        _Mode(),
        _Factories(),
        patch.object(threading.Thread, "run", run_with_device),
        patch.object(nn.Module, "to", module_to),
    ):
        yield transfers


def move(module: nn.Module) -> None:
    """Put a frozen module on the device."""
    for part in module.modules():
        for name, value in list(part._parameters.items()):
            if value is not None:
                part._parameters[name] = nn.Parameter(There(value.detach()), requires_grad=False)
        for name, value in list(part._buffers.items()):
            if value is not None:
                part._buffers[name] = There(value.detach())
