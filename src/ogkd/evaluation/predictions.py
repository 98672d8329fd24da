"""A classifier's outputs on labelled cases: what every metric and calibration starts from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ogkd.backbones.builtin import domain_warning
from ogkd.data.case import Case, Dataset, require_files
from ogkd.data.fetch import resolve_data
from ogkd.data.task import Task
from ogkd.errors import DataError
from ogkd.features.store import FeatureStore, stored_batches, without_blank
from ogkd.images import ImageRef
from ogkd.model.calibration import Calibration
from ogkd.model.classifier import Classifier
from ogkd.model.decide import Decider, Decision
from ogkd.progress import progress_bar


@dataclass(frozen=True)
class LabelledPredictions:
    """Labelled cases with the model's outputs; labels and columns index the model's names."""

    task: Task
    cases: list[Case]
    labels: NDArray[np.int64]  # [N]; of several findings [N, F]: 1, 0, or -1 if unknown
    logits: NDArray[np.float32]  # [N, C], before calibration
    features: NDArray[np.float32]  # [N, d], of the image that decided
    images: list[ImageRef]  # the image that decided
    decisions: list[Decision]
    warnings: tuple[str, ...] = ()  # why nothing computed from these should be relied on
    left_out: int = 0  # cases that are not among these because the model was made with them
    unit: str = "image"  # what a case is called
    held_out: bool = False  # whether each was predicted by a model that had not learned from it

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.task.names

    @property
    def normal(self) -> tuple[int, ...]:
        return self.task.normal

    @property
    def groups(self) -> list[str | None]:
        """The patient or lesion of each case, if known."""
        return [case.group for case in self.cases]

    @property
    def keys(self) -> list[str]:
        """What names the content of each case."""
        return [case.fingerprint for case in self.cases]

    @property
    def group_count(self) -> int | None:
        """How many patients or lesions there are; None if none is known."""
        return len({group for group in self.groups if group is not None}) or None

    def copies_of(self, seen: Collection[str]) -> NDArray[np.bool_]:
        """Which cases have an image among `seen`, by content or by pixels."""
        if not seen:
            return np.zeros(len(self.cases), dtype=bool)
        with ThreadPoolExecutor() as pool:
            return np.array(list(pool.map(lambda case: case.is_among(seen), self.cases)), bool)

    def used_by(self, classifier: Classifier) -> NDArray[np.bool_]:
        """Which cases the model learned from or was calibrated on."""
        made = classifier.calibration
        return self.copies_of(classifier.card.seen | (made.seen if made else frozenset()))

    def unused(self, classifier: Classifier) -> LabelledPredictions:
        """A copy without the cases that the model learned from or was calibrated on."""
        used = self.used_by(classifier)
        if used.all() and len(used):
            raise DataError(
                f"The model learned from or was calibrated on all of these {len(used)} images. "
                "Choose others: another split, or other data.",
                argument="split",
            )
        return self.without(used)

    def without(self, left_out: NDArray[np.bool_]) -> LabelledPredictions:
        """A copy without the marked cases."""
        rows = np.flatnonzero(~left_out).tolist()
        return replace(
            self,
            left_out=self.left_out + int(left_out.sum()),
            labels=self.labels[rows],
            logits=self.logits[rows],
            features=self.features[rows],
            cases=[self.cases[row] for row in rows],
            images=[self.images[row] for row in rows],
            decisions=[self.decisions[row] for row in rows],
        )

    def probabilities(self, calibration: Calibration | None = None) -> NDArray[np.float32]:
        """[N, C], calibrated if a calibration is given."""
        return self.task.probabilities(self.logits, calibration)


def predict_labelled(
    classifier: Classifier,
    data: str | Path | Dataset,
    *,
    split: str = "test",
) -> LabelledPredictions:
    """Apply the model to one split, or to all cases if the data has no splits.

    Features come from the store if they are there. Cases are made as the model's were.
    """
    dataset = resolve_data(data)
    task, grouping = classifier.task, classifier.card.grouping
    chosen = dataset.with_cases(dataset.part(split))
    targets, warnings = task.translate(dataset.task, chosen.targets())
    if not dataset.has_splits and not classifier.card.seen:
        warnings.append(
            "The data has no splits, so all of its images are used. If the model learned from some "
            "of them, the results look better than they are."
        )
    # Of the model's task; labels of single images are not needed.
    pairs = zip(chosen.cases, targets, strict=True)
    relabelled = tuple(replace(case, target=t, image_targets=None) for case, t in pairs)
    chosen = replace(chosen, task=task, cases=relabelled)
    cases = list(grouping.apply(chosen).cases)
    require_files(cases)
    store = FeatureStore(classifier.backbone)
    if grouping.joins_images:
        cases, note = without_blank(store, cases)
        warnings += [note] if note else []
    decisions = []
    encode = partial(stored_batches, store, deep=classifier.deep)
    with progress_bar("Predicting", len(cases)) as bar:
        for decision in Decider(classifier).decide(cases, encode):
            decisions.append(decision)
            bar.advance()
    foreign = Counter(decision.out_of_domain for decision in decisions)[True]
    if warning := domain_warning(foreign, len(decisions)):
        warnings.append(warning)
    predictions = LabelledPredictions(
        task=task,
        cases=cases,
        labels=task.labels([case.target for case in cases]),
        logits=_stacked([decision.logits for decision in decisions]),
        features=_stacked([decision.features for decision in decisions]),
        images=[decision.deciding[0].image for decision in decisions],
        decisions=decisions,
        unit=grouping.unit,
    )
    if pooled := int(predictions.copies_of(frozenset(classifier.card.unlabelled_images)).sum()):
        warnings.append(
            f"{pooled} of these {len(cases)} images were among the unlabelled images of the fit: "
            "performance on new images may be slightly lower."
        )
    return replace(predictions, warnings=tuple(warnings))


def _stacked(rows: list[NDArray[np.float32] | None]) -> NDArray[np.float32]:
    return np.stack([row for row in rows if row is not None])
