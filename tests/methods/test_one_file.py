"""examples/ogkd_in_one_file.py computes what the package computes."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from toys import NAMES, WORDS, text_of, unit

from ogkd.backbones.base import ImageFeatures
from ogkd.core.batches import Batch
from ogkd.core.prompting import ContextConfig, PromptLearner
from ogkd.features.views import FixedViews
from ogkd.methods import Support, make_method
from ogkd.methods.ogkd import OGKDConfig, OGKDObjective

STRENGTHS = {"gamma": 0.6, "alpha": 2.0, "tau": 1.0, "top_ratio": 0.4}
STRENGTHS |= {"lambda_sccm": 3.0, "lambda_gad": 2.0, "lambda_lgd": 0.7}


@pytest.fixture(scope="module")
def one_file():
    file = Path(__file__).parents[2] / "examples" / "ogkd_in_one_file.py"
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("seed", range(5))
def test_the_loss_and_its_gradient_are_those_of_the_package(one_file, seed):
    bank, v, patches = unit(4, 9, 12, seed=seed), unit(6, 12, seed=50), unit(6, 10, 12, seed=60)
    labels = torch.arange(6) % 4
    T_hat = unit(4, 12, seed=seed + 90)
    a, b = (T_hat.clone().requires_grad_() for _ in range(2))
    theirs = OGKDObjective(OGKDConfig(**STRENGTHS), list(bank), 20.0, "cpu")
    batch = Batch(v.unsqueeze(0), labels.unsqueeze(0), patches.unsqueeze(0))
    expected = theirs(a.unsqueeze(0), batch)["total"][0]
    total = one_file.objective(b, v, patches, labels, bank, 20.0, **STRENGTHS)
    torch.testing.assert_close(total, expected)
    expected.backward()
    total.backward()
    torch.testing.assert_close(b.grad, a.grad)


def test_training_ends_with_the_context_of_the_package(one_file, bert_backbone):
    text = text_of(bert_backbone, NAMES)
    P, d = 10, bert_backbone.embed_dim
    v, patches, labels = unit(8, d, seed=1), unit(8, P, d, seed=2), torch.arange(8) % 4
    views = FixedViews(ImageFeatures(v[:, None], patches[:, None]))
    train = {"optimiser": "adam", "epochs": 6, "lr": 0.01, "weight_decay": 0.0, "batch_size": 8}
    settings = {**STRENGTHS, "train": train, "options": {"text_dropout": False}}
    method = make_method("ogkd", settings=settings)
    expected = method.fit(Support(views, labels), text, seed=1).tensors()["context"]

    learner = PromptLearner(bert_backbone, NAMES, ContextConfig())
    context = one_file.train(
        lambda context: learner.text_features(context.unsqueeze(0))[0],
        learner.initial_context(torch.Generator().manual_seed(1)),
        v,
        patches,
        labels,
        torch.stack(text.bank),
        bert_backbone.logit_scale,
        steps=6,
        **STRENGTHS,
    )
    assert len(WORDS) == text.bank[0].shape[0]
    torch.testing.assert_close(context, expected, atol=1e-5, rtol=1e-4)
