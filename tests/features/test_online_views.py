"""Fresh crops: runs that see the same images share them, and one pass encodes for all runs."""

from __future__ import annotations

import gc

import numpy as np
import torch

from ogkd.core import training
from ogkd.core.training import Run, _gather
from ogkd.features import views as module
from ogkd.features.views import OnlineViews
from ogkd.images import ImageRef


def images_of(pictures, count=5):
    return [ImageRef.of(path) for path in sorted((pictures / "train").rglob("*.png"))[:count]]


def test_images_are_decoded_once_for_all_runs_and_forgotten_with_the_last(
    bert_backbone, pictures, monkeypatch
):
    images = images_of(pictures)
    asked = []
    read = module.read_all
    monkeypatch.setattr(module, "read_all", lambda some: asked.append(len(some)) or read(some))
    first = OnlineViews(bert_backbone, images, patches=False)
    second = OnlineViews(bert_backbone, [*images[2:], images[0]], patches=False)
    assert asked == [5, 0]
    assert second.images[0] is first.images[2]
    kept = len(module._DECODED)
    del first, second
    gc.collect()
    assert len(module._DECODED) <= kept - 5


def test_runs_beside_each_other_see_what_they_see_alone_in_one_pass(
    bert_backbone, pictures, monkeypatch
):
    images = images_of(pictures)
    runs = [
        Run(OnlineViews(bert_backbone, images, patches=True), torch.arange(5), seed)
        for seed in (1, 2, 3)
    ]
    rows = [np.array([0, 3]), np.array([4, 1]), np.array([2, 2])]
    passes = []
    encode = module.encode_crops
    monkeypatch.setattr(
        module,
        "encode_crops",
        lambda backbone, crops, **more: (
            passes.append(len(crops)) or encode(backbone, crops, **more)
        ),
    )

    def rngs():
        return [np.random.default_rng(run.seed) for run in runs]

    together = _gather(runs, rows, rngs(), torch.device("cpu"))
    assert passes == [6]
    for number, (run, mine, rng) in enumerate(zip(runs, rows, rngs(), strict=True)):
        alone = run.views.look(mine, rng)
        torch.testing.assert_close(together.globals[number], alone.globals, rtol=0, atol=1e-6)
        torch.testing.assert_close(together.patches[number], alone.patches, rtol=0, atol=1e-6)
    assert isinstance(runs[0].views, training.EncodingViews)


def test_many_crops_go_through_in_several_passes(bert_backbone, pictures, monkeypatch):
    views = OnlineViews(bert_backbone, images_of(pictures), patches=False)
    crops = views.crops(np.array([0, 1, 2, 3, 4]), np.random.default_rng(0))
    whole = views.encode(crops).globals
    monkeypatch.setattr(module, "_AT_ONCE", 2)
    torch.testing.assert_close(views.encode(crops).globals, whole, rtol=0, atol=1e-6)
