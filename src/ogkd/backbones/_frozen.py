"""What only frozen weights allow: they are laid out once, and their memory can be given back.

A training step passes a few dozen tokens through the text tower. A plain product of so few rows
spends much of its time rearranging the weights into the kernel's layout. Frozen weights never
change, so `frozen_linear` keeps them in that layout, for the product and for its gradient.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional

# With AVX-512 the laid-out product is faster for any number of rows. Without, torch's own is as
# fast from some number on. Without a gradient, few rows do not repay the laying out.
MOST_ROWS = 128
WORTH_IT = 512
_MAPS = Path("/proc/self/maps")

_packs: WeakKeyDictionary[nn.Linear, Tensor] = WeakKeyDictionary()  # for the product
_back_packs: WeakKeyDictionary[nn.Linear, Tensor] = WeakKeyDictionary()  # for its gradient


def frozen_linear(layer: nn.Linear, values: Tensor) -> Tensor:
    """Compute `layer(values)` for a frozen layer, faster for a gradient or for many rows.

    Which product it is depends on the values alone, not on what was computed before: their
    last bits differ.
    """
    if not _packable(layer, values):
        return functional.linear(values, layer.weight, layer.bias)
    if layer not in _packs:
        _packs[layer] = _pack(layer.weight.detach())
    if not values.requires_grad:
        return _product(values.contiguous(), _packs[layer], layer.bias)
    if layer not in _back_packs:
        _back_packs[layer] = _pack(layer.weight.detach().mT.contiguous())
        release_pages([layer.weight])  # there are two copies of it now
    product: Tensor = _PackedLinear.apply(  # type: ignore[no-untyped-call]
        values, _packs[layer], _back_packs[layer], layer.bias
    )
    return product


def _packable(layer: nn.Linear, values: Tensor) -> bool:
    weight, rows = layer.weight, values.numel() // values.shape[-1]
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return (
        values.device.type == "cpu"
        and values.dtype == weight.dtype == torch.float32
        and not weight.requires_grad
        and (wide or rows <= MOST_ROWS if values.requires_grad else wide and rows >= WORTH_IT)
        and min(weight.shape) >= 128  # small layers gain nothing
        and _supported()
    )


def _supported() -> bool:
    return torch.backends.mkldnn.is_available() and hasattr(
        torch.ops.mkldnn, "_reorder_linear_weight"
    )


def _pack(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight, MOST_ROWS // 4)
    return packed


def _product(values: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(values, packed, bias, "none", [], "")
    return product


class _PackedLinear(torch.autograd.Function):
    """v W' + b, differentiable in v alone."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, there: Tensor, back: Tensor, bias: Tensor) -> Tensor:
        ctx.back = back
        return _product(values.contiguous(), there, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return _product(gradients[0].contiguous(), ctx.back, None), None, None, None


def release_pages(tensors: Iterable[Tensor]) -> None:
    """Give back the memory of those frozen tensors that are a map of a file.

    A page of the file takes memory from its first use on; the next use reads it again, most often
    from the system's own cache of files. Only Linux lets us ask for that and check beforehand what
    a piece of memory is; elsewhere nothing happens.
    """
    if sys.platform != "linux":
        return
    maps = _private_file_maps()
    madvise = ctypes.CDLL(None).madvise
    page = mmap.PAGESIZE
    for tensor in tensors:
        if tensor.device.type != "cpu" or tensor.requires_grad or not tensor.is_contiguous():
            continue
        begin = -(-tensor.data_ptr() // page) * page
        end = (tensor.data_ptr() + tensor.nbytes) // page * page
        # Anything but a file would read as zeros from then on.
        if begin < end and any(low <= begin and end <= high for low, high in maps):
            madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED)


def _private_file_maps() -> list[tuple[int, int]]:
    """The ranges of memory that are private maps of regular files."""
    ranges = []
    try:
        lines = _MAPS.read_text(errors="replace").splitlines()
    except OSError:
        return []
    for line in lines:
        addresses, rights, _, _, inode, *path = line.split(maxsplit=5)
        name = path[0] if path else ""
        if rights[3] == "p" and inode != "0" and name.startswith("/") and name[:5] != "/dev/":
            low, high = addresses.split("-")
            ranges.append((int(low, 16), int(high, 16)))
    return ranges
