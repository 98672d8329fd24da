"""A classifier's outputs on labelled images: what every metric and calibration starts from."""

from __future__ import annotations

from collections.abc import Collection, Sequence
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
from ogkd.model.calibration import Calibration, softmax
from ogkd.model.classifier import Classifier
from ogkd.prompts.bank import fold


@dataclass(frozen=True)
class LabelledPredictions:
    """Labelled images with the model's outputs; labels and columns index the model's classes."""

    labels: NDArray[np.int64]  # [N]
    logits: NDArray[np.float32]  # [N, C], before calibration
    features: NDArray[np.float32]  # [N, d]
    images: list[ImageRef]
    groups: list[str | None]  # patient or lesion, if known
    keys: list[str]  # content keys, as in ModelCard.support_images
    class_names: tuple[str, ...]
    normal: tuple[int, ...]  # labels of the classes that mean "nothing found"

    def without(self, keys: Collection[str]) -> LabelledPredictions:
        """A copy without the images that have one of these content keys."""
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

    def probabilities(self, calibration: Calibration | None = None) -> NDArray[np.float32]:
        """[N, C], calibrated if a calibration is given."""
        return softmax(self.logits, calibration.temperature if calibration else 1.0)

    def count_in(self, keys: Collection[str]) -> int:
        return sum(key in keys for key in self.keys)


def predict_labelled(
    classifier: Classifier,
    data: str | Path | Manifest,
    *,
    split: str = "test",
    slice: SliceRule | None = None,
) -> LabelledPredictions:
    """Apply the model to one split, or to all images if the data has no splits.

    Features come from the store if they are there. `slice` is used for volumes that do not name
    one (default: the slice that the model learned from).
    """
    manifest = resolve_data(data)
    chosen = replace(manifest, items=tuple(manifest.part(split)))
    items = chosen.sliced(slice or classifier.card.slice_rule).items
    names = classifier.class_names
    label_of = _match_classes(names, manifest, {item.label for item in items})
    require_files(items)
    images = [item.image for item in items]
    features = FeatureStore(classifier.backbone).get(images).globals[:, 0].numpy()
    return LabelledPredictions(
        labels=np.array([label_of[item.label] for item in items], dtype=np.int64),
        logits=classifier.logits(features),
        features=features,
        images=images,
        groups=[item.group for item in items],
        keys=[image.fingerprint for image in images],
        class_names=names,
        normal=tuple(c for c, name in enumerate(names) if name in classifier.card.normal),
    )


def _match_classes(
    class_names: Sequence[str], manifest: Manifest, labels: Collection[int]
) -> dict[int, int]:
    """The model's label for each of the dataset's labels, matched by class name."""
    known = {fold(name): label for label, name in enumerate(class_names)}
    names = {label: manifest.class_names[label] for label in sorted(labels)}
    if unknown := [name for name in names.values() if fold(name) not in known]:
        raise DataError(
            f"The data has classes that the model does not know: {', '.join(unknown)}. "
            f"The model knows: {', '.join(class_names)}."
        )
    return {label: known[fold(name)] for label, name in names.items()}
