"""Why OGKD and BiomedCoOp tie on the proxy: sizes of the losses' gradients, and the teacher.

OGKD is trained with each dataset's own setting of the paper; every few steps the gradient of
each weighted loss at the context is taken apart. "Geometry" is what diffusion along W changes:
the gradient of GAD and LGD less the same with gamma 0. The teacher that is judged has its prompts
selected on all test images at once, in training on each batch. Needs OGKD_SHARED; one JSON each.

    OGKD_SHARED=../shared python benchmarks/anatomy.py --out runs/anatomy
    python benchmarks/anatomy.py --out runs/anatomy --table
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from ogkd.backbones import Backbone, load_backbone
from ogkd.backbones.base import TextDropout
from ogkd.core.batches import Batch, Run
from ogkd.core.geometry import class_graph
from ogkd.core.losses import diffuse, logits
from ogkd.core.prompting import PromptLearner
from ogkd.core.teacher import select_prompts, teacher_prototypes
from ogkd.core.training import train_contexts
from ogkd.data.names import normal_labels
from ogkd.data.read import read_dataset
from ogkd.data.splits import support_and_val
from ogkd.features.store import FeatureStore
from ogkd.files import write_json
from ogkd.fitting.prepare import Drawn, make_support
from ogkd.methods import TextSide, make_method
from ogkd.methods.ogkd import OGKD, OGKDConfig, OGKDObjective
from ogkd.prompts.bank import bank_for, read_bank

SHARED = Path(os.environ.get("OGKD_SHARED") or Path(__file__).parents[2] / "shared")
DATASETS = {"BTMRI": "btmri", "BUSI": "busi", "OCTMNIST": "octmnist", "RETINA": "retina"}
SEEDS, SHOTS, EVERY = [1, 2, 3], 16, 10
TERMS = ("ce", "sccm", "gad", "lgd")


class Watched:
    """The objective of OGKD, with its gradient taken apart in every tenth step."""

    def __init__(self, config: OGKDConfig, text: TextSide, learner: PromptLearner) -> None:
        def objective(gamma: float | tuple[float, ...]) -> OGKDObjective:
            chosen = config.model_copy(update={"gamma": gamma})
            scale = text.backbone.logit_scale
            return OGKDObjective(chosen, text.bank, scale, "cpu")

        self.learner = learner
        self.whole, self.plain = objective(config.gamma), objective(0.0)
        self.weights = {"ce": 1.0, "sccm": config.lambda_sccm}
        self.weights |= {"gad": config.lambda_gad, "lgd": config.lambda_lgd}
        self.found: dict[str, list[float]] = {}
        self.step = 0
        self._flat: Mapping[str, Tensor] = {}
        self.batch: Batch | None = None

    def __call__(self, T_hat: Tensor, batch: Batch) -> Mapping[str, Tensor]:
        if self.step % EVERY == 0:
            self._flat, self.batch = self.plain(T_hat, batch), batch
        return self.whole(T_hat, batch)

    def gradient(self, terms: Mapping[str, Tensor], parameters: Tensor) -> Tensor:
        """That of the total; on the way, what each term adds to it."""

        def of(value: Tensor) -> Tensor:
            return torch.autograd.grad(value.sum(), parameters, retain_graph=True)[0].flatten(1)

        if self.step % EVERY == 0:
            parts = {name: self.weights[name] * of(terms[name]) for name in TERMS}
            flat = {name: self.weights[name] * of(self._flat[name]) for name in ("gad", "lgd")}
            parts["geometry"] = parts["gad"] - flat["gad"] + parts["lgd"] - flat["lgd"]
            parts["distilled"] = parts["gad"] + parts["lgd"]
            for name, part in parts.items():
                self._keep(f"size {name}", part.norm(dim=1) / parts["ce"].norm(dim=1))
                along = torch.cosine_similarity(part, parts["ce"], dim=1)
                self._keep(f"along {name}", along)
            self._keep("dropout", self._noise(parameters))
        self.step += 1
        return torch.autograd.grad(terms["total"].sum(), parameters)[0]

    def _keep(self, name: str, values: Tensor) -> None:
        self.found.setdefault(name, []).extend(values.tolist())

    def _noise(self, parameters: Tensor) -> Tensor:
        """How far two draws of text dropout move the gradient of cross-entropy, over its size."""
        assert self.batch is not None
        draws = []
        for number in (None, 1, 2):
            dropout = None
            if number is not None:
                seeds = [1000 * self.step + 10 * row + number for row in range(len(SEEDS))]
                dropout = TextDropout(seeds)
            T_hat = self.learner.text_features(
                parameters, images=self.batch.globals, dropout=dropout
            )
            loss = self.whole(T_hat, self.batch)["ce"].sum()
            draws.append(torch.autograd.grad(loss, parameters)[0].flatten(1))
        still, one, two = draws
        apart: Tensor = (one - two).norm(dim=1) / (2**0.5 * still.norm(dim=1))
        return apart


def examine(name: str, backbone: Backbone, *, epochs: int) -> dict[str, Any]:
    """Train on one dataset and say what was seen."""
    dataset = read_dataset(SHARED / "data" / name)
    prompts = bank_for(dataset.names, read_bank(Path(DATASETS[name])))
    normal = normal_labels(dataset.names, None)
    text = TextSide(backbone, dataset.names, tuple(tuple(row) for row in prompts), normal)
    settings = {"views": 0, "train.epochs": epochs}
    preset = f"paper/few-shot/{DATASETS[name]}"
    method = cast(OGKD, make_method("ogkd", preset=preset, settings=settings))
    config = cast(OGKDConfig, method.config)
    store = FeatureStore(backbone)
    supports = []
    for seed in SEEDS:
        drawn, _ = support_and_val(dataset.task, dataset.part("train"), [], SHOTS, seed)
        supports.append(make_support(method, store, dataset.task, Drawn(drawn, []), seed))
    learner = method.learner(text)
    watched = Watched(config, text, learner)
    runs = [Run(s.views, s.labels, seed) for s, seed in zip(supports, SEEDS, strict=True)]
    dropout = method.text_dropout
    contexts = train_contexts(learner, runs, watched, config.train, text_dropout=dropout)
    with torch.no_grad():
        T_hat = normalize(learner.text_features(contexts), dim=-1)
    test = dataset.part("test")
    images = store.get([case.image for case in test]).globals[:, 0].float()
    labels = torch.tensor([case.target for case in test])
    E = text.bank
    teacher = teacher_prototypes(E, select_prompts(images, E, tau=config.tau))
    W = class_graph(watched.whole.T, config.alpha)
    log_q = logits(images, teacher, backbone.logit_scale).log_softmax(dim=-1)
    moved = diffuse(log_q, W, config.gamma).log_softmax(dim=-1)
    students = logits(images.expand(len(SEEDS), -1, -1), T_hat, backbone.logit_scale)
    q = log_q.exp()
    return {
        "dataset": dataset,
        "epochs": epochs,
        "gamma": config.gamma,
        **{name: float(np.median(values)) for name, values in watched.found.items()},
        "teacher accuracy": _accuracy(log_q, labels),
        "diffused accuracy": _accuracy(moved, labels),
        "student accuracy": float(np.mean([_accuracy(z, labels) for z in students])),
        "teacher confidence": float(q.amax(dim=-1).mean()),
        "diffused confidence": float(moved.exp().amax(dim=-1).mean()),
        "W own": float(W.diagonal().mean()),
        "W uniform": 1 / len(W),
    }


def _accuracy(scores: Tensor, labels: Tensor) -> float:
    return float((scores.argmax(dim=-1) == labels).float().mean())


def table(rows: list[dict[str, Any]]) -> str:
    """Measures in rows, datasets in columns."""
    names = [name for name in rows[0] if name not in ("dataset", "epochs")]
    lines = ["| | " + " | ".join(row["dataset"] for row in rows) + " |"]
    lines.append("|---" + "|---:" * len(rows) + "|")
    for name in names:
        cells = " | ".join(f"{row[name]:.3f}" for row in rows)
        lines.append(f"| {name} | {cells} |")
    return "\n".join(lines)


def main() -> None:
    """Examine what is missing, then print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("runs/anatomy"))
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--datasets", nargs="+", choices=list(DATASETS), default=list(DATASETS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--table", action="store_true", help="print only")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    backbone = None
    for dataset in arguments.datasets if not arguments.table else []:
        path = arguments.out / f"{dataset}.json"
        if not path.is_file():
            backbone = backbone or load_backbone(SHARED / "backbones" / "dinov2s14-minilm-med")
            write_json(path, examine(dataset, backbone, epochs=arguments.epochs))
    print(table([json.loads(path.read_text()) for path in sorted(arguments.out.glob("*.json"))]))


if __name__ == "__main__":
    main()
