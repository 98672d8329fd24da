"""`auto` of the prompt learners against the released batches and steps: accuracy and cost.

Both train on whole images without text dropout and differ only in optimiser, batches and end.
Chosen without test images: as in auto_preset.py, every other training image of a class can be
learned from, and the rest and the validation images judge. `--test` judges by the test images
instead, once. Seeds are trained together; one JSON for each dataset and number of shots has the
trained class texts. What is there is not trained again.

    OGKD_SHARED=../shared python benchmarks/optimisers.py --out runs/optimisers
    OGKD_SHARED=../shared python benchmarks/optimisers.py --out runs/optimisers --table --test
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from ogkd.backbones import load_backbone
from ogkd.data.case import Case, Dataset
from ogkd.data.names import normal_labels
from ogkd.data.read import read_dataset
from ogkd.data.splits import support_and_val
from ogkd.features.store import FeatureStore
from ogkd.files import write_json
from ogkd.fitting.prepare import Drawn, make_support, text_sides
from ogkd.methods import Method, TrainingFolder, make_method
from ogkd.prompts.bank import read_bank

SHARED = Path(os.environ.get("OGKD_SHARED") or Path(__file__).parents[2] / "shared")
BACKBONE = "backbones/dinov2s14-minilm-med"
DATASETS = ("BTMRI", "BUSI", "COVID_19", "CTKidney", "KneeXray", "LungColon", "OCTMNIST", "RETINA")
NO_DROPOUT = {"ogkd": {"options.text_dropout": False}, "biomedcoop": {"text_dropout": False}}


def recipe(method: str, name: str, changes: dict[str, Any]) -> Method:
    """The method with `auto`, or with the released batches and steps."""
    if name == "released":
        return make_method(method, settings={"views": 0, **NO_DROPOUT.get(method, {})})
    return make_method(method, preset="auto", settings=changes)


def parts(dataset: Dataset, *, test: bool) -> tuple[list[Case], list[Case]]:
    """The images to learn from, half of the training part, and those that judge."""
    by_class: dict[int, list[Case]] = {}
    for case in dataset.part("train"):
        by_class.setdefault(case.target, []).append(case)
    pool = [case for rows in by_class.values() for case in rows[0::2]]
    if test:
        return pool, list(dataset.part("test"))
    rest = [case for rows in by_class.values() for case in rows[1::2]]
    return pool, rest + [case for case in dataset.cases if case.split == "val"]


def train(
    store: FeatureStore, name: str, shots: int, method: Method, seeds: list[int]
) -> dict[str, Any]:
    """Fit all seeds together: the class texts of each, and the processor seconds."""
    dataset = read_dataset(SHARED / "data" / name)
    dataset = dataset.with_normal(normal_labels(dataset.names, None))
    pool, _ = parts(dataset, test=False)
    bank = read_bank(Path(name.lower().removesuffix("_19")))
    text = text_sides(store.backbone, dataset.task, bank)[0]
    task = dataset.task
    supports = [
        make_support(
            method, store, task, Drawn(*support_and_val(task, pool, [], shots, seed)), seed
        )
        for seed in seeds
    ]
    _ = text.bank, text.single  # encoded before the clock starts
    epochs: list[Any] = []
    began = time.process_time()
    with tempfile.TemporaryDirectory() as place:
        folder = TrainingFolder(Path(place), "", epochs.append)
        methods = [method] * len(seeds)
        heads = type(method).fit_many(methods, supports, text, seeds=seeds, folder=folder)
    return {
        "texts": [head.tensors()["T"].tolist() for head in heads],
        "seeds": seeds,
        "seconds": time.process_time() - began,
        "epochs": len(epochs),  # of the seed that took longest
        "terms": epochs[-1]["terms"],
    }


class Judge:
    """Accuracy and NLL of trained texts on the images of one dataset that judge."""

    def __init__(self, store: FeatureStore, dataset: str, *, test: bool) -> None:
        _, cases = parts(read_dataset(SHARED / "data" / dataset), test=test)
        self.features = store.get([case.image for case in cases]).globals[:, 0].float()
        self.labels = torch.tensor([case.target for case in cases])
        self.scale = store.backbone.logit_scale

    def __call__(self, texts: torch.Tensor) -> tuple[float, float]:
        """In per cent and nats, mean over the runs [S, C, d]."""
        z = self.scale * self.features @ texts.mT  # [S, N, C]
        right = (z.argmax(dim=-1) == self.labels).float().mean()
        return 100 * float(right), float(cross_entropy(z.mT, self.labels.expand(len(z), -1)))


def table(store: FeatureStore, folder: Path, *, test: bool) -> str:
    """For each method and number of shots: both recipes, and their difference with an interval."""
    found: dict[tuple[str, int, str], dict[str, Any]] = {}
    recipes: dict[str, list[str]] = {}
    judges: dict[str, Judge] = {}
    for path in sorted(folder.glob("*.json")):
        method, name, dataset, shots = path.stem.split("+")
        run = json.loads(path.read_text())
        judge = judges.get(dataset) or Judge(store, dataset, test=test)
        judges[dataset] = judge
        run["accuracy"], run["nll"] = judge(torch.tensor(run.pop("texts")))
        found[f"{method}+{name}", int(shots), dataset] = run
        if name not in recipes.setdefault(method, []):
            recipes[method].append(name)
    lines = [
        "| method | shots | datasets | recipe | accuracy (%) | minus released | NLL | epochs | s |"
    ]
    lines.append("|---|---:|---:|---|---:|---|---:|---:|---:|")
    for method, names in recipes.items():
        for shots in sorted({key[1] for key in found}):
            both = [
                {d for m, k, d in found if (m, k) == (f"{method}+{name}", shots)} for name in names
            ]
            if not (datasets := sorted(set.intersection(*both))):
                continue
            base = None
            for name in sorted(names, key=lambda name: name != "released"):
                rows = [found[f"{method}+{name}", shots, d] for d in datasets]
                mean = np.array([row["accuracy"] for row in rows])
                gain = ""
                if base is None:
                    base = mean
                else:
                    gain = "{:+.1f} [{:+.1f}, {:+.1f}]".format(*interval(mean - base))
                lines.append(
                    f"| {method} | {shots} | {len(datasets)} | {name} | {mean.mean():.1f} | {gain} "
                    f"| {np.mean([row['nll'] for row in rows]):.2f} "
                    f"| {np.mean([row['epochs'] for row in rows]):.0f} "
                    f"| {np.mean([row['seconds'] for row in rows]):.0f} |"
                )
    return "\n".join(lines)


def interval(differences: np.ndarray[Any, np.dtype[np.float64]]) -> tuple[float, float, float]:
    """The mean over datasets and its 95 % interval, by resampling datasets."""
    rng = np.random.default_rng(0)
    rows = rng.integers(len(differences), size=(10_000, len(differences)))
    low, high = np.percentile(differences[rows].mean(axis=1), [2.5, 97.5])
    return float(differences.mean()), float(low), float(high)


def main() -> None:
    """Compute what is missing, then print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/optimisers"))
    parser.add_argument("--methods", nargs="+", default=["ogkd"])
    parser.add_argument("--datasets", nargs="+", default=list(DATASETS))
    parser.add_argument("--shots", nargs="+", type=int, default=[1, 4, 16])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3, 4])
    parser.add_argument("--recipes", nargs="+", default=["auto", "released"])
    parser.add_argument("--set", nargs="+", default=[], help="changes to auto, as train.lr=0.01")
    parser.add_argument("--test", action="store_true", help="judge by the test images")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--table", action="store_true", help="print only")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    changes = {key: json.loads(value) for key, value in (x.split("=", 1) for x in arguments.set)}
    store = FeatureStore(load_backbone(SHARED / BACKBONE))
    for shots in arguments.shots if not arguments.table else []:
        for dataset in arguments.datasets:
            for method in arguments.methods:
                for name in arguments.recipes:
                    label = ",".join([name, *(arguments.set if name == "auto" else [])])
                    path = arguments.out / f"{method}+{label}+{dataset}+{shots}.json"
                    if path.is_file():
                        continue
                    made = recipe(method, name, changes)
                    result = train(store, dataset, shots, made, arguments.seeds)
                    write_json(path, result)
                    print(path.stem, {k: result[k] for k in ("seconds", "terms")}, flush=True)
    print(table(store, arguments.out, test=arguments.test))


if __name__ == "__main__":
    main()
