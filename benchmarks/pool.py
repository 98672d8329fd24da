"""What unlabelled images give `fused`, for docs/evidence/unlabelled.md.

Needs the developers' shared folder (real images and a real backbone) in OGKD_SHARED. Every
dataset is one JSON file in --out; what is there is not run again.

    python benchmarks/pool.py --out runs/pool --judge half   # all choices were made by this
    python benchmarks/pool.py --out runs/pool-test           # test images, once
    python benchmarks/pool.py --out runs/pool-test --table

The support is drawn from train. With `--judge test` the pool is the rest of train and val and the
test split is judged; with `--judge half` one half of that rest is the pool and the other is judged.
Kinds of pool: as the dataset is; Zipf-imbalanced; without one class; of one class; five images;
joined with as many images of another dataset. Images that are unlike all labelled ones are left
out, as in `ogkd fit`.
"""

from __future__ import annotations

import argparse
import random
import time
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from by_dataset import NAMES, SHARED, options_of, run, text_of
from fused import judge, means
from ogkd.backbones import Backbone
from ogkd.backbones.base import ImageFeatures
from ogkd.data.case import Dataset
from ogkd.data.read import read_dataset
from ogkd.data.splits import support_and_val
from ogkd.features.store import FeatureStore
from ogkd.features.views import FixedViews
from ogkd.methods import Support, make_method
from ogkd.model.familiarity import SupportFeatures, is_in_distribution

KINDS = ("balanced", "zipf", "missing", "one class", "five", "another dataset")
VARIANTS: dict[str, dict[str, Any]] = {
    "beta 0.1": {"beta": 0.1},
    "beta 0.4": {"beta": 0.4},
    "1 round": {"rounds": 1},
    "5 rounds": {"rounds": 5},
    "not balanced": {"balance": 0.0},
}


def read(name: str, store: FeatureStore) -> tuple[Dataset, ImageFeatures]:
    dataset = read_dataset(SHARED / "data" / name)
    return dataset, store.get([case.image for case in dataset.cases], deep=True)


def chosen(kind: str, labels: list[int], seed: int) -> list[int]:
    """Numbers of the images of one kind of pool, in a random order."""
    rng = random.Random(seed)
    order = list(range(len(labels)))
    rng.shuffle(order)
    classes = sorted(set(labels))
    rng.shuffle(classes)
    if kind == "missing":
        return [row for row in order if labels[row] != classes[0]]
    if kind == "zipf":
        left = {c: max(1, round(labels.count(c) / (rank + 1))) for rank, c in enumerate(classes)}
        kept = []
        for row in order:
            left[labels[row]] -= 1
            if left[labels[row]] >= 0:
                kept.append(row)
        return kept
    return order


def pool_of(kind: str, rest: list[int], labels: Tensor, seed: int) -> list[int]:
    """The numbers of the pool's images."""
    if kind in ("zipf", "missing"):
        return [rest[row] for row in chosen(kind, labels[rest].tolist(), seed)]
    if kind == "one class":
        only = random.Random(seed).choice(sorted(set(labels[rest].tolist())))
        return [row for row in rest if labels[row] == only]
    return rest[:5] if kind == "five" else rest


def one_dataset(name: str, backbone: Backbone, options: argparse.Namespace) -> dict[str, Any]:
    """Every kind of pool at every number of shots and seed."""
    store = FeatureStore(backbone)
    dataset, features = read(name, store)
    others = read(NAMES[(NAMES.index(name) + 1) % len(NAMES)], store)[1].rows[:, 0]
    text = text_of(name, dataset.names, backbone)
    row_of = {case: row for row, case in enumerate(dataset.cases)}
    rows, labels = features.rows[:, 0], torch.tensor([case.target for case in dataset.cases])
    found: list[dict[str, Any]] = []
    for shots in options.shots:
        for seed in options.seeds:
            known = [
                row_of[case]
                for case in support_and_val(dataset.task, dataset.part("train"), (), shots, seed)[0]
            ]
            own = set(known)
            rest = [r for i, r in row_of.items() if i.split != "test" and r not in own]
            random.Random(1000 * seed + shots).shuffle(rest)
            judged = [r for i, r in row_of.items() if i.split == "test"]
            if options.judge == "half":
                rest, judged = rest[: len(rest) // 2], rest[len(rest) // 2 :]
            views = ImageFeatures(features.globals[known], None, features.deep[known])  # type: ignore[index]
            support = Support(FixedViews(views), labels[known])
            known_rows = SupportFeatures(rows[known].numpy(), labels[known].numpy())
            tried: list[tuple[str, Tensor | None, dict[str, Any]]] = [("no pool", None, {})]
            for kind in KINDS:
                pool = rows[pool_of(kind, rest, labels, seed)]
                if kind == "another dataset":
                    pool = torch.cat([pool, others[: len(pool)]])
                tried.append((kind, pool, {}))
            tried += [(label, rows[rest], settings) for label, settings in VARIANTS.items()]
            tried += [(f"{size} images", rows[rest[:size]], {}) for size in (20, 60)]
            for label, given, settings in tried:
                if options.only and label not in ("no pool", *options.only):
                    continue
                used = None
                if given is not None:
                    near = is_in_distribution(known_rows, given.numpy(), backbone.embed_dim)
                    used = given[torch.from_numpy(near)]
                    used = used if len(used) >= 2 * len(text.class_names) else None
                began = time.process_time()
                method = make_method("fused", settings=settings)
                head = method.fit(replace(support, unlabelled=used), text, seed=seed)
                seconds = time.process_time() - began
                row = {"method": label, "shots": shots, "seed": seed, "seconds": seconds}
                row |= {"pool": 0 if used is None else len(used), "refused": bool(head.notes)}
                found.append(row | judge(head, rows[judged], labels[judged]))
    return {"dataset": name, "judged": options.judge, "rows": found}


def table(done: list[dict[str, Any]]) -> str:
    """Accuracy, AURC and NLL of each kind, and its worst dataset against no pool."""
    labels = list(dict.fromkeys(row["method"] for one in done for row in one["rows"]))
    shots = sorted({row["shots"] for one in done for row in one["rows"]})
    lines = ["| | " + " | ".join(f"K={K}" for K in shots) + " |", "|---" * (len(shots) + 1) + "|"]
    for label in labels:
        cells = []
        for K in shots:
            accuracy = 100 * means(done, label, K)
            worst = (accuracy - 100 * means(done, "no pool", K)).min()
            rest = f"{100 * means(done, label, K, 'aurc').mean():.1f}"
            rest += f" / {means(done, label, K, 'nll').mean():.2f}"
            cells.append(f"{accuracy.mean():.1f} / {rest} ({worst:+.1f})")
        lines.append(f"| {label} | " + " | ".join(cells) + " |")
    every = [row for one in done for row in one["rows"]]
    refused = sum(row["refused"] for row in every)
    slowest = max(row["seconds"] for row in every)
    return "\n".join([*lines, "", f"{refused} of {len(every)} refused; at most {slowest:.2f} s"])


def main() -> None:
    """Run what is missing, then print."""
    parser = options_of(__doc__, "runs/pool", ["test", "half"])
    parser.add_argument("--only", nargs="+", help="kinds of pool; all if left out")
    options = parser.parse_args()
    done = run(options, one_dataset)
    if done:
        print(table(done))


if __name__ == "__main__":
    main()
