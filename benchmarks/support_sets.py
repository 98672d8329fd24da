"""Prediction sets from the support alone, beside a calibration, for docs/evidence/trust.md.

Needs the developers' shared folder (real images and a real backbone) in OGKD_SHARED. Every
dataset is one JSON file in --out; what is there is not run again.

    python benchmarks/support_sets.py --out runs/sets              # run what is missing
    python benchmarks/support_sets.py --out runs/sets --table      # print the tables
    python benchmarks/support_sets.py --out runs/ridge --judge rest --ridges  # choose the ridge

The support is drawn from train and the test split is judged, once. The calibration has 48 other
images of train and val, drawn without regard to class. With `--judge rest` the judged images are
those of train and val outside the support: all choices were made by those.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ogkd.backbones import load_backbone
from ogkd.backbones.base import ImageFeatures
from ogkd.data.read import read_dataset
from ogkd.data.task import softmax
from ogkd.data.tasks import OneOf
from ogkd.evaluation.confidence import ece, nll
from ogkd.features.store import FeatureStore
from ogkd.features.views import FixedViews
from ogkd.files import write_json
from ogkd.methods import Support, TextSide, make_method
from ogkd.methods.ranking import Ranked
from ogkd.model.calibration import Calibration
from ogkd.prompts.bank import bank_for, read_bank

SHARED = Path(os.environ.get("OGKD_SHARED") or Path(__file__).parents[2] / "shared")
BANKS = {"COVID_19": "covid"}  # whose bank is not called like the folder in small letters
CALIBRATION = 48
COVERAGE = 0.9
RIDGES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)


@dataclass(frozen=True)
class Data:
    """All images of a dataset as rows, and its texts."""

    text: TextSide
    rows: Tensor  # [N, w]
    labels: Tensor  # [N]
    splits: list[str | None]


def read(name: str) -> Data:
    """Features from the store, encoded if they are missing."""
    backbone = load_backbone(SHARED / "backbones" / "dinov2s14-minilm-med")
    dataset = read_dataset(SHARED / "data" / name)
    bank = read_bank(Path(BANKS.get(name, name.lower())))
    prompts = tuple(tuple(row) for row in bank_for(dataset.names, bank))
    images = [case.image for case in dataset.cases]
    rows = FeatureStore(backbone).get(images, deep=True).rows[:, 0]
    labels = torch.tensor([case.target for case in dataset.cases])
    text = TextSide(backbone, dataset.names, prompts)
    return Data(text, rows, labels, [case.split for case in dataset.cases])


def draw(data: Data, shots: int, seed: int, judge: str) -> tuple[list[int], list[int], list[int]]:
    """Rows of the support, of the calibration and to judge by."""
    rng = random.Random(seed)
    support: list[int] = []
    for label in range(len(data.text.class_names)):
        mine = [
            row
            for row, (own, split) in enumerate(zip(data.labels, data.splits, strict=True))
            if own == label and split == "train"
        ]
        support += rng.sample(mine, min(shots, len(mine)))
    used = set(support)
    rest = [row for row, split in enumerate(data.splits) if split != "test" and row not in used]
    calibration = rng.sample(rest, CALIBRATION)
    test = [row for row, split in enumerate(data.splits) if split == "test"]
    return support, calibration, test if judge == "test" else rest


def measure(inside: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Coverage, the least of any class, and size of sets [N, C]."""
    held = inside[np.arange(len(y)), y]
    return {
        "coverage": float(held.mean()),
        "worst": float(min(held[y == c].mean() for c in np.unique(y))),
        "size": float(inside.sum(1).mean()),
        "single": float((inside.sum(1) == 1).mean()),
    }


