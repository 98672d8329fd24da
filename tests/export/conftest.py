"""Two small models and their exported files, made once: torch needs seconds for each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import ogkd
from ogkd.data.phantoms import render
from ogkd.data.tasks import OneOf
from ogkd.export import Exported, export_onnx
from ogkd.methods.heads import LinearHead
from ogkd.model.calibration import Calibration
from ogkd.model.classifier import Classifier
from tiny_backbones import make_clip
from tiny_data import write_dataset, write_image


class File:
    """An exported graph, and what it says about itself."""

    def __init__(self, content: bytes) -> None:
        import onnxruntime

        self.session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
        self.names = [output.name for output in self.session.get_outputs()]

    @property
    def card(self) -> Any:
        return json.loads(self.session.get_modelmeta().custom_metadata_map["ogkd"])

    def run(self, pixels: Any) -> dict[str, Any]:
        outputs = self.session.run(None, {"pixels": np.asarray(pixels)})
        return dict(zip(self.names, outputs, strict=True))


@pytest.fixture(scope="session")
def file_of() -> type[File]:
    return File


def calibrated(images: int = 60) -> Calibration:
    """Of made-up logits, mostly right; its temperature is set, so that it surely matters."""
    rng = np.random.default_rng(0)
    labels = np.arange(images) % 3
    logits = 2 * rng.normal(size=(images, 3)) + 4 * np.eye(3)[labels]
    task, keys = OneOf(("a", "b", "c")), [f"{image:016x}" for image in range(images)]
    fitted = Calibration.fit(task, logits, labels, keys)
    question = fitted.questions[0].model_copy(update={"scale": 0.4})
    return fitted.model_copy(update={"questions": (question,)})


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("export")


@pytest.fixture(scope="session")
def files(folder: Path) -> list[Path]:
    """Images of several shapes, one of them a phantom."""
    data = write_dataset(folder / "data")
    wide = write_image(folder / "wide.png", 5, size=(33, 90))
    tall = write_image(folder / "tall.png", 6, size=(121, 50))
    Image.fromarray(render("us-breast", 1, seed=0, index=0).image).save(folder / "phantom.png")
    return [*sorted((data / "test").rglob("*.png")), wide, tall, folder / "phantom.png"]


@pytest.fixture(scope="session")
def model(files: list[Path], folder: Path) -> Classifier:
    """A fitted and calibrated model on a tiny CLIP."""
    make_clip(folder / "secret-clip")
    fitted = ogkd.fit(folder / "data", backbone=folder / "secret-clip", method="gda", device="cpu")
    # A gentle head: probabilities near 0 and 1 would hide mistakes.
    rng = torch.Generator().manual_seed(3)
    head = LinearHead(6 * torch.randn(fitted.head.shape, generator=rng), torch.zeros(3))
    return Classifier(fitted.backbone, head, fitted.card, calibration=calibrated())


@pytest.fixture(scope="session")
def exported(model: Classifier, files: list[Path], folder: Path) -> Exported:
    return export_onnx(model, folder / "model.onnx", images=files, max_risk=0.5)
