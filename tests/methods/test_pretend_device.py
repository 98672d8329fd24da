"""Every method on a pretended accelerator: nothing meets the CPU by accident, few copies a step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from test_all_methods import classifier_of, quick_settings, support_of
from toys import make_support, text_of

from ogkd.backbones.open_clip_format import load_open_clip
from ogkd.features.encode import encode_crops
from ogkd.features.store import FeatureStore
from ogkd.features.views import OnlineViews
from ogkd.images import ImageRef
from ogkd.methods import METHODS, Support, make_method
from pretend_device import THERE, There, move, pretending

FIXTURE = Path(__file__).parents[1] / "parity" / "fixtures" / "class_token_mlp"


@pytest.fixture
def backbones():
    """The same model on the CPU and on the pretended device."""
    here, there = (
        load_open_clip(FIXTURE, name="tiny", device=torch.device("cpu")) for _ in range(2)
    )
    move(there.model)
    there.device = THERE
    return here, there


def settings_of(name):
    """Quick, with the text tower's dropout as it is: its masks are drawn on the device."""
    return {k: v for k, v in quick_settings(name).items() if "dropout" not in k}


def test_the_device_refuses_what_a_gpu_refuses():
    with pretending() as count:
        there = torch.ones(3).to(THERE)
        assert isinstance(there, There)
        assert there.device == THERE
        assert (there + 1).device == THERE
        for mistake in (
            lambda: there + torch.ones(3),
            lambda: there.numpy(),
            lambda: np.asarray(there),
            lambda: there.clone().uniform_(generator=torch.Generator()),
            lambda: torch.stack([there, torch.ones(3)]),
        ):
            with pytest.raises((RuntimeError, TypeError)):
                mistake()
        assert torch.equal((there * 2).cpu(), torch.full((3,), 2.0))
        assert (count.there, count.back) == (1, 1)
        weight = torch.ones(3).to(THERE).requires_grad_()
        (weight * there).square().sum().backward()
        assert torch.equal(weight.grad.cpu(), torch.full((3,), 2.0))


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_method_gives_the_same_on_the_device(name, backbones):
    here, there = backbones
    method = make_method(name, settings=settings_of(name))
    support = support_of(method, here, (4, 4, 4))
    needed = support if method.needs_images else None
    expected = method.fit(needed, text_of(here), seed=1)
    with pretending():
        head = method.fit(needed, text_of(there), seed=1)
        features = make_support((2, 2, 2), d=here.embed_dim, seed=3).rows()[0]
        got = classifier_of(method, head, there).logits(features.to(THERE))
    want = classifier_of(method, expected, here).logits(features)
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)
    assert not any(isinstance(tensor, There) for tensor in head.tensors().values())


@pytest.mark.parametrize("name", sorted(n for n, m in METHODS.items() if m.needs_training))
def test_a_step_copies_little(name, backbones):
    _, there = backbones
    counts = []
    for size in (4, 2):
        method = make_method(name, settings=settings_of(name) | {"train.batch_size": size})
        support = support_of(method, there, (4, 4, 4))
        with pretending() as count:
            text = text_of(there)
            method.fit(support, text, seed=1)
            counts.append((count.there, count.back))
    steps = 2 * (12 // 2 - 12 // 4)  # more of them in two epochs
    to_device, back = ((many - few) / steps for few, many in zip(*counts, strict=True))
    # Images, labels and patches; masks of the text tower's dropouts are drawn there.
    assert to_device <= 3, f"{to_device} copies to the device in a step"
    # Whether the loss is a number, and which tokens of the texts are padding.
    assert back <= 3, f"{back} copies back in a step"


def test_images_are_encoded_on_the_device_and_features_have_their_own_place(backbones):
    here, there = backbones
    size = here.preprocessing.size
    crops = [np.full((size, size, 3), value, np.uint8) for value in (10, 200)]
    expected = encode_crops(here, crops, patches=True)
    with pretending():
        features = encode_crops(there, crops, patches=True)
        assert features.globals.device == THERE
        torch.testing.assert_close(features.globals.cpu(), expected.globals)
        assert FeatureStore(there).folder != FeatureStore(here).folder


@pytest.mark.parametrize("name", ["coop", "ogkd"])
def test_fresh_crops_stay_on_the_device(name, backbones, pictures):
    settings = settings_of(name) | {"views": "online", "train.epochs": 1}
    method = make_method(name, settings=settings)
    images = [ImageRef.of(path) for path in sorted((pictures / "train").rglob("*.png"))[:12]]
    labels = torch.arange(12) % 3
    heads = []
    for backbone in backbones:
        views = [OnlineViews(backbone, images, patches=method.uses_patches) for _ in range(2)]
        supports = [Support(run_views, labels) for run_views in views]
        with pretending() as count:
            heads.append(method.fit_many([method] * 2, supports, text_of(backbone), seeds=[1, 2]))
    for head, expected in zip(heads[1], heads[0], strict=True):
        torch.testing.assert_close(head.T, expected.T, rtol=1e-3, atol=1e-3)
    # For each of three steps: pixels and labels of both runs; and what comes before.
    assert count.there <= 3 * 2 + 20
