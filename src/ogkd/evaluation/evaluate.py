"""A fitted classifier on a split of a dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ogkd.classifier import Classifier
from ogkd.datasets.fetch import resolve_data
from ogkd.datasets.manifest import Manifest, require_files
from ogkd.errors import DataError
from ogkd.evaluation.metrics import classification_metrics
from ogkd.features.store import FeatureStore
from ogkd.features.usable import sliced

__all__ = ["evaluate"]


def evaluate(
    classifier: Classifier, data: str | Path | Manifest, *, split: str = "test"
) -> dict[str, Any]:
    """Metrics on one split; features come from the store where they are known.

    Where the data has no splits, all of its images are judged.
    """
    manifest = resolve_data(data)
    items = sliced(manifest.part(split), classifier.card.slice)
    numbers = _numbers(classifier, manifest, {item.label for item in items})
    require_files(items)
    store = FeatureStore(classifier.backbone)
    features = store.get([item.path for item in items]).globals[:, 0]
    probabilities = classifier.probabilities(features)
    labels = [numbers[item.label] for item in items]
    return classification_metrics(labels, probabilities, classifier.class_names)


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
