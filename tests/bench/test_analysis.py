"""The definitions behind the figures, by hand and by their properties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import gaussian_kde

from ogkd.bench.figures.per_dataset import (
    both_wrong,
    density,
    disease_mass,
    margins,
    neighbour_mass,
    neighbours,
    wins,
)
from ogkd.bench.tidy import right

P_A = np.array([[0.7, 0.2, 0.1], [0.2, 0.5, 0.3], [0.1, 0.3, 0.6], [0.3, 0.4, 0.3]])
P_B = np.array([[0.2, 0.7, 0.1], [0.6, 0.3, 0.1], [0.1, 0.2, 0.7], [0.1, 0.8, 0.1]])
Y = np.array([0, 0, 2, 2])
W = np.array([[0.6, 0.3, 0.1], [0.35, 0.4, 0.25], [0.1, 0.2, 0.7]])


@st.composite
def predictions(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Probabilities of two methods and labels: some equal, some very small."""
    classes, images = draw(st.integers(2, 5)), draw(st.integers(1, 8))
    seed = draw(st.integers(0, 2**31))
    rng = np.random.default_rng(seed)
    sharp = draw(st.sampled_from([0.1, 1.0, 60.0]))
    logits = sharp * rng.integers(-2, 3, (2, images, classes)).astype(float)
    p = np.exp(logits - logits.max(axis=2, keepdims=True))
    p /= p.sum(axis=2, keepdims=True)
    return p[0].astype(np.float32), p[1].astype(np.float32), rng.integers(0, classes, images)


def test_right_wins_and_both_wrong_by_hand() -> None:
    assert right(P_A, Y).tolist() == [True, False, True, False]
    assert right(P_B, Y).tolist() == [False, True, True, False]
    assert wins(P_A, P_B, Y).tolist() == [True, False, False, False]
    assert wins(P_B, P_A, Y).tolist() == [False, True, False, False]
    assert both_wrong(P_A, P_B, Y).tolist() == [False, False, False, True]


@given(predictions())
def test_wins_losses_both_right_and_both_wrong_share_out_all_images(
    drawn: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    a, b, y = drawn
    groups = [wins(a, b, y), wins(b, a, y), both_wrong(a, b, y), right(a, y) & right(b, y)]
    assert (np.sum(groups, axis=0) == 1).all()


def test_the_margin_is_the_difference_of_logits_whatever_is_added_to_them() -> None:
    z = np.array([[3.0, 1.0, -2.0], [0.0, 4.0, 5.5]])
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    assert margins(p, np.array([0, 1])) == pytest.approx([2.0, -1.5])
    assert margins(p, np.array([2, 2])) == pytest.approx([-5.0, 1.5])


def test_a_probability_of_zero_gives_a_finite_margin() -> None:
    p = np.array([[1.0, 0.0], [1.0, 0.0]], dtype=np.float32)
    assert margins(p, np.array([0, 1])) == pytest.approx([87.336, -87.336], abs=1e-3)


def test_neighbours_leave_the_class_itself_out_even_where_it_is_not_its_nearest() -> None:
    odd = np.array([[0.1, 0.2, 0.7], [0.5, 0.1, 0.4], [0.3, 0.3, 0.4]])
    assert neighbours(odd, 1).tolist() == [[2], [0], [0]]
    assert neighbours(odd, 2).tolist() == [[2, 1], [0, 2], [0, 1]]
    assert neighbours(odd, 9).shape == (3, 2)


def test_neighbour_mass_by_hand() -> None:
    # The nearest to 0 is 1, to 1 is 0, to 2 is 1 by the rows of W.
    assert neighbour_mass(P_A, Y, W, k=1) == pytest.approx([0.2, 0.5, 0.3, 0.4])
    assert neighbour_mass(P_A, np.array([1, 1, 1, 1]), W, k=1) == pytest.approx(P_A[:, 0])


@given(predictions())
def test_with_all_other_classes_as_neighbours_the_mass_is_what_the_truth_lacks(
    drawn: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    a, _, y = drawn
    graph = np.random.default_rng(0).random((a.shape[1], a.shape[1]))
    lacking = 1 - a[np.arange(len(y)), y]
    assert neighbour_mass(a, y, graph, k=a.shape[1]) == pytest.approx(lacking, abs=1e-5)


def test_disease_mass_by_hand_with_and_without_the_true_class() -> None:
    assert disease_mass(P_A, [2]) == pytest.approx([0.9, 0.7, 0.4, 0.7])
    assert disease_mass(P_A, [0, 2]) == pytest.approx([0.2, 0.5, 0.3, 0.4])
    assert disease_mass(P_A, [2], without=Y) == pytest.approx([0.2, 0.5, 0.4, 0.7])
    assert disease_mass(P_A, [0, 1, 2]) == pytest.approx([0.0] * 4)
    assert P_A[0, 0] == 0.7  # the input is left as it was


def test_density_of_probabilities_keeps_its_whole_mass_between_zero_and_one() -> None:
    values = np.random.default_rng(4).beta(0.4, 2.0, size=200)
    grid = np.linspace(0, 1, 2001)
    heights = density(values, grid, bounds=(0.0, 1.0))
    assert heights is not None
    assert np.trapezoid(heights, grid) == pytest.approx(1.0, abs=2e-3)
    assert np.trapezoid(gaussian_kde(values)(grid), grid) < 0.97  # without reflection


@pytest.mark.parametrize("values", [[], [0.3], [0.3, 0.3, 0.3]])
def test_fewer_than_two_distinct_values_have_no_density(values: list[float]) -> None:
    assert density(np.array(values), np.linspace(0, 1, 5)) is None
