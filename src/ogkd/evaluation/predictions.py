"""A classifier's outputs on labelled images: what every metric and calibration starts from."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ogkd.backbones.builtin import warning_of
from ogkd.datasets.bags import BagRule, in_bags
from ogkd.datasets.fetch import resolve_data
from ogkd.datasets.manifest import UNKNOWN, Item, Manifest, by_bag
from ogkd.datasets.read import require_files
from ogkd.errors import DataError
from ogkd.features.store import FeatureStore, blank_pictures
from ogkd.fitting.bags import few_of_each
from ogkd.images import ImageRef
from ogkd.model.answers import probabilities_of
from ogkd.model.bags import deciding_of
from ogkd.model.calibration_file import CalibrationFile
from ogkd.model.card import ModelCard
from ogkd.model.classifier import Classifier
from ogkd.model.decide import Share
from ogkd.progress import progress_bar
from ogkd.prompts.bank import fold


@dataclass(frozen=True)
class Bag:
    """The pictures of a bag, and those that decided its answer."""

    name: str
    items: tuple[Item, ...] = field(repr=False)
    decided_by: tuple[Share, ...]

    @property
    def key(self) -> str:
        """A hash of its pictures' contents."""
        marks = sorted(item.image.fingerprint for item in self.items)
        return hashlib.sha256(" ".join(marks).encode()).hexdigest()[:16]

    def is_among(self, seen: Collection[str]) -> bool:
        """Whether any of its pictures is known, by content, or any of a few by its pixels."""
        if not seen:
            return False
        if any(item.image.fingerprint in seen for item in self.items):
            return True
        return any(item.image.pixel_fingerprint in seen for item in few_of_each(self.items))


@dataclass(frozen=True)
class LabelledPredictions:
    """Labelled images with the model's outputs; labels and columns index the model's classes.

    Of a model of bags, each row is a bag: `images` has the picture that decided it, `bags` all.
    """

    labels: NDArray[np.int64]  # [N]; of several findings [N, F]: 1, 0, or -1 if unknown
    logits: NDArray[np.float32]  # [N, C], before calibration
    features: NDArray[np.float32]  # [N, d]; [N, 0] of bags
    images: list[ImageRef]
    groups: list[str | None]  # patient or lesion, if known
    keys: list[str]  # content keys, as in ModelCard.support_images
    class_names: tuple[str, ...]
    normal: tuple[int, ...]  # labels of the classes that mean "nothing found"
    warnings: tuple[str, ...] = ()  # why nothing computed from these should be relied on
    left_out: int = 0  # images that are not among these because the model was made with them
    bags: tuple[Bag, ...] = ()  # of each row; () without bags

    @property
    def group_count(self) -> int | None:
        """How many patients or lesions there are; None if none is known."""
        return len({group for group in self.groups if group is not None}) or None

    def origin(self, card: ModelCard | None, calibration: CalibrationFile | None) -> dict[str, Any]:
        """What an evaluation says about where its images come from, whatever it measures."""
        return {
            "warnings": list(self.warnings),
            "learned_from": int(self.copies_of(card.seen if card else ()).sum()),
            "calibrated_on": int(self.copies_of(calibration.seen if calibration else ()).sum()),
            "left_out": self.left_out,
        }

    @property
    def unit(self) -> str:
        """What a row is, in a word."""
        return "bag" if self.bags else "image"

    def copies_of(self, seen: Collection[str]) -> NDArray[np.bool_]:
        """Which images are among `seen`, by content or by pixels (a copy in another format)."""
        if self.bags:
            return np.array([bag.is_among(seen) for bag in self.bags], dtype=bool)
        known = np.array([key in seen for key in self.keys], dtype=bool)
        if not seen or known.all():
            return known
        with ThreadPoolExecutor() as pool, progress_bar("Looking for copies", len(known)) as bar:
            for row, pixels in enumerate(pool.map(lambda ref: ref.pixel_fingerprint, self.images)):
                known[row] |= pixels in seen
                bar.advance()
        return known

    def unused(self, classifier: Classifier) -> LabelledPredictions:
        """A copy without the images that the model learned from or was calibrated on."""
        calibration = classifier.calibration
        seen = classifier.card.seen | (calibration.seen if calibration else frozenset())
        used = self.copies_of(seen)
        if used.all() and len(used):
            raise DataError(
                f"The model learned from or was calibrated on all of these {len(used)} images. "
                "Evaluate others: another split, or other data.",
                argument="split",
            )
        return self.without(used)

    def without(self, left_out: NDArray[np.bool_]) -> LabelledPredictions:
        """A copy without the marked images."""
        rows = np.flatnonzero(~left_out).tolist()
        return replace(
            self,
            left_out=self.left_out + int(left_out.sum()),
            labels=self.labels[rows],
            logits=self.logits[rows],
            features=self.features[rows],
            images=[self.images[row] for row in rows],
            groups=[self.groups[row] for row in rows],
            keys=[self.keys[row] for row in rows],
            bags=tuple(self.bags[row] for row in rows) if self.bags else (),
        )

    @property
    def findings(self) -> bool:
        """Whether several findings are asked of an image, and not one class."""
        return self.labels.ndim == 2

    def probabilities(self, calibration: CalibrationFile | None = None) -> NDArray[np.float32]:
        """[N, C], calibrated if a calibration is given."""
        return probabilities_of(self.logits, calibration, findings=self.findings)


