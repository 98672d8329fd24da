"""What CoOp, KgCoOp, BiomedCoOp and ProGrad minimise, against plain readings."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import batch_of, text_of, unit

from ogkd.core.optimisers import TrainConfig
from ogkd.core.prompting import ContextConfig, PromptLearner
from ogkd.core.training import OwnGradient, train_step
from ogkd.methods import make_method
from ogkd.methods.biomedcoop import BiomedCoOpConfig, BiomedCoOpObjective
from ogkd.methods.coop import CrossEntropy
from ogkd.methods.kgcoop import KgCoOpObjective
from ogkd.methods.prograd import ProGradConfig, ProGradObjective, project


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


def test_the_loss_is_cross_entropy_and_the_mean_angle_to_the_template():
    batch, T_hat, T = batch_of(), unit(2, 3, 8, seed=5), unit(3, 8, seed=6)
    terms = KgCoOpObjective(4.0, T, 30.0)(2 * T_hat, batch)  # cosines do not see the length
    ce = CrossEntropy(30.0)(2 * T_hat, batch)["ce"]
    for run in range(2):
        cosines = [float(np.dot(T_hat[run, c], T[c])) for c in range(3)]
        expected = 1 - sum(cosines) / 3
        assert terms["knowledge"][run].item() == pytest.approx(expected, abs=1e-6)
        assert terms["total"][run].item() == pytest.approx(ce[run].item() + 4 * expected, rel=1e-5)


BANK = [unit(6, 8, seed=10 + c) for c in range(3)]


def selective_objective(config, T_hat, v, labels, scale):
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
        keep, expected = selective_objective(
            config, T_hat[run], batch.globals[run], batch.labels[run], 20.0
        )
        assert 0 < keep.sum() < n_prompts  # the selector has something to do
        for name, value in expected.items():
            assert terms[name][run].item() == pytest.approx(value, rel=1e-4), name


@pytest.mark.parametrize("protocol", ["few-shot", "base-to-novel"])
def test_sccm_and_tau_are_those_of_ogkd(protocol):
    names = "btmri chmnist covid ctkidney dermamnist kneexray kvasir lungcolon octmnist retina"
    for dataset in names.split():
        preset = f"paper/{protocol}/{dataset}"
        bio, ogkd = (make_method(name, preset=preset).config for name in ("biomedcoop", "ogkd"))
        selective = make_method("zero-shot-selective", preset=preset).config
        assert (bio.lambda_sccm, bio.tau) == (ogkd.lambda_sccm, ogkd.tau), preset
        assert selective.tau == ogkd.tau


def dots(a, b):
    return (a.flatten(1) * b.flatten(1)).sum(dim=1)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10**6), ratio=st.floats(1e-2, 1e3))
def test_the_projected_gradient_never_goes_against_the_general_one(seed, ratio):
    generator = torch.Generator().manual_seed(seed)
    gradient = torch.randn(6, 2, 5, generator=generator, dtype=torch.float64)
    general = ratio * torch.randn(6, 2, 5, generator=generator, dtype=torch.float64)
    bent = project(gradient, general)
    assert (dots(bent, general) >= -1e-9 * ratio).all()
    peaceful = dots(gradient, general) >= 0
    assert torch.equal(bent[peaceful], gradient[peaceful])
    # What remains of a conflict is the part at a right angle: nothing else is lost.
    angle = dots(bent, general)[~peaceful]
    torch.testing.assert_close(angle, torch.zeros_like(angle), atol=1e-9 * ratio, rtol=0)
    lost = (gradient - bent)[~peaceful]
    torch.testing.assert_close(
        dots(lost, general[~peaceful]).abs(),
        lost.flatten(1).norm(dim=1) * general[~peaceful].flatten(1).norm(dim=1),
    )


@pytest.mark.parametrize("size", [0.0, 1e-6, 1e-4])
def test_a_general_gradient_of_rounding_errors_bends_nothing(size):
    gradient = torch.tensor([[1.0, -1.0]])
    assert torch.equal(project(gradient, size * torch.tensor([[0.0, 1.0]])), gradient)


@pytest.mark.parametrize("temperature", [1.0, 4.0, 0.25])
def test_the_terms_equal_a_plain_reading(temperature):
    batch, T_hat, T = batch_of(), unit(2, 3, 8, seed=5), unit(3, 8, seed=6)
    config = ProGradConfig(temperature=temperature)
    terms = ProGradObjective(config, T, 5.0)(T_hat, batch)

    def probabilities(texts, image):
        z = 5.0 * texts.double().numpy() @ image.double().numpy() / temperature
        return np.exp(z - z.max()) / np.exp(z - z.max()).sum()

    for run in range(2):
        expected = 0.0
        for image in batch.globals[run]:
            q, p = probabilities(T, image), probabilities(T_hat[run], image)
            expected += float((q * np.log(q / p)).sum()) * temperature**2 / 4
        assert terms["kl"][run].item() == pytest.approx(expected, rel=1e-4)
    assert torch.equal(terms["total"], terms["ce"])


def test_the_loop_steps_along_the_bent_gradient(bert_backbone):
    text = text_of(bert_backbone)
    learner = PromptLearner(bert_backbone, text.class_names, ContextConfig())
    config = TrainConfig(momentum=0, weight_decay=0)
    objective = ProGradObjective(ProGradConfig(), text.single, bert_backbone.logit_scale)
    assert isinstance(objective, OwnGradient)
    start = torch.stack([learner.initial_context(torch.Generator())] * 8)
    noise = torch.randn(start.shape, generator=torch.Generator().manual_seed(0))
    contexts = (start + 0.1 * noise).requires_grad_()
    batch = batch_of(runs=8, d=bert_backbone.embed_dim)
    terms = objective(learner.text_features(contexts), batch)
    (ce,) = torch.autograd.grad(terms["ce"].sum(), contexts, retain_graph=True)
    (kl,) = torch.autograd.grad(terms["kl"].sum(), contexts)
    before = contexts.detach().clone()
    optimiser = torch.optim.SGD([contexts], lr=1.0, momentum=config.momentum)
    train_step(learner, objective, contexts, optimiser, batch, None)
    step = before - contexts.detach()
    assert (dots(ce, kl) < 0).any()
    torch.testing.assert_close(step, project(ce, kl), atol=1e-5, rtol=1e-4)


def test_the_teacher_is_zero_shot_and_not_the_student(bert_backbone):
    """The released bug made them one: then KL would be 0 whatever is learned."""
    text = text_of(bert_backbone)
    objective = make_method("prograd").objective(text)
    batch = batch_of(1, d=bert_backbone.embed_dim)
    other = objective(unit(1, 3, bert_backbone.embed_dim), batch)
    assert other["kl"].item() > 0.01
    same = objective(text.single.unsqueeze(0), batch)
    assert same["kl"].item() == pytest.approx(0, abs=1e-6)