def one(data: Data, shots: int, seed: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """One draw of the support: sets and probabilities with and without calibration images."""
    drawn, calibration, judged = draw(data, shots, seed, options.judge)
    deep = ImageFeatures(data.rows[drawn].unsqueeze(1), None)
    support = Support(FixedViews(deep), data.labels[drawn])
    head = make_method("fused").fit(support, data.text, seed=seed)
    y, classes = data.labels[judged].numpy(), len(data.text.class_names)
    found: list[dict[str, Any]] = []

    def add(method: str, **values: float) -> None:
        found.append({"method": method, "shots": shots, "seed": seed, **values})

    stored = data.rows.half().float()
    fixed = head.ranking
    assert fixed is not None
    for ridge in RIDGES if options.ridges else (fixed.ridge,):
        at = replace(fixed, ridge=ridge)
        ranked = Ranked(at, stored[drawn], data.labels[drawn], classes)
        start = time.process_time()
        shares = torch.cat([ranked.p_values(some) for some in stored[judged].split(32)])
        ms = 1000 * (time.process_time() - start) / len(judged)
        sets = (shares > 1 - COVERAGE + 1e-9).numpy()
        name = f"support, ridge {ridge:g}" if options.ridges else "support"
        p = softmax(head.logits(data.rows[judged]).numpy())
        # A single class that is not the most probable one.
        other = (sets.sum(1) == 1) & ~sets[np.arange(len(y)), p.argmax(1)]
        more = {"ece": ece(y, p), "nll": nll(y, p), "ms": ms, "other": float(other.mean())}
        add(name, **measure(sets, y), **more)
    if options.ridges:
        return found
    keys = [f"{row:016x}" for row in calibration]
    task, z = OneOf(data.text.class_names), head.logits(data.rows[calibration]).numpy()
    known = Calibration.fit(task, z, data.labels[calibration].numpy(), keys)
    start = time.process_time()
    p = task.probabilities(head.logits(data.rows[judged]).numpy(), known)
    inside = task.plausible(p, known.limits(COVERAGE))
    ms = 1000 * (time.process_time() - start) / len(judged)
    add("calibrate, 48 more", **measure(inside, y), ece=ece(y, p), nll=nll(y, p), ms=ms)
    # Plain split conformal: all 48 for the sets, the fit's own probabilities.
    p = softmax(head.logits(data.rows[judged]).numpy())
    own = softmax(head.logits(data.rows[calibration]).numpy())
    scores = np.sort(1 - own[np.arange(CALIBRATION), data.labels[calibration].numpy()])
    limit = scores[int(np.ceil((CALIBRATION + 1) * COVERAGE)) - 1]
    add("split, 48 more", **measure(1 - p <= limit, y), ece=ece(y, p), nll=nll(y, p), ms=0.0)
    return found


def table(folder: Path) -> None:
    """Print the means over datasets and seeds, and each dataset."""
    files = [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
    keys = ("coverage", "worst", "size", "single", "ece", "nll", "ms")
    print("| shots | method | " + " | ".join(keys) + " |\n|" + "---|" * (2 + len(keys)))
    rows = [row | {"dataset": each["dataset"]} for each in files for row in each["rows"]]
    methods = list(dict.fromkeys(row["method"] for row in rows))
    for shots in dict.fromkeys(row["shots"] for row in rows):
        for method in methods:
            mine = [r for r in rows if (r["shots"], r["method"]) == (shots, method)]
            cells = [f"{np.mean([row[key] for row in mine]):.3f}" for key in keys]
            print(f"| {shots} | {method} | " + " | ".join(cells) + " |")
    print()
    for each in dict.fromkeys(row["dataset"] for row in rows):
        cells = []
        for shots in dict.fromkeys(row["shots"] for row in rows):
            for method in methods:
                which = (each, shots, method)
                mine = [r for r in rows if (r["dataset"], r["shots"], r["method"]) == which]
                means = [np.mean([row[key] for row in mine]) for key in ("coverage", "size")]
                cells.append(f"{100 * means[0]:.1f} ({means[1]:.2f})")
        print(f"| {each} | " + " | ".join(cells) + " |")


def main() -> None:
    """Run what is missing, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--datasets", nargs="+")
    parser.add_argument("--shots", nargs="+", type=int, default=[10, 16])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--judge", choices=["test", "rest"], default="test")
    parser.add_argument("--ridges", action="store_true")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        table(options.out)
        return
    torch.set_num_threads(1)
    everything = [folder.name for folder in sorted((SHARED / "data").iterdir()) if folder.is_dir()]
    for name in options.datasets or everything:
        place = options.out / f"{name}.json"
        if place.exists():
            continue
        data = read(name)
        others = sum(split != "test" for split in data.splits)
        if others < CALIBRATION + max(options.shots) * len(data.text.class_names):
            print(f"{name}: too few images", flush=True)
            continue
        rows = [
            row
            for shots in options.shots
            for seed in options.seeds
            for row in one(data, shots, seed, options)
        ]
        options.out.mkdir(parents=True, exist_ok=True)
        write_json(place, {"dataset": name, "judged": options.judge, "rows": rows})
        print(name, flush=True)


if __name__ == "__main__":
    main()
