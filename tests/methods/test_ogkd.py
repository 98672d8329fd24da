"""The whole objective against a plain loop written from the paper, and its special cases."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from ogkd.backbones.base import ImageFeatures
from ogkd.core.batches import Batch
from ogkd.core.losses import diffuse
from ogkd.errors import ConfigError
from ogkd.features.views import FixedViews
from ogkd.methods import Support, TextSide, make_method, presets
from ogkd.methods.ogkd import OGKD, OGKDConfig, OGKDObjective
from ogkd.methods.prompt_method import EachRun

NAMES = ("cyst", "stone", "tumor")
PROMPTS = tuple(tuple(f"{word} {name}" for word in ("a", "the", "one", "seen")) for name in NAMES)


def unit(*shape, seed=0):
    return normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


def make_batch(runs=1, images=4, patches=5, d=8):
    return Batch(
        globals=unit(runs, images, d, seed=1),
        labels=torch.arange(runs * images).view(runs, images) % 3,
        patches=unit(runs, images, patches, d, seed=2),
    )


def make_objective(config, d=8):
    bank = [unit(4, d, seed=10 + c) for c in range(3)]
    return OGKDObjective(config, bank, 30.0, "cpu")


def plain_objective(config, bank, T_hat, v, Z, y, scale, *, paper):
    """Equations 1-16 for one batch, with loops, in float64."""
    bank = [normalize(rows, dim=-1).double().numpy() for rows in bank]
    T_hat, v, Z = (x.detach().double().numpy() for x in (T_hat, v, Z))

    def log_softmax(z):
        z = z - z.max()
        return z - np.log(np.exp(z).sum())

    def norm(x):
        return x / np.linalg.norm(x)

    C, d = T_hat.shape
    B, P, N = v.shape[0], Z.shape[1], bank[0].shape[0]
    T = np.stack([norm(rows.mean(0)) for rows in bank])
    S = config.alpha * T @ T.T
    W = np.stack([np.exp(log_softmax(row)) for row in S])
    if paper:
        s = np.array(
            [[np.mean([v[b] @ bank[c][i] for b in range(B)]) for i in range(N)] for c in range(C)]
        )
    else:
        s = np.array(
            [
                np.mean([max(v[b] @ bank[c][i] for c in range(C)) for b in range(B)])
                for i in range(N)
            ]
        )
        s = np.stack([s] * C)
    T_tilde = []
    for c in range(C):
        keep = np.abs(s[c] - s[c].mean()) <= config.tau * s[c].std(ddof=1)
        T_tilde.append(norm(bank[c][keep].mean(0)))
    T_tilde = np.stack(T_tilde)
    ce = sccm = gad = lgd = 0.0
    sccm = ((T_hat - T) ** 2).sum() / (C if paper else C * d)
    K = max(1, int(np.floor(P * config.top_ratio)) if paper else round(P * config.top_ratio))
    for b in range(B):
        log_p, log_q = log_softmax(scale * T_hat @ v[b]), log_softmax(scale * T_tilde @ v[b])
        ce -= log_p[y[b]] / B
        target = (1 - config.gamma) * log_q + config.gamma * log_q @ W
        gad += (np.exp(target) * (target - log_p)).sum() / (B if paper else B * C)
        score = Z[b] @ T_tilde[y[b]]
        best = np.argsort(-(score if paper else np.abs(score)), kind="stable")[:K]
        for n in best:
            log_p, log_q = (
                log_softmax(scale * T_hat @ Z[b, n]),
                log_softmax(scale * T_tilde @ Z[b, n]),
            )
            u = ((1 - config.gamma) * log_q + config.gamma * log_q @ W)[y[b]]
            lgd += np.exp(u) * (u - log_p[y[b]]) / (B if paper else B * K)
    total = ce + config.lambda_sccm * sccm + config.lambda_gad * gad + config.lambda_lgd * lgd
    return {"total": total, "ce": ce, "sccm": sccm, "gad": gad, "lgd": lgd}


@pytest.mark.parametrize("fidelity", ["released", "paper"])
def test_the_objective_equals_a_plain_reading_of_the_paper(fidelity):
    config = OGKDConfig(fidelity=fidelity, tau=1.0, top_ratio=0.5, gamma=0.4, lambda_gad=2.0)
    objective, batch = make_objective(config), make_batch()
    T_hat = unit(1, 3, 8, seed=5)
    ours = objective(T_hat, batch)
    bank = [unit(4, 8, seed=10 + c) for c in range(3)]
    expected = plain_objective(
        config,
        bank,
        T_hat[0],
        batch.globals[0],
        batch.patches[0],
        batch.labels[0].tolist(),
        30.0,
        paper=fidelity == "paper",
    )
    for name, value in expected.items():
        assert ours[name].item() == pytest.approx(value, rel=1e-4, abs=1e-5), name


def test_runs_with_different_weights_do_not_touch_each_other():
    configs = [
        OGKDConfig(lambda_gad=1.0, gamma=0.2, alpha=1.0),
        OGKDConfig(lambda_gad=5.0, gamma=(0.0, 0.5, 1.0), alpha=4.0, lambda_lgd=0.0),
    ]
    batch, T_hat = make_batch(runs=2), unit(2, 3, 8, seed=5)
    together = EachRun([make_objective(config) for config in configs])(T_hat, batch)
    for run, config in enumerate(configs):
        single = Batch(
            batch.globals[run : run + 1], batch.labels[run : run + 1], batch.patches[run : run + 1]
        )
        alone = make_objective(config)(T_hat[run : run + 1], single)
        for name in alone:
            torch.testing.assert_close(together[name][run], alone[name][0], atol=1e-5, rtol=1e-5)


def test_the_order_of_classes_does_not_change_the_loss():
    config, batch, T_hat = OGKDConfig(), make_batch(), unit(1, 3, 8, seed=5)
    order = torch.tensor([2, 0, 1])
    bank = [unit(4, 8, seed=10 + c) for c in range(3)]
    first = OGKDObjective(config, bank, 30.0, "cpu")(T_hat, batch)
    turned = Batch(batch.globals, order.argsort()[batch.labels], batch.patches)
    second = OGKDObjective(config, [bank[c] for c in order], 30.0, "cpu")(T_hat[:, order], turned)
    for name in first:
        torch.testing.assert_close(first[name], second[name], atol=1e-5, rtol=1e-5)


def make_support(backbone, seed=0, shots=2):
    labels = torch.arange(3).repeat_interleave(shots)
    globals_ = unit(3 * shots, 2, backbone.embed_dim, seed=seed)
    patches = unit(3 * shots, 2, 4, backbone.embed_dim, seed=seed + 50).half()
    return Support(FixedViews(ImageFeatures(globals_, patches)), labels)


def text_of(backbone):
    return TextSide(backbone, NAMES, PROMPTS)


def quick(**settings):
    return {"train.epochs": 3, "train.lr": 0.05, **settings}


def test_configurations_trained_together_equal_each_alone(bert_backbone):
    configs = [
        OGKDConfig(gamma=gamma, lambda_gad=weight, train={"epochs": 3, "lr": 0.05})
        for gamma, weight in ((0.0, 0.5), (0.7, 3.0))
    ]
    supports = [make_support(bert_backbone, seed) for seed in (0, 1)]
    text = text_of(bert_backbone)
    methods = [OGKD(config) for config in configs]
    together = OGKD.fit_many(methods, supports, text, seeds=[4, 9])
    for index, seed in enumerate((4, 9)):
        alone = methods[index].fit(supports[index], text, seed=seed)
        torch.testing.assert_close(together[index].T, alone.T, atol=1e-5, rtol=1e-4)


def test_configurations_of_another_shape_are_refused(bert_backbone):
    methods = [OGKD(OGKDConfig()), OGKD(OGKDConfig(tau=2.0))]
    with pytest.raises(ConfigError, match="differ in tau"):
        OGKD.fit_many(methods, [], text_of(bert_backbone), seeds=[1, 2])


@pytest.mark.parametrize("gamma", [(0.1, 0.2), 1.5, -0.1, (0.1, 0.2, 1.2)])
def test_an_impossible_gamma_is_refused(gamma):
    with pytest.raises(ConfigError, match="gamma"):
        make_objective(OGKDConfig(gamma=gamma))


def test_patches_are_not_asked_for_without_lgd():
    assert make_method("ogkd").uses_patches
    assert not make_method("ogkd", settings={"lambda_lgd": 0}).uses_patches


def test_the_papers_settings_are_presets():
    known = presets("ogkd")
    few_shot = [name for name in known if name.startswith("paper/few-shot/")]
    base_to_novel = [name for name in known if name.startswith("paper/base-to-novel/")]
    assert (len(few_shot), len(base_to_novel)) == (11, 10)
    config = make_method("ogkd", preset="paper/few-shot/dermamnist").config
    assert (config.lambda_gad, config.lambda_lgd, config.gamma) == (24.0, 4.0, 0.6)
    assert (config.alpha, config.train.epochs, config.views) == (4.0, 100, "online")
    config = make_method("ogkd", preset="paper/base-to-novel/kvasir").config
    assert (config.lambda_lgd, config.alpha, config.train.epochs) == (22.0, 1.0, 50)


def test_unknown_names_are_answered_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"Did you mean 'ogkd'.*zero-shot"):
        make_method("ogdk")
    with pytest.raises(ConfigError, match=r"Did you mean 'paper/few-shot/btmri'"):
        make_method("ogkd", preset="paper/few-shot/btmr")
    with pytest.raises(ConfigError, match=r"no setting 'lambda_gda'\. Did you mean 'lambda_gad'"):
        make_method("ogkd", settings={"lambda_gda": 1})
    with pytest.raises(ConfigError, match=r"Setting 'train.epochs' of ogkd cannot be 0"):
        make_method("ogkd", settings={"train.epochs": 0})


def test_a_number_that_no_training_survives_is_refused_by_its_name():
    with pytest.raises(ConfigError, match=r"^ogkd: train\.lr = 1e\+30 is larger than 1e\+12\. "):
        make_method("ogkd", settings={"train.lr": 1e30})
    with pytest.raises(ConfigError, match=r"views is larger than 1e\+06"):
        make_method("ogkd", settings={"views": 10**400})


def test_settings_go_over_presets_go_over_defaults():
    config = make_method(
        "ogkd", preset="paper/few-shot/busi", settings={"gamma": 0.9, "train": {"epochs": 7}}
    ).config
    assert (config.gamma, config.train.epochs, config.lambda_lgd) == (0.9, 7, 0.75)
    assert config.train.batch_size == 4


def make_normal(gamma, gamma_normal, normal):
    bank = [unit(4, 8, seed=10 + c) for c in range(3)]
    config = OGKDConfig(gamma=gamma, gamma_normal=gamma_normal)
    return OGKDObjective(config, bank, 30.0, "cpu", normal=normal)


def test_gamma_of_normal_classes_is_their_own_in_both_distillations():
    batch, T_hat = make_batch(), unit(1, 3, 8, seed=5)
    terms = make_normal(0.6, 0.0, normal=(1,))(T_hat, batch)
    expected = make_normal((0.6, 0.0, 0.6), None, normal=())(T_hat, batch)
    plain = make_normal(0.6, None, normal=(1,))(T_hat, batch)
    for name in ("total", "gad", "lgd"):
        assert torch.equal(terms[name], expected[name]), name
        assert not torch.equal(terms[name], plain[name]), name


def test_gamma_normal_goes_over_a_vector_of_gammas():
    objective = make_normal((0.1, 0.2, 0.3), 0.9, normal=(0, 2))
    torch.testing.assert_close(objective.gamma, torch.tensor([[0.9, 0.2, 0.9]]))


def test_with_gamma_normal_zero_the_teacher_keeps_its_word_on_the_normal_class():
    """The minimum of GAD over p is at the diffused target: the normal class's is untouched."""
    objective = make_normal(0.6, 0.0, normal=(1,))
    log_q = unit(4, 3, seed=3).log_softmax(-1)
    diffused = diffuse(log_q, objective.W[0], objective.gamma[0])
    assert torch.equal(diffused[:, 1], log_q[:, 1])
    assert not torch.equal(diffused[:, 0], log_q[:, 0])


