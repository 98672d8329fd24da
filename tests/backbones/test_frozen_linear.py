"""Linear layers of frozen weights, laid out once."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ogkd.backbones import _frozen
from ogkd.backbones._frozen import MOST_ROWS, WORTH_IT, frozen_linear

needs_kernels = pytest.mark.skipif(
    not _frozen._supported(), reason="torch has no packed linear layers on this machine"
)


def make_layer(*, bias: bool = True, width: int = 160, out: int = 192) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(width, out, bias=bias).requires_grad_(False)


@needs_kernels
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 160), (37, 160), (3, 5, 160), (MOST_ROWS, 160)])
def test_values_and_gradients_equal_the_layers_own(bias: bool, shape: tuple[int, ...]) -> None:
    layer = make_layer(bias=bias)
    values = torch.randn(shape, requires_grad=True)
    again = values.detach().clone().requires_grad_()
    packed, plain = frozen_linear(layer, values), layer(again)
    assert layer in _frozen._packs
    torch.testing.assert_close(packed, plain, rtol=0, atol=1e-5)
    direction = torch.randn_like(plain)
    packed.backward(direction)
    plain.backward(direction)
    torch.testing.assert_close(values.grad, again.grad, rtol=0, atol=1e-5)


def pretend(monkeypatch: pytest.MonkeyPatch, capability: str) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)


@needs_kernels
@pytest.mark.parametrize("gradient", [True, False])
def test_with_wide_registers_many_rows_are_laid_out_too(gradient, monkeypatch) -> None:
    pretend(monkeypatch, "AVX512")
    layer, values = make_layer(), torch.randn(WORTH_IT, 160, requires_grad=gradient)
    torch.testing.assert_close(frozen_linear(layer, values), layer(values), rtol=0, atol=1e-5)
    assert layer in _frozen._packs
    assert (layer in _frozen._back_packs) == gradient  # which nothing else needs


@pytest.mark.parametrize("case", ["no gradient", "many rows", "small layer", "trained", "double"])
def test_other_cases_take_the_plain_product(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, "AVX2")
    layer = make_layer(width=64 if case == "small layer" else 160)
    if case == "trained":
        layer.requires_grad_()
    if case == "double":
        layer.double()
    rows = MOST_ROWS + 1 if case == "many rows" else 3
    values = torch.randn(rows, layer.in_features, dtype=layer.weight.dtype)
    values.requires_grad_(case != "no gradient")
    assert torch.equal(frozen_linear(layer, values), layer(values))
    assert layer not in _frozen._packs


@needs_kernels
def test_few_rows_without_gradient_have_the_same_bits_whatever_was_laid_out_before() -> None:
    layer, few = make_layer(), torch.randn(9, 160)
    before = frozen_linear(layer, few)
    frozen_linear(layer, torch.randn(9, 160, requires_grad=True))
    assert torch.equal(frozen_linear(layer, few), before)
