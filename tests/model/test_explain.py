from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from ogkd.backbones.base import ImageFeatures
from ogkd.errors import ConfigError, DataError
from ogkd.fitting.pipeline import fit
from ogkd.images import ImageRef
from ogkd.methods.heads import KernelHead, LinearHead, TextHead
from ogkd.model import explain as explaining
from ogkd.model.classifier import Classifier
from ogkd.model.explain import check_evidence, evidence_of, explain
from tiny_data import write_image

SIZE, GRID, WIDTH = 32, (4, 4), 20


@pytest.fixture(scope="module")
def classifier(clip, data, module_cache):
    return fit(data, backbone=clip, method="zero-shot")


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
def test_parts_add_up_to_the_lead_of_the_class(clip, data, method):
    model = fit(data, backbone=clip, method=method)
    images = sorted(data.rglob("*.png"))[:3]
    maps = explain(model, images)
    assert [shown.ref for shown in maps] == [ImageRef(file) for file in images]
    for decision, shown in zip(model.decide(images), maps, strict=True):
        logits = model.logits(decision.features[None])[0]
        label = decision.answer.label
        assert shown.label == label
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


def test_a_map_is_shown_only_where_blurring_what_it_marks_weakens_the_answer_more(
    classifier, tmp_path, monkeypatch
):
    monkeypatch.setattr(explaining, "_BLUR", 1.0)  # patches of 8 pixels need a wide one
    model, file = bright(classifier), planted(tmp_path / "a.png", 1, 2, ground=140)
    (decision,) = model.decide([file], crops=True)
    right = evidence_of(model, decision, label=0)
    assert right.shown
    wrong = check_evidence(model, replace(right, grid=-right.grid))
    assert not wrong.holds
    assert right.check.marked > wrong.marked
    assert not replace(right, check=wrong).shown
    (dark,) = model.decide([planted(tmp_path / "b.png", 1, 2, ground=60)], crops=True)
    without_lead = evidence_of(model, dark, label=1)
    assert without_lead.check is None
    assert not without_lead.shown


@pytest.mark.parametrize("strange", [{"unfamiliar": True}, {"out_of_domain": True}])
def test_an_image_that_the_model_does_not_know_has_no_map(classifier, tmp_path, strange):
    model, file = bright(classifier), planted(tmp_path / "a.png", 1, 2)
    (decision,) = model.decide([file], crops=True)
    assert evidence_of(model, decision) is not None
    assert evidence_of(model, replace(decision, **strange)) is None
