"""Images answered one by one or together, for docs/evidence/unlabelled.md.

Needs the developers' shared folder (real images and a real backbone) in OGKD_SHARED. Every
dataset is one JSON file in --out; what is there is not run again.

    python benchmarks/together.py --out runs/together           # run what is missing
    python benchmarks/together.py --out runs/together --table   # print the tables

The support is drawn from train; what is answered are test images (`--judge rest`: images of train
and val that are not in the support): all of them, or batches of 16, balanced as the datasets are,
Zipf-imbalanced (in a random order of classes, the r-th keeps 1/r of its images), or without one
class. Images unlike the labelled ones take no part in learning, as in `ogkd predict`.
"""

from __future__ import annotations

import argparse
import random
import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from by_dataset import SHARED, options_of, run, text_of
from ogkd.backbones import Backbone
from ogkd.backbones.base import ImageFeatures
from ogkd.datasets.read import read_manifest
from ogkd.datasets.splits import few_shot
from ogkd.evaluation.confidence import aurc, nll
from ogkd.features.store import FeatureStore
from ogkd.features.views import FixedViews
from ogkd.methods import Head, Support, TextSide, make_method
from ogkd.model.familiarity import Familiarity, SupportFeatures, of_this_kind
from ogkd.model.prior import equal, estimated, reweighted
from ogkd.model.temperature import softmax

KINDS = ("balanced", "zipf", "missing")
WAYS = ("alone", "alone, estimate", "together", "together, estimate")
_BATCH, _BATCHES = 16, 5  # images, and batches of each kind, dataset and seed


def chosen(kind: str, labels: list[int], seed: int) -> list[int]:
    """Numbers of the images of one kind of batch, in a random order."""
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


class Answers:
    """A fitted model and the four ways in which it answers a batch."""

    def __init__(self, method: Any, head: Head, text: TextSide, support: Support) -> None:
        self.method, self.head, self.text = method, head, text
        rows, labels = support.rows()
        half = rows.half().float()  # as in a model folder
        self.support = half, labels
        self.known = SupportFeatures(half.numpy(), labels.numpy())
        self.familiarity = Familiarity(self.known, text.backbone.embed_dim)
        self.counts = {"batches": 0, "too few": 0, "not used": 0, "unlike": 0, "seconds": 0.0}

    def probabilities(self, rows: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """Of a batch of rows, by each way."""
        familiar = ~self.familiarity.unfamiliar(rows)
        near = of_this_kind(self.known, rows, self.text.backbone.embed_dim)
        classes = len(self.text.class_names)
        heads = {"alone": self.head, "together": self.head}
        self.counts["batches"] += 1
        self.counts["unlike"] += int((~near).sum())
        if near.sum() < 2 * classes:
            self.counts["too few"] += 1
        else:
            start = time.perf_counter()
            batch = torch.from_numpy(rows[near])
            found = self.method.together(self.head, self.support, batch, self.text)
            self.counts["seconds"] += time.perf_counter() - start
            self.counts["not used"] += bool(found.notes)
            heads["together"] = found
        said = {}
        for way, head in heads.items():
            p = said[way] = softmax(head.logits(torch.from_numpy(rows)).numpy(), 1.0)
            prior = estimated(p[familiar], equal(classes))
            said[f"{way}, estimate"] = reweighted(p, prior, equal(classes))
        return said


def one_dataset(name: str, backbone: Backbone, options: argparse.Namespace) -> dict[str, Any]:
    """Every way of answering at every number of shots, seed and kind of batch."""
    manifest = read_manifest(SHARED / "data" / name)
    text = text_of(name, manifest.class_names, backbone)
    items = list(manifest.items)
    row_of = {item: row for row, item in enumerate(items)}
    features = FeatureStore(backbone).get([item.image for item in items], deep=True)
    rows = features.rows[:, 0].numpy()
    labels = torch.tensor([item.label for item in items])
    train = manifest.part("train")
    method = make_method("fused")
    found = []
    for shots in options.shots:
        for seed in options.seeds:
            drawn = few_shot(train, shots, seed)
            known = [row_of[item] for item in drawn]
            views = ImageFeatures(features.globals[known], None, features.deep[known])
            support = Support(FixedViews(views), labels[known])
            head = method.fit([support], text, seeds=[seed])[0]
            split = {"test"} if options.judge == "test" else {"train", "val"}
            judged = [row_of[i] for i in items if i.split in split and row_of[i] not in set(known)]
            for kind in KINDS:
                of_kind = chosen(kind, labels[judged].tolist(), seed)
                for size in ("16", "all"):
                    answers = Answers(method, head, text, support)
                    step = _BATCH if size == "16" else len(of_kind)
                    cut = [of_kind[at : at + step] for at in range(0, len(of_kind), step)]
                    parts = [np.array(judged)[part] for part in cut if len(part) == step][:_BATCHES]
                    said = [answers.probabilities(rows[part]) for part in parts]
                    truth = labels.numpy()[np.concatenate(parts)]
                    about = {"shots": shots, "seed": seed, "kind": kind, "size": size}
                    about |= {"counts": answers.counts, "images": len(truth)}
                    for way in WAYS:
                        p = np.concatenate([one[way] for one in said])
                        right = float((p.argmax(1) == truth).mean())
                        score = [100 * right, 100 * aurc(truth, p), nll(truth, p)]
                        found.append(about | {"way": way, "score": score})
    return {"dataset": name, "judged": options.judge, "rows": found}


def tables(done: list[dict[str, Any]]) -> str:
    """Means over datasets, the difference of accuracy to answering alone, and the worst dataset."""
    shots = sorted({row["shots"] for one in done for row in one["rows"]})
    lines = []
    for size, title in (("all", "all images at once"), ("16", f"batches of {_BATCH}")):
        head = " | ".join(f"K = {K}" for K in shots)
        lines += [f"\n{title}: accuracy / AURC / NLL, and the worst dataset less alone\n"]
        lines += [f"| | | {head} |", "|---" * (2 + len(shots)) + "|"]
        for kind in KINDS:
            for way in WAYS:
                cells = []
                for K in shots:
                    mine, alone = (mean(done, K, kind, size, w) for w in (way, "alone"))
                    values = mine.mean(0)
                    cell = f"{values[0]:.1f} / {values[1]:.1f} / {values[2]:.2f}"
                    if way != "alone":
                        cell += f" ({(mine - alone)[:, 0].min():+.1f})"
                    cells.append(cell)
                lines.append(f"| {kind} | {way} | " + " | ".join(cells) + " |")
        rows = [r for one in done for r in one["rows"] if (r["size"], r["way"]) == (size, "alone")]
        sums = {key: sum(r["counts"][key] for r in rows) for key in rows[0]["counts"]}
        lines.append(f"\n{sums}")
    return "\n".join(lines)


def mean(
    done: list[dict[str, Any]], shots: int, kind: str, size: str, way: str
) -> NDArray[np.float64]:
    """The mean over seeds for each dataset: [datasets, 3]."""
    wanted = {"shots": shots, "kind": kind, "size": size, "way": way}
    return np.array(
        [
            np.mean([row["score"] for row in one["rows"] if wanted.items() <= row.items()], axis=0)
            for one in done
        ]
    )


def main() -> None:
    """Run what is missing, then print."""
    parser = options_of(__doc__, "runs/together", ["test", "rest"])
    options = parser.parse_args()
    done = run(options, one_dataset)
    if done:
        print(tables(done))


if __name__ == "__main__":
    main()
