"""Does OGKD learn? Accuracy on real images, proxy backbone: docs/evidence/results-core.md.

Needs the developers' shared folder (real images and a real backbone) in OGKD_SHARED. Every
group of seeds is one JSON file in --out; what is there is not run again.

    python benchmarks/core_results.py --out runs/core            # run what is missing
    python benchmarks/core_results.py --out runs/core --table    # print the tables
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ogkd.backbones import Backbone, load_backbone
from ogkd.data.read import read_dataset
from ogkd.evaluation import evaluate
from ogkd.files import write_json
from ogkd.fitting.pipeline import fit

SHARED = Path(os.environ.get("OGKD_SHARED") or Path(__file__).parents[2] / "shared")
BANKS = Path(__file__).parents[1] / "src" / "ogkd" / "prompts" / "banks"
DATASETS = {"BUSI": "busi", "BTMRI": "btmri", "RETINA": "retina", "OCTMNIST": "octmnist"}
SEEDS = [1, 2, 3]
OFF = {"options.text_dropout": False}


def plan() -> list[dict[str, Any]]:
    """Every group of runs: the question it answers, dataset, method and settings."""
    groups: list[dict[str, Any]] = []

    def add(question: str, folder: str, method: str, label: str, **rest: Any) -> None:
        preset = f"paper/few-shot/{DATASETS[folder]}" if method == "ogkd" else None
        groups.append(
            {"question": question, "dataset": folder, "method": method, "label": label}
            | {"preset": preset, "settings": {}, "seeds": SEEDS, "shots": 16}
            | rest
        )

    for folder in DATASETS:
        add("learn", folder, "zero-shot", "zero-shot", seeds=[1])
        add("learn", folder, "zero-shot-ensemble", "zero-shot, bank", seeds=[1])
        for label, options in (("dropout on", {}), ("dropout off", OFF)):
            settings = {"views": 16, **options}
            add("learn", folder, "ogkd", f"OGKD, 16 views, {label}", settings=settings)
    for folder in ("BTMRI", "RETINA", "OCTMNIST"):
        add("views", folder, "ogkd", "whole image", settings={"views": 0, **OFF})
    for views in (0, 1, 4):  # 16 is in the first table
        label = f"{views} crops" if views else "whole image"
        add("views", "BUSI", "ogkd", label, settings={"views": views, **OFF})
    add("views", "BUSI", "ogkd", "online", settings={"views": "online", **OFF})
    add("released", "BUSI", "ogkd", "released, online, dropout on", settings={"views": "online"})
    return groups


def run(group: dict[str, Any], backbone: Backbone) -> dict[str, Any]:
    """Fit the seeds of a group and test them."""
    dataset = read_dataset(SHARED / "data" / group["dataset"])
    began = time.perf_counter()
    models = [
        fit(
            dataset,
            backbone=backbone,
            method=group["method"],
            shots=group["shots"],
            seed=seed,
            preset=group["preset"],
            settings=group["settings"],
            prompts=BANKS / f"{DATASETS[group['dataset']]}.json",
        )
        for seed in group["seeds"]
    ]
    results = [evaluate(model, dataset) for model in models]
    return group | {
        "accuracy": [result["accuracy"] for result in results],
        "macro_f1": [result["macro_f1"] for result in results],
        "seconds": time.perf_counter() - began,
    }


def table(done: list[dict[str, Any]], question: str) -> str:
    """Mean and standard deviation over seeds, per dataset."""
    rows = [group for group in done if group["question"] == question]
    datasets = list(dict.fromkeys(group["dataset"] for group in rows))
    lines = ["| | " + " | ".join(datasets) + " |", "|---" * (len(datasets) + 1) + "|"]
    for label in dict.fromkeys(group["label"] for group in rows):
        cells = []
        for dataset in datasets:
            found = [g for g in rows if g["label"] == label and g["dataset"] == dataset]
            values = 100 * np.array(found[0]["accuracy"]) if found else np.array([])
            spread = f" ± {values.std():.1f}" if len(values) > 1 else ""
            cells.append(f"{values.mean():.1f}{spread}" if len(values) else "")
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, or print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/core"))
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    backbone = None
    done = []
    for group in plan():
        name = hashlib.sha256(json.dumps(group, sort_keys=True).encode()).hexdigest()[:16]
        path = arguments.out / f"{name}.json"
        if not path.is_file() and not arguments.table:
            backbone = backbone or load_backbone(SHARED / "backbones" / "dinov2s14-minilm-med")
            write_json(path, run(group, backbone))
        if path.is_file():
            done.append(json.loads(path.read_text()))
            shown = " ".join(f"{100 * value:.1f}" for value in done[-1]["accuracy"])
            print(f"{group['dataset']:9} {group['label']:28} {shown}", flush=True)
    for question in ("learn", "views", "released"):
        print(f"\n{table(done, question)}")


if __name__ == "__main__":
    main()
