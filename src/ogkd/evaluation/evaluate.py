"""A fitted classifier on a split of a dataset."""

from __future__ import annotations

from typing import Any

from ogkd.classifier import Classifier
from ogkd.datasets.manifest import Manifest
from ogkd.errors import DataError
from ogkd.evaluation.metrics import classification_metrics
from ogkd.features.store import FeatureStore

__all__ = ["evaluate"]


def evaluate(classifier: Classifier, manifest: Manifest, *, split: str = "test") -> dict[str, Any]:
    """Metrics on one split; features come from the store where they are known."""
    items = manifest.part(split)
    labels = [_label(classifier, manifest, item.label) for item in items]
    store = FeatureStore(classifier.backbone)
    features = store.get([item.path for item in items]).globals[:, 0]
    probabilities = classifier.probabilities(features)
    return classification_metrics(labels, probabilities, classifier.class_names)


def _label(classifier: Classifier, manifest: Manifest, label: int) -> int:
    """The model's number for the dataset's class."""
    name = manifest.class_names[label].casefold()
    for number, known in enumerate(classifier.class_names):
        if known.casefold() == name:
            return number
    raise DataError(
        f"The data has the class '{manifest.class_names[label]}', which the model does not know. "
        f"It knows: {', '.join(classifier.class_names)}."
    )
