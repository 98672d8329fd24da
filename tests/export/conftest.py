"""Two small models and their exported files, made once: torch needs seconds for each."""

from __future__ import annotations

import pytest
import torch
from export_world import calibration
from PIL import Image
from torch.nn.functional import normalize

import ogkd
from ogkd.backbones.base import ImageFeatures
from ogkd.data.phantoms import render
from ogkd.export import Exported, export_onnx
from ogkd.features.views import FixedViews
from ogkd.methods import METHODS, Support, TextSide, make_method
from ogkd.methods.heads import LinearHead
from ogkd.model.classifier import Classifier
from tiny_backbones import make_clip
from tiny_data import write_dataset, write_image


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("export")


@pytest.fixture(scope="session")
def data(folder):
    return write_dataset(folder / "data")


@pytest.fixture(scope="session")
def files(data, folder):
    """Images of several shapes, one of them a phantom."""
    wide = write_image(folder / "wide.png", 5, size=(33, 90))
    tall = write_image(folder / "tall.png", 6, size=(121, 50))
    Image.fromarray(render("us-breast", 1, seed=0, index=0).image).save(folder / "phantom.png")
    return [*sorted((data / "test").rglob("*.png")), wide, tall, folder / "phantom.png"]


@pytest.fixture(scope="session")
def model(data, folder):
    """A fitted and calibrated model on a tiny CLIP."""
    make_clip(folder / "secret-clip")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OGKD_CACHE", str(folder / "cache"))
        fitted = ogkd.fit(data, backbone=folder / "secret-clip", method="gda", device="cpu")
    # A gentle head: probabilities near 0 and 1 would hide mistakes.
    rng = torch.Generator().manual_seed(3)
    head = LinearHead(6 * torch.randn(fitted.head.shape, generator=rng), torch.zeros(3))
    return Classifier(fitted.backbone, head, fitted.card, calibration=calibration())


@pytest.fixture(scope="session")
def exported(model, files, folder) -> Exported:
    return export_onnx(model, folder / "model.onnx", images=files, max_risk=0.5)


def heads_of_all_methods(backbone):
    rng = torch.Generator().manual_seed(0)
    patches = backbone.patch_grid[0] * backbone.patch_grid[1]

    def unit(*shape):
        return normalize(torch.randn(*shape, generator=rng), dim=-1)

    d, labels = backbone.embed_dim, torch.arange(3).repeat_interleave(3)
    views = FixedViews(ImageFeatures(unit(9, 1, d), unit(9, 1, patches, d).half()))
    support = Support(views, labels, (unit(6, d), torch.arange(3).repeat(2)))
    names = ("cyst", "stone", "tumor")
    prompts = tuple((f"a {name}", f"one bright {name}", f"no {name}") for name in names)
    for name in sorted(METHODS):
        fast = {"train.epochs": 1} if METHODS[name].needs_training else {}
        method = make_method(name, settings=fast)
        text = TextSide(backbone, names, prompts)
        yield name, method.fit(support if method.needs_images else None, text, seed=1)


@pytest.fixture(scope="session")
def heads(bert_backbone):
    return dict(heads_of_all_methods(bert_backbone))
