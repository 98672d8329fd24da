"""Does it pay to tune the towers? For docs/evidence/methods.md.

Each method is fitted on a few images of a dataset and judged on validation images; then `fused` is
fitted on features of the tower that it tuned, and judged on the same images. One JSON file for
each dataset, number of shots and method in --out; what is there is not run again.

    OGKD_SHARED=../shared python benchmarks/tuned_towers.py --out runs/tuned
    python benchmarks/tuned_towers.py --out runs/tuned --table
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from pathlib import Path
from typing import Any

import numpy as np

import ogkd
from ogkd.backbones import load_backbone
from ogkd.data.case import Case
from ogkd.data.read import read_dataset
from ogkd.files import write_json

SHARED = Path(os.environ.get("OGKD_SHARED", "../shared"))
DATASETS = ("BUSI", "BTMRI", "CTKidney", "RETINA", "Kvasir")
METHODS = ("none", "biomed-dpt", "evi-steer", "maple", "promptsrc", "clip-svd", "clip-lora")
JUDGED = 150  # validation images of a dataset


def accuracy(model: ogkd.Classifier, cases: list[Case]) -> float:
    answers = model.predict_proba([case.image for case in cases]).argmax(axis=1)
    return float(np.mean(answers == np.array([case.target for case in cases])))


def one(dataset: str, method: str, shots: int, epochs: int | None) -> dict[str, Any]:
    folder = SHARED / "data" / dataset
    held = read_dataset(folder).part("val")
    cases = random.Random(0).sample(held, min(JUDGED, len(held)))
    backbone = load_backbone(SHARED / "backbones" / "dinov2s14-minilm-med")
    row: dict[str, Any] = {"dataset": dataset, "method": method, "shots": shots}
    if method != "none":
        began = time.perf_counter()
        settings = {"train.epochs": epochs} if epochs else None
        model = ogkd.fit(
            folder, backbone=backbone, method=method, shots=shots, settings=settings, preset="auto"
        )
        row |= {"seconds": time.perf_counter() - began, "accuracy": accuracy(model, cases)}
        backbone = model.backbone
    fused = ogkd.fit(folder, backbone=backbone, method="fused", shots=shots)
    return row | {"fused": accuracy(fused, cases), "images": len(cases)}


def table(rows: list[dict[str, Any]]) -> str:
    """By shots and method: its accuracy, and that of `fused` on its tower against plain `fused`."""
    lines = ["| shots | method | datasets | accuracy | fused on its tower | against fused alone |"]
    lines.append("|---" * 6 + "|")
    alone = {(r["dataset"], r["shots"]): r["fused"] for r in rows if r["method"] == "none"}
    for shots in sorted({row["shots"] for row in rows}):
        for method in METHODS:
            of = [r for r in rows if (r["method"], r["shots"]) == (method, shots)]
            if not of:
                continue
            gains = [100 * (r["fused"] - alone[r["dataset"], shots]) for r in of]
            own = np.mean([100 * r.get("accuracy", np.nan) for r in of])
            fused = np.mean([100 * r["fused"] for r in of])
            worst = f"{np.mean(gains):+.1f} ({min(gains):+.1f} to {max(gains):+.1f})"
            lines.append(f"| {shots} | {method} | {len(of)} | {own:.1f} | {fused:.1f} | {worst} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--datasets", nargs="+", default=DATASETS)
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--shots", nargs="+", type=int, default=[4, 16])
    parser.add_argument("--epochs", type=int, help="fewer than the methods' own")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if not options.table:
        for shots in options.shots:
            for dataset in options.datasets:
                for method in options.methods:
                    path = options.out / f"{dataset}-{shots}-{method}.json"
                    if not path.exists():
                        write_json(path, one(dataset, method, shots, options.epochs))
                        print(path.read_text(), flush=True)
    print(table([json.loads(path.read_text()) for path in sorted(options.out.glob("*.json"))]))


if __name__ == "__main__":
    main()
