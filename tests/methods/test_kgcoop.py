from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny_prompts import batch_of, fit, quick, support_of, text_of, unit

from ogkd.methods import make_method
from ogkd.methods.coop import CrossEntropy
from ogkd.methods.kgcoop import KgCoOpObjective


def test_the_loss_is_cross_entropy_and_the_mean_angle_to_the_template():
    batch, T_hat, T = batch_of(), unit(2, 3, 8, seed=5), unit(3, 8, seed=6)
    terms = KgCoOpObjective(4.0, T, 30.0)(2 * T_hat, batch)  # cosines do not see the length
    ce = CrossEntropy(30.0)(2 * T_hat, batch)["ce"]
    for run in range(2):
        cosines = [float(np.dot(T_hat[run, c], T[c])) for c in range(3)]
        expected = 1 - sum(cosines) / 3
        assert terms["knowledge"][run].item() == pytest.approx(expected, abs=1e-6)
        assert terms["total"][run].item() == pytest.approx(ce[run].item() + 4 * expected, rel=1e-5)


def test_on_unit_vectors_the_term_is_half_the_papers_squared_distance():
    batch, T_hat, T = batch_of(), unit(2, 3, 8, seed=5), unit(3, 8, seed=6)
    knowledge = KgCoOpObjective(1.0, T, 30.0)(T_hat, batch)["knowledge"]
    distance = (T_hat - T).square().sum(-1).mean(-1)
    torch.testing.assert_close(knowledge, distance / 2)


def test_without_weight_it_is_coop(bert_backbone):
    support = support_of(bert_backbone)
    (kg,) = fit(quick("kgcoop", weight=0), bert_backbone, support)
    (co,) = fit(quick("coop"), bert_backbone, support)
    torch.testing.assert_close(kg.extra["context"], co.extra["context"], atol=1e-5, rtol=1e-4)


def test_a_large_weight_holds_the_texts_near_the_template(bert_backbone):
    support, T = support_of(bert_backbone), text_of(bert_backbone).single
    settings = {"train.epochs": 20, "train.lr": 0.02}

    def away(weight):
        (head,) = fit(quick("kgcoop", weight=weight, **settings), bert_backbone, support)
        return (head.T - T).norm()

    assert away(100.0) < 0.5 * away(0.0)


def test_the_released_weights_are_presets():
    def weight(preset):
        return make_method("kgcoop", preset=preset).config.weight

    assert weight("paper/few-shot/busi") == 10.0
    assert weight("paper/few-shot/retina") == 1.0
    assert weight("paper/base-to-novel/retina") == 8.0
