"""Contexts trained on the labels of bags: the loss of a bag is that of its pooled logits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, logsumexp
from tiny_prompts import LEARNERS, fit, quick, support_of, text_of, unit

from ogkd.core.batches import Batch, Run, batches_from
from ogkd.core.optimisers import TrainConfig
from ogkd.core.pooling import Bags, Pooling
from ogkd.errors import ConfigError
from ogkd.fitting.bags import BagSupport, learn
from ogkd.methods import TrainingFolder
from ogkd.methods.ogkd import OGKDConfig, OGKDObjective

BAG = torch.tensor([0, 0, 0, 1, 2, 2])
LABELS = torch.tensor([1, 1, 1, 2, 0, 0])
SCALE, D = 12.0, 8


def bag_batch(tau: float, normal: tuple[int, ...]) -> Batch:
    return Batch(
        globals=unit(1, 6, D, seed=1),
        labels=LABELS.unsqueeze(0),
        patches=unit(1, 6, 5, D, seed=2),
        bags=Bags(BAG, Pooling(tau, normal=normal)),
    )


def objective_of(config: OGKDConfig) -> OGKDObjective:
    return OGKDObjective([config], [unit(4, D, seed=10 + c) for c in range(3)], SCALE, "cpu")


@pytest.mark.parametrize("normal", [(), (0,)])
@pytest.mark.parametrize("tau", [0.0, 1.0, float("inf")])
def test_ogkd_on_bags_equals_a_plain_reading(tau: float, normal: tuple[int, ...]) -> None:
    config = OGKDConfig(lambda_lgd=0.7, top_ratio=0.4)
    T_hat, batch = unit(1, 3, D, seed=5), bag_batch(tau, normal)
    ours = objective_of(config)(T_hat, batch)

    z = SCALE * batch.globals[0].double().numpy() @ T_hat[0].double().numpy().T
    others = z[:, list(normal)] if normal else z
    near = z - logsumexp(others, axis=1, keepdims=True)
    ce, shares = 0.0, np.zeros(6)
    for number in range(3):
        mine = [n for n in range(6) if BAG[n] == number]
        y = int(LABELS[mine[0]])
        if tau == 0:
            bag = near[mine].max(axis=0)
            shares[mine] = near[mine, y] == bag[y]
        elif tau == 1:
            bag = np.log(np.exp(near[mine]).mean(axis=0))
            shares[mine] = np.exp(near[mine, y])
        else:
            bag = near[mine].mean(axis=0)
            shares[mine] = 1
        shares[mine] /= shares[mine].sum()
        ce -= log_softmax(bag)[y] / 3
    assert ours["ce"].item() == pytest.approx(ce, rel=1e-4)

    # What needs no bag is that of six images; LGD is that of each image, weighed by its share.
    images = replace(batch, bags=None)
    assert torch.equal(ours["gad"], objective_of(config)(T_hat, images)["gad"])
    alone = []
    whole = objective_of(config)
    whole.fix_teacher([batch.globals[0]])
    assert batch.patches is not None
    for n in range(6):
        one = Batch(
            batch.globals[:, n : n + 1], batch.labels[:, n : n + 1], batch.patches[:, n : n + 1]
        )
        alone.append(whole(T_hat, one)["lgd"].item())
    assert ours["lgd"].item() == pytest.approx(float(shares @ alone) / 3, rel=1e-4)


@pytest.mark.parametrize("name", LEARNERS)
def test_bags_of_one_picture_train_to_the_bits_of_single_images(name, bert_backbone) -> None:
    support = support_of(bert_backbone, views=1)
    text = text_of(bert_backbone, normal=(0,))
    rows = support.views.features.globals[:, 0]
    bag = torch.arange(len(rows))
    given = BagSupport(replace(support, bag=bag), rows, support.labels, None)
    (single,) = fit(quick(name), bert_backbone, support, text=text, seeds=[3])
    pooled, _ = learn(quick(name), given, text, seed=3)
    for key, tensor in single.tensors().items():
        assert torch.equal(tensor, pooled.tensors()[key]), key


@pytest.mark.parametrize("name", LEARNERS)
def test_every_learner_has_the_loss_of_bags(name, bert_backbone) -> None:
    """Pooled bags of one picture are single images, up to rounding; of two, something else."""
    text = text_of(bert_backbone, normal=(0,))
    d, T_hat = bert_backbone.embed_dim, unit(1, 3, bert_backbone.embed_dim, seed=4)
    if name == "cocoop":
        T_hat = unit(1, 6, 3, d, seed=4)
    single = Batch(unit(1, 6, d, seed=1), torch.tensor([[1, 1, 2, 2, 0, 0]]), None)
    objective = quick(name).objective(text)
    expected = objective(T_hat, single)
    for size in (1, 2):
        bags = Bags(torch.arange(6) // size, Pooling(normal=(0,)))
        found = objective(T_hat, replace(single, bags=bags))
        same = torch.allclose(found["ce"], expected["ce"], rtol=1e-5)
        assert same == (size == 1)
        for term in found.keys() - {"ce", "total"}:
            torch.testing.assert_close(found[term], expected[term])


@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_batches_have_whole_bags(optimiser, bert_backbone) -> None:
    support = support_of(bert_backbone, labels=LABELS.tolist(), views=1)
    run = Run(support.views, LABELS, 1, Bags(BAG, Pooling()))
    config = TrainConfig(optimiser=optimiser, epochs=1, batch_size=2, drop_last=False)
    seen = []
    for batch in batches_from(0, [run], config, torch.device("cpu")):
        assert batch.bags is not None
        for number in range(int(batch.bags.bag.max()) + 1):
            mine = batch.globals[0, batch.bags.bag == number]
            rows = torch.cdist(mine, support.views.features.globals[:, 0]).argmin(1)
            assert torch.equal(rows, (BAG[rows[0]] == BAG).nonzero().squeeze(1))
            seen.append(int(BAG[rows[0]]))
        z = torch.eye(3)[batch.labels]
        labels = batch.answers(z)[1][0].tolist()
        assert labels == [int(LABELS[number == BAG][0]) for number in seen[-len(labels) :]]
    assert sorted(seen) == [0, 1, 2]


def test_training_lowers_the_loss_of_bags(bert_backbone, tmp_path) -> None:
    support = support_of(bert_backbone, labels=LABELS.tolist(), views=1)
    seen = []
    method = quick("ogkd", **{"train.epochs": 20, "train.optimiser": "adam"})
    fit(
        method,
        bert_backbone,
        replace(support, bag=BAG, pooling=Pooling()),
        folder=TrainingFolder(tmp_path, "x", seen.append),
    )
    (first,), (last,) = (seen[n]["terms"]["ce"] for n in (0, -1))
    assert last < 0.5 * first


def test_runs_on_bags_are_trained_one_by_one(bert_backbone) -> None:
    support = replace(support_of(bert_backbone), bag=BAG, pooling=Pooling())
    with pytest.raises(ConfigError, match="one by one"):
        fit(quick("coop"), bert_backbone, support, support)
