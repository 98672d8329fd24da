from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from ogkd.backbones.base import ImageFeatures
from ogkd.errors import ConfigError, DataError
from ogkd.features.encode import encode_crops
from ogkd.fitting.pipeline import fit
from ogkd.images import ImageRef
from ogkd.methods.heads import KernelHead, LinearHead, TextHead
from ogkd.model import explain as explaining
from ogkd.model.classifier import Classifier
from ogkd.model.explain import check_evidence, evidence_of, explain
from tiny_backbones import make_clip
from tiny_data import write_dataset, write_image

SIZE, GRID, WIDTH = 32, (4, 4), 20


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    folder = tmp_path_factory.mktemp("explain")
    make_clip(folder / "clip")
    data = write_dataset(folder / "data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OGKD_CACHE", str(folder / "cache"))
        return fit(data, backbone=folder / "clip", method="zero-shot")


class Bright:
    """A backbone whose features say how bright a patch is, along one axis."""

    def __init__(self, like, grid):
        self.preprocessing = like.preprocessing
        self.patch_grid = grid
        self.embed_dim = WIDTH
        self.device = torch.device("cpu")
        self.name = self.digest = "bright"
        self.engine = "torch"

    def out_of_domain(self, features):
        return None

    def encode_images(self, pixels, *, patches=True):
        h, w = self.patch_grid
        cell = pixels.shape[-1] // w
        means = pixels.mean(1)[:, : h * cell, : w * cell]
        means = means.unflatten(1, (h, cell)).unflatten(3, (w, cell)).mean((2, 4)).flatten(1)
        rows = torch.zeros(*means.shape, WIDTH)
        rows[..., 0], rows[..., 1] = means, 1.0
        rows = torch.nn.functional.normalize(rows, dim=-1)
        return ImageFeatures(torch.nn.functional.normalize(rows.mean(1), dim=-1), rows)


@pytest.fixture(autouse=True)
def _parts_of_brightness(monkeypatch):
    """The parts of the backbone above: those of its patches, of which the feature is the mean."""
    real = explaining.split_products

    def split(backbone, pixels, w):
        if not isinstance(backbone, Bright):
            return real(backbone, pixels, w)
        patches = backbone.encode_images(pixels).patches
        return SimpleNamespace(patches=patches @ w.mT / patches.shape[1], rest=torch.zeros(1, 1))

    monkeypatch.setattr(explaining, "split_products", split)


def heads():
    T = torch.nn.functional.normalize(torch.randn(3, WIDTH, generator=torch.manual_seed(0)), dim=-1)
    T[0] = torch.eye(WIDTH)[0]  # class 0 likes brightness
    K = torch.nn.functional.normalize(torch.randn(5, WIDTH), dim=-1)
    K[0] = torch.eye(WIDTH)[0]
    A = torch.zeros(5, 3)
    A[0, 0] = 5.0
    return {
        "text": TextHead(T, 10.0),
        "linear": LinearHead(10 * T, torch.tensor([0.5, -0.5, 0.0])),
        "kernel": KernelHead(T, 10.0, K, A, 2.0),
    }


def bright(classifier, kind="text", grid=GRID):
    return Classifier(Bright(classifier.backbone, grid), heads()[kind], classifier.card)


def planted(path, row, column, *, shape=(SIZE, SIZE), offset=(0, 0), cell=8, ground=20):
    """A dark picture with one bright patch at a patch of the grid of the cropped square."""
    pixels = np.full((*shape, 3), ground, np.uint8)
    top, left = offset[0] + row * cell, offset[1] + column * cell
    pixels[top : top + cell, left : left + cell] = 250
    Image.fromarray(pixels).save(path)
    return path


@pytest.mark.parametrize("kind", ["text", "linear"])
@pytest.mark.parametrize("patch", [(0, 3), (2, 1), (3, 0)])
def test_a_bright_patch_is_found_at_its_row_and_column(classifier, tmp_path, kind, patch):
    file = planted(tmp_path / "a.png", *patch)
    shown = explain(bright(classifier, kind), [file], labels=[0])[0]
    assert shown.grid.shape == GRID
    assert np.unravel_index(shown.grid.argmax(), GRID) == patch
    assert (shown.ref, shown.label) == (ImageRef(file), 0)
    assert shown.name == classifier.class_names[0]
    assert shown.probability == pytest.approx(bright(classifier, kind).predict_proba([file])[0][0])


