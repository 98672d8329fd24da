"""Text, images, or both: `fused` beside its parts on real images, for docs/evidence/fused.md.

Needs the developers' shared folder (real images and a real backbone) in OGKD_SHARED. Every
dataset is one JSON file in --out; what is there is not run again.

    python benchmarks/fused.py --out runs/fused               # run what is missing
    python benchmarks/fused.py --out runs/fused --table       # print the tables
    python benchmarks/fused.py --out runs/fused-tokens --judge rest --parts 0 1 2 \
        --shots 1 4 16 --seeds 1 2 3                          # class tokens alone
    python benchmarks/fused.py --out runs/fused-constants --constants --judge rest \
        --shots 1 2 4 16 --seeds 1 2 3                        # choose nu, kappa0 and rho

The support is drawn from train and the test split is judged, once. With `--judge rest` it is
the images of train and val that are not in the support: all choices were made by those.
"""

from __future__ import annotations

import argparse
import copy
import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from by_dataset import SHARED, options_of, run, text_of
from ogkd.backbones import Backbone
from ogkd.backbones.base import ImageFeatures
from ogkd.data.read import read_dataset
from ogkd.data.splits import support_and_val
from ogkd.evaluation.confidence import ece
from ogkd.features.store import FeatureStore
from ogkd.features.views import FixedViews
from ogkd.methods import Head, LinearHead, Support, TextSide, make_method
from ogkd.methods.feature_method import rows_of
from ogkd.methods.gda import gaussian

ZERO_SHOT = "zero-shot ensemble"
CONSTANTS = [
    {"rho": 0.3, "nu": nu, "kappa0": kappa0}
    for nu, kappa0 in itertools.product((4.0, 16.0, 64.0), (2.0, 4.0, 8.0, 16.0))
]
CONSTANTS += [{"rho": rho, "nu": 16.0, "kappa0": 8.0} for rho in (0.1, 1.0)]


def judge(head: Head, features: Tensor, labels: Tensor) -> dict[str, float]:
    """Accuracy, area under the risk-coverage curve, likelihood, and how true probabilities are."""
    log_p = head.of_rows(features).double().log_softmax(-1)
    confidence, said = log_p.max(-1)
    wrong = (said != labels)[confidence.argsort(descending=True, stable=True)].double()
    risks = wrong.cumsum(0) / torch.arange(1, len(wrong) + 1)
    nll = -log_p.gather(1, labels.unsqueeze(1)).mean()
    return {
        "accuracy": float((said == labels).double().mean()),
        "aurc": float(risks.mean()),
        "nll": float(nll),
        "ece": ece(labels.numpy(), log_p.exp().numpy()),
        "stated": float(confidence.exp().mean()),
    }


def one_dataset(name: str, backbone: Backbone, options: argparse.Namespace) -> dict[str, Any]:
    """Every method at every number of shots and seed."""
    dataset = read_dataset(SHARED / "data" / name)
    text = text_of(name, dataset.names, backbone)
    store = FeatureStore(backbone)
    train = dataset.part("train")
    judged = dataset.part("test") if options.judge == "test" else train + dataset.part("val")
    cases = list(dict.fromkeys(train + judged))
    row_of = {case: row for row, case in enumerate(cases)}
    features = store.get([case.image for case in cases], deep=True)  # [N, 1, ..]
    if options.parts is not None:
        features, text = only(features, text, options.parts)
    rows = features.rows[:, 0]
    labels = torch.tensor([case.target for case in cases])
    found: list[dict[str, Any]] = []
    for shots in options.shots:
        drawn = [support_and_val(dataset.task, train, (), shots, seed)[0] for seed in options.seeds]
        supports = []
        for support in drawn:
            chosen = [row_of[case] for case in support]
            deep = features.deep[chosen]  # type: ignore[index]  # asked for above
            views = FixedViews(ImageFeatures(features.globals[chosen], None, deep))
            supports.append(Support(views, labels[chosen]))
        for method, heads in fitted(supports, text, options).items():
            for seed, support, head in zip(options.seeds, drawn, heads, strict=True):
                others = [row_of[case] for case in judged if case not in set(support)]
                row = {"method": method, "shots": shots, "seed": seed}
                found.append(row | judge(head, rows[others], labels[others]))
    return {"dataset": name, "judged": options.judge, "rows": found}


def only(
    features: ImageFeatures, text: TextSide, parts: list[int]
) -> tuple[ImageFeatures, TextSide]:
    """Some of the deeper parts alone, and a text side whose backbone has only those."""
    assert features.deep is not None
    widths = text.backbone.deep_parts
    kept = [features.deep.split(list(widths), dim=-1)[part] for part in parts]
    twin = copy.copy(text.backbone)
    twin.deep_parts = tuple(widths[part] for part in parts)
    found = ImageFeatures(features.globals, None, torch.cat(kept, dim=-1))
    return found, replace(text, backbone=twin)


