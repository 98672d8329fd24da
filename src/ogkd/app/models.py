"""The models that the page asks: loaded once, backbones shared, settings checked at the start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ogkd.backbones import Backbone, load_backbone
from ogkd.backbones.engines import with_engine
from ogkd.errors import ConfigError
from ogkd.model.card import ModelCard
from ogkd.model.classifier import CARD, Classifier, load
from ogkd.model.decide import engine_note

__all__ = ["Model", "load_models"]


@dataclass(frozen=True)
class Model:
    """A loaded model, its name on the page, and when it abstains."""

    name: str
    classifier: Classifier
    coverage: float = 0.9
    max_risk: float | None = None
    threshold: float | None = None  # of the top probability, for max_risk
    pictures: Mapping[int, str] = field(default_factory=dict)  # support row -> data URI

    @property
    def note(self) -> str:
        """What to say where the calibration was made with another engine."""
        return engine_note(self.classifier)


def load_models(
    folders: Sequence[Path],
    *,
    backbone: str | None = None,
    device: str = "auto",
    coverage: float = 0.9,
    max_risk: float | None = None,
) -> list[Model]:
    """Load model folders; models of one backbone share it. What cannot be served is refused.

    Each model encodes images with the engine of its fit, also where `backbone` says where its
    backbone is now.
    """
    known: dict[str, Backbone] = {}
    moved = None if backbone is None else load_backbone(backbone, device=device)
    models = []
    for name, folder in zip(_names(folders), folders, strict=True):
        card = ModelCard.read(folder / CARD)
        own = known.get(card.backbone.digest)
        if own is None and moved is not None:
            own = with_engine(moved, card.backbone.engine)
        classifier = load(folder, backbone=own, device=device)
        known[classifier.backbone.digest] = classifier.backbone
        models.append(_model(name, classifier, coverage, max_risk))
    return models


def _model(name: str, classifier: Classifier, coverage: float, max_risk: float | None) -> Model:
    calibration = classifier.calibration
    if calibration is None:
        if max_risk is not None:
            raise ConfigError(
                f"--max-risk needs a calibrated model, and {name} is not. Calibrate it with images "
                f"that it did not learn from: ogkd calibrate {name} DATA."
            )
        return Model(name, classifier, coverage)
    # Refused now, with how many images are missing, and not at the first upload.
    even = np.full((1, len(classifier.class_names)), 1 / len(classifier.class_names), np.float32)
    calibration.sets(even, coverage=coverage)
    threshold = None if max_risk is None else calibration.threshold(max_risk)
    return Model(name, classifier, coverage, max_risk, threshold)


def _names(folders: Sequence[Path]) -> list[str]:
    """Folder names; where two are alike, with the folder around them."""
    last = [folder.resolve().name for folder in folders]
    names = [
        f"{folder.resolve().parent.name}/{name}" if last.count(name) > 1 else name
        for folder, name in zip(folders, last, strict=True)
    ]
    if len(set(names)) < len(names):
        return [f"{number}. {name}" for number, name in enumerate(names, 1)]
    return names
