from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny_prompts import batch_of, fit, quick, support_of, unit

from ogkd.methods.coop import CrossEntropy


def plain_cross_entropy(T_hat, v, labels, scale):
    """-log p_y of each image with loops, in float64, averaged."""
    losses = []
    for image, label in zip(v.double().numpy(), labels.tolist(), strict=True):
        z = scale * T_hat.detach().double().numpy() @ image
        losses.append(np.log(np.exp(z - z.max()).sum()) + z.max() - z[label])
    return float(np.mean(losses))


def test_the_loss_is_the_average_surprise_at_the_label():
    batch, T_hat = batch_of(), unit(2, 3, 8, seed=5)
    terms = CrossEntropy(30.0)(T_hat, batch)
    for run in range(2):
        expected = plain_cross_entropy(T_hat[run], batch.globals[run], batch.labels[run], 30.0)
        assert terms["ce"][run].item() == pytest.approx(expected, rel=1e-5)
    assert torch.equal(terms["total"], terms["ce"])


def test_texts_of_each_image_its_own_are_scored_with_their_image_alone():
    batch = batch_of()
    T_hat = unit(2, 4, 3, 8, seed=6)  # [S, B, C, d]
    losses = CrossEntropy(30.0)(T_hat, batch)["ce"]
    for run in range(2):
        each = [
            plain_cross_entropy(
                T_hat[run, b], batch.globals[run, b : b + 1], batch.labels[run, b : b + 1], 30.0
            )
            for b in range(4)
        ]
        assert losses[run].item() == pytest.approx(np.mean(each), rel=1e-5)


def test_a_separable_support_is_learned(bert_backbone):
    """Images that are the texts of their classes: training makes them more certain."""
    support = support_of(bert_backbone, views=1)
    names = ["a dark cyst", "a kidney stone", "a tumor"]
    texts = bert_backbone.encode_texts(names)[support.labels]
    support.views.features.globals[:, 0] = texts
    first, last = (
        fit(quick("coop", **{"train.epochs": epochs, "train.lr": 0.5}), bert_backbone, support)[0]
        for epochs in (1, 40)
    )

    def certainty(head):
        probabilities = head.logits(texts).softmax(-1)
        return probabilities.gather(1, support.labels[:, None]).mean().item()

    assert certainty(last) > certainty(first) + 0.05