def test_gamma_normal_without_a_normal_class_is_refused(bert_backbone):
    method = make_method("ogkd", settings=quick(gamma_normal=0))
    with pytest.raises(ConfigError, match=r"gamma_normal is 0.*none of the 3 classes"):
        method.fit(make_support(bert_backbone), text_of(bert_backbone), seed=1)
    with pytest.raises(ConfigError, match="gamma_normal"):
        make_method("ogkd", settings={"gamma_normal": 1.5})


def test_the_normal_classes_come_from_the_text_side(bert_backbone):
    def contexts(normal):
        method = make_method("ogkd", settings=quick(gamma=0.9, gamma_normal=0, lambda_gad=20))
        text = TextSide(bert_backbone, NAMES, PROMPTS, normal)
        head = method.fit(make_support(bert_backbone), text, seed=1)
        return head.extra["context"]

    assert torch.equal(contexts((1,)), contexts((1,)))
    assert not torch.equal(contexts((1,)), contexts((2,)))


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
    support = make_support(bert_backbone)
    method.fit(support, text_of(bert_backbone), seed=1)
    assert len(fixed) == (fidelity == "paper")
    for features in fixed:  # one view of each image
        views = support.views.features.globals
        assert features[0].shape == views[:, 0].shape
        assert all(
            bool((row == view_rows).all(-1).any())
            for row, view_rows in zip(features[0], views, strict=True)
        )
