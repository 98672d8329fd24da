"""The prompt selector and the teacher's prototypes, against plain numpy.

`released` repeats the released computation step by step: median, MAD, then a second
standardisation. The package uses the plain z-score that it amounts to.
"""

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from ogkd.core.teacher import select_prompts, teacher_prototypes


def unit(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return normalize(torch.randn(*shape, dtype=torch.float64, generator=generator), dim=-1)


def lower_median(values):
    return np.sort(values)[(len(values) - 1) // 2]  # what torch.median gives


def outliers_as_released(s, tau, median=lower_median):
    with np.errstate(all="ignore"):
        centre = median(s)
        z = (s - centre) / median(np.abs(s - centre))
        return np.abs((z - z.mean()) / z.std(ddof=1)) <= tau


def released(features, bank, tau, scale=85.2323, median=lower_median):
    B, (C, N, _) = len(features), bank.shape
    s = np.zeros(N)
    for i in range(N):
        for b in range(B):
            s[i] += max(scale * features[b] @ bank[c, i] for c in range(C)) / B
    return outliers_as_released(s, tau, median)


def per_class(features, bank, tau):
    rows = []
    for prompts in bank:
        s = np.array([np.mean([v @ prompt for v in features]) for prompt in prompts])
        rows.append(np.abs(s - s.mean()) / s.std(ddof=1) <= tau)
    return np.array(rows)


@pytest.mark.parametrize("median", [lower_median, np.median], ids=["lower", "middle"])
@pytest.mark.parametrize("tau", [0.5, 1.25, 1.5, 1.75, 2.0])
def test_batch_selector_equals_the_released_median_and_mad_computation(tau, median):
    dropped = 0
    for seed in range(8):
        features, bank = unit(4, 16, seed=seed), unit(3, 50, 16, seed=seed + 100)
        expected = released(features.numpy(), bank.numpy(), tau, median=median)
        mask = select_prompts(features, bank, tau=tau)
        assert mask.shape == (3, 50)
        for c in range(3):
            np.testing.assert_array_equal(mask[c], expected)
        dropped += (~expected).sum()
    assert dropped > 0


@pytest.mark.parametrize("tau", [0.5, 1.25, 2.0])
def test_class_selector_equals_the_z_score_of_each_class(tau):
    features, bank = unit(4, 16, seed=1), unit(5, 50, 16, seed=2)
    mask = select_prompts(features, bank, tau=tau, selector="class")
    np.testing.assert_array_equal(mask, per_class(features.numpy(), bank.numpy(), tau))
    assert len({tuple(row) for row in mask.tolist()}) > 1


def test_selector_none_keeps_every_prompt():
    mask = select_prompts(unit(4, 8), unit(3, 5, 8), tau=0.1, selector="none")
    assert mask.all()
    assert mask.shape == (3, 5)


@pytest.mark.parametrize("selector", ["batch", "class"])
def test_mad_of_zero_keeps_all_prompts_where_the_released_code_gives_nan(selector):
    # Four equal prompts and one far from them: MAD 0, standard deviation above 0.
    bank = torch.tensor([[[1.0, 0.0]] * 4 + [[0.0, 1.0]]])
    features = torch.tensor([[1.0, 0.0]])
    assert not released(features.numpy(), bank.numpy(), 1.5).any()
    assert select_prompts(features, bank, tau=1.5, selector=selector).all()


@pytest.mark.parametrize("selector", ["batch", "class"])
@pytest.mark.parametrize("N", [1, 2, 50])
def test_equal_prompts_are_all_kept(selector, N):
    bank = unit(2, 1, 8).float().expand(2, N, 8)
    mask = select_prompts(unit(3, 8).float(), bank, tau=0.5, selector=selector)
    assert mask.all()


@pytest.mark.parametrize("selector", ["batch", "class"])
def test_a_prompt_at_exactly_tau_is_kept(selector):
    bank = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]])  # scores 1, 0, -1: std 1
    features = torch.tensor([[1.0, 0.0]])
    kept = [
        select_prompts(features, bank, tau=tau, selector=selector)[0].tolist()
        for tau in (1.0, 0.999)
    ]
    assert kept == [[True, True, True], [False, True, False]]


def test_class_selector_with_unequal_counts_equals_each_class_alone():
    features, bank = unit(4, 16), [unit(n, 16, seed=n) for n in (20, 47, 50)]
    mask = select_prompts(features, bank, tau=1.25, selector="class")
    for c, prompts in enumerate(bank):
        expected = per_class(features.numpy(), [prompts.numpy()], 1.25)[0]
        np.testing.assert_array_equal(mask[c, : len(prompts)], expected)
        assert not mask[c, len(prompts) :].any()


def test_batch_selector_with_unequal_counts_takes_the_best_of_the_classes_that_have_the_prompt():
    features = -unit(4, 16).abs()  # similarities below zero: an absent prompt must not count as 0
    bank = [unit(n, 16, seed=n).abs() for n in (30, 40)]
    best = np.zeros(40)
    for i in range(40):
        for v in features.numpy():
            best[i] += max(v @ rows[i].numpy() for rows in bank if i < len(rows)) / 4
    expected = outliers_as_released(best, 1.25)
    mask = select_prompts(features, bank, tau=1.25)
    np.testing.assert_array_equal(mask[1], expected)
    np.testing.assert_array_equal(mask[0, :30], expected[:30])
    assert not mask[0, 30:].any()


def test_a_class_that_would_lose_all_its_prompts_keeps_them():
    # The first index scores far from the others, and class 0 has only that one.
    rows = torch.tensor([[0.0, 1.0], [1.0, 0.1], [1.0, 0.2], [1.0, 0.3], [1.0, 0.4]])
    bank = [torch.tensor([[0.0, 1.0]]), rows]
    mask = select_prompts(torch.tensor([[1.0, 0.0]]), bank, tau=1.0)
    assert mask.tolist() == [[True, False, False, False, False], [False, True, True, True, True]]
    prototype = teacher_prototypes(bank, mask)[0]
    torch.testing.assert_close(prototype, torch.tensor([0.0, 1.0]))


def test_teacher_prototypes_equal_the_loop_over_kept_prompts():
    bank = unit(3, 6, 8) * torch.arange(1, 7).view(1, 6, 1)
    mask = torch.rand(3, 6, generator=torch.Generator().manual_seed(3)) < 0.5
    expected = []
    for c in range(3):
        kept = [bank[c, i].numpy() for i in range(6) if mask[c, i]]
        mean = np.mean([feature / np.linalg.norm(feature) for feature in kept], axis=0)
        expected.append(mean / np.linalg.norm(mean))
    np.testing.assert_allclose(teacher_prototypes(bank, mask), expected, rtol=1e-12)
