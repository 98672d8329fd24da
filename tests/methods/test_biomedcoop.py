from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny_prompts import batch_of, fit, quick, support_of, unit

from ogkd.methods import make_method
from ogkd.methods.biomedcoop import BiomedCoOpConfig, BiomedCoOpObjective
from ogkd.methods.ogkd import OGKDConfig, OGKDObjective

BANK = [unit(6, 8, seed=10 + c) for c in range(3)]


def plain_objective(config, T_hat, v, labels, scale):
    """Section 3 of BiomedCoOp with the released averages, with loops, in float64."""
    bank = np.stack([rows[: config.n_prompts].double().numpy() for rows in BANK])
    T_hat, v = T_hat.double().numpy(), v.double().numpy()
    C, N, d = bank.shape
    scores = np.array(
        [np.mean([max(x @ bank[c, i] for c in range(C)) for x in v]) for i in range(N)]
    )
    keep = np.abs(scores - scores.mean()) <= config.tau * scores.std(ddof=1)
    ce = kdsp = near = 0.0

    def log_softmax(z):
        return z - z.max() - np.log(np.exp(z - z.max()).sum())

    def unit_mean(rows):
        return rows.mean(0) / np.linalg.norm(rows.mean(0))

    teacher = np.stack([unit_mean(rows[keep]) for rows in bank])
    for image, label in zip(v, labels.tolist(), strict=True):
        log_p, log_q = log_softmax(scale * T_hat @ image), log_softmax(scale * teacher @ image)
        ce -= log_p[label] / len(v)
        for c in range(C):
            kdsp += np.exp(log_q[c]) * (log_q[c] - log_p[c]) / (len(v) * C)
    for c in range(C):
        near += ((T_hat[c] - unit_mean(bank[c])) ** 2).sum() / (C * d)
    total = ce + config.lambda_sccm * near + config.lambda_kdsp * kdsp
    return keep, {"ce": ce, "sccm": near, "kdsp": kdsp, "total": total}


@pytest.mark.parametrize("n_prompts", [6, 4])
def test_the_objective_equals_a_plain_reading(n_prompts):
    config = BiomedCoOpConfig(lambda_sccm=3.0, lambda_kdsp=0.7, tau=1.0, n_prompts=n_prompts)
    batch, T_hat = batch_of(), unit(2, 3, 8, seed=5)
    terms = BiomedCoOpObjective(config, BANK, 20.0)(T_hat, batch)
    for run in range(2):
        keep, expected = plain_objective(
            config, T_hat[run], batch.globals[run], batch.labels[run], 20.0
        )
        assert 0 < keep.sum() < n_prompts  # the selector has something to do
        for name, value in expected.items():
            assert terms[name][run].item() == pytest.approx(value, rel=1e-4), name


def test_it_is_ogkd_without_geometry_and_patches():
    batch, start = batch_of(), unit(2, 3, 8, seed=5)
    bio = BiomedCoOpObjective(
        BiomedCoOpConfig(lambda_sccm=3.0, lambda_kdsp=0.7, tau=1.0), BANK, 20.0
    )
    config = OGKDConfig(lambda_sccm=3.0, lambda_gad=0.7, lambda_lgd=0.0, gamma=0.0, tau=1.0)
    both = []
    for objective in (bio, OGKDObjective(config, BANK, 20.0, "cpu")):
        T_hat = start.clone().requires_grad_()
        total = objective(T_hat, batch)["total"]
        total.sum().backward()
        both.append((total.detach(), T_hat.grad))
    torch.testing.assert_close(both[0][0], both[1][0], atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(both[0][1], both[1][1], atol=1e-6, rtol=1e-5)
    assert both[0][1].abs().max() > 0.01


def test_a_whole_training_is_ogkds_without_geometry_and_patches(bert_backbone):
    support = support_of(bert_backbone)
    (bio,) = fit(quick("biomedcoop", lambda_kdsp=0.7), bert_backbone, support)
    ogkd = quick("ogkd", lambda_gad=0.7, gamma=0.0, lambda_lgd=0.0)
    (other,) = fit(ogkd, bert_backbone, support)
    torch.testing.assert_close(bio.extra["context"], other.extra["context"], atol=1e-5, rtol=1e-4)


def test_the_released_weights_are_presets_beside_ogkds():
    for protocol, dataset, kdsp in (
        ("few-shot", "dermamnist", 20.0),
        ("few-shot", "btmri", 0.25),
        ("base-to-novel", "kneexray", 3.0),
        ("base-to-novel", "lungcolon", 0.75),
    ):
        preset = f"paper/{protocol}/{dataset}"
        assert make_method("biomedcoop", preset=preset).config.lambda_kdsp == kdsp


@pytest.mark.parametrize("protocol", ["few-shot", "base-to-novel"])
def test_sccm_and_tau_are_those_of_ogkd(protocol):
    names = "btmri chmnist covid ctkidney dermamnist kneexray kvasir lungcolon octmnist retina"
    for dataset in names.split():
        preset = f"paper/{protocol}/{dataset}"
        bio, ogkd = (make_method(name, preset=preset).config for name in ("biomedcoop", "ogkd"))
        selective = make_method("zero-shot-selective", preset=preset).config
        assert (bio.lambda_sccm, bio.tau) == (ogkd.lambda_sccm, ogkd.tau), preset
        assert selective.tau == ogkd.tau
