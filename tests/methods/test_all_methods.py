"""What holds for every registered method: being registered is being tested."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from toys import NAMES, make_support, unit

import ogkd
from ogkd.data.tasks import OneOf
from ogkd.errors import ConfigError
from ogkd.evaluation import evaluate
from ogkd.methods import METHODS, FeatureMethod, MethodConfig, TextSide, make_method, presets
from ogkd.methods.zero_shot import ZeroShotEnsemble
from ogkd.model.card import BackboneCard, ModelCard
from ogkd.model.classifier import Classifier
from ogkd.model.load import load
from tiny_data import edit_sealed

WORDS = ("a dark", "a bright", "one")


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


def text_of(backbone, names=NAMES[:3]):
    return TextSide(backbone, tuple(names), tuple(tuple(f"{w} {n}" for w in WORDS) for n in names))


def support_of(method, backbone, counts=(3, 3, 3), **options):
    grid = backbone.patch_grid[0] * backbone.patch_grid[1] if method.uses_patches else 0
    options = {"spread": 1.3, "validation": 2 if method.uses_validation else 0, **options}
    return make_support(counts, d=backbone.embed_dim, grid=grid, **options)


def fit(method, supports, text, seeds=(1,)):
    needed = [support if method.needs_images else None for support in supports]
    return method.fit_many([method] * len(needed), needed, text, seeds=list(seeds))


def classifier_of(method, head, backbone):
    card = ModelCard(
        method=method.name,
        config=method.config.model_dump(mode="json"),
        asks=OneOf(NAMES[:3]).as_json(),
        backbone=BackboneCard.of(backbone),
        logit_scale=backbone.logit_scale,
        prompts_sha256="",
        data_sha256="",
        support_counts=(3, 3, 3),
        seed=1,
        versions={},
    )
    return Classifier(backbone, head, card)


def probabilities(head, backbone):
    return head.logits(unit(9, backbone.embed_dim, seed=5)).softmax(dim=-1)


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
    (other,) = fit(method, [turned], text_of(bert_backbone, [names[label] for label in order]))
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


@pytest.mark.parametrize(
    "name", sorted(n for n, m in METHODS.items() if issubclass(m, FeatureMethod))
)
def test_a_head_on_images_refuses_other_classes(name, bert_backbone):
    method = quick(name)
    (head,) = fit(method, [support_of(method, bert_backbone)], text_of(bert_backbone))
    with pytest.raises(ConfigError, match="classes"):
        method.head_for(head, text_of(bert_backbone, NAMES[1:3]))


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_head_says_what_it_has(name, bert_backbone):
    method = quick(name)
    (head,) = fit(method, [support_of(method, bert_backbone)], text_of(bert_backbone))
    T, v = head.class_texts, unit(9, bert_backbone.embed_dim, seed=5)
    if method.learns_texts:
        assert T is not None
    if T is not None:
        assert T.shape == head.shape
    if head.is_text_only:
        torch.testing.assert_close(head.logits(v), bert_backbone.logit_scale * v @ T.mT)
    assert head.export_error is None or head.export_error.endswith(".")


@pytest.mark.parametrize("name", sorted(METHODS))
def test_the_type_parameter_is_the_class_of_the_settings(name):
    method = METHODS[name]
    assert isinstance(make_method(name).config, method.Config)
    assert method.Config is not MethodConfig or issubclass(method, FeatureMethod | ZeroShotEnsemble)


def other_shapes_and_types(tensor):
    """What a tensor of a weights file can be instead."""
    flat = tensor.reshape(-1)
    yield "empty", torch.zeros(0)
    yield "no rows", tensor.new_zeros((0, *tensor.shape[1:]))
    yield "no columns", tensor.new_zeros((*tensor.shape[:1], 0))
    yield "a number", torch.tensor(0.5)
    yield "a row", flat.clone()
    yield "one more dimension", tensor[None].clone()
    yield "dimension 3", tensor.new_ones(2, 2, 2)
    yield "transposed", tensor.T.contiguous() if tensor.dim() == 2 else flat[:1].repeat(3)
    for dtype in (torch.int64, torch.uint8, torch.bool):
        yield str(dtype), tensor.to(dtype)
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        yield f"same {dtype}", tensor.to(dtype)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_weights_of_other_shapes_and_types_are_refused_or_right(name, bert_backbone, tmp_path):
    method, text = quick(name), text_of(bert_backbone)
    (head,) = fit(method, [support_of(method, bert_backbone)], text)
    classifier_of(method, head, bert_backbone).save(tmp_path / "m")
    weights = tmp_path / "m" / "weights.safetensors"
    edit_sealed(tmp_path / "m" / "model.json", lambda card: card.pop("weights_sha256"))
    saved = head.tensors()
    for key, tensor in saved.items():
        for what, other in other_shapes_and_types(tensor):
            save_file(saved | {key: other}, weights)
            try:
                again = load(tmp_path / "m", backbone=bert_backbone)
            except ConfigError:
                assert "same" not in what or not other.isfinite().all(), (key, what)
                continue
            p = probabilities(again.head, bert_backbone)
            right = other.shape == tensor.shape and other.is_floating_point()
            assert right, f"{key}: {what} gave a model"
            rounded = method.read_head(
                saved | {key: other.float()}, text, bert_backbone.logit_scale
            )
            assert torch.equal(p, probabilities(rounded, bert_backbone)), (key, what)
