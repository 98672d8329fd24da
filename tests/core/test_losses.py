"""Each loss against a plain float64 numpy loop, and its behaviour where the paper is silent."""

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from ogkd.core.geometry import class_graph
from ogkd.core.losses import (
    cross_entropy,
    gad,
    gather_patches,
    lgd,
    logits,
    patches_kept,
    sccm,
    select_patches,
)

B, C, P, K, d = 4, 5, 9, 3, 16
GAMMAS = [0.0, 0.3, 1.0, [0.0, 0.2, 0.5, 0.9, 1.0]]


def random(*shape, seed=0, scale=1.0):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(*shape, dtype=torch.float64, generator=generator)


def graph(seed=9):
    return class_graph(random(C, d, seed=seed), 4.0)


def random_labels(*shape, seed=5):
    return torch.randint(C, shape, generator=torch.Generator().manual_seed(seed))


def log_softmax_loop(z):
    return z - z.max() - np.log(np.exp(z - z.max()).sum())


def diffuse_loop(log_q, W, gamma):
    result = np.zeros_like(log_q)
    for j in range(len(log_q)):
        g = gamma[j] if isinstance(gamma, list) else gamma
        mixed = sum(log_q[i] * W[i, j] for i in range(len(log_q)))
        result[j] = (1 - g) * log_q[j] + g * mixed
    return result


def kl_loop(student, teacher, W, gamma, temperature=1.0, channels=None):
    """Σ over `channels` (all classes by default) of exp(q*) (q* - log p) at one token."""
    log_p = log_softmax_loop(student / temperature)
    target = diffuse_loop(log_softmax_loop(teacher / temperature), W, gamma)
    chosen = range(len(target)) if channels is None else channels
    return sum(np.exp(target[c]) * (target[c] - log_p[c]) for c in chosen)


# Logits and cross-entropy


def test_cross_entropy_equals_the_loop_and_torch():
    z, y = random(B, C, scale=10), random_labels(B)
    expected = np.mean([-log_softmax_loop(z[b].numpy())[y[b]] for b in range(B)])
    np.testing.assert_allclose(cross_entropy(z, y), expected, rtol=1e-12)
    torch.testing.assert_close(cross_entropy(z, y), torch.nn.functional.cross_entropy(z, y))


# SCCM


@pytest.mark.parametrize(("normalisation", "count"), [("mean", C * d), ("class", C)])
def test_sccm_equals_the_loop(normalisation, count):
    T_hat, T = random(C, d), random(C, d, seed=1)
    expected = sum((T_hat[c, i] - T[c, i]) ** 2 for c in range(C) for i in range(d)) / count
    torch.testing.assert_close(sccm(T_hat, T, normalisation=normalisation), expected)


# GAD


@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize(("normalisation", "count"), [("batch_class", B * C), ("batch", B)])
def test_gad_equals_the_loop(normalisation, count, gamma, temperature):
    student, teacher, W = random(B, C, scale=4), random(B, C, seed=1, scale=4), graph()
    total = 0.0
    for b in range(B):
        pair = student[b].numpy(), teacher[b].numpy()
        total += kl_loop(*pair, W.numpy(), gamma, temperature)
    value = gad(student, teacher, W, gamma, normalisation=normalisation, temperature=temperature)
    np.testing.assert_allclose(value, total / count, rtol=1e-10)


# Patches


@pytest.mark.parametrize("absolute", [True, False])
@pytest.mark.parametrize("k", [1, 4, P])
def test_select_patches_equals_sorting_the_scores(k, absolute):
    Z, T, y = normalize(random(B, P, d), dim=-1), normalize(random(C, d), dim=-1), random_labels(B)
    indices = select_patches(Z, T, y, k, absolute=absolute)
    assert indices.shape == (B, k)
    for b in range(B):
        scores = [float(np.dot(Z[b, n], T[y[b]])) for n in range(P)]
        scores = [abs(s) for s in scores] if absolute else scores
        expected = sorted(range(P), key=lambda n: -scores[n])[:k]
        assert set(indices[b].tolist()) == set(expected)


RATIOS = [0.01, 0.03, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 0.9]


