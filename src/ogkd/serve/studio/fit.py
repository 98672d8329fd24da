"""What the current labels give: a model, what it says of every image, and how far to trust it.

The one place where the studio meets a method (whatever is registered as METHOD), and the one where
its numbers are defined: accuracy, calibration and who was held out are read from `Judged`. The
model is there at once; judging it takes several more fits, so `Judged` may be of a few labels less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ogkd.backbones.base import ImageFeatures
from ogkd.data.tasks import OneOf
from ogkd.evaluation.metrics import exact_interval
from ogkd.evaluation.sections import percent
from ogkd.features.views import FixedViews
from ogkd.fitting.cases import CaseSupport, learn
from ogkd.fitting.pool import PER_CLASS
from ogkd.fitting.prepare import default_preset
from ogkd.methods import Head, Support, TextSide, make_method
from ogkd.model.calibration import Calibration
from ogkd.model.card import BackboneCard, ModelCard, versions
from ogkd.model.classifier import Classifier
from ogkd.model.decide import Decider
from ogkd.model.familiarity import SupportFeatures, is_in_distribution
from ogkd.model.support_sets import SupportSets
from ogkd.serve.studio.queue import UNLABELLED, checked

METHOD = "fused"
SEED = 1
TEXT_METHOD = "zero-shot-ensemble"  # until two classes have images
POOL = 500  # most unlabelled images that are learned from: more take longer than a click may
_FOLDS = 10  # of a check: with more labels several are held out together
_FEWEST = 8  # images of a random sample that an accuracy is stated for
_OF_A_CLASS = 5  # checked images of a class that its recall is stated for

_SHOWN = ("of", "fair", "basis", "accuracy", "interval", "weakest", "summary")

Rows = NDArray[np.float32]
Labels = NDArray[np.int64]
Masks = NDArray[np.bool_]


@dataclass(frozen=True)
class Snapshot:
    """What is known of N images at one moment."""

    features: Rows  # [N, d]
    known: Masks  # [N]: images that have been read; nothing is said of the others
    labels: Labels  # [N]: a class, UNLABELLED or EXCLUDED
    order: Sequence[int]  # all rows in a random order that does not change
    keys: Sequence[str]  # of the content of each image
    groups: Sequence[str | None]  # the patient of each, if known


@dataclass(frozen=True)
class Judged:
    """What heads that have not seen a label say of its image: all that is known of the accuracy."""

    rows: Labels  # [M], of the gallery
    labels: Labels  # [M]
    logits: Rows  # [M, C]
    random: Masks  # [M]: drawn at random, not asked for by the queue
    of: int  # labels in all
    names: Sequence[str]  # of the classes
    calibration: Calibration | None = None

    @property
    def fair(self) -> bool:
        """Whether there are random images enough to measure the accuracy on them alone."""
        return int(self.random.sum()) >= _FEWEST

    @property
    def counted(self) -> NDArray[np.intp]:
        """Which of the M images the accuracy is of."""
        return np.flatnonzero(self.random) if self.fair else np.arange(len(self.rows))

    @property
    def basis(self) -> str:
        """What the accuracy is: the one sentence of page, report and archive."""
        if self.fair:
            return f"Accuracy, checked on {len(self.counted)} random images"
        return "Accuracy on your labels, each predicted by a model that had not seen it"

    @property
    def right(self) -> Masks:
        """Which of the counted images were answered correctly."""
        right: Masks = (self.logits.argmax(axis=1) == self.labels)[self.counted]
        return right

    @property
    def accuracy(self) -> float | None:
        return float(self.right.mean()) if len(self.right) else None

    @property
    def interval(self) -> Sequence[float] | None:
        """The 95 % interval of the accuracy."""
        return exact_interval(int(self.right.sum()), len(self.right))

    @property
    def weakest(self) -> str:
        """The class with the smallest recall, in words; "" if no class has enough images."""
        labels = self.labels[self.counted]
        parts = [(self.right[labels == n], name) for n, name in enumerate(self.names)]
        able = [
            (float(part.mean()), len(part), name)
            for part, name in parts
            if len(part) >= _OF_A_CLASS
        ]
        if not able:
            return ""
        recall, count, name = min(able, key=lambda entry: entry[0])
        return (
            f"Weakest of the classes with five or more checked images: {name}, of which it "
            f"recognised {percent(recall)} of {count}."
        )

    @property
    def summary(self) -> str:
        """The accuracy with its interval and the weakest class; "" if nothing was checked."""
        if self.accuracy is None or self.interval is None:
            return ""
        low, high = self.interval
        line = (
            f"{self.basis}: {percent(self.accuracy)} (between {percent(low)} and {percent(high)})."
        )
        return f"{line} {self.weakest}".strip()


@dataclass(frozen=True)
class Fitted:
    """One fit. Arrays over images have a row for each image of the gallery."""

    decider: Decider
    known: Masks  # [N]: images that had been read
    labelled: Labels  # rows
    labels: Labels  # of these rows
    rest: Labels  # rows without a label that it learned from too
    learned: bool  # from images; else the texts alone
    probabilities: Rows  # [N, C]
    sets: Masks | None  # [N, C]: the plausible classes; None: too few labels
    unfamiliar: Masks | None  # [N]
    judged: Judged | None = None

    @property
    def missing(self) -> tuple[int, ...]:
        """Classes without an image: known by their texts."""
        return tuple(c for c in range(self.probabilities.shape[1]) if c not in self.labels)

    def as_json(self) -> dict[str, Any]:
        """What the page says about the model and how good it is."""
        judged = self.judged
        return {
            "learned": self.learned,
            "complete": not self.missing,
            "labels": len(self.labels),
            "coverage": self.decider.coverage,
            "has_sets": self.sets is not None,
            "exact": isinstance(self.decider.sets, SupportSets),
            "judged": None if judged is None else {n: getattr(judged, n) for n in _SHOWN},
        }

    def trusting(self, judged: Judged | None, features: Rows) -> Fitted:
        """The same fit, with probabilities and sets as the judged labels calibrate them."""
        old = self.decider.classifier
        calibration = None if judged is None else judged.calibration
        model = Classifier(
            old.backbone, old.head, old.card, calibration=calibration, support=old.support
        )
        decider = Decider(model)
        X = features[self.known]
        p = model.probabilities(X)
        doubts = [
            d for d in (decider.unfamiliar(X), old.backbone.out_of_domain(X)) if d is not None
        ]
        return replace(
            self,
            decider=decider,
            probabilities=self._spread(p, 1 / p.shape[1]),
            sets=self._spread(decider.plausible(p, X)),
            unfamiliar=self._spread(np.logical_or.reduce(doubts) if doubts else None),
            judged=judged,
        )

    def _spread(self, rows: Any, unread: float = 0) -> Any:
        """Rows of the images that had been read among those of all images."""
        if rows is None:
            return None
        everywhere = np.full((len(self.known), *rows.shape[1:]), unread, rows.dtype)
        everywhere[self.known] = rows
        return everywhere


def fit_labels(images: Snapshot, text: TextSide) -> Fitted:
    """Fit on the labelled images and ask about all that were read.

    Images without a label are learned from too, the first ones of the random order.
    """
    labels, known = images.labels, images.known
    rows = np.flatnonzero((labels >= 0) & known)
    X, y = images.features[rows], labels[rows]
    learned = len(set(y.tolist())) > 1
    unlabelled = [row for row in images.order if labels[row] == UNLABELLED and known[row]][:POOL]
    rest = np.array(unlabelled if learned else [], np.int64)
    rest = rest[learnable(X, y, text, images.features[rest])]
    head = fit_head(X, y, text, images.features[rest])
    task, backbone = task_of(text), text.backbone
    # What decides and is shown; `exports.write_model` gives it a card with all digests.
    card = ModelCard(
        method=METHOD if learned else TEXT_METHOD,
        config={},
        asks=task.as_json(),
        backbone=BackboneCard.of(backbone),
        logit_scale=backbone.logit_scale,
        prompts_sha256="",
        data_sha256="",
        support_counts=task.support_counts(y.tolist()),
        support_images=tuple(sorted({images.keys[int(row)] for row in rows})),
        seed=SEED,
        versions=dict(versions()),
    )
    support = SupportFeatures(X, y) if learned else None
    decider = Decider(Classifier(backbone, head, card, support=support))
    nothing = np.empty((0, len(task.names)), np.float32)
    fitted = Fitted(decider, known, rows, y, rest, learned, nothing, None, None)
    return fitted.trusting(None, images.features)


def task_of(text: TextSide) -> OneOf:
    return OneOf(text.class_names, text.normal)


def fit_head(features: Rows, labels: Labels, text: TextSide, rest: Rows | None = None) -> Head:
    """The head of labelled images [N, d] and of others [U, d] whose labels are not known.

    A class without an image is known by its texts; while fewer than two have one, all are.
    """
    if len(set(labels.tolist())) < 2:
        return make_method(TEXT_METHOD).fit(None, text, seed=SEED)
    method = make_method(METHOD, preset=default_preset(METHOD))
    given = support_of(features, labels, text, rest)
    return learn(method, given, task_of(text), [text], seed=SEED)[0]


def support_of(
    features: Rows, labels: Labels, text: TextSide, rest: Rows | None = None
) -> CaseSupport:
    """What a method learns from; of the unlabelled rows those that are like the labelled ones."""
    pool = None
    if rest is not None and len(near := rest[learnable(features, labels, text, rest)]):
        pool = torch.from_numpy(near)
    y = torch.from_numpy(labels)
    views = FixedViews(ImageFeatures(torch.from_numpy(np.ascontiguousarray(features)).unsqueeze(1)))
    support = Support(views, y, unlabelled=pool, allow_missing_classes=True)
    return CaseSupport(support, torch.empty(len(y), 0), torch.arange(len(y)), y, y)


def learnable(features: Rows, labels: Labels, text: TextSide, rest: Rows) -> Masks:
    """Which unlabelled images [U, d] are like the labelled ones; none of them if too few are."""
    if not len(rest):
        return np.zeros(0, bool)
    width = text.backbone.embed_dim
    near = is_in_distribution(SupportFeatures(features, labels), rest, width)
    enough = int(near.sum()) >= PER_CLASS * len(text.class_names)
    return near if enough else np.zeros(len(rest), bool)


def logits_of(head: Head, features: Rows) -> Rows:
    logits: Rows = head.of_rows(torch.from_numpy(features)).numpy()
    return logits


def hold_out(
    features: Rows,
    labels: Labels,
    text: TextSide,
    groups: Sequence[str | None] | None = None,
    rest: Rows | None = None,
) -> tuple[Labels, Rows]:
    """Refit without each image's label in turn, those of one group (patient) together.

    Gives the rows [M] that were judged, and their logits [M, C].

    An image whose class has no other image (or no other patient) is not judged. Beyond _FOLDS
    labels, folds of images take the place of single ones. The images held out are then among the
    unlabelled ones, if there are any: so are all images that the studio is asked about.
    """
    names = list(groups) if groups is not None else [None] * len(labels)
    units: dict[object, list[int]] = {}
    for row, group in enumerate(names):
        units.setdefault(row if group is None else group, []).append(row)
    # Dealt by class, so that no fold takes all images of one class if that can be avoided.
    ordered = sorted(units.values(), key=lambda unit: (int(labels[unit[0]]), unit[0]))
    count = min(_FOLDS, len(ordered))
    folds = [[row for unit in ordered[fold::count] for row in unit] for fold in range(count)]
    logits: dict[int, Rows] = {}
    for fold in folds:
        kept = np.setdiff1d(np.arange(len(labels)), fold)
        seen = set(labels[kept].tolist())
        able = [row for row in fold if labels[row] in seen]
        if len(seen) < 2 or not able:
            continue
        more = None if rest is None else np.concatenate([rest, features[fold]])
        head = fit_head(features[kept], labels[kept], text, more)
        logits |= zip(able, logits_of(head, features[able]), strict=True)
    rows = sorted(logits)
    held = np.array([logits[row] for row in rows], np.float32)
    return np.array(rows, np.int64), held.reshape(len(rows), len(text.class_names))


def judge(fitted: Fitted, images: Snapshot, text: TextSide) -> Judged:
    """Fit again without some of the labels in turn, and see what is said of these.

    Accuracy is measured on the images that were drawn at random, if there are enough.
    """
    rows, y = fitted.labelled, fitted.labels
    X = images.features[rows]
    groups = [images.groups[row] for row in rows]
    held, logits = hold_out(X, y, text, groups, images.features[fitted.rest])
    labels, chosen = y[held], rows[held]
    calibration = None
    task = task_of(text)
    if len(labels) >= 2 * len(task.names) and not fitted.missing:
        keys = [images.keys[row] for row in chosen]
        # A third of so few labels would not do: all fit the scale.
        engine = text.backbone.engine
        calibration = Calibration.fit(task, logits, labels, keys, engine=engine, split=False)
    return Judged(
        chosen,
        labels,
        logits,
        random=checked(images.order, images.labels)[chosen],
        of=len(y),
        names=task.names,
        calibration=calibration,
    )
