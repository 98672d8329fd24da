"""PromptSRC's text-only form, SAR and GraphAdapter against plain readings."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from toys import NAMES, batch_of, fit_head, make_support, make_text, text_of, two_views, unit

from ogkd.core.optimisers import TrainConfig, epoch_weights
from ogkd.core.prompting import ContextConfig, PromptLearner
from ogkd.errors import ConfigError
from ogkd.methods import make_method, rows_of
from ogkd.methods.coop import CrossEntropy
from ogkd.methods.promptsrc import AnchoredConfig, AnchoredObjective
from ogkd.methods.sar import SARConfig, SARObjective

BANK = [unit(6, 8, seed=10 + c) for c in range(3)]


def log_softmax(z):
    return z - z.max() - np.log(np.exp(z - z.max()).sum())


@pytest.mark.parametrize("n_prompts", [6, 4])
def test_anchored_objective_equals_a_plain_reading(n_prompts):
    config = AnchoredConfig(lambda_l1=12.5, lambda_kl=0.25, n_prompts=n_prompts)
    batch, T_hat = batch_of(), unit(2, 3, 8, seed=5)
    terms = AnchoredObjective(config, BANK, 20.0)(T_hat, batch)
    ce = CrossEntropy(20.0)(T_hat, batch)["ce"]
    means = [rows[:n_prompts].double().numpy().mean(0) for rows in BANK]
    T = np.stack([mean / np.linalg.norm(mean) for mean in means])
    for run in range(2):
        student, v = T_hat[run].double().numpy(), batch.globals[run].double().numpy()
        l1 = sum(abs(student[c, f] - T[c, f]) for c in range(3) for f in range(8)) / 24
        kl = 0.0
        for image in v:
            log_p, log_q = log_softmax(20 * student @ image), log_softmax(20 * T @ image)
            kl += sum(np.exp(log_q[c]) * (log_q[c] - log_p[c]) for c in range(3))
        kl /= len(v) * 3
        assert terms["l1"][run].item() == pytest.approx(l1, rel=1e-5)
        assert terms["kl"][run].item() == pytest.approx(kl, rel=1e-4)
        total = ce[run].item() + 12.5 * l1 + 0.25 * kl
        assert terms["total"][run].item() == pytest.approx(total, rel=1e-5)


def test_epoch_weights_are_a_normalised_gaussian():
    weights = epoch_weights(TrainConfig(average=(3.0, 2.0)), 6)
    densities = [math.exp(-(((e - 3) / 2) ** 2) / 2) for e in range(1, 7)]
    assert weights == pytest.approx([density / sum(densities) for density in densities])
    assert sum(epoch_weights(TrainConfig(average=(500.0, 0.1)), 6)) == pytest.approx(1)


def test_average_is_that_of_the_contexts_of_all_epochs(bert_backbone):
    text, support = text_of(bert_backbone), two_views(bert_backbone)

    def context(epochs, **settings):
        # A constant rate, so that a shorter training is the start of a longer one.
        shared = {"optimiser": "adam", "batch_size": 4, "lr": 0.02, "epochs": epochs}
        return fit_head("coop", support, text, train=shared | settings).tensors()["context"]

    each = [context(epochs) for epochs in (1, 2, 3)]
    weights = epoch_weights(TrainConfig(average=(2.0, 1.0)), 3)
    expected = sum(weight * one for weight, one in zip(weights, each, strict=True))
    torch.testing.assert_close(context(3, average=(2.0, 1.0)), expected, atol=1e-6, rtol=0)
    assert not torch.allclose(each[2], expected, atol=1e-3)


@pytest.mark.parametrize("related", [0, 2])
def test_sar_objective_equals_a_plain_reading(related):
    config = SARConfig(weight=3.0, alpha=5.0)
    batch, T_hat, T = batch_of(), unit(2, 3 + related, 8, seed=5), unit(3 + related, 8, seed=6)
    terms = SARObjective(config, T, 3, 20.0)(T_hat, batch)
    ce = CrossEntropy(20.0)(T_hat[:, :3], batch)["ce"]
    names = range(3 + related)
    for run in range(2):
        student, alignment = T_hat[run], 0.0
        for i in names:
            others = [j for j in names if j != i]
            log_p = log_softmax(np.array([5 * float(T[i] @ T[j]) for j in others]))
            log_q = log_softmax(np.array([5 * float(student[i] @ student[j]) for j in others]))
            alignment += float((np.exp(log_p) * (log_p - log_q)).sum()) / len(names)
        assert terms["alignment"][run].item() == pytest.approx(alignment, rel=1e-4)
        total = ce[run].item() + 3 * alignment
        assert terms["total"][run].item() == pytest.approx(total, rel=1e-5)


def test_related_names_change_the_context_but_are_no_classes(bert_backbone):
    text, support = text_of(bert_backbone), two_views(bert_backbone)
    quick = {"train": {"epochs": 3, "batch_size": 4, "lr": 0.02}, "weight": 50.0}
    plain = fit_head("sar", support, text, **quick)
    head = fit_head("sar", support, text, related=("calcification", "oedema"), **quick)
    assert head.shape == plain.shape == (3, bert_backbone.embed_dim)
    assert not torch.allclose(head.tensors()["context"], plain.tensors()["context"], atol=1e-4)
    # Without weight, related names change nothing.
    quick["weight"] = 0.0
    without = fit_head("sar", support, text, related=("calcification", "oedema"), **quick)
    coop = fit_head("coop", support, text, train=quick["train"])
    torch.testing.assert_close(without.class_texts, coop.class_texts, atol=1e-5, rtol=0)


def test_other_classes_get_the_context_of_sar(bert_backbone):
    settings = {"related": ("calcification",), "train": {"epochs": 2, "lr": 0.02}}
    method = make_method("sar", settings=settings)
    text = text_of(bert_backbone)
    head = method.fit(two_views(bert_backbone), text, seed=1)
    other = method.head_for(head, text_of(bert_backbone, NAMES[2:]))
    assert other.shape[0] == 2
    torch.testing.assert_close(other.class_texts[0], head.class_texts[2], atol=1e-5, rtol=0)


def test_graph_adapter_equals_a_plain_graph_convolution():
    support, text = make_support((3, 2, 4, 1)), make_text()
    settings = {"alpha": 0.6, "beta": 0.4, "epochs": 4, "batch_size": 100, "lr": 0.05}
    head = fit_head("graph-adapter", support, text, **settings)
    rows, T = rows_of(support, text.class_names), text.single
    C, d = T.shape
    means = torch.stack([rows.features[rows.labels == c].sum(0) for c in range(C)])
    means = means / means.norm(dim=1, keepdim=True)
    generator = torch.Generator().manual_seed(1)
    start = torch.empty(2, d, d).uniform_(-1, 1, generator=generator) / d**0.5
    W, b = start.clone().requires_grad_(), torch.zeros(2, C, d, requires_grad=True)

    def layer(c, nodes, W, b):
        X = torch.stack([T[c], *nodes])
        A = torch.zeros(C + 1, C + 1)
        for i in range(C + 1):
            for j in range(C + 1):
                A[i, j] = max(0.0, float(X[i] @ X[j])) + (i == j)
        D = torch.diag(A.sum(1) ** -0.5)
        return torch.tanh((D @ A @ D @ X @ W)[0] + b[c])

    def texts():
        adapted = [
            0.4 * T[c] + 0.6 * (0.6 * layer(c, T, W[0], b[0]) + 0.4 * layer(c, means, W[1], b[1]))
            for c in range(C)
        ]
        return torch.stack([t / t.norm() for t in adapted])

    optimiser = torch.optim.Adam([W, b], lr=0.05)
    for _ in range(4):
        z = text.backbone.logit_scale * rows.features @ texts().mT
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(z, rows.labels).backward()
        optimiser.step()
    torch.testing.assert_close(head.class_texts, texts().detach(), atol=2e-4, rtol=0)
    assert not torch.allclose(head.class_texts, T, atol=0.01)


def test_template_keeps_its_words_and_learns_the_first(bert_backbone):
    template = "a photo of a {} in the kidney."
    learner = PromptLearner(bert_backbone, NAMES[:2], ContextConfig(n_ctx=2, template=template))
    context = learner.initial_context(torch.Generator())
    assert context.shape[0] == 2
    full = bert_backbone.tokenize([template.format(name) for name in NAMES[:2]])
    expected = bert_backbone.encode_text(bert_backbone.embed(full), full)
    torch.testing.assert_close(learner.text_features(context[None])[0], expected)
    other = learner.text_features(context[None] + unit(*context.shape, seed=1))[0]
    assert not torch.allclose(other, expected, atol=1e-3)


@pytest.mark.parametrize("template", ["no place", "{} and {}"])
def test_template_without_one_place_for_the_name_is_refused(template):
    with pytest.raises(ConfigError):
        make_method("coop", settings={"context.template": template})


def test_template_with_too_few_words_is_refused(bert_backbone):
    with pytest.raises(ConfigError):
        PromptLearner(bert_backbone, NAMES[:2], ContextConfig(template="a {}"))
