"""Which images to label: labels needed by the studio's queue, by random choice and by uncertainty.

`medoids` are those of k-means with as many clusters as labels, chosen anew for each budget;
`studio` is the queue with every fourth image at random, as the page asks for them.

    python benchmarks/labelling.py DATA BACKBONE [--seeds 2] [--judge test|dev] [--out FILE]

DATA is a folder of datasets, each with {train,val,test}/class folders and a shipped bank of texts.
Images are drawn without their labels from four fifths of the training part (another fifth is left
out for each seed); each is labelled when it is chosen, and the head of the studio is fitted again
at each budget, once on the labels alone and once with the unlabelled rest, as the studio does.
`--judge dev` judges on the validation part and the fifth that was left out: the constants of the
queue were chosen there. Runs that FILE has are not repeated.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import KMeans

from ogkd.backbones import load_backbone
from ogkd.data.read import read_dataset
from ogkd.data.task import softmax
from ogkd.features.store import FeatureStore
from ogkd.fitting.prepare import text_sides
from ogkd.methods import Head, TextSide
from ogkd.prompts.bank import read_bank, shipped_banks
from ogkd.serve.studio.fit import POOL, fit_head, hold_out, logits_of
from ogkd.serve.studio.queue import UNLABELLED, checked, next_images, uncertainty, with_checks

STRATEGIES = ("random", "uncertainty", "medoids", "queue", "studio")
SHOTS = 16  # images per class of the model to compare with
SHARES = (0.70, 0.95)  # of its accuracy
BUDGETS = (1, 2, 3, 4, 6, 8, 12, 16)  # labels per class, on average
ESTIMATED = 8  # labels per class at which the estimate is compared with the accuracy

Rows = NDArray[np.float32]
Labels = NDArray[np.int64]


def choose(
    strategy: str,
    V: Rows,
    known: Labels,
    p: Rows | None,
    n: int,
    classes: int,
    order: list[int],
    seed: int,
) -> list[int]:
    """Rows to label next, by global features V; `medoids` gives all of them."""
    free = np.flatnonzero(known == UNLABELLED)
    if strategy in ("queue", "studio"):
        chosen = next_images(V, known, classes=classes, probabilities=p, n=n)
        return chosen if strategy == "queue" else with_checks(chosen, order, known)
    if strategy == "medoids":
        count = int((known != UNLABELLED).sum()) + n
        centres = KMeans(count, n_init=2, random_state=seed).fit(V).cluster_centers_
        far = ((V[:, None] - centres[None]) ** 2).sum(-1)  # [N, k]
        return list(dict.fromkeys(far.argmin(axis=0).tolist()))
    if strategy == "random" or p is None:
        return [row for row in order if known[row] == UNLABELLED][:n]
    return free[np.argsort(-uncertainty(p[free]), kind="stable")][:n].tolist()


def rest_of(X: Rows, known: Labels, order: list[int]) -> Rows:
    return X[[row for row in order if known[row] == UNLABELLED][:POOL]]


def accuracy(head: Head, V: Rows, w: Labels) -> float:
    return float((logits_of(head, V).argmax(axis=1) == w).mean())


def simulate(
    strategy: str, X: Rows, y: Labels, text: TextSide, V: Rows, w: Labels, seed: int
) -> dict[str, Any]:
    """Accuracy at each budget, and what held-out labels say of it at ESTIMATED."""
    rng = np.random.default_rng([seed, 7])
    classes, width = len(text.class_names), text.backbone.embed_dim
    known = np.full(len(y), UNLABELLED, np.int64)
    order = rng.permutation(len(y)).tolist()
    p: Rows | None = None
    found: dict[str, Any] = {"labels": [], "pool": [], "estimate": float("nan")}
    before = 0
    for budget in BUDGETS:
        # The studio asks for some at a time, with a new model after each few.
        step = (budget - before) * classes
        chosen = choose(strategy, X[:, :width], known, p, step, classes, order, seed)
        if strategy == "medoids":
            known[:] = UNLABELLED
        known[chosen] = y[chosen]
        before = budget
        rows = known >= 0
        rest = rest_of(X, known, order)
        head = fit_head(X[rows], known[rows], text, rest)
        p = softmax(logits_of(head, X))
        found["pool"].append(accuracy(head, V, w))
        found["labels"].append(accuracy(fit_head(X[rows], known[rows], text), V, w))
        if budget == ESTIMATED and strategy in ("random", "queue", "studio"):
            held, logits = hold_out(X[rows], known[rows], text, None, rest)
            right = logits.argmax(axis=1) == known[rows][held]
            if strategy == "studio":  # only what came at random counts
                right = right[checked(order, known)[rows][held]]
            if len(right):
                found["estimate"] = float(right.mean())
    return found


def shots(X: Rows, y: Labels, text: TextSide, V: Rows, w: Labels, seed: int) -> float:
    """Accuracy with SHOTS random images of each class."""
    rng = np.random.default_rng([seed, 8])
    rows = [rng.permutation(np.flatnonzero(y == label))[:SHOTS] for label in np.unique(y)]
    kept = np.concatenate(rows)
    return accuracy(fit_head(X[kept], y[kept], text), V, w)


def needed(curve: list[float], goal: float) -> float:
    """Labels per class until the accuracy is at the goal at two budgets running, or 17."""
    for step, budget in enumerate(BUDGETS):
        if min(curve[step : step + 2]) >= goal:
            return float(budget)
    return BUDGETS[-1] + 1.0


def bank_name(name: str) -> str:
    short = name.lower().replace("_", "")
    return next(bank for bank in shipped_banks() if short.startswith(bank))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", type=Path)
    parser.add_argument("backbone")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--judge", choices=("test", "dev"), default="test")
    parser.add_argument("--out", type=Path, default=Path("labelling.json"))
    options = parser.parse_args()
    backbone = load_backbone(options.backbone)
    store = FeatureStore(backbone)
    done = json.loads(options.out.read_text()) if options.out.exists() else {}
    for folder in sorted(path for path in options.data.iterdir() if path.is_dir()):
        dataset = read_dataset(folder)
        parts = {}
        for split in ("train", "val", "test"):
            cases = dataset.part(split)
            features = store.get([case.image for case in cases], deep=True).rows[:, 0].numpy()
            parts[split] = features, dataset.task.labels(dataset.targets(cases))
        counts = np.bincount(parts["train"][1])
        if counts.min() < 2 * SHOTS:
            continue  # too few images to choose from
        bank = read_bank(Path(bank_name(folder.name)))
        [text] = text_sides(backbone, replace(dataset.task, normal=()), bank)
        for seed in range(options.seeds):
            X, y = parts["train"]
            order = np.random.default_rng([seed, 6]).permutation(len(y))
            pool, rest = order[: 4 * len(y) // 5], order[4 * len(y) // 5 :]
            V, w = parts["test"]
            if options.judge == "dev":
                V = np.concatenate([parts["val"][0], X[rest]])
                w = np.concatenate([parts["val"][1], y[rest]])
            for strategy in (*STRATEGIES, "shots"):
                key = f"{options.judge} {folder.name} {seed} {strategy}"
                if key in done:
                    continue
                if strategy == "shots":
                    done[key] = shots(X[pool], y[pool], text, V, w, seed)
                else:
                    done[key] = simulate(strategy, X[pool], y[pool], text, V, w, seed)
                options.out.write_text(json.dumps(done))
        print(folder.name, flush=True)
    report(done, options.judge)


def report(done: dict[str, Any], judge: str) -> None:
    """Print tables: labels needed for each share of the goal, and mean accuracy by budget."""
    keys = [key.split() for key in done if key.startswith(f"{judge} ")]
    names = sorted({name for _, name, _, _ in keys})
    seeds = sorted({seed for _, _, seed, _ in keys})

    def curves(name: str, strategy: str, kind: str) -> list[list[float]]:
        return [done[f"{judge} {name} {seed} {strategy}"][kind] for seed in seeds]

    print(
        "| dataset | 16 shots, % |" + "".join(f" {s} {g:.0%} |" for g in SHARES for s in STRATEGIES)
    )
    totals: dict[tuple[str, float], list[float]] = {}
    for name in names:
        goals = [float(done[f"{judge} {name} {seed} shots"]) for seed in seeds]
        cells = []
        for share in SHARES:
            for strategy in STRATEGIES:
                pairs = zip(curves(name, strategy, "pool"), goals, strict=True)
                mean = float(np.mean([needed(curve, share * goal) for curve, goal in pairs]))
                totals.setdefault((strategy, share), []).append(mean)
                cells.append(f"{mean:.1f}")
        print(f"| {name} | {100 * np.mean(goals):.1f} | {' | '.join(cells)} |")
    mean = [f"{np.mean(totals[s, g]):.1f}" for g in SHARES for s in STRATEGIES]
    print(f"| **mean** | | {' | '.join(mean)} |")
    for kind in ("labels", "pool"):
        print(f"| {kind}: labels per class | " + " | ".join(map(str, BUDGETS)))
        for strategy in STRATEGIES:
            each = [np.mean(curves(name, strategy, kind), axis=0) for name in names]  # [D][B]
            print(f"| {strategy} | " + " | ".join(f"{100 * a:.1f}" for a in np.mean(each, axis=0)))
    for strategy in ("random", "queue", "studio"):
        rows = [done[f"{judge} {n} {s} {strategy}"] for n in names for s in seeds]
        gap = [row["estimate"] - row["pool"][BUDGETS.index(ESTIMATED)] for row in rows]
        print(f"held-out labels minus accuracy, {strategy}: {100 * np.nanmean(gap):.1f} points")


if __name__ == "__main__":
    main()