def fitted(
    supports: list[Support], text: TextSide, options: argparse.Namespace
) -> dict[str, list[Head]]:
    """Heads of each method, one per support."""

    def fit(method: str, **settings: Any) -> list[Head]:
        chosen = make_method(method, settings=settings)
        return type(chosen).fit_many([chosen] * len(supports), supports, text, seeds=options.seeds)

    if options.constants:
        found = {_constants(**one): fit("fused", text="bank", **one) for one in CONSTANTS}
        return {ZERO_SHOT: fit("zero-shot-ensemble"), **found}
    # The methods besides fused see the global features alone.
    everything, supports = (
        supports,
        [
            Support(FixedViews(ImageFeatures(s.views.features.globals)), s.labels)  # type: ignore[attr-defined]
            for s in supports
        ],
    )
    images: list[Head] = []
    for support in supports:
        W, b = gaussian(rows_of(support, text.class_names))
        images.append(LinearHead(W.float(), b.float()))
    heads = {
        "zero-shot": fit("zero-shot"),
        ZERO_SHOT: fit("zero-shot-ensemble"),
        "GDA, images alone": images,
        "GDA with text": fit("gda", prior="bank"),
        "fused, global features": fit("fused", text="bank"),
    }
    supports = everything
    heads["fused, kappa = 8"] = fit("fused", text="bank", kappa=8.0)
    heads["fused"] = fit("fused", text="bank")
    return heads


def _constants(rho: float, nu: float, kappa0: float) -> str:
    return f"rho {rho:g}, nu {nu:g}, kappa0 {kappa0:g}"


def choice(done: list[dict[str, Any]]) -> str:
    """Accuracy of each setting of the constants, and which one the other datasets choose."""
    labels = [_constants(**one) for one in CONSTANTS]
    shots = sorted({row["shots"] for one in done for row in one["rows"]})
    # [settings, shots, datasets]
    value = 100 * np.array([[means(done, label, K) for K in shots] for label in labels])
    zero = 100 * np.array([means(done, ZERO_SHOT, K) for K in shots])
    lines = ["| | " + " | ".join(f"K={K}" for K in shots) + " | mean | worst less ensemble |"]
    lines.append("|---" * (len(shots) + 3) + "|")
    for label, one in sorted(zip(labels, value, strict=True), key=lambda pair: -pair[1].mean()):
        cells = " | ".join(f"{row.mean():.1f}" for row in one)
        lines.append(f"| {label} | {cells} | {one.mean():.2f} | {(one - zero).min():+.1f} |")
    lines.append("")
    for place, one in enumerate(done):
        rest = np.delete(value, place, axis=2).mean(axis=(1, 2))
        lines.append(f"- without {one['dataset']}: {labels[int(rest.argmax())]}")
    return "\n".join(lines)


def tables(done: list[dict[str, Any]]) -> str:
    """Means over datasets, then each dataset, then differences to `fused`."""
    methods = list(dict.fromkeys(row["method"] for one in done for row in one["rows"]))
    shots = sorted({row["shots"] for one in done for row in one["rows"]})
    head = "| | " + " | ".join(f"K={K}" for K in shots) + " |\n" + "|---" * (len(shots) + 1) + "|"
    lines: list[str] = []
    for what, title in (
        ("accuracy", "Accuracy (%)"),
        ("aurc", "AURC (%)"),
        ("nll", "NLL"),
        ("ece", "ECE (%)"),
        ("stated", "Stated probability (%)"),
    ):
        factor = 1 if what == "nll" else 100
        lines += [f"\n{title}, mean of {len(done)} datasets\n", head]
        for method in methods:
            cells = [f"{factor * means(done, method, K, what).mean():.2f}" for K in shots]
            lines.append(f"| {method} | " + " | ".join(cells) + " |")
    last = methods[-1]
    lines += [f"\n{last}: accuracy per dataset, and its difference to {ZERO_SHOT}\n"]
    lines += [head]
    for place, one in enumerate(done):
        cells = []
        for K in shots:
            mine = 100 * means(done, last, K, "accuracy")[place]
            cells.append(f"{mine:.1f} ({mine - 100 * means(done, ZERO_SHOT, K)[place]:+.1f})")
        lines.append(f"| {one['dataset']} | " + " | ".join(cells) + " |")
    lines += [f"\n{last} minus the others: accuracy, mean of datasets ± its standard error\n", head]
    for method in methods[:-1]:
        cells = []
        for K in shots:
            gain = 100 * (means(done, last, K) - means(done, method, K))
            error = gain.std(ddof=1) / len(gain) ** 0.5 if len(gain) > 1 else 0.0
            cells.append(f"{gain.mean():+.1f} ± {error:.1f}")
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def means(done: list[dict[str, Any]], method: str, shots: int, what: str = "accuracy") -> Any:
    """The mean over seeds for each dataset."""
    return np.array(
        [
            np.mean([r[what] for r in one["rows"] if (r["method"], r["shots"]) == (method, shots)])
            for one in done
        ]
    )


def main() -> None:
    """Run what is missing, then print."""
    parser = options_of(__doc__, "runs/fused", ["test", "rest"])
    parser.set_defaults(shots=[1, 2, 4, 8, 16])
    parser.add_argument(
        "--parts", nargs="+", type=int, help="deeper parts to keep; all if left out"
    )
    parser.add_argument("--constants", action="store_true", help="compare its constants instead")
    options = parser.parse_args()
    done = run(options, one_dataset)
    if done:
        print(choice(done) if options.constants else tables(done))


if __name__ == "__main__":
    main()
