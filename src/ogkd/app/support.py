"""Pictures of the images that a model learned from, where the user says where they are.

A model keeps features of its support images, never the images. They are found again by their
content and matched with the features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

from ogkd.app.answers import data_uri
from ogkd.app.models import Model
from ogkd.datasets.fetch import resolve_data
from ogkd.datasets.manifest import Item
from ogkd.errors import ConfigError
from ogkd.images import read_image
from ogkd.progress import progress_bar

__all__ = ["with_pictures"]

_SAME = 0.999  # cosine from which on features are of one image; they are kept in half precision
_THUMB = 160  # pixels


def with_pictures(models: Sequence[Model], data: Path) -> list[Model]:
    """The models with small pictures of their support images, taken from `data`."""
    manifest = resolve_data(data)
    found = [_with_pictures(model, manifest.items) for model in models]
    if not any(model.pictures for model in found):
        names = ", ".join(model.name for model in models)
        raise ConfigError(
            f"No image of {data} is one that {names} learned from. Name the data that `ogkd fit` "
            "was given, or leave --support out."
        )
    return found


def _with_pictures(model: Model, items: Sequence[Item]) -> Model:
    classifier = model.classifier
    if classifier.support is None:
        return model
    images = classifier.refs(list(dict.fromkeys(item.image for item in items)))
    learned = set(classifier.card.support_images)
    known = [image for image in images if image.fingerprint in learned]
    pictures: dict[int, str] = {}
    with progress_bar("Reading support images", len(known)) as bar:
        for answer in classifier.decide(known):
            bar.advance()
            if answer.features is None or answer.image is None:
                continue
            near = classifier.support.features @ answer.features
            rows = np.flatnonzero(near > _SAME)
            if rows.size:
                image = Image.fromarray(read_image(answer.image))
                thumb = data_uri(image, most=_THUMB)
                pictures |= {int(row): thumb for row in rows}
    return replace(model, pictures=pictures)
