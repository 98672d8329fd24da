"""Fresh crops: cut ahead of need, shared by runs that see the same, in one pass for all runs."""

from __future__ import annotations

import gc
import threading
from itertools import islice

import numpy as np
import psutil
import pytest
import torch

from ogkd.core.batches import Run, batches_from
from ogkd.core.optimisers import TrainConfig
from ogkd.errors import OgkdWarning
from ogkd.features import views as module
from ogkd.features.views import OnlineViews
from ogkd.images import ImageRef

CPU = torch.device("cpu")
TWO = TrainConfig(batch_size=2, epochs=3)


def images_of(pictures, count=5):
    return [ImageRef.of(path) for path in sorted((pictures / "train").rglob("*.png"))[:count]]


def runs_of(backbone, images, seeds, patches=True):
    labels = torch.arange(len(images))
    return [Run(OnlineViews(backbone, images, patches=patches), labels, seed) for seed in seeds]


@pytest.fixture
def passes(monkeypatch):
    """The sizes of the passes of the image tower."""
    found = []
    encode = module.encode_crops

    def counted(backbone, crops, **more):
        found.append(len(crops))
        return encode(backbone, crops, **more)

    monkeypatch.setattr(module, "encode_crops", counted)
    return found


def test_images_are_decoded_once_for_all_runs_and_forgotten_with_the_last(
    bert_backbone, pictures, monkeypatch
):
    images = images_of(pictures)
    asked = []
    read = module.read_each
    monkeypatch.setattr(module, "read_each", lambda some: asked.append(len(some)) or read(some))
    first = OnlineViews(bert_backbone, images, patches=False)
    second = OnlineViews(bert_backbone, [*images[2:], images[0]], patches=False)
    assert asked == [5, 0]
    assert second.pictures[0] is first.pictures[2]
    kept = len(module._DECODED)
    del first, second
    gc.collect()
    assert len(module._DECODED) <= kept - 5


def test_runs_beside_each_other_see_what_they_see_alone_in_one_pass(
    bert_backbone, pictures, passes
):
    runs = runs_of(bert_backbone, images_of(pictures), (1, 2, 3))
    assert isinstance(runs[0].views, OnlineViews)
    together = list(batches_from(0, runs, TWO, CPU))
    assert passes == [6] * 6  # two steps of three epochs, five images
    for number, run in enumerate(runs):
        alone = list(batches_from(0, [run], TWO, CPU))
        for both, mine in zip(together, alone, strict=True):
            torch.testing.assert_close(both.globals[number], mine.globals[0], rtol=0, atol=1e-6)
            torch.testing.assert_close(both.patches[number], mine.patches[0], rtol=0, atol=1e-6)
            assert torch.equal(both.labels[number], mine.labels[0])


def test_batches_are_those_of_looking_step_by_step_and_do_not_depend_on_the_start(
    bert_backbone, pictures
):
    """The plain reading: a generator per epoch that shuffles, then draws crop after crop."""
    (run,) = runs_of(bert_backbone, images_of(pictures), (7,))
    found = list(batches_from(0, [run], TWO, CPU))
    expected = []
    for epoch in range(3):
        rng = np.random.default_rng([7, epoch, 0])
        order = rng.permutation(5)
        expected += [run.views.look(order[:2], rng), run.views.look(order[2:4], rng)]
    for batch, seen in zip(found, expected, strict=True):
        torch.testing.assert_close(batch.globals[0], seen.globals, rtol=0, atol=1e-6)
    resumed = list(batches_from(1, [run], TWO, CPU))
    assert all(
        torch.equal(one.globals, other.globals)
        for one, other in zip(found[2:], resumed, strict=True)
    )


def test_runs_of_one_seed_share_their_crops(bert_backbone, pictures, passes):
    """Runs that differ in a loss weight alone see the same: half of the work."""
    images = images_of(pictures)
    first, second, other = runs_of(bert_backbone, images, (1, 1, 2))
    batches = list(batches_from(0, [first, other, second], TWO, CPU))
    assert passes == [4] * 6
    for batch in batches:
        assert torch.equal(batch.globals[0], batch.globals[2])
        assert torch.equal(batch.patches[0], batch.patches[2])
        assert not torch.allclose(batch.globals[0], batch.globals[1])


def test_crops_are_cut_before_they_are_needed_off_the_main_thread(
    bert_backbone, pictures, monkeypatch
):
    (run,) = runs_of(bert_backbone, images_of(pictures), (1,))
    where, ready = [], threading.Event()
    cut = run.views.cut

    def watched(drawn):
        where.append(threading.current_thread())
        if len(where) == 6:  # two images of the first step, and of the next two
            ready.set()
        return cut(drawn)

    monkeypatch.setattr(run.views, "cut", watched)
    batches = batches_from(0, [run], TWO, CPU)
    next(batches)
    assert ready.wait(timeout=300)
    assert threading.main_thread() not in where
    assert len(list(islice(batches, 100))) == 5
    assert len(where) == 12  # and nothing beyond the last epoch


def test_images_that_do_not_fit_into_memory_are_decoded_for_each_crop(
    bert_backbone, pictures, monkeypatch
):
    images = images_of(pictures)
    (run,) = runs_of(bert_backbone, images, (1,))
    expected = [batch.globals for batch in batches_from(0, [run], TWO, CPU)]
    size = run.views.pictures[0].pixels.nbytes
    del run
    gc.collect()
    free = psutil.virtual_memory()._replace(available=int(2.5 * size / module._SHARE))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: free)
    with pytest.warns(OgkdWarning, match=r"3 of 5 images .* decoded again"):
        (run,) = runs_of(bert_backbone, images, (1,))
    assert sum(picture.pixels is not None for picture in run.views.pictures) == 2
    found = [batch.globals for batch in batches_from(0, [run], TWO, CPU)]
    assert all(torch.equal(one, other) for one, other in zip(expected, found, strict=True))