def predict_labelled(
    classifier: Classifier,
    data: str | Path | Manifest,
    *,
    split: str = "test",
) -> LabelledPredictions:
    """Apply the model to one split, or to all images if the data has no splits.

    Features come from the store if they are there. Of volumes that name no slice, the one that
    the model learned from is used.
    """
    bags = classifier.card.bags
    manifest = resolve_data(data, bags=None if bags is None else bags.by)
    chosen = replace(manifest, items=tuple(manifest.part(split)))
    names = classifier.class_names
    said: list[str] = []
    _refuse_other_question(classifier, manifest)
    if bags is not None:
        return _warned(classifier, _predict_bags(classifier, chosen, bags.rule))
    items = chosen.sliced(classifier.card.slice_rule).items
    if manifest.has_findings:
        labels, said = _match_findings(names, manifest, items)
    else:
        label_of = _match_classes(names, manifest, {item.label for item in items})
        labels = np.array([label_of[item.label] for item in items], dtype=np.int64)
    require_files(items)
    images = [item.image for item in items]
    store = FeatureStore(classifier.backbone)
    features = store.get(images, deep=classifier.deep).rows[:, 0].numpy()
    if warning := warning_of(classifier.backbone, features):
        said.append(warning)
    found = LabelledPredictions(
        labels=labels,
        logits=classifier.logits(features),
        features=features,
        images=images,
        groups=[item.group for item in items],
        keys=[image.fingerprint for image in images],
        class_names=names,
        normal=classifier.card.normal_labels,
        warnings=tuple(said),
    )
    return _warned(classifier, found)


def _warned(classifier: Classifier, found: LabelledPredictions) -> LabelledPredictions:
    """The same, with a warning if the fit has seen some of it without labels."""
    pooled = int(found.copies_of(frozenset(classifier.card.unlabelled_images)).sum())
    if not pooled:
        return found
    unit = "bags" if found.bags else "images"
    again = (
        f"{pooled} of these {len(found.images)} {unit} were among the unlabelled {unit} of the fit:"
        f" for new {unit} the model may be a little worse than these numbers say."
    )
    return replace(found, warnings=(*found.warnings, again))


def _refuse_other_question(classifier: Classifier, manifest: Manifest) -> None:
    """Refuse data that answers another question than the model: one class, or several findings."""
    if classifier.card.findings and not manifest.has_findings:
        raise DataError(
            "The model answers several findings, but the data gives each image one class. Give a "
            "table with a column for each finding (1, 0 or empty), or name these columns.",
            argument="findings",
        )
    if not classifier.card.findings:
        manifest.require_classes("The model")


def _match_findings(
    names: Sequence[str], manifest: Manifest, items: Sequence[Item]
) -> tuple[NDArray[np.int64], list[str]]:
    """What is known of the model's findings [N, F], matched by name, and warnings."""
    column = {fold(name): number for number, name in enumerate(manifest.class_names)}
    missing = [name for name in names if fold(name) not in column]
    if len(missing) == len(names):
        raise DataError(
            f"The data has none of the model's findings: {', '.join(names)}. It has: "
            f"{', '.join(manifest.class_names)}."
        )
    said = np.array([item.findings for item in items], dtype=np.int64)
    said = np.concatenate([said, np.full((len(said), 1), UNKNOWN)], axis=1)
    labels = said[:, [column.get(fold(name), -1) for name in names]]
    absent = f"The data says nothing about: {', '.join(missing)}. They are not evaluated."
    return labels, [absent] if missing else []


def _predict_bags(classifier: Classifier, chosen: Manifest, rule: BagRule) -> LabelledPredictions:
    """Apply the model bag by bag, so that no more features than those of one are in memory."""
    normal, names = classifier.card.normal_labels, classifier.class_names
    label_of = _match_classes(names, chosen, {item.label for item in chosen.items})
    own = {mine for mine, label in label_of.items() if label in normal}
    items = in_bags(chosen, rule, normal=sorted(own)).items
    require_files(items)
    store, pooling = FeatureStore(classifier.backbone), classifier.pooling
    blank, said = blank_pictures(store, items)
    found = by_bag([item for item in items if item.image not in blank])
    bags, logits, warned = [], [], Counter[str | None]()
    with progress_bar("Reading bags", len(found)) as bar:
        for name, mine in found.items():
            images = [item.image for item in mine]
            rows = store.get(images, deep=classifier.deep).rows[:, 0].numpy()
            warned[warning_of(classifier.backbone, rows)] += 1
            z = torch.from_numpy(classifier.logits(rows))
            total = pooling.logits(z, torch.zeros(len(z), dtype=torch.long))[0]
            weights = pooling.weights(z, int(total.argmax())).numpy()
            deciding = tuple(Share(images[n], share) for n, share in deciding_of(weights))
            bags.append(Bag(name, tuple(mine), deciding))
            logits.append(total.float().numpy())
            bar.advance()
    return LabelledPredictions(
        labels=np.array([label_of[bag.items[0].label] for bag in bags], dtype=np.int64),
        logits=np.array(logits),
        features=np.zeros((len(bags), 0), dtype=np.float32),
        images=[bag.decided_by[0].image or bag.items[0].image for bag in bags],
        groups=[bag.items[0].group for bag in bags],
        keys=[bag.key for bag in bags],
        class_names=names,
        normal=normal,
        warnings=tuple(text for text in (said, *(w for w, _ in warned.most_common(1))) if text),
        bags=tuple(bags),
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
