"""What the parts of `fused` gain, what a pool adds or costs, and how wrong inputs degrade it."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from benchmarks.common import DATASETS, Data, data, markdown, percent
from ogkd.backbones.base import ImageFeatures
from ogkd.data.task import softmax
from ogkd.evaluation.confidence import aurc, nll
from ogkd.features.views import FixedViews
from ogkd.methods import Head, LinearHead, Support, TextSide, make_method
from ogkd.methods.feature_method import rows_of
from ogkd.methods.gda import gaussian
from ogkd.model.familiarity import SupportFeatures, is_in_distribution

SHOTS = (1, 2, 4, 8, 16)
SEEDS = (1, 2, 3)
PER_CLASS = 2  # unlabelled images below which a pool is not used

PARTS = ("texts alone", "images alone", "global feature", "fused")
POOLS = ("balanced", "Zipf", "one class missing", "of one class only", "another dataset too", "20")
HARM = ("texts of another class", "a quarter of labels wrong", "unequal classes")


def units() -> list[tuple[str, int, int]]:
    return [(name, shots, seed) for name in DATASETS for shots in SHOTS for seed in SEEDS]


def measure(name: str, shots: int, seed: int) -> list[dict[str, Any]]:
    given = data(name)
    known, judged = given.draw(shots, seed), given.part("test")
    rows, text = given.rows, given.text
    support, width = given.support(known), text.backbone.embed_dim

    def fused(support: Support, text: TextSide = text) -> Head:
        return make_method("fused").fit(support, text, seed=seed)

    short = Support(FixedViews(ImageFeatures(given.features.globals[known])), given.labels[known])
    W, b = gaussian(rows_of(short, text.class_names))
    heads: dict[str, Head] = {
        "texts alone": make_method("zero-shot-ensemble").fit(None, text, seed=seed),
        "images alone": LinearHead(W.float(), b.float()),
        "global feature": fused(short),
        "fused": fused(support),
    }
    seen = SupportFeatures(rows[known].numpy(), given.labels[known].numpy())
    rest = given.rest(known, seed)
    for kind in POOLS:
        pool = _pool(kind, given, rest, seed)
        near = pool[torch.from_numpy(is_in_distribution(seen, pool.numpy(), width))]
        enough = len(near) >= PER_CLASS * len(text.class_names)
        heads[kind] = fused(replace(support, unlabelled=near)) if enough else heads["fused"]
    bank = (*text.prompts[1:], text.prompts[0])
    heads["texts of another class"] = fused(support, replace(text, prompts=bank))
    if shots >= 4:  # with fewer a class may lose all its images
        heads["a quarter of labels wrong"] = fused(_wrong(given, known, seed))
        heads["unequal classes"] = fused(given.support(_unequal(given, known, seed)))
    y = given.labels[judged].numpy()
    row = {"dataset": name, "shots": shots, "seed": seed}
    made = []
    for label, head in heads.items():
        p = softmax(head.of_rows(rows[judged]).numpy())
        scores = {"accuracy": float((p.argmax(1) == y).mean()), "aurc": aurc(y, p)}
        made.append(row | {"label": label} | scores | {"nll": nll(y, p)})
    return made


def _pool(kind: str, given: Data, rest: list[int], seed: int) -> Tensor:
    """Unlabelled rows of one kind; their labels only decide which images are taken."""
    labels = given.labels
    classes = sorted(set(labels[rest].tolist()))
    random.Random(seed).shuffle(classes)
    chosen = rest
    if kind == "Zipf":
        left = {c: sum(labels[n] == c for n in rest) // (r + 1) for r, c in enumerate(classes)}
        chosen = []
        for n in rest:
            left[int(labels[n])] -= 1
            chosen += [n] if left[int(labels[n])] >= 0 else []
    elif kind == "one class missing":
        chosen = [n for n in rest if labels[n] != classes[0]]
    elif kind == "of one class only":
        chosen = [n for n in rest if labels[n] == classes[0]]
    elif kind == "20":
        chosen = rest[:20]
    rows = given.rows[chosen]
    if kind == "another dataset too":
        names = list(DATASETS)
        other = next(name for name in names if data(name) is given)
        other = names[(names.index(other) + 1) % len(names)]
        rows = torch.cat([rows, data(other).rows[: len(rows)]])
    return rows


def _wrong(given: Data, known: list[int], seed: int) -> Support:
    """A quarter of the labels (at least one) replaced by the next class."""
    labels = given.labels[known].clone()
    count = max(1, len(known) // 4)
    chosen = np.random.default_rng(seed).permutation(len(known))[:count]
    labels[chosen] = (labels[chosen] + 1) % len(given.text.class_names)
    return given.support(known, labels)


def _unequal(given: Data, known: list[int], seed: int) -> list[int]:
    """In a random order of classes, the r-th keeps 1/r of its images, one at least."""
    classes = sorted(set(given.labels[known].tolist()))
    random.Random(seed).shuffle(classes)
    kept: list[int] = []
    for rank, label in enumerate(classes, start=1):
        own = [n for n in known if given.labels[n] == label]
        kept += own[: max(1, len(own) // rank)]
    return kept


def tables(frame: pd.DataFrame) -> dict[str, str]:
    return {
        "parts": _table(frame, PARTS, None),
        "pool": _table(frame, ("fused", *POOLS), "fused"),
        "harm": _table(frame, ("fused", *HARM), "fused"),
    }


def _table(frame: pd.DataFrame, labels: tuple[str, ...], base: str | None) -> str:
    """Accuracy / AURC / NLL; in brackets the worst dataset's accuracy minus that of `base`."""
    means = frame.groupby(["label", "shots", "dataset"]).mean(numeric_only=True)
    words = {"20": "20 images", "another dataset too": "and as many images of another dataset"}
    if base is not None:
        words["fused"] = "`fused` as it is"
    rows = {}
    for label in labels:
        cells = []
        for shots in SHOTS:
            if (label, shots) not in means.index.droplevel("dataset"):
                cells.append("")
                continue
            part = means.xs((label, shots))
            cell = f"{percent(part['accuracy'].mean())} / {percent(part['aurc'].mean())}"
            cell += f" / {part['nll'].mean():.2f}"
            if base not in (None, label):
                gain = 100 * (part["accuracy"] - means.xs((base, shots))["accuracy"])
                cell += f" ({gain.min():+.1f})"
            cells.append(cell)
        rows[words.get(label, label)] = cells
    return markdown(rows, [f"K={K}" for K in SHOTS])
