"""Linear layers of frozen weights for few rows: laid out once for the CPU, not at each call.

A training step passes some dozen tokens through the text tower. A plain product of so few
rows spends much of its time on bringing the weights into the order that the kernel wants;
weights that never change can be kept in that order, for the product and for its gradient.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["frozen_linear"]

MOST_ROWS = 128  # with more, torch's own product is as fast or faster

_packs: WeakKeyDictionary[nn.Linear, tuple[Tensor, Tensor]] = WeakKeyDictionary()


def frozen_linear(layer: nn.Linear, values: Tensor) -> Tensor:
    """`layer(values)` for a layer that is never trained, faster where a gradient is wanted."""
    if not (values.requires_grad and _packable(layer, values)):
        return functional.linear(values, layer.weight, layer.bias)
    if layer not in _packs:
        weight = layer.weight.detach()
        _packs[layer] = _pack(weight), _pack(weight.mT.contiguous())
    product: Tensor = _PackedLinear.apply(values, *_packs[layer], layer.bias)  # type: ignore[no-untyped-call]
    return product


def _packable(layer: nn.Linear, values: Tensor) -> bool:
    weight = layer.weight
    return (
        values.device.type == "cpu"
        and values.dtype == weight.dtype == torch.float32
        and not weight.requires_grad
        and values.numel() <= MOST_ROWS * weight.shape[1]
        and min(weight.shape) >= 128  # a small layer has nothing to win
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