def test_patches_kept_of_196_are_those_of_the_released_code_and_of_the_paper():
    released = [patches_kept(196, ratio) for ratio in RATIOS]
    assert released == [2, 6, 10, 20, 39, 59, 78, 98, 118, 157, 176]
    paper = [patches_kept(196, ratio, rounding="floor") for ratio in RATIOS]
    assert paper == [1, 5, 9, 19, 39, 58, 78, 98, 117, 156, 176]


def test_patches_kept_rounds_half_to_even_and_keeps_at_least_one():
    assert [patches_kept(5, 0.1), patches_kept(5, 0.5), patches_kept(7, 0.5)] == [1, 2, 4]
    assert patches_kept(10, 0.01, rounding="floor") == 1
    assert patches_kept(7, 1.0) == patches_kept(7, 1.0, rounding="floor") == 7


def test_floor_is_not_misled_by_binary_fractions():
    assert 100 * 0.29 < 29
    assert patches_kept(100, 0.29, rounding="floor") == 29


# LGD


@pytest.mark.parametrize("temperature", [1.0, 2.5])
@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize("variant", ["label_guided", "full", "full_no_geometry"])
@pytest.mark.parametrize(("normalisation", "count"), [("batch_patch", B * K), ("batch", B)])
def test_lgd_equals_the_loop(normalisation, count, variant, gamma, temperature):
    student, teacher = random(B, K, C, scale=4), random(B, K, C, seed=1, scale=4)
    y, W = random_labels(B), graph()
    strength = 0.0 if variant == "full_no_geometry" else gamma
    total = 0.0
    for b in range(B):
        channels = [y[b]] if variant == "label_guided" else None
        for k in range(K):
            pair = student[b, k].numpy(), teacher[b, k].numpy()
            total += kl_loop(*pair, W.numpy(), strength, temperature, channels)
    options = {"temperature": temperature, "variant": variant}
    value = lgd(student, teacher, y, W, gamma, normalisation=normalisation, **options)
    np.testing.assert_allclose(value, total / count, rtol=1e-10)


# Options, gradients and seeds


def objective(v, Z, T_hat, T_tilde, T, y, W, gamma, k=4):
    """Each term, as the training loop computes it."""
    Z = gather_patches(Z, select_patches(Z, T_tilde, y, k))
    student, teacher = logits(v, T_hat, 10.0), logits(v, T_tilde, 10.0)
    patches = logits(Z, T_hat, 10.0), logits(Z, T_tilde, 10.0)
    return {
        "ce": cross_entropy(student, y),
        "sccm": sccm(T_hat, T),
        "gad": gad(student, teacher, W, gamma),
        "lgd": lgd(*patches, y, W, gamma),
    }


def inputs():
    return {
        "v": normalize(random(B, d, seed=1), dim=-1),
        "Z": normalize(random(B, P, d, seed=2), dim=-1),
        "T_hat": normalize(random(C, d, seed=3), dim=-1),
        "T_tilde": normalize(random(C, d, seed=4), dim=-1),
        "T": normalize(random(C, d, seed=5), dim=-1),
        "y": random_labels(B),
        "W": graph(),
        "gamma": torch.tensor(GAMMAS[-1], dtype=torch.float64),
    }


def test_gradients_reach_the_student_alone():
    data = inputs()
    teacher = [data[name].requires_grad_() for name in ("T_tilde", "T", "W", "gamma")]
    T_hat = data["T_hat"].requires_grad_()
    for name, term in objective(**data).items():
        gradients = torch.autograd.grad(
            term, [T_hat, *teacher], allow_unused=True, retain_graph=True
        )
        assert gradients[0].abs().sum() > 0, name
        assert all(gradient is None for gradient in gradients[1:]), name


@pytest.mark.parametrize("name", ["cross_entropy", "sccm", "gad", "lgd"])
def test_gradients_equal_finite_differences(name):
    y, W = random_labels(B), graph()
    teacher, patches = random(B, C, seed=1), random(B, 3, C, seed=2)
    function, start = {
        "cross_entropy": (lambda z: cross_entropy(z, y), random(B, C)),
        "sccm": (lambda z: sccm(z, teacher), random(B, C)),
        "gad": (lambda z: gad(z, teacher, W, 0.5, temperature=2.0), random(B, C)),
        "lgd": (lambda z: lgd(z, patches, y, W, 0.5, temperature=2.0), random(B, 3, C)),
    }[name]
    assert torch.autograd.gradcheck(function, (start.requires_grad_(),))
