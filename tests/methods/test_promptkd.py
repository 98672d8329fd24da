"""PromptKD on cached features against a plain reading; a second backbone in a fit and a model."""

from __future__ import annotations

import math
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from toys import make_support, text_of, unit

import ogkd
from ogkd.backbones import load_backbone
from ogkd.backbones.base import ImageFeatures
from ogkd.errors import BackboneError
from ogkd.features.views import FixedViews
from ogkd.methods import Support, make_method
from ogkd.methods.base import Teacher
from ogkd.model.load import load

OTHER = SimpleNamespace(logit_scale=9.0)  # a teacher whose features are wider
T = unit(3, 20, seed=40)  # its class texts


@pytest.fixture
def known_texts(monkeypatch):
    """Stage one is over: the teacher's texts are T."""
    method = SimpleNamespace(fit=lambda *_, **__: SimpleNamespace(class_texts=T))
    monkeypatch.setattr("ogkd.methods.promptkd.make_method", lambda *_, **__: method)


def plain_promptkd(v, u, T, scale, *, weight, epochs, size, rate, seed):
    """As the released code writes it: 1x1 convolutions, and one image and class after another."""
    generator = torch.Generator().manual_seed(seed)
    d, e = v.shape[1], T.shape[1]
    first, norm, second = (
        torch.nn.Conv2d(d, e, 1),
        torch.nn.BatchNorm2d(e),
        torch.nn.Conv2d(e, e, 1),
    )
    for layer, inputs in ((first, d), (second, e)):
        for values in (layer.weight, layer.bias):
            shape = values.shape
            drawn = torch.empty(shape[0], *([inputs] if values.ndim > 1 else []))
            drawn.uniform_(-(inputs**-0.5), inputs**-0.5, generator=generator)
            values.data = drawn.reshape(shape)
    network = torch.nn.Sequential(first, norm, torch.nn.ReLU(), second)
    momenta = {name: torch.zeros_like(p) for name, p in network.named_parameters()}
    for epoch in range(epochs):
        now = 1e-5 if epoch == 0 else rate * (1 + math.cos(math.pi * (epoch - 1) / epochs)) / 2
        for batch in torch.randperm(len(v), generator=generator).split(size):
            if len(batch) < 2:
                continue
            seen = network(v[batch][:, :, None, None])[:, :, 0, 0]
            loss = 0.0
            for row, image in enumerate(batch):
                teacher = torch.softmax(scale * T @ u[image], 0)
                cosines = T @ seen[row] / seen[row].norm()
                student = torch.softmax(scale * cosines, 0)
                for p, q in zip(teacher, student, strict=True):
                    loss = loss + p * (p.log() - q.log())
            loss = weight * loss / (len(batch) * len(T))
            names, parameters = zip(*network.named_parameters(), strict=True)
            gradients = torch.autograd.grad(loss, parameters)
            for name, p, g in zip(names, parameters, gradients, strict=True):
                momenta[name] = 0.9 * momenta[name] + g + 5e-4 * p.data
                p.data = p.data - now * momenta[name]
    network.eval()

    def logits(features):
        seen = network(features[:, :, None, None])[:, :, 0, 0].detach()
        return scale * seen / seen.norm(dim=1, keepdim=True) @ T.T

    return logits


def taught(counts=(3, 2, 2), unlabelled=4, views=1):
    """A support whose images a made-up teacher has seen, too."""
    support, N = make_support(counts, views=views), sum(counts)
    teacher = Teacher(OTHER, unit(N, 20, seed=3), unit(unlabelled, 20, seed=4))
    pool = 3 * unit(unlabelled, 12, seed=5)  # of any length, as rows with deeper features
    return Support(support.views, support.labels, unlabelled=pool, teacher=teacher)


