"""The models that the page asks: loaded once, with shared backbones, and checked at the start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from PIL import Image

from ogkd.backbones import Backbone, load_backbone
from ogkd.backbones.engines import with_engine
from ogkd.datasets.fetch import resolve_data
from ogkd.datasets.manifest import Item
from ogkd.errors import ConfigError
from ogkd.images import read_image
from ogkd.model.card import ModelCard
from ogkd.model.classifier import CARD, Classifier, load
from ogkd.model.decide import Decider, Policy, engine_note
from ogkd.model.explain import data_uri
from ogkd.progress import progress_bar

_SAME = 0.999  # cosine above which features are of one image; they are kept in half precision
_THUMB = 160  # pixels


@dataclass(frozen=True)
class Model:
    """A loaded model with its policy, and its name on the page."""

    name: str
    decider: Decider
    thumbnails: Mapping[int, str] = field(default_factory=dict)  # support row -> data URI

    @property
    def classifier(self) -> Classifier:
        return self.decider.classifier

    @property
    def note(self) -> str:
        """A warning if the calibration was made with another engine."""
        return engine_note(self.classifier)


def load_models(
    folders: Sequence[Path],
    *,
    backbone: str | None = None,
    device: str = "auto",
    coverage: float = 0.9,
    max_risk: float | None = None,
) -> list[Model]:
    """Load model folders; models with the same backbone share it.

    A policy that a model cannot meet is refused now, not at the first upload. Each model encodes
    images with the engine of its fit, even if `backbone` says where its backbone is now.
    """
    known: dict[str, Backbone] = {}
    moved = None if backbone is None else load_backbone(backbone, device=device)
    models = []
    for name, folder in zip(_names(folders), folders, strict=True):
        card = ModelCard.read(folder / CARD)
        shared = known.get(card.backbone.digest)
        if shared is None and moved is not None:
            shared = with_engine(moved, card.backbone.engine)
        classifier = load(folder, backbone=shared, device=device)
        known[classifier.backbone.digest] = classifier.backbone
        if classifier.calibration is not None:
            policy = Policy(max_risk=max_risk, coverage=coverage)
        elif max_risk is None:
            policy = Policy()
        else:
            raise ConfigError(
                f"max_risk needs calibrated models, and {name} is not. Calibrate it with labelled "
                "images that it did not learn from.",
                argument="max_risk",
            )
        models.append(Model(name, Decider(classifier, policy)))
    return models


def _names(folders: Sequence[Path]) -> list[str]:
    """Folder names; if two are equal, with their parent folder or a number."""
    last = [folder.resolve().name for folder in folders]
    names = [
        f"{folder.resolve().parent.name}/{name}" if last.count(name) > 1 else name
        for folder, name in zip(folders, last, strict=True)
    ]
    if len(set(names)) < len(names):
        return [f"{number}. {name}" for number, name in enumerate(names, 1)]
    return names


def with_support_images(models: Sequence[Model], data: Path) -> list[Model]:
    """The models with thumbnails of their support images, taken from `data`.

    A model keeps features of its support images, never the images: they are found again by
    their content and matched with the features.
    """
    manifest = resolve_data(data)
    found = [replace(model, thumbnails=_thumbnails(model, manifest.items)) for model in models]
    if not any(model.thumbnails for model in found):
        names = ", ".join(model.name for model in models)
        raise ConfigError(
            f"{data} contains no image that {names} learned from. Give the data that was used "
            "for fitting, or start without support images.",
            argument="support",
        )
    return found


def _thumbnails(model: Model, items: Sequence[Item]) -> dict[int, str]:
    classifier = model.classifier
    if classifier.support is None:
        return {}
    images = classifier.refs(list(dict.fromkeys(item.image for item in items)))
    learned = set(classifier.card.support_images)
    known = [image for image in images if image.fingerprint in learned]
    found: dict[int, str] = {}
    with progress_bar("Reading support images", len(known)) as bar:
        for decision in classifier.decide(known):
            bar.advance()
            if decision.features is None or decision.image is None:
                continue
            rows = np.flatnonzero(classifier.support.features @ decision.features > _SAME)
            if rows.size:
                image = Image.fromarray(read_image(decision.image))
                found |= dict.fromkeys(rows.tolist(), data_uri(image, most=_THUMB))
    return found
