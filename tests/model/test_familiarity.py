from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ogkd.model.familiarity import (
    FEWEST,
    Familiarity,
    SupportFeatures,
    can_judge,
    is_in_distribution,
)


def cloud(rng, centre, count, *, spread=0.4):
    rows = centre + spread * rng.normal(size=(count, len(centre))) / np.sqrt(len(centre))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def unfamiliar(support, rows):
    return Familiarity(support).unfamiliar(rows)


def support_of(rows):
    return SupportFeatures(rows, np.zeros(len(rows), dtype=np.int64))


@pytest.fixture
def world():
    """The modality that was learned from, and another one."""
    rng = np.random.default_rng(0)
    known, other = np.linalg.qr(rng.normal(size=(64, 2)))[0].T
    return rng, known, other


def test_images_of_another_modality_are_unfamiliar_and_others_are_not(world):
    rng, known, other = world
    support = support_of(cloud(rng, known, 32))
    assert unfamiliar(support, cloud(rng, other, 200)).all()
    assert unfamiliar(support, cloud(rng, known, 1000)).mean() < 0.05


def test_a_few_odd_support_images_do_not_make_everything_familiar(world):
    rng, known, other = world
    away = cloud(rng, rng.normal(size=64), 2)
    support = support_of(np.concatenate([cloud(rng, known, 32), away]))
    assert unfamiliar(support, cloud(rng, other, 200)).all()


@given(st.integers(2, 40), st.integers(0, 100))
def test_the_novelty_score_is_what_ridge_regression_leaves_over(count, seed):
    """The oracle fits mixtures of the support one by one, by least squares."""
    rng = np.random.default_rng(seed)
    S = cloud(rng, rng.normal(size=12), count)
    v = cloud(rng, rng.normal(size=12), 3)
    rho = 0.02
    expected = []
    for row in v.astype(np.float64):
        tall = np.concatenate([S.T.astype(np.float64), np.sqrt(rho) * np.eye(count)])
        mixture = np.linalg.lstsq(tall, np.concatenate([row, np.zeros(count)]), rcond=None)[0]
        expected.append(((row - S.T @ mixture) ** 2).sum() + rho * (mixture**2).sum())
    np.testing.assert_allclose(Familiarity(support_of(S)).novelty_score(v), expected, atol=1e-6)


def test_the_limit_comes_from_support_images_left_out_in_turn(world):
    rng, known, _ = world
    rows = cloud(rng, known, 12)
    alone = [
        Familiarity(support_of(np.delete(rows, row, axis=0))).novelty_score(rows[row])[0]
        for row in range(12)
    ]
    limit = Familiarity(support_of(rows)).limit
    assert limit == pytest.approx(1.4 * np.quantile(alone, 0.9), rel=1e-6)


@pytest.mark.parametrize("count", [0, 1, 2, FEWEST - 1])
def test_with_too_few_support_images_nothing_is_called_unfamiliar(world, count):
    rng, known, other = world
    support = support_of(cloud(rng, known, count))
    assert not can_judge(support)
    assert not unfamiliar(support, cloud(rng, other, 20)).any()


def test_copies_of_one_support_image_are_familiar_after_rounding_on_disk(world):
    rng, known, other = world
    image = cloud(rng, known, 1)
    kept = np.repeat(image, FEWEST, axis=0).astype(np.float16).astype(np.float32)
    assert not unfamiliar(support_of(kept), image).any()
    assert unfamiliar(support_of(kept), cloud(rng, other, 3)).all()


def test_images_to_learn_from_are_as_near_as_the_support_is_to_itself():
    rng = np.random.default_rng(3)
    middle = rng.normal(size=(4, 32))  # of classes of one kind, which share a direction
    middle[:, 0] += 6.0

    def draw(centres, each):
        rows = np.repeat(centres, each, axis=0)
        rows = rows + 0.6 * rng.normal(size=rows.shape)
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)

    other = rng.normal(size=(4, 32))
    other[:, 1] += 6.0
    for shots in (1, 4):
        support = SupportFeatures(draw(middle, shots), np.repeat(np.arange(4), shots))
        assert is_in_distribution(support, draw(middle, 50), 32).mean() > 0.6
        assert is_in_distribution(support, draw(other, 50), 32).mean() < 0.05
    # What follows the global feature in a row does not count.
    rows = draw(middle, 5)
    longer = np.concatenate([rows, draw(other, 5)], axis=1)
    assert (is_in_distribution(support, longer, 32) == is_in_distribution(support, rows, 32)).all()
