"""Do the studio's sets contain the true class as often as they say? On phantoms, as people label.

    python benchmarks/studio_sets.py [us-breast ...] [--seeds 2] [--out FILE]

The queue asks, with every fourth image at random, and each image is labelled when it is chosen. At
some budgets the rest of the images is asked about: how often the true class is among the plausible
ones, and how many these are; by the estimate from held-out labels, and by the exact sets where
every class has labels enough.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ogkd.backbones import load_backbone
from ogkd.data.phantoms import write_folder
from ogkd.data.read import read_dataset
from ogkd.features.store import FeatureStore
from ogkd.fitting.prepare import text_sides
from ogkd.methods import TextSide
from ogkd.serve.studio.fit import Snapshot, fit_labels, judge
from ogkd.serve.studio.queue import UNLABELLED, next_images, with_checks

BUDGETS = (4, 8, 12, 16, 20)  # labels per class, on average


def simulate(X: NDArray[Any], y: NDArray[Any], text: TextSide, seed: int) -> dict[str, Any]:
    classes, width = len(text.class_names), text.backbone.embed_dim
    order = np.random.default_rng(seed).permutation(len(y)).tolist()
    labels, every = np.full(len(y), UNLABELLED, np.int64), np.ones(len(y), bool)
    keys = [f"{row:016x}" for row in range(len(y))]
    p, found, before = None, {}, 0
    for budget in BUDGETS:
        n, before = (budget - before) * classes, budget
        chosen = next_images(X[:, :width], labels, classes=classes, probabilities=p, n=n)
        chosen = with_checks(chosen, order, labels)
        labels[chosen] = y[chosen]
        images = Snapshot(X, every, labels, order, keys, [None] * len(y))
        fitted = fit_labels(images, text)
        p = fitted.probabilities
        if fitted.missing:
            continue
        rest = np.flatnonzero(labels == UNLABELLED)
        judged = fitted.trusting(judge(fitted, images, text), X)
        row = {"accuracy": float((judged.probabilities[rest].argmax(1) == y[rest]).mean())}
        if judged.judged.calibration is not None:
            limits = judged.judged.calibration.limits(judged.decider.task, judged.decider.coverage)
            estimate = judged.decider.task.plausible(judged.probabilities[rest], limits)
            row |= measured("estimate", estimate, y[rest])
        if judged.decider.support_sets is not None:
            row |= measured("exact", judged.sets[rest], y[rest])
        found[str(budget)] = row
    return found


def measured(name: str, sets: NDArray[np.bool_], y: NDArray[Any]) -> dict[str, float]:
    inside = sets[np.arange(len(y)), y]
    worst = min(float(inside[y == label].mean()) for label in np.unique(y))
    return {
        f"{name} coverage": float(inside.mean()),
        f"{name} worst class": worst,
        f"{name} size": float(sets.sum(axis=1).mean()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("phantoms", nargs="*", default=["us-breast", "cxr"])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("studio-sets.json"))
    options = parser.parse_args()
    done = json.loads(options.out.read_text()) if options.out.exists() else {}
    backbone = load_backbone("builtin")
    for name in options.phantoms:
        with TemporaryDirectory() as folder:
            data = read_dataset(
                write_folder(name, Path(folder, "d"), splits={"train": 60}, size=160)
            )
            X = FeatureStore(backbone).get(data.images, deep=True).rows[:, 0].numpy()
        y = data.task.labels(data.targets())
        [text] = text_sides(backbone, replace(data.task, normal=()), None)
        for seed in range(options.seeds):
            if f"{name} {seed}" not in done:
                done[f"{name} {seed}"] = simulate(X, y, text, seed)
                options.out.write_text(json.dumps(done))
    for budget in map(str, BUDGETS):
        rows = [run[budget] for run in done.values() if budget in run]
        for key in sorted({key for row in rows for key in row}):
            values = [row[key] for row in rows if key in row]
            print(f"{budget} labels per class, {key}: {np.mean(values):.3f} ({len(values)} runs)")


if __name__ == "__main__":
    main()
