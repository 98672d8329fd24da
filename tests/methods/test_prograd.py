from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_prompts import batch_of, fit, quick, support_of, text_of, unit

from ogkd.core.optimisers import TrainConfig
from ogkd.core.prompting import ContextConfig, PromptLearner
from ogkd.core.training import OwnGradient, train_step
from ogkd.methods import make_method
from ogkd.methods.prograd import ProGradConfig, ProGradObjective, project


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


def test_strength_says_how_much_of_the_conflict_goes():
    gradient, general = torch.tensor([[1.0, -1.0]]), torch.tensor([[0.0, 3.0]])
    assert project(gradient, general, 0.5).tolist() == [[1.0, -0.5]]
    assert project(gradient, general, 0.0).tolist() == gradient.tolist()


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


def gradients(objective, T_hat, batch):
    T_hat = T_hat.clone().requires_grad_()
    terms = objective(T_hat, batch)
    (ce,) = torch.autograd.grad(terms["ce"].sum(), T_hat, retain_graph=True)
    (kl,) = torch.autograd.grad(terms["kl"].sum(), T_hat, retain_graph=True)
    return ce, kl, objective.gradient(terms, T_hat)


def test_each_run_is_bent_by_its_own_conflict_only():
    batch, T_hat = batch_of(runs=12), unit(12, 3, 8, seed=5)
    ce, kl, bent = gradients(
        ProGradObjective(ProGradConfig(), unit(3, 8, seed=6), 5.0), T_hat, batch
    )
    conflict = dots(ce, kl) < 0
    assert 0 < int(conflict.sum()) < 12  # both kinds are seen
    assert torch.equal(bent[~conflict], ce[~conflict])
    assert (dots(bent, kl)[conflict].abs() < 1e-5).all()
    torch.testing.assert_close(bent, project(ce, kl))


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


def test_without_strength_it_is_coop(bert_backbone):
    support = support_of(bert_backbone)
    (pro,) = fit(quick("prograd", strength=0), bert_backbone, support)
    (co,) = fit(quick("coop"), bert_backbone, support)
    torch.testing.assert_close(pro.extra["context"], co.extra["context"], atol=1e-5, rtol=1e-4)


def test_the_teacher_is_zero_shot_and_not_the_student(bert_backbone):
    """The released bug made them one: then KL would be 0 whatever is learned."""
    text = text_of(bert_backbone)
    objective = make_method("prograd").objective(text)
    batch = batch_of(1, d=bert_backbone.embed_dim)
    other = objective(unit(1, 3, bert_backbone.embed_dim), batch)
    assert other["kl"].item() > 0.01
    same = objective(text.single.unsqueeze(0), batch)
    assert same["kl"].item() == pytest.approx(0, abs=1e-6)


def test_the_released_temperatures_are_presets():
    def temperature(preset):
        return make_method("prograd", preset=preset).config.temperature

    assert temperature("paper/few-shot/busi") == 0.25
    assert temperature("paper/few-shot/dermamnist") == 4.0
    assert temperature("paper/few-shot/kvasir") == 1.0
    assert temperature("paper/base-to-novel/dermamnist") == 1.0
