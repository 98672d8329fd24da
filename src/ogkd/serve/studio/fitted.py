"""What the current labels give: a head and what it says of every image, then how far to trust it.

The head is there at once. Judging it takes several more fits, so `Judged` may be of a few labels
less than the head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ogkd.data.task import Task
from ogkd.data.tasks import OneOf
from ogkd.errors import ConfigError
from ogkd.evaluation.metrics import exact_interval
from ogkd.methods import Head, TextSide
from ogkd.model.calibration import Calibration
from ogkd.model.familiarity import Familiarity, SupportFeatures, can_judge
from ogkd.model.support_sets import SupportSets
from ogkd.serve.studio.learn import POOL, fit_head, hold_out, learnable, logits_of
from ogkd.serve.studio.queue import UNLABELLED

COVERAGE = 0.9
_NEIGHBOURS = 5
_FEWEST = 8  # images of a random sample that an accuracy is stated for
_SURE = 0.6  # probability of another class from which on a label is questioned


@dataclass(frozen=True)
class Suspect:
    """A label that a model which has not seen it, and all its neighbours, disagree with."""

    row: int
    given: int
    likely: int
    neighbours: int  # nearest labelled images of another class, of _NEIGHBOURS


@dataclass(frozen=True)
class Judged:
    """What heads that have not seen a label say of its image, and what follows from it."""

    rows: NDArray[np.int64]  # [M], of the gallery
    labels: NDArray[np.int64]  # [M]
    logits: NDArray[np.float32]  # [M, C]
    of: int  # labels in all
    calibration: Calibration | None = None
    exact: NDArray[np.bool_] | None = None  # [N, C]: sets, if every class has labels enough
    accuracy: float | None = None
    interval: Sequence[float] | None = None
    counted: int = 0  # images that the accuracy is of
    fair: bool = False  # whether these are a random sample
    confusion: list[list[int]] = field(default_factory=list)
    suspects: tuple[Suspect, ...] = ()


@dataclass(frozen=True)
class Fitted:
    """One fit. Arrays over images have a row for each image of the gallery."""

    task: Task
    head: Head
    known: NDArray[np.bool_]  # [N]: images that had been read; nothing is said of the others
    labelled: NDArray[np.int64]  # rows
    labels: NDArray[np.int64]  # of these rows
    rest: NDArray[np.int64]  # rows without a label that it learned from too
    logits: NDArray[np.float32]  # [N, C]
    unfamiliar: NDArray[np.bool_] | None  # [N]
    learned: bool  # from images; else the texts alone
    missing: tuple[int, ...]  # classes without an image: known by their texts
    probabilities: NDArray[np.float32]  # [N, C]
    sets: NDArray[np.bool_] | None = None  # [N, C]: the plausible classes; None: too few labels
    judged: Judged | None = None

    @property
    def calibration(self) -> Calibration | None:
        return None if self.judged is None else self.judged.calibration

    def trusting(self, judged: Judged | None) -> Fitted:
        """The same fit, with probabilities and sets as the judged labels calibrate them."""
        calibration = None if judged is None else judged.calibration
        p = self.task.probabilities(self.logits, calibration)
        sets = None if judged is None else judged.exact
        if sets is None and calibration is not None:
            try:
                calibration.require_sets(COVERAGE)
                sets = self.task.plausible(p, calibration.limits(COVERAGE))
            except ConfigError:
                sets = None  # too few images
        return replace(self, judged=judged, probabilities=p, sets=sets)


def fit_labels(
    features: NDArray[np.float32],
    known: NDArray[np.bool_],
    labels: NDArray[np.int64],
    text: TextSide,
    *,
    order: Sequence[int],
) -> Fitted:
    """Fit on the labelled rows (labels >= 0) and ask about all known ones.

    Images without a label are learned from too, the first ones of `order`, a random order.
    """
    task = OneOf(text.class_names, text.normal)
    rows = np.flatnonzero((labels >= 0) & known)
    X, y = features[rows], labels[rows]
    learned = len(set(y.tolist())) > 1
    rest = np.array(
        [row for row in order if labels[row] == UNLABELLED and known[row]][:POOL], np.int64
    )
    rest = rest[learnable(X, y, text, features[rest])] if learned else rest[:0]
    head = fit_head(X, y, text, features[rest])
    logits = np.zeros((len(features), len(task.names)), np.float32)
    logits[known] = logits_of(head, features[known])
    support = SupportFeatures(X, y)
    strange = None
    if learned and can_judge(support):
        strange = Familiarity(support, text.backbone.embed_dim).unfamiliar(features) & known
    missing = tuple(label for label in range(len(task.names)) if label not in y)
    p = task.probabilities(logits)
    return Fitted(task, head, known, rows, y, rest, logits, strange, learned, missing, p)


def judge(
    fitted: Fitted,
    features: NDArray[np.float32],
    text: TextSide,
    *,
    keys: Sequence[str],
    groups: Sequence[str | None],
    sample: NDArray[np.bool_],
    engine: str,
) -> Judged:
    """Fit again without some of the labels in turn, and see what is said of these.

    `keys` name the content of the images, `groups` their patients. `sample` are the labelled
    images that were drawn at random: if there are enough, accuracy is measured on them alone.
    """
    rows, y, X = fitted.labelled, fitted.labels, features[fitted.labelled]
    classes = len(text.class_names)
    labelled_groups = [groups[int(row)] for row in rows]
    held = hold_out(X, y, text, labelled_groups, features[fitted.rest])
    judged, chosen = y[held.rows], rows[held.rows]
    calibration = None
    if len(judged) >= 2 * classes and not fitted.missing:
        names = [keys[row] for row in chosen]
        units = [labelled_groups[row] for row in held.rows]
        try:
            calibration = Calibration.fit(
                fitted.task, held.logits, judged, names, groups=units, engine=engine
            )
        except ValueError:  # all of one patient: there are no two sides
            calibration = None
    right = held.logits.argmax(axis=1) == judged
    random = sample[chosen]
    fair = int(random.sum()) >= _FEWEST
    counted = right[random] if fair else right
    confusion = np.zeros((classes, classes), np.int64)
    np.add.at(confusion, (judged, held.logits.argmax(axis=1)), 1)
    return Judged(
        chosen,
        judged,
        held.logits,
        len(y),
        calibration,
        None if calibration is None else exact_sets(fitted, features, text),
        accuracy=float(counted.mean()) if len(counted) else None,
        interval=exact_interval(int(counted.sum()), len(counted)),
        counted=len(counted),
        fair=fair,
        confusion=confusion.tolist(),
        suspects=tuple(suspects(X, y, rows, held.rows, fitted.task.probabilities(held.logits))),
    )


def exact_sets(
    fitted: Fitted, features: NDArray[np.float32], text: TextSide
) -> NDArray[np.bool_] | None:
    """Sets that promise their coverage for each class, as the exported model gives them."""
    support = SupportFeatures(features[fitted.labelled], fitted.labels)
    support_sets = SupportSets.among(fitted.head, support, text.class_names)
    if support_sets is None or not support_sets.holds(COVERAGE):
        return None
    return support_sets.members(fitted.probabilities, features, COVERAGE)


def suspects(
    X: NDArray[np.float32],
    y: NDArray[np.int64],
    rows: NDArray[np.int64],
    held: NDArray[np.int64],
    p: NDArray[np.float32],
) -> list[Suspect]:
    """Labels to look at again, the most doubtful first: `p` [M, C] is said of the rows `held`."""
    ranked: list[tuple[float, Suspect]] = []
    unit = X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-12)
    for index, row in enumerate(held):
        likely, given = int(p[index].argmax()), int(y[row])
        if likely == given or p[index, likely] < _SURE:
            continue
        near = unit @ unit[row]
        near[row] = -2.0
        others = np.argsort(-near)[: min(_NEIGHBOURS, len(y) - 1)]
        if (y[others] != given).all():
            doubt = Suspect(int(rows[row]), given, likely, len(others))
            ranked.append((float(p[index, given]), doubt))
    return [doubt for _, doubt in sorted(ranked, key=lambda pair: pair[0])]
