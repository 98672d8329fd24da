"""A classifier's answers to labelled images, before anything is said about them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ogkd.datasets.fetch import resolve_data
from ogkd.datasets.manifest import Manifest
from ogkd.datasets.read import require_files
from ogkd.errors import DataError
from ogkd.features.store import FeatureStore
from ogkd.images import ImageRef, SliceRule
from ogkd.model.classifier import Classifier

__all__ = ["Judged", "judge"]


@dataclass(frozen=True)
class Judged:
    """Labelled images as a model sees them; labels and columns count through its classes."""

    labels: NDArray[np.int64]  # [N]
    logits: NDArray[np.float32]  # [N, C], before calibration
    features: NDArray[np.float32]  # [N, d]
    images: list[ImageRef]
    groups: list[str | None]  # patient or lesion, where known
    keys: list[str]  # what they are by content, as in ModelCard.support_images
    class_names: tuple[str, ...]
    normal: tuple[int, ...]  # labels of the classes that stand for "nothing found"

    def without(self, keys: Collection[str]) -> Judged:
        """All images but those."""
        rows = [row for row, key in enumerate(self.keys) if key not in keys]
        return replace(
            self,
            labels=self.labels[rows],
            logits=self.logits[rows],
            features=self.features[rows],
            images=[self.images[row] for row in rows],
            groups=[self.groups[row] for row in rows],
            keys=[self.keys[row] for row in rows],
        )

    def among(self, keys: Collection[str]) -> int:
        """How many of the images are those."""
        return sum(key in keys for key in self.keys)


def judge(
    classifier: Classifier,
    data: str | Path | Manifest,
    *,
    split: str = "test",
    slice: SliceRule | None = None,
) -> Judged:
    """What the model says of one split; features come from the store where they are known.

    If the data has no splits, all of its images are judged. `slice` is taken of volumes that name
    none themselves (default: the one that the model learned from).
    """
    manifest = resolve_data(data)
    chosen = replace(manifest, items=tuple(manifest.part(split)))
    items = chosen.sliced(slice or classifier.card.slice_rule).items
    numbers = _numbers(classifier, manifest, {item.label for item in items})
    require_files(items)
    images = [item.image for item in items]
    features = FeatureStore(classifier.backbone).get(images).globals[:, 0].numpy()
    names = classifier.class_names
    return Judged(
        labels=np.array([numbers[item.label] for item in items], dtype=np.int64),
        logits=classifier.logits(features),
        features=features,
        images=images,
        groups=[item.group for item in items],
        keys=[image.fingerprint for image in images],
        class_names=names,
        normal=tuple(c for c, name in enumerate(names) if name in classifier.card.normal),
    )


def _numbers(classifier: Classifier, manifest: Manifest, labels: set[int]) -> dict[int, int]:
    """The model's number for each of the dataset's labels."""
    known = {_fold(name): number for number, name in enumerate(classifier.class_names)}
    names = {label: manifest.class_names[label] for label in sorted(labels)}
    strange = [name for name in names.values() if _fold(name) not in known]
    if strange:
        raise DataError(
            f"The data has classes that the model does not know: {', '.join(strange)}. "
            f"It knows: {', '.join(classifier.class_names)}."
        )
    return {label: known[_fold(name)] for label, name in names.items()}


def _fold(name: str) -> str:
    return name.replace("_", " ").casefold()
