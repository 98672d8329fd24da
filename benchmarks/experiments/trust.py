"""Whether stated probabilities and sets are true: without a pool, with one, and in the studio.

`fit` learns from K images of each class, `pool` also from the rest of train and val without their
labels, `studio` from K images per class that its queue asked for among those of train and val, and
answers the others of the same folder. The first two answer the test images. Nothing is calibrated
with further labels.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch

from benchmarks.common import DATASETS, Data, data, markdown, percent
from ogkd.data.task import softmax
from ogkd.evaluation.confidence import aurc, ece
from ogkd.methods import make_method
from ogkd.model.familiarity import SupportFeatures, is_in_distribution
from ogkd.model.support_sets import SupportSets
from ogkd.serve.studio.fit import Fitted, Snapshot, fit_labels, judge
from ogkd.serve.studio.queue import UNLABELLED, next_images, with_checks

SHOTS = (4, 8, 16)
SEEDS = (1, 2, 3)
COVERAGE = 0.9
STEP = 8  # images that the studio asks for before it fits again
_WAYS = {"fit": "fit", "pool": "fit, with a pool", "studio": "studio"}


def units() -> list[tuple[str, str, int, int]]:
    return [
        (way, name, shots, seed)
        for name in DATASETS
        for way in _WAYS
        for shots in SHOTS
        for seed in SEEDS
    ]


def measure(way: str, name: str, shots: int, seed: int) -> list[dict[str, Any]]:
    given = data(name)
    row = {"way": way, "dataset": name, "shots": shots, "seed": seed}
    if way == "studio":
        return [row | _studio(given, shots, seed)]
    return [row | _fit(given, shots, seed, pool=way == "pool")]


def _fit(given: Data, shots: int, seed: int, *, pool: bool) -> dict[str, Any]:
    known, judged = given.draw(shots, seed), given.part("test")
    rows, text = given.rows, given.text
    support = given.support(known)
    kept = SupportFeatures(rows[known].numpy(), given.labels[known].numpy())
    if pool:
        rest = rows[given.rest(known, seed)]
        near = is_in_distribution(kept, rest.numpy(), text.backbone.embed_dim)
        support = replace(support, unlabelled=rest[torch.from_numpy(near)])
    head = make_method("fused").fit(support, text, seed=seed)
    p = softmax(head.of_rows(rows[judged]).numpy())
    sets = SupportSets.among(head, kept, text.class_names)
    inside = None
    if sets is not None and sets.holds(COVERAGE):
        inside = sets.members(p, rows[judged].numpy(), COVERAGE)
    return _scores(given.labels[judged].numpy(), p, inside)


def _studio(given: Data, shots: int, seed: int) -> dict[str, Any]:
    """The queue asks, the labels are right, and the model answers the rest of the folder."""
    folder = given.part("train", "val")
    X, y = given.rows[folder].numpy(), given.labels[folder].numpy()
    classes, width = len(given.text.class_names), given.text.backbone.embed_dim
    order = np.random.default_rng([seed, 6]).permutation(len(y)).tolist()
    known = np.full(len(y), UNLABELLED, np.int64)
    fitted: Fitted | None = None
    while (missing := shots * classes - int((known >= 0).sum())) > 0:
        p = None if fitted is None else fitted.probabilities
        count = min(STEP, missing)
        chosen = next_images(X[:, :width], known, classes=classes, probabilities=p, n=count)
        chosen = with_checks(chosen, order, known)
        known[chosen] = y[chosen]
        images = _snapshot(X, known, order)
        fitted = fit_labels(images, given.text)
    assert fitted is not None
    fitted = fitted.trusting(judge(fitted, images, given.text), X)
    rest = known == UNLABELLED
    sets = None if fitted.sets is None else fitted.sets[rest]
    return _scores(y[rest], fitted.probabilities[rest], sets)


def _snapshot(X: Any, known: Any, order: list[int]) -> Snapshot:
    count = len(known)
    keys = [f"{n:08x}" for n in range(count)]
    return Snapshot(X, np.ones(count, bool), known.copy(), order, keys, [None] * count)


def _scores(y: Any, p: Any, inside: Any) -> dict[str, Any]:
    right = p.argmax(1) == y
    row = {
        "accuracy": float(right.mean()),
        "stated": float(p.max(1).mean()),
        "ece": ece(y, p),
        "noise": _noise(p),
        "aurc": aurc(y, p),
        "images": len(y),
    }
    if inside is None:
        return row
    covered = inside[np.arange(len(y)), y]
    return row | {"coverage": float(covered.mean()), "size": float(inside.sum(1).mean())}


def _noise(p: Any, draws: int = 20) -> float:
    """The ECE that exact probabilities would have on as many images."""
    rng = np.random.default_rng(0)
    drawn = [(p.cumsum(1) > rng.random((len(p), 1))).argmax(1) for _ in range(draws)]
    return float(np.mean([ece(labels, p) for labels in drawn]))


def tables(frame: pd.DataFrame) -> dict[str, str]:
    frame = frame.assign(gap=frame["stated"] - frame["accuracy"])
    by = frame.groupby(["way", "shots", "dataset"]).mean(numeric_only=True)
    rows, worst = {}, {}
    for way, words in _WAYS.items():
        for shots in SHOTS:
            part = by.loc[way, shots]
            cells = [percent(part["accuracy"].mean()), percent(part["stated"].mean())]
            cells += [f"{percent(part['ece'].mean())} ({percent(part['noise'].mean())})"]
            cells += [f"{percent(part['ece'].max())}, {part['ece'].idxmax()}"]
            gap = part["gap"]
            cells += [f"{100 * gap[gap.abs().idxmax()]:+.1f}, {gap.abs().idxmax()}"]
            sets = part["coverage"].dropna()
            cells += [f"{percent(sets.mean())}, {part['size'].mean():.1f}" if len(sets) else ""]
            rows[f"{words}, {shots}"] = cells
        worst[words] = [
            f"{percent(by.loc[way]['coverage'].min())}"
            if by.loc[way]["coverage"].notna().any()
            else ""
        ]
    columns = ["accuracy", "stated", "ECE (exact probabilities)", "worst ECE"]
    columns += ["furthest stated minus right", "sets: coverage, classes"]
    return {
        "calibration": markdown(rows, columns, "labels per class"),
        "worst-sets": markdown(worst, ["least coverage of a dataset"]),
    }