def test_a_grid_that_is_not_square_keeps_rows_and_columns_apart(classifier, tmp_path):
    file = planted(tmp_path / "a.png", 1, 3)
    shown = explain(bright(classifier, grid=(2, 4)), [file], labels=[0])[0]
    assert shown.grid.shape == (2, 4)
    assert np.unravel_index(shown.grid.argmax(), (2, 4)) == (1, 3)


def test_every_image_of_a_real_tower_gets_its_own_map_in_order(classifier, tmp_path):
    files = [write_image(tmp_path / f"{seed}.png", seed) for seed in range(5)]
    together = explain(classifier, files)
    assert [shown.ref for shown in together] == [ImageRef(file) for file in files]
    predicted = classifier.predict_proba(files).argmax(axis=1)
    assert [shown.label for shown in together] == list(predicted)
    for file, shown in zip(files, together, strict=True):
        alone = explain(classifier, [file])[0]
        np.testing.assert_allclose(shown.grid, alone.grid, atol=1e-4)


def test_other_labels_give_other_evidence(classifier, tmp_path):
    file = write_image(tmp_path / "a.png")
    maps = [explain(classifier, [file], labels=[label])[0].grid for label in range(3)]
    # logits above the mean of the others: over all classes they add up to nothing
    np.testing.assert_allclose(sum(maps), 0, atol=1e-3)
    assert np.abs(maps[0]).max() > 1e-4


@pytest.mark.parametrize("labels", [[3], [-1], [0, 1]])
def test_invalid_labels_and_files_are_refused(classifier, tmp_path, labels):
    file = write_image(tmp_path / "a.png")
    with pytest.raises(ConfigError):
        explain(classifier, [file], labels=labels)
    (tmp_path / "bad.png").write_bytes(b"no picture")
    with pytest.raises(DataError):
        explain(classifier, [tmp_path / "bad.png"])


@pytest.mark.parametrize("method", ["fused", "zero-shot"])
def test_parts_add_up_to_the_lead_of_the_class(tmp_path, monkeypatch, method):
    monkeypatch.setenv("OGKD_CACHE", str(tmp_path / "cache"))
    make_clip(tmp_path / "clip")
    data = write_dataset(tmp_path / "data")
    model = fit(data, backbone=tmp_path / "clip", method=method)
    images = sorted(data.rglob("*.png"))[:3]
    for decision in model.decide(images, crops=True):
        shown = evidence_of(model, decision)
        logits = model.logits(decision.features[None])[0]
        label = decision.answer.label
        lead = logits[label] - np.delete(logits, label).mean()
        assert float(shown.grid.sum()) + shown.rest == pytest.approx(lead, abs=1e-3)
        assert np.abs(shown.grid).max() > 1e-6
        assert shown.image.size == (model.backbone.preprocessing.size,) * 2


def test_a_head_that_is_not_linear_has_no_map(classifier, tmp_path):
    model, file = bright(classifier, "kernel"), planted(tmp_path / "a.png", 1, 2)
    (decision,) = model.decide([file], crops=True)
    assert evidence_of(model, decision) is None
    with pytest.raises(ConfigError):
        explain(model, [file])


def test_blurring_what_a_map_marks_takes_more_away_only_if_the_map_is_right(
    classifier, tmp_path, monkeypatch
):
    monkeypatch.setattr(explaining, "_BLUR", 1.0)  # patches of 8 pixels need a wide one
    model = bright(classifier)
    (shown,) = explain(model, [planted(tmp_path / "a.png", 1, 2, ground=140)], labels=[0])
    right = check_evidence(model, shown)
    wrong = check_evidence(model, replace(shown, grid=-shown.grid))
    assert right.holds
    assert right.marked > wrong.marked


def test_nothing_is_tried_where_there_is_no_lead(classifier, tmp_path):
    model = bright(classifier)
    (shown,) = explain(model, [planted(tmp_path / "a.png", 1, 2, ground=60)], labels=[1])
    logits = model.logits(
        encode_crops(model.backbone, [np.asarray(shown.image)], patches=False).rows
    )
    assert logits[0, 1] < logits[0].mean()
    assert check_evidence(model, shown) is None
