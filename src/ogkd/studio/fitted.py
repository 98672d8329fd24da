"""What the current labels give: a head, what it says of every image, and how far to trust it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from ogkd.errors import ConfigError
from ogkd.methods import Head, TextSide
from ogkd.model.calibration import Calibration
from ogkd.model.familiarity import Familiarity, SupportFeatures, can_judge
from ogkd.model.temperature import softmax
from ogkd.studio.learn import HeldOut, fit_head, hold_out, logits_of

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
class Fitted:
    """One fit. Arrays over images have a row for each image of the gallery."""

    head: Head
    labelled: NDArray[np.int64]  # rows
    labels: NDArray[np.int64]  # of these rows
    probabilities: NDArray[np.float32]  # [N, C]
    sets: NDArray[np.bool_] | None  # [N, C]: the plausible classes; None: too few labels
    unfamiliar: NDArray[np.bool_] | None  # [N]
    calibration: Calibration | None
    held_out: HeldOut
    learned: bool  # from images; else the texts alone
    accuracy: float | None = None
    interval: tuple[float, float] | None = None
    counted: int = 0  # images that the accuracy is of
    fair: bool = False  # whether these are a random sample
    confusion: list[list[int]] = field(default_factory=list)
    suspects: tuple[Suspect, ...] = ()


def fit_all(
    features: NDArray[np.float32],
    known: NDArray[np.bool_],
    labels: NDArray[np.int64],
    text: TextSide,
    *,
    keys: Sequence[str],
    groups: Sequence[str | None],
    sample: NDArray[np.bool_],
    engine: str,
) -> Fitted:
    """Fit on the labelled rows (labels >= 0) and ask about all known ones.

    `keys` name the content of the images, `groups` their patients. `sample` are the labelled
    images that were drawn at random: if there are enough, accuracy is measured on them alone.
    """
    classes = len(text.class_names)
    rows = np.flatnonzero((labels >= 0) & known)
    X, y = features[rows], labels[rows]
    learned = set(y.tolist()) == set(range(classes))
    head = fit_head(X, y, text)
    mine = [groups[int(row)] for row in rows]
    held = (
        hold_out(X, y, text, mine)
        if learned
        else HeldOut(np.empty(0, np.int64), np.empty((0, classes), np.float32))
    )
    judged = y[held.rows]
    calibration = None
    if len(judged) >= 2 * classes:
        names = [keys[row] for row in rows[held.rows]]
        units = [mine[row] for row in held.rows]
        try:
            calibration = Calibration.fit(held.logits, judged, names, groups=units, engine=engine)
        except ValueError:  # all of one patient: there are no two sides
            calibration = None
    logits = np.zeros((len(features), classes), np.float32)
    logits[known] = logits_of(head, features[known])
    p = softmax(logits, 1.0 if calibration is None else calibration.temperature)
    sets = None
    if calibration is not None:
        try:
            sets = calibration.sets(p, coverage=COVERAGE)
        except ConfigError:
            sets = None  # too few images
    support = SupportFeatures(X, y) if learned else None
    strange = None
    if support is not None and can_judge(support):
        width = text.backbone.embed_dim
        strange = Familiarity(support, width).unfamiliar(features) & known
    right = held.logits.argmax(axis=1) == judged if len(judged) else np.zeros(0, bool)
    random = sample[rows[held.rows]]
    fair = int(random.sum()) >= _FEWEST
    counted = right[random] if fair else right
    confusion = np.zeros((classes, classes), np.int64)
    if len(judged):
        np.add.at(confusion, (judged, held.logits.argmax(axis=1)), 1)
    return Fitted(
        head,
        rows,
        y,
        p,
        sets,
        strange,
        calibration,
        held,
        learned,
        accuracy=float(counted.mean()) if len(counted) else None,
        interval=exact_interval(int(counted.sum()), len(counted)) if len(counted) else None,
        counted=len(counted),
        fair=fair,
        confusion=confusion.tolist(),
        suspects=tuple(suspects(X, y, rows, held)),
    )


def exact_interval(right: int, count: int, level: float = 0.95) -> tuple[float, float]:
    """The Clopper-Pearson interval of a share: at least `level` of such intervals contain it."""
    tail = (1 - level) / 2
    low = float(beta.ppf(tail, right, count - right + 1)) if right else 0.0
    high = float(beta.ppf(1 - tail, right + 1, count - right)) if right < count else 1.0
    return low, high


def suspects(
    X: NDArray[np.float32], y: NDArray[np.int64], rows: NDArray[np.int64], held: HeldOut
) -> list[Suspect]:
    """Labels to look at again, the most doubtful first."""
    if not len(held.rows):
        return []
    p = held.probabilities
    found: list[tuple[float, Suspect]] = []
    unit = X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-12)
    for place, row in enumerate(held.rows):
        likely, given = int(p[place].argmax()), int(y[row])
        if likely == given or p[place, likely] < _SURE:
            continue
        near = unit @ unit[row]
        near[row] = -2.0
        others = np.argsort(-near)[: min(_NEIGHBOURS, len(y) - 1)]
        if (y[others] != given).all():
            doubt = Suspect(int(rows[row]), given, likely, len(others))
            found.append((float(p[place, given]), doubt))
    return [doubt for _, doubt in sorted(found, key=lambda pair: pair[0])]
