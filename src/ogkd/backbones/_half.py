"""Half precision for a frozen image tower: products in 16 bits, everything between in float32.

What torch's autocast does, on any device, and with weights that are converted once.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

HALVES = {"bf16": torch.bfloat16, "fp16": torch.float16}
# Weights, or what is multiplied by them; the rest (norms, sums, softmax) stays in float32.
_PRODUCTS: set[Callable[..., Any]] = {
    functional.linear,
    functional.conv2d,
    functional.scaled_dot_product_attention,
}
_FLOAT32: set[Callable[..., Any]] = {functional.layer_norm, functional.normalize, Tensor.softmax}
_TIMEOUT = 300  # seconds: a busy machine needs a minute to load torch
# Large enough, and with a convolution, to reach the kernels that a model uses.
_PROBE = """
import sys, torch
device, dtype = sys.argv[1], getattr(torch, sys.argv[2])
torch.manual_seed(0)
layers = torch.nn.Linear(768, 768), torch.nn.Conv2d(3, 64, 16, 16)
inputs = torch.randn(256, 768), torch.randn(2, 3, 64, 64)
for layer, values in zip(layers, inputs):
    expected = layer(values)
    found = layer.to(device, dtype)(values.to(device, dtype)).float().cpu()
    assert (found - expected).norm() < 0.02 * expected.norm(), "wrong numbers"
"""


@cache
def half_problem(device: str, engine: str) -> str:
    """Why a device cannot compute in half precision; "" if it can.

    It is tried in a child process: on some machines it is an illegal instruction.
    """
    kind = str(HALVES[engine]).removeprefix("torch.")
    command = [sys.executable, "-c", _PROBE, device, kind]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return f"no answer in {_TIMEOUT} s"
    if done.returncode < 0:
        return f"killed by signal {-done.returncode}"
    last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
    return " ".join([f"exit code {done.returncode}", *last]) if done.returncode else ""


class HalfProducts(TorchFunctionMode):
    """While it is active, products are computed in `dtype`."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self._dtype = dtype
        self._weights = WeakIdKeyDictionary()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        convert: Callable[[Any], Any] | None = None
        if func in _PRODUCTS:
            convert = self._half
        elif func in _FLOAT32:
            convert = _float32
        if convert is not None:
            args = tuple(map(convert, args))
            kwargs = {name: convert(value) for name, value in kwargs.items()}
        return func(*args, **kwargs)

    def _half(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dtype != torch.float32:
            return value
        if not isinstance(value, torch.nn.Parameter):
            return value.to(self._dtype)
        if value not in self._weights:
            self._weights[value] = value.detach().to(self._dtype)
        return self._weights[value]


def _float32(value: Any) -> Any:
    half = isinstance(value, Tensor) and value.dtype in HALVES.values()
    return value.float() if half else value
