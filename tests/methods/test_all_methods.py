"""What holds for every registered method: being registered is being tested."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from toys import NAMES, make_support, pixel_support, text_of, unit

import ogkd
from ogkd.data.tasks import OneOf
from ogkd.evaluation import evaluate
from ogkd.methods import METHODS, flatten, make_method, presets
from ogkd.methods.registry import setting_help
from ogkd.model.card import ModelCard
from ogkd.model.classifier import Classifier
from ogkd.model.load import load


def quick_settings(name):
    """Settings that are over at once, and without randomness between classes."""
    fields = METHODS[name].Config.model_fields
    settings = {}
    if METHODS[name].needs_training:
        settings |= {"train.epochs": 2, "train.batch_size": 4, "train.lr": 0.02}
    if "options" in fields:
        settings["options.text_dropout"] = False
    if "text_dropout" in fields:
        settings["text_dropout"] = False
    return settings


def quick(name):
    return make_method(name, settings=quick_settings(name))


def support_of(method, backbone, counts=(3, 3, 3), **options):
    grid = backbone.patch_grid[0] * backbone.patch_grid[1] if method.uses_patches else 0
    options = {"spread": 1.3, "validation": 2 if method.uses_validation else 0, **options}
    if method.needs_pixels:
        return pixel_support(counts, backbone, options.get("views", 1), options.get("seed", 0))
    return make_support(counts, d=backbone.embed_dim, grid=grid, **options)


def fit(method, supports, text, seeds=(1,)):
    needed = [support if method.needs_images else None for support in supports]
    return method.fit_many([method] * len(needed), needed, text, seeds=list(seeds))


def classifier_of(method, head, backbone):
    card = ModelCard.of(method, OneOf(NAMES[:3]), backbone)
    return Classifier(backbone, head, card)


def probabilities(head, backbone):
    return head.logits(unit(9, backbone.embed_dim, seed=5)).softmax(dim=-1)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_setting_says_what_it_does(name):
    config = METHODS[name].Config()
    for setting, _ in flatten(config.model_dump()):
        assert len(setting_help(type(config), setting)) > 5, setting


@pytest.mark.parametrize(
    ("name", "validation"),
    [(name, 0) for name in sorted(METHODS)]
    + [(name, 2) for name in sorted(METHODS) if METHODS[name].uses_validation],
)
def test_the_order_of_classes_does_not_matter(name, validation, bert_backbone):
    method = quick(name)
    names, order = NAMES[:3], [2, 0, 1]
    support = support_of(method, bert_backbone, validation=validation)
    (head,) = fit(method, [support], text_of(bert_backbone))
    position = torch.tensor([order.index(label) for label in range(3)])
    held = support.validation
    turned = type(support)(
        support.views,
        position[support.labels],
        None if held is None else (held[0], position[held[1]]),
    )
    (other,) = fit(method, [turned], text_of(bert_backbone, tuple(names[label] for label in order)))
    expected = probabilities(head, bert_backbone)[:, order]
    torch.testing.assert_close(probabilities(other, bert_backbone), expected, atol=2e-3, rtol=0)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_seed_gives_the_same_head_again(name, bert_backbone):
    method, text = quick(name), text_of(bert_backbone)
    support = support_of(method, bert_backbone, seed=3)
    (first,), (again,) = (fit(method, [support], text, [7]) for _ in range(2))
    for key, tensor in first.tensors().items():
        assert torch.equal(tensor, again.tensors()[key]), key


@pytest.mark.parametrize("name", sorted(METHODS))
def test_seeds_together_are_as_each_alone(name, bert_backbone):
    method, text = quick(name), text_of(bert_backbone)
    supports = [support_of(method, bert_backbone, seed=seed) for seed in (1, 2)]
    together = fit(method, supports, text, [1, 2])
    for head, support, seed in zip(together, supports, (1, 2), strict=True):
        alone = method.fit(support if method.needs_images else None, text, seed=seed)
        expected = probabilities(alone, bert_backbone)
        got = probabilities(head, bert_backbone)
        torch.testing.assert_close(got, expected, atol=1e-3, rtol=0)
        if not method.needs_training:  # a text pass of several runs may round otherwise
            pairs = zip(head.tensors().values(), alone.tensors().values(), strict=True)
            assert all(torch.equal(beside, single) for beside, single in pairs)


@pytest.mark.parametrize("name", sorted(METHODS))
@pytest.mark.parametrize(
    "counts", [(1, 1, 1), (1, 1), (4, 4), (5, 2, 1)], ids=["one", "one-of-two", "two", "unequal"]
)
def test_few_and_unequal_images_are_enough(name, counts, bert_backbone):
    method = quick(name)
    support = support_of(method, bert_backbone, counts, validation=0)
    (head,) = fit(method, [support], text_of(bert_backbone, NAMES[: len(counts)]))
    p = probabilities(head, bert_backbone)
    assert p.shape == (9, len(counts))
    assert head.shape == (len(counts), bert_backbone.embed_dim)
    assert p.isfinite().all()
    torch.testing.assert_close(p.sum(1), torch.ones(9))
    assert head.class_texts is None or head.class_texts.shape == head.shape
    assert head.export_error is None or head.export_error.endswith(".")


@pytest.mark.parametrize("name", sorted(name for name, m in METHODS.items() if m.needs_images))
def test_several_views_of_an_image_are_taken(name, bert_backbone):
    method = quick(name)
    support = support_of(method, bert_backbone, views=2)
    (head,) = fit(method, [support], text_of(bert_backbone))
    assert probabilities(head, bert_backbone).isfinite().all()


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_saved_model_answers_as_before(name, bert_backbone, tmp_path):
    method, text = quick(name), text_of(bert_backbone)
    (head,) = fit(method, [support_of(method, bert_backbone)], text)
    model = classifier_of(method, head, bert_backbone)
    model.save(tmp_path / "model")
    again = load(tmp_path / "model", backbone=bert_backbone)
    v = unit(9, bert_backbone.embed_dim, seed=5)
    expected = model.probabilities(v)
    np.testing.assert_allclose(again.probabilities(v), expected, atol=1e-6)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_method_learns_from_files(name, bert_backbone, pictures):
    settings = {"views": 1, **quick_settings(name)}
    model = ogkd.fit(pictures, backbone=bert_backbone, method=name, shots=2, settings=settings)
    assert evaluate(model, pictures)["images"] == 12


@pytest.mark.parametrize("name", sorted(METHODS))
def test_tensors_of_another_method_are_refused(name, bert_backbone):
    method = quick(name)
    with pytest.raises((KeyError, ValueError)):
        method.read_head({"Z": torch.zeros(2, 2)}, text_of(bert_backbone), 30.0)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_preset_is_valid(name):
    for preset in presets(name):
        assert make_method(name, preset=preset).name == name


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_method_describes_itself(name):
    method = METHODS[name]
    assert method.name == name
    assert method.summary
    assert method.citation
    assert not method.summary.endswith(".")
    assert method.__doc__
