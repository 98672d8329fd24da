"""From the logits of images to those of their case."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import logsumexp

from ogkd.core.pooling import Pooling, fit_pooling, pooled, relative, shares


def image_logits(seed: int = 0, cases: int = 5, classes: int = 3) -> tuple[torch.Tensor, ...]:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 9, cases)
    case = torch.from_numpy(np.repeat(np.arange(cases), sizes))
    return torch.from_numpy(rng.normal(0, 4, (len(case), classes))), case


@pytest.mark.parametrize("tau", [0.0, 0.25, 1.0, 8.0, math.inf])
def test_pooling_is_the_formula_case_by_case(tau: float) -> None:
    z, case = image_logits()
    for number, row in enumerate(pooled(z, case, tau)):
        member_logits = z[case == number].numpy()
        expected = (
            member_logits.max(axis=0)
            if tau == 0
            else member_logits.mean(axis=0)
            if math.isinf(tau)
            else tau * (logsumexp(member_logits / tau, axis=0) - np.log(len(member_logits)))
        )
        np.testing.assert_allclose(row.numpy(), expected, atol=1e-9)


def test_a_shift_of_all_logits_of_an_image_changes_nothing() -> None:
    z, case = image_logits(2)
    shift = torch.randn(len(z), 1, dtype=z.dtype)
    for normal in ((), (0,), (0, 2)):
        pooling = Pooling(1.0, 0.7, (0.1, 0.2, 0.3), normal, 0.4)
        torch.testing.assert_close(pooling.logits(z + shift, case), pooling.logits(z, case))


def test_a_multiple_of_the_mean_of_the_case_is_subtracted_but_not_from_an_image_alone() -> None:
    z = torch.tensor([[0.0, 6.0], [0.0, 3.0], [0.0, 0.0], [0.0, 5.0]])
    case = torch.tensor([0, 0, 0, 1])
    fitted = Pooling(0.0, 2.0, (), (0,), 0.5).logits(z, case)[:, 1]
    assert fitted.tolist() == pytest.approx([2 * 6 - 0.5 * (1 - 1 / 3) * 3, 2 * 5])


def test_logits_are_relative_to_nothing_found() -> None:
    z, _ = image_logits(3)
    assert bool((relative(z, (1,))[:, 1] == 0).all())
    torch.testing.assert_close(relative(z).exp().sum(1), torch.ones(len(z), dtype=z.dtype))


@pytest.mark.parametrize("tau", [0.0, 0.5, 2.0, math.inf])
def test_shares_are_the_derivative_of_the_pooled_logit(tau: float) -> None:
    z, case = image_logits(4, classes=1)
    z.requires_grad_()
    [slope] = torch.autograd.grad(pooled(z, case, tau).sum(), z)
    fitted = shares(z.detach().squeeze(1), case, tau)
    torch.testing.assert_close(fitted, slope.squeeze(1))
    torch.testing.assert_close(
        fitted.new_zeros(5).index_add(0, case, fitted), torch.ones(5).double()
    )


def test_for_nothing_found_the_images_nearest_to_a_finding_are_named() -> None:
    z = torch.tensor([[5.0, 0.0, 0.0], [5.0, 4.0, 0.0], [5.0, 0.0, 1.0]])
    assert Pooling(0.5, normal=(0,)).weights(z, 0).argmax() == 1


def simulated(share: float, seed: int, cases: int = 400) -> tuple[torch.Tensor, ...]:
    """Bags of 20 images of two classes; `share` of an affected case's images stand out."""
    rng = np.random.default_rng(seed)
    labels = np.arange(cases) % 2
    affected = (np.arange(20) < max(1, round(20 * share))) & (labels == 1)[:, None]
    margin = rng.normal(0, 1.5, (cases, 20)) + 4 * affected
    z = torch.from_numpy(np.stack([np.zeros_like(margin), margin], axis=2).reshape(-1, 2))
    return z, torch.arange(cases).repeat_interleave(20), torch.from_numpy(labels)


@pytest.mark.parametrize(("share", "at_most"), [(0.05, 2.0), (1.0, math.inf)])
def test_a_rare_finding_is_pooled_by_its_largest_logits(share: float, at_most: float) -> None:
    fitted = fit_pooling(*simulated(share, 0), normal=(0,))
    assert fitted.tau <= at_most
    assert (fitted.tau >= 4.0) == (share == 1.0)


@pytest.mark.parametrize("share", [0.05, 0.3, 1.0])
def test_the_fitted_pooling_is_as_good_as_the_better_of_mean_and_largest(share: float) -> None:
    z, case, labels = simulated(share, 1)
    new, _, truth = simulated(share, 2)

    def right(pooling: Pooling) -> float:
        return float((pooling.logits(new, case).argmax(1) == truth).double().mean())

    def with_bias(tau: float) -> float:
        values = pooled(relative(z, (0,)), case, tau)[:, 1]
        cut = min(values.tolist(), key=lambda c: int(((values >= c) != labels.bool()).sum()))
        return right(Pooling(tau, 1.0, (0.0, -cut), (0,)))

    best = max(with_bias(0.0), with_bias(math.inf))
    assert right(fit_pooling(z, case, labels, normal=(0,))) >= best - 0.02


def test_what_all_images_of_a_case_have_in_common_is_taken_out() -> None:
    def shifted(seed: int) -> tuple[torch.Tensor, ...]:
        z, case, labels = simulated(0.1, seed)
        apart = np.random.default_rng(seed + 100).normal(0, 4, len(labels))  # of one anatomy
        return z + torch.from_numpy(np.outer(apart[case], [0.0, 1.0])), case, labels

    z, case, labels = shifted(6)
    fitted = fit_pooling(z, case, labels, normal=(0,))
    assert fitted.mean_weight == pytest.approx(fitted.heat, rel=0.25)
    new, _, truth = shifted(7)

    def right(pooling: Pooling) -> float:
        return float((pooling.logits(new, case).argmax(1) == truth).double().mean())

    assert right(fitted) >= right(replace(fitted, mean_weight=0.0)) + 0.1
