"""What the export's tests ask of a file, and models whose answers are gentle enough to compare."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch

from ogkd.backbones import load_backbone
from ogkd.data.tasks import OneOf
from ogkd.methods.heads import LinearHead
from ogkd.model.calibration import Calibration
from ogkd.model.classifier import Classifier

TEMPERATURE = 2.5


def session_of(model):
    import onnxruntime

    content = model.read_bytes() if isinstance(model, Path) else model.SerializeToString()
    return onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])


def run(session, pixels):
    return dict(
        zip(
            ("logits", "probabilities", "features"),
            session.run(None, {"pixels": np.asarray(pixels)}),
            strict=True,
        )
    )


def card_of(path):
    return json.loads(session_of(path).get_modelmeta().custom_metadata_map["ogkd"])


def calibration(images=60):
    """Of made-up logits, mostly right; its temperature is set, so that it surely matters."""
    rng = np.random.default_rng(0)
    labels = np.arange(images) % 3
    logits = 2 * rng.normal(size=(images, 3)) + 4 * np.eye(3)[labels]
    task, keys = OneOf(("a", "b", "c")), [f"{image:016x}" for image in range(images)]
    fitted = Calibration.fit(task, logits, labels, keys)
    question = fitted.questions[0].model_copy(update={"scale": 1 / TEMPERATURE})
    return fitted.model_copy(update={"questions": (question,)})


def with_backbone(make, folder, model):
    """A gentle head on another tiny backbone."""
    make(folder)
    backbone = load_backbone(folder, device="cpu")
    rng = torch.Generator().manual_seed(2)
    head = LinearHead(4 * torch.randn(3, backbone.embed_dim, generator=rng), torch.zeros(3))
    return Classifier(backbone, head, model.card)
