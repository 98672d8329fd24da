"""Runs that were never run: a model of a test set that methods, shots and settings move."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ogkd.bench.runs import Cell, Plan, Predictions, Result, RunsFolder, RunSpec

DATASETS = {
    "retina": ("diabetic retinopathy", "glaucoma", "cataract", "normal retina"),
    "busi": ("benign tumor", "malignant tumor", "normal scan"),
    "kvasir": (
        "dyed lifted polyps", "dyed resection margins", "esophagitis", "normal cecum",
        "normal pylorus", "normal z line", "polyps", "ulcerative colitis",
    ),
    "covid": ("covid lungs", "lung opacity lungs", "viral pneumonia lungs", "normal lungs"),
}  # fmt: skip
SKILL = {"ogkd": 0.35, "biomedcoop": 0.2, "coop": 0.0, "zero-shot": -0.6, "gda": 0.3}


def graph(names: Sequence[str], alpha: float = 4.0) -> np.ndarray:
    """A class graph: similarities that depend on the names alone."""
    rng = np.random.default_rng(zlib.crc32("|".join(names).encode()))
    T = rng.normal(size=(len(names), 6)) + 1.0
    T /= np.linalg.norm(T, axis=1, keepdims=True)
    W = np.exp(alpha * T @ T.T)
    return (W / W.sum(axis=1, keepdims=True)).astype(np.float32)


def predictions(spec: RunSpec, names: Sequence[str], part: str, images: int) -> Predictions:
    """Noisy logits; images are as hard for one method as for another."""
    same = np.random.default_rng(zlib.crc32(f"{spec.dataset} {part}".encode()))
    labels = same.integers(0, len(names), images)
    hard = same.normal(size=(images, len(names)))
    per_run = np.random.default_rng(zlib.crc32(spec.hash.encode()))
    shots = 1.0 if spec.method == "zero-shot" else float(spec.shots or 1)
    gamma = float(spec.settings.get("gamma", 0.5))
    skill = 1.2 + 0.35 * np.log2(shots) + SKILL.get(spec.method, 0.0) - 0.06 * spec.flips
    skill += 0.3 * np.sin(np.pi * gamma) + 0.004 * (spec.budget or 50) - 0.3 * (part == "novel")
    logits = 1.2 * hard + 0.8 * per_run.normal(size=hard.shape) + per_run.normal(scale=0.06)
    logits[np.arange(images), labels] += skill
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    return Predictions(labels.astype(np.int64), p.astype(np.float32), graph(names))


def write(
    root: Path,
    labelled: Iterable[tuple[str, RunSpec]],
    *,
    classes: Mapping[str, Sequence[str]] = DATASETS,
    images: int = 150,
    change: Any = None,
    **plan: Any,
) -> tuple[RunsFolder, Plan]:
    """A folder with a run for each specification, and their plan; `change` edits predictions."""
    folder = RunsFolder(root)
    cells = tuple(Cell(label=label, spec=spec) for label, spec in labelled)
    for cell in cells:
        names = classes[cell.spec.dataset]
        half = -(-len(names) // 2)
        parts = {"test": names}
        if cell.spec.protocol == "base-to-novel":
            parts = {"base": names[:half], "novel": names[half:]}
        predicted = {
            part: predictions(cell.spec, part_names, part, images)
            for part, part_names in parts.items()
        }
        if change:
            predicted = {
                part: change(cell.spec, part_predictions)
                for part, part_predictions in predicted.items()
            }
        result = {
            "metrics": {
                part: {"accuracy": _accuracy(part_predictions)}
                for part, part_predictions in predicted.items()
            },
            "class_names": {part: list(part_names) for part, part_names in parts.items()},
            "normal": {
                part: [i for i, name in enumerate(part_names) if "normal" in name]
                for part, part_names in parts.items()
            },
            "seconds": {"train": 1.0},
        }
        folder.write(cell.spec, Result.model_validate(result), predicted)
    plan = {"name": "fake", "title": "Fake", "table": "few-shot"} | plan
    return folder, Plan(cells=cells, **plan)


def _accuracy(part_predictions: Predictions) -> float:
    return float((part_predictions.probabilities.argmax(axis=1) == part_predictions.labels).mean())


def specs(
    methods: Sequence[str] = ("biomedcoop", "ogkd"),
    datasets: Iterable[str] = ("retina", "busi"),
    shots: Sequence[int] = (1, 4, 16),
    seeds: Sequence[int] = (1, 2),
    **fields: Sequence[Any],
) -> list[tuple[str, RunSpec]]:
    """Every combination, labelled by method; other fields of RunSpec take lists too."""
    predicted = [
        {"dataset": dataset, "method": method, "shots": k, "seed": seed}
        for dataset in datasets for method in methods for k in shots for seed in seeds
    ]  # fmt: skip
    for name, values in fields.items():
        predicted = [{**old, name: value} for old in predicted for value in values]
    return [(str(content["method"]), RunSpec.model_validate(content)) for content in predicted]
