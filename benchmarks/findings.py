"""Several findings in one image, and a logistic regression for each: docs/evidence/cases.md.

Composed phantom chest films that show up to four findings. The first one, two, three or four of
them are asked for, and a share of the training answers is hidden. Every number of findings is one
JSON file in --out; what is there is not run again.

    python benchmarks/findings.py --out runs/findings                       # the built-in backbone
    OGKD_SHARED=../shared python benchmarks/findings.py --out runs/findings-proxy --backbone proxy
    python benchmarks/findings.py --out runs/findings --table               # print the tables

    python benchmarks/findings.py --out runs/findings-rest --judge rest     # for choices

`fused` is what `ogkd fit` does: each finding is fitted by itself, as two classes. `images` is
`fused` without texts. `logistic` is scikit-learn's logistic regression on the same rows, its C
chosen by cross-validation. With `--judge rest` the judged images are the training images that were
not drawn, and no test image is looked at.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.model_selection import StratifiedKFold
from torch import Tensor

from ogkd.backbones import load_backbone
from ogkd.backbones.base import Backbone, ImageFeatures
from ogkd.data.phantoms import TABLE, write_films
from ogkd.data.read import read_dataset
from ogkd.data.tasks import Findings
from ogkd.evaluation.findings import areas
from ogkd.features.store import FeatureStore
from ogkd.features.views import FixedViews
from ogkd.files import write_json
from ogkd.fitting.cases import CaseSupport, learn
from ogkd.fitting.prepare import text_sides
from ogkd.methods import Support, TextSide, make_method

IMAGES = {"train": 240, "test": 300}
MISSING = (0.0, 0.2, 0.4, 0.6, 0.8)
SIZES = (40, 160)  # training images
CS = (0.1, 1.0, 10.0, 100.0, 1000.0)


@dataclass(frozen=True)
class Data:
    """Rows of all images with their answers [N, F], and the texts."""

    task: Findings
    texts: list[TextSide]  # of each finding
    rows: Tensor
    Y: Tensor
    train: Tensor  # [N]


def read(backbone: Backbone, place: Path) -> Data:
    """Draw the films if they are not there, and encode them."""
    if not place.is_dir():
        write_films(place, splits=IMAGES, seed=7)
    dataset = read_dataset(place / TABLE)
    rows = FeatureStore(backbone).get([case.image for case in dataset.cases], deep=True).rows[:, 0]
    task = Findings(dataset.names)
    texts = text_sides(backbone, task, None)
    Y = torch.tensor([case.target for case in dataset.cases])
    train = torch.tensor([case.split == "train" for case in dataset.cases])
    return Data(task, texts, rows, Y, train)


def first(data: Data, findings: int) -> Data:
    """The same images, of which only the first findings are asked for."""
    task = Findings(data.task.names[:findings])
    return Data(task, data.texts[:findings], data.rows, data.Y[:, :findings], data.train)


def draw(data: Data, size: int, missing: float, seed: int) -> tuple[Tensor, Tensor]:
    """Numbers of training images, and their answers of which a share is hidden (-1).

    Drawn again until every finding is there and not there in some image.
    """
    rng = torch.Generator().manual_seed(1000 * seed + size)
    pool = data.train.nonzero()[:, 0]
    while True:
        chosen = pool[torch.randperm(len(pool), generator=rng)[:size]]
        Y = data.Y[chosen].clone()
        Y[torch.rand(Y.shape, generator=rng) < missing] = -1
        if ((Y == 1).any(0) & (Y == 0).any(0)).all():
            return chosen, Y


def fused(data: Data, chosen: Tensor, Y: Tensor, **settings: Any) -> np.ndarray:
    """Log-odds of all test images."""
    support = Support(FixedViews(ImageFeatures(data.rows[chosen].unsqueeze(1), None)), Y)
    given = CaseSupport(support, torch.empty(len(Y), 0), torch.arange(len(Y)), Y, Y)
    method = make_method("fused", settings=settings)
    head, _ = learn(method, given, data.task, data.texts, seed=1)
    return head.of_rows(data.rows[~data.train]).numpy()


def logistic(data: Data, chosen: Tensor, Y: Tensor) -> np.ndarray:
    # The weights lie in the span of the training rows, in which the same regression is small.
    basis = torch.linalg.qr(data.rows[chosen].double().mT)[0]
    X_all, test = ((data.rows[some].double() @ basis).numpy() for some in (chosen, ~data.train))
    columns = []
    for f in range(Y.shape[1]):
        known = (Y[:, f] >= 0).numpy()
        X, y = X_all[known], Y[:, f].numpy()[known]
        least = int(np.bincount(y, minlength=2).min())
        model: Any = LogisticRegression(C=10.0, max_iter=2000)
        if least > 1:
            folds = StratifiedKFold(min(3, least), shuffle=True, random_state=0)
            model = LogisticRegressionCV(
                Cs=CS, cv=folds, scoring="neg_log_loss", max_iter=2000, use_legacy_attributes=True
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            columns.append(model.fit(X, y).decision_function(test))
    return np.stack(columns, axis=1)


METHODS = {
    "fused": fused,
    "images": lambda data, chosen, Y: fused(data, chosen, Y, kappa=1e-9),
    "logistic": logistic,
}


def one(data: Data, size: int, missing: float, seed: int, judge: str) -> list[dict[str, Any]]:
    chosen, Y = draw(data, size, missing, seed)
    if judge == "rest":
        kept = data.train.clone()  # the test images are gone, the drawn ones learned from
        learned = torch.zeros_like(kept)
        learned[chosen] = True
        place = torch.cumsum(kept, 0)[chosen] - 1
        data = replace(data, rows=data.rows[kept], Y=data.Y[kept], train=learned[kept])
        chosen = place
    truth = data.Y[~data.train].numpy()
    found = []
    for name, method in METHODS.items():
        start = time.process_time()
        z = method(data, chosen, Y)
        seconds = time.process_time() - start
        p = data.task.probabilities(z)
        area = areas(truth, p, np.ones((1, len(p))))
        sign = 2 * truth - 1
        found.append(
            {
                "method": name,
                "images": size,
                "missing": missing,
                "seed": seed,
                "auroc": float(area["macro/auroc"][0]),
                "ap": float(area["macro/average_precision"][0]),
                "nll": float(np.logaddexp(0, -sign * z).mean()),
                "seconds": seconds,
            }
        )
    return found


def table(folder: Path) -> None:
    """Means over seeds; then the mean over all numbers of findings, and differences by draw."""
    rows = [
        row | {"findings": each["findings"]}
        for file in sorted(folder.glob("findings-*.json"))
        for each in [json.loads(file.read_text(encoding="utf-8"))]
        for row in each["rows"]
    ]
    for size in SIZES:
        print(f"\n{size} training images: AUROC / average precision (%), NLL\n")
        print(
            "| findings | missing | " + " | ".join(METHODS) + " |\n|" + "---|" * (2 + len(METHODS))
        )
        for findings in [*sorted({row["findings"] for row in rows}), None]:
            for missing in MISSING:
                cells = []
                for name in METHODS:
                    mine = [
                        row
                        for row in rows
                        if (row["method"], row["images"], row["missing"]) == (name, size, missing)
                        and findings in (None, row["findings"])
                    ]
                    a, b, c = (
                        np.mean([row[key] for row in mine]) for key in ("auroc", "ap", "nll")
                    )
                    cells.append(f"{100 * a:.1f} / {100 * b:.1f}, {c:.2f}")
                which = "all" if findings is None else findings
                print(f"| {which} | {100 * missing:.0f} % | " + " | ".join(cells) + " |")
    key = ("findings", "images", "missing", "seed")
    by = {(row["method"], *(row[k] for k in key)): row for row in rows}
    print("\nAUROC of `fused` minus another, in points: mean, standard error, draws that it wins")
    for name in list(METHODS)[1:]:
        for size in SIZES:
            gaps = np.array(
                [
                    100 * (row["auroc"] - by[(name, *(row[k] for k in key))]["auroc"])
                    for row in rows
                    if row["method"] == "fused" and row["images"] == size
                ]
            )
            error = gaps.std(ddof=1) / len(gaps) ** 0.5
            print(
                f"{name}, {size} images: {gaps.mean():+.2f} ({error:.2f}), {(gaps > 0).mean():.0%}"
            )
    for name in METHODS:
        print(name, f"{np.mean([r['seconds'] for r in rows if r['method'] == name]):.2f} s")


def main() -> None:
    """Run what is missing, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--films", type=Path, help="folder of the films (default: OUT/films)")
    parser.add_argument("--backbone", default="builtin", help="builtin, a folder, or proxy")
    parser.add_argument("--findings", nargs="+", type=int, default=[1, 2, 3, 4])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--judge", choices=["test", "rest"], default="test")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args()
    if options.table:
        table(options.out)
        return
    torch.set_num_threads(1)
    name: Any = options.backbone
    if name == "proxy":
        shared = Path(os.environ.get("OGKD_SHARED") or Path(__file__).parents[2] / "shared")
        name = shared / "backbones" / "dinov2s14-minilm-med"
    backbone = load_backbone(name)
    options.out.mkdir(parents=True, exist_ok=True)
    everything = read(backbone, options.films or options.out / "films")
    for findings in options.findings:
        place = options.out / f"findings-{findings}.json"
        if place.exists():
            continue
        data = first(everything, findings)
        rows = [
            row
            for size in SIZES
            for missing in MISSING
            for seed in options.seeds
            for row in one(data, size, missing, seed, options.judge)
        ]
        write_json(place, {"findings": findings, "backbone": backbone.name, "rows": rows})
        print(f"{findings} findings done", flush=True)


if __name__ == "__main__":
    main()