@pytest.mark.parametrize("views", [1, 2])
def test_the_network_imitates_the_teacher_as_in_the_paper(views, known_texts):
    support = taught(views=views)
    settings = {"lambda_kd": 30.0, "epochs": 3, "batch_size": 3, "lr": 0.02}
    head = make_method("promptkd", settings=settings).fit(support, text_of(None), seed=2)
    v = torch.cat([support.rows()[0], unit(4, 12, seed=5)])
    u = torch.cat([unit(7, 20, seed=3).repeat_interleave(views, 0), unit(4, 20, seed=4)])
    expected = plain_promptkd(v, u, T, 9.0, weight=30.0, epochs=3, size=3, rate=0.02, seed=2)
    images = unit(9, 12, seed=8)
    torch.testing.assert_close(head.logits(images), expected(images), atol=2e-4, rtol=2e-4)
    assert head.shape == (3, 12)
    assert head.class_texts is None  # they are the teacher's, in a space of another width


def test_the_teachers_texts_are_tuned_on_the_labelled_images(bert_backbone):
    text = text_of(bert_backbone)
    rows = unit(6, bert_backbone.embed_dim, seed=3)
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    support = Support(FixedViews(ImageFeatures(unit(6, 1, 12, seed=1))), labels)
    support = Support(support.views, labels, teacher=Teacher(bert_backbone, rows))
    head = make_method("promptkd", settings={"epochs": 1}).fit(support, text, seed=5)
    images = Support(FixedViews(ImageFeatures(rows.unsqueeze(1))), labels)
    tuned = make_method("promptsrc-text", preset="auto").fit(images, text, seed=5)
    assert torch.equal(head.T, tuned.class_texts)
    assert head.scale == pytest.approx(bert_backbone.logit_scale)


def test_a_student_learns_the_teachers_answers(known_texts):
    """On images of which the teacher is sure, the student answers as it does."""
    support = make_support((8, 8, 8), spread=0.4)
    answers = support.labels.roll(8)  # the teacher takes every class for another one
    support = Support(support.views, support.labels, teacher=Teacher(OTHER, T[answers]))
    head = make_method("promptkd", settings={"epochs": 60}).fit(support, text_of(None), seed=1)
    assert torch.equal(head.logits(support.rows()[0]).argmax(1), answers)


def test_some_images_of_a_support_are_some_of_the_teachers():
    chosen = torch.tensor([4, 0])
    subset = taught().subset(chosen)
    assert torch.equal(subset.teacher.rows, unit(7, 20, seed=3)[chosen])
    assert len(subset.teacher.unlabelled) == 4


@pytest.fixture
def teacher(clip, tmp_path):
    return shutil.copytree(clip, tmp_path / "a teacher")


def test_a_model_knows_its_teacher_by_digest_and_predicts_without_it(
    bert_backbone, pictures, teacher, tmp_path, caplog
):
    settings = {"teacher": str(teacher), "epochs": 2}
    options = {"backbone": bert_backbone, "method": "promptkd", "shots": 4, "settings": settings}
    options |= {"unlabelled": pictures / "test", "out": tmp_path / "model"}
    model = ogkd.fit(pictures / "train", **options)
    digest = load_backbone(teacher).digest
    assert model.card.teacher.digest == digest != model.card.backbone.digest
    assert model.card.unlabelled_images
    assert str(tmp_path) not in (tmp_path / "model" / "model.json").read_text()
    with caplog.at_level("INFO", "ogkd"):
        ogkd.fit(pictures / "train", **options)
    assert "nothing to do" in caplog.text
    teacher.rename(tmp_path / "moved")
    images = sorted((pictures / "test").rglob("*.png"))[:4]
    again = load(tmp_path / "model", backbone=bert_backbone)
    np.testing.assert_allclose(again.predict_proba(images), model.predict_proba(images), atol=1e-6)
    assert again.card.config["teacher"] == "a teacher"
    with pytest.raises(BackboneError) as error:  # a fit does
        ogkd.fit(pictures / "train", **options)
    assert error.value.argument == "settings"


def test_a_teacher_of_another_kind_changes_the_model(bert_backbone, pictures, clip):
    options = {"backbone": bert_backbone, "method": "promptkd", "shots": 2}
    alone = ogkd.fit(pictures, **options, settings={"epochs": 2})
    other = ogkd.fit(pictures, **options, settings={"epochs": 2, "teacher": str(clip)})
    assert alone.card.teacher is None
    assert alone.head.T.shape != other.head.T.shape or not torch.equal(alone.head.T, other.head.T)
