"""OGKD beside its formulas (core/test_fidelity.py): runs together, gamma, the fixed teacher."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import normalize
from toys import batch_of, text_of, two_views, unit

from ogkd.core.batches import Batch
from ogkd.errors import ConfigError
from ogkd.methods import make_method, presets
from ogkd.methods.ogkd import OGKD, OGKDConfig, OGKDObjective


def make_batch(runs=1):
    return batch_of(runs, patches=5)


def make_objective(config, d=8):
    bank = [unit(4, d, seed=10 + c) for c in range(3)]
    return OGKDObjective(config, bank, 30.0, "cpu")


def test_configurations_trained_together_equal_each_alone(bert_backbone):
    configs = [
        OGKDConfig(gamma=gamma, lambda_gad=weight, train={"epochs": 3, "lr": 0.05})
        for gamma, weight in ((0.0, 0.5), (0.7, 3.0))
    ]
    supports = [two_views(bert_backbone, seed) for seed in (0, 1)]
    text = text_of(bert_backbone)
    methods = [OGKD(config) for config in configs]
    together = OGKD.fit_many(methods, supports, text, seeds=[4, 9])
    for index, seed in enumerate((4, 9)):
        alone = methods[index].fit(supports[index], text, seed=seed)
        torch.testing.assert_close(together[index].T, alone.T, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("gamma", [(0.1, 0.2), 1.5, -0.1, (0.1, 0.2, 1.2)])
def test_an_impossible_gamma_is_refused(gamma):
    with pytest.raises(ConfigError, match="gamma"):
        make_objective(OGKDConfig(gamma=gamma))


def test_unknown_names_are_answered_with_the_known_ones():
    for given, nearest in (
        ({"name": "ogdk"}, "ogkd"),
        ({"name": "ogkd", "preset": "paper/few-shot/btmr"}, "paper/few-shot/btmri"),
        ({"name": "ogkd", "settings": {"lambda_gda": 1}}, "lambda_gad"),
        ({"name": "ogkd", "settings": {"train.epoch": 0}}, "train.epochs"),
        ({"name": "ogkd", "settings": {"train.epochs": 0}}, "train.epochs"),
    ):
        with pytest.raises(ConfigError, match=nearest):
            make_method(**given)


def test_the_papers_ablations_are_presets():
    def config(name):
        return make_method("ogkd", preset=f"ablation/{name}").config

    known = {name.removeprefix("ablation/") for name in presets("ogkd") if "ablation" in name}
    assert known == {
        "b",
        "b+gad",
        "b+gad+lgd",
        "lgd-full-no-geometry",
        "lgd-full-geometry",
        "lgd-label-guided",
    }
    assert (config("b").gamma, config("b").lambda_lgd) == (0.0, 0.0)
    assert config("b+gad").gamma > 0
    assert config("b+gad").lambda_lgd == 0
    assert config("b+gad+lgd").lambda_lgd > 0
    assert config("b+gad+lgd") == config("lgd-label-guided")
    assert config("lgd-full-geometry").lgd_variant == "full"
    assert config("lgd-full-no-geometry").lgd_variant == "full_no_geometry"


def test_the_papers_teacher_is_selected_once_and_the_released_one_for_each_batch():
    config = OGKDConfig(fidelity="paper", tau=0.9)
    first, second = make_batch(), Batch(unit(1, 4, 8, seed=5), make_batch().labels, None)
    seen = torch.cat([first.globals[0], second.globals[0]])
    fixed, free = make_objective(config), make_objective(config)
    fixed.fix_teacher([seen])
    T_hat = unit(1, 3, 8, seed=3)
    # Plainly: each class keeps its prompts near the mean score over all support images.
    E = torch.stack([normalize(unit(4, 8, seed=10 + c), dim=-1) for c in range(3)])
    scores = torch.einsum("bd,cnd->cn", seen, E) / len(seen)
    z = (scores - scores.mean(1, keepdim=True)) / scores.std(1, keepdim=True)
    assert not (z.abs() <= 0.9).all()
    T_tilde = torch.stack(
        [normalize(rows[keep].mean(0), dim=0) for rows, keep in zip(E, z.abs() <= 0.9, strict=True)]
    )
    torch.testing.assert_close(fixed.T_tilde[0], T_tilde)
    assert not torch.equal(free.teacher(first.globals), free.teacher(second.globals))
    z_tea = 30.0 * second.globals[0] @ T_tilde.T
    z_stu = 30.0 * second.globals[0] @ T_hat[0].T
    W, gamma = fixed.W[0], config.gamma
    target = z_tea.log_softmax(1)
    target = (1 - gamma) * target + gamma * target @ W
    gad = (target.exp() * (target - z_stu.log_softmax(1))).sum() / 4
    torch.testing.assert_close(fixed(T_hat, second)["gad"][0], gad)
    assert abs(float(free(T_hat, second)["gad"][0] - gad)) > 1e-4


@pytest.mark.parametrize("fidelity", ["paper", "released"])
def test_a_fit_fixes_the_teacher_only_as_the_paper_does(bert_backbone, fidelity, monkeypatch):
    settings = {"fidelity": fidelity, "train.epochs": 1, "lambda_lgd": 0.0, "views": 0}
    settings |= {"options.text_dropout": False}
    method = make_method("ogkd", settings=settings)
    fixed = []
    monkeypatch.setattr(OGKDObjective, "fix_teacher", lambda _, images: fixed.append(images))
    support = two_views(bert_backbone)
    method.fit(support, text_of(bert_backbone), seed=1)
    assert len(fixed) == (fidelity == "paper")
    for features in fixed:  # one view of each image
        views = support.views.features.globals
        assert features[0].shape == views[:, 0].shape
        assert all(
            bool((row == view_rows).all(-1).any())
            for row, view_rows in zip(features[0], views, strict=True)
        )
